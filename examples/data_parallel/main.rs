//! The DataParallel demo: splits a batch over devices, computes the parts, and gathers the outputs.
//!
//! Within a process it is torch's `nn.DataParallel`: a replica on each of `--device-ids`, with a thread each.
//! Under a launcher rank 0 first scatters the batch over the workers and gathers their outputs; each worker
//! splits its part over its own devices.

mod cpu;
mod cuda;
mod place;
mod replica;

use std::io;
use std::process::ExitCode;

use clap::Parser;
use cpu::CpuLayer;
use place::PlaceError;
use rankrun_examples::random::Random;
use rankrun_examples::{batch_split, console};
use rankrun_worker::data_parallel::{DataParallel, DataParallelError, Device, Replica, Rows};
use rankrun_worker::{Group, GroupError, GroupOptions, Rank, ReduceOp, WorkerContext};
use replica::{Layer, Model, ReplicaError, Size, rows};

/// The rank that holds the whole batch.
const ROOT: Rank = Rank(0);

/// Splits batches over the devices of all workers of a job, and gathers the outputs of their models.
///
/// Each device prints `In Model: …` for its part; rank 0 prints `Outside: …` for the whole.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  data_parallel                                            all GPUs of one process, or its CPU
  data_parallel --device-ids cpu:0,cpu:1                   two threads, 15 of 30 rows each
  data_parallel --device-ids 1,0 --learning-rate 0.1       two GPUs, 1 first, which learn
  rankrun --nproc-per-node 2 data_parallel                 two workers, 15 of 30 rows each
  rankrun --nproc-per-node 4 data_parallel --batch 10      a remainder: 3, 3, 3 and 1 rows")]
struct Options {
    /// Number of batches.
    #[arg(long, default_value_t = 3)]
    steps: u64,
    /// Rows of a batch.
    #[arg(long, default_value_t = 30, value_parser = size())]
    batch: u32,
    /// Features of a row.
    #[arg(long, default_value_t = 1000, value_parser = size())]
    features: u32,
    /// Outputs for a row.
    #[arg(long, default_value_t = 2, value_parser = size())]
    outputs: u32,
    /// The devices of each worker, in the order of their parts; a number is a GPU. Default: the worker's
    /// device under a launcher, else all GPUs, or the CPU without one.
    #[arg(long, value_delimiter = ',', value_name = "DEVICES")]
    device_ids: Vec<Device>,
    /// Learning rate of a step after each batch, towards the outputs of another model; prints the loss.
    #[arg(long, value_parser = learning_rate)]
    learning_rate: Option<f32>,
    /// Seed of weights and batches.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// A product of two sizes fits into the memory of a small machine.
fn size() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=10_000)
}

fn learning_rate(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err("not a positive number".to_owned()),
    }
}

