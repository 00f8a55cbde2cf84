//! The dynamic rendezvous (contract 5.4, 5.5): a pure function from the shared state to the next step of one agent. It
//! owns no connection and no clock. The rendezvous task passes in the state, and carries out the [`RoundStep`].
//!
//! torchrun agents see only the protocol that they know. Differences from torchrun's agents:
//!
//! - The failure detector uses the local monotonic clock. It writes a dead node's removal into the state at once.
//! - The agent that turns the round enters all waiting nodes. If no node is missing, it completes the round in the same
//!   write.
//! - No round has fewer nodes than the job asks for.
//! - Spares do not end a round. A spare enters only for a free place.

mod changes;
mod ending;
mod forming;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rankrun_contract::rank::NodeRank;

use self::changes::{is_significant_change, remove_dead, remove_node, remove_participant, states_differ};
pub use self::ending::{has_time_to_rejoin, previous_round_members};
use super::descriptor::AgentDescriptor;
use super::failure_detector::FailureDetector;
use super::ranks::Ranks;
use super::state::{Node, RendezvousState, Timestamp};
use crate::spec::rendezvous::{NodeRange, RoundTimes};

/// How long after the deadline an agent still removes itself from the state; torch's value.
const SELF_REMOVAL_LIMIT: Duration = Duration::from_secs(5);
/// The most by which another machine's clock may be ahead of this machine's, in microseconds.
const MAX_CLOCK_SKEW: i64 = 24 * 3600 * 1_000_000;

/// The agent for which the next step is decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalNode {
    /// Name of the agent in the state.
    pub node: Node,
    /// The node range that the user gave.
    pub nodes: NodeRange,
    /// Node rank of the agent, if the user gave a rank that is used.
    pub node_rank: Option<NodeRank>,
    /// Time limits of the rendezvous.
    pub times: RoundTimes,
}

/// What this agent knows at one moment.
#[derive(Debug, Clone, Copy)]
pub struct RoundView<'a> {
    /// The shared state of the last read.
    pub state: &'a RendezvousState,
    /// The failure detector, which has observed this state.
    pub failure_detector: &'a FailureDetector,
    /// Descriptors of the rankrun agents in the lists of the state or in the previous round, this agent included.
    pub agents: &'a BTreeMap<Node, AgentDescriptor>,
    /// The newest known ranks, either from this node's last round or from the store.
    pub ranks: Option<&'a Ranks>,
}

/// What this agent wants to reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoundGoal<'a> {
    /// Be in the next round. All its workers have ended.
    Join {
        /// The agent gives up at this time. The caller extends it while the time does not count
        /// ([`has_time_to_rejoin`]).
        deadline: Instant,
        /// The last round of this node, if any.
        before: Option<u64>,
    },
    /// Run its workers in a round.
    Stay {
        /// Number of the round that runs.
        round: u64,
        /// Members of the round when it was complete.
        members: &'a [Node],
    },
    /// Keep its place while it stops its workers. The round is over for this node.
    Hold,
    /// Be removed from all lists.
    Leave,
    /// Close the rendezvous: no more rounds.
    Close,
}

/// The next action of this agent.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum RoundStep {
    /// Replace the state that was read by this one with compare-and-set, then look again.
    Write {
        /// The new state to write.
        state: RendezvousState,
        /// Whether the change is relevant to the other agents, which are then notified.
        notifies: bool,
    },
    /// Do nothing until the state changes or this time has come.
    Wait {
        /// Latest time for the next look.
        until: Instant,
    },
    /// The round is complete and contains this node. The ranks are those of the state.
    Joined,
    /// The round of [`RoundGoal::Stay`] is over. The caller uses [`RoundGoal::Hold`] until no worker is left.
    Changed(RoundEnd),
    /// The join deadline passed, and this node is in no list.
    TimedOut,
    /// The rendezvous is closed: no more rounds.
    Closed,
    /// The rendezvous is closed, and this node was a spare.
    NotNeeded,
    /// Another live agent has the same node rank.
    Taken {
        /// The agent that has the rank.
        by: Node,
    },
    /// This node has left, or the rendezvous is closed.
    Done,
}

