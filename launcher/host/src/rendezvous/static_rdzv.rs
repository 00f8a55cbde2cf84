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

pub(crate) use authority::AuthorityCheck;
pub(crate) use claim::{claim_name, release_ranks, withdraw_claims};

use std::time::{Duration, Instant};

use rankrun_contract::env::Master;
use rankrun_contract::rank::{LocalWorldSize, NodeCount, NodeRank, RunId};

use super::assign_ranks::{AssignRanksError, RoleExchange, completed_round};
use super::error::RendezvousError;
use crate::store::client::{Client, ClientError};
use rankrun_core::rendezvous::descriptor::AgentDescriptor;
use rankrun_core::rendezvous::keys::{RendezvousKeys, RoundKeys};
use rankrun_core::rendezvous::pickle;
use rankrun_core::rendezvous::roles::{RankAssignment, RoleInfo};
use rankrun_core::rendezvous::state::{Node, RendezvousState, Timestamp};
use rankrun_core::rendezvous::{NodeName, Round};

use claim::Claim;

/// Counter of the agents that have joined, incremented by torch's clients (contract 5.9).
const INIT: &str = "init/";

/// This node's parameters of a static job.
#[derive(Debug, Clone)]
pub(crate) struct StaticSetup {
    /// Run id of the job, part of all keys.
    pub run_id: RunId,
    /// Name of this agent in the shared state.
    pub node: Node,
    /// The descriptor that this agent publishes.
    pub descriptor: AgentDescriptor,
    /// This node's rank, from `--node-rank`.
    pub node_rank: NodeRank,
    /// Number of nodes of the job.
    pub nodes: NodeCount,
    /// Role of this node's workers, from `--role`.
    pub role: String,
    /// Number of workers on this node.
    pub workers: LocalWorldSize,
    /// Master address of the workers, as given to this node.
    pub master: Master,
    /// How long to wait for the other nodes.
    pub timeout: Duration,
    /// An agent without a heartbeat for this long is dead.
    pub lease: Duration,
    /// Local time of day, written as torch's heartbeat in the shared state.
    pub wall: Timestamp,
}

/// How a static job starts on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FirstRound {
    /// torchrun agents take part: the job has only this round.
    Mixed(Round),
    /// All agents are rankrun's. This round is complete, as the shared state under [`RendezvousKeys::static_keys`]
    /// says.
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

/// Takes part in the first round, over a connection to the endpoint that has no other user. Meanwhile the caller sends
/// this agent's heartbeats under [`RendezvousKeys::static_keys`], and repeats an [`AuthorityCheck`] over another
/// connection.
///
/// # Errors
/// See [`AssignRanksError`]: not all nodes joined in time, or some do not belong to the job.
pub(crate) async fn first_round(
    store: &mut Client,
    setup: &StaticSetup,
) -> Result<FirstRound, AssignRanksError> {
    let job = StaticJob::of(setup);
    job.refuse_torchrun(store).await?;
    job.claim(store).await?;
    if store.check(&[&job.keys.rankrun_only()]).await? {
        return Ok(FirstRound::Running);
    }
    // torch's host stops waiting too early if an agent is counted twice. This agent may have been counted before a
    // reconnect, or as the dead agent that it replaces.
    if store.get(&job.round.role_info(setup.node_rank)).await?.is_empty() {
        store.add(INIT, 1).await?;
    }
    let first = job.exchange_ranks(store).await?;
    // Node rank 0 may have claimed its rank since the last check.
    AuthorityCheck::of(setup).perform(setup, store).await?;
    Ok(first)
}

/// The nodes that have joined a static job, for the user's waiting line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct JoinProgress {
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
pub(crate) async fn read_join_progress(
    store: &mut Client,
    (run_id, nodes): (&RunId, NodeCount),
    (own_rank, own): (NodeRank, &Node),
    own_name: NodeName,
) -> Result<JoinProgress, ClientError> {
    let (keys, round) = (RendezvousKeys::static_keys(run_id), RoundKeys::first_of_static(run_id));
    let ranks = || (0..nodes.get()).map(NodeRank);
    let names: Vec<String> = ranks().flat_map(|rank| [keys.claim(rank), round.role_info(rank)]).collect();
    let values = store.multi_get(&names.iter().map(String::as_str).collect::<Vec<_>>()).await?;
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
    setup: &'a StaticSetup,
}

