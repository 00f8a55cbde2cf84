//! Single changes of the shared state, made exactly as torch's agents make them (contract 5.4, 5.5). The functions are
//! pure; the module above decides which change is due.

use std::collections::BTreeSet;

use crate::rendezvous::state::{Node, Participants, RendezvousState};

/// Whether two states differ in more than heartbeats.
pub(super) fn states_differ(one: &RendezvousState, other: &RendezvousState) -> bool {
    let plain = |state: &RendezvousState| (state.round, state.complete, state.deadline, state.closed);
    plain(one) != plain(other)
        || one.participants != other.participants
        || one.wait_list != other.wait_list
        || one.redundancy_list != other.redundancy_list
}

/// Whether the other agents must be notified of a change. A node that only joins, or changes lists after another node
/// did, is handled when the round turns. In a large job, a notification of every change would keep all agents busy.
pub(super) fn is_significant_change(before: &RendezvousState, after: &RendezvousState) -> bool {
    let plain = |state: &RendezvousState| (state.round, state.complete, state.deadline, state.closed);
    let leaves = after.participants.len() < before.participants.len();
    let remain: BTreeSet<&Node> = after.listed().collect();
    plain(before) != plain(after)
        || (leaves && has_contiguous_ranks(&before.participants))
        || (before.wait_list.is_empty() && !after.wait_list.is_empty())
        || before.listed().any(|node| !remain.contains(node))
}

/// Whether all members of a complete round are still participants.
fn has_contiguous_ranks(participants: &Participants) -> bool {
    let highest = participants.iter().map(|(_, rank)| rank).max().unwrap_or(-1);
    usize::try_from(highest + 1) == Ok(participants.len())
}

/// Removes a node from the participants.
pub(super) fn remove_participant(state: &mut RendezvousState, node: &Node, min: usize) {
    state.last_heartbeats.remove(node);
    if state.participants.remove(node) {
        after_participant_removed(state, min);
    }
}

/// Removes a node from all lists.
pub(super) fn remove_node(state: &mut RendezvousState, node: &Node, min: usize) {
    state.wait_list.remove(node);
    state.redundancy_list.remove(node);
    remove_participant(state, node, min);
}

/// Removes dead nodes, and the heartbeats of nodes that are in no list.
pub(super) fn remove_dead(state: &mut RendezvousState, min: usize, is_dead: impl Fn(&Node) -> bool) {
    let dead: Vec<Node> = state.listed().filter(|node| is_dead(node)).cloned().collect();
    let mut took_part = false;
    for node in &dead {
        state.wait_list.remove(node);
        state.redundancy_list.remove(node);
        took_part |= state.participants.remove(node);
    }
    if took_part {
        after_participant_removed(state, min);
    }
    let mut heartbeats = std::mem::take(&mut state.last_heartbeats);
    // A set: every agent of a large job does this at every look.
    let here: BTreeSet<&Node> = state.listed().collect();
    heartbeats.retain(|node, _| here.contains(node));
    state.last_heartbeats = heartbeats;
}

/// Adjusts round and deadline after participants were removed.
fn after_participant_removed(state: &mut RendezvousState, min: usize) {
    if state.complete && state.participants.is_empty() {
        state.complete = false;
        state.round += 1;
    } else if !state.complete && state.participants.len() < min {
        state.deadline = None;
    }
}
