//! The start limit: by then every worker of a generation has joined the store. Pure.

use std::time::{Instant, SystemTime};

use nix::sys::signal::Signal;

use rankrun_contract::rank::Generation;

use super::{State, with_at};
use crate::agent::failure::FailureKind;
use crate::agent::message::rank_table::TableCause;
use crate::agent::message::{Action, JobEvent, NotJoined, WorkerEnd};
use crate::agent::phase::{JobPhase, StopCause};

impl State {
    /// When the start limit of the running generation is checked.
    pub(super) const fn start_limit_at(&self) -> Option<Instant> {
        if matches!(self.phase, JobPhase::Running { .. }) { self.join_by } else { None }
    }

    /// The query for missing workers, if the limit has expired.
    pub(super) fn start_limit_struck(&mut self, now: Instant) -> Option<Vec<Action>> {
        if self.start_limit_at().is_none_or(|join_by| now < join_by) {
            return None;
        }
        self.join_by = None;
        let JobPhase::Running { live } = &self.phase else { return None };
        let (generation, local_ranks) = (self.generation, self.ours(live));
        Some(vec![Action::ProbeJoined { generation, local_ranks }])
    }

    /// A missing worker is a failure of the generation; a worker that has exited with 0 is not missing.
    pub(super) fn joins_seen(
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
        let end = WorkerEnd::expected(first.local_rank, first.pid, Signal::SIGTERM, at);
        let mut failure = self.failure(now, end, FailureKind::NotJoined { limit });
        failure.not_joined = missing.iter().map(|worker| worker.local_rank).collect();
        let ranks = self.collect_ranks(TableCause::StartTimeout);
        let told = self.tell_of(failure.first);
        let missing = failure.not_joined.to_vec();
        let ours = self.ours(&live);
        self.history.generation_never_met();
        let actions = self.stop(now, live, StopCause::Failure(failure), Signal::SIGTERM);
        let grace = self.left_of_the_grace(now);
        let said = Action::Emit(JobEvent::NotJoined { missing, limit, live: ours, grace });
        told.into_iter().chain(ranks).chain(with_at(actions, 1, said)).collect()
    }
}
