//! The time limit of the whole job, and the warning before it. Pure.

use std::collections::BTreeSet;
use std::time::Instant;

use rankrun_contract::rank::LocalRank;

use super::{State, insert_action};
use crate::agent::failure::Failure;
use crate::agent::message::Action;
use crate::agent::phase::{CheckStep, JobPhase};
use crate::exit_code::code_of_signal;
use crate::job_event::{JobEvent, WorkerEnd};
use crate::posix::{Exit, Signal};
use crate::spec::stop::{StopReason, TimeLimit};

/// When the time limit and its warning are due. Each fires once.
#[derive(Debug, Default)]
pub(super) struct Timer {
    warn_at: Option<Instant>,
    /// Stays set after it has fired: the end of the workers is measured by it too.
    end_at: Option<Instant>,
    /// The warning signal that this generation got.
    warning_sent: Option<Signal>,
    /// The limit has expired: no worker is started any more.
    has_expired: bool,
    /// The job was stopped, or not restarted, because of the limit.
    has_ended_job: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TimerEvent {
    Warning,
    End,
}

impl Timer {
    /// Starts at the first start of the workers.
    pub(super) fn start(&mut self, limit: Option<TimeLimit>, now: Instant) {
        let Some(TimeLimit { limit, warning }) = limit else { return };
        self.end_at = Some(now + limit);
        self.warn_at = warning.map(|warning| now + limit.saturating_sub(warning.before));
    }

    pub(super) const fn reset_warning(&mut self) {
        self.warning_sent = None;
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let end_at = self.end_at.filter(|_| !self.has_expired);
        self.warn_at.into_iter().chain(end_at).min()
    }

    pub(super) const fn expires_at(&self) -> Option<Instant> {
        self.end_at
    }

    /// True once no worker may be started any more.
    pub(super) const fn has_expired(&self) -> bool {
        self.has_expired
    }

    pub(super) const fn has_ended_job(&self) -> bool {
        self.has_ended_job
    }

    /// A warning that is due only with the limit is dropped, as after a suspension.
    fn take_due_event(&mut self, now: Instant) -> Option<TimerEvent> {
        let is_due = |at: &mut Instant| *at <= now;
        if !self.has_expired && self.end_at.is_some_and(|end_at| end_at <= now) {
            self.warn_at = None;
            self.has_expired = true;
            return Some(TimerEvent::End);
        }
        self.warn_at.take_if(is_due).map(|_| TimerEvent::Warning)
    }
}

impl State {
    /// When the time limit or its warning is due, while there is a job to stop.
    pub(super) fn next_time_limit_event(&self) -> Option<Instant> {
        match self.phase {
            JobPhase::Starting | JobPhase::ShuttingDown(_) | JobPhase::Finished => None,
            JobPhase::Joining { .. }
            | JobPhase::Settling { .. }
            | JobPhase::Running { .. }
            | JobPhase::Undecided { .. }
            | JobPhase::Observing { .. }
            | JobPhase::Stopping { .. }
            | JobPhase::Blaming { .. }
            | JobPhase::Checking { .. }
            | JobPhase::Waiting { .. } => self.time_limit_timer.next_deadline(),
        }
    }

    /// When the time limit expires, also for processes that outlive the workers.
    #[must_use]
    pub(crate) const fn time_limit_deadline(&self) -> Option<Instant> {
        self.time_limit_timer.expires_at()
    }

    /// The actions of the time limit or its warning; `None` if neither is due, or no worker is there to warn.
    pub(super) fn on_time_limit_event(&mut self, now: Instant) -> Option<Vec<Action>> {
        self.next_time_limit_event()?;
        match self.time_limit_timer.take_due_event(now)? {
            TimerEvent::Warning => Some(self.send_time_limit_warning()).filter(|actions| !actions.is_empty()),
            TimerEvent::End => Some(self.on_time_limit(now)),
        }
    }

    /// Sends the warning like any signal that is passed on; a worker started later gets none.
    fn send_time_limit_warning(&mut self) -> Vec<Action> {
        let warning = self.rules.time_limit.and_then(|limit| limit.warning);
        let (JobPhase::Running { live } | JobPhase::Undecided { live, .. }, Some(warning)) =
            (&self.phase, warning)
        else {
            return Vec::new();
        };
        let (before, signal, live) = (warning.before, warning.signal, self.running_workers(live));
        let event = Action::Emit(JobEvent::TimeIsShort { remaining: before, signal, live });
        self.time_limit_timer.warning_sent = Some(signal);
        self.forward_signal(signal).into_iter().chain([event]).collect()
    }

