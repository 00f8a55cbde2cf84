//! A study of faults in data-parallel training: ranks fail on request, in every way and at every step, and the training ends with
//! the weights of an undisturbed one. For that the model has gradients by hand, and numbers that do not depend on the device.
//!
//! Every worker has the whole model and a part of each batch; gradients are averaged over the workers while backward runs, and
//! any number of workers takes the same steps. A template for a training of your own is the example `train` of the adapter for
//! candle, `worker-runtime/adapters/candle/examples/train.rs`.

mod cuda;
mod data;
mod fault;
mod learner;
mod model;
mod progress;

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use data::Dataset;
use fault::{Fault, FaultKind};
use learner::{DeviceChoice, Learner};
use model::Mlp;
use progress::Progress;
use rankrun_examples::console;
use rankrun_examples::random::Random;
use rankrun_worker::checkpoint::{Checkpoint, CheckpointOptions};
use rankrun_worker::sampler::{DistributedSampler, GlobalBatches, SamplerOptions};
use rankrun_worker::{ElasticRun, Rank, run_elastic, trace};

/// The rank that prints, and reads and writes files.
const ROOT: Rank = Rank(0);

/// Metadata key of the options in a checkpoint.
const OPTIONS: &str = "options";

/// Trains a small classifier on generated data, on all workers of a job.
///
/// 1, 2 or 4 workers end with the same weights up to rounding. With a checkpoint it continues from the latest
/// one, after a restart or in another run.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  ddp_training                                        one worker, without a launcher
  rankrun --nproc-per-node 4 ddp_training             four workers
  rankrun --nproc-per-node 4 --max-restarts 1 \\
      ddp_training --checkpoint /tmp/c --fail-at 50   rank 0 fails once; training goes on from step 40")]
struct Options {
    /// Number of steps.
    #[arg(long, default_value_t = 200)]
    steps: u64,
    /// Samples of a step, over all workers.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    batch: u32,
    /// Samples of the data set.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    samples: u32,
    /// Learning rate of a step.
    #[arg(long, default_value_t = 0.2, value_parser = learning_rate)]
    learning_rate: f64,
    /// Device to compute on; a checkpoint works on both.
    #[arg(long, default_value = "auto", value_name = "WHERE")]
    device: DeviceChoice,
    /// Seed of data, their order and the first weights.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print loss and accuracy every so many steps.
    #[arg(long, default_value_t = 20, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    print_every: u64,
    /// Keep the state of the training in this folder, and continue from the latest one.
    #[arg(long, value_name = "FOLDER")]
    checkpoint: Option<PathBuf>,
    /// Write a checkpoint every so many steps.
    #[arg(long, default_value_t = 20, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every: u64,
    /// Write the final weights to this file, one per line.
    #[arg(long, value_name = "FILE")]
    weights_out: Option<PathBuf>,
    /// Fail before this step (from 1), unless this is a restart.
    #[arg(long, value_name = "STEP", value_parser = clap::value_parser!(u64).range(1..))]
    fail_at: Option<u64>,
    /// Rank that fails.
    #[arg(long, default_value = "0", value_name = "RANK", requires = "fail_at")]
    fail_rank: Rank,
    /// Kind of failure.
    #[arg(long, default_value = "exit", value_name = "HOW", requires = "fail_at")]
    fail_how: FaultKind,
    /// Exit code of a rank that fails with an error, for `rankrun --restart-rules`.
    #[arg(long, default_value_t = 1, value_name = "CODE", requires = "fail_at", value_parser = clap::value_parser!(u8).range(1..))]
    fail_code: u8,
    /// Delay of each step, to leave time for interference.
    #[arg(long, default_value_t = 0, value_name = "MILLISECONDS")]
    step_ms: u64,
}

fn learning_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err("not a positive number".to_owned()),
    }
}

/// Errors of this program; those of the library are printed unchanged.
#[derive(Debug, thiserror::Error)]
enum TrainingError {
    #[error(
        "the checkpoint `{}` is of a training with other options ({saved}, not {ours}); name another folder, or remove it",
        folder.display()
    )]
    OtherOptions { folder: PathBuf, saved: String, ours: String },
    #[error("cannot write the weights to `{}`", path.display())]
    Weights {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

type Result<T = (), E = Box<dyn Error>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    let options = Options::parse();
    run_elastic(|run| Training::begin(&options, run)?.run())
}

/// A training under way.
struct Training<'a> {
    options: &'a Options,
    learner: Learner,
    data: Dataset,
    batches: GlobalBatches,
    model: Mlp,
    checkpoint: Option<Checkpoint>,
    /// Completed steps.
    step: u64,
    fault: Fault,
    /// On the printing rank only.
    progress: Option<Progress>,
}

impl<'a> Training<'a> {
    /// Continues from the latest checkpoint, or begins a new training.
    fn begin(options: &'a Options, run: ElasticRun) -> Result<Self> {
        let context = &run.context;
        let (rank, world_size) = (context.rank(), context.world_size());
        let restart = context.restart_count();
        let fault = Fault::plan(options, context)?;
        let data = Dataset::new(options.samples as usize, &mut Random::new(options.seed, 1));
        let order = SamplerOptions { seed: options.seed, ..SamplerOptions::default() };
        let sampler = DistributedSampler::new(data.len(), rank, world_size, order)?;
        let batches = GlobalBatches::new(sampler, options.batch as usize)?;
        let model = Mlp::new(&mut Random::new(options.seed, 0));
        let folder = options.checkpoint.as_ref();
        let checkpoint = folder.map(|folder| Checkpoint::open(context, &CheckpointOptions::new(folder)));
        let checkpoint = checkpoint.transpose()?;
        let context = context.clone();
        let learner = Learner::open(options.device, run, options.batch as usize)?;
        let (pid, place) = (std::process::id(), learner.describe(&context));
        console::line(&format!("rank {rank} of {world_size}: pid {pid}, {place}, restart {restart}"))?;
        let mut training =
            Self { options, learner, data, batches, model, checkpoint, step: 0, fault, progress: None };
        training.resume()?;
        training.learner.begin(&mut training.model)?;
        training.progress = (rank == ROOT).then(|| Progress::new(training.step, options.steps, restart.0));
        Ok(training)
    }

