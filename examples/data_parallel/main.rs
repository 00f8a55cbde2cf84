//! PyTorch's tutorial "Data Parallelism" in Rust: several devices compute each batch together.
//!
//! `worker_devices` chooses the devices, `DataParallel::new` makes a replica of the model on each of them, in their order.
//! `forward` splits a batch along its rows, as torch's `chunk`. Each replica computes its part on a thread of its own, and the
//! outputs are gathered. Under a launcher rank 0 first scatters the batch over the workers, and gathers their outputs.
#![expect(unsafe_code, reason = "declares the kernels of `linear.cu`")]

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, value_parser};
use rankrun_examples::console::{self, OutputError};
use rankrun_examples::random::random_numbers;
use rankrun_worker::cuda::{CudaDevice, CudaError, CudaSlice, Kernel, Slice, SliceMut, worker_devices};
use rankrun_worker::data_parallel::{Batch, DataParallel, Device, DeviceIds, Replica, Rows, chunks};
use rankrun_worker::{GroupOptions, Rank, WorkerContext};

/// The rank that has the data.
const ROOT: Rank = Rank(0);

/// Splits batches over the devices of all workers of a job, and gathers the outputs of their models.
///
/// Each device prints `In Model: …` for its part; rank 0 prints `Outside: …` for the whole.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  data_parallel                                            all GPUs of one process, or its CPU
  data_parallel --device-ids cpu:0,cpu:1                   two threads, 15 of 30 rows each
  data_parallel --device-ids 1,0                           two GPUs, 1 first
  rankrun --nproc-per-node 2 data_parallel                 two workers, 15 of 30 rows each
  rankrun --nproc-per-node 4 data_parallel --batch 10      a remainder: 3, 3, 3 and 1 rows")]
struct Options {
    /// Rows of the data; those of the last batch may be fewer than the others.
    #[arg(long, default_value_t = 100, value_parser = value_parser!(u32).range(1..=1_000_000))]
    rows: u32,
    /// Rows of a batch.
    #[arg(long, default_value_t = 30, value_parser = value_parser!(u32).range(1..=10_000))]
    batch: u32,
    /// Features of a row.
    #[arg(long, default_value_t = 1000, value_parser = value_parser!(u32).range(1..=10_000))]
    features: u32,
    /// Outputs for a row.
    #[arg(long, default_value_t = 2, value_parser = value_parser!(u32).range(1..=10_000))]
    outputs: u32,
    /// The devices of each worker, in the order of their parts; a number is a GPU. Default: the worker's
    /// device under a launcher, else all GPUs, or the CPU without one.
    #[arg(long, value_delimiter = ',', value_name = "DEVICES")]
    device_ids: Vec<Device>,
    /// Makes so many replicas on the first device instead, to see the split on a machine with one GPU.
    #[arg(long, value_name = "COUNT")]
    replicas: Option<std::num::NonZero<usize>>,
    /// Prints the outputs of each batch, too.
    #[arg(long)]
    print_outputs: bool,
    /// Seed of parameters and data.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn main() -> ExitCode {
    let options = Options::parse();
    rankrun_worker::run(|context| demonstrate(&options, context))
}

fn demonstrate(options: &Options, context: &WorkerContext) -> Result<(), Box<dyn Error>> {
    let (features, outputs) = (options.features as usize, options.outputs as usize);
    let (is_root, workers) = (context.rank() == ROOT, context.world_size().get() as usize);
    let mut random = random_numbers(options.seed);

    // The devices in their order, and a replica of the model on each.
    let mut devices = worker_devices(&options.device_ids, context)?;
    if let Some(replicas) = options.replicas {
        devices = DeviceIds::repeated(&devices.devices()[0], replicas);
    }
    let mut model =
        DataParallel::new(devices, |device| Model::new([features, outputs], device, context.rank()))?;
    let (count, is_cuda) = (model.devices().len() * workers, model.devices()[0].kind() == "cuda");
    if is_root && count > 1 {
        console::line(&format!("Let's use {count} {}!", if is_cuda { "GPUs" } else { "CPU devices" }))?;
    }

    // All replicas begin with the parameters of rank 0: numbers within one over the root of the features, as in torch.
    let mut group = context.process_group(&GroupOptions::default())?;
    let scale = (features as f32).sqrt().recip();
    let numbers = random.by_ref().take((features + 1) * outputs);
    let mut parameters: Vec<f32> = numbers.map(|number| number * scale).collect();
    group.broadcast(&mut parameters, ROOT)?;
    model.first_replica_mut().set_parameters(&parameters)?;

    for start in (0..options.rows).step_by(options.batch as usize) {
        // Rank 0 has the batch, and scatters it: a part for each worker, which is empty where rows are fewer than workers.
        let rows = options.batch.min(options.rows - start) as usize;
        let values = random.by_ref().take(if is_root { rows * features } else { 0 });
        let batch = Rows::new(features, values.collect())?;
        let mut parts = chunks(rows, workers);
        parts.resize(workers, rows..rows);
        let counts = |columns: usize| parts.iter().map(|part| part.len() * columns).collect::<Vec<_>>();
        let part = Rows::new(features, group.scatter(batch.values(), &counts(features), ROOT)?)?;

        // Each worker splits its part over its replicas, and gathers their outputs; rank 0 gathers those of all workers.
        let output = if part.rows() > 0 { model.forward(&part)? } else { Rows::new(outputs, Vec::new())? };
        if let Some(gathered) = group.gather(output.values(), &counts(outputs), ROOT)? {
            let output = Rows::new(outputs, gathered)?;
            console::line(&format!("Outside: input size {batch}, output size {output}"))?;
            if options.print_outputs {
                output.iter().try_for_each(|row| console::line(&format!("{row:?}")))?;
            }
        }
    }
    Ok(())
}

