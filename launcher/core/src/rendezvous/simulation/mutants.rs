//! Faults for the mutation test: round logic that sees, wants or writes something wrong, and agents with a fault. The
//! invariants must find each of them.

use std::time::{Duration, Instant};

use rankrun_contract::rank::NodeCount;

use super::torch;
use crate::rendezvous::round::{LocalNode, RoundEnd, RoundGoal, RoundStep, RoundView, next};
use crate::rendezvous::state::{Node, Participants, RendezvousState, Timestamp};

/// The round logic of the simulated agents, with at most one fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Machine {
    fault: Option<Fault>,
}

/// A fault of the round logic or of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The agent forgets its last round.
    RejoinsTheOld,
    SkipsARound,
    /// The failure detector uses less than the lease.
    IsImpatient,
    /// The workers continue when the agent is cut off.
    OutlivesItsLease,
    ForgetsMin,
    ForgetsMax,
    /// The agent starts workers in a round that has lost members.
    StartsInTheRest,
    RanksFromOne,
    /// The agent assigns the ranks of a complete round again.
    RanksAgain,
    SortsRanks,
    IgnoresTheEnd,
    IgnoresTheDead,
    ClosesWhenItLeaves,
    LeavesSilently,
    IgnoresTheLost,
    IgnoresWhoWaits,
    NeverTurnsTheRound,
    NeverEndsTheLastCall,
    /// A spare never takes a free place.
    StaysASpare,
    /// The agent waits for a place even if the round is full.
    Disturbs,
    NeverTimesOut,
    TrustsRemoteClocks,
    /// The agent compares heartbeats with its own clock.
    RefreshesByTheClock,
    NeverRefreshes,
    RefusesForTheDead,
    /// The agent has only one connection to the store, and closes it after a lost packet.
    TakesALossForTheEnd,
}

/// All faults, each with the invariants that may find it.
pub(super) const FAULTS: [(Fault, &[&str]); 26] = [
    (Fault::RejoinsTheOld, &["R11"]),
    (Fault::SkipsARound, &["R1"]),
    (Fault::IsImpatient, &["R1", "R10"]),
    (Fault::OutlivesItsLease, &["R10"]),
    (Fault::ForgetsMin, &["R2"]),
    (Fault::ForgetsMax, &["R2"]),
    (Fault::StartsInTheRest, &["R2", "R3"]),
    (Fault::RanksFromOne, &["R3"]),
    (Fault::RanksAgain, &["R3"]),
    (Fault::SortsRanks, &["R8"]),
    (Fault::IgnoresTheEnd, &["R4", "R5"]),
    (Fault::IgnoresTheDead, &["R5", "R6"]),
    (Fault::ClosesWhenItLeaves, &["R7"]),
    (Fault::LeavesSilently, &["R7"]),
    (Fault::IgnoresTheLost, &["R5"]),
    (Fault::IgnoresWhoWaits, &["R5"]),
    (Fault::NeverTurnsTheRound, &["R5"]),
    (Fault::NeverEndsTheLastCall, &["R5"]),
    (Fault::StaysASpare, &["R5"]),
    (Fault::Disturbs, &["R5"]),
    (Fault::NeverTimesOut, &["R5"]),
    (Fault::TrustsRemoteClocks, &["R1", "R5", "R9", "R14"]),
    (Fault::RefreshesByTheClock, &["R9"]),
    (Fault::NeverRefreshes, &["R12"]),
    (Fault::RefusesForTheDead, &["R13"]),
    (Fault::TakesALossForTheEnd, &["R14"]),
];

impl Machine {
    pub(super) const fn with(fault: Fault) -> Self {
        Self { fault: Some(fault) }
    }

