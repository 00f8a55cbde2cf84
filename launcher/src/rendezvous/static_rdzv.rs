//! The static rendezvous: a job with a fixed number of nodes and given node ranks (contract 5.9). This module runs the
//! first round in the form that torchrun's agents know.
//!
//! Node rank 0 hosts the only store, at the endpoint. Every rankrun agent claims its node rank in the store. A claim
//! reveals a second agent with the same rank, and a dead agent's claim can be taken over. If all nodes have claims, the
//! job continues with the rounds of a dynamic rendezvous in the same store. With a torchrun agent among the nodes there
//! is only this one round.

mod alone;
mod authority;
mod claim;
#[cfg(test)]
mod tests;

pub use claim::{claim_name, withdraw_claims};

use std::time::{Duration, Instant};

use rankrun_contract::env::Master;
use rankrun_contract::rank::{LocalWorldSize, NodeCount, NodeRank, RunId};

use super::descriptor::AgentDescriptor;
use super::error::RendezvousError;
use super::exchange::{Aborted, Between, ExchangeError, Ready, Seats, Talk, Told, round};
use super::keys::{RendezvousKeys, RoundKeys};
use super::pickle;
use super::state::{Node, RendezvousState, Timestamp};
use super::{NodeName, Round};
use crate::store::client::{Client, ClientError};

use authority::Authority;
use claim::Claim;

/// Counter of the agents that have joined, incremented by torch's clients (contract 5.9).
const INIT: &str = "init/";

/// This node's parameters of a static job.
#[derive(Debug, Clone)]
pub struct StaticSetup<'a> {
    /// Run id of the job, part of all keys.
    pub run_id: &'a RunId,
    /// Name of this agent in the shared state.
    pub node: &'a Node,
    /// The descriptor that this agent publishes.
    pub descriptor: &'a AgentDescriptor,
    /// This node's rank, from `--node-rank`.
    pub node_rank: NodeRank,
    /// Number of nodes of the job.
    pub nodes: NodeCount,
    /// Role of this node's workers, from `--role`.
    pub role: &'a str,
    /// Number of workers on this node.
    pub workers: LocalWorldSize,
    /// Master address of the workers, as given to this node.
    pub master: &'a Master,
    /// How long to wait for the other nodes.
    pub timeout: Duration,
    /// An agent without a heartbeat for this long is dead.
    pub lease: Duration,
    /// Local time of day, written as torch's heartbeat in the shared state.
    pub wall: Timestamp,
}

/// How a static job starts on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FirstRound {
    /// torchrun agents take part: the job has only this round.
    Mixed(Round),
    /// All agents are rankrun's. This round is complete, as the shared state under [`RendezvousKeys::static_keys`] says.
    Alone {
        /// The complete first round, with this node in it.
        round: Box<Round>,
        /// The shared state, as node rank 0 has written it.
        state: RendezvousState,
    },
    /// The job runs already, and this agent replaces a dead one. It joins the next round through the shared state under
    /// [`RendezvousKeys::static_keys`], like any agent.
    Running,
}

/// Takes part in the first round. `store` is connected to the endpoint. The callback runs between waits; it also sends
/// this agent's heartbeats under [`RendezvousKeys::static_keys`].
///
/// # Errors
/// See [`ExchangeError`]: not all nodes joined in time, or some do not belong to the job.
pub fn first_round(
    store: &mut Client,
    setup: &StaticSetup<'_>,
    between: &mut Between<'_>,
) -> Result<FirstRound, ExchangeError> {
    let job = StaticJob {
        keys: RendezvousKeys::static_keys(setup.run_id),
        round: RoundKeys::first_of_static(setup.run_id),
        setup,
    };
    let mut authority = Authority::of(&job);
    let mut refusal = None;
    let mut watched = |store: &mut Client| {
        between(store)?;
        authority.check(&job, store).map_err(|error| {
            refusal = Some(error);
            Aborted
        })
    };
    let first = run_first_round(&job, &mut Talk { store, between: &mut watched });
    match refusal {
        Some(error) => Err(error),
        None => {
            let first = first?;
            authority.check(&job, store)?;
            Ok(first)
        }
    }
}

