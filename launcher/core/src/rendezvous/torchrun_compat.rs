//! What torchrun's agents need so that a restart works (contract 8.1, 8.2). Pure: it observes states and published
//! keys, and decides where the workers' store is.
//!
//! An agent of torchrun 2.15 reads the master address in its first round. It reads it again when it becomes rank 0 for
//! the first time: then it opens its own store, and publishes its address in that round only. From then on it uses the
//! address that it has, and ignores the published one.
//!
//! So the workers of a round can meet only at the address that every torchrun member has cached. A member without a
//! cached address reads the round's key. [`MasterAddressCache`] models the cache of each torchrun agent.

use std::collections::BTreeMap;
use std::fmt;

use rankrun_contract::env::Master;

use super::descriptor::AgentDescriptor;
use super::state::{Node, RendezvousState};
use super::text::escape_for_terminal;

/// Number of rounds of other agents that are remembered.
const MAX_COMPLETED_ROUNDS: usize = 32;

/// Longest host name or address that is accepted, in bytes; no name system has longer names.
const MAX_ADDR: usize = 255;

/// The published master address of the workers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublishedAddress {
    /// Host name or IP address, without brackets.
    pub addr: String,
    /// TCP port of the workers' store.
    pub port: u16,
}

impl fmt::Display for PublishedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.addr.contains(':') {
            write!(f, "[{}]:{}", self.addr, self.port)
        } else {
            write!(f, "{}:{}", self.addr, self.port)
        }
    }
}

impl PublishedAddress {
    /// Parses the two values from the store; `None` if they are not an address, or not safe for a worker's environment.
    #[must_use]
    pub fn parse(addr: &[u8], port: &[u8]) -> Option<Self> {
        let addr = std::str::from_utf8(addr).ok()?;
        let is_loud = addr.chars().any(char::is_whitespace) || escape_for_terminal(addr, MAX_ADDR) != addr;
        if addr.is_empty() || addr.len() > MAX_ADDR || is_loud {
            return None;
        }
        let port =
            std::str::from_utf8(port).ok().filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()))?;
        let port = port.parse().ok().filter(|port| *port != 0)?;
        Some(Self { addr: addr.to_owned(), port })
    }

    /// The address for the workers' environment.
    #[must_use]
    pub fn master(&self, agent_store: bool) -> Master {
        Master { addr: self.addr.clone(), port: self.port, uses_agent_store: agent_store }
    }
}

impl From<&Master> for PublishedAddress {
    fn from(master: &Master) -> Self {
        Self { addr: master.addr.clone(), port: master.port }
    }
}

/// Members of a round by node rank. A member without a descriptor is a torchrun agent.
pub type Members = [(Node, Option<AgentDescriptor>)];

/// Where the workers of a round meet if rank 0 is a rankrun agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MasterChoice {
    /// In the store of rank 0.
    Own,
    /// At the previous address. The torchrun members know no other one, and the member with that store takes part.
    Stay(PublishedAddress),
}

/// A torchrun member has cached an address at which the workers cannot meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleMasterAddress {
    /// The torchrun member with the wrong address.
    pub peer: Node,
    /// The address that it has cached.
    pub cached_address: PublishedAddress,
}

/// The master addresses that torchrun's agents have cached, as far as this agent knows.
#[derive(Debug, Clone, Default)]
pub struct MasterAddressCache {
    /// The master address that each torchrun agent has cached.
    cached_address: BTreeMap<Node, PublishedAddress>,
    /// The node that hosts the store at an address.
    hosts: BTreeMap<PublishedAddress, Node>,
    /// Members of complete rounds by rank. This node may not have been in them.
    completed_rounds: BTreeMap<u64, Vec<Node>>,
}

impl MasterAddressCache {
    /// Observes a state. A complete round tells which agents have learned its master address. The caller passes in
    /// every state that it reads, before and between its own rounds.
    pub fn record_state(&mut self, state: &RendezvousState) {
        if !state.complete || self.completed_rounds.contains_key(&state.round) {
            return;
        }
        let mut members: Vec<_> = state.participants.iter().collect();
        members.sort_by_key(|(_, rank)| *rank);
        self.completed_rounds
            .insert(state.round, members.into_iter().map(|(node, _)| node.clone()).collect());
        if self.completed_rounds.len() > MAX_COMPLETED_ROUNDS {
            self.completed_rounds.pop_first();
        }
    }

    /// Whether the keys of earlier rounds matter: a torchrun member took part in a round without this agent, or may
    /// have.
    #[must_use]
    pub fn needs_history(&self, round: u64, members: &Members) -> bool {
        let unknown = |(node, descriptor): &(Node, Option<AgentDescriptor>)| {
            descriptor.is_none() && !self.cached_address.contains_key(node)
        };
        let was_seen =
            |node: &Node| self.completed_rounds.range(..round).any(|(_, nodes)| nodes.contains(node));
        round > 0 && members.iter().any(|member| unknown(member) && was_seen(&member.0))
    }

