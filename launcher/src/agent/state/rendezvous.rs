//! The other nodes in the job's state: workers run only in a completed round, and an event on another node
//! ends the round for all. The rendezvous thread sends the events and tells the other nodes. Pure.
//!
//! - A worker is started only for a complete round, and only once per round (invariant 2).
//! - Events on other nodes use no restart of this node (invariant 6): another node fails first, is lost,
//!   leaves or joins, or this node is cut off. A failure here that a lost node caused does not count.
//! - A signal and the time limit end every such wait (invariants 7 and 10).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use rankrun_contract::rank::LocalRank;

use super::{State, with_at};
use crate::agent::failure::{Failure, FailureKind};
use crate::agent::message::{Action, JobEvent, LocalStop, PeerNotice, RemoteEnd, WorkerEnd};
use crate::agent::phase::{JobPhase, StopCause, StopStage};
use crate::agent::policy::{Decision, NoRestart, NodeSlot};
use crate::exit_code::{ExitStatus, LAUNCHER_FAILED};
use crate::rendezvous::{FailureNote, MembershipChange, NodeName, PeerLoss, Round};
use crate::spec::CliFlavor;

/// The rendezvous answers within 50 ms if a lost node is known at once, else within 7 s, or it does not know.
const LONGEST_BLAME: Duration = Duration::from_secs(8);
/// A failure here counts as an effect if it comes this shortly before the notice that a node has ended the
/// job, by its own stop or as its launcher failed. That node stops its workers as it sends the notice.
pub(super) const SAME_MOMENT: Duration = Duration::from_secs(1);
/// A longer wait for the other nodes is reported.
const SILENT_WAIT: Duration = Duration::from_secs(2);

/// The end of the job on another node.
#[derive(Debug)]
struct JobEndElsewhere {
    ending: RemoteEnd,
    /// The failure here is an effect of that node's stop.
    is_their_doing: bool,
}

/// What this node knows of the other nodes.
#[derive(Debug, Default)]
pub(super) struct PeerStatus {
    /// The first failure of this round, if it happened on another node.
    failed_first: Option<FailureNote>,
    over: Option<JobEndElsewhere>,
    has_started: bool,
    /// This node could not start its workers.
    cannot_start: bool,
}

impl State {
    /// Takes part in the next round; no worker of the last round is left.
    pub(super) fn join(&mut self, now: Instant, failure: Option<Failure>) -> Action {
        self.phase = JobPhase::Joining { failure, since: now };
        Action::Join { workers: self.rules.workers }
    }

    /// A round is complete, and this node is in it.
    pub(super) fn joined(&mut self, now: Instant, round: Box<Round>) -> Vec<Action> {
        let JobPhase::Joining { failure, since } = &mut self.phase else { return Vec::new() };
        let (failure, since) = (failure.take(), *since);
        let again = std::mem::replace(&mut self.others.has_started, true);
        if again && self.no_time_for_a_restart(now) {
            return vec![self.finish_failed(failure)];
        }
        if !again {
            self.timer.start(self.rules.time_limit, now);
        }
        self.others.failed_first = None;
        let place = NodeSlot { node: round.node_rank, base: round.base_rank };
        self.history.joined(place, now.saturating_duration_since(since));
        let said = again.then(|| Action::Emit(JobEvent::Rejoined { round: round.clone() }));
        said.into_iter().chain([self.start(now, Some(round))]).collect()
    }

