//! Runs an elastic training: one process per generation, started again by the launcher.

use std::error::Error;
use std::process::ExitCode;

use rankrun_contract::rank::{Rank, RestartCount, WorldSize};

use crate::context::WorkerContext;
use crate::process_group::{Group, GroupError, GroupOptions};
use crate::report;

/// One run of a training program: from the start of its process to its end, by
/// success, failure or a membership change.
#[derive(Debug)]
#[non_exhaustive]
pub struct ElasticRun {
    /// Context of this run. Rank, world size and device may differ in the next one.
    pub context: WorkerContext,
    /// The group of all ranks, complete.
    pub group: Group,
}

impl ElasticRun {
    /// Joins the group of this run. [`run_elastic`] does it; call it in
    /// tests, in a [world of one](WorkerContext::single_process).
    ///
    /// # Errors
    /// As [`Group::join`].
    pub fn begin(context: &WorkerContext, options: &GroupOptions) -> Result<Self, GroupError> {
        Ok(Self { context: context.clone(), group: context.process_group(options)? })
    }

    /// Rank of this process.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.context.rank()
    }

    /// Number of ranks in this run.
    #[must_use]
    pub fn world_size(&self) -> WorldSize {
        self.context.world_size()
    }

    /// Number of restarts after a failure. A membership change does not count.
    #[must_use]
    pub fn restart_count(&self) -> RestartCount {
        self.context.restart_count()
    }
}

/// Runs a training with a fresh context and a fresh group that all ranks have joined.
///
/// Each run is a process. If a worker fails, the launcher ends all of them and starts them again
/// (`--max-restarts`); if nodes join or leave (`--nnodes MIN:MAX`), it does the same with the new world.
/// `program` is therefore the whole training, is called once per process, and starts with nothing but
/// what was saved. It has to:
///
/// - **Load the latest [checkpoint](crate::checkpoint) first**, and continue from its step. Later steps are repeated. A damaged checkpoint is skipped with a warning on standard error.
/// - **Derive everything else from step, seed and rank**: samples ([`GlobalBatches`](crate::sampler::GlobalBatches)), random numbers, learning rates. A run that begins in the middle then does the same as an undisturbed one.
/// - **Work with any number of ranks**: a membership change may leave more or fewer, and this worker may get another rank and device. A constant batch over all ranks keeps the loss curve; a constant batch per rank changes with the world, and the learning rate with it.
/// - **Save on all ranks at the same steps.** A failure costs the steps since the last save.
///
/// An error or a panic is written to the launcher's error file, as [`run`](crate::run) does. So is the loss
/// of another rank that a call of the group reports, and the launcher then names that rank as the root cause.
/// Return such an error and do not join again: the launcher starts all ranks together.
///
/// `program` runs in a [span](crate::trace) that carries the rank.
///
/// ```no_run
/// use rankrun_worker::checkpoint::{Checkpoint, CheckpointOptions, StateDict};
/// use rankrun_worker::{ReduceOp, run_elastic};
///
/// fn state(weights: &mut [f32]) -> StateDict<'_> {
///     StateDict::new().replicated("weights", &[1000], weights)
/// }
///
/// fn main() -> std::process::ExitCode {
///     run_elastic(|mut run| -> Result<(), Box<dyn std::error::Error>> {
///         let mut weights = vec![0.0f32; 1000];
///         let mut checkpoint = Checkpoint::open(&run.context, &CheckpointOptions::new("/shared/run-7"))?;
///         let loaded = checkpoint.load_latest(&mut state(&mut weights))?;
///         for step in loaded.map_or(0, |loaded| loaded.step)..200 {
///             let mut gradient = vec![0.1f32; 1000];
///             run.group.all_reduce(&mut gradient, ReduceOp::Mean)?;
///             weights.iter_mut().zip(&gradient).for_each(|(weight, slope)| *weight -= slope);
///             if (step + 1) % 20 == 0 {
///                 checkpoint.save(step + 1, &state(&mut weights))?;
///             }
///         }
///         Ok(())
///     })
/// }
/// ```
pub fn run_elastic<E: Into<Box<dyn Error>>>(program: impl FnOnce(ElasticRun) -> Result<(), E>) -> ExitCode {
    run_elastic_with(&GroupOptions::default(), program)
}

/// As [`run_elastic`], with options for the group.
pub fn run_elastic_with<E: Into<Box<dyn Error>>>(
    options: &GroupOptions,
    program: impl FnOnce(ElasticRun) -> Result<(), E>,
) -> ExitCode {
    report::run(|context| -> Result<(), Box<dyn Error>> {
        program(ElasticRun::begin(context, options)?).map_err(Into::into)
    })
}