impl<'a> StaticJob<'a> {
    fn of(setup: &'a StaticSetup) -> Self {
        Self {
            keys: RendezvousKeys::static_keys(&setup.run_id),
            round: RoundKeys::first_of_static(&setup.run_id),
            setup,
        }
    }

    fn ranks(&self) -> impl Iterator<Item = NodeRank> + use<> {
        (0..self.setup.nodes.get()).map(NodeRank)
    }

    /// Fails if a torchrun agent holds this node rank. An agent with a published role but no claim for its rank is
    /// torchrun's. It waits in the rank exchange until ranks are assigned.
    async fn refuse_torchrun(&self, store: &mut Client) -> Result<(), AssignRanksError> {
        let node_rank = self.setup.node_rank;
        let keys = [
            self.keys.claim(node_rank),
            self.round.role_info(node_rank),
            self.round.assigned_ranks(node_rank),
        ];
        let values = store.multi_get(&keys.each_ref().map(String::as_str)).await?;
        let is_there: Vec<bool> = values.iter().map(|value| !value.is_empty()).collect();
        if is_there != [false, true, false] {
            return Ok(());
        }
        let theirs = Box::new(NodeName::of_host("another node, which runs torchrun"));
        Err(RendezvousError::SameNodeRank { node_rank, ours: Box::new(self.name()), theirs }.into())
    }

    /// The exchange of roles and ranks, and the state with which the job continues.
    async fn exchange_ranks(&self, store: &mut Client) -> Result<FirstRound, AssignRanksError> {
        let setup = self.setup;
        // The other nodes' names are known after all have joined.
        let unknown: Vec<_> = self.ranks().map(|rank| member(rank, None)).collect();
        let roles = RoleExchange {
            keys: &self.round,
            role: &setup.role,
            workers: setup.workers,
            node_rank: setup.node_rank,
            members: &unknown,
            limit: setup.timeout,
        };
        roles.publish_own(store).await?;
        let (assigned, workers) = match self.assign_ranks(store, &roles).await {
            Err(AssignRanksError::Failed(RendezvousError::NoAnswer { .. })) => {
                return Err(self.too_few(store).await?.into());
            }
            assigned => assigned?,
        };
        let begun = store.get(&self.keys.rankrun_only()).await?;
        let claims = self.claim_texts(store).await?;
        let claims = claims.iter().map(|text| Claim::from_json(text));
        let seen: Vec<_> = self.ranks().zip(claims).map(|(rank, claim)| member(rank, claim)).collect();
        let agreed = (setup.master.clone(), workers);
        if begun.is_empty() {
            let roles = RoleExchange { members: &seen, ..roles };
            return Ok(FirstRound::Mixed(completed_round(0, &roles, assigned, agreed)));
        }
        let unreadable = || RendezvousError::Unreadable {
            what: "the list of nodes",
            node: NodeName::of_rank(NodeRank(0)),
        };
        let (nodes, wall) = alone::from_json(&begun, seen.len()).ok_or_else(unreadable)?;
        if nodes.get(setup.node_rank.index()) != Some(&setup.node) {
            // This agent replaced an agent that died after it had published its part.
            return Ok(FirstRound::Running);
        }
        let state = alone::state(nodes.iter(), wall);
        let members: Vec<_> = nodes.into_iter().zip(seen).map(|(node, (_, agent))| (node, agent)).collect();
        let round = completed_round(0, &RoleExchange { members: &members, ..roles }, assigned, agreed);
        Ok(FirstRound::Alone { round: Box::new(round), state })
    }

    /// The own ranks, and as node rank 0 the number of workers of each node.
    async fn assign_ranks(
        &self,
        store: &mut Client,
        roles: &RoleExchange<'_>,
    ) -> Result<(RankAssignment, Vec<LocalWorldSize>), AssignRanksError> {
        if self.setup.node_rank != NodeRank(0) {
            return Ok((roles.read_own_ranks(store).await?, Vec::new()));
        }
        let mut misfit_since = None;
        loop {
            let infos = roles.read_all(store).await?;
            if self.begin(store, &infos, &mut misfit_since).await? == JoinedNodes::BelongToJob {
                return roles.publish_ranks(store, &infos).await;
            }
        }
    }

