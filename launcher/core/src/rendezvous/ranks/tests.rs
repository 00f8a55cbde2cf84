use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use rankrun_contract::rank::{LocalWorldSize, NodeCount, NodeRank};

use super::{Ranks, assign};
use crate::rendezvous::descriptor::AgentDescriptor;
use crate::rendezvous::state::Node;
use crate::spec::rendezvous::NodeRange;

fn node(name: &str) -> Node {
    Node { addr: name.to_owned(), pid: 1, local_id: 0 }
}

fn nodes(names: &str) -> Vec<Node> {
    names.split(' ').map(node).collect()
}

pub(super) fn descriptor(node_rank: Option<u32>) -> AgentDescriptor {
    AgentDescriptor {
        protocol: 1,
        version: "0.1.0".to_owned(),
        host: "host".to_owned(),
        nodes: NodeRange { min: NodeCount::ONE, max: NodeCount::new(9).unwrap() },
        node_rank: node_rank.map(NodeRank),
        lease: Duration::from_secs(5),
        workers: LocalWorldSize::ONE,
        entrypoint: "train.py".to_owned(),
        nonce: 0,
        max_restarts: None,
    }
}

fn agents(given: &[(&str, Option<u32>)]) -> BTreeMap<Node, AgentDescriptor> {
    given.iter().map(|(name, rank)| (node(name), descriptor(*rank))).collect()
}

fn ours(names: &str) -> BTreeMap<Node, AgentDescriptor> {
    nodes(names).into_iter().map(|node| (node, descriptor(None))).collect()
}

fn before(names: &str) -> Ranks {
    Ranks { round: 0, of: nodes(names).into_iter().zip(0..).collect() }
}

/// The names of the members, ordered by rank.
fn order(names: &str, agents: &BTreeMap<Node, AgentDescriptor>, before: Option<&Ranks>) -> String {
    let participants = assign(&nodes(names), agents, before);
    assert_eq!(participants.nodes().cloned().collect::<Vec<_>>(), nodes(names), "the order of joining stays");
    let mut ranked: Vec<(i64, &str)> =
        participants.iter().map(|(node, rank)| (rank, node.addr.as_str())).collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, name)| name).collect::<Vec<_>>().join(" ")
}

#[test]
fn new_nodes_are_sorted_as_in_torch() {
    assert_eq!(order("node2 node10 a", &ours("a node10 node2"), None), "a node10 node2");
}

#[test]
fn given_node_ranks_are_used_if_all_distinct() {
    assert_eq!(order("a b c", &agents(&[("a", Some(7)), ("b", Some(0)), ("c", Some(3))]), None), "b c a");
    let same = agents(&[("a", Some(1)), ("b", Some(0)), ("c", Some(1))]);
    assert_eq!(order("a b c", &same, None), "a b c");
    assert_eq!(order("a b c", &agents(&[("a", Some(1)), ("b", Some(0)), ("c", None)]), None), "a b c");
}

#[test]
fn previous_ranks_are_kept_and_gaps_filled() {
    let old = before("d c b a");
    assert_eq!(order("a b c d", &ours("a b c d"), Some(&old)), "d c b a");
    assert_eq!(order("a b c", &ours("a b c"), Some(&old)), "a c b", "rank 0 is free, and a had the last");
    assert_eq!(
        order("a b d e", &ours("a b d e"), Some(&old)),
        "d e b a",
        "the newcomer takes the place of c"
    );
    assert_eq!(order("x d c y", &ours("c d x y"), Some(&old)), "d c x y");
}

#[test]
fn mixed_job_keeps_only_rank_0() {
    let old = before("d c b a");
    assert_eq!(order("a b c d", &ours("a b c"), Some(&old)), "d a b c");
    assert_eq!(order("a b c", &ours("a b"), Some(&old)), "a b c", "the node with rank 0 has gone");
    assert_eq!(order("b a", &BTreeMap::new(), None), "a b");
}

proptest! {
    #[test]
    fn ranks_are_zero_to_count_without_gaps(
        names in proptest::collection::btree_set("[a-e][0-9]{0,2}", 1..9),
        ours in proptest::collection::vec((any::<bool>(), proptest::option::of(0..9_u32)), 9),
        old in proptest::collection::btree_map("[a-e][0-9]{0,2}", -3..12_i64, 0..9),
    ) {
        let participants: Vec<Node> = names.iter().map(|name| node(name)).collect();
        let known = participants.iter().zip(ours).filter(|(_, (is_ours, _))| *is_ours);
        let agents = known.map(|(node, (_, rank))| (node.clone(), descriptor(rank))).collect();
        let old = Ranks { round: 3, of: old.into_iter().map(|(name, rank)| (node(&name), rank)).collect() };
        let ranks: BTreeSet<i64> = assign(&participants, &agents, Some(&old)).iter().map(|(_, rank)| rank).collect();
        prop_assert_eq!(ranks, (0..).take(participants.len()).collect());
    }
}
