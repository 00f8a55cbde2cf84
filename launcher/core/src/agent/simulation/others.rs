//! The other nodes of the job as this node sees them, and what is due because of them
//! (`state/rendezvous.rs`).

use std::time::{Duration, Instant};

use rankrun_contract::env::Master;
use rankrun_contract::rank::{LocalRank, NodeCount, NodeRank, Rank, WorldSize};

use super::super::tests::rendezvous_failure;
use super::invariants::{Turn, Verdict, require};
use super::node::{Node, Process};
use super::oracle::{Cause, GenerationRecord, Oracle, Question};
use super::setup::millis;
use crate::agent::message::{Action, Input, PeerNotice};
use crate::exit_code::ExitStatus;
use crate::job_event::{JobEvent, LostPeer, WorkerEnd};
use crate::posix::Exit;
use crate::rendezvous::note::{RuleEnd, RuleNote};
use crate::rendezvous::{
    FailureNote, LossRole, LostNode, MembershipChange, NodeName, PeerLoss, RendezvousEnd, Round,
    WorkerFailure,
};
use crate::simulated::Random;
use crate::spec::CliFlavor;
use crate::spec::stop::StopReason;

/// A rank of another node.
pub(super) const ELSEWHERE: u32 = 7;

/// An event on the other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerEvent {
    /// The round is complete that this node has joined.
    Completes,
    PeerFails,
    /// A peer fails because it lost this rank; the first ranks belong to this node.
    PeerLoses(u32),
    PeerIsLost,
    /// Another node reports that the loss of a node was the first failure.
    PeerReportsLoss,
    NodeWaits,
    /// This node is cut off; the others take it for dead after this many milliseconds.
    CutsOff(u32),
    /// The workers of all nodes have succeeded.
    AllSucceed,
    Closes,
    EndsByRule(RuleEnd),
    NotNeeded,
    Fails,
}

impl PeerEvent {
    pub(super) fn random(random: &mut Random) -> Self {
        random.pick(&[
            Self::Completes,
            Self::Completes,
            Self::Completes,
            Self::PeerFails,
            Self::PeerLoses(0),
            Self::PeerLoses(1),
            Self::PeerLoses(ELSEWHERE),
            Self::PeerIsLost,
            Self::PeerReportsLoss,
            Self::NodeWaits,
            Self::CutsOff(0),
            Self::CutsOff(300),
            Self::CutsOff(2_000),
            Self::AllSucceed,
            Self::AllSucceed,
            Self::Closes,
            Self::EndsByRule(RuleEnd::Succeed),
            Self::EndsByRule(RuleEnd::Requeue),
            Self::NotNeeded,
            Self::Fails,
        ])
    }
}

/// The state of the rendezvous, which changes before the agent is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum RoundMembership {
    #[default]
    Idle,
    Joining,
    Member,
    /// A member of the round with successful workers.
    Succeeded,
    Out,
}

/// The rendezvous of a virtual node.
#[derive(Debug, Default)]
pub(super) struct Rendezvous {
    membership: RoundMembership,
    rounds: u64,
}

impl Rendezvous {
    /// The answer of a rendezvous without other nodes, which is there at once.
    pub(super) fn answer_alone(&mut self, action: &Action) -> Option<Input> {
        Some(match action {
            Action::Join { .. } => {
                self.rounds += 1;
                Input::Joined(Box::new(Round { nodes: NodeCount::ONE, ..round(self.rounds) }))
            }
            Action::FindLostNode => Input::LostNodeFound(None),
            Action::TellSuccess => Input::AllSucceeded,
            _ => return None,
        })
    }

    pub(super) const fn join(&mut self) {
        self.membership = RoundMembership::Joining;
    }

    pub(super) fn succeed(&mut self) {
        if self.membership == RoundMembership::Member {
            self.membership = RoundMembership::Succeeded;
        }
    }