fn run_first_round(job: &StaticJob<'_>, talk: &mut Talk<'_, '_>) -> Result<FirstRound, ExchangeError> {
    let setup = job.setup;
    job.refuse_torchrun(talk)?;
    job.claim(talk)?;
    if talk.store.check(&[&job.keys.rankrun_only()])? {
        return Ok(FirstRound::Running);
    }
    // torch's host stops waiting too early if an agent is counted twice. This agent may have been counted before a
    // reconnect, or as the dead agent that it replaces.
    if talk.store.get(&job.round.role_info(setup.node_rank))?.is_empty() {
        talk.store.add(INIT, 1)?;
    }
    // The other nodes' names are known after all have joined.
    let unknown: Vec<_> = job.ranks().map(|rank| member(rank, None)).collect();
    let seats = Seats {
        keys: &job.round,
        role: setup.role,
        workers: setup.workers,
        node_rank: setup.node_rank,
        members: &unknown,
        limit: setup.timeout,
    };
    let mut misfit_since = None;
    let taken = seats.take(talk, &mut |talk| job.begin(talk, &mut misfit_since));
    let (assigned, workers) = match taken {
        Err(ExchangeError::Failed(RendezvousError::NoAnswer { .. })) => {
            return Err(job.too_few(talk)?.into());
        }
        taken => taken?,
    };
    let begun = talk.store.get(&job.keys.rankrun_only())?;
    let claims = job.claims(talk)?;
    let seen: Vec<_> = job.ranks().zip(claims).map(|(rank, claim)| member(rank, claim)).collect();
    let told = Told { master: setup.master.clone(), workers };
    if begun.is_empty() {
        return Ok(FirstRound::Mixed(round(0, &Seats { members: &seen, ..seats }, assigned, told)));
    }
    let unreadable =
        || RendezvousError::Unreadable { what: "the list of nodes", node: NodeName::of_rank(NodeRank(0)) };
    let (nodes, wall) = alone::from_json(&begun, seen.len()).ok_or_else(unreadable)?;
    if nodes.get(setup.node_rank.index()) != Some(setup.node) {
        // This agent replaced an agent that died after it had published its part.
        return Ok(FirstRound::Running);
    }
    let state = alone::state(nodes.iter(), wall);
    let members: Vec<_> = nodes.into_iter().zip(seen).map(|(node, (_, agent))| (node, agent)).collect();
    let round = round(0, &Seats { members: &members, ..seats }, assigned, told);
    Ok(FirstRound::Alone { round: Box::new(round), state })
}

/// The nodes that have joined a static job, for the user's waiting line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JoinProgress {
    /// Names of the nodes that have joined.
    pub here: Vec<NodeName>,
    /// Node ranks without an agent so far.
    pub missing: Vec<NodeRank>,
    /// The agent that still holds this node's rank; it may be dead.
    pub holder: Option<NodeName>,
}

/// Reads which nodes have joined, for the agent with this node rank.
///
/// # Errors
/// See [`Client`].
pub fn read_join_progress(
    store: &mut Client,
    (run_id, nodes): (&RunId, NodeCount),
    (own_rank, own): (NodeRank, &Node),
    own_name: NodeName,
) -> Result<JoinProgress, ClientError> {
    let (keys, round) = (RendezvousKeys::static_keys(run_id), RoundKeys::first_of_static(run_id));
    let ranks = || (0..nodes.get()).map(NodeRank);
    let names: Vec<String> = ranks().flat_map(|rank| [keys.claim(rank), round.role_info(rank)]).collect();
    let values = store.multi_get(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
    let mut roll = JoinProgress::default();
    for (rank, pair) in ranks().zip(values.chunks_exact(2)) {
        let claim = Claim::from_json(&pair[0]);
        if rank == own_rank {
            roll.holder = claim.filter(|claim| claim.node != *own).map(|claim| claim.name().without_rank());
            roll.here.push(own_name.clone());
            continue;
        }
        match claim {
            Some(claim) => roll.here.push(NodeName { rank: Some(rank), ..claim.name() }),
            None if pair[1].is_empty() || pair[0] == claim::WITHDRAWN_CLAIM => roll.missing.push(rank),
            None => roll.here.push(NodeName::of_rank(rank)),
        }
    }
    Ok(roll)
}

struct StaticJob<'a> {
    keys: RendezvousKeys,
    round: RoundKeys,
    setup: &'a StaticSetup<'a>,
}

