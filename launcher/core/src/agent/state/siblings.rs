//! Siblings of a worker that failed for good, under the name torchrun. Pure.
//!
//! torchrun polls its workers every 0.1 s. It stops the workers that it finds alive beside a failed worker,
//! and its report lists every bad exit. A sibling that ends by itself before that poll is listed as it ended,
//! or not at all after a success. A stop at once would turn that exit into a SIGTERM.
//!
//! Before a restart there is no such report, and the siblings are stopped at once.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::posix::Signal;

use rankrun_contract::rank::LocalRank;

use super::State;
use crate::agent::failure::{Failure, FollowingEnd};
use crate::agent::message::{Action, Input};
use crate::agent::phase::JobPhase;
use crate::job_event::WorkerEnd;
use crate::spec::CliFlavor;
use crate::spec::stop::{AfterStop, StopReason};

/// The poll interval of torchrun 2.15.
pub(super) const TORCHRUN_POLL_INTERVAL: Duration = Duration::from_millis(100);

impl State {
    /// A worker failed; those in `live` are alive.
    pub(super) fn on_worker_failure(
        &mut self,
        now: Instant,
        live: BTreeSet<LocalRank>,
        failure: Failure,
    ) -> Vec<Action> {
        self.history.record_first_end(now);
        if self.rules.cli_flavor != CliFlavor::Torchrun
            || self.without_external_worker(&live).is_empty()
            || self.expected_after_failure(now, &failure) == AfterStop::Restart
        {
            return self.report_failure_and_stop(now, live, failure);
        }
        let report = self.report_failure_to_peers(&failure);
        self.phase = JobPhase::Observing { live, failure, until: now + TORCHRUN_POLL_INTERVAL };
        report.into_iter().collect()
    }

    pub(super) fn on_sibling_exit(&mut self, now: Instant, end: WorkerEnd) -> Vec<Action> {
        let JobPhase::Observing { live, failure, .. } = &mut self.phase else { return Vec::new() };
        live.remove(&end.local_rank);
        failure.push_exit(FollowingEnd { end, is_stopped_by_us: false });
        let live = live.clone();
        if self.without_external_worker(&live).is_empty() { self.stop_siblings(now) } else { Vec::new() }
    }

    /// Any other reason to stop takes effect before the poll.
    pub(super) fn stop_siblings_on_input(&mut self, now: Instant, input: &Input) -> Vec<Action> {
        match input {
            Input::Changed(_) | Input::RendezvousEnded(_) => self.stop_siblings(now),
            Input::StartFailed { generation, .. } if *generation == self.generation => {
                self.stop_siblings(now)
            }
            _ => Vec::new(),
        }
    }

    /// A stop signal takes effect before the poll too. The failure came first and stays the cause.
    pub(super) fn stop_siblings_with_signal(
        &mut self,
        now: Instant,
        signal: Signal,
        (live, failure): (BTreeSet<LocalRank>, Failure),
    ) -> Vec<Action> {
        let kill_by = now + self.rules.stop.grace_period(StopReason::WorkerFailed, AfterStop::End);
        let mut actions = self.stop_workers(now, live, StopReason::Signal(signal), Some(failure));
        self.limit_kill_time(Some(kill_by));
        actions.extend(self.report_stop_to_peers(StopReason::Signal(signal)));
        actions
    }

    /// The poll: stops the siblings that are alive.
    pub(super) fn stop_siblings(&mut self, now: Instant) -> Vec<Action> {
        match std::mem::replace(&mut self.phase, JobPhase::Finished) {
            JobPhase::Observing { live, failure, .. } => self.stop_after_failure(now, live, failure),
            phase => {
                self.phase = phase;
                Vec::new()
            }
        }
    }
}
