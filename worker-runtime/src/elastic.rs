//! The lives of a worker, as a training program sees them.

use std::error::Error;
use std::process::ExitCode;

use rankrun_contract::rank::{Rank, RestartCount, WorldSize};

use crate::context::WorkerContext;
use crate::process_group::{Group, GroupError, GroupOptions};
use crate::report;

/// One life of a worker: from its start to its end, a restart or a change of the membership, whichever comes first.
#[derive(Debug)]
#[non_exhaustive]
pub struct Life {
    /// Who this worker is in this life. Rank, world size and device may all be others in the next one.
    pub context: WorkerContext,
    /// The group of all ranks of this life, complete.
    pub group: Group,
}

impl Life {
    /// Joins the group of this life. [`run_elastic`] does it; it is for tests of a training, in a [world of
    /// one](WorkerContext::alone).
    ///
    /// # Errors
    /// As [`Group::join`].
    pub fn begin(context: &WorkerContext, options: &GroupOptions) -> Result<Self, GroupError> {
        Ok(Self { context: context.clone(), group: context.process_group(options)? })
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.context.rank()
    }

    /// How many ranks this life has.
    #[must_use]
    pub fn world_size(&self) -> WorldSize {
        self.context.world_size()
    }

    /// How often the workers were started again after a failure. A change of the membership does not count.
    #[must_use]
    pub fn restart_count(&self) -> RestartCount {
        self.context.restart_count()
    }
}

/// Runs a training in this life of the worker: with a fresh context, and a fresh group that all ranks have joined.
///
/// A worker's life is a process. When a worker fails, the launcher ends all of them and starts them again (`--max-restarts`); when
/// nodes come or go (`--nnodes MIN:MAX`), it does the same with the new world. So `program` is the whole training, it is called once
/// in each process, and nothing of the life before is left but what was saved. What it must do itself:
///
/// - **Load the last [checkpoint](crate::checkpoint) first**, and go on from its step. What was done since is done again. A
///   checkpoint that is skipped because it is damaged is said on standard error.
/// - **Derive everything else from step, seed and rank**: which samples come next
///   ([`GlobalBatches`](crate::sampler::GlobalBatches)), random numbers, learning rates. Then a life that begins in the middle does
///   what an undisturbed one would have done.
/// - **Not depend on the number of ranks**, or adapt to it: after a change of the membership there may be more or fewer, and this
///   worker may have another rank and another device. A batch that is the same over all ranks keeps the loss curve; one that is the
///   same on each rank changes with the world, and the learning rate with it.
/// - **Save on all ranks at the same steps.** How often is how much a failure costs.
///
/// An error or a panic is written to the launcher's error file, as [`run`](crate::run) does; so is a loss of another rank, which a
/// call of the group tells, and the launcher then names that rank as the root cause. Return such an error, do not join again: the
/// launcher starts the next life for all ranks together.
///
/// `program` runs in a [span](crate::trace) that carries the rank.
///
/// ```no_run
/// use rankrun_worker::checkpoint::{Checkpoint, CheckpointOptions, State};
/// use rankrun_worker::{Reduction, run_elastic};
///
/// fn state(weights: &mut [f32]) -> State<'_> {
///     State::new().replicated("weights", &[1000], weights)
/// }
///
/// fn main() -> std::process::ExitCode {
///     run_elastic(|mut life| -> Result<(), Box<dyn std::error::Error>> {
///         let mut weights = vec![0.0f32; 1000];
///         let mut checkpoint = Checkpoint::open(&life.context, &CheckpointOptions::new("/shared/run-7"))?;
///         let loaded = checkpoint.load_latest(&mut state(&mut weights))?;
///         for step in loaded.map_or(0, |loaded| loaded.step)..200 {
///             let mut gradient = vec![0.1f32; 1000];
///             life.group.all_reduce(&mut gradient, Reduction::Mean)?;
///             weights.iter_mut().zip(&gradient).for_each(|(weight, slope)| *weight -= slope);
///             if (step + 1) % 20 == 0 {
///                 checkpoint.save(step + 1, &state(&mut weights))?;
///             }
///         }
///         Ok(())
///     })
/// }
/// ```
pub fn run_elastic<E: Into<Box<dyn Error>>>(program: impl FnOnce(Life) -> Result<(), E>) -> ExitCode {
    run_elastic_with(&GroupOptions::default(), program)
}

/// As [`run_elastic`], with a group of these options.
pub fn run_elastic_with<E: Into<Box<dyn Error>>>(
    options: &GroupOptions,
    program: impl FnOnce(Life) -> Result<(), E>,
) -> ExitCode {
    report::run(|context| -> Result<(), Box<dyn Error>> {
        program(Life::begin(context, options)?).map_err(Into::into)
    })
}
