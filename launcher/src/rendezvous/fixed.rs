//! A job of a fixed number of nodes whose ranks are given (contract 5.9): its first round, as torchrun's agents know it.
//!
//! The one store is rank 0's, at the endpoint. Agents of rankrun claim their node rank in it, so that two with the same
//! one are found, and one whose agent is dead can be taken over. Where all nodes have claimed theirs, the job goes on
//! with the rounds of a dynamic rendezvous in the same store; with a torchrun agent among them, there is no other round.

mod alone;
mod authority;
mod claim;
#[cfg(test)]
mod tests;

pub use claim::{claim_name, take_back};

use std::time::{Duration, Instant};

use rankrun_contract::env::Master;
use rankrun_contract::rank::{LocalWorldSize, NodeCount, NodeRank, RunId};

use super::descriptor::Descriptor;
use super::error::RendezvousError;
use super::exchange::{Aborted, Between, ExchangeError, Ready, Seats, Talk, Told, round};
use super::keys::{Keys, RoundKeys};
use super::pickle;
use super::state::{Node, State, Timestamp};
use super::{NodeName, Round};
use crate::store::client::{Client, ClientError};

use authority::Authority;
use claim::Claim;

/// Counts the agents that have come: torch's clients do (contract 5.9).
const INIT: &str = "init/";

/// This node, in a static job.
#[derive(Debug, Clone)]
pub struct Setup<'a> {
    /// The job.
    pub run_id: &'a RunId,
    /// This agent.
    pub node: &'a Node,
    /// What it says of itself.
    pub descriptor: &'a Descriptor,
    /// `--node-rank`
    pub node_rank: NodeRank,
    /// How many nodes there are.
    pub nodes: NodeCount,
    /// `--role`
    pub role: &'a str,
    /// Workers of this node.
    pub workers: LocalWorldSize,
    /// Where the workers meet, as this node was told.
    pub master: &'a Master,
    /// How long to wait for the others.
    pub timeout: Duration,
    /// An agent that gives no sign of life for so long is dead.
    pub lease: Duration,
    /// The time of day, for torch's heartbeats in the shared state.
    pub wall: Timestamp,
}

/// How a static job begins on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FirstRound {
    /// Torchrun's agents take part: there is this round and no other.
    Mixed(Round),
    /// All agents are ours: this round is complete, and the shared state under [`Keys::fixed`] says so.
    Alone {
        /// The round.
        round: Box<Round>,
        /// The shared state that rank 0 has written.
        state: State,
    },
    /// The job runs already, and this agent takes the place of one that is dead: it joins the next round as any agent
    /// does, by the shared state under [`Keys::fixed`].
    Running,
}

/// Takes part in the first round. `store` is connected to the endpoint; whoever is called between the waits also gives
/// this agent's signs of life, under [`Keys::fixed`].
///
/// # Errors
/// See [`ExchangeError`]: not all nodes came in time, or some do not belong to the job.
pub fn first_round(
    store: &mut Client,
    setup: &Setup<'_>,
    between: &mut Between<'_>,
) -> Result<FirstRound, ExchangeError> {
    let job = Job { keys: Keys::fixed(setup.run_id), round: RoundKeys::first_of_static(setup.run_id), setup };
    let mut authority = Authority::of(&job);
    let mut refusal = None;
    let mut watched = |store: &mut Client| {
        between(store)?;
        authority.check(&job, store).map_err(|error| {
            refusal = Some(error);
            Aborted
        })
    };
    let first = take_part(&job, &mut Talk { store, between: &mut watched });
    match refusal {
        Some(error) => Err(error),
        None => {
            let first = first?;
            authority.check(&job, store)?;
            Ok(first)
        }
    }
}

fn take_part(job: &Job<'_>, talk: &mut Talk<'_, '_>) -> Result<FirstRound, ExchangeError> {
    let setup = job.setup;
    job.refuse_torchrun(talk)?;
    job.claim(talk)?;
    if talk.store.check(&[&job.keys.alone()])? {
        return Ok(FirstRound::Running);
    }
    // torch's host stops to wait too early where an agent is counted twice: one that has lost its connection before, or
    // takes the place of one that died.
    if talk.store.get(&job.round.role_info(setup.node_rank))?.is_empty() {
        talk.store.add(INIT, 1)?;
    }
    // Who the others are is known when all have come.
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
    let begun = talk.store.get(&job.keys.alone())?;
    let claims = job.claims(talk)?;
    let seen: Vec<_> = job.ranks().zip(claims).map(|(rank, claim)| member(rank, claim)).collect();
    let told = Told { master: setup.master.clone(), workers };
    if begun.is_empty() {
        return Ok(FirstRound::Mixed(round(0, &Seats { members: &seen, ..seats }, assigned, told)));
    }
    let unreadable =
        || RendezvousError::Unreadable { what: "who takes part", node: NodeName::of_rank(NodeRank(0)) };
    let (nodes, wall) = alone::from_json(&begun, seen.len()).ok_or_else(unreadable)?;
    if nodes.get(setup.node_rank.index()) != Some(setup.node) {
        // We took the place of an agent that died after it had done its part.
        return Ok(FirstRound::Running);
    }
    let state = alone::state(nodes.iter(), wall);
    let members: Vec<_> = nodes.into_iter().zip(seen).map(|(node, (_, agent))| (node, agent)).collect();
    let round = round(0, &Seats { members: &members, ..seats }, assigned, told);
    Ok(FirstRound::Alone { round: Box::new(round), state })
}

