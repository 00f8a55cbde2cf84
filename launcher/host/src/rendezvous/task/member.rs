//! A node in a complete round: while its workers run, after they have succeeded, and while they are stopped.
//!
//! It reads the store at each change, has `watch` judge the snapshot, and sends the agent one [`RendezvousEvent`] when
//! the round is over. It stops no worker.
//!
//! [`RendezvousEvent`]: crate::rendezvous::RendezvousEvent
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clocks for the pure parts")]

use std::time::Instant;

use rankrun_contract::rank::NodeRank;

use crate::rendezvous::RendezvousEvent;
use crate::rendezvous::c10d::{FailureAuthor, StoreFailure, StoreSnapshot};
use crate::rendezvous::error::RendezvousError;
use rankrun_core::rendezvous::note::parse_leave_reason;
use rankrun_core::rendezvous::round::{RoundEnd, RoundGoal, RoundStep, next};
use rankrun_core::rendezvous::state::Node;
use rankrun_core::rendezvous::{FailureNote, LossRole, LostNode, MembershipChange, NodeName, RendezvousEnd};

use super::evidence_exchange::EvidenceExchange;
use super::peer_directory::PeerDirectory;
use super::phase::Phase;
use super::rendezvous_task::{RendezvousTask, wall};
use super::static_start::StaticProgress;
use super::watch::{LostNodeQuery, RoundFacts, Verdict, judge};
use rankrun_core::rendezvous::lost_node_deadline::{PeerActivity, lost_node_deadline};

/// While a question is open, heartbeats are read so often in the time in which one is due.
const READS_IN_TICK: u32 = 5;

/// A round that is over for this node.
#[derive(Debug, Clone)]
pub(super) struct PastRound {
    /// Its number.
    pub(super) number: u64,
    /// Its members by rank.
    pub(super) nodes: Vec<Node>,
}

/// The stage of this node's workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// They run.
    Running,
    /// They have all succeeded.
    Succeeded,
    /// They are stopped: the agent knows why.
    Stopping,
    /// The job is over, and the agent knows it.
    Ended,
}

/// A round that this node is in.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) number: u64,
    /// The members by rank; empty if they are not known.
    pub(super) nodes: Vec<Node>,
    /// Number of members.
    size: usize,
    stage: Stage,
    /// The first failure, if one is known.
    failure: Option<FailureNote>,
    /// This node's failure, if it was published first.
    published: Option<Box<FailureNote>>,
    /// This node's failure that is not published yet.
    unpublished: Option<Box<FailureNote>>,
    /// When the success of this node's workers was published.
    succeeded: Option<Instant>,
    /// The success of this node's workers is not published yet.
    unpublished_success: bool,
    /// The agent asks whether a lost node caused the failure on this node.
    lost_node_query: Option<LostNodeQuery>,
    /// The answer, once a member is gone.
    lost: Option<LostNode>,
    /// Runs as long as this node is in the round.
    pub(super) evidence_exchange: Option<EvidenceExchange>,
}

impl Membership {
    pub(super) fn new(number: u64, nodes: Vec<Node>, size: usize) -> Self {
        Self {
            number,
            nodes,
            size,
            stage: Stage::Running,
            failure: None,
            published: None,
            unpublished: None,
            succeeded: None,
            unpublished_success: false,
            lost_node_query: None,
            lost: None,
            evidence_exchange: None,
        }
    }

    pub(super) fn into_past_round(self) -> PastRound {
        PastRound { number: self.number, nodes: self.nodes }
    }

    /// A worker of this node has failed.
    pub(super) fn fails(&mut self, note: FailureNote) {
        self.stop();
        self.unpublished = Some(Box::new(note));
    }

    /// All workers of this node have succeeded.
    pub(super) fn succeeds(&mut self) {
        if self.stage == Stage::Running {
            (self.stage, self.unpublished_success) = (Stage::Succeeded, true);
        }
    }

