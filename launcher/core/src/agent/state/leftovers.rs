//! The end of a generation whose workers have ended: the processes that they left behind are killed, and the state
//! waits for their end. Pure.
//!
//! A killed process may be in uninterruptible sleep, so the wait has an end of its own; signals are answered meanwhile.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::posix::{ProcessIdentity, ProcessScanError, Signal};

use rankrun_contract::rank::LocalRank;

use super::State;
use super::shutdown::REPORT_DELAY;
use crate::agent::failure::Failure;
use crate::agent::message::Action;
use crate::agent::phase::{GIVE_UP_AFTER_KILL, JobPhase, StopStage};
use crate::job_event::JobEvent;
use crate::spec::stop::{AfterStop, StopReason};

/// After this time the processes may be listed again, where that has failed.
const RETRY_DELAY: Duration = Duration::from_millis(10);

impl State {
    /// Kills what the workers left behind. Workers in `live` have survived SIGKILL: they are not awaited again.
    pub(super) fn kill_leftovers(
        &mut self,
        now: Instant,
        live: BTreeSet<LocalRank>,
        reason: StopReason,
        failure: Option<Failure>,
    ) -> Action {
        let give_up_at = if live.is_empty() { now + GIVE_UP_AFTER_KILL } else { now };
        let report_at = now + REPORT_DELAY;
        let stage = StopStage::KillingLeftovers {
            next_try: report_at.min(give_up_at),
            report_at: Some(report_at),
            give_up_at,
        };
        self.phase = JobPhase::Stopping { live, reason, failure, stage };
        Action::KillLeftovers { generation: self.generation }
    }

    /// Kills them again, and so finds out whether they are gone.
    pub(super) fn retry_kill_of_leftovers(&self) -> Vec<Action> {
        match self.phase {
            JobPhase::Stopping { stage: StopStage::KillingLeftovers { .. }, .. } => {
                vec![Action::KillLeftovers { generation: self.generation }]
            }
            _ => Vec::new(),
        }
    }

    /// A stop signal limits the wait; the second one ends it.
    pub(super) fn limit_leftover_wait(&mut self, now: Instant, signal: Signal, is_second: bool) {
        let grace = self.rules.stop.grace_period(StopReason::Signal(signal), AfterStop::End);
        let limit = if is_second { now } else { now + grace };
        if let JobPhase::Stopping {
            stage: StopStage::KillingLeftovers { next_try, give_up_at, .. }, ..
        } = &mut self.phase
        {
            *give_up_at = limit.min(*give_up_at);
            *next_try = limit.min(*next_try);
        }
    }

    /// Counts them again, and tells the user of them now.
    pub(super) fn report_leftovers(&mut self, now: Instant) -> Vec<Action> {
        if let JobPhase::Stopping { stage: StopStage::KillingLeftovers { report_at, .. }, .. } =
            &mut self.phase
        {
            *report_at = Some(now);
        }
        self.retry_kill_of_leftovers()
    }

    /// The processes that were there were killed. What follows the generation is decided once they are gone. If they
    /// cannot be listed, the job neither continues nor succeeds.
    pub(super) fn on_leftovers_killed(
        &mut self,
        now: Instant,
        remaining: Result<Vec<ProcessIdentity>, ProcessScanError>,
    ) -> Vec<Action> {
        let JobPhase::Stopping {
            stage: StopStage::KillingLeftovers { next_try, report_at, give_up_at },
            live,
            ..
        } = &mut self.phase
        else {
            return Vec::new();
        };
        let mut actions = Vec::new();
        let remaining = remaining.map(|remaining| {
            remaining.into_iter().filter(|left| !self.survivors.contains(left)).collect::<Vec<_>>()
        });
        let pids_of = |left: &[ProcessIdentity]| left.iter().map(|left| left.pid).collect();
        match remaining {
            Ok(left) if left.is_empty() => {}
            Ok(left) if now < *give_up_at => {
                let is_due = report_at.take_if(|at| *at <= now).is_some();
                // The exit of a process wakes the loop before.
                *next_try = report_at.map_or(*give_up_at, |at| at.min(*give_up_at));
                let (signal, at_most) = (self.stopped_by, *give_up_at - now);
                let event = JobEvent::AwaitingLeftovers { signal, pids: pids_of(&left), at_most };
                let report = Action::Emit(event);
                return is_due.then_some(report).into_iter().collect();
            }
            Ok(left) if live.is_empty() => {
                actions.push(Action::Emit(JobEvent::LeftoversSurvive { pids: pids_of(&left) }));
                self.survivors.extend(left);
            }
            Ok(_) => {}
            Err(_) if now < *give_up_at => {
                *next_try = (*give_up_at).min(now + RETRY_DELAY);
                return Vec::new();
            }
            Err(error) => self.scan_error = Some(error),
        }
        match std::mem::replace(&mut self.phase, JobPhase::Finished) {
            JobPhase::Stopping { live, reason, failure, .. } => {
                let is_over = !live.is_empty() || self.scan_error.is_some();
                actions.extend(match is_over {
                    true => self.end_without_restart(now, failure),
                    false => self.on_generation_ended(now, reason, failure),
                });
            }
            phase => self.phase = phase,
        }
        actions
    }
}
