//! What the members of a completed round tell each other before their workers start (contract 5.6): where the workers
//! meet, and which ranks they have. torchrun's members take part in it, and see what they expect.
//!
//! Nothing here waits for longer than a slice without letting its caller do something else: give signs of life, or end
//! the exchange because a member has gone.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clock for the limits of its own waits")]

mod master;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rankrun_contract::env::Master;
use rankrun_contract::rank::{LocalWorldSize, NodeCount, NodeRank};

use super::error::RendezvousError;
use super::keys::{RendezvousKeys, RoundKeys};
use super::roles::{RankAssignment, RoleInfo, assign};
use super::torchrun_compat::{MasterAddressCache, Members};
use super::training_store::TrainingStore;
use super::{Member, NodeName, Round};
use crate::store::client::{Client, ClientError};

/// The longest wait without a look at anything else.
const SLICE: Duration = Duration::from_millis(250);

/// One completed round, as this agent takes part in it.
pub struct Exchange<'a> {
    /// Of the job.
    pub keys: &'a RendezvousKeys,
    /// Which round.
    pub round: u64,
    /// `--role`
    pub role: &'a str,
    /// Workers of this node.
    pub workers: LocalWorldSize,
    /// This node's index in `members`.
    pub node_rank: NodeRank,
    /// All members by node rank.
    pub members: &'a Members,
    /// How long each wait may take.
    pub read_timeout: Duration,
    /// The number in this agent's greetings.
    pub nonce: u32,
    /// Looks up the address of another member's store; bounded in time.
    pub resolve: &'a dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>>,
}

/// The caller ends the exchange: its round cannot come about any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aborted;

/// What is done between two slices of a wait: at least every 250 ms.
pub type Between<'a> = dyn FnMut(&mut Client) -> Result<(), Aborted> + 'a;

/// Why there is no exchange.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// Whoever is called between the waits has ended it.
    #[error("the exchange was ended")]
    Aborted,
    /// The rendezvous store fails.
    #[error(transparent)]
    Store(#[from] ClientError),
    /// It cannot succeed: for the user.
    #[error(transparent)]
    Failed(#[from] RendezvousError),
}

impl From<Aborted> for ExchangeError {
    fn from(_: Aborted) -> Self {
        Self::Aborted
    }
}

/// Takes part in the exchange of one round. Node rank 0 opens and resets the `training_store`; the other members read
/// from its variant how they learn the address. `memory` is the same for all rounds of a job.
///
/// # Errors
/// See [`ExchangeError`]. After [`ExchangeError::Failed`] no later round can do better.
pub fn exchange(
    store: &mut Client,
    plan: &Exchange<'_>,
    training_store: &mut TrainingStore,
    memory: &mut MasterAddressCache,
    between: &mut Between<'_>,
) -> Result<Round, ExchangeError> {
    let mut talk = Talk { store, between };
    let (master, refresh) = master::agree(plan, &mut talk, training_store, memory)?;
    let round_keys = plan.keys.round(plan.round);
    let seats = Seats {
        keys: &round_keys,
        role: plan.role,
        workers: plan.workers,
        node_rank: plan.node_rank,
        members: plan.members,
        limit: plan.read_timeout,
    };
    let mut refreshed =
        |talk: &mut Talk<'_, '_>| refresh.perform(plan, talk, training_store).map(|()| Ready::Yes);
    let (assigned, told) = seats.take(&mut talk, &mut refreshed)?;
    Ok(round(plan.round, &seats, assigned, Told { master, workers: told }))
}

/// A connection, and what is done between two slices of a wait on it.
pub(super) struct Talk<'a, 'b> {
    pub(super) store: &'a mut Client,
    pub(super) between: &'a mut Between<'b>,
}

impl Talk<'_, '_> {
    /// Until all keys are there; `false` where `limit` is over before.
    pub(super) fn wait(&mut self, keys: &[&str], limit: Duration) -> Result<bool, ExchangeError> {
        let deadline = Instant::now() + limit;
        loop {
            let now = Instant::now();
            if self.store.wait(keys, deadline.min(now + SLICE))? {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            self.pause()?;
        }
    }

    /// As [`Self::wait`], for one slice at most, and nothing between.
    pub(super) fn wait_slice(&mut self, key: &str, deadline: Instant) -> Result<bool, ExchangeError> {
        Ok(self.store.wait(&[key], deadline.min(Instant::now() + SLICE))?)
    }

    /// What the caller does between two slices.
    pub(super) fn pause(&mut self) -> Result<(), ExchangeError> {
        Ok((self.between)(self.store)?)
    }

    /// The value of a key that is there, or comes in time.
    pub(super) fn read(&mut self, key: &str, limit: Duration) -> Result<Option<Vec<u8>>, ExchangeError> {
        if self.wait(&[key], limit)? { Ok(Some(self.store.get(key)?)) } else { Ok(None) }
    }
}

/// The exchange of ranks: what torch calls assigning.
pub(super) struct Seats<'a> {
    pub(super) keys: &'a RoundKeys,
    pub(super) role: &'a str,
    pub(super) workers: LocalWorldSize,
    pub(super) node_rank: NodeRank,
    pub(super) members: &'a Members,
    pub(super) limit: Duration,
}

/// What members have told.
pub(super) struct Told {
    pub(super) master: Master,
    /// By node rank; empty where only rank 0 knows.
    pub(super) workers: Vec<LocalWorldSize>,
}

type Step<'a> = dyn FnMut(&mut Talk<'_, '_>) -> Result<Ready, ExchangeError> + 'a;

/// Whether the ranks may be assigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ready {
    /// All members that have spoken belong to the job.
    Yes,
    /// One did not, and is gone: the members are asked again.
    AskAgain,
}

