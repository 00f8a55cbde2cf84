//! The end: says how this node goes, and keeps what it hosts for the others for a while.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clocks for the pure parts")]

use std::time::{Duration, Instant};

use rankrun_contract::rank::NodeRank;

use crate::rendezvous::c10d::StoreFailure;
use crate::rendezvous::note::ClosingNote;
use crate::rendezvous::round::{LocalNode, RoundGoal, RoundStep, next};
use crate::rendezvous::state::{Node, RendezvousState};
use crate::rendezvous::training_store::TrainingStore;
use crate::rendezvous::{FailureNote, NodeName, ShutdownKind};

use super::driver::{Driver, Phase, Standing, wall};

/// How long the others may take to go: they still write their last words into our store.
const AFTER_SUCCESS: Duration = Duration::from_secs(5);
const AFTER_FAILURE: Duration = Duration::from_secs(2);
/// Who stays is to learn that we have left, and why.
const AFTER_LEAVING: Duration = Duration::from_millis(300);
/// Between two looks at who is still connected.
const LOOK: Duration = Duration::from_millis(10);

impl Driver {
    /// Goes. All is over by `until`.
    pub(super) fn part(mut self, parting: ShutdownKind, until: Instant) {
        let linger = match &parting {
            ShutdownKind::Close { succeeded: true, .. } => AFTER_SUCCESS,
            ShutdownKind::Close { .. } => AFTER_FAILURE,
            ShutdownKind::Leave { .. } => AFTER_LEAVING,
        };
        let deadline = until.min(Instant::now() + self.plan.times.close);
        let is_told = loop {
            while self.backend.is_none()
                && !self.is_over()
                && !self.bond.is_refused()
                && Instant::now() < deadline
            {
                let next = self.reach(Instant::now());
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
            let Err(trouble) = self.say_farewell(&parting, deadline) else { break true };
            tracing::debug!(%trouble, "the rendezvous store was not told how this node goes");
            let is_worth_another = matches!(trouble, StoreFailure::Store(_)) && !self.is_over();
            if !is_worth_another || Instant::now() >= deadline {
                break false;
            }
            // The connection alone may have been lost.
            self.stumble(trouble);
        };
        // Another node has ended the job, or nobody can be told of what ends it, such as a state that is none: the others may
        // still be about to learn it here.
        let is_closed = self.backend.as_ref().is_some_and(|backend| backend.state().closed);
        let linger = if is_closed || !is_told { linger.max(AFTER_FAILURE) } else { linger };
        // Ours are no connections of others.
        (self.backend, self.worn, self.pulse) = (None, None, None);
        self.linger(until.min(Instant::now() + linger));
    }

    /// As the host of the store, without which nobody goes on: tells the others why the job ends, also where it is for an
    /// error of this node alone. To be said once, and long enough before the store is gone.
    pub(super) fn end_with_the_store(&mut self, why: &str) -> Result<(), StoreFailure> {
        if self.store.is_none() || self.standing == Standing::Over {
            return Ok(());
        }
        self.look()?;
        let is_closed = self.backend.as_ref().is_some_and(|backend| backend.state().closed);
        if is_closed && self.standing == Standing::Out {
            return Ok(());
        }
        self.tell()?;
        let node = NodeName { rank: Some(self.own_rank()), ..self.own_name() };
        let Some(backend) = &mut self.backend else { return Ok(()) };
        let failure = Some(FailureNote::NodeLeft { node, why: why.to_owned() });
        backend.publish_end(&ClosingNote { succeeded: false, failure, rule: None })?;
        self.write_until_done(RoundGoal::Close, Instant::now() + self.plan.times.close)?;
        // The agent has its own reason, and is told of no other.
        (self.standing, self.phase) = (Standing::Over, Phase::Idle);
        self.fencepost.take_down();
        Ok(())
    }

    /// In the last complete round, or as it was given.
    fn own_rank(&self) -> NodeRank {
        let rank = self.me.as_ref().and_then(|me| self.book.ranks.as_ref()?.of.get(&me.node));
        let rank = rank.and_then(|rank| u32::try_from(*rank).ok()).map(NodeRank);
        rank.or(self.plan.node_rank).unwrap_or_default()
    }

    /// What messages call this node.
    pub(super) fn own_name(&self) -> NodeName {
        let of_me = |me: &LocalNode| NodeName::of_node(&me.node, Some(&self.plan.host), self.plan.node_rank);
        self.me.as_ref().map_or_else(|| NodeName::of_host(self.plan.host.clone()), of_me)
    }

    fn say_farewell(&mut self, parting: &ShutdownKind, deadline: Instant) -> Result<(), StoreFailure> {
        if let ShutdownKind::Leave { why } = parting {
            self.end_with_the_store(why)?;
        }
        if !self.is_over() {
            self.look()?;
        }
        self.tell()?;
        let first = match &self.phase {
            Phase::Member(membership) => membership.failure().cloned(),
            Phase::Idle | Phase::Joining(_) => None,
        };
        let (Some(me), Some(backend)) = (&self.me, &mut self.backend) else { return Ok(()) };
        let goal = match parting {
            ShutdownKind::Close { succeeded, failure, rule }
                if self.standing != Standing::Out && may_close(backend.state(), &me.node, &self.phase) =>
            {
                let has_cause = !*succeeded || rule.is_some();
                let failure = first.or_else(|| failure.clone()).filter(|_| has_cause);
                let rule = rule.clone();
                backend.publish_end(&ClosingNote { succeeded: *succeeded, failure, rule })?;
                RoundGoal::Close
            }
            // What has failed for this node alone goes on for the others.
            ShutdownKind::Close { .. } => RoundGoal::Leave,
            ShutdownKind::Leave { why } => {
                backend.publish_left(&me.node, why)?;
                RoundGoal::Leave
            }
        };
        self.write_until_done(goal, deadline)
    }

    fn write_until_done(&mut self, goal: RoundGoal<'_>, deadline: Instant) -> Result<(), StoreFailure> {
        loop {
            let now = Instant::now();
            let (Some(me), Some(backend)) = (&self.me, &self.backend) else { return Ok(()) };
            let view = self.book.view(backend.state());
            match next(&view, me, goal, now, wall()) {
                RoundStep::Write { state, rings } if now < deadline => self.write(&state, rings)?,
                _ => return Ok(()),
            }
        }
    }

    /// Keeps the stores until all others have gone, or the time is over.
    fn linger(&self, until: Instant) {
        while self.has_guests() && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
    }

    fn has_guests(&self) -> bool {
        let training_server = self.training_store.as_ref().and_then(TrainingStore::server);
        let stores = self.store.iter().chain(training_server);
        stores.into_iter().any(|store| store.connections().is_ok_and(|count| count > 0))
    }
}

/// Whether the job is this node's to end: not where others have taken it for dead and run on without it.
fn may_close(state: &RendezvousState, node: &Node, phase: &Phase) -> bool {
    let Phase::Member(membership) = phase else { return true };
    !state.complete || state.round <= membership.number || state.participants.contains(node)
}
