//! A quiet round: this node only watches it. Then the heartbeat task reads the store along with each heartbeat, and the
//! rendezvous task makes no request of its own unless a heartbeat is late.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clock for its next step")]

use std::time::Instant;

use crate::rendezvous::c10d::{SnapshotQuery, StoreFailure};
use rankrun_core::rendezvous::state::Node;

use super::heartbeat::{
    HeartbeatRead, HeartbeatSender, read_beside_heartbeat, tick_after, tick_behind_heartbeats,
};
use super::phase::Phase;
use super::rendezvous_task::RendezvousTask;

impl RendezvousTask {
    /// [`tick_behind_heartbeats`] in a quiet round. At any other time the others may wait for a heartbeat of this moment.
    pub(super) fn tick_behind_heartbeats(&self, now: Instant) -> Option<Instant> {
        let (sent, own) = (self.lease.acknowledged(), self.own_heartbeat);
        let next = || tick_behind_heartbeats(sent, own, now, self.plan.tick());
        (self.is_quiet() && self.heartbeats.is_some()).then(next).flatten()
    }

    /// Whether this node only watches its round.
    fn is_quiet(&self) -> bool {
        matches!(&self.phase, Phase::Member(membership) if membership.is_quiet())
            && !self.connection.refusals.exist()
    }

    /// In a quiet round each heartbeat reads what this task would read.
    pub(super) fn set_heartbeat_keys(&self) {
        let keys = self.backend.as_ref().filter(|_| self.is_quiet()).map(|backend| {
            let heartbeats = self.peers.rankrun_agents(backend.state());
            backend.snapshot_keys(&snapshot_query(&self.phase, &heartbeats))
        });
        if let Some(heartbeats) = &self.heartbeats {
            heartbeats.set_keys(keys);
        }
    }

    /// Takes what a heartbeat has read, if this task has asked the store for nothing since it set the keys. Else it reads
    /// itself.
    pub(super) async fn on_heartbeat_read(&mut self, read: HeartbeatRead) -> Result<(), StoreFailure> {
        let quiet = self.is_quiet();
        let Some(backend) = self.backend.as_mut().filter(|_| quiet) else { return Ok(()) };
        let heartbeats = self.peers.rankrun_agents(backend.state());
        let query = snapshot_query(&self.phase, &heartbeats);
        if backend.snapshot_keys(&query) != *read.keys {
            (self.next_read, self.reads_heartbeats) = (Instant::now(), true);
            return Ok(());
        }
        let snapshot = backend.take_values(&query, read.values)?;
        self.next_tick = tick_after(read.sent, self.plan.tick());
        self.record_snapshot(&snapshot).await?;
        self.act_on(&snapshot).await?;
        self.next_read = read_beside_heartbeat(self.next_read, read.sent, self.plan.tick());
        Ok(())
    }
}

/// What to read of the store, with the heartbeats of these nodes.
pub(super) fn snapshot_query<'a>(phase: &'a Phase, heartbeats: &'a [Node]) -> SnapshotQuery<'a> {
    let (round, done) = match phase {
        Phase::Member(membership) => (Some(membership.number), membership.nodes.as_slice()),
        _ => (None, [].as_slice()),
    };
    SnapshotQuery { round, done, heartbeats }
}

/// What the next heartbeat has read.
pub(super) async fn next_heartbeat_read(heartbeats: Option<&mut HeartbeatSender>) -> HeartbeatRead {
    match heartbeats {
        Some(heartbeats) => heartbeats.next_read().await,
        None => std::future::pending().await,
    }
}
