//! In a round: whether it goes on, while the workers run, while this node's are done and others' are not, and while they
//! are being stopped.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clocks for the pure parts")]

use std::time::Instant;

use rankrun_contract::rank::NodeRank;

use crate::rendezvous::c10d::{FailureAuthor, StoreFailure, StoreSnapshot};
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::note::parse_leave_reason;
use crate::rendezvous::round::{RoundEnd, RoundGoal, RoundStep, next};
use crate::rendezvous::state::Node;
use crate::rendezvous::{
    FailureNote, LossRole, LostNode, MembershipChange, NodeName, RendezvousEnd, RendezvousEvent,
};

use super::book::Book;
use super::driver::{Driver, Phase, wall};
use super::first::Begun;
use super::watch::{Known, LostNodeQuery, Shown, Verdict, judge, lost_node_deadline};

/// While a question is open, signs of life are looked for so often in the time in which one is due.
const LOOKS_IN_TICK: u32 = 5;

/// A round that is over for this node.
#[derive(Debug, Clone)]
pub(super) struct Past {
    /// Which one.
    pub(super) number: u64,
    /// Who was in it, by rank.
    pub(super) nodes: Vec<Node>,
}

/// What this node's workers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// They run.
    Running,
    /// They have all succeeded.
    Succeeded,
    /// They are being stopped: the agent knows why.
    Stopping,
    /// The job is over, and the agent knows it.
    Over,
}

/// A round that this node is in.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) number: u64,
    /// By rank.
    pub(super) nodes: Vec<Node>,
    /// How many there are, also where nobody knows who they are.
    size: usize,
    stage: Stage,
    /// The first failure, where one is known.
    failure: Option<FailureNote>,
    /// This node's, where it was told first.
    told: Option<Box<FailureNote>>,
    /// This node's, which the others are still to be told.
    untold: Option<Box<FailureNote>>,
    /// When the others were told that this node's workers have succeeded.
    succeeded: Option<Instant>,
    /// That this node's workers have succeeded is still to be told.
    untold_success: bool,
    /// The agent asks whether a lost node caused the failure on this node.
    lost_node_query: Option<LostNodeQuery>,
    /// The answer, once a member is gone.
    lost: Option<LostNode>,
}

impl Membership {
    pub(super) fn new(number: u64, nodes: Vec<Node>, size: usize) -> Self {
        Self {
            number,
            nodes,
            size,
            stage: Stage::Running,
            failure: None,
            told: None,
            untold: None,
            succeeded: None,
            untold_success: false,
            lost_node_query: None,
            lost: None,
        }
    }

    pub(super) fn into_past(self) -> Past {
        Past { number: self.number, nodes: self.nodes }
    }

    /// A worker of this node has failed.
    pub(super) fn fails(&mut self, note: FailureNote) {
        self.stop();
        self.untold = Some(Box::new(note));
    }

    /// All workers of this node have succeeded.
    pub(super) fn succeeds(&mut self) {
        if self.stage == Stage::Running {
            (self.stage, self.untold_success) = (Stage::Succeeded, true);
        }
    }

    pub(super) fn ask_for_lost_node(&mut self, now: Instant) {
        self.lost_node_query = Some(LostNodeQuery { asked: now, first_look: None });
    }

    /// The round is over for this node's workers; whether that is news.
    pub(super) fn stop(&mut self) -> bool {
        let runs = matches!(self.stage, Stage::Running | Stage::Succeeded);
        if runs {
            self.stage = Stage::Stopping;
        }
        runs
    }

    /// Whether the others are still to be told something.
    const fn has_to_tell(&self) -> bool {
        self.untold_success || self.untold.is_some()
    }

    /// Whether the agent knows that all workers have succeeded.
    pub(super) fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// The name of a member, with its rank in this round.
    fn name_of_member(&self, node: &Node, book: &Book) -> NodeName {
        let place = self.nodes.iter().position(|member| member == node);
        let rank = place.and_then(|place| u32::try_from(place).ok()).map(NodeRank);
        let name = book.name(node);
        NodeName { rank: rank.or(name.rank), ..name }
    }