    fn resume(&mut self) -> Result {
        let ours = describe_options(self.options);
        let Some(checkpoint) = &mut self.checkpoint else { return Ok(()) };
        let folder = checkpoint.folder().to_owned();
        let Some(loaded) = checkpoint.load_latest(&mut self.model.state())? else { return Ok(()) };
        let saved = loaded.metadata.get(OPTIONS).cloned().unwrap_or_default();
        if saved != ours {
            return Err(TrainingError::OtherOptions { folder, saved, ours }.into());
        }
        self.step = loaded.step;
        if self.learner.rank() == ROOT {
            console::line(&format!("resumed from step {} of {}", loaded.step, folder.display()))?;
        }
        Ok(())
    }

    fn run(mut self) -> Result {
        while self.step < self.options.steps {
            self.fault.trigger(self.step + 1)?;
            self.take_step()?;
            std::thread::sleep(Duration::from_millis(self.options.step_ms));
        }
        if self.learner.rank() == ROOT {
            self.finish()?;
        }
        // No rank leaves before the files are written.
        Ok(self.learner.into_group()?.barrier()?)
    }

    fn take_step(&mut self) -> Result {
        let _span = trace::step_span(self.step);
        let batch = f64::from(self.options.batch);
        let world = f64::from(self.learner.world_size().get());
        let share = self.batches.indices(self.step);
        let samples: Vec<_> = share.into_iter().map(|index| self.data.sample(index)).collect();
        // The sum over workers of unequal parts must become the mean over the batch.
        let rate = self.options.learning_rate;
        let [loss, right] = self.learner.step(&mut self.model, &samples, world / batch, rate)?;
        self.step += 1;
        self.print_progress(loss / batch, right / batch)?;
        self.save_checkpoint()
    }

    fn print_progress(&self, loss: f64, accuracy: f64) -> Result {
        let (step, options) = (self.step, self.options);
        if let Some(progress) = &self.progress {
            let is_due = step.is_multiple_of(options.print_every) || step == options.steps;
            progress.step(step, loss, is_due.then_some(accuracy))?;
        }
        Ok(())
    }

    /// Saves the state on all ranks at the same steps.
    fn save_checkpoint(&mut self) -> Result {
        let (step, options) = (self.step, self.options);
        let is_time = step.is_multiple_of(options.checkpoint_every) || step == options.steps;
        if let (Some(checkpoint), true) = (&mut self.checkpoint, is_time) {
            self.learner.fetch(&mut self.model)?;
            checkpoint.save(step, &self.model.state().with_metadata(OPTIONS, describe_options(options)))?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result {
        if let Some(progress) = &self.progress {
            progress.end();
        }
        self.learner.fetch(&mut self.model)?;
        let (loss, accuracy) = self.model.evaluate(&self.data);
        let length = self.model.parameters.iter().map(|weight| weight * weight).sum::<f64>().sqrt();
        console::line(&format!(
            "finished: step {}, loss {loss:.6}, accuracy {accuracy:.4}, weights l2={length:.12}",
            self.step
        ))?;
        if let Some(path) = &self.options.weights_out {
            let text: String = self.model.parameters.iter().map(|weight| format!("{weight:?}\n")).collect();
            std::fs::write(path, text)
                .map_err(|source| TrainingError::Weights { path: path.clone(), source })?;
        }
        Ok(())
    }
}

/// Options that determine the weights, apart from rounding. The number of workers does not.
fn describe_options(options: &Options) -> String {
    let Options { batch, samples, learning_rate, seed, .. } = options;
    format!("batch {batch}, samples {samples}, learning rate {learning_rate}, seed {seed}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use rankrun_worker::{GroupOptions, WorkerContext};

    #[test]
    fn flags_are_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn training_lowers_loss() {
        let options = Options::parse_from(["ddp_training", "--steps", "150"]);
        let run = ElasticRun::begin(&WorkerContext::single_process(), &GroupOptions::default()).unwrap();
        let mut training = Training::begin(&options, run).unwrap();
        let (before, _) = training.model.evaluate(&training.data);
        while training.step < options.steps {
            training.take_step().unwrap();
        }
        let (after, accuracy) = training.model.evaluate(&training.data);
        assert!(after < before / 2.0 && accuracy > 0.8, "{before} {after} {accuracy}");
    }

    #[test]
    fn invalid_flags_are_refused() {
        for flags in [
            ["--batch", "0"],
            ["--learning-rate", "nan"],
            ["--learning-rate", "-1"],
            ["--checkpoint-every", "0"],
            ["--fail-rank", "0"],
            ["--steps", "many"],
        ] {
            assert!(Options::try_parse_from(["ddp_training"].into_iter().chain(flags)).is_err(), "{flags:?}");
        }
    }
}
