//! The dynamic rendezvous: what one agent does next about the state that all share (contract 5.4, 5.5). Pure.
//!
//! torchrun agents see nothing that they do not know. What is better than theirs: who is dead is aged by our own clock, and
//! what is found goes into the state at once; whoever turns the round enters everybody who waits, and completes it in the
//! same write where nobody is missing; no round is smaller than asked for; spares do not disturb, and step forward only for
//! a free seat.

mod changes;
mod ending;
mod forming;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rankrun_contract::rank::NodeRank;

use self::changes::{differ, forget, is_news, leave, remove_dead};
pub use self::ending::{ending, has_time};
use super::descriptor::Descriptor;
use super::ranks::Ranks;
use super::sightings::Sightings;
use super::state::{Node, State, Timestamp};
use crate::spec::rendezvous::{NodeRange, RoundTimes};

/// torch's: how long after the deadline an agent still takes itself out of the state.
const ROLLBACK: Duration = Duration::from_secs(5);
/// No clock is believed to be ahead of ours by more.
const MOST_SKEW: i64 = 24 * 3600 * 1_000_000;

/// This agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Me {
    /// Its name in the state.
    pub node: Node,
    /// How many nodes it was told.
    pub nodes: NodeRange,
    /// Its own node rank, where it was told one that means something.
    pub node_rank: Option<NodeRank>,
    /// The times.
    pub times: RoundTimes,
}

/// What this agent knows at a moment.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// As it was read last.
    pub state: &'a State,
    /// Has seen this state.
    pub sightings: &'a Sightings,
    /// What the rankrun agents say of themselves that are in a list of the state or were in the round before, this one
    /// included.
    pub agents: &'a BTreeMap<Node, Descriptor>,
    /// The newest ranks that are known: of the round that this node was in last, or from the store, whichever is newer.
    pub ranks: Option<&'a Ranks>,
}

/// What this agent wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal<'a> {
    /// To be in the next round. None of its workers is left.
    Join {
        /// Then it gives up. While it has time ([`has_time`]), the caller puts this off.
        deadline: Instant,
        /// The round that it was in last, if any.
        before: Option<u64>,
    },
    /// To run its workers in a round.
    Stay {
        /// Which one.
        round: u64,
        /// Who was in it when it was complete.
        members: &'a [Node],
    },
    /// To keep its place while it stops its workers: the round is over for it.
    Hold,
    /// To be in no list.
    Leave,
    /// That there are no more rounds.
    Close,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Step {
    /// Write this state in place of the one that was read, by compare-and-set; then look again.
    Write {
        /// What to write.
        state: State,
        /// Whether it is news for the others.
        rings: bool,
    },
    /// Nothing is to be done before, unless the state changes.
    Wait {
        /// At the latest then it is worth to look again.
        until: Instant,
    },
    /// The round is complete, and this node is in it: the ranks are those of the state.
    Joined,
    /// The round that it wants to stay in is over. Then the goal is [`Goal::Hold`] until no worker is left.
    Changed(Upheaval),
    /// Not in a round, and in no list, in time.
    TimedOut,
    /// There are no more rounds.
    Closed,
    /// There are no more rounds, and this node was a spare.
    NotNeeded,
    /// Another agent that lives was told the same node rank.
    Taken {
        /// Which one.
        by: Node,
    },
    /// It has left, or the rendezvous is closed.
    Done,
}

/// Why a round is over that this node runs in. It stays so until the node joins the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upheaval {
    /// Others took this node for dead, or have gone on without it.
    Removed,
    /// A member is in no list any more: it was lost or has left.
    Gone(Node),
    /// A member waits for the next round: its workers have failed, or it knows something.
    Rejoins(Node),
    /// A node that was not in the round waits, and there is a seat.
    Waits(Node),
}

/// Whether a node waits as a spare.
#[must_use]
pub fn is_spare(state: &State, node: &Node) -> bool {
    state.redundancy_list.contains(node)
}

/// What this agent does next. `wall` is its own time of day, which nothing is decided by.
pub fn next(view: &View<'_>, me: &Me, goal: Goal<'_>, now: Instant, wall: Timestamp) -> Step {
    let look = Look { view, me, now, wall };
    let state = view.state;
    match goal {
        Goal::Close | Goal::Leave if state.closed => Step::Done,
        Goal::Close => Step::Write { state: State { closed: true, ..state.clone() }, rings: true },
        Goal::Leave => look.go(),
        Goal::Join { .. } if state.closed && is_spare(state, &me.node) => Step::NotNeeded,
        Goal::Join { .. } if state.closed => Step::Closed,
        Goal::Join { deadline, before } => look.join(deadline, before),
        Goal::Stay { round, members } => look.stay(round, members),
        Goal::Hold => look.keep(),
    }
}

