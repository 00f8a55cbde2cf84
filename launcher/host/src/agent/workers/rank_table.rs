//! What is known of all ranks of this node before a stop: it reads `/proc`, the store's clients and the last
//! output lines. `state::rank_table` decides whether the table is shown.
#![expect(clippy::disallowed_methods, reason = "a look at processes has a limit")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rankrun_core::posix::Pid;

use rankrun_contract::rank::{Generation, LocalRank};

use super::WorkerGroup;
use crate::process::proc::can_scan_processes;
use crate::process::sockets::ConnectedSockets;
use crate::process::usage::{tree_of, tree_usage};
use rankrun_core::job_event::activity::LastOutput;
use rankrun_core::job_event::rank_table::{EndedRank, JoinState, ProcessState, RankRow, RankTable};
use rankrun_core::placement::WorkerId;
use rankrun_core::spec::stop::StopReason;

/// The stop signal waits at most this long for the examination of the processes.
const JOIN_PROBE_TIMEOUT: Duration = Duration::from_millis(250);

impl WorkerGroup {
    /// One row per rank; `None` if the table does not help to explain the stop. `client_pids` are those of
    /// the training store, if this node has it.
    pub(in crate::agent) fn rank_table(
        &self,
        (generation, reason): (Generation, StopReason),
        ended: &[EndedRank],
        client_pids: Option<BTreeSet<u32>>,
    ) -> Option<RankTable> {
        let probe = self.join_probe(client_pids);
        let ranks = (0..self.spec.workers.get()).map(LocalRank);
        let rows = ranks.map(|local_rank| self.rank_row(local_rank, ended, &probe)).collect();
        let mut table = RankTable { reason, rows };
        if !table.is_needed() {
            return None;
        }
        for row in table.rows.iter_mut().filter(|row| row.process == ProcessState::Unknown) {
            let usage = row.pid.and_then(|pid| tree_usage(pid, &|| probe.is_expired()));
            row.process = usage.map_or(ProcessState::Unknown, |usage| ProcessState::Alive(usage.state));
            row.cpu_time = usage.map(|usage| usage.cpu_time);
        }
        let workers: Vec<_> =
            table.rows.iter().map(|row| WorkerId { generation, local_rank: row.local_rank }).collect();
        for (row, output) in table.rows.iter_mut().zip(self.logs.last_outputs(&workers)) {
            row.output = output;
        }
        Some(table)
    }

    /// The cheap part of a row: whether the rank has joined. The pid of an ended worker may belong to another
    /// process.
    fn rank_row(&self, local_rank: LocalRank, ended: &[EndedRank], probe: &JoinProbe) -> RankRow {
        let pid = self.pids.get(&local_rank).copied();
        let exit = ended.iter().find(|ended| ended.local_rank == local_rank).map(|ended| ended.exit);
        let (process, joined) = match (pid, exit) {
            (None, _) => (self.unstarted_state(local_rank), JoinState::NotJoined),
            (Some(pid), Some(exit)) => (ProcessState::Ended(exit), probe.ended_join_state(pid)),
            (Some(pid), None) => (ProcessState::Unknown, probe.live_join_state(pid)),
        };
        RankRow { local_rank, pid, process, joined, cpu_time: None, output: LastOutput::Unavailable }
    }

    /// The user can start the external worker once the others have been started.
    fn unstarted_state(&self, local_rank: LocalRank) -> ProcessState {
        let external = self.external_worker.as_ref().map(|worker| worker.worker_id().local_rank);
        if external == Some(local_rank) { ProcessState::ExternalNotStarted } else { ProcessState::NotStarted }
    }

    fn join_probe(&self, client_pids: Option<BTreeSet<u32>>) -> JoinProbe {
        let port = self.round.as_ref().map(|round| round.master.port).filter(|_| client_pids.is_none());
        let connected = port.map(ConnectedSockets::to_port).unwrap_or_default();
        JoinProbe { client_pids, connected, until: Instant::now() + JOIN_PROBE_TIMEOUT }
    }
}

/// Evidence that a rank has joined the store.
struct JoinProbe {
    /// Pids of the store's clients, if this node has the store.
    client_pids: Option<BTreeSet<u32>>,
    /// Connections to the store's port, if another process has the store. A rank with a connection has
    /// joined; a rank without may have left again.
    connected: ConnectedSockets,
    until: Instant,
}

impl JoinProbe {
    fn is_expired(&self) -> bool {
        Instant::now() >= self.until
    }

    fn has_joined(&self, pid: Pid) -> bool {
        match &self.client_pids {
            Some(pids) => u32::try_from(pid.as_raw()).is_ok_and(|pid| pids.contains(&pid)),
            None => self.connected.is_held_by(pid),
        }
    }

    fn live_join_state(&self, pid: Pid) -> JoinState {
        if self.has_joined(pid) {
            return JoinState::Joined;
        }
        match tree_of(pid, &|| self.is_expired()) {
            Ok(pids) if pids.iter().any(|pid| self.has_joined(*pid)) => JoinState::Joined,
            Ok(_) if self.client_pids.is_some() && can_scan_processes() => JoinState::NotJoined,
            Ok(_) | Err(_) => JoinState::Unknown,
        }
    }

    /// Its descendants are gone, and one of them may have joined.
    fn ended_join_state(&self, pid: Pid) -> JoinState {
        let has_client = self.client_pids.is_some() && self.has_joined(pid);
        if has_client { JoinState::Joined } else { JoinState::Unknown }
    }
}