    pub(super) fn ask_for_lost_node(&mut self, now: Instant) {
        self.lost_node_query = Some(LostNodeQuery { asked: now, first_look: None });
    }

    /// Whether this node has nothing to publish or to ask.
    pub(super) const fn is_quiet(&self) -> bool {
        self.lost_node_query.is_none() && !self.has_unpublished_result()
    }

    /// The round is over for this node's workers; whether they ran until now.
    pub(super) fn stop(&mut self) -> bool {
        let runs = matches!(self.stage, Stage::Running | Stage::Succeeded);
        if runs {
            self.stage = Stage::Stopping;
        }
        runs
    }

    /// Whether a result of this node is not published yet.
    const fn has_unpublished_result(&self) -> bool {
        self.unpublished_success || self.unpublished.is_some()
    }

    /// Whether the agent knows that all workers have succeeded.
    pub(super) fn is_over(&self) -> bool {
        self.stage == Stage::Ended
    }

    /// The name of a member, with its rank in this round.
    fn name_of_member(&self, node: &Node, peers: &PeerDirectory) -> NodeName {
        let place = self.nodes.iter().position(|member| member == node);
        let rank = place.and_then(|place| u32::try_from(place).ok()).map(NodeRank);
        let name = peers.name(node);
        NodeName { rank: rank.or(name.rank), ..name }
    }

    /// The lost node that may have caused a failure here. A node that fails before it notices the loss has published
    /// its own failure, so the lists of the state count too.
    fn lost_node(&self, peers: &PeerDirectory, is_listed: impl Fn(&Node) -> bool) -> Option<LostNode> {
        let gone = || self.nodes.iter().find(|node| !is_listed(node));
        let found = || gone().map(|node| self.name_of_member(node, peers));
        let lost = |node| LostNode { node, role: LossRole::CausesFailureHere };
        self.lost.clone().or_else(|| found().map(lost))
    }

    /// The first failure of the round, if one is known.
    pub(super) fn failure(&self) -> Option<&FailureNote> {
        self.failure.as_ref().or(self.unpublished.as_deref())
    }
}

impl RendezvousTask {
    /// Publishes the results of this node, and judges whether the round continues; returns the time of the next step.
    pub(super) async fn check_round(&mut self, snapshot: &StoreSnapshot) -> Result<Instant, StoreFailure> {
        let publishes =
            matches!(&self.phase, Phase::Member(membership) if membership.has_unpublished_result());
        let others_have_reported = self.others_have_reported(&snapshot.done);
        self.publish_results().await?;
        if publishes {
            // The snapshot is older: this node's may be the last success, or the first failure.
            return Ok(Instant::now());
        }
        let Some((is_over, verdict)) = self.judge_round(snapshot) else { return Ok(Instant::now()) };
        if is_over {
            return Ok(Instant::now() + self.plan.tick());
        }
        match verdict {
            Verdict::Nothing | Verdict::RunOn => {}
            Verdict::Failed(note) => self.on_remote_failure(note),
            Verdict::Succeeded => {
                if let Phase::Member(membership) = &self.phase {
                    self.all_succeeded(membership.number);
                }
                return Ok(Instant::now() + self.plan.tick());
            }
            Verdict::Closed(failure) => {
                self.end_with(RendezvousEnd::Closed { failure });
                return Ok(Instant::now());
            }
            Verdict::ByRule(rule, failure) => {
                self.end_with(RendezvousEnd::ByRule { rule, failure });
                return Ok(Instant::now());
            }
        }
        let is_mixed = matches!(self.static_progress, StaticProgress::Mixed(_));
        let until = if is_mixed {
            self.wait_for_torchrun_agents(snapshot)
        } else {
            self.maintain_membership(snapshot).await?
        };
        self.answer_lost_node_by(until, &snapshot.done, others_have_reported).await
    }