impl Seats<'_> {
    /// Says how many workers we have, and learns their ranks; as rank 0 also those of all others. `all_here` is done by
    /// rank 0 when every member has spoken, before anybody can start a worker.
    pub(super) fn take(
        &self,
        talk: &mut Talk<'_, '_>,
        all_here: &mut Step<'_>,
    ) -> Result<(RankAssignment, Vec<LocalWorldSize>), ExchangeError> {
        let info = RoleInfo { role: self.role.to_owned(), workers: self.workers };
        talk.store.set(&self.keys.role_info(self.node_rank), &info.to_json(self.node_rank))?;
        if self.node_rank == NodeRank(0) {
            loop {
                let infos = self.infos(talk)?;
                if all_here(talk)? == Ready::Yes {
                    return self.assign(talk, &infos);
                }
            }
        }
        let what = "ranks of this node's workers";
        let Some(text) = talk.read(&self.keys.assigned_ranks(self.node_rank), self.limit)? else {
            let nodes = vec![name(self.members, 0)];
            return Err(RendezvousError::NoAnswer { what, nodes, waited: self.limit }.into());
        };
        let assigned = RankAssignment::from_json(&text, self.workers)
            .ok_or_else(|| RendezvousError::Unreadable { what: "the ranks", node: name(self.members, 0) })?;
        Ok((assigned, Vec::new()))
    }

    fn infos(&self, talk: &mut Talk<'_, '_>) -> Result<Vec<RoleInfo>, ExchangeError> {
        let keys: Vec<String> = ranks(self.members.len()).map(|rank| self.keys.role_info(rank)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let (complete, texts) = loop {
            let complete = talk.wait(&keys, self.limit)?;
            let texts = talk.store.multi_get(&keys)?;
            // A node that refuses itself takes its part back.
            if !complete || texts.iter().all(|text| !text.is_empty()) {
                break (complete, texts);
            }
        };
        if !complete {
            let silent = texts.iter().enumerate().filter(|(_, text)| text.is_empty());
            let nodes = silent.map(|(index, _)| name(self.members, index)).collect();
            let what = "number of workers";
            return Err(RendezvousError::NoAnswer { what, nodes, waited: self.limit }.into());
        }
        let read = |(index, (rank, text)): (usize, (NodeRank, &Vec<u8>))| {
            RoleInfo::from_json(text, rank).ok_or_else(|| RendezvousError::Unreadable {
                what: "the number of workers",
                node: name(self.members, index),
            })
        };
        Ok(ranks(self.members.len()).zip(&texts).enumerate().map(read).collect::<Result<_, _>>()?)
    }

    fn assign(
        &self,
        talk: &mut Talk<'_, '_>,
        infos: &[RoleInfo],
    ) -> Result<(RankAssignment, Vec<LocalWorldSize>), ExchangeError> {
        let assigned = assign(infos).ok_or(RendezvousError::TooManyWorkers)?;
        let pairs: Vec<(String, Vec<u8>)> = ranks(assigned.len())
            .zip(&assigned)
            .map(|(rank, one)| (self.keys.assigned_ranks(rank), one.to_json()))
            .collect();
        let pairs: Vec<(&str, &[u8])> =
            pairs.iter().map(|(key, text)| (key.as_str(), text.as_slice())).collect();
        talk.store.multi_set(&pairs)?;
        // `members` has this node.
        Ok((assigned[0], infos.iter().map(|info| info.workers).collect()))
    }
}

/// The result, for the agent.
pub(super) fn round(number: u64, seats: &Seats<'_>, assigned: RankAssignment, told: Told) -> Round {
    let members = ranks(seats.members.len()).zip(seats.members).map(|(node_rank, (_, descriptor))| Member {
        node_rank,
        name: name(seats.members, node_rank.index()),
        workers: told.workers.get(node_rank.index()).copied().or(descriptor.as_ref().map(|one| one.workers)),
    });
    let nodes = u32::try_from(seats.members.len()).ok().and_then(NodeCount::new);
    Round {
        number,
        node_rank: seats.node_rank,
        nodes: nodes.expect("a round has this node, and no more than a request has keys"),
        base_rank: assigned.base_rank,
        world_size: assigned.world_size,
        base_role_rank: assigned.base_role_rank,
        role_world_size: assigned.role_world_size,
        master: told.master,
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
