//! Assigns node ranks to the members of a complete round. The members and their descriptors come from the store;
//! `roles` derives the ranks of the workers. Pure.

use std::collections::{BTreeMap, BTreeSet};

use rankrun_contract::rank::NodeRank;

use super::descriptor::AgentDescriptor;
use super::state::{Node, Participants};

/// The node ranks of a complete round.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ranks {
    /// Number of the round.
    pub round: u64,
    /// Node rank of each member.
    pub of: BTreeMap<Node, i64>,
}

/// Assigns the ranks `0..n` to the members, and keeps the order of joining.
///
/// If all members are rankrun agents with distinct given node ranks, the order of the given ranks decides. Otherwise
/// each member keeps its rank of the previous round if that rank still exists. The other members fill the gaps: first
/// members with a rank that no longer exists, then newcomers in torch's order.
///
/// With torchrun agents among the members, torch's order decides (contract 5.5). But rank 0 stays where it was, because
/// torchrun agents cannot follow it (contract 8.1).
#[must_use]
pub fn assign(
    participants: &[Node],
    agents: &BTreeMap<Node, AgentDescriptor>,
    before: Option<&Ranks>,
) -> Participants {
    let sorted: BTreeSet<&Node> = participants.iter().collect();
    let order = if sorted.iter().any(|node| !agents.contains_key(*node)) {
        order_beside_torchrun(&sorted, before)
    } else {
        order_by_given_ranks(&sorted, agents).unwrap_or_else(|| order_by_previous_ranks(&sorted, before))
    };
    let ranks: BTreeMap<&Node, i64> = order.into_iter().zip(0..).collect();
    let ranked = |node: &Node| Some((node.clone(), *ranks.get(node)?));
    participants.iter().filter_map(ranked).collect()
}

fn order_by_given_ranks<'a>(
    sorted: &BTreeSet<&'a Node>,
    agents: &BTreeMap<Node, AgentDescriptor>,
) -> Option<Vec<&'a Node>> {
    let given = |node: &&'a Node| Some((agents.get(*node)?.node_rank?, *node));
    let given: BTreeMap<NodeRank, &Node> = sorted.iter().map(given).collect::<Option<_>>()?;
    (given.len() == sorted.len()).then(|| given.into_values().collect())
}

fn order_beside_torchrun<'a>(sorted: &BTreeSet<&'a Node>, before: Option<&Ranks>) -> Vec<&'a Node> {
    let was_first = |node: &Node| before.is_some_and(|before| before.of.get(node) == Some(&0));
    let (first, others): (Vec<&Node>, Vec<&Node>) = sorted.iter().partition(|node| was_first(node));
    first.into_iter().chain(others).collect()
}

fn order_by_previous_ranks<'a>(sorted: &BTreeSet<&'a Node>, before: Option<&Ranks>) -> Vec<&'a Node> {
    let rank_before = |node: &Node| before.and_then(|before| before.of.get(node)).copied();
    let mut slots: Vec<Option<&Node>> = vec![None; sorted.len()];
    let mut rankless = Vec::new();
    for node in sorted.iter().copied() {
        let old = rank_before(node);
        let slot = old.and_then(|old| usize::try_from(old).ok()).and_then(|old| slots.get_mut(old));
        match slot {
            Some(slot @ None) => *slot = Some(node),
            _ => rankless.push((old.unwrap_or(i64::MAX), node)),
        }
    }
    rankless.sort();
    let mut rankless = rankless.into_iter().map(|(_, node)| node);
    slots.into_iter().filter_map(|slot| slot.or_else(|| rankless.next())).collect()
}

#[cfg(test)]
mod tests;
