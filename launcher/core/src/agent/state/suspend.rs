//! Suspension of the whole job (Ctrl-Z) in the state machine. Pure.
//!
//! Deadlines that give a process time to act are put off by the length of the suspension: the grace period,
//! the five seconds after it, the start limit, the limit of uninterruptible sleep, and the window for a
//! signal that worker and launcher get alike, which may hold a restart. Suspended time does not count as
//! healthy. The time limit is not put off: like that of timeout(1) it is wall-clock time, after which another
//! user owns the machine. The back-off before a restart is not put off either: it only lets the surroundings
//! change.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::posix::Signal;

use super::State;
use crate::agent::message::{Action, Input};
use crate::agent::phase::{CheckStep, JobPhase, StopStage, Suspension};
use crate::rendezvous::MembershipChange;

impl State {
    /// True if all processes of the job are stopped by Ctrl-Z.
    #[must_use]
    pub const fn is_suspended(&self) -> bool {
        self.suspension.is_some()
    }

    /// Takes the next input to handle from the queue. While the job is suspended, inputs wait there in their
    /// order, but for a request to restart. The suspension ends before the first one of them if the user wants it,
    /// the launcher gets a request to stop, or the time limit is over.
    pub fn next_input(&self, now: Instant, inputs: &mut VecDeque<Input>) -> Option<Input> {
        let Some(suspension) = &self.suspension else { return inputs.pop_front() };
        let is_end = |input: &Input| matches!(input, Input::ResumeRequested | Input::StopRequested { .. });
        let is_time_over = self.time_limit_deadline().is_some_and(|at| at <= now);
        if is_time_over || inputs.iter().any(is_end) {
            return Some(Input::ResumeRequested);
        }
        let is_cut_off = |input: &Input| matches!(input, Input::Changed(MembershipChange::CutOff { .. }));
        let is_too_long = !suspension.is_killed && self.has_workers() && inputs.iter().any(is_cut_off);
        if is_too_long {
            return Some(Input::SuspendedTooLong);
        }
        // A client waits for its answer, which is a refusal now.
        let restart = inputs.iter().position(|input| *input == Input::RestartRequested)?;
        inputs.remove(restart)
    }

    pub(super) fn suspend(&mut self, now: Instant) -> Vec<Action> {
        // While devices are checked, only probes run.
        let is_probing = matches!(
            self.phase,
            JobPhase::Checking { step: CheckStep::Condition | CheckStep::Devices { .. }, .. }
        );
        if self.is_suspended() || self.phase == JobPhase::Finished {
            return Vec::new();
        }
        let has_processes = !is_probing;
        self.suspension = Some(Suspension { since: now, has_processes, is_killed: false });
        vec![Action::Suspend { has_processes }]
    }

    /// Kills the suspended workers, as the other nodes may start their round again. Why they are killed is
    /// in the queue, before their exits.
    pub(super) fn kill_suspended(&mut self) -> Vec<Action> {
        let Some(suspension) = &mut self.suspension else { return Vec::new() };
        suspension.is_killed = true;
        if !self.sent_signals.contains(&Signal::SIGKILL) {
            self.sent_signals.push(Signal::SIGKILL);
        }
        vec![Action::KillSuspended]
    }

    pub(super) fn resume(&mut self, now: Instant) -> Vec<Action> {
        let Some(Suspension { since, has_processes, .. }) = self.suspension.take() else { return Vec::new() };
        let suspended_for = now.saturating_duration_since(since);
        self.put_off_deadlines(suspended_for);
        vec![Action::Resume { has_processes, suspended_for }]
    }

    fn put_off_deadlines(&mut self, lasted: Duration) {
        self.history.add_suspended_time(lasted);
        let held_until = match &self.phase {
            JobPhase::Waiting { failure, .. } => self.restart_held_until(failure),
            _ => None,
        };
        match &mut self.phase {
            JobPhase::Undecided { until: at, .. }
            | JobPhase::Observing { until: at, .. }
            | JobPhase::Blaming { until: at, .. }
            | JobPhase::Stopping {
                stage: StopStage::Asked { kill_at: at, .. } | StopStage::Killed { give_up_at: at },
                ..
            } => *at += lasted,
            JobPhase::Stopping {
                stage: StopStage::KillingLeftovers { next_try, report_at, give_up_at },
                ..
            } => [next_try, give_up_at].into_iter().chain(report_at).for_each(|at| *at += lasted),
            JobPhase::Checking { report_at: say_at, give_up_at, .. } => {
                say_at.iter_mut().chain(give_up_at).for_each(|at| *at += lasted);
            }
            JobPhase::Settling { report_at: say_at } => say_at.iter_mut().for_each(|at| *at += lasted),
            JobPhase::ShuttingDown(shutdown) => shutdown.add_suspended_time(lasted),
            JobPhase::Starting | JobPhase::Joining { .. } | JobPhase::Running { .. } | JobPhase::Finished => {
            }
            JobPhase::Waiting { until, .. } => *until = held_until.map_or(*until, |held| held.max(*until)),
        }
        if let Some(patience) = &mut self.output_deadline {
            *patience += lasted;
        }
        if let Some(watch) = &mut self.dstate_watch {
            watch.add_suspended_time(lasted);
        }
        self.finished.add_suspended_time(lasted);
        self.groups.add_suspended_time(lasted);
        if let Some(join_by) = &mut self.join_by {
            *join_by += lasted;
        }
    }
}