    async fn claim_texts(&self, store: &mut Client) -> Result<Vec<Vec<u8>>, ClientError> {
        let keys: Vec<String> = self.ranks().map(|rank| self.keys.claim(rank)).collect();
        store.multi_get(&keys.iter().map(String::as_str).collect::<Vec<_>>()).await
    }

    /// Node rank 0 starts the job, before any agent starts a worker. If all agents are rankrun's, the job can have more
    /// rounds.
    async fn begin(
        &self,
        store: &mut Client,
        read_infos: &[RoleInfo],
        misfit_since: &mut Option<Instant>,
    ) -> Result<JoinedNodes, AssignRanksError> {
        let [claims, infos] = self.claims_and_infos(store).await?;
        let misfit = self.first_mismatch(&claims);
        let is_leaving = |(claim, info): (&Vec<u8>, &Vec<u8>)| {
            claim == claim::WITHDRAWN_CLAIM || (claim.is_empty() && info.is_empty())
        };
        if misfit.is_some() || claims.iter().zip(&infos).any(is_leaving) {
            return self.wait_for_rank(store, misfit, misfit_since).await;
        }
        // Another agent may have taken the rank of a dead one since the infos were read.
        let mut pairs = self.ranks().zip(&infos).zip(read_infos);
        if !pairs.all(|((rank, text), read)| RoleInfo::from_json(text, rank).as_ref() == Some(read)) {
            return Ok(JoinedNodes::HaveChanged);
        }
        // An agent writes its claim before its role_info.
        let claims = claims.iter().map(|text| Claim::from_json(text));
        let Some(claims) = claims.collect::<Option<Vec<_>>>() else {
            return Ok(JoinedNodes::BelongToJob);
        };
        let nodes = claims.iter().map(|claim| &claim.node);
        let state = alone::state(nodes.clone(), self.setup.wall);
        let note = alone::to_json(nodes, self.setup.wall);
        store.set(self.keys.state(), &pickle::encode(&state)).await?;
        store.set(&self.keys.rankrun_only(), &note).await?;
        Ok(JoinedNodes::BelongToJob)
    }

    /// Claims and role_infos of all nodes, read in one request so that they are consistent.
    async fn claims_and_infos(&self, store: &mut Client) -> Result<[Vec<Vec<u8>>; 2], ClientError> {
        let claims = self.ranks().map(|rank| self.keys.claim(rank));
        let keys: Vec<String> = claims.chain(self.ranks().map(|rank| self.round.role_info(rank))).collect();
        let mut claims = store.multi_get(&keys.iter().map(String::as_str).collect::<Vec<_>>()).await?;
        let infos = claims.split_off(keys.len() / 2);
        Ok([claims, infos])
    }

    /// The error for agents that have not published their part: too few nodes joined.
    async fn too_few(&self, store: &mut Client) -> Result<RendezvousError, AssignRanksError> {
        let setup = self.setup;
        let job = (&setup.run_id, setup.nodes);
        let JoinProgress { here, missing, .. } =
            read_join_progress(store, job, (setup.node_rank, &setup.node), self.name()).await?;
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
        NodeName::of_node(&self.setup.node, Some(&self.setup.descriptor.host), None)
    }
}

/// Whether the ranks may be assigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JoinedNodes {
    /// All nodes that have joined belong to the job.
    BelongToJob,
    /// One did not belong to the job and has left, or one leaves or was replaced. The roles must be read again.
    HaveChanged,
}

fn member(rank: NodeRank, claim: Option<Claim>) -> (Node, Option<AgentDescriptor>) {
    claim.map_or_else(|| (unknown_node(rank), None), |claim| (claim.node, Some(claim.agent)))
}

/// Placeholder for a node that has published nothing about itself.
fn unknown_node(rank: NodeRank) -> Node {
    Node { addr: String::new(), pid: 0, local_id: i64::from(rank.0) }
}
