//! The grace period between stop signal and SIGKILL, by the cause of the stop. Pure.

use std::time::{Duration, Instant};

use super::State;
use crate::agent::failure::{Failure, FailureKind};
use crate::agent::phase::{JobPhase, StopCause, StopStage};
use crate::agent::policy::Decision;
use crate::spec::stop::{AfterStop, StopReason};

impl State {
    pub(super) fn grace(&self, reason: StopReason) -> Duration {
        self.rules.grace_for.of(reason).unwrap_or(self.rules.grace)
    }

    pub(super) fn reason_of(&self, now: Instant, cause: &StopCause) -> StopReason {
        match cause {
            StopCause::User => StopReason::Signal,
            StopCause::TimeLimit => StopReason::TimeLimit,
            StopCause::NotStarted | StopCause::Over => StopReason::Failure(AfterStop::End),
            StopCause::Membership => StopReason::Failure(AfterStop::Restart),
            StopCause::Failure(failure) => {
                let outlook = self.outlook(now, failure);
                match failure.manner {
                    FailureKind::NotJoined { .. } => StopReason::StartTimeout(outlook),
                    FailureKind::Ended | FailureKind::EndedByStop | FailureKind::Stuck { .. } => {
                        StopReason::Failure(outlook)
                    }
                }
            }
        }
    }

    /// What the policy would decide now. The devices and the job's progress are checked only after the last
    /// reap and may still forbid the restart.
    pub(super) fn outlook(&self, now: Instant, failure: &Failure) -> AfterStop {
        let in_time = |at| !self.timer.is_over() && self.timer.end().is_none_or(|end_at| at < end_at);
        match self.decide(now, failure) {
            Decision::Restart { at } if in_time(at) => AfterStop::Restart,
            Decision::Restart { .. } | Decision::Fail(_) | Decision::Succeed(_) => AfterStop::End,
        }
    }

    /// The user or the time limit wants the job to end.
    pub(super) fn limit_wait(&mut self, now: Instant, reason: StopReason) {
        let until = now + self.grace(reason);
        self.patience = Some(self.patience.map_or(until, |before| before.min(until)));
    }

    /// Until when the end that was asked for may wait for workers' output; `None` if the job ends by itself.
    #[must_use]
    pub const fn patience_ends(&self) -> Option<Instant> {
        self.patience
    }

    /// Time until SIGKILL; zero if no worker is being stopped.
    pub(super) fn left_of_the_grace(&self, now: Instant) -> Duration {
        match self.phase {
            JobPhase::Stopping { stage: StopStage::Asked { kill_at, .. }, .. } => {
                kill_at.saturating_duration_since(now)
            }
            _ => Duration::ZERO,
        }
    }
}