    /// The input for the agent; `None` if the event is impossible now.
    pub(super) fn happen(&mut self, what: PeerEvent, now: Instant) -> Option<Input> {
        let is_member = matches!(self.membership, RoundMembership::Member | RoundMembership::Succeeded);
        let change = |change| is_member.then_some(Input::Changed(change));
        let node = NodeName::of_host("th2");
        match what {
            PeerEvent::Completes if self.membership == RoundMembership::Joining => {
                self.membership = RoundMembership::Member;
                self.rounds += 1;
                Some(Input::Joined(Box::new(round(self.rounds))))
            }
            PeerEvent::Completes => None,
            PeerEvent::PeerFails => change(MembershipChange::from(note())),
            PeerEvent::PeerLoses(rank) => {
                let lost = Some(PeerLoss::Rank(Rank(rank)));
                change(MembershipChange::from(note_with_loss(lost)))
            }
            PeerEvent::PeerIsLost => change(MembershipChange::Lost(lost_node(LossRole::EndsRound))),
            PeerEvent::PeerReportsLoss => change(MembershipChange::Lost(lost_node(LossRole::FirstFailure))),
            PeerEvent::NodeWaits => change(MembershipChange::NodeWaits { node }),
            PeerEvent::CutsOff(left) => change(MembershipChange::CutOff { kill_by: now + millis(left) }),
            PeerEvent::AllSucceed => {
                (self.membership == RoundMembership::Succeeded).then_some(Input::AllSucceeded)
            }
            PeerEvent::Closes => self.over(RendezvousEnd::Closed { failure: Some(note()) }),
            PeerEvent::EndsByRule(then) => {
                let rule = RuleNote { text: "exit=1".to_owned(), then };
                self.over(RendezvousEnd::ByRule { rule, failure: Some(note()) })
            }
            PeerEvent::NotNeeded => self.over(RendezvousEnd::NotNeeded),
            PeerEvent::Fails => {
                self.over(RendezvousEnd::Failed { kill_by: None, error: rendezvous_failure() })
            }
        }
    }

    fn over(&mut self, ending: RendezvousEnd) -> Option<Input> {
        let is_in = !matches!(self.membership, RoundMembership::Idle | RoundMembership::Out);
        is_in.then(|| {
            self.membership = RoundMembership::Out;
            Input::RendezvousEnded(ending)
        })
    }
}

pub(super) fn round(number: u64) -> Round {
    let world_size = WorldSize::new(8).expect("eight");
    Round {
        number,
        node_rank: NodeRank(0),
        nodes: NodeCount::new(2).expect("two"),
        base_rank: Rank(0),
        world_size,
        base_role_rank: Rank(0),
        role_world_size: world_size,
        master: Master { addr: "th1".to_owned(), port: 1, uses_agent_store: true },
        members: Vec::new(),
        interface: None,
    }
}

pub(super) fn lost_node(role: LossRole) -> LostNode {
    LostNode { node: NodeName::of_host("th2"), role }
}

fn note() -> FailureNote {
    note_with_loss(None)
}

pub(super) fn note_with_loss(lost_peer: Option<PeerLoss>) -> FailureNote {
    FailureNote::Worker(WorkerFailure {
        node: NodeName { rank: Some(NodeRank(1)), ..NodeName::of_host("th2") },
        rank: Rank(5),
        local_rank: LocalRank(1),
        pid: 1,
        ended: "exit code 1".to_owned(),
        message: None,
        last_lines: Vec::new(),
        lost_peer,
    })
}

/// The failure that another node has reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerFailure {
    /// A worker failed because it lost this rank.
    Lost(Rank),
    /// A worker failed by itself.
    Own,
    /// A node was lost.
    NodeLost,
}

impl GenerationRecord {
    fn peer_failed(&mut self, failed: &WorkerFailure) {
        match (self.peer, failed.lost_peer) {
            (Some(PeerFailure::NodeLost), _) => {}
            (_, None) => self.peer = Some(PeerFailure::Own),
            (None, Some(PeerLoss::Rank(rank))) => self.peer = Some(PeerFailure::Lost(rank)),
            (_, Some(_)) => {}
        }
    }
}

