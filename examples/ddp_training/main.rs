//! Data-parallel training: every worker has the whole model and a share of each batch; gradients become their mean over the
//! workers while backward runs, and any number of workers takes the same steps.

mod checkpoint;
mod data;
mod fault;
mod model;
mod progress;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use checkpoint::{Checkpoint, CheckpointError};
use clap::Parser;
use data::Dataset;
use fault::{Fault, FaultError, FaultKind};
use model::Mlp;
use progress::Progress;
use rankrun_examples::random::Random;
use rankrun_examples::{console, share};
use rankrun_worker::ddp::{Ddp, DdpError, DdpOptions};
use rankrun_worker::{GroupError, GroupOptions, Rank, Reduction, WorkerContext};

/// The rank that prints, and reads and writes files.
const ROOT: Rank = Rank(0);

/// Trains a small classifier on data that it makes itself, on all workers of a job.
///
/// With 1, 2 or 4 workers it ends with the same weights up to rounding. With a checkpoint it goes on where
/// the last one was written, after a restart or in another run.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  ddp_training                                        one worker, without a launcher
  rankrun --nproc-per-node 4 ddp_training             four workers
  rankrun --nproc-per-node 4 --max-restarts 1 \\
      ddp_training --checkpoint /tmp/c --fail-at 50   rank 0 fails once; training goes on from step 40")]
struct Options {
    /// How many steps.
    #[arg(long, default_value_t = 200)]
    steps: u64,
    /// Samples in a step, over all workers.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    batch: u32,
    /// Samples in all.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    samples: u32,
    /// The length of a step.
    #[arg(long, default_value_t = 0.2, value_parser = learning_rate)]
    learning_rate: f64,
    /// Decides data and first weights.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print loss and accuracy every so many steps.
    #[arg(long, default_value_t = 20, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    print_every: u64,
    /// Keep the state of the training here, and go on from it if it is there.
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// Write the checkpoint every so many steps.
    #[arg(long, default_value_t = 20, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every: u64,
    /// Write the last weights here, one in a line.
    #[arg(long, value_name = "FILE")]
    weights_out: Option<PathBuf>,
    /// Fail before this step (counted from 1), unless this is a restart.
    #[arg(long, value_name = "STEP", value_parser = clap::value_parser!(u64).range(1..))]
    fail_at: Option<u64>,
    /// The rank that fails.
    #[arg(long, default_value = "0", value_name = "RANK", requires = "fail_at")]
    fail_rank: Rank,
    /// How it fails.
    #[arg(long, default_value = "exit", value_name = "HOW", requires = "fail_at")]
    fail_how: FaultKind,
    /// Make each step this much longer, so that there is time to interfere.
    #[arg(long, default_value_t = 0, value_name = "MILLISECONDS")]
    step_ms: u64,
}

fn learning_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err("not a positive number".to_owned()),
    }
}

#[derive(Debug, thiserror::Error)]
enum TrainingError {
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error(transparent)]
    Ddp(#[from] DdpError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Fault(#[from] FaultError),
    #[error("cannot write to standard output")]
    Output(#[from] io::Error),
}

fn main() -> ExitCode {
    let options = Options::parse();
    rankrun_worker::run(|context| Training::begin(&options, context)?.run())
}

/// A training under way.
struct Training<'a> {
    options: &'a Options,
    ddp: Ddp,
    data: Dataset,
    model: Mlp,
    /// Steps taken.
    step: u64,
    fault: Fault,
    /// Of the rank that prints.
    progress: Option<Progress>,
}

impl<'a> Training<'a> {
    /// Joins the group and agrees with it on where to begin.
    fn begin(options: &'a Options, context: &WorkerContext) -> Result<Self, TrainingError> {
        let (rank, world_size) = (context.rank(), context.world_size());
        let (device, restart) = (context.device(), context.restart_count());
        let fault = Fault::plan(options.fail_at, options.fail_rank, options.fail_how, context)?;
        let pid = std::process::id();
        console::line(&format!(
            "rank {rank} of {world_size}: pid {pid}, device {device}, restart {restart}"
        ))?;

        let mut group = context.process_group(&GroupOptions::default())?;
        let data = Dataset::new(options.samples as usize, &mut Random::new(options.seed, 1));
        let mut model = Mlp::new(&mut Random::new(options.seed, 0));
        let mut step = [0];
        if let (ROOT, Some(path)) = (rank, &options.checkpoint)
            && let Some(checkpoint) = Checkpoint::read(path, fingerprint(options), model.parameters.len())?
        {
            step = [checkpoint.step.cast_signed()];
            model.parameters = checkpoint.parameters;
            console::line(&format!("resumed from step {} of {}", checkpoint.step, path.display()))?;
        }
        group.broadcast(&mut step, ROOT)?;
        let mut ddp = Ddp::new(group, Mlp::description(), &DdpOptions::default())?;
        ddp.broadcast(model.parts_mut())?;
        let step = step[0].cast_unsigned();
        let progress = (rank == ROOT).then(|| Progress::new(step, options.steps, restart.0));
        Ok(Self { options, ddp, data, model, step, fault, progress })
    }

