//! What torch's agents do to the shared state, one change each (contract 5.4, 5.5). Pure.

use std::collections::BTreeSet;

use crate::rendezvous::state::{Node, Participants, State};

/// Whether two states differ in more than in heartbeats.
pub(super) fn differ(one: &State, other: &State) -> bool {
    let plain = |state: &State| (state.round, state.complete, state.deadline, state.closed);
    plain(one) != plain(other)
        || one.participants != other.participants
        || one.wait_list != other.wait_list
        || one.redundancy_list != other.redundancy_list
}

/// Whether somebody who listens has something to do about it. Who comes, or goes from one list to the other after others
/// have done so, is met when the round turns; if everybody looked at every step of everybody, a large job would do nothing
/// else.
pub(super) fn is_news(before: &State, after: &State) -> bool {
    let plain = |state: &State| (state.round, state.complete, state.deadline, state.closed);
    let leaves = after.participants.len() < before.participants.len();
    let remain: BTreeSet<&Node> = after.listed().collect();
    plain(before) != plain(after)
        || (leaves && is_whole(&before.participants))
        || (before.wait_list.is_empty() && !after.wait_list.is_empty())
        || before.listed().any(|node| !remain.contains(node))
}

/// Whether nobody of a complete round has left it.
fn is_whole(participants: &Participants) -> bool {
    let highest = participants.iter().map(|(_, rank)| rank).max().unwrap_or(-1);
    usize::try_from(highest + 1) == Ok(participants.len())
}

/// Takes a node out of the participants.
pub(super) fn leave(state: &mut State, node: &Node, min: usize) {
    state.last_heartbeats.remove(node);
    if state.participants.remove(node) {
        participants_went(state, min);
    }
}

/// Takes a node out of everything.
pub(super) fn forget(state: &mut State, node: &Node, min: usize) {
    state.wait_list.remove(node);
    state.redundancy_list.remove(node);
    leave(state, node, min);
}

/// Takes out the dead, and the heartbeats of who is in no list.
pub(super) fn remove_dead(state: &mut State, min: usize, is_dead: impl Fn(&Node) -> bool) {
    let dead: Vec<Node> = state.listed().filter(|node| is_dead(node)).cloned().collect();
    let mut took_part = false;
    for node in &dead {
        state.wait_list.remove(node);
        state.redundancy_list.remove(node);
        took_part |= state.participants.remove(node);
    }
    if took_part {
        participants_went(state, min);
    }
    let mut heartbeats = std::mem::take(&mut state.last_heartbeats);
    // A set, since every agent of a large job does this at every look.
    let here: BTreeSet<&Node> = state.listed().collect();
    heartbeats.retain(|node, _| here.contains(node));
    state.last_heartbeats = heartbeats;
}

/// What follows when participants have gone.
fn participants_went(state: &mut State, min: usize) {
    if state.complete && state.participants.is_empty() {
        state.complete = false;
        state.round += 1;
    } else if !state.complete && state.participants.len() < min {
        state.deadline = None;
    }
}
