//! The table of ranks at a stop. Pure: `workers::rank_table` collects the rows before the stop signal, and
//! this module shows the table where a rank may hang.

use std::time::Instant;

use rankrun_contract::rank::Generation;

use super::State;
use super::rendezvous::SAME_MOMENT;
use crate::agent::message::Action;
use crate::agent::phase::JobPhase;
use crate::job_event::JobEvent;
use crate::job_event::rank_table::{EndedRank, RankTable};
use crate::rendezvous::{MembershipChange, RendezvousEnd};
use crate::spec::CliFlavor;
use crate::spec::stop::StopReason;

impl State {
    /// Collects the rows, before the phase changes to a stop. A single rank waits for no other rank, so the
    /// table cannot explain the signal that ends it.
    pub(super) fn collect_ranks(&self, reason: StopReason) -> Option<Action> {
        let (live, failure) = match &self.phase {
            JobPhase::Running { live } => (live, None),
            JobPhase::Undecided { live, failure, .. } => (live, Some(failure)),
            _ => return None,
        };
        let is_alone = self.rules.workers.get() == 1 && !self.peers.has_peers();
        let is_wanted = !live.is_empty() && (!is_alone || reason == StopReason::TimeLimit);
        if self.rules.cli_flavor != CliFlavor::Rankrun || !is_wanted {
            return None;
        }
        let failed = failure.into_iter().flat_map(|failure| {
            [failure.first].into_iter().chain(failure.following_ends.iter().map(|other| other.end))
        });
        let ended = self.finished.ends().chain(failed);
        let ended = ended.map(|end| EndedRank { local_rank: end.local_rank, exit: end.exit }).collect();
        Some(Action::CollectRanks { generation: self.generation, ended, reason })
    }

    /// The same if another node has ended the job by its own stop.
    pub(super) fn collect_ranks_for_end(&self, now: Instant, ending: &RendezvousEnd) -> Option<Action> {
        let RendezvousEnd::Closed { failure: Some(note) } = ending else { return None };
        note.why_node_ended_job()?;
        self.collect_ranks_for_peers(now, StopReason::EndedElsewhere)
    }

    /// The same if another node has left and this node stops its workers for that. A scheduler stops all
    /// nodes of a job, and this node may hear of another node first.
    pub(super) fn collect_ranks_for_change(&self, now: Instant, change: &MembershipChange) -> Option<Action> {
        let MembershipChange::Left { .. } = change else { return None };
        self.collect_ranks_for_peers(now, StopReason::Membership)
    }

    /// The time limits of all nodes expire at about the same time.
    fn collect_ranks_for_peers(&self, now: Instant, reason: StopReason) -> Option<Action> {
        let is_late = self.time_limit_timer.expires_at().is_some_and(|end| end <= now + SAME_MOMENT);
        self.collect_ranks(if is_late { StopReason::TimeLimit } else { reason })
    }

    /// Shows the table, unless the job is over meanwhile.
    pub(super) fn on_ranks_collected(&self, generation: Generation, table: RankTable) -> Vec<Action> {
        let is_current = generation == self.generation && self.phase != JobPhase::Finished;
        let is_shown = is_current && table.is_needed();
        is_shown.then_some(Action::Emit(JobEvent::RankTable(table))).into_iter().collect()
    }
}