/// Who has come to a job with given ranks: for people who wait.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RollCall {
    /// Those who are here.
    pub here: Vec<NodeName>,
    /// The node ranks of which nobody has come yet.
    pub missing: Vec<NodeRank>,
    /// The agent that still holds the node rank of whoever asks, and may be dead.
    pub holder: Option<NodeName>,
}

/// Calls the roll, for the agent with this node rank.
///
/// # Errors
/// See [`Client`].
pub fn roll_call(
    store: &mut Client,
    (run_id, nodes): (&RunId, NodeCount),
    (own_rank, own): (NodeRank, &Node),
    own_name: NodeName,
) -> Result<RollCall, ClientError> {
    let (keys, round) = (Keys::fixed(run_id), RoundKeys::first_of_static(run_id));
    let ranks = || (0..nodes.get()).map(NodeRank);
    let names: Vec<String> = ranks().flat_map(|rank| [keys.claim(rank), round.role_info(rank)]).collect();
    let values = store.multi_get(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
    let mut roll = RollCall::default();
    for (rank, pair) in ranks().zip(values.chunks_exact(2)) {
        let claim = Claim::from_json(&pair[0]);
        if rank == own_rank {
            roll.holder = claim.filter(|claim| claim.node != *own).map(|claim| claim.name().without_rank());
            roll.here.push(own_name.clone());
            continue;
        }
        match claim {
            Some(claim) => roll.here.push(NodeName { rank: Some(rank), ..claim.name() }),
            None if pair[1].is_empty() || pair[0] == claim::TAKEN_BACK => roll.missing.push(rank),
            None => roll.here.push(NodeName::of_rank(rank)),
        }
    }
    Ok(roll)
}

struct Job<'a> {
    keys: Keys,
    round: RoundKeys,
    setup: &'a Setup<'a>,
}

impl Job<'_> {
    fn ranks(&self) -> impl Iterator<Item = NodeRank> {
        (0..self.setup.nodes.get()).map(NodeRank)
    }

    /// An agent that has not claimed the rank that it speaks for is torchrun's; as long as ranks are not assigned, it
    /// waits there.
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

    /// Those whose claims can be read, by node rank.
    fn claims(&self, talk: &mut Talk<'_, '_>) -> Result<Vec<Option<Claim>>, ExchangeError> {
        Ok(self.claim_texts(talk.store)?.iter().map(|text| Claim::from_json(text)).collect())
    }

    fn claim_texts(&self, store: &mut Client) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let keys: Vec<String> = self.ranks().map(|rank| self.keys.claim(rank)).collect();
        Ok(store.multi_get(&keys.iter().map(String::as_str).collect::<Vec<_>>())?)
    }

    /// Rank 0, when all are here and before anybody starts a worker: where all are ours, the job has more rounds.
    fn begin(
        &self,
        talk: &mut Talk<'_, '_>,
        misfit_since: &mut Option<Instant>,
    ) -> Result<Ready, ExchangeError> {
        let [claims, infos] = self.claims_and_infos(talk.store)?;
        let misfit = self.misfit_among(&claims);
        let is_leaving = |(claim, info): (&Vec<u8>, &Vec<u8>)| {
            claim == claim::TAKEN_BACK || (claim.is_empty() && info.is_empty())
        };
        if misfit.is_some() || claims.iter().zip(&infos).any(is_leaving) {
            return self.wait_for_rank(talk, misfit, misfit_since);
        }
        // A claim comes before its role_info.
        let claims = claims.iter().map(|text| Claim::from_json(text));
        let Some(claims) = claims.collect::<Option<Vec<_>>>() else {
            return Ok(Ready::Yes);
        };
        let nodes = claims.iter().map(|claim| &claim.node);
        let state = alone::state(nodes.clone(), self.setup.wall);
        talk.store.set(self.keys.state(), &pickle::encode(&state))?;
        talk.store.set(&self.keys.alone(), &alone::to_json(nodes, self.setup.wall))?;
        Ok(Ready::Yes)
    }

    /// The claim and the role_info of each node, as they stand at one moment.
    fn claims_and_infos(&self, store: &mut Client) -> Result<[Vec<Vec<u8>>; 2], ExchangeError> {
        let claims = self.ranks().map(|rank| self.keys.claim(rank));
        let keys: Vec<String> = claims.chain(self.ranks().map(|rank| self.round.role_info(rank))).collect();
        let mut claims = store.multi_get(&keys.iter().map(String::as_str).collect::<Vec<_>>())?;
        let infos = claims.split_off(keys.len() / 2);
        Ok([claims, infos])
    }

    /// Why the others' part has not come: they are not here.
    fn too_few(&self, talk: &mut Talk<'_, '_>) -> Result<RendezvousError, ExchangeError> {
        let setup = self.setup;
        let job = (setup.run_id, setup.nodes);
        let RollCall { here, missing, .. } =
            roll_call(talk.store, job, (setup.node_rank, setup.node), self.name())?;
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

    /// What messages call this node, which says its rank itself.
    fn name(&self) -> NodeName {
        NodeName::of_node(self.setup.node, Some(&self.setup.descriptor.host), None)
    }
}

fn member(rank: NodeRank, claim: Option<Claim>) -> (Node, Option<Descriptor>) {
    claim.map_or_else(|| (unknown_node(rank), None), |claim| (claim.node, Some(claim.agent)))
}

/// Stands for a node that has not said who it is.
fn unknown_node(rank: NodeRank) -> Node {
    Node { addr: String::new(), pid: 0, local_id: i64::from(rank.0) }
}
