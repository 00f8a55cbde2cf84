//! A failure on request, so that anyone can see a restart.

use nix::sys::signal::{Signal, raise};
use rankrun_worker::{Rank, WorkerContext, WorldSize};

/// How a rank fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FaultKind {
    /// It ends with an error.
    Exit,
    /// It gets SIGKILL.
    Kill,
    /// It panics.
    Panic,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum FaultError {
    /// The failure that was asked for.
    #[error("failed before step {step}, as asked")]
    AsAsked {
        /// The step that is not taken.
        step: u64,
    },
    /// Nobody would fail.
    #[error("rank {rank} is to fail, but there are {world_size} workers")]
    NoSuchRank {
        /// The rank.
        rank: Rank,
        /// How many there are.
        world_size: WorldSize,
    },
    /// The system refused to kill us.
    #[error("cannot send SIGKILL to this process")]
    Kill(#[from] nix::Error),
}

/// What is to go wrong in this process.
#[derive(Debug, Default)]
pub(crate) struct Fault(Option<(u64, FaultKind)>);

impl Fault {
    /// The failure of this rank: none on other ranks and after a restart.
    pub(crate) fn plan(
        step: Option<u64>,
        rank: Rank,
        kind: FaultKind,
        context: &WorkerContext,
    ) -> Result<Self, FaultError> {
        let Some(step) = step else { return Ok(Self::default()) };
        let world_size = context.world_size();
        if rank.0 >= world_size.get() {
            return Err(FaultError::NoSuchRank { rank, world_size });
        }
        let is_ours = context.rank() == rank && context.restart_count().0 == 0;
        Ok(Self(is_ours.then_some((step, kind))))
    }

    /// Fails if it is time to.
    pub(crate) fn strike(&self, step: u64) -> Result<(), FaultError> {
        match self.0 {
            Some((planned, kind)) if planned == step => match kind {
                FaultKind::Exit => Err(FaultError::AsAsked { step }),
                FaultKind::Kill => Ok(raise(Signal::SIGKILL)?),
                FaultKind::Panic => panic!("panicked before step {step}, as asked"),
            },
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_step_that_was_asked_for_fails() {
        let context = WorkerContext::alone();
        let fault = Fault::plan(Some(3), Rank(0), FaultKind::Exit, &context).unwrap();
        assert!(fault.strike(2).is_ok());
        assert!(matches!(fault.strike(3), Err(FaultError::AsAsked { step: 3 })));
        assert!(fault.strike(4).is_ok());
        assert!(Fault::plan(None, Rank(9), FaultKind::Kill, &context).unwrap().strike(1).is_ok());
        let error = Fault::plan(Some(1), Rank(1), FaultKind::Kill, &context).unwrap_err();
        assert_eq!(error.to_string(), "rank 1 is to fail, but there are 1 workers");
    }
}
