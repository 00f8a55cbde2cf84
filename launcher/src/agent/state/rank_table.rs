//! The table of ranks that follows a stop. Pure: the rows are collected before the stop signal, and shown where a rank may
//! hang.

use rankrun_contract::rank::Generation;

use super::State;
use crate::agent::message::rank_table::{EndedRank, RankTable, TableCause};
use crate::agent::message::{Action, Happening};
use crate::agent::phase::Phase;
use crate::spec::Persona;

impl State {
    /// Collects the rows, before the phase changes to a stop. A rank that is alone waits for no other one: a signal that
    /// ends it is explained by nothing in the table.
    pub(super) fn collect_ranks(&self, cause: TableCause) -> Option<Action> {
        let (live, failure) = match &self.phase {
            Phase::Running { live } => (live, None),
            Phase::Undecided { live, failure, .. } => (live, Some(failure)),
            _ => return None,
        };
        let is_alone = self.rules.workers.get() == 1 && !self.rules.has_rendezvous;
        let is_wanted = !live.is_empty() && (!is_alone || cause == TableCause::TimeLimit);
        if self.rules.persona != Persona::Rankrun || !is_wanted {
            return None;
        }
        let failed = failure.into_iter().flat_map(|failure| {
            [failure.first].into_iter().chain(failure.others.iter().map(|other| other.end))
        });
        let ended = self.finished.ends().chain(failed);
        let ended = ended.map(|end| EndedRank { local_rank: end.local_rank, exit: end.exit }).collect();
        Some(Action::CollectRanks { generation: self.generation, ended, cause })
    }

    /// Shows them, unless the job is over meanwhile.
    pub(super) fn ranks_collected(&self, generation: Generation, table: RankTable) -> Vec<Action> {
        let is_current = generation == self.generation && self.phase != Phase::Finished;
        let is_shown = is_current && table.is_needed();
        is_shown.then_some(Action::Say(Happening::RankTable(table))).into_iter().collect()
    }
}
