//! What torchrun's agents need so that a restart works (contract 8.1, 8.2). Pure.
//!
//! An agent of torchrun 2.15 learns where the workers meet in its first round, and once more when it becomes rank 0 for
//! the first time; then it opens a store of its own, and publishes it in that round only. Ever after it uses what it
//! has learned, whatever is published. So the workers of a round can meet only where every torchrun member believes
//! that they do; a member that knows nothing yet reads the round's key. [`Memory`] holds what each one believes.

use std::collections::BTreeMap;
use std::fmt;

use rankrun_contract::env::Master;

use super::descriptor::Descriptor;
use super::state::{Node, State};
use super::text::harmless;

/// Rounds of others that are remembered.
const MAX_SEEN: usize = 32;

/// Longest host name or address that anybody publishes, in bytes: no name system has longer ones.
const MAX_ADDR: usize = 255;

/// Where workers meet, as it is published.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Host name or address.
    pub addr: String,
    /// TCP port.
    pub port: u16,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.addr.contains(':') {
            write!(f, "[{}]:{}", self.addr, self.port)
        } else {
            write!(f, "{}:{}", self.addr, self.port)
        }
    }
}

impl Place {
    /// As the two values are in a store; nothing where they are no address, or none for a worker's environment.
    #[must_use]
    pub fn parse(addr: &[u8], port: &[u8]) -> Option<Self> {
        let addr = std::str::from_utf8(addr).ok()?;
        let is_loud = addr.chars().any(char::is_whitespace) || harmless(addr, MAX_ADDR) != addr;
        if addr.is_empty() || addr.len() > MAX_ADDR || is_loud {
            return None;
        }
        let port =
            std::str::from_utf8(port).ok().filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()))?;
        let port = port.parse().ok().filter(|port| *port != 0)?;
        Some(Self { addr: addr.to_owned(), port })
    }

    /// For the workers.
    #[must_use]
    pub fn master(&self, agent_store: bool) -> Master {
        Master { addr: self.addr.clone(), port: self.port, agent_store }
    }
}

impl From<&Master> for Place {
    fn from(master: &Master) -> Self {
        Self { addr: master.addr.clone(), port: master.port }
    }
}

/// The members of a round by node rank; those without a descriptor are torchrun's.
pub type Members = [(Node, Option<Descriptor>)];

/// Where the workers of a round meet whose rank 0 is ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// In rank 0's own store.
    Own,
    /// Where they met before: torchrun's members know no other place, and the member that has this store takes part.
    Stay(Place),
}

/// A torchrun member believes that the workers meet at a place where they cannot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Who believes it.
    pub peer: Node,
    /// The place.
    pub believed: Place,
}

/// What torchrun's agents believe, as far as this agent knows.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    /// Where each one believes that the workers meet.
    believed: BTreeMap<Node, Place>,
    /// Whose store it is that is at a place.
    hosts: BTreeMap<Place, Node>,
    /// Complete rounds: who took part, by rank. They may be rounds of others.
    seen: BTreeMap<u64, Vec<Node>>,
}

impl Memory {
    /// Looks at a state: a complete round tells who has learned where its workers meet. To be told of every state that is
    /// read before and between our own rounds.
    pub fn saw(&mut self, state: &State) {
        if !state.complete || self.seen.contains_key(&state.round) {
            return;
        }
        let mut members: Vec<_> = state.participants.iter().collect();
        members.sort_by_key(|(_, rank)| *rank);
        self.seen.insert(state.round, members.into_iter().map(|(node, _)| node.clone()).collect());
        if self.seen.len() > MAX_SEEN {
            self.seen.pop_first();
        }
    }

    /// Whether it may matter what was published in rounds before this one: somebody of torchrun takes part who was in a
    /// round that we were not in, or may have been.
    #[must_use]
    pub fn needs_history(&self, round: u64, members: &Members) -> bool {
        let unknown = |(node, descriptor): &(Node, Option<Descriptor>)| {
            descriptor.is_none() && !self.believed.contains_key(node)
        };
        let was_seen = |node: &Node| self.seen.range(..round).any(|(_, nodes)| nodes.contains(node));
        round > 0 && members.iter().any(|member| unknown(member) && was_seen(&member.0))
    }