    /// The first failure of the round, where one is known.
    pub(super) fn failure(&self) -> Option<&FailureNote> {
        self.failure.as_ref().or(self.untold.as_deref())
    }
}

impl Driver {
    /// Tells what is to be told, and looks whether the round goes on; until when nothing is to be done.
    pub(super) fn watch(&mut self, look: &StoreSnapshot) -> Result<Instant, StoreFailure> {
        let tells = matches!(&self.phase, Phase::Member(membership) if membership.has_to_tell());
        let others_have_told = self.others_have_told(&look.done);
        self.tell()?;
        if tells {
            // The look is older: ours may have been the last success, or have taken the place of the failure in it.
            return Ok(Instant::now());
        }
        let (Phase::Member(membership), Some(me), Some(backend)) = (&mut self.phase, &self.me, &self.backend)
        else {
            return Ok(Instant::now());
        };
        if membership.stage == Stage::Over {
            return Ok(Instant::now() + self.plan.tick());
        }
        let told = membership.failure();
        let is_gone = |node: &Node| !backend.state().lists(node) || self.book.sightings.is_dead(node);
        let awaited = membership.nodes.iter().filter(|node| **node != me.node && !look.done.contains(node));
        let all_gone = { awaited }.all(is_gone);
        let is_mixed = matches!(self.begun, Begun::Mixed(_));
        // Beside torchrun's agents there is no state, but ours still say how the job ends.
        let is_closed = if is_mixed { look.end.is_some() } else { backend.state().closed };
        let (stage, nodes) = (membership.stage, membership.nodes.as_slice());
        match judge(&Known { stage, nodes, told, is_closed, all_gone }, look) {
            Verdict::Nothing | Verdict::RunOn => {}
            Verdict::Failed(note) => self.others_failed(note),
            Verdict::Succeeded => {
                let round = membership.number;
                self.all_succeeded(round);
                return Ok(Instant::now() + self.plan.tick());
            }
            Verdict::Closed(failure) => {
                self.over(RendezvousEnd::Closed { failure });
                return Ok(Instant::now());
            }
            Verdict::ByRule(rule, failure) => {
                self.over(RendezvousEnd::ByRule { rule, failure });
                return Ok(Instant::now());
            }
        }
        let until = if is_mixed { self.wait_for_strangers(look) } else { self.keep(look)? };
        self.answer_lost_node_by(until, &look.done, others_have_told)
    }

    /// Whether every other rankrun node has said all that it will say of the round, by the state of the last look: it is
    /// done, or has left the round, and tells a failure before that.
    fn others_have_told(&self, done: &[Node]) -> bool {
        let (Phase::Member(membership), Some(me), Some(backend)) = (&self.phase, &self.me, &self.backend)
        else {
            return true;
        };
        let state = backend.state();
        let is_in = |node: &Node| state.round == membership.number && state.participants.contains(node);
        let is_ours = |node: &Node| *node != me.node && self.book.agents.contains_key(node);
        !membership.nodes.iter().any(|node| is_ours(node) && is_in(node) && !done.contains(node))
    }

    /// Beside torchrun's agents with given ranks nobody says that it has failed, or lives.
    fn wait_for_strangers(&mut self, look: &StoreSnapshot) -> Instant {
        let now = Instant::now();
        if let Phase::Member(membership) = &self.phase
            && let Some(told) = membership.succeeded
            && now.saturating_duration_since(told) >= self.plan.exit_barrier
        {
            let nodes = membership.size;
            let left = nodes.saturating_sub(look.successes).max(1);
            let waited = self.plan.exit_barrier;
            self.over(RendezvousEnd::Failed(RendezvousError::NotFinished { left, nodes, waited }));
        }
        now + self.plan.tick()
    }

