//! torch's shared rendezvous state (contract 5.4). All agents of a job read it, and change it by compare-and-set. This
//! module holds the data only; `pickle` converts it, and `round` decides the changes.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

/// One agent, as torch's `_NodeDesc`. Ordered like torch: by address as text, then pid, then counter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    /// The host name or address that the agent publishes.
    pub addr: String,
    /// Pid of the agent on its host.
    pub pid: i64,
    /// Number of the rendezvous within the agent's process.
    pub local_id: i64,
}

impl fmt::Display for Node {
    /// As torch prints it: `th1_4711_0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}_{}", self.addr, self.pid, self.local_id)
    }
}

/// Time of day in microseconds since 1970 (UTC), by the clock of the agent that wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

/// The shared state, as torch's `_RendezvousState`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RendezvousState {
    /// Number of the round that is forming or complete.
    pub round: u64,
    /// Whether the round is complete and its ranks are valid.
    pub complete: bool,
    /// End of the last call, by the clock of the agent that began it.
    pub deadline: Option<Timestamp>,
    /// Whether the rendezvous is closed for ever.
    pub closed: bool,
    /// Nodes of the round in the order of joining. Their ranks are valid once the round is complete.
    pub participants: Participants,
    /// Nodes that wait for the next round.
    pub wait_list: BTreeSet<Node>,
    /// Spare nodes, which wait for a free place.
    pub redundancy_list: BTreeSet<Node>,
    /// Time of each node's last heartbeat, by the node's own clock.
    pub last_heartbeats: BTreeMap<Node, Timestamp>,
}

impl RendezvousState {
    /// The nodes of all three lists, in no particular order.
    pub fn listed(&self) -> impl Iterator<Item = &Node> {
        self.participants.nodes().chain(&self.wait_list).chain(&self.redundancy_list)
    }

    /// Whether a node is in any of the three lists.
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
    /// Number of nodes that take part.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the round has no participants.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rank of a participant; `None` for other nodes.
    #[must_use]
    pub fn rank(&self, node: &Node) -> Option<i64> {
        self.0.iter().find(|(member, _)| member == node).map(|(_, rank)| *rank)
    }

    /// Whether a node takes part in the round.
    #[must_use]
    pub fn contains(&self, node: &Node) -> bool {
        self.rank(node).is_some()
    }

    /// Adds a node, or changes the rank of a participant.
    pub fn insert(&mut self, node: Node, rank: i64) {
        match self.0.iter_mut().find(|(member, _)| *member == node) {
            Some((_, old)) => *old = rank,
            None => self.0.push((node, rank)),
        }
    }

    /// Removes a node, and returns whether it was a participant.
    pub fn remove(&mut self, node: &Node) -> bool {
        let before = self.0.len();
        self.0.retain(|(member, _)| member != node);
        self.0.len() < before
    }

    /// Nodes with ranks, in the order of joining.
    pub fn iter(&self) -> impl Iterator<Item = (&Node, i64)> {
        self.0.iter().map(|(node, rank)| (node, *rank))
    }

    /// The nodes in the order of joining.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.0.iter().map(|(node, _)| node)
    }
}

impl FromIterator<(Node, i64)> for Participants {
    /// Like [`insert`](Self::insert) for each pair, but in linear time.
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
