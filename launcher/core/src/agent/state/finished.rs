//! Workers that have exited with 0 while others run. Pure.
//!
//! An early success is not a failure: ranks may have different amounts of work. It may cause a failure, as
//! the others wait for the missing rank in a collective. So a failure lists the successes before it, and a
//! long wait is reported once.

use std::time::{Duration, Instant};

use rankrun_contract::rank::LocalRank;

use super::State;
use crate::agent::failure::EarlySuccess;
use crate::agent::message::Action;
use crate::agent::phase::JobPhase;
use crate::job_event::{JobEvent, WorkerEnd};

/// A longer wait for the other workers is reported.
const FINISHED_REPORT_DELAY: Duration = Duration::from_secs(60);

/// The workers of a generation that have finished.
#[derive(Debug, Default)]
pub(super) struct FinishedWorkers {
    ends: Vec<(WorkerEnd, Instant)>,
    report_at: Option<Instant>,
}

impl FinishedWorkers {
    pub(super) fn push(&mut self, now: Instant, end: WorkerEnd) {
        if self.ends.is_empty() {
            self.report_at = Some(now + FINISHED_REPORT_DELAY);
        }
        self.ends.push((end, now));
    }

    pub(super) fn ends(&self) -> impl Iterator<Item = WorkerEnd> {
        self.ends.iter().map(|(end, _)| *end)
    }

    /// All early successes, relative to a failure at `now`.
    pub(super) fn early_successes(&self, now: Instant) -> Box<[EarlySuccess]> {
        let ends = self.ends.iter();
        ends.map(|(end, at)| EarlySuccess { end: *end, before: now.saturating_duration_since(*at) }).collect()
    }

    /// The job was suspended, which does not count as waiting.
    pub(super) fn add_suspended_time(&mut self, lasted: Duration) {
        let ends = self.ends.iter_mut().map(|(_, at)| at);
        ends.chain(&mut self.report_at).for_each(|at| *at += lasted);
    }
}

impl State {
    /// When a long wait is reported. A wait for the external worker is not.
    pub(super) fn finished_report_at(&self) -> Option<Instant> {
        let JobPhase::Running { live } = &self.phase else { return None };
        self.finished.report_at.filter(|_| !self.without_external_worker(live).is_empty())
    }

    /// The message about the workers that still run, if due.
    pub(super) fn report_finished_workers(&mut self, now: Instant) -> Option<Vec<Action>> {
        if self.finished_report_at().is_none_or(|say_at| now < say_at) {
            return None;
        }
        self.finished.report_at = None;
        let JobPhase::Running { live } = &self.phase else { return None };
        let finished: Vec<LocalRank> = self.finished.ends.iter().map(|(end, _)| end.local_rank).collect();
        let since = self.finished.early_successes(now).first().map(|first| first.before).unwrap_or_default();
        let live = self.without_external_worker(live);
        Some(vec![Action::Emit(JobEvent::SomeFinished { finished, live, waited: since })])
    }
}