    /// Whether the job is over for this node, and what the keys of the round say.
    fn judge_round(&self, snapshot: &StoreSnapshot) -> Option<(bool, Verdict)> {
        let (Phase::Member(membership), Some(me), Some(backend)) = (&self.phase, &self.me, &self.backend)
        else {
            return None;
        };
        let is_gone = |node: &Node| !backend.state().lists(node) || self.peers.failure_detector.is_dead(node);
        let mut awaited =
            membership.nodes.iter().filter(|node| **node != me.node && !snapshot.done.contains(node));
        let all_gone = awaited.all(is_gone);
        let is_mixed = matches!(self.static_progress, StaticProgress::Mixed(_));
        // A mixed static job has no state, but rankrun agents still publish the end.
        let is_closed = if is_mixed { snapshot.end.is_some() } else { backend.state().closed };
        let (stage, nodes, known_failure) =
            (membership.stage, membership.nodes.as_slice(), membership.failure());
        let verdict = judge(&RoundFacts { stage, nodes, known_failure, is_closed, all_gone }, snapshot);
        Some((stage == Stage::Ended, verdict))
    }

    /// Whether every other rankrun node has published all that it will publish of the round, by the state of the last
    /// read: it has succeeded, or has left the round, and publishes a failure before that.
    fn others_have_reported(&self, done: &[Node]) -> bool {
        let (Phase::Member(membership), Some(me), Some(backend)) = (&self.phase, &self.me, &self.backend)
        else {
            return true;
        };
        let state = backend.state();
        let is_in = |node: &Node| state.round == membership.number && state.participants.contains(node);
        let is_rankrun = |node: &Node| *node != me.node && self.peers.agents.contains_key(node);
        !membership.nodes.iter().any(|node| is_rankrun(node) && is_in(node) && !done.contains(node))
    }

    /// In a mixed static job no agent reports that it has failed, or is alive.
    fn wait_for_torchrun_agents(&mut self, snapshot: &StoreSnapshot) -> Instant {
        let now = Instant::now();
        if let Phase::Member(membership) = &self.phase
            && let Some(succeeded) = membership.succeeded
            && now.saturating_duration_since(succeeded) >= self.plan.exit_barrier
        {
            let nodes = membership.size;
            let left = nodes.saturating_sub(snapshot.successes).max(1);
            let waited = self.plan.exit_barrier;
            self.fail(RendezvousError::NotFinished { left, nodes, waited });
        }
        now + self.plan.tick()
    }

    /// Publishes the results of this node. After an error they are published over the next connection.
    pub(super) async fn publish_results(&mut self) -> Result<(), StoreFailure> {
        let beside_torch = self.is_beside_torch();
        let (Phase::Member(membership), Some(me), Some(backend)) =
            (&mut self.phase, &self.me, &mut self.backend)
        else {
            return Ok(());
        };
        if matches!(self.static_progress, StaticProgress::Mixed(_)) {
            // A restart is each node's own.
            let own = membership.unpublished.take().map(|note| *note);
            membership.failure = own.or(membership.failure.take());
        }
        if let Some(note) = &membership.unpublished {
            let before = membership.published.as_deref();
            let (first, by) = backend.publish_failure(membership.number, note, before).await?;
            membership.published = membership.unpublished.take().filter(|_| by == FailureAuthor::Us);
            membership.failure = Some(first.clone());
            if by == FailureAuthor::Another {
                self.events.send(RendezvousEvent::Changed(first.into()));
            }
        }
        if membership.unpublished_success {
            let counted = beside_torch.then_some(membership.size);
            backend.publish_success(membership.number, &me.node, &membership.nodes, counted).await?;
            membership.unpublished_success = false;
            membership.succeeded = Some(Instant::now());
        }
        Ok(())
    }

    /// The round whose success is awaited by a notification: a torchrun agent may host the store, and ends without
    /// waiting for this node.
    pub(super) fn awaited_success(&self) -> Option<u64> {
        let Phase::Member(membership) = &self.phase else { return None };
        let waits = membership.stage == Stage::Succeeded && !membership.unpublished_success;
        (waits && self.is_beside_torch()).then_some(membership.number)
    }