    /// The round is over because of another node or the store.
    pub(super) fn changed(&mut self, now: Instant, change: MembershipChange) -> Vec<Action> {
        let is_newcomer = matches!(change, MembershipChange::NodeWaits { .. });
        let kill_by = kill_by(now, &change);
        let ranks = self.collect_ranks_for_change(now, &change);
        match std::mem::replace(&mut self.phase, JobPhase::Finished) {
            JobPhase::Running { live } | JobPhase::Undecided { live, .. } => {
                self.remember(&change);
                ranks.into_iter().chain(self.stop_for_others(now, live, change)).collect()
            }
            JobPhase::Stopping { live, cause, stage } => {
                self.remember(&change);
                self.phase = JobPhase::Stopping { live, cause, stage };
                self.kill_no_later_than(kill_by);
                let said = JobEvent::Changed { change, live: Vec::new(), grace: Duration::ZERO };
                (!is_newcomer).then_some(Action::Emit(said)).into_iter().collect()
            }
            phase @ JobPhase::Settling { .. }
                if matches!(change, MembershipChange::CutOff { .. } | MembershipChange::StoodStill) =>
            {
                // No worker is left to kill, and a node that is done stays done.
                self.phase = phase;
                Vec::new()
            }
            JobPhase::Settling { .. } => {
                self.remember(&change);
                let said = JobEvent::Changed { change, live: Vec::new(), grace: Duration::ZERO };
                let swept = Action::KillLeftovers { generation: self.generation };
                let early = self.finished_before_loss(self.others.failed_first.as_ref());
                let said = [swept, Action::Emit(said)].into_iter().chain(early);
                said.chain(self.go_on_with_others(now)).collect()
            }
            phase => {
                let is_blaming = matches!(phase, JobPhase::Blaming { .. });
                self.phase = phase;
                let MembershipChange::PeerFailed(note) = &change else { return Vec::new() };
                if !is_blaming || self.others.failed_first.as_ref() == Some(note) {
                    return Vec::new();
                }
                self.remember(&change);
                let said = JobEvent::Changed { change, live: Vec::new(), grace: Duration::ZERO };
                vec![Action::Emit(said)]
            }
        }
    }

    fn remember(&mut self, change: &MembershipChange) {
        if let MembershipChange::PeerFailed(note) = change {
            // A note from before a lost node was detected was not the cause, nor is a failure that lost a
            // peer.
            let is_first = self.others.failed_first.as_ref().is_none_or(|told| note.outranks(told));
            if note.is_of_lost_node() || is_first {
                self.others.failed_first = Some(note.clone());
            }
        }
    }

    /// A worker ended while another node's failure stops this node. If that failure is the loss of this very
    /// worker, and our stop did not end the worker, then this worker is the cause.
    pub(super) fn ended_for_others(
        &self,
        now: Instant,
        end: WorkerEnd,
        cause: StopCause,
    ) -> (StopCause, Option<Action>) {
        let lost = self.others.failed_first.as_ref().and_then(|told| told.lost);
        let is_lost = lost == Some(PeerLoss::Rank(self.history.rank_of(end.local_rank)));
        let is_stopped = self.was_stopped(end.exit) || self.rules.is_of_a_stop_signal(end.exit);
        let has_told = end.testimony.is_some_and(|testimony| testimony.lost.is_none());
        let is_cause =
            is_lost && !end.exit.is_success() && !end.lost_elsewhere() && (!is_stopped || has_told);
        let is_over = self.stopped_by.is_some() || self.others.over.is_some();
        if cause != StopCause::Membership || !is_cause || is_over {
            return (cause, None);
        }
        let manner = if self.was_stopped(end.exit) { FailureKind::EndedByStop } else { FailureKind::Ended };
        (StopCause::Failure(self.failure(now, end, manner)), self.tell_of(end))
    }

    fn stop_for_others(
        &mut self,
        now: Instant,
        live: BTreeSet<LocalRank>,
        change: MembershipChange,
    ) -> Vec<Action> {
        let kill_by = kill_by(now, &change);
        let ours = self.ours(&live);
        let actions = self.stop(now, live, StopCause::Membership, Signal::SIGTERM);
        self.kill_no_later_than(kill_by);
        let grace = self.left_of_the_grace(now);
        told_at_once(actions, JobEvent::Changed { change, live: ours, grace })
    }

    /// True if a worker may be alive that must not outlive this node's lease.
    pub const fn has_workers(&self) -> bool {
        self.is_running() || matches!(self.phase, JobPhase::Stopping { .. })
    }

    /// The other nodes take a cut-off node for dead at this time; none of its workers may then be alive.
    fn kill_no_later_than(&mut self, kill_by: Option<Instant>) {
        if let (JobPhase::Stopping { stage: StopStage::Asked { kill_at, .. }, .. }, Some(kill_by)) =
            (&mut self.phase, kill_by)
        {
            *kill_at = kill_by.min(*kill_at);
        }
    }