    fn run(mut self) -> Result<(), TrainingError> {
        while self.step < self.options.steps {
            self.fault.strike(self.step + 1)?;
            self.take_step()?;
            std::thread::sleep(Duration::from_millis(self.options.step_ms));
        }
        if self.ddp.rank() == ROOT {
            self.finish()?;
        }
        // Nobody leaves before the files are written.
        Ok(self.ddp.into_group()?.barrier()?)
    }

    fn take_step(&mut self) -> Result<(), TrainingError> {
        let batch = self.options.batch as usize;
        let world = self.ddp.world_size().get() as usize;
        let start = self.step as usize * batch;
        let own = share::chunks(batch, world)[self.ddp.rank().index()].clone();
        let samples = own.map(|index| self.data.sample(start + index));
        // The mean over workers of sums over shares, which differ in size, is to be the mean over the batch.
        let (loss, right) = self.model.learn(samples, world as f64 / batch as f64, &mut self.ddp)?;
        let score = self.ddp.queue().all_reduce(vec![loss, right], Reduction::Sum);
        self.model.descend(&self.ddp.finish()?, self.options.learning_rate);
        self.step += 1;
        let score = score.wait()?;
        if self.ddp.rank() == ROOT {
            self.tell_and_keep(score[0] / batch as f64, score[1] / batch as f64)?;
        }
        Ok(())
    }

    fn tell_and_keep(&self, loss: f64, accuracy: f64) -> Result<(), TrainingError> {
        let (step, options) = (self.step, self.options);
        if let Some(progress) = &self.progress {
            let is_due = step.is_multiple_of(options.print_every) || step == options.steps;
            progress.step(step, loss, is_due.then_some(accuracy))?;
        }
        if let Some(path) = &options.checkpoint
            && (step.is_multiple_of(options.checkpoint_every) || step == options.steps)
        {
            Checkpoint { step, parameters: self.model.parameters.clone() }
                .write(path, fingerprint(options))?;
        }
        Ok(())
    }

    fn finish(&self) -> Result<(), TrainingError> {
        if let Some(progress) = &self.progress {
            progress.end();
        }
        let (loss, accuracy) = self.model.judge(&self.data);
        let length = self.model.parameters.iter().map(|weight| weight * weight).sum::<f64>().sqrt();
        console::line(&format!(
            "finished: step {}, loss {loss:.6}, accuracy {accuracy:.4}, weights l2={length:.12}",
            self.step
        ))?;
        if let Some(path) = &self.options.weights_out {
            let text: String = self.model.parameters.iter().map(|weight| format!("{weight:?}\n")).collect();
            checkpoint::replace(path, text.as_bytes())?;
        }
        Ok(())
    }
}

/// What decides the weights after a number of steps, apart from rounding. The number of workers does not.
fn fingerprint(options: &Options) -> u64 {
    let Options { batch, samples, learning_rate, seed, .. } = options;
    let parts = [u64::from(*batch), u64::from(*samples), learning_rate.to_bits(), *seed];
    checkpoint::hash(parts.iter().flat_map(|part| part.to_le_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flags_are_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn training_learns() {
        let options = Options::parse_from(["ddp_training", "--steps", "150"]);
        let context = WorkerContext::alone();
        let mut training = Training::begin(&options, &context).unwrap();
        let (before, _) = training.model.judge(&training.data);
        while training.step < options.steps {
            training.take_step().unwrap();
        }
        let (after, accuracy) = training.model.judge(&training.data);
        assert!(after < before / 2.0 && accuracy > 0.8, "{before} {after} {accuracy}");
    }

    #[test]
    fn absurd_flags_are_refused() {
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
