//! The members of a completed round exchange the master address and the ranks of their workers, before the workers
//! start (contract 5.6). torchrun's members take part, and find the keys that they expect.
//!
//! The exchange has a connection of its own, so that it can be dropped at any time: when its round is over before it
//! ends, or when the agent leaves.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clock for the limits of its own waits")]

mod master;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rankrun_contract::env::Master;
use rankrun_contract::rank::{LocalWorldSize, NodeCount, NodeRank};

use super::error::RendezvousError;
use super::training_store::TrainingStore;
use crate::blocking::call_on_thread;
use crate::store::client::{Client, ClientError};
use rankrun_core::rendezvous::descriptor::AgentDescriptor;
use rankrun_core::rendezvous::keys::{RendezvousKeys, RoundKeys};
use rankrun_core::rendezvous::roles::{RankAssignment, RoleInfo, assign};
use rankrun_core::rendezvous::state::Node;
use rankrun_core::rendezvous::torchrun_compat::{MasterAddressCache, Members};
use rankrun_core::rendezvous::{Member, NodeName, Round};

/// One completed round, as this agent takes part in it.
pub(crate) struct RankExchange {
    /// Keys of the job.
    pub keys: RendezvousKeys,
    /// Number of the round.
    pub round: u64,
    /// `--role`
    pub role: String,
    /// Workers of this node.
    pub workers: LocalWorldSize,
    /// This node's index in `members`.
    pub node_rank: NodeRank,
    /// All members by node rank.
    pub members: Vec<(Node, Option<AgentDescriptor>)>,
    /// Time limit of each wait.
    pub read_timeout: Duration,
    /// The client id of this agent's connections.
    pub nonce: u32,
    /// Looks up the address of another member's store; bounded in time.
    pub resolve: Resolve,
    /// The training store. Node rank 0 opens and resets it; the other members read from its variant how they learn the
    /// address.
    pub training_store: SharedTrainingStore,
    /// The same for all rounds of a job.
    pub address_cache: SharedAddressCache,
}

/// A name look-up.
pub(crate) type Resolve = Arc<dyn Fn(&str, u16) -> ResolveFuture + Send + Sync>;

/// The addresses of a name.
pub(crate) type ResolveFuture = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// The training store of this node. A call that is under way is finished before the next round's.
pub(crate) type SharedTrainingStore = Arc<tokio::sync::Mutex<TrainingStore>>;

/// Calls the store on a thread of its own: a store that is busy must not hold up the other tasks.
async fn call_store<T: Send + 'static>(
    store: &SharedTrainingStore,
    call: impl FnOnce(&mut TrainingStore) -> Result<T, RendezvousError> + Send + 'static,
) -> Result<T, RendezvousError> {
    let mut store = Arc::clone(store).lock_owned().await;
    let failed = |source| RendezvousError::System { what: "ask the training store", source };
    call_on_thread("training-store", move || call(&mut store)).await.map_err(failed)?
}

/// The master addresses that torchrun agents have cached, as far as this agent knows.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedAddressCache(Arc<Mutex<MasterAddressCache>>);

impl SharedAddressCache {
    /// The cache, for the calling task or thread alone.
    pub(crate) fn lock(&self) -> MutexGuard<'_, MasterAddressCache> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why no ranks were assigned.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AssignRanksError {
    /// The rendezvous store fails.
    #[error(transparent)]
    Store(#[from] ClientError),
    /// No later attempt can succeed: for the user.
    #[error(transparent)]
    Failed(#[from] RendezvousError),
}

/// Takes part in the exchange of one round, over a connection that has no other user.
///
/// # Errors
/// See [`AssignRanksError`]. After [`AssignRanksError::Failed`] no later round can do better.
pub(crate) async fn assign_ranks(
    store: &mut Client,
    exchange: &RankExchange,
) -> Result<Round, AssignRanksError> {
    let (master, refresh) = master::agree(exchange, store).await?;
    let keys = exchange.keys.round(exchange.round);
    let roles = RoleExchange {
        keys: &keys,
        role: &exchange.role,
        workers: exchange.workers,
        node_rank: exchange.node_rank,
        members: &exchange.members,
        limit: exchange.read_timeout,
    };
    roles.publish_own(store).await?;
    let (assigned, workers) = if exchange.node_rank == NodeRank(0) {
        let infos = roles.read_all(store).await?;
        refresh.perform(exchange).await?;
        roles.publish_ranks(store, &infos).await?
    } else {
        (roles.read_own_ranks(store).await?, Vec::new())
    };
    Ok(completed_round(exchange.round, &roles, assigned, (master, workers)))
}

/// The value of a key that exists, or is written in time.
async fn read(store: &mut Client, key: &str, limit: Duration) -> Result<Option<Vec<u8>>, ClientError> {
    if store.wait(&[key], Instant::now() + limit).await? { Ok(Some(store.get(key).await?)) } else { Ok(None) }
}

/// The exchange of roles and ranks: what torch calls assigning.
pub(super) struct RoleExchange<'a> {
    pub(super) keys: &'a RoundKeys,
    pub(super) role: &'a str,
    pub(super) workers: LocalWorldSize,
    pub(super) node_rank: NodeRank,
    pub(super) members: &'a Members,
    pub(super) limit: Duration,
}

impl RoleExchange<'_> {
    /// Publishes the role and the number of workers of this node.
    pub(super) async fn publish_own(&self, store: &mut Client) -> Result<(), ClientError> {
        let info = RoleInfo { role: self.role.to_owned(), workers: self.workers };
        store.set(&self.keys.role_info(self.node_rank), &info.to_json(self.node_rank)).await
    }

