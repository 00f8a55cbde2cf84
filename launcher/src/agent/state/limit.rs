//! The time limit of the whole job, and the warning before it. Pure.

use std::collections::BTreeSet;
use std::time::Instant;

use nix::sys::signal::Signal;

use rankrun_contract::rank::LocalRank;

use super::{State, with_at};
use crate::agent::failure::Failure;
use crate::agent::message::rank_table::TableCause;
use crate::agent::message::{Action, JobEvent, LocalStop, WorkerEnd};
use crate::agent::phase::{JobPhase, StopCause};
use crate::exit_code::code_of_signal;
use crate::process::Exit;
use crate::spec::stop::{StopReason, TimeLimit};

/// When the time limit and its warning are due. Each fires once.
#[derive(Debug, Default)]
pub(super) struct Timer {
    warn_at: Option<Instant>,
    /// Stays set after it has fired: the end of the workers is measured by it too.
    end_at: Option<Instant>,
    /// The warning signal that this generation got.
    warned: Option<Signal>,
    /// The limit has expired: no worker is started any more.
    is_over: bool,
    /// The job was stopped, or not restarted, because of the limit.
    ended_it: bool,
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

    pub(super) const fn generation_began(&mut self) {
        self.warned = None;
    }

    pub(super) fn next(&self) -> Option<Instant> {
        let end_at = self.end_at.filter(|_| !self.is_over);
        self.warn_at.into_iter().chain(end_at).min()
    }

    pub(super) const fn end(&self) -> Option<Instant> {
        self.end_at
    }

    /// True once no worker may be started any more.
    pub(super) const fn is_over(&self) -> bool {
        self.is_over
    }

    pub(super) const fn ended_it(&self) -> bool {
        self.ended_it
    }

    /// A warning that is due only with the limit is dropped, as after a suspension.
    fn strike(&mut self, now: Instant) -> Option<TimerEvent> {
        let is_due = |at: &mut Instant| *at <= now;
        if !self.is_over && self.end_at.is_some_and(|end_at| end_at <= now) {
            self.warn_at = None;
            self.is_over = true;
            return Some(TimerEvent::End);
        }
        self.warn_at.take_if(is_due).map(|_| TimerEvent::Warning)
    }
}

impl State {
    /// When the time limit or its warning is due, while there is a job to stop.
    pub(super) fn time_limit_at(&self) -> Option<Instant> {
        match self.phase {
            JobPhase::Starting | JobPhase::Finished => None,
            JobPhase::Joining { .. }
            | JobPhase::Settling { .. }
            | JobPhase::Running { .. }
            | JobPhase::Undecided { .. }
            | JobPhase::Observing { .. }
            | JobPhase::Stopping { .. }
            | JobPhase::Blaming { .. }
            | JobPhase::Checking { .. }
            | JobPhase::Waiting { .. } => self.timer.next(),
        }
    }

    /// When the time limit expires, also for processes that outlive the workers.
    #[must_use]
    pub const fn time_is_up_at(&self) -> Option<Instant> {
        self.timer.end()
    }

    /// The actions of the time limit or its warning; `None` if neither is due.
    pub(super) fn time_limit_struck(&mut self, now: Instant) -> Option<Vec<Action>> {
        self.time_limit_at()?;
        match self.timer.strike(now)? {
            TimerEvent::Warning => Some(self.time_is_short()),
            TimerEvent::End => Some(self.time_is_up(now)),
        }
    }

    /// Sends the warning like any signal that is passed on; a worker started later gets none.
    fn time_is_short(&mut self) -> Vec<Action> {
        let warning = self.rules.time_limit.and_then(|limit| limit.warning);
        let (JobPhase::Running { live } | JobPhase::Undecided { live, .. }, Some(warning)) =
            (&self.phase, warning)
        else {
            return Vec::new();
        };
        let (before, signal, live) = (warning.before, warning.signal, self.ours(live));
        let said = Action::Emit(JobEvent::TimeIsShort { before, signal, live });
        self.timer.warned = Some(signal);
        self.pass(signal).into_iter().chain([said]).collect()
    }

