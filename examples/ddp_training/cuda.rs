//! The model on a CUDA device.
#![expect(unsafe_code, reason = "launches kernels, and hands over memory of a device")]

use std::error::Error;
use std::ffi::c_void;
use std::ops::Range;

use bytemuck::cast_slice;
use cudarc::driver::{CudaFunction, CudaSlice, DevicePtrMut, PushKernelArg};
use rankrun_examples::gpu::{Gpu, GpuError, threads};
use rankrun_worker::ddp::{Ddp, NcclDdp};
use rankrun_worker::process_group::nccl::NcclGroup;
use rankrun_worker::process_group::{DeviceMemory, Stream};
use rankrun_worker::{ElasticRun, Group, GroupOptions, Rank, ReduceOp, WorldSize};

use crate::data::{CLASSES, FEATURES};
use crate::learner::{self, Sample};
use crate::model::{HIDDEN, Mlp, OUTPUT, PARAMETERS, PARTS};

const KERNELS: &str = include_str!("mlp.cu");

type Result<T = (), E = Box<dyn Error>> = std::result::Result<T, E>;

/// The model of this worker on its GPU, and how its gradients meet those of the others.
pub(crate) struct CudaLearner {
    /// It goes before the model, whose stream it may look at until then.
    exchange: Exchange,
    model: CudaModel,
}

/// How gradients travel.
#[expect(clippy::large_enum_variant, reason = "a process has one")]
enum Exchange {
    /// From device to device, where they lie.
    Device(NcclDdp),
    /// Through memory of the hosts: where NCCL is missing on a worker, or a worker has no device of its own.
    Host(Ddp),
}

impl CudaLearner {
    pub(crate) fn new(model: CudaModel, run: ElasticRun, by_nccl: bool) -> Result<Self> {
        let ElasticRun { context, group, .. } = run;
        let exchange = if by_nccl {
            let options = GroupOptions { name: "gradients".to_owned(), ..GroupOptions::default() };
            let device = NcclGroup::join(&context, &options, None)?;
            Exchange::Device(NcclDdp::new(group, device, Mlp::description(), &learner::buckets())?)
        } else {
            Exchange::Host(learner::ddp(group)?)
        };
        Ok(Self { model, exchange })
    }

    pub(crate) fn describe(&self) -> String {
        let way = match &self.exchange {
            Exchange::Device(_) => "gradients by nccl",
            Exchange::Host(_) => "gradients by the host",
        };
        format!("device cuda:{}, {way}", self.model.ordinal)
    }

    pub(crate) fn rank(&self) -> Rank {
        match &self.exchange {
            Exchange::Device(ddp) => ddp.rank(),
            Exchange::Host(ddp) => ddp.rank(),
        }
    }

    pub(crate) fn world_size(&self) -> WorldSize {
        match &self.exchange {
            Exchange::Device(ddp) => ddp.world_size(),
            Exchange::Host(ddp) => ddp.world_size(),
        }
    }

    pub(crate) fn begin(&mut self, model: &mut Mlp) -> Result {
        if let Exchange::Host(ddp) = &mut self.exchange {
            ddp.broadcast(model.parts_mut())?;
        }
        let on_device = &mut self.model;
        on_device.gpu.put(&model.parameters, &mut on_device.parameters)?;
        if let Exchange::Device(ddp) = &mut self.exchange {
            let stream = on_device.raw();
            let parts = parts(&mut on_device.parameters, &on_device.gpu);
            // SAFETY: the memory is the model's, and lives as long as its stream.
            unsafe { ddp.broadcast(&parts, stream) }?;
        }
        Ok(())
    }

