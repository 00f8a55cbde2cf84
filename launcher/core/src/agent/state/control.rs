//! What the control socket asks of the state: its progress, and a restart of the workers. A stop over the socket is
//! [`Input::StopRequested`](crate::agent::message::Input). Pure.

use std::time::Instant;

use rankrun_contract::rank::{Generation, LocalRank, RestartCount};

use super::State;
use crate::agent::message::Action;
use crate::agent::phase::{JobPhase, StartProgress};
use crate::job_event::{JobEvent, JobState};
use crate::spec::stop::StopReason;

/// How far the job has come on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSummary {
    /// What the job does.
    pub state: JobState,
    /// Restarts that were taken from the budget.
    pub restarts: RestartCount,
    /// The budget.
    pub max_restarts: RestartCount,
}

impl State {
    /// The last started generation, or the next one.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// How far the job has come on this node.
    #[must_use]
    pub const fn summary(&self) -> StateSummary {
        let state = match self.phase {
            _ if self.is_suspended() => JobState::Suspended,
            JobPhase::Starting => JobState::Starting,
            JobPhase::Running { .. } if matches!(self.start_progress, StartProgress::Pending) => {
                JobState::Starting
            }
            JobPhase::Joining { .. } => JobState::Joining,
            JobPhase::Running { .. } | JobPhase::Undecided { .. } => JobState::Running,
            JobPhase::Observing { .. } | JobPhase::Stopping { .. } => JobState::Stopping,
            JobPhase::Blaming { .. } | JobPhase::Checking { .. } | JobPhase::Waiting { .. } => {
                JobState::Restarting
            }
            JobPhase::Settling { .. } => JobState::Settling,
            JobPhase::ShuttingDown(_) | JobPhase::Finished => JobState::Ending,
        };
        StateSummary { state, restarts: self.job_restarts, max_restarts: self.rules.max_restarts }
    }

    /// True if this worker was started and has not been reaped.
    #[must_use]
    pub fn is_live(&self, local_rank: LocalRank) -> bool {
        match &self.phase {
            JobPhase::Running { live }
            | JobPhase::Undecided { live, .. }
            | JobPhase::Observing { live, .. }
            | JobPhase::Stopping { live, .. } => live.contains(&local_rank),
            JobPhase::Starting
            | JobPhase::Joining { .. }
            | JobPhase::Blaming { .. }
            | JobPhase::Checking { .. }
            | JobPhase::Waiting { .. }
            | JobPhase::Settling { .. }
            | JobPhase::ShuttingDown(_)
            | JobPhase::Finished => false,
        }
    }

    /// Whether a request to restart the workers can be met now.
    ///
    /// # Errors
    /// The reason of the refusal.
    pub fn check_restart_request(&self) -> Result<(), &'static str> {
        if self.peers.has_peers() {
            return Err("a job of several nodes cannot be restarted by request");
        }
        if self.stopped_by.is_some() || self.time_limit_timer.has_expired() {
            return Err("the job is being stopped");
        }
        if self.is_suspended() {
            return Err(
                "the job is suspended (Ctrl-Z): `fg` in its terminal or SIGCONT to its launcher lets it go on",
            );
        }
        match self.phase {
            JobPhase::Running { .. } => Ok(()),
            JobPhase::Settling { .. } | JobPhase::ShuttingDown(_) | JobPhase::Finished => {
                Err("the job is over")
            }
            JobPhase::Joining { .. } if !self.has_started() => {
                Err("the job waits for its nodes: no worker was started so far")
            }
            _ => Err("the workers do not run; the job may restart by itself"),
        }
    }

    /// The user wants all workers to start again. This uses none of the restart budget.
    pub(super) fn on_restart_requested(&mut self, now: Instant) -> Vec<Action> {
        if self.check_restart_request().is_err() {
            return Vec::new();
        }
        let JobPhase::Running { live } = std::mem::replace(&mut self.phase, JobPhase::Finished) else {
            return Vec::new();
        };
        let local_ranks = self.running_workers(&live);
        let mut actions = self.stop_workers(now, live, StopReason::RestartRequest, None);
        let grace = self.remaining_grace(now);
        actions.insert(
            actions.len().min(1),
            Action::Emit(JobEvent::RestartRequested { live: local_ranks, grace }),
        );
        actions
    }

    /// The last worker was reaped of a generation that was stopped for a requested restart.
    pub(super) fn restart_by_request(&mut self, now: Instant) -> Vec<Action> {
        if self.stopped_by.is_some() || self.expires_before(now) {
            return vec![self.finish_failed(None)];
        }
        self.history.record_rejoin(now, &self.rules.restart);
        // Workers see a further restart; the budget does not.
        self.node_restarts.0 += 1;
        self.generation.0 += 1;
        vec![Action::Emit(JobEvent::RestartedByRequest), self.join_next_round(now, None)]
    }
}
