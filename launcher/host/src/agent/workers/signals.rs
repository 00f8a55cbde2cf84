//! Signals to the workers of this node: to the rank alone, or to its process group. `rankrun_core` decides which
//! (`agent::signal_scope`), by facts that are read here.

use rankrun_contract::rank::{Generation, LocalRank, Rank};
use rankrun_core::agent::message::Input;
use rankrun_core::agent::signal_scope::{SignalScope, signal_scope};
use rankrun_core::placement::WorkerId;
use rankrun_core::posix::{Pid, Signal};

use super::WorkerGroup;
use crate::process::group_signal::signal_groups_left;
use crate::process::program_file::image_of;

impl WorkerGroup {
    /// Signals these workers, and SIGCONT follows: a stopped process cannot act on a signal. The answer names those whose
    /// groups are awaited, if there are any.
    pub(in crate::agent) fn signal(
        &mut self,
        generation: Generation,
        local_ranks: &[LocalRank],
        signal: Signal,
    ) -> Option<Input> {
        let scope = |local_rank: &LocalRank| match signal {
            Signal::SIGKILL => SignalScope::Group,
            _ => self.signal_scope(*local_rank),
        };
        let scopes: Vec<_> = local_ranks.iter().map(|local_rank| (*local_rank, scope(local_rank))).collect();
        let of = |is_scope: fn(SignalScope) -> bool| -> Vec<LocalRank> {
            let chosen = scopes.iter().filter(|(_, scope)| is_scope(*scope));
            chosen.map(|(local_rank, _)| *local_rank).collect()
        };
        let alone = of(|scope| scope == SignalScope::Rank);
        let with_group = of(|scope| scope != SignalScope::Rank);
        let wrappers = of(|scope| scope == SignalScope::GroupOfWrapper);
        self.children.signal_groups(&worker_ids(generation, &with_group), signal);
        let leaders = worker_ids(generation, &alone);
        self.children.signal_leaders(&leaders, signal);
        self.children.signal_leaders(&leaders, Signal::SIGCONT);
        let is_awaited = !alone.is_empty() || !wrappers.is_empty();
        is_awaited.then_some(Input::Signalled { generation, alone, wrappers })
    }

    fn signal_scope(&self, local_rank: LocalRank) -> SignalScope {
        let image = self.pids.get(&local_rank).copied().and_then(image_of);
        let placement = self.placements.get(local_rank.index());
        let rank = placement.map_or(Rank(local_rank.0), |placement| placement.rank);
        signal_scope(&self.spec, rank, &self.program, image.as_deref())
    }

    /// Signals what is left of the process groups of these workers, which have ended. Where processes cannot be listed, the
    /// groups count as empty: what is left is killed at the end of the generation.
    pub(in crate::agent) fn signal_groups_left(
        &self,
        generation: Generation,
        local_ranks: &[LocalRank],
        signal: Option<Signal>,
    ) -> Input {
        let group = |local_rank: &LocalRank| self.pids.get(local_rank).copied();
        let groups: Vec<Pid> = local_ranks.iter().filter_map(group).collect();
        let found = signal_groups_left(&groups, signal).unwrap_or_default();
        let is_empty = |local_rank: &LocalRank| group(local_rank).is_none_or(|group| !found.contains(&group));
        let empty = local_ranks.iter().copied().filter(is_empty).collect();
        Input::GroupsSignalled { generation, empty }
    }

    /// Signals the process groups of all live workers.
    pub(in crate::agent) fn signal_all(&mut self, signal: Signal) {
        self.children.signal_all_groups(signal);
    }

    pub(in crate::agent) fn forward_signal(
        &mut self,
        generation: Generation,
        local_ranks: &[LocalRank],
        signal: Signal,
    ) {
        self.children.signal_leaders(&worker_ids(generation, local_ranks), signal);
    }
}

fn worker_ids(generation: Generation, local_ranks: &[LocalRank]) -> Vec<WorkerId> {
    local_ranks.iter().map(|&local_rank| WorkerId { generation, local_rank }).collect()
}