    pub(crate) fn step(&mut self, samples: &[Sample<'_>], scale: f64, rate: f64) -> Result<[f64; 2]> {
        let Self { model, exchange } = self;
        model.forward(samples, [scale, rate])?;
        // Those of the output layer are on their way while those of the hidden one are computed.
        model.differentiate_output(samples.len())?;
        hand_over(exchange, model, &[3, 2])?;
        model.differentiate_hidden(samples.len())?;
        hand_over(exchange, model, &[1, 0])?;
        match exchange {
            // SAFETY: the stream is the model's.
            Exchange::Device(ddp) => drop(unsafe { ddp.finish(model.raw()) }?),
            Exchange::Host(ddp) => {
                let means = ddp.finish()?.iter::<f64>().collect::<Vec<_>>().concat();
                model.gpu.put(&means, &mut model.gradients)?;
            }
        }
        model.take_step()?;
        let mut score = model.score(samples.len())?;
        match exchange {
            Exchange::Device(ddp) => ddp.host().all_reduce(&mut score, ReduceOp::Sum)?,
            Exchange::Host(ddp) => {
                let sums = ddp.async_group().all_reduce(score.to_vec(), ReduceOp::Sum).wait()?;
                score.copy_from_slice(&sums);
            }
        }
        Ok(score)
    }

    pub(crate) fn fetch(&mut self, model: &mut Mlp) -> Result {
        let on_device = &self.model;
        if let Exchange::Device(ddp) = &mut self.exchange {
            // What NCCL could not do was taken off the streams, and what came behind it has made a step of nonsense: that is not to
            // be saved.
            // SAFETY: the stream is the model's.
            unsafe { ddp.synchronize(on_device.raw()) }?;
        }
        Ok(on_device.gpu.get(&on_device.parameters, &mut model.parameters)?)
    }

    pub(crate) fn into_group(self) -> Result<Group> {
        match self.exchange {
            Exchange::Device(ddp) => {
                let (host, _device) = ddp.into_groups()?;
                Ok(host)
            }
            Exchange::Host(ddp) => Ok(ddp.into_group()?),
        }
    }
}

/// The gradients of these parts are on the stream.
fn hand_over(exchange: &mut Exchange, model: &mut CudaModel, ready: &[usize]) -> Result {
    match exchange {
        Exchange::Device(ddp) => {
            let stream = model.raw();
            let parts = parts(&mut model.gradients, &model.gpu);
            // SAFETY: the memory is the model's; it is used again by work after `finish` on the same stream.
            ready.iter().try_for_each(|&part| unsafe { ddp.gradient_ready(part, parts[part], stream) })?;
        }
        Exchange::Host(ddp) => {
            for &part in ready {
                let from = model.gradients.slice(PARTS[part].clone());
                model.gpu.get(&from, ddp.overwrite_gradient(part)?)?;
                ddp.mark_ready(part)?;
            }
        }
    }
    Ok(())
}

/// Where the parts of the model lie in memory that has a number for each of its parameters.
fn parts(all: &mut CudaSlice<f64>, gpu: &Gpu) -> [DeviceMemory; PARTS.len()] {
    let (address, _sync) = all.device_ptr_mut(&gpu.stream);
    PARTS.map(|Range { start, end }| DeviceMemory {
        address: address + (start * size_of::<f64>()) as u64,
        bytes: (end - start) * size_of::<f64>(),
    })
}

/// The model, and memory for what it makes of a batch. Everything is done in the order of one stream.
pub(crate) struct CudaModel {
    gpu: Gpu,
    ordinal: usize,
    kernels: Kernels,
    parameters: CudaSlice<f64>,
    gradients: CudaSlice<f64>,
    /// What samples are multiplied by, and the length of a step.
    settings: CudaSlice<f64>,
    input: CudaSlice<f64>,
    classes: CudaSlice<i64>,
    hidden: CudaSlice<f64>,
    slopes: CudaSlice<f64>,
    errors: CudaSlice<f64>,
    scores: CudaSlice<f64>,
}

struct Kernels {
    activate: CudaFunction,
    judge: CudaFunction,
    descend_into_hidden: CudaFunction,
    differentiate: CudaFunction,
    step: CudaFunction,
}

impl CudaModel {
    /// On this device, for up to so many samples at once.
    pub(crate) fn open(ordinal: usize, rows: usize) -> Result<Self, GpuError> {
        let sizes = [("FEATURES", FEATURES), ("HIDDEN", HIDDEN), ("CLASSES", CLASSES), ("OUTPUT", OUTPUT)];
        let sizes: String = sizes.iter().map(|(name, size)| format!("#define {name} {size}\n")).collect();
        let gpu = Gpu::open(ordinal, &(sizes + KERNELS))?;
        let numbers = |count: usize| gpu.stream.alloc_zeros::<f64>(count);
        Ok(Self {
            kernels: Kernels {
                activate: gpu.kernel("activate")?,
                judge: gpu.kernel("judge")?,
                descend_into_hidden: gpu.kernel("descend_into_hidden")?,
                differentiate: gpu.kernel("differentiate")?,
                step: gpu.kernel("step")?,
            },
            ordinal,
            parameters: numbers(PARAMETERS)?,
            gradients: numbers(PARAMETERS)?,
            settings: numbers(2)?,
            input: numbers(rows * FEATURES)?,
            classes: gpu.stream.alloc_zeros(rows)?,
            hidden: numbers(rows * HIDDEN)?,
            slopes: numbers(rows * HIDDEN)?,
            errors: numbers(rows * CLASSES)?,
            scores: numbers(rows * 2)?,
            gpu,
        })
    }