/// The oracle's record of the other nodes.
#[derive(Debug, Default)]
pub(super) struct PeerOracle {
    /// The machine waits for a round.
    pub(super) is_joining: bool,
    /// The last round that included this node.
    pub(super) round: Option<u64>,
    /// The restarts that the workers of this node see.
    pub(super) restarts: u32,
    /// How the job has ended on another node.
    pub(super) over: Option<RendezvousEnd>,
    pub(super) all_succeeded: bool,
}

impl Oracle {
    /// Records an input about other nodes, just before the machine gets it.
    pub(super) fn enter_elsewhere(&mut self, input: &Input, now: Instant) {
        let is_in_a_round = self.starts > 0 && !self.peers.is_joining;
        match input {
            Input::Joined(round) if self.peers.is_joining => {
                (self.peers.is_joining, self.peers.round) = (false, Some(round.number));
            }
            // A node that is done has no worker left to kill.
            Input::Changed(MembershipChange::CutOff { .. }) if self.current.settled_at.is_some() => {}
            Input::Changed(change) if is_in_a_round => {
                if let MembershipChange::CutOff { kill_by } = change {
                    // After a suspension the job may hear of it late.
                    let kill_by = (*kill_by).max(now);
                    self.current.cut_off =
                        Some(self.current.cut_off.map_or(kill_by, |before| before.min(kill_by)));
                    self.current.kill_by = self.current.kill_by.map(|before| before.min(kill_by));
                }
                // Once the cause is known, it stays.
                let is_open = self.current.last_answer.is_none();
                match change {
                    MembershipChange::Failed(failed) if is_open => self.current.peer_failed(failed),
                    MembershipChange::Lost(LostNode { role: LossRole::FirstFailure, .. }) if is_open => {
                        self.current.peer = Some(PeerFailure::NodeLost);
                    }
                    _ => {}
                }
                self.current.set_cause(Cause::Stop(StopReason::Membership), now);
            }
            Input::LostNodeFound(node) if self.record_answer(Question::LostNode, now) => {
                self.current.is_blamed_elsewhere |= node.is_some();
            }
            // The news of an earlier round changes nothing.
            Input::AllSucceeded if self.current.settled_at.is_some() && self.current.cause.is_none() => {
                self.peers.all_succeeded = true;
            }
            Input::RendezvousEnded(ending) if self.peers.over.is_none() => {
                self.peers.over = Some(ending.clone());
                if is_in_a_round {
                    self.current.set_cause(Cause::Stop(StopReason::EndedElsewhere), now);
                }
            }
            _ => {}
        }
    }

    /// The worker that another node has lost ends while all are stopped for that: it had failed before.
    pub(super) fn ends_as_lost(&self, end: &WorkerEnd, node: &Node) -> bool {
        let is_ended_by_us = |process: &Process| process.is_ended_by_us(end.exit);
        let by_us = match end.exit {
            Exit::Signal { number: libc::SIGTERM, .. } => true,
            // A worker may have been killed from outside just before all were.
            Exit::Signal { number: libc::SIGKILL, .. } if self.current.is_killed_suspended => true,
            Exit::Signal { .. } => node.by_pid(end.pid).is_some_and(is_ended_by_us),
            Exit::Code(_) => false,
        };
        let is_stopped = by_us || self.setup.may_be_group_signal(end.exit) || is_interrupt(end.exit);
        let has_written = end.error_file_info.is_some_and(|it| it.lost_peer.is_none());
        let lost_another =
            end.error_file_info.is_some_and(|it| matches!(it.lost_peer, Some(LostPeer::Elsewhere(_))));
        self.current.cause == Some(Cause::Stop(StopReason::Membership))
            && self.current.peer == Some(PeerFailure::Lost(Rank(end.local_rank.0)))
            && self.peers.over.is_none()
            && self.stop_signal.is_none()
            && !end.exit.is_success()
            && !lost_another
            && (!is_stopped || has_written)
    }
}