    /// The last worker was reaped of a generation that another node's failure or change ended.
    pub(super) fn go_on_with_others(&mut self, now: Instant) -> Vec<Action> {
        let is_over = self.stopped_by.is_some() || self.others.over.is_some();
        if is_over || self.no_time_for_a_restart(now) {
            return vec![self.finish_failed(None)];
        }
        let by_worker = self.others.failed_first.as_ref().is_some_and(|told| told.pid != 0);
        // Under the name rankrun all nodes share one budget.
        if by_worker && self.rules.persona == CliFlavor::Rankrun {
            self.history.restarted(now, &self.rules.restart);
            self.restarts_of_job.0 += 1;
        } else {
            self.history.rejoined(now, &self.rules.restart);
        }
        self.generation.0 += 1;
        vec![self.join(now, None)]
    }

    /// The same after a failure here that another node reported first. A worker that failed by itself costs
    /// this node a restart, as under torchrun.
    fn go_on_after(&mut self, now: Instant, failure: Failure) -> Vec<Action> {
        let is_own = !failure.first.lost_elsewhere() && !self.is_lost_nodes_doing();
        let is_over = self.stopped_by.is_some() || self.others.over.is_some();
        if !is_own || is_over || self.no_time_for_a_restart(now) {
            return self.go_on_with_others(now);
        }
        if self.rules.persona == CliFlavor::Torchrun {
            let decision = self.decide(now, &failure);
            if matches!(decision, Decision::Fail(NoRestart::Budget | NoRestart::Window { .. })) {
                return self.carry_out(now, decision, failure);
            }
            self.history.restarted(now, &self.rules.restart);
            self.restarts_of_job.0 += 1;
            self.restarts_used.0 += 1;
            self.generation.0 += 1;
            return vec![self.join(now, Some(failure))];
        }
        self.restarts_used.0 += 1;
        self.go_on_with_others(now)
    }

    fn is_lost_nodes_doing(&self) -> bool {
        self.others.failed_first.as_ref().is_some_and(FailureNote::is_of_lost_node)
    }

    /// Reports the failure to the other nodes at once, unless they know its cause.
    pub(super) fn tell_of(&self, end: WorkerEnd) -> Option<Action> {
        let is_news = self.others.over.is_none() && !self.is_others_doing(end);
        (self.rules.has_rendezvous && is_news).then_some(Action::TellFailure { end })
    }

    /// True if another node has reported the cause of such a failure. A failure that lost no peer is not a
    /// consequence of a failure that lost one.
    pub(super) fn is_others_doing(&self, end: WorkerEnd) -> bool {
        let told = self.others.failed_first.as_ref();
        told.is_some_and(|told| told.lost.is_none() || end.lost_elsewhere())
    }

    /// This node stops its workers and then leaves: the other nodes may be unable to go on without it.
    pub(super) fn tell_of_stop(&self, because: LocalStop) -> Option<Action> {
        let is_news = self.rules.has_rendezvous && self.others.over.is_none();
        is_news.then_some(Action::TellStop { because })
    }

    /// Decides whether another node caused the failure, as long as a restart may follow; `None` if this node
    /// decides alone.
    pub(super) fn put_down_to_others(&mut self, now: Instant, failure: &Failure) -> Option<Vec<Action>> {
        if !self.rules.has_rendezvous {
            return None;
        }
        if let Some(end) = self.end_for_others(failure) {
            return Some(vec![end]);
        }
        if self.is_others_doing(failure.first) {
            return Some(self.go_on_after(now, failure.clone()));
        }
        self.others.failed_first = None;
        let may_go_on = self.stopped_by.is_none() && !self.timer.is_over() && failure.is_restartable();
        if !may_go_on {
            return None;
        }
        self.phase = JobPhase::Blaming { failure: failure.clone(), until: now + LONGEST_BLAME };
        Some(vec![Action::FindLostNode])
    }

