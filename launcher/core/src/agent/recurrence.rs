//! Whether the job fails again and again for the same cause, without progress between. Pure.

use rankrun_contract::rank::Rank;

use crate::agent::failure::Failure;
use crate::job_event::FailureKind;
pub use crate::job_event::failure_signature::{FailureSignature, RaisedException};

/// A hash of the checkpoint folder's listing: it changes as soon as any file does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointFingerprint(pub u64);

/// How far the job had come at the end of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressMark {
    /// With `--progress-dir`.
    Files(CheckpointFingerprint),
    /// The highest step of all heartbeats; `None` without heartbeats.
    Step(Option<u64>),
}

impl FailureSignature {
    /// Of this failure of the rank, which ended with the exception.
    #[must_use]
    pub(super) fn of(failure: &Failure, rank: Rank, exception: Option<RaisedException>) -> Self {
        let cause = failure.cause();
        match (exception, failure.kind) {
            (Some(exception), _) => Self::Exception(exception),
            (None, FailureKind::Ended) => Self::Exit { rank, exit: failure.first.exit, cause },
            (None, kind) => Self::Stopped { rank, kind, cause },
        }
    }
}

/// The restarts since the last progress or the last other cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recurrence {
    /// How far the job has come.
    pub mark: ProgressMark,
    /// The cause of all these failures.
    pub signature: FailureSignature,
    /// Restarts in a row that were followed by the same failure without progress.
    pub restarts: u32,
}

impl Recurrence {
    /// With one failure more.
    #[must_use]
    pub(super) fn after(before: Option<Self>, mark: ProgressMark, signature: FailureSignature) -> Self {
        let Some(before) = before else { return Self { mark, signature, restarts: 0 } };
        let (has_progress, mark) = match (before.mark, mark) {
            (ProgressMark::Step(highest), ProgressMark::Step(step)) => {
                (step > highest, ProgressMark::Step(step.max(highest)))
            }
            (old, new) => (old != new, new),
        };
        let recurs = !has_progress && before.signature == signature;
        Self { mark, signature, restarts: if recurs { before.restarts.saturating_add(1) } else { 0 } }
    }
}

#[cfg(test)]
#[path = "recurrence_tests.rs"]
mod tests;