impl Turn<'_> {
    /// The workers of this node ended because of another node.
    pub(super) fn is_others(&self) -> bool {
        let current = &self.oracle.current;
        match self.cause() {
            Some(Cause::Stop(StopReason::Membership | StopReason::EndedElsewhere)) => true,
            Some(Cause::Failed(_) | Cause::Uninterruptible(_) | Cause::NotJoined(_)) => {
                self.is_reported_elsewhere() || current.is_blamed_elsewhere
            }
            Some(Cause::Stop(_)) | None => false,
        }
    }

    /// Another node has reported the possible cause of the failure here. A failure that lost no peer is not
    /// caused by one that did.
    fn is_reported_elsewhere(&self) -> bool {
        match self.oracle.current.peer {
            Some(PeerFailure::Own | PeerFailure::NodeLost) => true,
            Some(PeerFailure::Lost(_)) => self.lost_elsewhere(),
            None => false,
        }
    }

    /// True if the blamed worker reports the loss of a peer on another node.
    fn lost_elsewhere(&self) -> bool {
        let said = self.actions.iter().find_map(|action| match action {
            Action::Emit(JobEvent::GroupFailed { cause }) => Some(*cause),
            _ => None,
        });
        let first = || self.oracle.current.exits_since_cause().first().copied();
        let blamed = said.or(self.oracle.current.group_failed).or_else(first);
        blamed
            .and_then(|end| end.error_file_info)
            .is_some_and(|it| matches!(it.lost_peer, Some(LostPeer::Elsewhere(_))))
    }

    /// A worker of this node failed by itself, but another node reported its own failure first.
    fn fails_beside_another(&self) -> bool {
        let is_failure =
            matches!(self.cause(), Some(Cause::Failed(_) | Cause::Uninterruptible(_) | Cause::NotJoined(_)));
        let is_node_lost = self.oracle.current.peer == Some(PeerFailure::NodeLost);
        let is_own = self.is_reported_elsewhere() && !self.lost_elsewhere() && !is_node_lost;
        is_failure && is_own && !self.oracle.current.is_blamed_elsewhere
    }

    /// If all start again: whether the workers of this node see a further restart, and whether its budget pays.
    pub(super) fn costs(&self) -> (bool, bool) {
        let is_own = self.restarts() || self.fails_beside_another();
        let is_by_worker = matches!(self.oracle.current.peer, Some(PeerFailure::Own | PeerFailure::Lost(_)));
        let is_jobs = self.setup.cli_flavor == CliFlavor::Rankrun
            && is_by_worker
            && !(self.oracle.current.is_lost_peer && self.oracle.current.is_blamed_elsewhere);
        (is_own || self.is_requested(), is_own || is_jobs)
    }

    /// All workers start again by the restart policy.
    pub(super) fn restarts(&self) -> bool {
        let joins = self.actions.iter().any(|action| matches!(action, Action::Join { .. }));
        self.oracle.starts > 0 && joins && !self.is_others() && !self.is_requested()
    }

    /// The user wants all workers to start again.
    fn is_requested(&self) -> bool {
        self.cause() == Some(Cause::Stop(StopReason::RestartRequest))
    }

    /// The machine starts or joins the next generation: the index of that action.
    pub(super) fn next_generation_at(&self) -> Option<usize> {
        let begins = |action: &Action| matches!(action, Action::Start { .. } | Action::Join { .. });
        self.actions.iter().position(begins)
    }

    /// The machine starts or joins the next generation.
    pub(super) fn goes_on(&self) -> bool {
        self.next_generation_at().is_some()
    }
}

/// A start is for the last completed round, and for no other.
pub(super) fn starts_are_of_their_rounds(turn: &Turn<'_>) -> Verdict {
    let completed = match turn.input {
        Some(Input::Joined(round)) if turn.oracle.peers.round == Some(round.number) => Some(round.number),
        _ => None,
    };
    for action in turn.actions {
        if let Action::Start { round, .. } = action {
            let number = round.number;
            require(completed == Some(number), || {
                format!("a start for round {number} where {completed:?} was completed")
            })?;
        }
        if let Action::Join { .. } = action {
            require(turn.oracle.ready, || "it joins before anything is ready".to_owned())?;
            let is_asked = turn.oracle.open_question.is_some();
            require(!is_asked, || "it joins while something is being looked at".to_owned())?;
        }
    }
    Ok(())
}