/// Why a running round is over. The reason stays the same until the node joins the next round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RoundEnd {
    /// The other agents declared this node dead, or continued without it.
    Removed,
    /// A member is in no list any more: it died or left.
    MemberGone(Node),
    /// A member waits for the next round: its workers failed, or it was notified of a failure.
    Rejoins(Node),
    /// A node outside of the round waits, and there is a free place.
    Waits(Node),
}

/// Whether a node waits as a spare.
#[must_use]
pub fn is_spare(state: &RendezvousState, node: &Node) -> bool {
    state.redundancy_list.contains(node)
}

/// The number of the nodes beside this one that are in the round or wait for one, without those that are dead. `None` if a
/// torchrun agent is among them: it takes notice of a node that waits, and not of one that leaves.
#[must_use]
pub fn count_other_nodes(view: &RoundView<'_>, me: &LocalNode) -> Option<usize> {
    let others: BTreeSet<&Node> = view.state.listed().filter(|node| **node != me.node).collect();
    let live: Vec<&Node> = others.into_iter().filter(|node| !view.failure_detector.is_dead(node)).collect();
    live.iter().all(|node| view.agents.contains_key(*node)).then_some(live.len())
}

/// Returns the next step of this agent. `wall` is the local time of day; it is only written, never decides.
pub fn next(
    view: &RoundView<'_>,
    me: &LocalNode,
    goal: RoundGoal<'_>,
    now: Instant,
    wall: Timestamp,
) -> RoundStep {
    let snapshot = StateSnapshot { view, local_node: me, now, wall };
    let state = view.state;
    match goal {
        RoundGoal::Close | RoundGoal::Leave if state.closed => RoundStep::Done,
        RoundGoal::Close => {
            RoundStep::Write { state: RendezvousState { closed: true, ..state.clone() }, notifies: true }
        }
        RoundGoal::Leave => snapshot.leave_round(),
        RoundGoal::Join { .. } if state.closed && is_spare(state, &me.node) => RoundStep::NotNeeded,
        RoundGoal::Join { .. } if state.closed => RoundStep::Closed,
        RoundGoal::Join { deadline, before } => snapshot.join(deadline, before),
        RoundGoal::Stay { round, members } => snapshot.stay(round, members),
        RoundGoal::Hold => snapshot.hold_membership(),
    }
}

/// One decision, with all its inputs.
#[derive(Clone, Copy)]
struct StateSnapshot<'a> {
    view: &'a RoundView<'a>,
    local_node: &'a LocalNode,
    now: Instant,
    wall: Timestamp,
}