impl StaticJob<'_> {
    fn ranks(&self) -> impl Iterator<Item = NodeRank> {
        (0..self.setup.nodes.get()).map(NodeRank)
    }

    /// Fails if a torchrun agent holds this node rank. An agent with a published role but no claim for its rank is
    /// torchrun's. It waits in the rank exchange until ranks are assigned.
    fn refuse_torchrun(&self, talk: &mut Talk<'_, '_>) -> Result<(), ExchangeError> {
        let node_rank = self.setup.node_rank;
        let keys = [
            self.keys.claim(node_rank),
            self.round.role_info(node_rank),
            self.round.assigned_ranks(node_rank),
        ];
        let values = talk.store.multi_get(&keys.each_ref().map(String::as_str))?;
        let is_there: Vec<bool> = values.iter().map(|value| !value.is_empty()).collect();
        if is_there != [false, true, false] {
            return Ok(());
        }
        let theirs = Box::new(NodeName::of_host("another node, which runs torchrun"));
        Err(RendezvousError::SameNodeRank { node_rank, ours: Box::new(self.name()), theirs }.into())
    }

    /// The readable claims by node rank; `None` for missing or unreadable ones.
    fn claims(&self, talk: &mut Talk<'_, '_>) -> Result<Vec<Option<Claim>>, ExchangeError> {
        Ok(self.claim_texts(talk.store)?.iter().map(|text| Claim::from_json(text)).collect())
    }

    fn claim_texts(&self, store: &mut Client) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let keys: Vec<String> = self.ranks().map(|rank| self.keys.claim(rank)).collect();
        Ok(store.multi_get(&keys.iter().map(String::as_str).collect::<Vec<_>>())?)
    }

    /// Node rank 0 starts the job, before any agent starts a worker. If all agents are rankrun's, the job can have more
    /// rounds.
    fn begin(
        &self,
        talk: &mut Talk<'_, '_>,
        misfit_since: &mut Option<Instant>,
    ) -> Result<Ready, ExchangeError> {
        let [claims, infos] = self.claims_and_infos(talk.store)?;
        let misfit = self.first_mismatch(&claims);
        let is_leaving = |(claim, info): (&Vec<u8>, &Vec<u8>)| {
            claim == claim::WITHDRAWN_CLAIM || (claim.is_empty() && info.is_empty())
        };
        if misfit.is_some() || claims.iter().zip(&infos).any(is_leaving) {
            return self.wait_for_rank(talk, misfit, misfit_since);
        }
        // An agent writes its claim before its role_info.
        let claims = claims.iter().map(|text| Claim::from_json(text));
        let Some(claims) = claims.collect::<Option<Vec<_>>>() else {
            return Ok(Ready::Yes);
        };
        let nodes = claims.iter().map(|claim| &claim.node);
        let state = alone::state(nodes.clone(), self.setup.wall);
        talk.store.set(self.keys.state(), &pickle::encode(&state))?;
        talk.store.set(&self.keys.rankrun_only(), &alone::to_json(nodes, self.setup.wall))?;
        Ok(Ready::Yes)
    }

    /// Claims and role_infos of all nodes, read in one request so that they are consistent.
    fn claims_and_infos(&self, store: &mut Client) -> Result<[Vec<Vec<u8>>; 2], ExchangeError> {
        let claims = self.ranks().map(|rank| self.keys.claim(rank));
        let keys: Vec<String> = claims.chain(self.ranks().map(|rank| self.round.role_info(rank))).collect();
        let mut claims = store.multi_get(&keys.iter().map(String::as_str).collect::<Vec<_>>())?;
        let infos = claims.split_off(keys.len() / 2);
        Ok([claims, infos])
    }

    /// The error for agents that have not published their part: too few nodes joined.
    fn too_few(&self, talk: &mut Talk<'_, '_>) -> Result<RendezvousError, ExchangeError> {
        let setup = self.setup;
        let job = (setup.run_id, setup.nodes);
        let JoinProgress { here, missing, .. } =
            read_join_progress(talk.store, job, (setup.node_rank, setup.node), self.name())?;
        let waited = setup.timeout;
        if missing.is_empty() {
            let nodes = vec![NodeName::of_rank(NodeRank(0))];
            return Ok(RendezvousError::NoAnswer { what: "ranks of this node's workers", nodes, waited });
        }
        Ok(RendezvousError::TooFew {
            here: u32::try_from(here.len()).unwrap_or(u32::MAX),
            needed: setup.nodes.get(),
            waited,
            missing: missing.into_iter().map(NodeName::of_rank).collect(),
        })
    }

    /// Name of this node for messages that print its rank elsewhere.
    fn name(&self) -> NodeName {
        NodeName::of_node(self.setup.node, Some(&self.setup.descriptor.host), None)
    }
}

fn member(rank: NodeRank, claim: Option<Claim>) -> (Node, Option<AgentDescriptor>) {
    claim.map_or_else(|| (unknown_node(rank), None), |claim| (claim.node, Some(claim.agent)))
}

/// Placeholder for a node that has published nothing about itself.
fn unknown_node(rank: NodeRank) -> Node {
    Node { addr: String::new(), pid: 0, local_id: i64::from(rank.0) }
}
