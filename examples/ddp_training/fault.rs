//! A failure on request, to show a restart.

use nix::sys::signal::{Signal, raise};
use rankrun_worker::diagnostic::{Details, Diagnostic};
use rankrun_worker::{Rank, WorkerContext, WorldSize};

use crate::Options;

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
    #[error("{}failed before step {step}, as asked", Details(self))]
    AsAsked {
        /// The step that is not taken.
        step: u64,
        /// With what the worker ends.
        exit_code: u8,
    },
    /// The rank does not exist.
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

impl Diagnostic for FaultError {
    fn exit_code(&self) -> Option<u8> {
        match self {
            Self::AsAsked { exit_code, .. } => Some(*exit_code),
            Self::NoSuchRank { .. } | Self::Kill(_) => None,
        }
    }
}

/// What is to go wrong in this process.
#[derive(Debug, Default)]
pub(crate) struct Fault(Option<Plan>);

#[derive(Debug)]
struct Plan {
    step: u64,
    kind: FaultKind,
    exit_code: u8,
}

impl Fault {
    /// The failure of this rank: none on other ranks and after a restart.
    pub(crate) fn plan(options: &Options, context: &WorkerContext) -> Result<Self, FaultError> {
        let Some(step) = options.fail_at else { return Ok(Self::default()) };
        let (rank, kind, exit_code) = (options.fail_rank, options.fail_how, options.fail_code);
        let world_size = context.world_size();
        if rank.0 >= world_size.get() {
            return Err(FaultError::NoSuchRank { rank, world_size });
        }
        let is_ours = context.rank() == rank && context.restart_count().0 == 0;
        Ok(Self(is_ours.then_some(Plan { step, kind, exit_code })))
    }

    /// Fails if it is time to.
    pub(crate) fn trigger(&self, step: u64) -> Result<(), FaultError> {
        match self.0 {
            Some(Plan { step: planned, kind, exit_code }) if planned == step => match kind {
                FaultKind::Exit => Err(FaultError::AsAsked { step, exit_code }),
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
    use clap::Parser;

    #[test]
    fn fault_fires_only_at_requested_step() {
        let context = WorkerContext::single_process();
        let plan = |flags: &str| {
            let argv = ["ddp_training"].into_iter().chain(flags.split_whitespace());
            Fault::plan(&Options::parse_from(argv), &context)
        };
        let fault = plan("--fail-at 3 --fail-code 42").unwrap();
        assert!(fault.trigger(2).is_ok());
        assert!(matches!(fault.trigger(3), Err(FaultError::AsAsked { step: 3, exit_code: 42 })));
        assert!(fault.trigger(4).is_ok());
        assert!(plan("").unwrap().trigger(1).is_ok());
        let error = plan("--fail-at 1 --fail-rank 1 --fail-how kill").unwrap_err();
        assert_eq!(error.to_string(), "rank 1 is to fail, but there are 1 workers");
    }
}