    /// Whether the fault is in the agent, not in the round logic.
    pub(super) fn has(self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    pub(super) fn next(
        self,
        view: &RoundView<'_>,
        me: &LocalNode,
        goal: RoundGoal<'_>,
        (now, wall): (Instant, Timestamp),
    ) -> RoundStep {
        let Some(fault) = self.fault else { return next(view, me, goal, now, wall) };
        let ranks = view.ranks.filter(|_| fault != Fault::SortsRanks);
        let seen = mutate_view(fault, view.state, me, wall);
        let view =
            RoundView { state: &seen, failure_detector: view.failure_detector, agents: view.agents, ranks };
        if let Some(step) = mutate_decision(fault, &view, me, goal, wall) {
            return step;
        }
        let step = next(&view, &mutate_local_node(fault, me, goal), mutate_goal(fault, goal, now), now, wall);
        mutate_step(fault, &view, me, goal, step)
            .unwrap_or(RoundStep::Wait { until: now + Duration::from_secs(1) })
    }
}

fn mutate_view(fault: Fault, state: &RendezvousState, me: &LocalNode, wall: Timestamp) -> RendezvousState {
    match fault {
        Fault::TrustsRemoteClocks => torch::cleaned(state, me, wall),
        Fault::IgnoresTheEnd => RendezvousState { closed: false, ..state.clone() },
        _ => state.clone(),
    }
}

/// The wrong step of a fault that ignores the round logic's answer.
fn mutate_decision(
    fault: Fault,
    view: &RoundView<'_>,
    me: &LocalNode,
    goal: RoundGoal<'_>,
    wall: Timestamp,
) -> Option<RoundStep> {
    let (state, node) = (view.state, &me.node);
    let is_member = state.complete && state.participants.contains(node);
    match (fault, goal) {
        (Fault::StartsInTheRest, RoundGoal::Join { before, .. })
            if is_member && !state.closed && before != Some(state.round) =>
        {
            Some(RoundStep::Joined)
        }
        (Fault::RefusesForTheDead, RoundGoal::Join { before: None, .. }) if !state.closed => {
            let has_mine = |other: &&Node| {
                let given = view.agents.get(*other).and_then(|agent| agent.node_rank);
                *other != node && given.is_some() && given == me.node_rank
            };
            let other = state.participants.nodes().find(has_mine)?;
            (!state.participants.contains(node)).then(|| RoundStep::Taken { by: other.clone() })
        }
        (Fault::RefreshesByTheClock, RoundGoal::Stay { .. }) => {
            let heartbeat = state.last_heartbeats.get(node)?;
            let is_old = heartbeat.0 + 3_000_000 < wall.0;
            let mut state = state.clone();
            state.last_heartbeats.insert(node.clone(), wall);
            is_old.then_some(RoundStep::Write { state, notifies: false })
        }
        _ => None,
    }
}

fn mutate_local_node(fault: Fault, me: &LocalNode, goal: RoundGoal<'_>) -> LocalNode {
    let mut me = me.clone();
    match fault {
        Fault::NeverEndsTheLastCall => me.times.last_call = Duration::from_secs(600),
        Fault::ForgetsMin => me.nodes.min = NodeCount::ONE,
        Fault::ForgetsMax if matches!(goal, RoundGoal::Join { .. }) => {
            me.nodes.max = NodeCount::new(me.nodes.max.get() + 1).expect("not zero");
        }
        _ => {}
    }
    me
}

fn mutate_goal(fault: Fault, goal: RoundGoal<'_>, now: Instant) -> RoundGoal<'_> {
    match (fault, goal) {
        (Fault::RejoinsTheOld, RoundGoal::Join { deadline, .. }) => {
            RoundGoal::Join { deadline, before: None }
        }
        (Fault::ClosesWhenItLeaves, RoundGoal::Leave) => RoundGoal::Close,
        (Fault::NeverTimesOut, RoundGoal::Join { before, .. }) => {
            RoundGoal::Join { deadline: now + Duration::from_secs(600), before }
        }
        (_, goal) => goal,
    }
}

/// The wrong step in place of `step`; `None` if the fault waits instead.
fn mutate_step(
    fault: Fault,
    view: &RoundView<'_>,
    me: &LocalNode,
    goal: RoundGoal<'_>,
    step: RoundStep,
) -> Option<RoundStep> {
    let (old, node) = (view.state, &me.node);
    Some(match (fault, step) {
        (Fault::LeavesSilently, RoundStep::Write { .. }) if goal == RoundGoal::Leave => RoundStep::Done,
        (Fault::IgnoresTheLost, RoundStep::Changed(RoundEnd::MemberGone(_)))
        | (Fault::IgnoresWhoWaits, RoundStep::Changed(RoundEnd::Waits(_))) => return None,
        (Fault::NeverRefreshes, RoundStep::Write { state, .. })
            if (RendezvousState { last_heartbeats: old.last_heartbeats.clone(), ..state.clone() })
                == *old =>
        {
            return None;
        }
        (Fault::StaysASpare, RoundStep::Write { state, .. })
            if old.redundancy_list.contains(node) && !state.redundancy_list.contains(node) =>
        {
            return None;
        }
        (_, RoundStep::Write { state, notifies }) => {
            RoundStep::Write { state: mutate_write(fault, old, state, me), notifies }
        }
        (_, step) => step,
    })
}

fn mutate_write(
    fault: Fault,
    old: &RendezvousState,
    mut new: RendezvousState,
    me: &LocalNode,
) -> RendezvousState {
    let is_next = new.round > old.round;
    match fault {
        Fault::SkipsARound => new.round += u64::from(is_next),
        Fault::NeverTurnsTheRound if is_next => {
            new.participants = Participants::default();
            (new.round, new.complete, new.deadline) = (old.round, true, None);
        }
        Fault::RanksFromOne if new.complete && !old.complete => {
            new.participants = new.participants.iter().map(|(node, rank)| (node.clone(), rank + 1)).collect();
        }
        Fault::RanksAgain if new.complete && old.complete && !is_next => {
            let nodes: Vec<Node> = new.participants.nodes().cloned().collect();
            new.participants = nodes.into_iter().zip(0..).collect();
        }
        Fault::Disturbs if new.redundancy_list.remove(&me.node) => {
            new.wait_list.insert(me.node.clone());
        }
        _ => {}
    }
    new
}