/// One look at the state.
#[derive(Clone, Copy)]
struct Look<'a> {
    view: &'a View<'a>,
    me: &'a Me,
    now: Instant,
    wall: Timestamp,
}

impl Look<'_> {
    const fn min(&self) -> usize {
        self.me.nodes.min.get() as usize
    }

    const fn max(&self) -> usize {
        self.me.nodes.max.get() as usize
    }

    fn is_dead(&self, node: &Node) -> bool {
        *node != self.me.node && self.view.sightings.is_dead(node)
    }

    fn is_ours(&self, node: &Node) -> bool {
        *node == self.me.node || self.view.agents.contains_key(node)
    }

    /// The state without the dead.
    fn cleaned(&self) -> State {
        let mut draft = self.view.state.clone();
        remove_dead(&mut draft, self.min(), |node| self.is_dead(node));
        draft
    }

    /// What to say as the time: torchrun agents hold it against their own clocks.
    fn stamp(&self) -> Timestamp {
        let most = Timestamp(self.wall.0.saturating_add(MOST_SKEW));
        let torch = self.view.sightings.torch_clock(self.now).unwrap_or(self.wall);
        self.wall.max(torch.min(most))
    }

    fn join(&self, deadline: Instant, before: Option<u64>) -> Step {
        let (state, node) = (self.view.state, &self.me.node);
        let is_old = before.is_some_and(|before| before >= state.round) || !self.is_whole();
        let takes_part = state.participants.contains(node);
        if state.complete && takes_part && !is_old {
            return Step::Joined;
        }
        let mut draft = self.cleaned();
        let leaves = state.complete && takes_part;
        if leaves {
            leave(&mut draft, node, self.min());
        }
        if self.now > deadline && !is_spare(state, node) {
            return self.give_up(draft, deadline);
        }
        if !state.lists(node)
            && let Some(step) = self.refuse(&draft, deadline)
        {
            return step;
        }
        if !draft.complete {
            self.form(&mut draft);
        } else if leaves {
            draft.wait_list.insert(node.clone());
        } else {
            self.wait_for_a_seat(&mut draft);
        }
        self.seat_the_rest(&mut draft);
        self.write_or_wait(draft, Some(deadline))
    }

    /// Whether a complete round is still as it was when it was completed: nobody starts in a smaller world than the others.
    /// Beside torchrun agents that does not matter: they would wait for us in the exchange that follows until they fail.
    fn is_whole(&self) -> bool {
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

    /// Rows 6 to 8.
    fn give_up(&self, mut draft: State, deadline: Instant) -> Step {
        let is_late = self.now.saturating_duration_since(deadline) > ROLLBACK;
        if is_late || !self.view.state.lists(&self.me.node) {
            return Step::TimedOut;
        }
        forget(&mut draft, &self.me.node, self.min());
        Step::Write { state: draft, rings: true }
    }

    /// Two agents with one node rank: the newcomer goes, as soon as it is sure that the other lives.
    fn refuse(&self, draft: &State, deadline: Instant) -> Option<Step> {
        let mine = self.me.node_rank?;
        let has_mine = |node: &Node| self.view.agents.get(node).and_then(|it| it.node_rank) == Some(mine);
        let others = self.view.agents.keys().filter(|node| **node != self.me.node && has_mine(node));
        let other = others.into_iter().find(|node| draft.lists(node))?;
        if self.view.sightings.has_moved(other) {
            return Some(Step::Taken { by: other.clone() });
        }
        Some(self.wait(Some(deadline)))
    }

    /// The round runs without us (rows 3, 4, 9, 10). Whoever waits already comes first, then the spares in order.
    fn wait_for_a_seat(&self, draft: &mut State) {
        let node = &self.me.node;
        let seats = self.max().saturating_sub(draft.participants.len());
        let waiting = draft.wait_list.iter().filter(|other| *other != node).count();
        let spares = draft.redundancy_list.iter().take_while(|other| *other != node).count();
        let has_seat = if draft.wait_list.contains(node) { seats > 0 } else { waiting + spares < seats };
        draft.wait_list.remove(node);
        draft.redundancy_list.remove(node);
        let list = if has_seat { &mut draft.wait_list } else { &mut draft.redundancy_list };
        list.insert(node.clone());
    }

    fn stay(&self, round: u64, members: &[Node]) -> Step {
        let (state, node) = (self.view.state, &self.me.node);
        if state.closed {
            return self.wait(None);
        }
        if state.round != round || !state.complete || !state.participants.contains(node) {
            return Step::Changed(Upheaval::Removed);
        }
        // What is found is told to all before anything else.
        let upheaval = if self.is_untidy() { None } else { self.upheaval(members) };
        upheaval.map_or_else(|| self.keep(), Step::Changed)
    }

    /// Takes out the dead, and keeps the heartbeats fresh, where there is something to do.
    fn keep(&self) -> Step {
        if !self.is_untidy() && !self.is_due() {
            return self.wait(None);
        }
        let mut draft = self.cleaned();
        self.seat_the_rest(&mut draft);
        self.write_or_wait(draft, None)
    }

    /// Whether somebody is in a list who does not belong there.
    fn is_untidy(&self) -> bool {
        let state = self.view.state;
        let crowds = state.complete && state.participants.len() >= self.max() && !state.wait_list.is_empty();
        !state.closed && (crowds || state.listed().any(|node| self.is_dead(node)))
    }

    fn upheaval(&self, members: &[Node]) -> Option<Upheaval> {
        let state = self.view.state;
        let mut missing = members.iter().filter(|member| !state.participants.contains(member));
        let rejoins = missing.clone().find(|member| state.lists(member));
        let newcomer = || state.wait_list.first().filter(|_| state.participants.len() < self.max());
        let gone = missing.find(|member| !state.lists(member)).cloned().map(Upheaval::Gone);
        gone.or_else(|| rejoins.cloned().map(Upheaval::Rejoins))
            .or_else(|| newcomer().cloned().map(Upheaval::Waits))
    }

    fn go(&self) -> Step {
        if !self.view.state.lists(&self.me.node) {
            return Step::Done;
        }
        let mut draft = self.cleaned();
        forget(&mut draft, &self.me.node, self.min());
        Step::Write { state: draft, rings: true }
    }

    /// Writes what has changed, or the heartbeats where they are due.
    fn write_or_wait(&self, mut draft: State, deadline: Option<Instant>) -> Step {
        let is_another = differ(self.view.state, &draft);
        if is_another || self.is_due() {
            let rings = is_news(self.view.state, &draft);
            self.refresh(&mut draft, is_another);
            return Step::Write { state: draft, rings };
        }
        self.wait(deadline)
    }

    fn is_due(&self) -> bool {
        self.heartbeat_due().is_some_and(|due| due <= self.now)
    }

    fn wait(&self, deadline: Option<Instant>) -> Step {
        let times = &self.me.times;
        let deadline = deadline.filter(|_| !is_spare(self.view.state, &self.me.node));
        // The deadline itself is still in time.
        let deadline = deadline.map(|deadline| deadline + Duration::from_millis(1));
        let last_call = self.view.sightings.deadline_seen(self.view.state);
        let last_call = last_call.and_then(|seen| seen.checked_add(times.last_call));
        let death = self.view.sightings.next_death(self.now);
        let moments = [self.heartbeat_due(), deadline, last_call, death, Some(self.now + times.keep_alive)];
        let until = moments.into_iter().flatten().filter(|moment| *moment > self.now).min();
        Step::Wait { until: until.unwrap_or(self.now + times.keep_alive) }
    }

    /// Our own heartbeat, and where nothing else is written those of all our agents, who live: torchrun agents would take
    /// them for dead.
    fn refresh(&self, draft: &mut State, is_another: bool) {
        let node = &self.me.node;
        let is_meant = |other: &&Node| *other == node || (!is_another && self.is_ours(other));
        let meant: Vec<Node> = draft.listed().filter(is_meant).cloned().collect();
        let stamp = self.stamp();
        for other in meant {
            let same = self.view.state.last_heartbeats.get(&other) == Some(&stamp);
            // Every one is to be seen as another.
            draft.last_heartbeats.insert(other, Timestamp(stamp.0.saturating_add(i64::from(same))));
        }
    }

    /// Ours, of which one is due a little before the others, and writes for all.
    fn heartbeat_due(&self) -> Option<Instant> {
        let (state, node) = (self.view.state, &self.me.node);
        if !state.lists(node) || state.closed {
            return None;
        }
        let Some(since) = self.view.sightings.heartbeat_since(node) else { return Some(self.now) };
        let spread = self.me.times.keep_alive / 5;
        let first = since.checked_add(self.me.times.keep_alive - spread)?;
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