    /// Reads the ranks that rank 0 assigns to this node.
    pub(super) async fn read_own_ranks(
        &self,
        store: &mut Client,
    ) -> Result<RankAssignment, AssignRanksError> {
        let what = "ranks of this node's workers";
        let key = self.keys.assigned_ranks(self.node_rank);
        let Some(text) = read(store, &key, self.limit).await? else {
            let nodes = vec![name(self.members, 0)];
            return Err(RendezvousError::NoAnswer { what, nodes, waited: self.limit }.into());
        };
        let unreadable = || RendezvousError::Unreadable { what: "the ranks", node: name(self.members, 0) };
        Ok(RankAssignment::from_json(&text, self.workers).ok_or_else(unreadable)?)
    }

    /// Reads the roles of all members, once all have published theirs.
    pub(super) async fn read_all(&self, store: &mut Client) -> Result<Vec<RoleInfo>, AssignRanksError> {
        let keys: Vec<String> = ranks(self.members.len()).map(|rank| self.keys.role_info(rank)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let (is_complete, texts) = loop {
            let is_complete = store.wait(&keys, Instant::now() + self.limit).await?;
            let texts = store.multi_get(&keys).await?;
            // A node that refuses itself removes its role again.
            if !is_complete || texts.iter().all(|text| !text.is_empty()) {
                break (is_complete, texts);
            }
        };
        if !is_complete {
            let silent = texts.iter().enumerate().filter(|(_, text)| text.is_empty());
            let nodes = silent.map(|(index, _)| name(self.members, index)).collect();
            let what = "number of workers";
            return Err(RendezvousError::NoAnswer { what, nodes, waited: self.limit }.into());
        }
        let parse = |(index, (rank, text)): (usize, (NodeRank, &Vec<u8>))| {
            RoleInfo::from_json(text, rank).ok_or_else(|| RendezvousError::Unreadable {
                what: "the number of workers",
                node: name(self.members, index),
            })
        };
        Ok(ranks(self.members.len()).zip(&texts).enumerate().map(parse).collect::<Result<_, _>>()?)
    }

    /// As rank 0: publishes the ranks of all members. Returns the own ones, and the number of workers of each member.
    pub(super) async fn publish_ranks(
        &self,
        store: &mut Client,
        infos: &[RoleInfo],
    ) -> Result<(RankAssignment, Vec<LocalWorldSize>), AssignRanksError> {
        let assigned = assign(infos).ok_or(RendezvousError::TooManyWorkers)?;
        let pairs: Vec<(String, Vec<u8>)> = ranks(assigned.len())
            .zip(&assigned)
            .map(|(rank, one)| (self.keys.assigned_ranks(rank), one.to_json()))
            .collect();
        let pairs: Vec<(&str, &[u8])> =
            pairs.iter().map(|(key, text)| (key.as_str(), text.as_slice())).collect();
        store.multi_set(&pairs).await?;
        // `members` has this node.
        Ok((assigned[0], infos.iter().map(|info| info.workers).collect()))
    }
}

/// The result, for the agent. `workers` has the number of workers by node rank; it is empty if only rank 0 knows them.
pub(super) fn completed_round(
    number: u64,
    roles: &RoleExchange<'_>,
    assigned: RankAssignment,
    (master, workers): (Master, Vec<LocalWorldSize>),
) -> Round {
    let members = ranks(roles.members.len()).zip(roles.members).map(|(node_rank, (_, descriptor))| Member {
        node_rank,
        name: name(roles.members, node_rank.index()),
        workers: workers.get(node_rank.index()).copied().or(descriptor.as_ref().map(|one| one.workers)),
    });
    let nodes = u32::try_from(roles.members.len()).ok().and_then(NodeCount::new);
    Round {
        number,
        node_rank: roles.node_rank,
        nodes: nodes.expect("a round has this node, and no more than a request has keys"),
        base_rank: assigned.base_rank,
        world_size: assigned.world_size,
        base_role_rank: assigned.base_role_rank,
        role_world_size: assigned.role_world_size,
        master,
        members: members.collect(),
        // Known to the caller alone.
        interface: None,
    }
}

fn ranks(members: usize) -> impl Iterator<Item = NodeRank> {
    (0..).map(NodeRank).take(members)
}

/// What messages call a member.
pub(super) fn name(members: &Members, index: usize) -> NodeName {
    let rank = NodeRank(u32::try_from(index).unwrap_or(u32::MAX));
    members.get(index).map_or_else(
        || NodeName::of_rank(rank),
        |(node, agent)| NodeName::of_node(node, agent.as_ref().map(|agent| agent.host.as_str()), Some(rank)),
    )
}
