//! The process groups of workers that get stop signals alone, and the invariant about them. Each such worker leaves one
//! process in its group.

use std::time::{Duration, Instant};

use rankrun_contract::rank::{Generation, LocalRank};

use super::invariants::{Turn, Verdict, require};
use super::node::{Node, react};
use super::oracle::LENIENCY;
use super::setup::StopReaction;
use crate::agent::message::{Action, Input};
use crate::posix::Signal;

/// The machine looks for processes whose end brings no notice in this interval.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A process in the group of a worker.
#[derive(Debug)]
pub(super) struct GroupMember {
    generation: Generation,
    local_rank: LocalRank,
    reaction: StopReaction,
    /// The stop signals that it got apart from the worker.
    signals: Vec<Signal>,
    planned_end: Option<Instant>,
    gone_at: Option<Instant>,
}

impl GroupMember {
    pub(super) const fn new(generation: Generation, local_rank: LocalRank, reaction: StopReaction) -> Self {
        Self { generation, local_rank, reaction, signals: Vec::new(), planned_end: None, gone_at: None }
    }

    pub(super) fn next_end(&self) -> Option<Instant> {
        self.planned_end.filter(|_| self.gone_at.is_none())
    }

    pub(super) fn add_suspended_time(&mut self, lasted: Duration) {
        self.planned_end.iter_mut().chain(&mut self.gone_at).for_each(|at| *at += lasted);
    }

    /// Another process reaps it, so the agent gets no notice of its end.
    const fn is_reaped_elsewhere(&self) -> bool {
        matches!(self.reaction, StopReaction::Handles { .. })
    }
}

impl Node {
    /// Signals what is left of the groups of these workers; returns the workers whose groups are empty.
    pub(super) fn signal_groups(
        &mut self,
        (generation, local_ranks): (Generation, &[LocalRank]),
        signal: Option<Signal>,
        now: Instant,
    ) -> Vec<LocalRank> {
        let is_meant =
            |it: &&mut GroupMember| it.generation == generation && local_ranks.contains(&it.local_rank);
        let mut empty = local_ranks.to_vec();
        for member in self.group_members.iter_mut().filter(is_meant).filter(|it| it.gone_at.is_none()) {
            empty.retain(|local_rank| *local_rank != member.local_rank);
            let Some(signal) = signal else { continue };
            member.signals.push(signal);
            let due = react(member.reaction, signal, now).map(|due| due.at);
            member.planned_end = member.planned_end.into_iter().chain(due).min();
            member.gone_at = (signal == Signal::SIGKILL).then_some(now);
        }
        empty
    }

    pub(super) fn kill_group_members(&mut self, now: Instant) {
        let alive = self.group_members.iter_mut().filter(|member| member.gone_at.is_none());
        alive.for_each(|member| member.gone_at = Some(now));
    }

    /// Ends the members that are due; returns whether the agent gets a notice.
    pub(super) fn end_due_group_members(&mut self, now: Instant) -> bool {
        let mut is_noticed = false;
        for member in self.group_members.iter_mut().filter(|it| it.next_end().is_some_and(|at| at <= now)) {
            member.gone_at = Some(now);
            is_noticed |= !member.is_reaped_elsewhere();
        }
        is_noticed
    }
}

impl Turn<'_> {
    /// The members of groups whose workers have ended in the stop, by a signal that they got alone.
    fn members(&self) -> impl Iterator<Item = &GroupMember> {
        let generation = self.oracle.generation;
        let is_ended = move |local_rank| {
            self.node
                .launched_workers(generation)
                .any(|it| it.local_rank == local_rank && it.is_known() && !it.signals.is_empty())
        };
        let members = self.node.group_members.iter().filter(move |it| it.generation == generation);
        members.filter(move |it| is_ended(it.local_rank))
    }

    /// Whether the stop may outlive the last worker.
    pub(super) fn awaits_groups(&self) -> bool {
        let asks = |action: &Action| matches!(action, Action::SignalGroups { .. });
        let may_be_left = |member: &GroupMember| {
            member.gone_at.is_none_or(|gone_at| self.now <= gone_at + CHECK_INTERVAL + LENIENCY)
        };
        self.actions.iter().any(asks) || self.members().any(may_be_left)
    }
}

pub(super) fn groups_have_the_grace(turn: &Turn<'_>) -> Verdict {
    let current = &turn.oracle.current;
    let Some(asked_at) = current.asked_at.filter(|_| !turn.oracle.finished) else { return Ok(()) };
    if turn.is_stale || current.swept_at.is_some() {
        return Ok(());
    }
    let grace = turn.cause().map_or(Duration::ZERO, |cause| turn.setup.grace_of(cause));
    let kill_by = current.kill_by.unwrap_or(asked_at + grace);
    let kills_leftovers = turn.actions.iter().any(|action| matches!(action, Action::KillLeftovers { .. }));
    let is_second = matches!(turn.input, Some(Input::StopRequested { is_second: true, .. }));
    let signals = |member: &GroupMember, is_it: fn(Signal) -> bool| {
        turn.actions.iter().any(|action| {
            matches!(action, Action::SignalGroups { local_ranks, signal: Some(signal), .. }
                if is_it(*signal) && local_ranks.contains(&member.local_rank))
        })
    };
    for member in turn.members().filter(|member| member.gone_at.is_none()) {
        let is_killed = kills_leftovers || signals(member, |signal| signal == Signal::SIGKILL);
        require(!is_killed || is_second || turn.now >= kill_by, || {
            format!("killed within the grace: {member:?}")
        })?;
        let is_asked_to_stop = is_killed || !member.signals.is_empty() || signals(member, |_| true);
        require(is_asked_to_stop, || format!("not told to stop: {member:?}"))?;
        require(is_killed || turn.now <= kill_by + LENIENCY, || format!("not killed: {member:?}"))?;
        let has_deadline = is_killed || turn.deadline.is_some_and(|deadline| deadline <= kill_by);
        require(has_deadline, || format!("awaited without a deadline: {member:?}"))?;
    }
    Ok(())
}