    /// Tells the others what has happened here. What could not be told is told over the next connection.
    pub(super) fn tell(&mut self) -> Result<(), StoreFailure> {
        let beside_torch = self.is_beside_torch();
        let (Phase::Member(membership), Some(me), Some(backend)) =
            (&mut self.phase, &self.me, &mut self.backend)
        else {
            return Ok(());
        };
        if matches!(self.begun, Begun::Mixed(_)) {
            // A restart is each node's own.
            membership.failure = membership.untold.take().map(|note| *note).or(membership.failure.take());
        }
        if let Some(note) = &membership.untold {
            let (first, by) = backend.publish_failure(membership.number, note, membership.told.as_deref())?;
            membership.told = membership.untold.take().filter(|_| by == FailureAuthor::Us);
            membership.failure = Some(first.clone());
            if by == FailureAuthor::Another {
                self.outlet.tell(RendezvousEvent::Changed(first.into()));
            }
        }
        if membership.untold_success {
            let counted = beside_torch.then_some(membership.size);
            backend.publish_success(membership.number, &me.node, &membership.nodes, counted)?;
            membership.untold_success = false;
            membership.succeeded = Some(Instant::now());
        }
        Ok(())
    }

    /// The round whose success is to be listened for: a torchrun agent may host the store, and goes without waiting for us.
    pub(super) fn awaited_success(&self) -> Option<u64> {
        let Phase::Member(membership) = &self.phase else { return None };
        let waits = membership.stage == Stage::Succeeded && !membership.untold_success;
        (waits && self.is_beside_torch()).then_some(membership.number)
    }

    /// Whether torchrun agents are in the round.
    fn is_beside_torch(&self) -> bool {
        let Phase::Member(membership) = &self.phase else { return false };
        let is_torchs = |node: &Node| !self.book.agents.contains_key(node);
        matches!(self.begun, Begun::Mixed(_)) || membership.nodes.iter().any(is_torchs)
    }

    /// The workers of all nodes of a round have succeeded.
    pub(super) fn all_succeeded(&mut self, round: u64) {
        if let Phase::Member(membership) = &mut self.phase
            && membership.stage == Stage::Succeeded
            && membership.number == round
        {
            membership.stage = Stage::Over;
            self.outlet.tell(RendezvousEvent::AllSucceeded);
        }
    }

    fn others_failed(&mut self, note: FailureNote) {
        let Phase::Member(membership) = &mut self.phase else { return };
        let was_consequence = membership.failure.as_ref().is_some_and(|told| note.overrides(told));
        (membership.failure, membership.told) = (Some(note.clone()), None);
        // What was told before was not the cause.
        if membership.stop() || was_consequence || matches!(note, FailureNote::NodeLost { .. }) {
            self.outlet.tell(RendezvousEvent::Changed(note.into()));
        }
        if was_consequence {
            self.answer_lost_node(None);
        }
    }

    /// Keeps our place in the round, and takes the dead out of it.
    fn keep(&mut self, look: &StoreSnapshot) -> Result<Instant, StoreFailure> {
        loop {
            let now = Instant::now();
            let (Phase::Member(membership), Some(me), Some(backend)) = (&self.phase, &self.me, &self.backend)
            else {
                return Ok(now);
            };
            // Nobody waits for a node that is done.
            let waited_for = |node: &&Node| !look.done.contains(node);
            let members: Vec<Node> = membership.nodes.iter().filter(waited_for).cloned().collect();
            let goal = match membership.stage {
                Stage::Running | Stage::Succeeded => {
                    RoundGoal::Stay { round: membership.number, members: &members }
                }
                Stage::Stopping | Stage::Over => RoundGoal::Hold,
            };
            let view = self.book.view(backend.state());
            match next(&view, me, goal, now, wall()) {
                RoundStep::Write { state, rings } => self.write(&state, rings)?,
                RoundStep::Wait { until } => return Ok(until),
                RoundStep::Changed(end) => self.report_round_end(&end)?,
                // Answers to other goals.
                RoundStep::Joined
                | RoundStep::TimedOut
                | RoundStep::Closed
                | RoundStep::NotNeeded
                | RoundStep::Done
                | RoundStep::Taken { .. } => {
                    return Ok(now + self.plan.tick());
                }
            }
        }
    }