    /// Whether torchrun agents are in the round.
    fn is_beside_torch(&self) -> bool {
        let Phase::Member(membership) = &self.phase else { return false };
        let is_torch = |node: &Node| !self.peers.agents.contains_key(node);
        matches!(self.static_progress, StaticProgress::Mixed(_)) || membership.nodes.iter().any(is_torch)
    }

    /// The workers of all nodes of a round have succeeded.
    pub(super) fn all_succeeded(&mut self, round: u64) {
        if let Phase::Member(membership) = &mut self.phase
            && membership.stage == Stage::Succeeded
            && membership.number == round
        {
            membership.stage = Stage::Ended;
            self.events.send(RendezvousEvent::AllSucceeded);
        }
    }

    fn on_remote_failure(&mut self, note: FailureNote) {
        let Phase::Member(membership) = &mut self.phase else { return };
        let was_consequence = membership.failure.as_ref().is_some_and(|known| note.overrides(known));
        (membership.failure, membership.published) = (Some(note.clone()), None);
        // The failure that was reported before was not the cause.
        if membership.stop() || was_consequence || matches!(note, FailureNote::NodeLost { .. }) {
            self.events.send(RendezvousEvent::Changed(note.into()));
        }
        if was_consequence {
            self.answer_lost_node(None);
        }
    }

    /// Keeps the place of this node in the round, and removes dead nodes.
    async fn maintain_membership(&mut self, snapshot: &StoreSnapshot) -> Result<Instant, StoreFailure> {
        loop {
            let now = Instant::now();
            match self.next_member_step(snapshot, now) {
                Some(RoundStep::Write { state, notifies }) => self.write(&state, notifies).await?,
                Some(RoundStep::Wait { until }) => return Ok(until),
                Some(RoundStep::Changed(end)) => self.on_membership_change(&end).await?,
                None => return Ok(now),
                // Answers to other goals.
                Some(
                    RoundStep::Joined
                    | RoundStep::TimedOut
                    | RoundStep::Closed
                    | RoundStep::NotNeeded
                    | RoundStep::Done
                    | RoundStep::Taken { .. },
                ) => return Ok(now + self.plan.tick()),
            }
        }
    }

    fn next_member_step(&self, snapshot: &StoreSnapshot, now: Instant) -> Option<RoundStep> {
        let (Phase::Member(membership), Some(me), Some(backend)) = (&self.phase, &self.me, &self.backend)
        else {
            return None;
        };
        // A node that has succeeded may go.
        let is_needed = |node: &&Node| !snapshot.done.contains(node);
        let members: Vec<Node> = membership.nodes.iter().filter(is_needed).cloned().collect();
        let goal = match membership.stage {
            Stage::Running | Stage::Succeeded => {
                RoundGoal::Stay { round: membership.number, members: &members }
            }
            Stage::Stopping | Stage::Ended => RoundGoal::Hold,
        };
        Some(next(&self.peers.view(backend.state()), me, goal, now, wall()))
    }

    /// The round is over: tells the agent why.
    async fn on_membership_change(&mut self, end: &RoundEnd) -> Result<(), StoreFailure> {
        let (Phase::Member(membership), Some(backend)) = (&mut self.phase, &mut self.backend) else {
            return Ok(());
        };
        let change = match end {
            RoundEnd::Removed => MembershipChange::Removed,
            RoundEnd::MemberGone(node) => {
                let name = membership.name_of_member(node, &self.peers);
                membership.lost = Some(LostNode { node: name.clone(), role: LossRole::CausesFailureHere });
                // The snapshot may be older than the state: a write that lost against another has read that anew.
                let failure = backend.failure(membership.number).await?;
                let why = parse_leave_reason(&backend.why_left(node).await?);
                MembershipChange::of_gone_member(name, why, failure)
            }
            RoundEnd::Rejoins(node) => match backend.failure(membership.number).await? {
                Some(note) => note.into(),
                // It makes way for a node that was not in the round, if there is one.
                None => {
                    let is_new = |other: &&Node| !membership.nodes.contains(other);
                    let newcomer = backend.state().wait_list.iter().find(is_new);
                    MembershipChange::NodeWaits { node: self.peers.name(newcomer.unwrap_or(node)) }
                }
            },
            RoundEnd::Waits(node) => MembershipChange::NodeWaits { node: self.peers.name(node) },
        };
        if let Some(note) = change.reported_failure() {
            membership.failure = Some(note);
        }
        membership.stop();
        let lost = membership.lost.clone();
        // An open question has one answer, which reports the lost node too.
        let is_answer = membership.lost_node_query.is_some() && lost.is_some();
        if !is_answer {
            self.events.send(RendezvousEvent::Changed(change));
        }
        self.answer_lost_node(lost);
        Ok(())
    }