impl StateSnapshot<'_> {
    const fn min(&self) -> usize {
        self.local_node.nodes.min.get() as usize
    }

    const fn max(&self) -> usize {
        self.local_node.nodes.max.get() as usize
    }

    fn is_dead(&self, node: &Node) -> bool {
        *node != self.local_node.node && self.view.failure_detector.is_dead(node)
    }

    fn is_ours(&self, node: &Node) -> bool {
        *node == self.local_node.node || self.view.agents.contains_key(node)
    }

    /// The state without the nodes that are dead.
    fn without_dead(&self) -> RendezvousState {
        let mut draft = self.view.state.clone();
        remove_dead(&mut draft, self.min(), |node| self.is_dead(node));
        draft
    }

    /// The time to write as a heartbeat. torchrun agents compare it with their own clocks.
    fn torch_time(&self) -> Timestamp {
        let most = Timestamp(self.wall.0.saturating_add(MAX_CLOCK_SKEW));
        let torch = self.view.failure_detector.torch_clock(self.now).unwrap_or(self.wall);
        self.wall.max(torch.min(most))
    }

    fn join(&self, deadline: Instant, before: Option<u64>) -> RoundStep {
        let (state, node) = (self.view.state, &self.local_node.node);
        let is_old = before.is_some_and(|before| before >= state.round) || !self.is_joined_round_intact();
        let takes_part = state.participants.contains(node);
        if state.complete && takes_part && !is_old {
            return RoundStep::Joined;
        }
        let mut draft = self.without_dead();
        let leaves = state.complete && takes_part;
        if leaves {
            remove_participant(&mut draft, node, self.min());
        }
        if self.now > deadline && !is_spare(state, node) {
            return self.give_up(draft, deadline);
        }
        if !state.lists(node)
            && let Some(step) = self.refuse_duplicate_rank(&draft, deadline)
        {
            return step;
        }
        if !draft.complete {
            self.advance_forming_round(&mut draft);
        } else if leaves {
            draft.wait_list.insert(node.clone());
        } else {
            self.enter_wait_list(&mut draft);
        }
        self.admit_waiting_nodes(&mut draft);
        self.write_or_wait(draft, Some(deadline))
    }

    /// Whether all members of a complete round are still in it. Otherwise this agent would start workers in a smaller
    /// world than the other agents. Beside torchrun agents that makes no difference: they wait in the rank exchange
    /// until they fail.
    fn is_joined_round_intact(&self) -> bool {
        let participants = &self.view.state.participants;
        let members: BTreeMap<&Node, i64> = participants.iter().collect();
        if members.len() < self.min() {
            return false;
        }
        let mut ranks: Vec<i64> = members.values().copied().collect();
        ranks.sort_unstable();
        let known = self.view.ranks.filter(|ranks| ranks.round == self.view.state.round);
        let is_as_known =
            known.is_none_or(|known| known.of.iter().eq(members.iter().map(|(node, rank)| (*node, rank))));
        let is_awaited = members.len() < self.max() && !self.view.state.wait_list.is_empty();
        let is_mixed = members.keys().any(|node| !self.is_ours(node));
        is_mixed || (is_as_known && !is_awaited && (0..).zip(ranks).all(|(place, rank)| place == rank))
    }

    /// The deadline has passed (contract 5.4, rows 6 to 8).
    fn give_up(&self, mut draft: RendezvousState, deadline: Instant) -> RoundStep {
        let is_late = self.now.saturating_duration_since(deadline) > SELF_REMOVAL_LIMIT;
        if is_late || !self.view.state.lists(&self.local_node.node) {
            return RoundStep::TimedOut;
        }
        remove_node(&mut draft, &self.local_node.node, self.min());
        RoundStep::Write { state: draft, notifies: true }
    }

    /// Two agents have the same node rank. The newcomer leaves as soon as it has seen the other agent alive.
    fn refuse_duplicate_rank(&self, draft: &RendezvousState, deadline: Instant) -> Option<RoundStep> {
        let mine = self.local_node.node_rank?;
        let has_mine = |node: &Node| self.view.agents.get(node).and_then(|it| it.node_rank) == Some(mine);
        let others = self.view.agents.keys().filter(|node| **node != self.local_node.node && has_mine(node));
        let other = others.into_iter().find(|node| draft.lists(node))?;
        if self.view.failure_detector.has_moved(other) {
            return Some(RoundStep::Taken { by: other.clone() });
        }
        Some(self.wait(Some(deadline)))
    }

    /// The round runs without this node (rows 3, 4, 9, 10). Nodes on the wait list enter first, then the spares in
    /// order.
    fn enter_wait_list(&self, draft: &mut RendezvousState) {
        let node = &self.local_node.node;
        let free_places = self.max().saturating_sub(draft.participants.len());
        let waiting = draft.wait_list.iter().filter(|other| *other != node).count();
        let spares = draft.redundancy_list.iter().take_while(|other| *other != node).count();
        let is_member =
            if draft.wait_list.contains(node) { free_places > 0 } else { waiting + spares < free_places };
        draft.wait_list.remove(node);
        draft.redundancy_list.remove(node);
        let list = if is_member { &mut draft.wait_list } else { &mut draft.redundancy_list };
        list.insert(node.clone());
    }

    fn stay(&self, round: u64, members: &[Node]) -> RoundStep {
        let (state, node) = (self.view.state, &self.local_node.node);
        if state.closed {
            return self.wait(None);
        }
        if state.round != round || !state.complete || !state.participants.contains(node) {
            return RoundStep::Changed(RoundEnd::Removed);
        }
        // Other nodes learn of dead members before this node reports the change.
        let membership_end = if self.needs_cleanup() { None } else { self.membership_end(members) };
        membership_end.map_or_else(|| self.hold_membership(), RoundStep::Changed)
    }

    /// Removes dead nodes and renews heartbeats, if either is due.
    fn hold_membership(&self) -> RoundStep {
        if !self.needs_cleanup() && !self.is_due() {
            return self.wait(None);
        }
        let mut draft = self.without_dead();
        self.admit_waiting_nodes(&mut draft);
        self.write_or_wait(draft, None)
    }

    /// Whether a list contains a node that must not be there.
    fn needs_cleanup(&self) -> bool {
        let state = self.view.state;
        let is_full_with_waiters =
            state.complete && state.participants.len() >= self.max() && !state.wait_list.is_empty();
        !state.closed && (is_full_with_waiters || state.listed().any(|node| self.is_dead(node)))
    }

    fn membership_end(&self, members: &[Node]) -> Option<RoundEnd> {
        let state = self.view.state;
        let mut missing = members.iter().filter(|member| !state.participants.contains(member));
        let rejoins = missing.clone().find(|member| state.lists(member));
        let newcomer = || state.wait_list.first().filter(|_| state.participants.len() < self.max());
        let gone = missing.find(|member| !state.lists(member)).cloned().map(RoundEnd::MemberGone);
        gone.or_else(|| rejoins.cloned().map(RoundEnd::Rejoins))
            .or_else(|| newcomer().cloned().map(RoundEnd::Waits))
    }

    fn leave_round(&self) -> RoundStep {
        if !self.view.state.lists(&self.local_node.node) {
            return RoundStep::Done;
        }
        let mut draft = self.without_dead();
        remove_node(&mut draft, &self.local_node.node, self.min());
        RoundStep::Write { state: draft, notifies: true }
    }

    /// Writes the changed state, or the heartbeats if they are due.
    fn write_or_wait(&self, mut draft: RendezvousState, deadline: Option<Instant>) -> RoundStep {
        let is_another = states_differ(self.view.state, &draft);
        if is_another || self.is_due() {
            let notifies = is_significant_change(self.view.state, &draft);
            self.refresh_heartbeats(&mut draft, is_another);
            return RoundStep::Write { state: draft, notifies };
        }
        self.wait(deadline)
    }

    fn is_due(&self) -> bool {
        self.heartbeat_due().is_some_and(|due| due <= self.now)
    }

    fn wait(&self, deadline: Option<Instant>) -> RoundStep {
        let times = &self.local_node.times;
        let deadline = deadline.filter(|_| !is_spare(self.view.state, &self.local_node.node));
        // The deadline itself is still in time.
        let deadline = deadline.map(|deadline| deadline + Duration::from_millis(1));
        let last_call = self.view.failure_detector.last_call_observed_at(self.view.state);
        let last_call = last_call.and_then(|seen| seen.checked_add(times.last_call));
        let death = self.view.failure_detector.next_death(self.now);
        let moments = [self.heartbeat_due(), deadline, last_call, death, Some(self.now + times.keep_alive)];
        let until = moments.into_iter().flatten().filter(|moment| *moment > self.now).min();
        RoundStep::Wait { until: until.unwrap_or(self.now + times.keep_alive) }
    }

    /// Renews our own heartbeat. If nothing else is written, it also renews the heartbeats of all live rankrun agents.
    /// Otherwise torchrun agents would declare them dead.
    fn refresh_heartbeats(&self, draft: &mut RendezvousState, is_another: bool) {
        let node = &self.local_node.node;
        let is_disconnected = |other: &&Node| *other == node || (!is_another && self.is_ours(other));
        let disconnected: Vec<Node> = draft.listed().filter(is_disconnected).cloned().collect();
        let stamp = self.torch_time();
        for other in disconnected {
            let same = self.view.state.last_heartbeats.get(&other) == Some(&stamp);
            // A heartbeat counts only if its value differs from the last one.
            draft.last_heartbeats.insert(other, Timestamp(stamp.0.saturating_add(i64::from(same))));
        }
    }

    /// Time of the next heartbeat. One rankrun agent is due a little before the others, and writes for all of them.
    fn heartbeat_due(&self) -> Option<Instant> {
        let (state, node) = (self.view.state, &self.local_node.node);
        if !state.lists(node) || state.closed {
            return None;
        }
        let Some(since) = self.view.failure_detector.heartbeat_since(node) else { return Some(self.now) };
        let spread = self.local_node.times.keep_alive / 5;
        let first = since.checked_add(self.local_node.times.keep_alive - spread)?;
        if first > self.now {
            return Some(first);
        }
        let ours = state.listed().filter(|other| self.is_ours(other));
        let (count, place) =
            ours.fold((0, 0), |(count, place), other| (count + 1, place + u32::from(other < node)));
        first.checked_add(spread * place / count.max(1))
    }
}

#[cfg(test)]
mod tests;
