//! The end of the rendezvous: publishes how this node leaves, and keeps the stores that it hosts until their clients
//! are gone or a limit is over. Afterwards the task ends.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clocks for the pure parts")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use rankrun_contract::rank::NodeRank;
use tokio::time::{sleep_until, timeout_at};

use crate::rendezvous::c10d::StoreFailure;
use crate::store::StoreServer;
use rankrun_core::rendezvous::note::ClosingNote;
use rankrun_core::rendezvous::round::{LocalNode, RoundGoal, RoundStep, next};
use rankrun_core::rendezvous::state::{Node, RendezvousState};
use rankrun_core::rendezvous::{FailureNote, NodeName, ShutdownKind};

use super::phase::Phase;
use super::rendezvous_task::{Participation, RendezvousTask, wall};

/// How long the others may take to end their connections: they still publish how they leave.
const AFTER_SUCCESS: Duration = Duration::from_secs(5);
const AFTER_FAILURE: Duration = Duration::from_secs(2);
/// The nodes that go on need this time to read that this node has left, and why.
const AFTER_LEAVING: Duration = Duration::from_millis(300);

impl RendezvousTask {
    /// Leaves. All is over by `until`.
    pub(super) async fn leave(mut self, kind: ShutdownKind, until: Instant) {
        let wait = match &kind {
            ShutdownKind::Close { succeeded: true, .. } => AFTER_SUCCESS,
            ShutdownKind::Close { .. } => AFTER_FAILURE,
            ShutdownKind::Leave { .. } => AFTER_LEAVING,
        };
        let deadline = until.min(Instant::now() + self.plan.times.close);
        let is_published = loop {
            self.reconnect_by(deadline).await;
            let Err(error) = self.publish_leaving(&kind, deadline).await else { break true };
            tracing::debug!(%error, "the rendezvous store was not told how this node leaves");
            let is_worth_another = matches!(error, StoreFailure::Store(_)) && !self.is_over();
            if !is_worth_another || Instant::now() >= deadline {
                break false;
            }
            // The connection alone may be lost.
            self.on_store_error(error).await;
        };
        // If another node has ended the job, or the end could not be published, the others may still be about to read
        // why.
        let is_closed = self.backend.as_ref().is_some_and(|backend| backend.state().closed);
        let wait = if is_closed || !is_published { wait.max(AFTER_FAILURE) } else { wait };
        let mut stores: Vec<Arc<StoreServer>> = self.store.iter().cloned().collect();
        stores.extend(self.training_store.lock().await.server().cloned());
        // Ends the connections of this node.
        drop(self);
        let until = until.min(Instant::now() + wait);
        let _ = timeout_at(until.into(), wait_for_clients(stores)).await;
    }

    /// Connects again if the connection is lost, and the store may be there.
    async fn reconnect_by(&mut self, deadline: Instant) {
        while self.backend.is_none()
            && !self.is_over()
            && !self.connection.is_refused()
            && Instant::now() < deadline
        {
            let until = self.connect_step(Instant::now()).await.min(deadline);
            tokio::select! {
                result = self.connection.attempts.result() => self.on_attempt_result(result).await,
                () = sleep_until(until.into()) => {}
            }
        }
    }

    /// As the host of the store, without which no other node continues: publishes why the job ends, also if only this
    /// node has an error. Once, and long enough before the store ends.
    pub(super) async fn close_as_host(&mut self, why: &str) -> Result<(), StoreFailure> {
        if self.store.is_none() || self.participation == Participation::JobIsOver {
            return Ok(());
        }
        self.read_store().await?;
        let is_closed = self.backend.as_ref().is_some_and(|backend| backend.state().closed);
        if is_closed && self.participation == Participation::Excluded {
            return Ok(());
        }
        self.publish_results().await?;
        let node = NodeName { rank: Some(self.own_rank()), ..self.own_name() };
        let Some(backend) = &mut self.backend else { return Ok(()) };
        let failure = Some(FailureNote::NodeLeft { node, why: why.to_owned() });
        backend.publish_end(&ClosingNote { succeeded: false, failure, rule: None }).await?;
        self.write_until_done(RoundGoal::Close, Instant::now() + self.plan.times.close).await?;
        // The agent has its own reason, and gets no other one.
        (self.participation, self.phase) = (Participation::JobIsOver, Phase::Idle);
        self.lease.end();
        Ok(())
    }

    /// The rank in the last complete round, or the given one.
    fn own_rank(&self) -> NodeRank {
        let rank = self.me.as_ref().and_then(|me| self.peers.ranks.as_ref()?.of.get(&me.node));
        let rank = rank.and_then(|rank| u32::try_from(*rank).ok()).map(NodeRank);
        rank.or(self.plan.node_rank).unwrap_or_default()
    }

    /// What messages call this node.
    pub(super) fn own_name(&self) -> NodeName {
        let of_me = |me: &LocalNode| NodeName::of_node(&me.node, Some(&self.plan.host), self.plan.node_rank);
        self.me.as_ref().map_or_else(|| NodeName::of_host(self.plan.host.clone()), of_me)
    }

    async fn publish_leaving(&mut self, kind: &ShutdownKind, deadline: Instant) -> Result<(), StoreFailure> {
        if let ShutdownKind::Leave { why } = kind {
            self.close_as_host(why).await?;
        }
        if !self.is_over() {
            self.read_store().await?;
        }
        self.publish_results().await?;
        let first = match &self.phase {
            Phase::Member(membership) => membership.failure().cloned(),
            _ => None,
        };
        let (Some(me), Some(backend)) = (&self.me, &mut self.backend) else { return Ok(()) };
        let goal = match kind {
            ShutdownKind::Close { succeeded, failure, rule }
                if self.participation != Participation::Excluded
                    && may_close(backend.state(), &me.node, &self.phase) =>
            {
                let has_cause = !*succeeded || rule.is_some();
                let failure = first.or_else(|| failure.clone()).filter(|_| has_cause);
                let rule = rule.clone();
                backend.publish_end(&ClosingNote { succeeded: *succeeded, failure, rule }).await?;
                RoundGoal::Close
            }
            // After a failure of this node alone the others go on.
            ShutdownKind::Close { .. } => RoundGoal::Leave,
            ShutdownKind::Leave { why } => {
                backend.publish_left(&me.node, why).await?;
                RoundGoal::Leave
            }
        };
        self.write_until_done(goal, deadline).await
    }

    async fn write_until_done(&mut self, goal: RoundGoal<'_>, deadline: Instant) -> Result<(), StoreFailure> {
        loop {
            let now = Instant::now();
            let (Some(me), Some(backend)) = (&self.me, &self.backend) else { return Ok(()) };
            let step = next(&self.peers.view(backend.state()), me, goal, now, wall());
            match step {
                RoundStep::Write { state, notifies } if now < deadline => {
                    self.write(&state, notifies).await?
                }
                _ => return Ok(()),
            }
        }
    }
}

/// Waits until no client is connected to any of the stores.
async fn wait_for_clients(stores: Vec<Arc<StoreServer>>) {
    for store in stores {
        while has_clients(&store).await {
            store.client_departed().await;
        }
    }
}

async fn has_clients(store: &StoreServer) -> bool {
    // A client departs once until it is taken from this list.
    let _ = store.departed().await;
    store.connections().await.is_ok_and(|count| count > 0)
}

/// Whether this node may end the job: not if the others have declared it dead and have gone on without it.
fn may_close(state: &RendezvousState, node: &Node, phase: &Phase) -> bool {
    let Phase::Member(membership) = phase else { return true };
    !state.complete || state.round <= membership.number || state.participants.contains(node)
}
