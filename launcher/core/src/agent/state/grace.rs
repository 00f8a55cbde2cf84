//! The grace period between stop signal and SIGKILL, by the reason of the stop. Pure.

use std::time::{Duration, Instant};

use super::State;
use crate::agent::failure::Failure;
use crate::agent::phase::{JobPhase, StopStage};
use crate::agent::policy::Decision;
use crate::spec::stop::{AfterStop, StopReason};

impl State {
    pub(super) fn expected_after_stop(
        &mut self,
        now: Instant,
        reason: StopReason,
        failure: Option<&Failure>,
    ) -> AfterStop {
        match (reason, failure) {
            (StopReason::Membership | StopReason::RestartRequest, _) => AfterStop::Restart,
            (_, Some(failure)) => self.expected_after_failure(now, failure),
            (_, None) => AfterStop::End,
        }
    }

    /// What the policy decides. The devices and the job's progress are checked only after the last reap and may
    /// still forbid the restart.
    pub(super) fn expected_after_failure(&mut self, now: Instant, failure: &Failure) -> AfterStop {
        let decision = self.decide_restart(now, failure);
        let in_time = |at| {
            !self.time_limit_timer.has_expired()
                && self.time_limit_timer.expires_at().is_none_or(|end_at| at < end_at)
        };
        match decision {
            Decision::Restart { wait } if in_time(now + wait) => AfterStop::Restart,
            Decision::Restart { .. } | Decision::Fail(_) | Decision::Succeed(_) => AfterStop::End,
        }
    }

    /// The user or the time limit wants the job to end.
    pub(super) fn limit_output_wait(&mut self, now: Instant, reason: StopReason) {
        let until = now + self.rules.stop.grace_period(reason, AfterStop::End);
        self.output_deadline = Some(self.output_deadline.map_or(until, |before| before.min(until)));
    }

    /// Time until SIGKILL; zero if no worker is being stopped.
    pub(super) fn remaining_grace(&self, now: Instant) -> Duration {
        match self.phase {
            JobPhase::Stopping { stage: StopStage::Asked { kill_at, .. }, .. } => {
                kill_at.saturating_duration_since(now)
            }
            _ => Duration::ZERO,
        }
    }
}