    /// Learns the addresses that were published before this round.
    pub fn learn_history(&mut self, round: u64, published: &BTreeMap<u64, PublishedAddress>) {
        for (past, nodes) in self.completed_rounds.range(..round) {
            let Some((_, place)) = published.range(..=*past).next_back() else { continue };
            for node in nodes {
                self.cached_address.entry(node.clone()).or_insert_with(|| place.clone());
            }
            let host = nodes.iter().find(|node| node.addr == place.addr);
            if let Some(host) = host {
                self.hosts.entry(place.clone()).or_insert_with(|| host.clone());
            }
        }
    }

    /// Chooses where the workers of a round meet. This agent, `me`, is rank 0.
    ///
    /// # Errors
    /// No address suits all torchrun members.
    pub fn choose(&self, me: &Node, members: &Members) -> Result<MasterChoice, StaleMasterAddress> {
        let mut caching_peers = self.cached_by(members);
        let Some((peer, place)) = caching_peers.next() else { return Ok(MasterChoice::Own) };
        let refusal = |peer: &Node, place: &PublishedAddress| StaleMasterAddress {
            peer: peer.clone(),
            cached_address: place.clone(),
        };
        if let Some((other, _)) = caching_peers.find(|(_, other)| *other != place) {
            return Err(refusal(other, &self.cached_address[other]));
        }
        match self.hosts.get(place) {
            Some(host) if host == me => Ok(MasterChoice::Own),
            Some(host) if members.iter().any(|(node, _)| node == host) => {
                Ok(MasterChoice::Stay(place.clone()))
            }
            _ => Err(refusal(peer, place)),
        }
    }

    /// Whether another rankrun agent as rank 0 surely finds no address either. Then no agent needs to wait for its
    /// answer.
    ///
    /// # Errors
    /// No address suits all torchrun members.
    pub fn predict(&self, rank_zero: &Node, members: &Members) -> Result<(), StaleMasterAddress> {
        match self.choose(rank_zero, members) {
            // Without the host of that store, this agent knows too little to decide.
            Err(refusal) if self.hosts.contains_key(&refusal.cached_address) => Err(refusal),
            _ => Ok(()),
        }
    }

    /// The store of a torchrun rank 0 that published nothing in this round although it could have.
    #[must_use]
    pub fn store_of(
        &self,
        rank_zero: &Node,
        round: u64,
        published: &BTreeMap<u64, PublishedAddress>,
    ) -> Option<PublishedAddress> {
        let ours = self.hosts.iter().find(|(_, host)| *host == rank_zero).map(|(place, _)| place);
        let theirs = || {
            published.range(..round).rev().map(|(_, place)| place).find(|place| place.addr == rank_zero.addr)
        };
        ours.or_else(theirs).cloned()
    }

    /// Whether all members of the round can meet at this address. A torchrun rank 0 has published it itself.
    ///
    /// # Errors
    /// A torchrun member has cached another address.
    pub fn check(&self, members: &Members, place: &PublishedAddress) -> Result<(), StaleMasterAddress> {
        let rank_zero = members.first().filter(|(_, descriptor)| descriptor.is_none()).map(|(node, _)| node);
        match self.cached_by(members).find(|(node, cached)| Some(*node) != rank_zero && *cached != place) {
            Some((peer, cached)) => {
                Err(StaleMasterAddress { peer: peer.clone(), cached_address: cached.clone() })
            }
            None => Ok(()),
        }
    }

    /// Records that the workers of this round meet there: all torchrun members have now cached it. `host` is the node
    /// with the store, if known.
    pub fn record_round_address(&mut self, members: &Members, place: &PublishedAddress, host: Option<&Node>) {
        for (node, descriptor) in members {
            if descriptor.is_none() {
                self.cached_address.insert(node.clone(), place.clone());
            }
        }
        let nodes = || members.iter().map(|(node, _)| node);
        // A member with the store's address; rank 0 comes first among several.
        let host = host.or_else(|| nodes().find(|node| node.addr == place.addr)).or_else(|| nodes().next());
        if let Some(host) = host {
            self.hosts.entry(place.clone()).or_insert_with(|| host.clone());
        }
    }

    fn cached_by<'a>(
        &'a self,
        members: &'a Members,
    ) -> impl Iterator<Item = (&'a Node, &'a PublishedAddress)> {
        let torch = members.iter().filter(|(_, descriptor)| descriptor.is_none()).map(|(node, _)| node);
        torch.filter_map(|node| self.cached_address.get(node).map(|place| (node, place)))
    }
}

/// The rankrun member that does for all what a torchrun rank 0 does not do. `None` if rank 0 is a rankrun agent.
#[must_use]
pub fn delegate(members: &Members) -> Option<usize> {
    members.iter().position(|(_, descriptor)| descriptor.is_some()).filter(|first| *first > 0)
}

#[cfg(test)]
mod tests;
