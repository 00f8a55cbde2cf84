//! The first round of a job of a fixed number of nodes whose ranks are given: after it the job goes on as a dynamic one,
//! or, beside torchrun's agents, there is no other round.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clocks for the pure parts")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use crate::rendezvous::c10d::StoreFailure;
use crate::rendezvous::exchange::{Aborted, ExchangeError};
use crate::rendezvous::keys::RoundKeys;
use crate::rendezvous::state::Node;
use crate::rendezvous::static_rdzv::{
    FirstRound, JoinProgress, StaticSetup, first_round, read_join_progress, withdraw_claims,
};
use crate::rendezvous::training_store::TrainingStore;
use crate::rendezvous::{NodeName, RendezvousEnd, RendezvousEvent, Round, WaitReason, WaitStatus};
use crate::store::StoreServer;
use crate::store::client::Client;

use super::book::{by_rank, ranks_of};
use super::driver::{Driver, Phase, wall};
use super::member::Membership;

/// How far a job with given ranks has come.
#[derive(Debug, Clone)]
pub(super) enum Begun {
    /// Nobody knows yet what the others run.
    NotYet,
    /// All agents are ours: the shared state says what goes on.
    Alone,
    /// torchrun's agents take part: this is the only round.
    Mixed(Box<Round>),
}

impl Driver {
    /// Takes part in the first round of a job with given ranks.
    pub(super) fn begin(&mut self) -> Result<Instant, StoreFailure> {
        let (Phase::Joining(joining), Some(me), Some(fixed), Some(backend)) =
            (&self.phase, &self.me, self.plan.fixed.clone(), &mut self.backend)
        else {
            return Ok(Instant::now());
        };
        let (workers, node) = (joining.workers, me.node.clone());
        let descriptor = self.plan.descriptor(workers);
        let Some(mut bell) = backend.take_notifier()? else { return Ok(Instant::now()) };
        let role = self.plan.role.clone();
        let setup = StaticSetup {
            run_id: &fixed.run_id,
            node: &node,
            descriptor: &descriptor,
            node_rank: fixed.node_rank,
            nodes: self.plan.nodes.max,
            role: &role,
            workers,
            master: &fixed.master,
            timeout: self.plan.times.join,
            lease: self.plan.times.lease,
            wall: wall(),
        };
        let mut trouble = None;
        let mut meanwhile = |_: &mut Client| {
            self.meanwhile().map_err(|why| {
                trouble = why;
                Aborted
            })
        };
        let result = first_round(&mut bell, &setup, &mut meanwhile);
        if let Some(trouble) = trouble {
            return Err(trouble);
        }
        match result {
            Err(ExchangeError::Store(error)) => return Err(error.into()),
            Err(ExchangeError::Failed(error)) => self.over(RendezvousEnd::Failed(error)),
            Err(ExchangeError::Aborted) => {}
            Ok(first) => self.begun(first)?,
        }
        if let Some(backend) = &mut self.backend {
            backend.give_back(bell);
        }
        Ok(Instant::now())
    }

    fn begun(&mut self, first: FirstRound) -> Result<(), StoreFailure> {
        match first {
            FirstRound::Running => {
                self.begun = Begun::Alone;
                // Who is in the state under our node rank is the one whose place we take.
                self.look()?;
            }
            FirstRound::Alone { round, state } => {
                self.begun = Begun::Alone;
                self.book.ranked(ranks_of(&state));
                self.starts(*round, by_rank(&state));
            }
            FirstRound::Mixed(round) => {
                if let (Some(backend), Some(fixed)) = (&mut self.backend, &self.plan.fixed) {
                    backend.set_round_keys(RoundKeys::first_of_static(&fixed.run_id));
                }
                self.begun = Begun::Mixed(Box::new(round.clone()));
                self.fencepost.take_down();
                self.starts(round, Vec::new());
            }
        }
        Ok(())
    }

    /// The workers may start.
    pub(super) fn starts(&mut self, mut round: Round, nodes: Vec<Node>) {
        round.interface.clone_from(&self.interface);
        let server = self.training_store.as_ref().and_then(TrainingStore::server);
        let serves = |server: &&Arc<StoreServer>| server.local_addr().port() == round.master.port;
        let training_server = server.filter(|_| round.node_rank.0 == 0).filter(serves).cloned();
        self.phase =
            Phase::Member(Box::new(Membership::new(round.number, nodes, round.nodes.get() as usize)));
        self.outlet.tell(RendezvousEvent::Joined { round: Box::new(round), training_server });
    }

    /// What goes on while it is waited for the others of the first round.
    fn meanwhile(&mut self) -> Result<(), Option<StoreFailure>> {
        if self.obey().is_break() || self.ending.is_some() {
            return Err(None);
        }
        self.beat_if_due().map_err(Some)?;
        let now = Instant::now();
        self.take_gone(now).map_err(Some)?;
        self.call_the_roll(now).map_err(Some)
    }

    /// In a job with given ranks, as the host of the store: whose connections have closed need not keep their ranks from
    /// those who come in their places.
    pub(super) fn free_ranks(&mut self, departed: &BTreeSet<u32>) -> Result<(), StoreFailure> {
        let (Some(fixed), Some(store), Some(backend)) = (&self.plan.fixed, &self.store, &mut self.backend)
        else {
            return Ok(());
        };
        // A store that does not answer is ours, and about to end.
        let is_back = |nonce| store.connected().is_ok_and(|connected| connected.contains(&nonce));
        withdraw_claims(backend.request_client(), (&fixed.run_id, self.plan.nodes.max), departed, is_back)?;
        Ok(())
    }

    /// Tells people now and then who is missing.
    fn call_the_roll(&mut self, now: Instant) -> Result<(), StoreFailure> {
        let (Phase::Joining(joining), Some(fixed)) = (&mut self.phase, &self.plan.fixed) else {
            return Ok(());
        };
        let Some(left) = joining.line_is_due(now) else { return Ok(()) };
        let nodes = self.plan.nodes;
        let (Some(me), Some(backend)) = (&self.me, &mut self.backend) else { return Ok(()) };
        let own = NodeName::of_node(&me.node, Some(&self.plan.host), Some(fixed.node_rank));
        let (job, us) = ((&fixed.run_id, nodes.max), (fixed.node_rank, &me.node));
        let JoinProgress { here, missing, holder } =
            read_join_progress(backend.request_client(), job, us, own)?;
        if let Some(holder) = holder {
            let lease = humantime::format_duration(self.plan.times.lease);
            self.outlet.tell(RendezvousEvent::Note(format!(
                "node rank {} is held by an agent on {holder}: it is taken over unless that one gives a sign of life within {lease}",
                fixed.node_rank
            )));
            return Ok(());
        }
        let awaited = if missing.is_empty() { WaitReason::Ranks } else { WaitReason::Enough };
        let missing = missing.into_iter().map(NodeName::of_rank).collect();
        let waiting = WaitStatus { here, missing, min: nodes.min, max: nodes.max, left, awaited };
        self.outlet.tell(RendezvousEvent::Waiting(waiting));
        Ok(())
    }
}