/// Why a replica has no output.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum ModelError {
    Device(#[from] CudaError),
    Rows(#[from] rankrun_worker::data_parallel::UnevenRows),
    Console(#[from] OutputError),
}

/// A replica: a linear layer on one device. It says what it is given.
struct Model {
    layer: Layer,
    outputs: usize,
    place: String,
}

/// Its parameters are a weight for each output and feature, output by output, then a bias for each output.
enum Layer {
    Cpu { parameters: Vec<f32> },
    Cuda { device: CudaDevice, forward: Kernel<Forward>, parameters: CudaSlice<f32> },
}

/// What the kernel takes: outputs, parameters of the layer, inputs.
type Forward = (SliceMut<f32>, Slice<f32>, Slice<f32>);

impl Model {
    fn new([features, outputs]: [usize; 2], device: &Device, rank: Rank) -> Result<Self, ModelError> {
        let place = format!("rank {rank}, device {device}, pid {}", std::process::id());
        let parameters = vec![0.0; (features + 1) * outputs];
        let layer = if let Device::Cuda(ordinal) = device {
            let device = CudaDevice::open(*ordinal)?;
            let sizes = format!("#define FEATURES {features}\n#define OUTPUTS {outputs}\n");
            let kernels = device.compile(&(sizes + include_str!("linear.cu")))?;
            // SAFETY: these are its parameters, and it stays below the lengths of all slices.
            let forward = unsafe { kernels.declare("forward") }?;
            Layer::Cuda { forward, parameters: device.upload(&parameters)?, device }
        } else {
            Layer::Cpu { parameters }
        };
        Ok(Self { layer, outputs, place })
    }
}

impl Replica for Model {
    type Input = Rows<f32>;
    type Output = Rows<f32>;
    type Parameters = Vec<f32>;
    type Error = ModelError;

    fn parameters(&self) -> Result<Vec<f32>, ModelError> {
        Ok(match &self.layer {
            Layer::Cpu { parameters } => parameters.clone(),
            Layer::Cuda { device, parameters, .. } => device.read_all(parameters)?,
        })
    }

    fn set_parameters(&mut self, new: &Vec<f32>) -> Result<(), ModelError> {
        match &mut self.layer {
            Layer::Cpu { parameters } => parameters.copy_from_slice(new),
            Layer::Cuda { device, parameters, .. } => device.write(new, parameters)?,
        }
        Ok(())
    }

    fn forward(&mut self, input: Rows<f32>) -> Result<Rows<f32>, ModelError> {
        let output = match &self.layer {
            Layer::Cpu { parameters } => {
                let (weights, biases) = parameters.split_at(input.columns() * self.outputs);
                let layer = || weights.chunks_exact(input.columns()).zip(biases);
                let sums = input.iter().flat_map(|row| {
                    layer().map(move |(weights, bias)| {
                        row.iter().zip(weights).fold(*bias, |sum, (value, weight)| sum + value * weight)
                    })
                });
                sums.collect()
            }
            Layer::Cuda { device, forward, parameters } => {
                let count = input.rows() * self.outputs;
                let (input, mut sums) = (device.upload(input.values())?, device.zeros(count)?);
                // A thread for each output.
                forward.launch(count, (sums.as_view_mut(), parameters.as_view(), input.as_view()))?;
                device.read_all(&sums)?
            }
        };
        let output = Rows::new(self.outputs, output)?;
        console::line(&format!("In Model: input size {input}, output size {output} ({})", self.place))?;
        Ok(output)
    }
}