#[derive(Debug, thiserror::Error)]
enum DemoError {
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error(transparent)]
    Model(#[from] DataParallelError<ReplicaError>),
    #[error("the step failed")]
    Step(#[from] ReplicaError),
    #[error("cannot write to standard output")]
    Output(#[from] io::Error),
}

fn main() -> ExitCode {
    let options = Options::parse();
    rankrun_worker::run(|context| demonstrate(&options, context))
}

fn demonstrate(options: &Options, context: &WorkerContext) -> Result<(), DemoError> {
    let mut demo = Demo::begin(options, context)?;
    for step in 1..=options.steps {
        demo.step(step)?;
    }
    Ok(())
}

/// A model on the devices of all workers.
struct Demo<'a> {
    options: &'a Options,
    size: Size,
    group: Group,
    model: DataParallel<Model>,
    /// Computes the targets, on the root's host.
    teacher: CpuLayer,
}

impl<'a> Demo<'a> {
    fn begin(options: &'a Options, context: &WorkerContext) -> Result<Self, DemoError> {
        let devices = place::devices(&options.device_ids, context)?;
        let size = Size { features: options.features as usize, outputs: options.outputs as usize };
        let rank = context.rank().to_string();
        let mut model = DataParallel::new(devices, |device| Model::new(size, device, &rank))?;
        let mut group = context.process_group(&GroupOptions::default())?;
        let mut parameters = size.random_parameters(&mut Random::new(options.seed, 0));
        group.broadcast(&mut parameters, ROOT)?;
        model.first_replica_mut().set_parameters(&parameters)?;
        let mut teacher = CpuLayer::new(size);
        teacher.set_parameters(&size.random_parameters(&mut Random::new(options.seed, u64::MAX)))?;
        Ok(Self { options, size, group, model, teacher })
    }

    /// Processes one batch, which only the root has.
    fn step(&mut self, step: u64) -> Result<(), DemoError> {
        let mut random = Random::new(self.options.seed, step);
        let count =
            if self.group.rank() == ROOT { self.options.batch as usize * self.size.features } else { 0 };
        let batch = rows(self.size.features, (0..count).map(|_| random.normal() as f32).collect());
        let output = self.forward(&batch)?;
        if let Some(output) = &output {
            console::line(&format!("Outside: input size {batch}, output size {output}"))?;
        }
        match self.options.learning_rate {
            Some(rate) => self.learn(batch, output, rate),
            None => Ok(()),
        }
    }

    /// Computes the output of the whole batch, on the root.
    fn forward(&mut self, batch: &Rows<f32>) -> Result<Option<Rows<f32>>, DemoError> {
        let Size { features, outputs } = self.size;
        let input = self.group.scatter(batch.values(), &self.counts(features), ROOT)?;
        // With fewer rows than workers the last ones have none and skip the model.
        let output = match input.is_empty() {
            true => rows(outputs, Vec::new()),
            false => self.model.forward(&rows(features, input))?,
        };
        let gathered = self.group.gather(output.values(), &self.counts(outputs), ROOT)?;
        Ok(gathered.map(|values| rows(outputs, values)))
    }

    /// Takes a step towards the teacher's outputs by the mean squared error; the root has batch and output.
    fn learn(&mut self, batch: Rows<f32>, output: Option<Rows<f32>>, rate: f32) -> Result<(), DemoError> {
        let mut slopes = Vec::new();
        if let Some(output) = output {
            let target = self.teacher.forward(batch)?;
            let errors = output.values().iter().zip(&target).map(|(output, target)| output - target);
            slopes = errors.map(|error| 2.0 * error / target.len() as f32).collect();
            let loss: f32 = slopes.iter().map(|slope| (slope * target.len() as f32 / 2.0).powi(2)).sum();
            console::line(&format!("Loss: {:.6}", loss / target.len() as f32))?;
        }
        let own = self.group.scatter(&slopes, &self.counts(self.size.outputs), ROOT)?;
        if !own.is_empty() {
            self.model.backward(&rows(self.size.outputs, own))?;
        }
        let first = self.model.first_replica_mut();
        let mut gradients = first.take_gradients();
        self.group.all_reduce(&mut gradients, ReduceOp::Sum)?;
        Ok(first.descend(&gradients, rate)?)
    }

    /// Numbers of each worker for rows with `columns` values.
    fn counts(&self, columns: usize) -> Vec<usize> {
        let shares = batch_split::chunks(self.options.batch as usize, self.group.world_size().get() as usize);
        shares.iter().map(|share| share.len() * columns).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn flags_are_consistent() {
        Options::command().debug_assert();
    }

    /// Outputs and parameters after some steps on these devices.
    fn steps(devices: &str, rows: u32) -> (Vec<f32>, Vec<f32>) {
        let (batch, rate) = (rows.to_string(), "0.05");
        let sizes = ["--features", "6", "--outputs", "3", "--batch", &batch, "--learning-rate", rate];
        let flags = ["data_parallel", "--device-ids", devices];
        let options = Options::parse_from(flags.into_iter().chain(sizes));
        let mut demo = Demo::begin(&options, &WorkerContext::single_process()).unwrap();
        (1..4).for_each(|step| demo.step(step).unwrap());
        let batch = rows_of(&options);
        let output = demo.forward(&batch).unwrap().unwrap();
        (output.values().to_vec(), demo.model.first_replica().parameters().unwrap())
    }

    fn rows_of(options: &Options) -> Rows<f32> {
        let (features, mut random) = (options.features as usize, Random::new(9, 9));
        rows(features, (0..options.batch as usize * features).map(|_| random.normal() as f32).collect())
    }

    #[test]
    fn device_choice_does_not_change_training() {
        for rows in [1, 2, 5, 30] {
            let one = steps("cpu:0", rows);
            for devices in ["cpu:1,cpu:0", "cpu:0,cpu:1,cpu:2", "cpu:3,cpu:1,cpu:4,cpu:0"] {
                let other = steps(devices, rows);
                let close = |left: &[f32], right: &[f32]| {
                    left.len() == right.len()
                        && left.iter().zip(right).all(|(left, right)| (left - right).abs() < 1e-5)
                };
                assert!(close(&one.0, &other.0) && close(&one.1, &other.1), "{rows} rows on {devices}");
            }
        }
    }

    #[test]
    fn invalid_flags_are_refused() {
        for flags in [["--device-ids", "gpu"], ["--device-ids", "cpu:0,"], ["--learning-rate", "0"]] {
            assert!(
                Options::try_parse_from(["data_parallel"].into_iter().chain(flags)).is_err(),
                "{flags:?}"
            );
        }
    }
}
