//! Where a job is, and why it is stopped. Pure.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use rankrun_contract::rank::LocalRank;

use crate::agent::failure::Failure;
use crate::agent::message::Released;

/// After SIGKILL only a process in uninterruptible sleep is still there.
pub(super) const GIVE_UP_AFTER_KILL: Duration = Duration::from_secs(5);

/// Where the job is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    /// No worker has been started yet.
    Starting,
    /// No worker is alive, and this node takes part in the next round, since then. After a failure where it is one that
    /// all start again for.
    Joining { failure: Option<Failure>, since: Instant },
    /// These workers are alive, none has failed.
    Running { live: BTreeSet<LocalRank> },
    /// One ended by a signal that stops the job, and nothing is decided before `until`: the launcher may be about to
    /// get the same one. These are alive.
    Undecided { live: BTreeSet<LocalRank>, failure: Failure, until: Instant },
    /// A worker failed for good under the name torchrun. Until then its siblings, of which these are alive, may end by
    /// themselves.
    Observing { live: BTreeSet<LocalRank>, failure: Failure, until: Instant },
    /// These workers are to end.
    Stopping { live: BTreeSet<LocalRank>, cause: StopCause, stage: Stage },
    /// No worker is alive, and nobody knows yet whether the failure is another node's; by `until` it is our own.
    Blaming { failure: Failure, until: Instant },
    /// No worker is alive, and the devices or the job's progress are looked at; at `say_at` that takes long, and at
    /// `give_up_at` too long.
    Checking { failure: Failure, step: Step, say_at: Option<Instant>, give_up_at: Option<Instant> },
    /// No worker is alive, and all start again then.
    Waiting { failure: Failure, until: Instant },
    /// All workers of this node have succeeded, and those of the others are waited for; at `say_at` that takes long.
    Settling { say_at: Option<Instant> },
    /// Nothing of the job is left.
    Finished,
}

/// What is to come of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// How they are.
    Condition,
    /// Who sits where on those that are left.
    Seats,
    /// Whether the job got on.
    Progress,
}

/// Why a generation is stopped.
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StopCause {
    Failure(Failure),
    User,
    TimeLimit,
    NotStarted,
    /// The round is over, by what other nodes did.
    Membership,
    /// The job is over, as it was ended elsewhere.
    Over,
}

/// How far a stop is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Asked { signal: Signal, kill_at: Instant },
    Killed { give_up_at: Instant },
}

impl StopCause {
    pub(super) const fn released(&self) -> Released {
        match self {
            Self::Failure(failure) => Released::Failed(failure.first),
            Self::User => Released::Stopped,
            Self::TimeLimit => Released::TimeLimit,
            Self::NotStarted => Released::NotStarted,
            Self::Membership => Released::Membership,
            Self::Over => Released::Over,
        }
    }

    pub(super) fn into_failure(self) -> Option<Failure> {
        match self {
            Self::Failure(failure) => Some(failure),
            Self::User | Self::TimeLimit | Self::NotStarted | Self::Membership | Self::Over => None,
        }
    }
}