/// An event on another node ends the round here at once, and the other nodes are told of events here at once.
pub(super) fn others_are_heard(turn: &Turn<'_>) -> Verdict {
    if turn.oracle.finished {
        return Ok(());
    }
    let (oracle, finish) = (turn.oracle, turn.finish());
    let is_up = oracle.time_limit_at().is_some_and(|end| end <= turn.now);
    match turn.input {
        Some(Input::Changed(_) | Input::RendezvousEnded(_))
            if oracle.starts > 0 && !oracle.peers.is_joining =>
        {
            let untold = turn.workers().find(|process| process.is_alive() && process.signals.is_empty());
            let tells = turn.actions.iter().any(|action| matches!(action, Action::Signal { .. }));
            require(untold.is_none() || tells, || format!("the round is over, and {untold:?} runs on"))?;
        }
        _ => {}
    }
    let is_nobody_left =
        || !turn.workers().any(|process| !process.is_known()) && !oracle.current.start_pending;
    if matches!(turn.input, Some(Input::RendezvousEnded(_))) && is_nobody_left() {
        let is_awaited = turn.leftover_since().is_some() || turn.awaits_groups();
        require(finish.is_some() || is_awaited, || {
            "the job is over and no worker is left, and it goes on".to_owned()
        })?;
    }
    if matches!(turn.input, Some(Input::Joined(_))) && oracle.stop_signal.is_none() {
        require(turn.goes_on() || finish.is_some(), || {
            "a round is complete, and no worker starts".to_owned()
        })?;
    }
    if matches!(turn.input, Some(Input::AllSucceeded))
        && oracle.current.cause.is_none()
        && oracle.stop_signal.is_none()
    {
        require(finish.is_some() || turn.leftover_since().is_some(), || {
            "all have succeeded, and the job goes on".to_owned()
        })?;
    }
    if matches!(turn.input, Some(Input::LostNodeFound(Some(_))))
        && oracle.current.is_blamed_elsewhere
        && !is_up
    {
        require(turn.goes_on() || finish.is_some(), || {
            "it is another node's doing, and nothing is done".to_owned()
        })?;
        let ends = finish.is_some() && oracle.peers.over.is_none() && oracle.stop_signal.is_none();
        require(!ends, || "it is another node's doing, and the job ends".to_owned())?;
    }
    failure_is_reported_at_once(turn)?;
    finish.map_or(Ok(()), |end| {
        let is_left = end.stopped_by.is_some()
            || end.time_limit.is_some()
            || end.remote_end.is_some()
            || end.failure.is_none() && !matches!(turn.cause(), Some(Cause::Stop(StopReason::NotStarted)));
        let due = match end.status {
            ExitStatus::SUCCESS if end.remote_end.is_none() => PeerNotice::Succeeded,
            _ if is_left => PeerNotice::Left,
            _ => PeerNotice::Failed,
        };
        require(end.peer_notice == due, || format!("{:?} is told where {due:?} is due", end.peer_notice))
    })
}

/// The failure is reported as soon as it is known.
fn failure_is_reported_at_once(turn: &Turn<'_>) -> Verdict {
    let tells = turn.actions.iter().any(|action| matches!(action, Action::TellFailure { .. }));
    let (was, is) = (turn.oracle.current.is_failure_reported, turn.cause());
    let is_own = matches!(is, Some(Cause::Failed(_) | Cause::Uninterruptible(_) | Cause::NotJoined(_)));
    let is_known = turn.oracle.peers.over.is_some() || turn.is_reported_elsewhere();
    let is_settled =
        turn.actions.iter().any(|action| matches!(action, Action::Emit(JobEvent::GroupFailed { .. })));
    require(!tells || is_own && (!was || is_settled), || {
        format!("a failure is told where the cause is {is:?}")
    })?;
    require(tells || was || is_known || !is_own, || format!("no peer is told of {is:?}"))
}

/// SIGINT counts whatever signals are listed.
const fn is_interrupt(exit: Exit) -> bool {
    matches!(exit, Exit::Signal { number: libc::SIGINT, .. } | Exit::Code(130))
}

/// From the question about the cause until the machine stops waiting for the answer.
pub(super) const LONGEST_LOST_NODE_QUERY: Duration = Duration::from_secs(8);
