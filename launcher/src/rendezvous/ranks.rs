//! Which member of a round gets which rank. Pure.

use std::collections::{BTreeMap, BTreeSet};

use rankrun_contract::rank::NodeRank;

use super::descriptor::Descriptor;
use super::state::{Node, Participants};

/// The ranks of a round that was complete.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ranks {
    /// Which round.
    pub round: u64,
    /// The rank of each member.
    pub of: BTreeMap<Node, i64>,
}

/// Gives the members of a round their ranks, which are always exactly `0..n`. The order of joining stays.
///
/// Where all are rankrun agents: by the node ranks that were given, where everybody was given one of his own; else each
/// keeps the rank of the round before as far as it exists, and the others fill the gaps, first those whose rank does not
/// exist any more, then newcomers as torch sorts them. With torchrun agents among them: as torch sorts them (contract 5.5),
/// but rank 0 stays where it was, since torchrun agents cannot follow it (contract 8.1).
#[must_use]
pub fn assign(
    participants: &[Node],
    agents: &BTreeMap<Node, Descriptor>,
    before: Option<&Ranks>,
) -> Participants {
    let sorted: BTreeSet<&Node> = participants.iter().collect();
    let order = if sorted.iter().any(|node| !agents.contains_key(*node)) {
        beside_torch(&sorted, before)
    } else {
        as_given(&sorted, agents).unwrap_or_else(|| as_before(&sorted, before))
    };
    let ranks: BTreeMap<&Node, i64> = order.into_iter().zip(0..).collect();
    let ranked = |node: &Node| Some((node.clone(), *ranks.get(node)?));
    participants.iter().filter_map(ranked).collect()
}

fn as_given<'a>(sorted: &BTreeSet<&'a Node>, agents: &BTreeMap<Node, Descriptor>) -> Option<Vec<&'a Node>> {
    let given = |node: &&'a Node| Some((agents.get(*node)?.node_rank?, *node));
    let given: BTreeMap<NodeRank, &Node> = sorted.iter().map(given).collect::<Option<_>>()?;
    (given.len() == sorted.len()).then(|| given.into_values().collect())
}

fn beside_torch<'a>(sorted: &BTreeSet<&'a Node>, before: Option<&Ranks>) -> Vec<&'a Node> {
    let was_first = |node: &Node| before.is_some_and(|before| before.of.get(node) == Some(&0));
    let (first, others): (Vec<&Node>, Vec<&Node>) = sorted.iter().partition(|node| was_first(node));
    first.into_iter().chain(others).collect()
}

fn as_before<'a>(sorted: &BTreeSet<&'a Node>, before: Option<&Ranks>) -> Vec<&'a Node> {
    let rank_before = |node: &Node| before.and_then(|before| before.of.get(node)).copied();
    let mut seats: Vec<Option<&Node>> = vec![None; sorted.len()];
    let mut seatless = Vec::new();
    for node in sorted.iter().copied() {
        let old = rank_before(node);
        let seat = old.and_then(|old| usize::try_from(old).ok()).and_then(|old| seats.get_mut(old));
        match seat {
            Some(seat @ None) => *seat = Some(node),
            _ => seatless.push((old.unwrap_or(i64::MAX), node)),
        }
    }
    seatless.sort();
    let mut seatless = seatless.into_iter().map(|(_, node)| node);
    seats.into_iter().filter_map(|seat| seat.or_else(|| seatless.next())).collect()
}

#[cfg(test)]
mod tests;