    fn raw(&self) -> Stream {
        Stream(self.gpu.stream.cu_stream().cast::<c_void>())
    }

    fn forward(&mut self, samples: &[Sample<'_>], settings: [f64; 2]) -> Result<(), GpuError> {
        let Self { gpu, kernels, parameters, settings: on_device, input, classes, .. } = self;
        let stream = &gpu.stream;
        let count = samples.len();
        gpu.put(&settings, on_device)?;
        if count == 0 {
            return Ok(());
        }
        let features: Vec<[f64; FEATURES]> = samples.iter().map(|(features, _)| **features).collect();
        let right: Vec<i64> = samples.iter().map(|(_, class)| *class as i64).collect();
        gpu.put(cast_slice(&features), &mut input.slice_mut(..count * FEATURES))?;
        gpu.put(&right, &mut classes.slice_mut(..count))?;
        let rows = count as i64;
        let mut launch = stream.launch_builder(&kernels.activate);
        launch.arg(&mut self.hidden).arg(&*parameters).arg(&*input).arg(&rows);
        // SAFETY: the arguments are those of the kernel, which stays within memory for so many rows.
        unsafe { launch.launch(threads(count * HIDDEN)) }?;
        let mut launch = stream.launch_builder(&kernels.judge);
        launch.arg(&mut self.scores).arg(&mut self.errors).arg(&*parameters).arg(&self.hidden);
        launch.arg(&*classes).arg(&*on_device).arg(&rows);
        // SAFETY: as above; classes are below their number.
        unsafe { launch.launch(threads(count)) }?;
        Ok(())
    }

    fn differentiate_output(&mut self, count: usize) -> Result<(), GpuError> {
        let (rows, inputs, outputs) = (count as i64, HIDDEN as i64, CLASSES as i64);
        let mut gradients = self.gradients.slice_mut(OUTPUT..);
        let mut launch = self.gpu.stream.launch_builder(&self.kernels.differentiate);
        launch.arg(&mut gradients).arg(&self.errors).arg(&self.hidden);
        launch.arg(&rows).arg(&inputs).arg(&outputs);
        // SAFETY: as above; of the parameters from `OUTPUT` on there is a weight for each output and unit, and a bias for each output.
        unsafe { launch.launch(threads(PARAMETERS - OUTPUT)) }?;
        Ok(())
    }

    fn differentiate_hidden(&mut self, count: usize) -> Result<(), GpuError> {
        let (rows, inputs, outputs) = (count as i64, FEATURES as i64, HIDDEN as i64);
        let stream = &self.gpu.stream;
        if count > 0 {
            let mut launch = stream.launch_builder(&self.kernels.descend_into_hidden);
            launch.arg(&mut self.slopes).arg(&self.parameters).arg(&self.hidden).arg(&self.errors).arg(&rows);
            // SAFETY: as above.
            unsafe { launch.launch(threads(count * HIDDEN)) }?;
        }
        let mut launch = stream.launch_builder(&self.kernels.differentiate);
        launch.arg(&mut self.gradients).arg(&self.slopes).arg(&self.input);
        launch.arg(&rows).arg(&inputs).arg(&outputs);
        // SAFETY: as above; the parameters below `OUTPUT` are those of the hidden layer.
        unsafe { launch.launch(threads(OUTPUT)) }?;
        Ok(())
    }

    fn take_step(&mut self) -> Result<(), GpuError> {
        let (rate, count) = (self.settings.slice(1..), PARAMETERS as i64);
        let mut launch = self.gpu.stream.launch_builder(&self.kernels.step);
        launch.arg(&mut self.parameters).arg(&self.gradients).arg(&rate).arg(&count);
        // SAFETY: as above.
        unsafe { launch.launch(threads(PARAMETERS)) }?;
        Ok(())
    }

    /// The sum of all losses, and how often the model was right.
    fn score(&self, count: usize) -> Result<[f64; 2], GpuError> {
        let scores = match count {
            0 => Vec::new(),
            _ => self.gpu.get_all(&self.scores.slice(..count * 2))?,
        };
        let sum = |at| scores.iter().skip(at).step_by(2).sum();
        Ok([sum(0), sum(1)])
    }
}