    /// True if a worker ended by the warning signal, or with the code by which shells report it.
    pub(super) fn is_exit_by_warning(&self, exit: Exit) -> bool {
        self.time_limit_timer.warning_sent.is_some_and(|warning| match exit {
            Exit::Signal { number, .. } => number == warning as i32,
            Exit::Code(code) => code == i32::from(code_of_signal(warning as i32)),
        })
    }

    /// This worker ended by the warning, as the user asked. The job therefore ends, and no worker starts
    /// again.
    pub(super) fn on_exit_by_warning(
        &mut self,
        now: Instant,
        live: BTreeSet<LocalRank>,
        end: WorkerEnd,
    ) -> Vec<Action> {
        (self.time_limit_timer.has_expired, self.time_limit_timer.warn_at) = (true, None);
        self.stop_at_time_limit(now, live, Some(end), None)
    }

    fn stop_at_time_limit(
        &mut self,
        now: Instant,
        live: BTreeSet<LocalRank>,
        by_warning: Option<WorkerEnd>,
        ranks: Option<Action>,
    ) -> Vec<Action> {
        self.time_limit_timer.has_ended_job = true;
        self.limit_output_wait(now, StopReason::TimeLimit);
        let limit = self.rules.time_limit.map(|limit| limit.limit).unwrap_or_default();
        let ours = self.running_workers(&live);
        let actions = self.stop_workers(now, live, StopReason::TimeLimit, None);
        let grace = self.remaining_grace(now);
        let event = Action::Emit(JobEvent::TimeIsUp { limit, by_warning, live: ours, grace });
        // The running workers get the stop signal before the user reads of it.
        let at = usize::from(matches!(actions.first(), Some(Action::Signal { .. })));
        let notices = self.report_stop_to_peers(StopReason::TimeLimit);
        notices.into_iter().chain(ranks).chain(insert_action(actions, at, event)).collect()
    }

    fn on_time_limit(&mut self, now: Instant) -> Vec<Action> {
        let ranks = self.collect_ranks(StopReason::TimeLimit);
        match std::mem::replace(&mut self.phase, JobPhase::Finished) {
            JobPhase::Running { live } => self.stop_at_time_limit(now, live, None, ranks),
            JobPhase::Undecided { live, failure, .. } => self.report_failure_and_stop(now, live, failure),
            JobPhase::Observing { live, failure, .. } => self.stop_after_failure(now, live, failure),
            // The other node's failure came during the question.
            JobPhase::Blaming { ref failure, .. } if self.is_caused_by_peer(failure.first) => {
                self.rejoin(now)
            }
            JobPhase::Checking {
                failure,
                step: CheckStep::Devices { wait } | CheckStep::Progress { wait },
                ..
            } => self.restart_at(now, now + wait, failure),
            JobPhase::Blaming { failure, .. }
            | JobPhase::Checking { failure, step: CheckStep::Condition, .. } => {
                let decision = self.decide_restart(now, &failure);
                self.apply_decision(now, decision, failure)
            }
            JobPhase::Waiting { failure, .. } => self.finish_at_time_limit(now, Some(failure)),
            JobPhase::Joining { failure, .. } => self.finish_at_time_limit(now, failure),
            JobPhase::Settling { .. } => {
                self.time_limit_timer.has_ended_job = true;
                self.limit_output_wait(now, StopReason::TimeLimit);
                self.finish_failed_after_success(now, StopReason::TimeLimit)
            }
            // A stop continues as it is; it can no longer end in a restart.
            phase @ (JobPhase::Starting
            | JobPhase::Stopping { .. }
            | JobPhase::ShuttingDown(_)
            | JobPhase::Finished) => {
                self.phase = phase;
                Vec::new()
            }
        }
    }

    fn finish_at_time_limit(&mut self, now: Instant, failure: Option<Failure>) -> Vec<Action> {
        self.time_limit_timer.has_ended_job = true;
        self.limit_output_wait(now, StopReason::TimeLimit);
        vec![self.finish_failed(failure)]
    }

    /// True if the time limit expires before `at`; the job then ends by the limit.
    pub(super) fn expires_before(&mut self, at: Instant) -> bool {
        // The deadline may have come before its input.
        self.time_limit_timer.has_expired |= self.time_limit_timer.end_at.is_some_and(|end_at| end_at <= at);
        self.time_limit_timer.has_ended_job |= self.time_limit_timer.has_expired;
        self.time_limit_timer.has_expired
    }
}
