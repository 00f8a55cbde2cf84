//! torch's shared rendezvous state (contract 5.4): what all agents of a job read and change by compare-and-set. Pure.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

/// One agent: torch's `_NodeDesc`. Ordered as torch orders: by address as text, then pid, then counter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    /// The address that it publishes.
    pub addr: String,
    /// Its pid on its host.
    pub pid: i64,
    /// Its number among the rendezvous of its process.
    pub local_id: i64,
}

impl fmt::Display for Node {
    /// As torch prints it: `th1_4711_0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}_{}", self.addr, self.pid, self.local_id)
    }
}

/// A time of day in UTC, by the clock of whoever wrote it: microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

/// torch's `_RendezvousState`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    /// The round that is forming or complete.
    pub round: u64,
    /// Whether it is complete.
    pub complete: bool,
    /// When the last call ends, by the clock of whoever began it.
    pub deadline: Option<Timestamp>,
    /// No more rounds, for ever.
    pub closed: bool,
    /// Who takes part, in the order of joining, with ranks that are valid once the round is complete.
    pub participants: Participants,
    /// Who wants to be in the next round.
    pub wait_list: BTreeSet<Node>,
    /// Spares.
    pub redundancy_list: BTreeSet<Node>,
    /// When each was last alive, by its own clock.
    pub last_heartbeats: BTreeMap<Node, Timestamp>,
}

impl State {
    /// All nodes of all lists.
    pub fn listed(&self) -> impl Iterator<Item = &Node> {
        self.participants.nodes().chain(&self.wait_list).chain(&self.redundancy_list)
    }

    /// Whether a node is in a list.
    #[must_use]
    pub fn lists(&self, node: &Node) -> bool {
        self.participants.contains(node)
            || self.wait_list.contains(node)
            || self.redundancy_list.contains(node)
    }
}

/// Nodes and their ranks, in the order of joining.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Participants(Vec<(Node, i64)>);

impl Participants {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nobody takes part.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rank of a node that takes part.
    #[must_use]
    pub fn rank(&self, node: &Node) -> Option<i64> {
        self.0.iter().find(|(member, _)| member == node).map(|(_, rank)| *rank)
    }

    /// Whether a node takes part.
    #[must_use]
    pub fn contains(&self, node: &Node) -> bool {
        self.rank(node).is_some()
    }

    /// Adds a node, or gives one that takes part another rank.
    pub fn insert(&mut self, node: Node, rank: i64) {
        match self.0.iter_mut().find(|(member, _)| *member == node) {
            Some((_, old)) => *old = rank,
            None => self.0.push((node, rank)),
        }
    }

    /// Takes a node out; whether it took part.
    pub fn remove(&mut self, node: &Node) -> bool {
        let before = self.0.len();
        self.0.retain(|(member, _)| member != node);
        self.0.len() < before
    }

    /// In the order of joining.
    pub fn iter(&self) -> impl Iterator<Item = (&Node, i64)> {
        self.0.iter().map(|(node, rank)| (node, *rank))
    }

    /// The nodes in the order of joining.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.0.iter().map(|(node, _)| node)
    }
}

impl FromIterator<(Node, i64)> for Participants {
    /// As [`insert`](Self::insert) one by one, without a look at all for each.
    fn from_iter<T: IntoIterator<Item = (Node, i64)>>(pairs: T) -> Self {
        let pairs: Vec<(Node, i64)> = pairs.into_iter().collect();
        let distinct: HashSet<&Node> = pairs.iter().map(|(node, _)| node).collect();
        if distinct.len() == pairs.len() {
            return Self(pairs);
        }
        let mut places: HashMap<Node, usize> = HashMap::new();
        let mut participants: Vec<(Node, i64)> = Vec::new();
        for (node, rank) in pairs {
            match places.entry(node) {
                Entry::Occupied(place) => participants[*place.get()].1 = rank,
                Entry::Vacant(place) => {
                    participants.push((place.key().clone(), rank));
                    place.insert(participants.len() - 1);
                }
            }
        }
        Self(participants)
    }
}
