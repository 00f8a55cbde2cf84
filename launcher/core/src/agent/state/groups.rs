//! The process groups that a stop awaits beside its workers. Pure.
//!
//! A worker that got the stop signal alone: at its exit the signal goes to what is left of its group. A wrapper, such as a
//! shell, got it with its group, and may end while the training program saves. These processes have the rest of the grace,
//! so a stop can outlive the last worker. SIGKILL follows as for workers.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::posix::Signal;

use rankrun_contract::rank::{Generation, LocalRank};

use super::shutdown::REPORT_DELAY;
use super::{State, insert_action};
use crate::agent::message::Action;
use crate::agent::phase::{JobPhase, StopStage};
use crate::job_event::JobEvent;

/// A process that leaves its group, or that another process reaps, sends no notice.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The process groups that a stop awaits, in one generation.
#[derive(Debug, Default)]
pub(super) struct EndedGroups {
    /// The workers that got the signal alone and have not ended.
    signalled_alone: BTreeSet<LocalRank>,
    /// The wrappers that got the signal with their group and have not ended.
    wrappers: BTreeSet<LocalRank>,
    /// The ended ones of both whose groups may have processes.
    remaining: BTreeSet<LocalRank>,
    /// The wait for these processes, once no worker is alive.
    wait: Option<GroupWait>,
}

#[derive(Debug)]
struct GroupWait {
    next_check: Instant,
    report_at: Option<Instant>,
}

impl EndedGroups {
    pub(super) fn add_suspended_time(&mut self, lasted: Duration) {
        if let Some(GroupWait { next_check, report_at }) = &mut self.wait {
            [next_check].into_iter().chain(report_at).for_each(|at| *at += lasted);
        }
    }
}

impl State {
    /// Whether no worker is alive, and processes of their groups have the rest of the grace.
    pub(super) fn awaits_groups(&self) -> bool {
        let has_no_worker = matches!(
            &self.phase,
            JobPhase::Stopping { live, stage: StopStage::Asked { .. }, .. } if live.is_empty()
        );
        has_no_worker && !self.groups.remaining.is_empty()
    }

    pub(super) fn on_signalled(
        &mut self,
        generation: Generation,
        alone: Vec<LocalRank>,
        wrappers: Vec<LocalRank>,
    ) -> Vec<Action> {
        if generation == self.generation {
            self.groups.signalled_alone.extend(alone);
            self.groups.wrappers.extend(wrappers);
        }
        Vec::new()
    }

    /// This worker has ended during a stop: its group gets the signal, unless it got it with the worker. After the last
    /// worker the groups of the others are checked.
    pub(super) fn signal_group_of(&mut self, now: Instant, local_rank: LocalRank) -> Vec<Action> {
        let JobPhase::Stopping { live, stage: StopStage::Asked { signal, .. }, .. } = &self.phase else {
            return Vec::new();
        };
        let (signal, is_last, generation) = (*signal, live.is_empty(), self.generation);
        let mut actions = Vec::new();
        if is_last && !self.groups.remaining.is_empty() {
            actions.push(self.check_groups());
        }
        let was_alone = self.groups.signalled_alone.remove(&local_rank);
        if was_alone || self.groups.wrappers.remove(&local_rank) {
            self.groups.remaining.insert(local_rank);
            let local_ranks = vec![local_rank];
            let signal = was_alone.then_some(signal);
            actions.insert(0, Action::SignalGroups { generation, local_ranks, signal });
        }
        if is_last {
            let (next_check, report_at) = (now + CHECK_INTERVAL, Some(now + REPORT_DELAY));
            self.groups.wait = Some(GroupWait { next_check, report_at });
        }
        actions
    }

    /// Signals the awaited groups of all ended workers, if there are any.
    pub(super) fn signal_ended_groups(&self, signal: Signal) -> Option<Action> {
        let local_ranks: Vec<LocalRank> = self.groups.remaining.iter().copied().collect();
        let generation = self.generation;
        let action = |local_ranks| Action::SignalGroups { generation, local_ranks, signal: Some(signal) };
        (!local_ranks.is_empty()).then(|| action(local_ranks))
    }

    /// Asks which of the groups are empty.
    pub(super) fn check_groups(&self) -> Action {
        let local_ranks = self.groups.remaining.iter().copied().collect();
        Action::SignalGroups { generation: self.generation, local_ranks, signal: None }
    }

    pub(super) fn on_groups_signalled(
        &mut self,
        now: Instant,
        generation: Generation,
        empty: &[LocalRank],
    ) -> Vec<Action> {
        if generation != self.generation {
            return Vec::new();
        }
        let was_awaiting = self.awaits_groups();
        self.groups.remaining.retain(|local_rank| !empty.contains(local_rank));
        if was_awaiting { self.end_stop_if_over(now) } else { Vec::new() }
    }

    /// Ends the stop once no worker is alive and no process of their groups is awaited.
    pub(super) fn end_stop_if_over(&mut self, now: Instant) -> Vec<Action> {
        match std::mem::replace(&mut self.phase, JobPhase::Finished) {
            JobPhase::Stopping { live, reason, failure, stage }
                if live.is_empty()
                    && (self.groups.remaining.is_empty() || !matches!(stage, StopStage::Asked { .. })) =>
            {
                self.on_workers_stopped(now, reason, failure)
            }
            phase => {
                self.phase = phase;
                Vec::new()
            }
        }
    }

    /// When the groups are checked again, or the wait for them is reported.
    pub(super) fn groups_deadline(&self) -> Option<Instant> {
        let wait = self.groups.wait.as_ref().filter(|_| self.awaits_groups())?;
        Some(wait.report_at.map_or(wait.next_check, |at| at.min(wait.next_check)))
    }

    /// The check or the report that is due, unless the grace is over.
    pub(super) fn on_groups_deadline(&mut self, now: Instant) -> Option<Vec<Action>> {
        self.groups_deadline().filter(|at| *at <= now)?;
        if self.phase_deadline().is_some_and(|kill_at| kill_at <= now) {
            return None;
        }
        let wait = self.groups.wait.as_mut()?;
        wait.next_check = now + CHECK_INTERVAL;
        let is_due = wait.report_at.take_if(|at| *at <= now).is_some();
        let event = if is_due { self.awaiting_groups_event(now) } else { None };
        Some(event.into_iter().chain([self.check_groups()]).collect())
    }

    pub(super) fn awaiting_groups_event(&self, now: Instant) -> Option<Action> {
        let JobPhase::Stopping { stage: StopStage::Asked { signal, .. }, .. } = self.phase else {
            return None;
        };
        let local_ranks = self.groups.remaining.iter().copied().collect();
        let grace = self.remaining_grace(now);
        Some(Action::Emit(JobEvent::AwaitingGroups { local_ranks, signal, grace }))
    }

    /// Kills the processes that are awaited, with all else that the workers left behind.
    pub(super) fn kill_groups(&mut self, now: Instant, ignored_signal: Option<Signal>) -> Vec<Action> {
        let local_ranks = std::mem::take(&mut self.groups.remaining).into_iter().collect();
        let event = Action::Emit(JobEvent::KillingGroups { local_ranks, ignored_signal });
        insert_action(self.end_stop_if_over(now), 1, event)
    }
}
