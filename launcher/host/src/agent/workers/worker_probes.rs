//! Snapshots of live workers for the state: workers in uninterruptible sleep, from `/proc`, and workers that have not
//! joined the store, from its clients. The state decides what follows.

use std::collections::BTreeSet;

use rankrun_core::posix::Pid;

use rankrun_contract::rank::LocalRank;

use super::WorkerGroup;
use crate::process::descendants::{descendants_of, is_in_dstate};
use rankrun_core::agent::message::NotJoined;
use rankrun_core::job_event::UninterruptibleWorker;

impl WorkerGroup {
    /// Those of the workers that are uninterruptible.
    pub(in crate::agent) fn uninterruptible_workers(
        &self,
        local_ranks: &[LocalRank],
    ) -> Vec<UninterruptibleWorker> {
        let workers = local_ranks.iter().filter_map(|rank| self.pids.get_key_value(rank));
        let uninterruptible = workers.map(|(&local_rank, &pid)| UninterruptibleWorker { local_rank, pid });
        uninterruptible.filter(|worker| is_in_dstate(worker.pid)).collect()
    }

    /// Those of the workers that have not joined the store in this generation, neither directly nor by a live
    /// descendant. `client_pids` are those of the training store, if this node has it.
    pub(in crate::agent) fn workers_not_joined(
        &self,
        local_ranks: &[LocalRank],
        client_pids: Option<BTreeSet<u32>>,
    ) -> Vec<NotJoined> {
        let Some(client_pids) = client_pids else { return Vec::new() };
        let is_client = |pid: Pid| u32::try_from(pid.as_raw()).is_ok_and(|pid| client_pids.contains(&pid));
        let workers = local_ranks.iter().filter_map(|rank| self.pids.get_key_value(rank));
        let missing = workers.map(|(&local_rank, &pid)| NotJoined { local_rank, pid });
        // If the descendants cannot be listed, one of them may have joined.
        let one_below_has = |pid| descendants_of(pid).map_or(true, |all| all.into_iter().any(is_client));
        let has_joined = |pid| is_client(pid) || one_below_has(pid);
        missing.filter(|worker| !has_joined(worker.pid)).collect()
    }
}