    /// The round is over: tells the agent why.
    fn report_round_end(&mut self, end: &RoundEnd) -> Result<(), StoreFailure> {
        let (Phase::Member(membership), Some(backend)) = (&mut self.phase, &mut self.backend) else {
            return Ok(());
        };
        let change = match end {
            RoundEnd::Removed => MembershipChange::Removed,
            RoundEnd::Gone(node) => {
                let name = membership.name_of_member(node, &self.book);
                let why = parse_leave_reason(&backend.why_left(node)?);
                let lost = |role| LostNode { node: name.clone(), role };
                membership.lost = Some(lost(LossRole::CausesFailureHere));
                if why.is_empty() {
                    MembershipChange::Lost(lost(LossRole::EndsRound))
                } else {
                    MembershipChange::Left { node: name, why }
                }
            }
            RoundEnd::Rejoins(node) => match backend.failure(membership.number)? {
                Some(note) => note.into(),
                // It makes way for somebody who was not in the round, where there is one.
                None => {
                    let is_new = |other: &&Node| !membership.nodes.contains(other);
                    let newcomer = backend.state().wait_list.iter().find(is_new);
                    MembershipChange::NodeWaits { node: self.book.name(newcomer.unwrap_or(node)) }
                }
            },
            RoundEnd::Waits(node) => MembershipChange::NodeWaits { node: self.book.name(node) },
        };
        if let Some(note) = change.reported_failure() {
            membership.failure = Some(note);
        }
        membership.stop();
        let lost = membership.lost.clone();
        // An open question has one answer, which tells of the lost node too.
        let is_answer = membership.lost_node_query.is_some() && lost.is_some();
        if !is_answer {
            self.outlet.tell(RendezvousEvent::Changed(change));
        }
        self.answer_lost_node(lost);
        Ok(())
    }

    /// Answers an open question for a lost node, if the answer is known or its time is over; returns the next look.
    fn answer_lost_node_by(
        &mut self,
        until: Instant,
        done: &[Node],
        others_have_told: bool,
    ) -> Result<Instant, StoreFailure> {
        let (Phase::Member(membership), Some(backend)) = (&mut self.phase, &mut self.backend) else {
            return Ok(until);
        };
        let Some(query) = &mut membership.lost_node_query else { return Ok(until) };
        let (seen, is_watched) = match query.first_look {
            Some(first_look) => first_look,
            None => *query.first_look.insert((Instant::now(), backend.is_watched()?)),
        };
        let asked = query.asked;
        // A node that fails before it notices who was lost has told its own failure.
        let gone = membership.nodes.iter().find(|node| !backend.state().lists(node));
        let found = gone.map(|node| membership.name_of_member(node, &self.book));
        let found = found.map(|node| LostNode { node, role: LossRole::CausesFailureHere });
        let lost = membership.lost.clone().or(found);
        let own = self.me.as_ref().map(|me| &me.node);
        let is_asked = |node: &&Node| Some(*node) != own && !done.contains(node);
        let agents = membership.nodes.iter().filter(|node| self.book.agents.contains_key(*node));
        let asked_for: Vec<&Node> = agents.filter(is_asked).collect();
        let (sightings, tick) = (&self.book.sightings, self.plan.tick());
        let shown = Shown {
            all_live: asked_for.iter().all(|node| sightings.is_alive_since(node, seen)),
            doubted_until: asked_for
                .iter()
                .filter_map(|node| sightings.heartbeat_late_until(node, tick))
                .max(),
            awaits_cause: !others_have_told
                && membership.told.as_ref().is_some_and(|told| told.lost_peer().is_some()),
        };
        let now = Instant::now();
        let deadline = lost_node_deadline(asked, is_watched, shown, &self.plan.times);
        if lost.is_none() && now < deadline {
            // Somebody waits for the next sign of life, or for its absence.
            self.counts_beats = true;
            return Ok(until.min(deadline).min(now + tick / LOOKS_IN_TICK));
        }
        if let (Some(lost), Some(ours)) = (&lost, &membership.told) {
            let cause = FailureNote::NodeLost { node: lost.node.clone() };
            backend.correct_failure(membership.number, ours, &cause)?;
            (membership.failure, membership.told) = (Some(cause), None);
        }
        self.answer_lost_node(lost);
        Ok(until)
    }

    /// Answers an open question for a lost node.
    pub(super) fn answer_lost_node(&mut self, lost: Option<LostNode>) {
        if let Phase::Member(membership) = &mut self.phase
            && membership.lost_node_query.take().is_some()
        {
            self.outlet.tell(RendezvousEvent::LostNodeFound(lost));
        }
    }
}
