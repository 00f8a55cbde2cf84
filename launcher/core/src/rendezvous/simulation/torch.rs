//! A simulated torchrun agent, after torch's tables (contract 5.5, 5.7, 5.8). It ages other nodes by wall clocks, reads
//! the state once a second, and does not know rankrun's heartbeats and notifications.

use crate::rendezvous::round::LocalNode;
use crate::rendezvous::state::{Node, RendezvousState, Timestamp};

/// What a torchrun agent remembers between two reads.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Times {
    /// Whether it has left the previous round.
    pub(super) has_left: bool,
}

/// The next action of a torchrun agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TorchStep {
    Write(RendezvousState),
    /// Sleeps for a second, then reads again.
    Sleep,
    Finish,
    TimedOut,
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// Time left until the deadline, in milliseconds.
    Join {
        left: i64,
    },
    Run,
    Close,
}

fn micros(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_micros()).expect("a short time")
}

/// The state as this agent sees it: without dead nodes.
pub(super) fn cleaned(state: &RendezvousState, me: &LocalNode, wall: Timestamp) -> RendezvousState {
    let mut local = state.clone();
    let limit = wall.0 - micros(me.times.keep_alive) * i64::from(me.times.keep_alive_attempts);
    let dead = state.last_heartbeats.iter().filter(|(_, at)| at.0 < limit).map(|(node, _)| node);
    let mut took_part = false;
    for node in dead {
        local.last_heartbeats.remove(node);
        took_part |= local.participants.remove(node);
        local.wait_list.remove(node);
        local.redundancy_list.remove(node);
    }
    if took_part {
        after_removal(&mut local, me);
    }
    local
}

fn after_removal(state: &mut RendezvousState, me: &LocalNode) {
    if state.complete {
        if state.participants.is_empty() {
            state.complete = false;
            state.round += 1;
        }
    } else if state.participants.len() < me.nodes.min.get() as usize {
        state.deadline = None;
    }
}

/// The next action of this agent in a cleaned state.
pub(super) fn next(
    local: &RendezvousState,
    me: &LocalNode,
    task: Task,
    times: &mut Times,
    wall: Timestamp,
) -> TorchStep {
    let node = &me.node;
    match task {
        Task::Close if local.closed => TorchStep::Finish,
        Task::Close => TorchStep::Write(RendezvousState { closed: true, ..local.clone() }),
        Task::Run if is_due(local, me, wall) => keep_alive(local.clone(), node, wall),
        Task::Run => TorchStep::Sleep,
        Task::Join { left } => {
            if !times.has_left && local.participants.contains(node) {
                let mut draft = local.clone();
                draft.participants.remove(node);
                draft.last_heartbeats.remove(node);
                after_removal(&mut draft, me);
                return TorchStep::Write(draft);
            }
            times.has_left = true;
            join(local, me, left, wall)
        }
    }
}

fn is_due(local: &RendezvousState, me: &LocalNode, wall: Timestamp) -> bool {
    local.last_heartbeats.get(&me.node).is_some_and(|at| at.0 <= wall.0 - micros(me.times.keep_alive))
}

fn keep_alive(mut draft: RendezvousState, node: &Node, wall: Timestamp) -> TorchStep {
    draft.last_heartbeats.insert(node.clone(), wall);
    TorchStep::Write(draft)
}

fn join(local: &RendezvousState, me: &LocalNode, left: i64, wall: Timestamp) -> TorchStep {
    let node = &me.node;
    let (min, max) = (me.nodes.min.get() as usize, me.nodes.max.get() as usize);
    let count = local.participants.len();
    let mut draft = local.clone();
    if local.closed {
        return TorchStep::Closed;
    }
    if local.redundancy_list.contains(node) {
        if count == max {
            return if is_due(local, me, wall) { keep_alive(draft, node, wall) } else { TorchStep::Sleep };
        }
        draft.redundancy_list.remove(node);
        draft.last_heartbeats.remove(node);
        return TorchStep::Write(draft);
    }
    let takes_part = local.participants.contains(node);
    if local.complete && takes_part {
        return TorchStep::Finish;
    }
    if left < 0 {
        if left >= -5_000 && takes_part {
            draft.participants.remove(node);
            draft.last_heartbeats.remove(node);
            after_removal(&mut draft, me);
            return TorchStep::Write(draft);
        }
        if left >= -5_000 && draft.wait_list.remove(node) {
            draft.last_heartbeats.remove(node);
            return TorchStep::Write(draft);
        }
        return TorchStep::TimedOut;
    }
    let waits = local.wait_list.contains(node);
    match (local.complete, takes_part) {
        (true, _) if count < max && !waits => {
            draft.wait_list.insert(node.clone());
            keep_alive(draft, node, wall)
        }
        (true, _) if count >= max && !waits => {
            draft.redundancy_list.insert(node.clone());
            keep_alive(draft, node, wall)
        }
        (false, true) if (min..=max).contains(&count) && local.deadline.is_some_and(|at| at < wall) => {
            complete(&mut draft);
            TorchStep::Write(draft)
        }
        (false, false) => {
            draft.wait_list.remove(node);
            draft.participants.insert(node.clone(), 0);
            if draft.participants.len() == min {
                draft.deadline = Some(Timestamp(wall.0 + micros(me.times.last_call)));
            }
            if draft.participants.len() == max {
                complete(&mut draft);
            }
            keep_alive(draft, node, wall)
        }
        _ if is_due(local, me, wall) => keep_alive(draft, node, wall),
        _ => TorchStep::Sleep,
    }
}

fn complete(draft: &mut RendezvousState) {
    let mut sorted: Vec<Node> = draft.participants.nodes().cloned().collect();
    sorted.sort();
    for (rank, node) in (0..).zip(sorted) {
        draft.participants.insert(node, rank);
    }
    draft.complete = true;
    draft.deadline = None;
}