    /// Learns what was published before this round.
    pub fn learn_history(&mut self, round: u64, published: &BTreeMap<u64, Place>) {
        for (past, nodes) in self.seen.range(..round) {
            let Some((_, place)) = published.range(..=*past).next_back() else { continue };
            for node in nodes {
                self.believed.entry(node.clone()).or_insert_with(|| place.clone());
            }
            let host = nodes.iter().find(|node| node.addr == place.addr);
            if let Some(host) = host {
                self.hosts.entry(place.clone()).or_insert_with(|| host.clone());
            }
        }
    }

    /// Where the workers of a round meet whose rank 0 is this agent, `me`.
    ///
    /// # Errors
    /// There is no place that all torchrun members can agree on.
    pub fn choose(&self, me: &Node, members: &Members) -> Result<Choice, Refusal> {
        let mut believers = self.believers(members);
        let Some((peer, place)) = believers.next() else { return Ok(Choice::Own) };
        let refusal = |peer: &Node, place: &Place| Refusal { peer: peer.clone(), believed: place.clone() };
        if let Some((other, _)) = believers.find(|(_, other)| *other != place) {
            return Err(refusal(other, &self.believed[other]));
        }
        match self.hosts.get(place) {
            Some(host) if host == me => Ok(Choice::Own),
            Some(host) if members.iter().any(|(node, _)| node == host) => Ok(Choice::Stay(place.clone())),
            _ => Err(refusal(peer, place)),
        }
    }

    /// Whether a rank 0 of ours, another agent, is sure to find no place either: then nobody need wait for its word.
    ///
    /// # Errors
    /// There is no place that all torchrun members can agree on.
    pub fn foresee(&self, rank_zero: &Node, members: &Members) -> Result<(), Refusal> {
        match self.choose(rank_zero, members) {
            // Who does not know whose store it is knows too little.
            Err(refusal) if self.hosts.contains_key(&refusal.believed) => Err(refusal),
            _ => Ok(()),
        }
    }

    /// Where a torchrun rank 0 has its store that has published nothing in this round although it might have.
    #[must_use]
    pub fn store_of(&self, rank_zero: &Node, round: u64, published: &BTreeMap<u64, Place>) -> Option<Place> {
        let ours = self.hosts.iter().find(|(_, host)| *host == rank_zero).map(|(place, _)| place);
        let theirs = || {
            published.range(..round).rev().map(|(_, place)| place).find(|place| place.addr == rank_zero.addr)
        };
        ours.or_else(theirs).cloned()
    }

    /// Whether all members of the round can meet there. A torchrun rank 0 has said so itself.
    ///
    /// # Errors
    /// A torchrun member believes otherwise.
    pub fn check(&self, members: &Members, place: &Place) -> Result<(), Refusal> {
        let rank_zero = members.first().filter(|(_, descriptor)| descriptor.is_none()).map(|(node, _)| node);
        match self.believers(members).find(|(node, believed)| Some(*node) != rank_zero && *believed != place)
        {
            Some((peer, believed)) => Err(Refusal { peer: peer.clone(), believed: believed.clone() }),
            None => Ok(()),
        }
    }

    /// The workers of this round meet there: now all torchrun members believe so. `host` has the store, where it is known.
    pub fn met(&mut self, members: &Members, place: &Place, host: Option<&Node>) {
        for (node, descriptor) in members {
            if descriptor.is_none() {
                self.believed.insert(node.clone(), place.clone());
            }
        }
        let nodes = || members.iter().map(|(node, _)| node);
        // A member with the place's address, and rank 0 before all others of that address.
        let host = host.or_else(|| nodes().find(|node| node.addr == place.addr)).or_else(|| nodes().next());
        if let Some(host) = host {
            self.hosts.entry(place.clone()).or_insert_with(|| host.clone());
        }
    }

    fn believers<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = (&'a Node, &'a Place)> {
        let torch = members.iter().filter(|(_, descriptor)| descriptor.is_none()).map(|(node, _)| node);
        torch.filter_map(|node| self.believed.get(node).map(|place| (node, place)))
    }
}

/// The rankrun member that does for all what torchrun's rank 0 does not; nothing where that is rank 0 itself.
#[must_use]
pub fn deputy(members: &Members) -> Option<usize> {
    members.iter().position(|(_, descriptor)| descriptor.is_some()).filter(|first| *first > 0)
}

#[cfg(test)]
mod tests;