    /// The result of a job that ended on another node. A failure that another node caused is not a failure of
    /// this node.
    fn end_for_others(&mut self, failure: &Failure) -> Option<Action> {
        let over = self.others.over.as_ref()?;
        let is_own = !self.is_others_doing(failure.first) && !over.is_their_doing;
        let own = is_own.then(|| failure.clone());
        Some(self.finish_failed(own))
    }

    /// The result if a process of the failed generation remains and other nodes have ended the generation or
    /// the job.
    pub(super) fn cannot_go_on_for_others(&mut self, failure: &Failure) -> Option<Action> {
        let theirs = self.is_others_doing(failure.first);
        self.end_for_others(failure).or_else(|| theirs.then(|| self.finish_failed(None)))
    }

    /// The answer to the question whether a lost node caused the failure here.
    pub(super) fn blamed(&mut self, now: Instant, lost: Option<NodeName>) -> Vec<Action> {
        let JobPhase::Blaming { failure, until } = &self.phase else { return Vec::new() };
        // A late answer counts as "not known".
        let (failure, lost) = (failure.clone(), lost.filter(|_| now < *until));
        match (self.is_others_doing(failure.first), &lost) {
            (true, None) => return self.go_on_after(now, failure),
            (true, Some(_)) => return self.go_on_with_others(now),
            (false, _) => {}
        }
        let Some(node) = lost else { return self.look_or_decide(now, failure) };
        let said = Action::Emit(JobEvent::Blamed { node });
        [said].into_iter().chain(self.go_on_with_others(now)).collect()
    }

    /// All workers of this node have succeeded.
    pub(super) fn all_succeeded_here(&mut self, now: Instant) -> Vec<Action> {
        if !self.rules.has_rendezvous {
            return vec![self.succeed(None)];
        }
        self.history.generation_ended(now);
        self.history.generation_is_gone(now);
        self.phase = JobPhase::Settling { say_at: Some(now + SILENT_WAIT) };
        vec![Action::TellSuccess]
    }

    /// The job does not end well although all workers of this node have succeeded: leftover processes are
    /// killed, not awaited.
    pub(super) fn settled_badly(&mut self) -> Vec<Action> {
        let swept = Action::KillLeftovers { generation: self.generation };
        let first = self.ended_elsewhere().1;
        let early = self.finished_before_loss(first.as_ref());
        [swept].into_iter().chain(early).chain([self.finish_failed(None)]).collect()
    }

    /// The message where all workers of this node had exited with 0, and `first` lost one of them or an
    /// unnamed peer.
    fn finished_before_loss(&self, first: Option<&FailureNote>) -> Option<Action> {
        let note = first?;
        let ours = |rank| (0..self.rules.workers.get()).any(|at| self.history.rank_of(LocalRank(at)) == rank);
        let is_ours = match note.lost? {
            PeerLoss::Rank(rank) => ours(rank),
            PeerLoss::Unnamed => true,
        };
        is_ours.then(|| Action::Emit(JobEvent::FinishedBeforeLoss { note: note.clone() }))
    }

    /// The workers of all nodes have succeeded.
    pub(super) fn all_succeeded(&mut self) -> Vec<Action> {
        match self.phase {
            JobPhase::Settling { .. } => vec![self.succeed(None)],
            _ => Vec::new(),
        }
    }