    /// Answers an open question for a lost node, if the answer is known or its time is over; returns the next step.
    async fn answer_lost_node_by(
        &mut self,
        until: Instant,
        done: &[Node],
        others_have_reported: bool,
    ) -> Result<Instant, StoreFailure> {
        let (Phase::Member(membership), Some(backend)) = (&mut self.phase, &mut self.backend) else {
            return Ok(until);
        };
        let Some(query) = &mut membership.lost_node_query else { return Ok(until) };
        let (since, is_watched) = match query.first_look {
            Some(first_look) => first_look,
            None => *query.first_look.insert((Instant::now(), backend.is_watched().await?)),
        };
        let asked = query.asked;
        let lost = membership.lost_node(&self.peers, |node| backend.state().lists(node));
        let shown = self.shown_by_others(since, done, others_have_reported);
        let (now, tick) = (Instant::now(), self.plan.tick());
        let deadline = lost_node_deadline(asked, is_watched, shown, &self.plan.times);
        if lost.is_none() && now < deadline {
            // The next heartbeat, or its absence, is awaited.
            self.reads_heartbeats = true;
            return Ok(until.min(deadline).min(now + tick / READS_IN_TICK));
        }
        let (Phase::Member(membership), Some(backend)) = (&mut self.phase, &mut self.backend) else {
            return Ok(until);
        };
        if let (Some(lost), Some(ours)) = (&lost, &membership.published) {
            let cause = FailureNote::NodeLost { node: lost.node.clone() };
            backend.correct_failure(membership.number, ours, &cause).await?;
            (membership.failure, membership.published) = (Some(cause), None);
        }
        self.answer_lost_node(lost);
        Ok(until)
    }

    /// What the other agents have shown since the question for a lost node was asked.
    fn shown_by_others(&self, since: Instant, done: &[Node], others_have_reported: bool) -> PeerActivity {
        let Phase::Member(membership) = &self.phase else {
            return PeerActivity { all_live: true, doubted_until: None, awaits_cause: false };
        };
        let own = self.me.as_ref().map(|me| &me.node);
        let is_asked = |node: &&Node| Some(*node) != own && !done.contains(node);
        let agents = membership.nodes.iter().filter(|node| self.peers.agents.contains_key(*node));
        let asked_for: Vec<&Node> = agents.filter(is_asked).collect();
        let (detector, tick) = (&self.peers.failure_detector, self.plan.tick());
        let has_lost_peer = |note: &FailureNote| note.lost_peer().is_some();
        PeerActivity {
            all_live: asked_for.iter().all(|node| detector.is_alive_since(node, since)),
            doubted_until: asked_for
                .iter()
                .filter_map(|node| detector.heartbeat_late_until(node, tick))
                .max(),
            awaits_cause: !others_have_reported && membership.published.as_deref().is_some_and(has_lost_peer),
        }
    }

    /// Answers an open question for a lost node.
    pub(super) fn answer_lost_node(&mut self, lost: Option<LostNode>) {
        if let Phase::Member(membership) = &mut self.phase
            && membership.lost_node_query.take().is_some()
        {
            self.events.send(RendezvousEvent::LostNodeFound(lost));
        }
    }
}
