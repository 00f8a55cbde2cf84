//! What the nodes of a round tell each other of their ranks. The thread that watches the progress writes this node's evidence
//! and reads that of the others; a task of the rendezvous carries both through the store.
#![expect(clippy::disallowed_methods, reason = "evidence has its time")]

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rankrun_contract::rank::{NodeCount, NodeRank};
use tokio::sync::Notify;

use rankrun_core::hang::evidence::RankEvidence;
use rankrun_core::hang::shared::NodeEvidence;
use rankrun_core::rendezvous::Round;

/// The evidence of all nodes of one round.
#[derive(Debug)]
pub struct EvidenceBoard {
    round: u64,
    node_rank: NodeRank,
    nodes: NodeCount,
    published: Mutex<Published>,
    has_published: Notify,
    received: Mutex<BTreeMap<NodeRank, Received>>,
}

/// What this node has published.
#[derive(Debug, Default)]
struct Published {
    number: u64,
    json: Vec<u8>,
    /// That of the other nodes is to be read.
    wants_others: bool,
}

/// What the store has of another node, which the watching thread reads: the task must not hold up the thread that it shares.
#[derive(Debug)]
struct Received {
    json: Vec<u8>,
    at: Instant,
}

impl EvidenceBoard {
    /// Of node 0, in round 3.
    #[cfg(test)]
    pub(super) fn fake(nodes: u32) -> Self {
        Self {
            round: 3,
            node_rank: NodeRank(0),
            nodes: NodeCount::new(nodes).unwrap(),
            published: Mutex::default(),
            has_published: Notify::new(),
            received: Mutex::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn published(&self) -> u64 {
        lock(&self.published).number
    }

    pub(crate) fn new(round: &Round) -> Self {
        Self {
            round: round.number,
            node_rank: round.node_rank,
            nodes: round.nodes,
            published: Mutex::default(),
            has_published: Notify::new(),
            received: Mutex::default(),
        }
    }

    /// Publishes the evidence on the ranks of this node, and has that of the others read if it is wanted.
    pub(crate) fn publish(
        &self,
        ranks: &[RankEvidence],
        is_suspended: bool,
        wants_others: bool,
        now: Instant,
    ) {
        let mut published = lock(&self.published);
        published.number += 1;
        let mut evidence = NodeEvidence::new(self.round, published.number, ranks, now);
        evidence.is_suspended = is_suspended;
        (published.json, published.wants_others) = (evidence.to_json(), wants_others);
        self.has_published.notify_one();
    }

    /// Waits until this node publishes something; returns the bytes, and whether those of the others are wanted.
    pub(crate) async fn next_published(&self) -> (Vec<u8>, bool) {
        self.has_published.notified().await;
        let published = lock(&self.published);
        (published.json.clone(), published.wants_others)
    }

    pub(crate) const fn node_rank(&self) -> NodeRank {
        self.node_rank
    }

    pub(crate) fn other_nodes(&self) -> Vec<NodeRank> {
        (0..self.nodes.get()).map(NodeRank).filter(|node| *node != self.node_rank).collect()
    }

    /// The store has these bytes of another node. Only what a node has published anew says that it is alive.
    pub(crate) fn receive(&self, node: NodeRank, json: Vec<u8>) {
        let mut received = lock(&self.received);
        if received.get(&node).is_none_or(|last| last.json != json) {
            received.insert(node, Received { json, at: Instant::now() });
        }
    }

    /// What the other nodes have published within this time. A node that is suspended tells nothing more.
    pub(crate) fn others(&self, now: Instant, max_age: Duration) -> OtherNodes {
        let received = lock(&self.received);
        let mut others = OtherNodes { are_all: true, ..OtherNodes::default() };
        for node in self.other_nodes() {
            let found = received.get(&node).and_then(|it| Some((self.parse(node, &it.json)?, it.at)));
            match found {
                Some((evidence, _)) if evidence.is_suspended => others.is_suspended = true,
                Some((evidence, at)) if now.saturating_duration_since(at) <= max_age => {
                    others.ranks.extend(evidence.into_ranks(at));
                }
                Some(_) | None => others.are_all = false,
            }
        }
        others
    }

    /// The evidence of this round, if that is what the bytes are; a node that has published nothing has none.
    fn parse(&self, node: NodeRank, json: &[u8]) -> Option<NodeEvidence> {
        if json.is_empty() {
            return None;
        }
        let evidence = NodeEvidence::from_json(json);
        let evidence =
            evidence.inspect_err(|error| tracing::debug!("node {node} tells of no ranks: {error}"));
        evidence.ok().filter(|evidence| evidence.round == self.round)
    }
}

/// What is known of the other nodes.
#[derive(Debug, Default)]
pub(crate) struct OtherNodes {
    pub(crate) ranks: Vec<RankEvidence>,
    /// No node is left out.
    pub(crate) are_all: bool,
    /// One of them is suspended, so that all ranks wait.
    pub(crate) is_suspended: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankrun_contract::rank::Rank;

    const MAX_AGE: Duration = Duration::from_secs(5);

    fn evidence(round: u64, number: u64, rank: u32) -> NodeEvidence {
        let now = Instant::now();
        NodeEvidence::new(round, number, &[RankEvidence::new(Rank(rank), now)], now)
    }

    fn ranks(others: &OtherNodes) -> Vec<u32> {
        others.ranks.iter().map(|it| it.rank.0).collect()
    }

    #[test]
    fn node_that_publishes_nothing_new_is_not_judged() {
        let board = EvidenceBoard::fake(3);
        board.receive(NodeRank(1), evidence(3, 1, 4).to_json());
        let silent = evidence(3, 1, 8).to_json();
        board.receive(NodeRank(2), silent.clone());
        let others = board.others(Instant::now(), MAX_AGE);
        assert_eq!((ranks(&others), others.are_all), (vec![4, 8], true));
        let later = Instant::now();
        board.receive(NodeRank(1), evidence(3, 2, 4).to_json());
        // The store still has what node 2 has published before.
        board.receive(NodeRank(2), silent);
        let others = board.others(later + MAX_AGE, MAX_AGE);
        assert_eq!((ranks(&others), others.are_all), (vec![4], false));
    }

    #[test]
    fn evidence_of_other_round_and_garbage_count_as_none() {
        let board = EvidenceBoard::fake(3);
        for bytes in [evidence(2, 9, 4).to_json(), b"\xff".to_vec(), Vec::new()] {
            board.receive(NodeRank(1), bytes);
        }
        assert!(!board.others(Instant::now(), MAX_AGE).are_all);
    }

    #[test]
    fn suspended_node_stays_suspended_though_it_publishes_nothing_more() {
        let board = EvidenceBoard::fake(3);
        let mut suspended = evidence(3, 1, 4);
        suspended.is_suspended = true;
        board.receive(NodeRank(1), suspended.to_json());
        assert!(board.others(Instant::now() + 100 * MAX_AGE, MAX_AGE).is_suspended);
        board.receive(NodeRank(1), evidence(3, 2, 4).to_json());
        assert!(!board.others(Instant::now(), MAX_AGE).is_suspended);
    }
}