    /// The rendezvous is over for this node.
    pub(super) fn over(&mut self, now: Instant, ending: RemoteEnd) -> Vec<Action> {
        if self.phase == JobPhase::Finished || self.others.over.is_some() {
            return Vec::new();
        }
        let is_their_doing = self.fails_of_that_node(now, &ending);
        self.others.over = Some(JobEndElsewhere { ending: ending.clone(), is_their_doing });
        let ranks = self.collect_ranks_for_end(now, &ending);
        let kill_by = match &ending {
            RemoteEnd::Failed { kill_by } => *kill_by,
            RemoteEnd::NotNeeded | RemoteEnd::Closed { .. } | RemoteEnd::ByRule { .. } => None,
        };
        match std::mem::replace(&mut self.phase, JobPhase::Finished) {
            JobPhase::Running { live }
            | JobPhase::Undecided { live, .. }
            | JobPhase::Observing { live, .. } => {
                let ours = self.ours(&live);
                let actions = self.stop(now, live, StopCause::Over, Signal::SIGTERM);
                self.kill_no_later_than(kill_by);
                let grace = self.left_of_the_grace(now);
                let said = JobEvent::OverElsewhere { ending, live: ours, grace };
                ranks.into_iter().chain(told_at_once(actions, said)).collect()
            }
            phase @ JobPhase::Stopping { .. } => {
                self.phase = phase;
                self.kill_no_later_than(kill_by);
                Vec::new()
            }
            JobPhase::Blaming { failure, .. }
            | JobPhase::Checking { failure, .. }
            | JobPhase::Waiting { failure, .. } => self.end_for_others(&failure).into_iter().collect(),
            JobPhase::Joining { failure, .. } => vec![self.finish_failed(failure)],
            JobPhase::Settling { .. } => self.settled_badly(),
            JobPhase::Starting | JobPhase::Finished => vec![self.finish_failed(None)],
        }
    }

    fn fails_of_that_node(&self, now: Instant, ending: &RemoteEnd) -> bool {
        let RemoteEnd::Closed { failure: Some(note) } = ending else { return false };
        let is_new = |end: Instant| now.saturating_duration_since(end) <= SAME_MOMENT;
        note.why_node_ended_job().is_some() && self.history.first_end().is_none_or(is_new)
    }

    /// How the job ended on another node, and its first failure there.
    pub(super) fn ended_elsewhere(&self) -> (Option<RemoteEnd>, Option<FailureNote>) {
        let over = self.others.over.as_ref().map(|over| over.ending.clone());
        let told = match &over {
            // A failure that a rule counts as success is not the job's cause.
            Some(RemoteEnd::ByRule { rule, .. }) if rule.is_success() => return (over, None),
            Some(RemoteEnd::Closed { failure } | RemoteEnd::ByRule { failure, .. }) => failure.clone(),
            _ => None,
        };
        let first = told.or_else(|| self.others.failed_first.clone()).filter(|_| over.is_some());
        (over, first)
    }

    /// What the other nodes are told when this node ends badly. A node that leaves does not close the job:
    /// the others may go on.
    pub(super) const fn farewell(&self, failure: Option<&Failure>) -> PeerNotice {
        let is_told = self.stopped_by.is_some() || self.timer.ended_it() || self.others.over.is_some();
        if !is_told && (failure.is_some() || self.others.cannot_start) {
            PeerNotice::Failed
        } else {
            PeerNotice::Left
        }
    }

    pub(super) const fn cannot_start(&mut self) {
        self.others.cannot_start = true;
    }

    /// Before the first start a stop has another exit status (contract 3.3).
    pub(super) const fn has_started(&self) -> bool {
        self.others.has_started
    }

    /// The exit status of a job that ended on another node.
    pub(super) fn status_of_the_others(&self) -> Option<ExitStatus> {
        self.others.over.as_ref().map(|over| match over.ending {
            RemoteEnd::NotNeeded => ExitStatus::SUCCESS,
            RemoteEnd::ByRule { ref rule, .. } => rule.then.status(),
            RemoteEnd::Closed { .. } | RemoteEnd::Failed { .. } => ExitStatus::Code(LAUNCHER_FAILED),
        })
    }
}

/// The latest time to kill the workers of a round that ended this way.
const fn kill_by(now: Instant, change: &MembershipChange) -> Option<Instant> {
    match change {
        MembershipChange::CutOff { kill_by } => Some(*kill_by),
        MembershipChange::Removed | MembershipChange::StoodStill => Some(now),
        MembershipChange::PeerFailed(_)
        | MembershipChange::PeerLost { .. }
        | MembershipChange::PeerLeft { .. }
        | MembershipChange::NodeWaits { .. } => None,
    }
}

/// Says it at once, but not before the running workers get the stop signal.
fn told_at_once(actions: Vec<Action>, said: JobEvent) -> Vec<Action> {
    let at = usize::from(matches!(actions.first(), Some(Action::Signal { .. })));
    with_at(actions, at, Action::Emit(said))
}