    /// True if a worker ended by the warning signal, or with the code by which shells report it.
    pub(super) fn is_of_the_warning(&self, exit: Exit) -> bool {
        self.timer.warned.is_some_and(|warning| match exit {
            Exit::Signal { number, .. } => number == warning as i32,
            Exit::Code(code) => code == i32::from(code_of_signal(warning as i32)),
        })
    }

    /// This worker ended by the warning, as the user asked. The job therefore ends, and no worker starts
    /// again.
    pub(super) fn ended_by_warning(
        &mut self,
        now: Instant,
        live: BTreeSet<LocalRank>,
        end: WorkerEnd,
    ) -> Vec<Action> {
        (self.timer.is_over, self.timer.warn_at) = (true, None);
        self.stop_for_the_limit(now, live, Some(end), None)
    }

    fn stop_for_the_limit(
        &mut self,
        now: Instant,
        live: BTreeSet<LocalRank>,
        by_warning: Option<WorkerEnd>,
        ranks: Option<Action>,
    ) -> Vec<Action> {
        self.timer.ended_it = true;
        self.limit_wait(now, StopReason::TimeLimit);
        let limit = self.rules.time_limit.map(|limit| limit.limit).unwrap_or_default();
        let ours = self.ours(&live);
        let actions = self.stop(now, live, StopCause::TimeLimit, Signal::SIGTERM);
        let grace = self.left_of_the_grace(now);
        let said = Action::Emit(JobEvent::TimeIsUp { limit, by_warning, live: ours, grace });
        // Said at once, but not before the running workers get the stop signal.
        let at = usize::from(matches!(actions.first(), Some(Action::Signal { .. })));
        let told = self.tell_of_stop(LocalStop::TimeLimit);
        told.into_iter().chain(ranks).chain(with_at(actions, at, said)).collect()
    }

    fn time_is_up(&mut self, now: Instant) -> Vec<Action> {
        let ranks = self.collect_ranks(TableCause::TimeLimit);
        match std::mem::replace(&mut self.phase, JobPhase::Finished) {
            JobPhase::Running { live } => self.stop_for_the_limit(now, live, None, ranks),
            JobPhase::Undecided { live, failure, .. } => self.failed(now, live, failure),
            JobPhase::Observing { live, failure, .. } => self.stop_for(now, live, failure),
            // The other node's failure came during the question.
            JobPhase::Blaming { ref failure, .. } if self.is_others_doing(failure.first) => {
                self.go_on_with_others(now)
            }
            JobPhase::Blaming { failure, .. } | JobPhase::Checking { failure, .. } => {
                let decision = self.decide(now, &failure);
                self.carry_out(now, decision, failure)
            }
            JobPhase::Waiting { failure, .. } => self.ended_by_the_limit(now, Some(failure)),
            JobPhase::Joining { failure, .. } => self.ended_by_the_limit(now, failure),
            JobPhase::Settling { .. } => {
                self.timer.ended_it = true;
                self.limit_wait(now, StopReason::TimeLimit);
                self.settled_badly()
            }
            // A stop continues as it is; it can no longer end in a restart.
            phase @ (JobPhase::Starting | JobPhase::Stopping { .. } | JobPhase::Finished) => {
                self.phase = phase;
                Vec::new()
            }
        }
    }

    fn ended_by_the_limit(&mut self, now: Instant, failure: Option<Failure>) -> Vec<Action> {
        self.timer.ended_it = true;
        self.limit_wait(now, StopReason::TimeLimit);
        vec![self.finish_failed(failure)]
    }

    /// True if the time limit expires before `at`; the job then ends by the limit.
    pub(super) fn no_time_for_a_restart(&mut self, at: Instant) -> bool {
        // The deadline may have come before its input.
        self.timer.is_over |= self.timer.end_at.is_some_and(|end_at| end_at <= at);
        self.timer.ended_it |= self.timer.is_over;
        self.timer.is_over
    }
}
