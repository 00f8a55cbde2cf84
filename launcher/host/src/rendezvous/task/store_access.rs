//! What the task reads from the store and writes there between the steps: descriptors, heartbeats, the state.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clock for the pure parts")]

use std::collections::BTreeMap;
use std::time::Instant;

use crate::rendezvous::RendezvousEvent;
use crate::rendezvous::c10d::{NodeDescription, StoreFailure, StoreSnapshot};
use rankrun_core::rendezvous::state::Node;

use super::quiet::snapshot_query;
use super::rendezvous_task::RendezvousTask;

impl RendezvousTask {
    /// Publishes the descriptor before another node can see this one in a list, and again when it has changed.
    pub(super) async fn publish_descriptor(&mut self) -> Result<(), StoreFailure> {
        let (Some(joining), Some(me), Some(backend)) = (self.phase.joining(), &self.me, &mut self.backend)
        else {
            return Ok(());
        };
        let descriptor = self.plan.descriptor(joining.workers);
        if self.peers.own() != Some(&descriptor) {
            let sent = Instant::now();
            backend.introduce(&me.node, &descriptor.to_json()).await?;
            self.peers.set_own(&me.node, descriptor);
            self.on_heartbeat_acknowledged(sent);
            self.next_tick = sent + self.plan.tick();
            self.start_heartbeats();
        }
        Ok(())
    }

    /// Sends a heartbeat if one is due, between requests that may take long.
    pub(super) async fn send_due_heartbeat(&mut self) -> Result<(), StoreFailure> {
        if Instant::now() >= self.next_tick { self.send_heartbeat().await } else { Ok(()) }
    }

    pub(super) async fn send_heartbeat(&mut self) -> Result<(), StoreFailure> {
        let sent = Instant::now();
        (self.next_tick, self.reads_heartbeats) = (sent + self.plan.tick(), true);
        if let Some(next) = self.tick_behind_heartbeats(sent) {
            self.next_tick = next;
            return Ok(());
        }
        if let (Some(me), Some(backend)) = (&self.me, &mut self.backend) {
            backend.send_heartbeat(&me.node).await?;
            self.on_heartbeat_acknowledged(sent);
        }
        Ok(())
    }

    /// Reads the store, and records every node that is in the state.
    pub(super) async fn read_store(&mut self) -> Result<StoreSnapshot, StoreFailure> {
        let Some(backend) = &mut self.backend else { return Ok(StoreSnapshot::default()) };
        let heartbeats =
            if self.reads_heartbeats { self.peers.rankrun_agents(backend.state()) } else { Vec::new() };
        self.reads_heartbeats = false;
        let snapshot = backend.read_snapshot(&snapshot_query(&self.phase, &heartbeats)).await?;
        self.record_snapshot(&snapshot).await?;
        Ok(snapshot)
    }

    pub(super) async fn record_snapshot(&mut self, snapshot: &StoreSnapshot) -> Result<(), StoreFailure> {
        self.contact.set_last_answer(Instant::now());
        if let Some(ranks) = rankrun_core::rendezvous::ranks_text::from_json(&snapshot.ranks) {
            self.peers.record_ranks(ranks);
        }
        self.record_state(snapshot.heartbeats.clone()).await
    }

    /// Records the state as it is known now, with the descriptors of new nodes.
    pub(super) async fn record_state(
        &mut self,
        mut heartbeats: BTreeMap<Node, i64>,
    ) -> Result<(), StoreFailure> {
        let Some(backend) = &mut self.backend else { return Ok(()) };
        let unknown = self.peers.unknown(backend.state());
        if !unknown.is_empty() {
            let node_descriptions = backend.node_descriptions(&unknown).await?;
            for (node, NodeDescription { text, heartbeat }) in unknown.into_iter().zip(node_descriptions) {
                let added = self.peers.add(node.clone(), &text);
                if let Some(difference) = self.peers.compare_budgets(&node) {
                    self.events.send(RendezvousEvent::Note(difference));
                }
                match added {
                    Ok(()) => heartbeats
                        .extend(heartbeat.filter(|_| !text.is_empty()).map(|heartbeat| (node, heartbeat))),
                    Err(mismatch) => self.on_mismatch(&node, mismatch),
                }
            }
        }
        if let Some(backend) = &self.backend {
            self.peers.record_snapshot(backend.state(), &heartbeats, Instant::now());
        }
        Ok(())
    }
}
