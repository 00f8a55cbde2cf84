//! A start that waits for its log folders, and the start limit: by then every worker of a generation has joined the
//! store. Pure.

use std::collections::BTreeSet;
use std::time::{Instant, SystemTime};

use crate::posix::Signal;

use rankrun_contract::rank::{Generation, LocalRank};

use super::{State, insert_action};
use crate::agent::message::{Action, Input, NotJoined};
use crate::agent::phase::{JobPhase, StartProgress, StopStage};
use crate::job_event::{FailureKind, JobEvent, WorkerEnd};
use crate::spec::stop::StopReason;

/// What ends workers that do not answer, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnansweredDeadline {
    /// They ignore the signal to stop.
    Kill(Instant),
    /// They do not join the store.
    Join(Instant),
}

impl UnansweredDeadline {
    #[must_use]
    pub const fn at(self) -> Instant {
        match self {
            Self::Kill(at) | Self::Join(at) => at,
        }
    }
}

impl State {
    /// Handles an answer to [`Action::Start`]. One about an old generation changes nothing.
    pub(super) fn on_start_answer(&mut self, now: Instant, answer: Input) -> Vec<Action> {
        match answer {
            Input::Started { generation } if generation == self.generation => {
                self.start_progress = StartProgress::Done;
                Vec::new()
            }
            Input::StartFailed { generation, failed, error } if generation == self.generation => {
                self.launcher_error.get_or_insert(*error);
                self.on_start_ended(now, failed)
            }
            Input::StartCancelled { generation } if generation == self.generation => {
                self.on_start_ended(now, LocalRank(0))
            }
            _ => Vec::new(),
        }
    }

    /// The workers in `live` that this launcher has started.
    pub(super) fn running_workers(&self, live: &BTreeSet<LocalRank>) -> Vec<LocalRank> {
        match self.start_progress {
            StartProgress::Pending => Vec::new(),
            StartProgress::Done => self.without_external_worker(live),
        }
    }

    /// When the start limit of the running generation is checked.
    pub(super) const fn start_timeout_at(&self) -> Option<Instant> {
        if matches!(self.phase, JobPhase::Running { .. }) { self.join_by } else { None }
    }

    /// The time that ends workers which do not answer: SIGKILL, or the end of their time to join. Their stacks are
    /// worth taking before it.
    #[must_use]
    pub fn unanswered_deadline(&self) -> Option<UnansweredDeadline> {
        if self.is_suspended() {
            return None;
        }
        match &self.phase {
            JobPhase::Stopping { live, stage: StopStage::Asked { kill_at, .. }, .. } => {
                (!live.is_empty()).then_some(UnansweredDeadline::Kill(*kill_at))
            }
            _ => self.start_timeout_at().map(UnansweredDeadline::Join),
        }
    }

    /// The query for missing workers, if the limit has expired.
    pub(super) fn on_start_timeout(&mut self, now: Instant) -> Option<Vec<Action>> {
        if self.start_timeout_at().is_none_or(|join_by| now < join_by) {
            return None;
        }
        self.join_by = None;
        let JobPhase::Running { live } = &self.phase else { return None };
        let (generation, local_ranks) = (self.generation, self.without_external_worker(live));
        Some(vec![Action::ProbeJoined { generation, local_ranks }])
    }

    /// A missing worker is a failure of the generation; a worker that has exited with 0 is not missing.
    pub(super) fn on_joined_probed(
        &mut self,
        now: Instant,
        generation: Generation,
        at: SystemTime,
        missing: &[NotJoined],
    ) -> Vec<Action> {
        let (JobPhase::Running { live }, Some(limit)) = (&self.phase, self.rules.start_timeout) else {
            return Vec::new();
        };
        let live = live.clone();
        let missing: Vec<&NotJoined> =
            missing.iter().filter(|worker| live.contains(&worker.local_rank)).collect();
        let Some(first) = missing.first().filter(|_| generation == self.generation) else {
            return Vec::new();
        };
        let end = WorkerEnd::new_expected(first.local_rank, first.pid, Signal::SIGTERM, at);
        let mut failure = self.new_failure(now, end, FailureKind::NotJoined { limit });
        failure.not_joined = missing.iter().map(|worker| worker.local_rank).collect();
        let ranks = self.collect_ranks(StopReason::StartTimeout);
        let report = self.report_failure_to_peers(&failure);
        let missing = failure.not_joined.to_vec();
        let ours = self.without_external_worker(&live);
        self.history.record_never_joined();
        let actions = self.stop_workers(now, live, StopReason::StartTimeout, Some(failure));
        let grace = self.remaining_grace(now);
        let event = Action::Emit(JobEvent::NotJoined { missing, limit, live: ours, grace });
        report.into_iter().chain(ranks).chain(insert_action(actions, 1, event)).collect()
    }
}
