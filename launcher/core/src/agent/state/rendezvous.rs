//! Rounds in the job's state: workers run only in a completed round, and an event on another node ends the
//! round for all. The rendezvous sends the events and tells the other nodes; in a job of one node it answers
//! at once. Pure.
//!
//! - A worker is started only for a complete round, and only once per round (invariant 2).
//! - Events on other nodes use no restart of this node (invariant 6): another node fails first, is lost,
//!   leaves or joins, or this node is cut off. A failure here that a lost node caused does not count.
//! - A signal and the time limit end every such wait (invariants 7 and 10).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rankrun_contract::rank::{LocalRank, NodeCount};

use super::{State, insert_action};
use crate::agent::failure::Failure;
use crate::agent::message::{Action, PeerNotice};
use crate::agent::phase::{JobPhase, StopStage};
use crate::agent::policy::{Decision, NodeSlot};
use crate::exit_code::{ExitStatus, LAUNCHER_FAILED};
use crate::job_event::{FailureKind, JobEvent, NoRestart, WorkerEnd};
use crate::rendezvous::{FailureNote, LostNode, MembershipChange, PeerLoss, RendezvousEnd, Round};
use crate::spec::CliFlavor;
use crate::spec::stop::StopReason;

/// The rendezvous answers within 50 ms if a lost node is known at once, else within 7 s, or it does not know.
const LOST_NODE_QUERY_TIMEOUT: Duration = Duration::from_secs(8);
/// A failure here counts as an effect if it comes this shortly before the notice that a node has ended the
/// job, by its own stop or as its launcher failed. That node stops its workers as it sends the notice.
pub(super) const SAME_MOMENT: Duration = Duration::from_secs(1);
/// A longer wait for the other nodes is reported.
const PEER_WAIT_REPORT_DELAY: Duration = Duration::from_secs(2);

/// The end of the job on another node.
#[derive(Debug)]
struct JobEndElsewhere {
    end: RendezvousEnd,
    /// The failure here is an effect of that node's stop.
    is_cause_of_failure: bool,
}

/// What this node knows of the other nodes.
#[derive(Debug, Default)]
pub(super) struct PeerStatus {
    /// The first failure of this round, if it happened on another node.
    first_failure: Option<FailureNote>,
    remote_end: Option<JobEndElsewhere>,
    /// The lease that has ended for this node, by its last instant. The state was told.
    pub(super) ended_lease: Option<Instant>,
    /// The number of nodes in the last round, this node included; `None` before the first round.
    nodes: Option<NodeCount>,
}

impl PeerStatus {
    /// True if other nodes are in the round.
    pub(super) fn has_peers(&self) -> bool {
        self.nodes.is_some_and(|nodes| nodes > NodeCount::ONE)
    }
}

impl State {
    /// Takes part in the next round; no worker of the last round is left.
    pub(super) fn join_next_round(&mut self, now: Instant, failure: Option<Failure>) -> Action {
        let leaves_if_possible = failure.is_some() && self.history.is_failing_node(&self.rules.restart);
        self.phase = JobPhase::Joining { failure, since: now };
        Action::Join { workers: self.rules.workers, leaves_if_possible }
    }

    /// A round is complete, and this node is in it.
    pub(super) fn on_round_joined(&mut self, now: Instant, round: Box<Round>) -> Vec<Action> {
        let JobPhase::Joining { failure, since } = &mut self.phase else { return Vec::new() };
        let (failure, since) = (failure.take(), *since);
        let (is_first, had_peers) = (self.peers.nodes.is_none(), self.peers.has_peers());
        self.peers.nodes = Some(round.nodes);
        if is_first {
            self.time_limit_timer.start(self.rules.time_limit, now);
        } else if self.expires_before(now) {
            return vec![self.finish_failed(failure)];
        }
        self.peers.first_failure = None;
        let place = NodeSlot { node: round.node_rank, base: round.base_rank };
        self.history.record_joined(place, now.saturating_duration_since(since));
        let is_reported = !is_first && (had_peers || self.peers.has_peers());
        let event = is_reported.then(|| Action::Emit(JobEvent::Rejoined { round: round.clone() }));
        event.into_iter().chain([self.start_generation(now, round)]).collect()
    }

    /// The round is over because of another node or the store.
    pub(super) fn on_membership_change(&mut self, now: Instant, change: MembershipChange) -> Vec<Action> {
        if self.has_failed_rendezvous() && matches!(change, MembershipChange::CutOff { .. }) {
            return Vec::new();
        }
        let is_newcomer = matches!(change, MembershipChange::NodeWaits { .. });
        let kill_by = kill_deadline(now, &change);
        let ranks = self.collect_ranks_for_change(now, &change);
        match std::mem::replace(&mut self.phase, JobPhase::Finished) {
            JobPhase::Running { live } | JobPhase::Undecided { live, .. } => {
                self.record_peer_failure(&change);
                ranks.into_iter().chain(self.stop_for_membership_change(now, live, change)).collect()
            }
            phase @ JobPhase::Stopping { .. } => {
                self.record_peer_failure(&change);
                self.phase = phase;
                self.limit_kill_time(kill_by);
                let event = JobEvent::Changed { change, live: Vec::new(), grace: Duration::ZERO };
                (!is_newcomer).then_some(Action::Emit(event)).into_iter().collect()
            }
            phase @ JobPhase::Settling { .. }
                if matches!(change, MembershipChange::CutOff { .. } | MembershipChange::StoodStill) =>
            {
                // No worker is left to kill, and a node that is done stays done.
                self.phase = phase;
                Vec::new()
            }
            JobPhase::Settling { .. } => {
                self.record_peer_failure(&change);
                let event = JobEvent::Changed { change, live: Vec::new(), grace: Duration::ZERO };
                let early = self.finished_before_loss_event(self.peers.first_failure.as_ref());
                let kill = self.kill_leftovers(now, BTreeSet::new(), StopReason::Membership, None);
                [kill, Action::Emit(event)].into_iter().chain(early).collect()
            }
            phase => {
                let is_blaming = matches!(phase, JobPhase::Blaming { .. });
                self.phase = phase;
                let reported = change.reported_failure();
                if !is_blaming || reported.is_none() || reported == self.peers.first_failure {
                    return Vec::new();
                }
                self.record_peer_failure(&change);
                let event = JobEvent::Changed { change, live: Vec::new(), grace: Duration::ZERO };
                vec![Action::Emit(event)]
            }
        }
    }

    fn record_peer_failure(&mut self, change: &MembershipChange) {
        if let Some(note) = change.reported_failure() {
            // A note from before a lost node was detected was not the cause, nor is a failure that lost a
            // peer.
            let is_first = self.peers.first_failure.as_ref().is_none_or(|reported| note.overrides(reported));
            if matches!(note, FailureNote::NodeLost { .. }) || is_first {
                self.peers.first_failure = Some(note);
            }
        }
    }

    /// A worker ended while another node's failure stops this node. If that failure is the loss of this very
    /// worker, and our stop did not end the worker, then this worker is the cause.
    pub(super) fn find_failure_in_membership_stop(
        &self,
        now: Instant,
        end: WorkerEnd,
        reason: StopReason,
    ) -> Option<Failure> {
        let lost = self.peers.first_failure.as_ref().and_then(FailureNote::lost_peer);
        let is_lost = lost == Some(PeerLoss::Rank(self.history.rank_of(end.local_rank)));
        let is_stopped = self.is_exit_by_our_signal(end.exit) || self.rules.is_exit_by_stop_signal(end.exit);
        let has_reported =
            end.error_file_info.is_some_and(|error_file_info| error_file_info.lost_peer.is_none());
        let is_cause =
            is_lost && !end.exit.is_success() && !end.has_lost_remote_peer() && (!is_stopped || has_reported);
        let is_over = self.stopped_by.is_some() || self.peers.remote_end.is_some();
        if reason != StopReason::Membership || !is_cause || is_over {
            return None;
        }
        let kind =
            if self.is_exit_by_our_signal(end.exit) { FailureKind::EndedByStop } else { FailureKind::Ended };
        Some(self.new_failure(now, end, kind))
    }

    fn stop_for_membership_change(
        &mut self,
        now: Instant,
        live: BTreeSet<LocalRank>,
        change: MembershipChange,
    ) -> Vec<Action> {
        let kill_by = kill_deadline(now, &change);
        let ours = self.running_workers(&live);
        let actions = self.stop_workers(now, live, StopReason::Membership, None);
        self.limit_kill_time(kill_by);
        let grace = self.remaining_grace(now);
        with_event_after_signal(actions, JobEvent::Changed { change, live: ours, grace })
    }

    /// True if a worker may be alive that must not outlive this node's lease.
    pub const fn has_workers(&self) -> bool {
        self.is_running() || matches!(self.phase, JobPhase::Stopping { .. })
    }

    /// The other nodes take a cut-off node for dead at this time; none of its workers may then be alive.
    pub(super) fn limit_kill_time(&mut self, kill_by: Option<Instant>) {
        if let (JobPhase::Stopping { stage: StopStage::Asked { kill_at, .. }, .. }, Some(kill_by)) =
            (&mut self.phase, kill_by)
        {
            *kill_at = kill_by.min(*kill_at);
        }
    }

    /// The last worker was reaped of a generation that another node's failure or change ended.
    pub(super) fn rejoin(&mut self, now: Instant) -> Vec<Action> {
        let is_over = self.stopped_by.is_some() || self.peers.remote_end.is_some();
        if is_over || self.expires_before(now) {
            return vec![self.finish_failed(None)];
        }
        let by_worker = matches!(self.peers.first_failure, Some(FailureNote::Worker(_)));
        if by_worker {
            self.history.record_first_failure(false);
        }
        // Under the name rankrun all nodes share one budget.
        if by_worker && self.rules.cli_flavor == CliFlavor::Rankrun {
            self.history.record_restart(now, &self.rules.restart);
            self.job_restarts.0 += 1;
        } else {
            self.history.record_rejoin(now, &self.rules.restart);
        }
        self.generation.0 += 1;
        vec![self.join_next_round(now, None)]
    }

    /// The same after a failure here that another node reported first. A worker that failed by itself costs
    /// this node a restart, as under torchrun.
    fn rejoin_after_failure(&mut self, now: Instant, failure: Failure) -> Vec<Action> {
        let is_own = !failure.first.has_lost_remote_peer() && !self.is_caused_by_lost_node();
        let is_over = self.stopped_by.is_some() || self.peers.remote_end.is_some();
        if !is_own || is_over || self.expires_before(now) {
            return self.rejoin(now);
        }
        if self.rules.cli_flavor == CliFlavor::Torchrun {
            let decision = self.decide_restart(now, &failure);
            if matches!(decision, Decision::Fail(NoRestart::Budget | NoRestart::Window { .. })) {
                return self.apply_decision(now, decision, failure);
            }
            self.history.record_restart(now, &self.rules.restart);
            self.history.record_first_failure(false);
            self.job_restarts.0 += 1;
            self.node_restarts.0 += 1;
            self.generation.0 += 1;
            return vec![self.join_next_round(now, Some(failure))];
        }
        self.node_restarts.0 += 1;
        self.rejoin(now)
    }

    fn is_caused_by_lost_node(&self) -> bool {
        matches!(self.peers.first_failure, Some(FailureNote::NodeLost { .. }))
    }

    /// Reports the failure to the other nodes at once, unless they know its cause.
    pub(super) fn report_failure_to_peers(&self, failure: &Failure) -> Option<Action> {
        let is_reported = self.peers.remote_end.is_none() && !self.is_caused_by_peer(failure.first);
        is_reported.then(|| Action::TellFailure { end: failure.first, hang: failure.hang.clone() })
    }

    /// True if another node has reported the cause of such a failure. A failure that lost no peer is not a
    /// consequence of a failure that lost one.
    pub(super) fn is_caused_by_peer(&self, end: WorkerEnd) -> bool {
        let reported = self.peers.first_failure.as_ref();
        reported.is_some_and(|reported| reported.lost_peer().is_none() || end.has_lost_remote_peer())
    }

    /// This node stops its workers and then leaves: the other nodes may be unable to go on without it.
    pub(super) fn report_stop_to_peers(&self, reason: StopReason) -> Option<Action> {
        self.peers.remote_end.is_none().then_some(Action::TellStop { reason })
    }

    /// Decides whether another node caused the failure, as long as a restart may follow; `None` if this node
    /// decides alone.
    pub(super) fn resolve_peer_cause(&mut self, now: Instant, failure: &Failure) -> Option<Vec<Action>> {
        if let Some(end) = self.finish_as_ended_elsewhere(failure) {
            return Some(vec![end]);
        }
        if self.is_caused_by_peer(failure.first) {
            return Some(self.rejoin_after_failure(now, failure.clone()));
        }
        self.peers.first_failure = None;
        let may_go_on =
            self.stopped_by.is_none() && !self.time_limit_timer.has_expired() && failure.is_restartable();
        if !may_go_on {
            return None;
        }
        self.phase = JobPhase::Blaming { failure: failure.clone(), until: now + LOST_NODE_QUERY_TIMEOUT };
        Some(vec![Action::FindLostNode])
    }

    /// The result of a job that ended on another node. A failure that another node caused is not a failure of
    /// this node.
    fn finish_as_ended_elsewhere(&mut self, failure: &Failure) -> Option<Action> {
        let over = self.peers.remote_end.as_ref()?;
        let is_own = !self.is_caused_by_peer(failure.first) && !over.is_cause_of_failure;
        let own = is_own.then(|| failure.clone());
        Some(self.finish_failed(own))
    }

    /// The result if a process of the failed generation remains and other nodes have ended the generation or
    /// the job.
    pub(super) fn finish_if_caused_by_peer(&mut self, failure: &Failure) -> Option<Action> {
        let theirs = self.is_caused_by_peer(failure.first);
        self.finish_as_ended_elsewhere(failure).or_else(|| theirs.then(|| self.finish_failed(None)))
    }

    /// The answer to the question whether a lost node caused the failure here.
    pub(super) fn on_lost_node_answer(&mut self, now: Instant, lost: Option<LostNode>) -> Vec<Action> {
        let JobPhase::Blaming { failure, until } = &self.phase else { return Vec::new() };
        // A late answer counts as "not known".
        let (failure, lost) = (failure.clone(), lost.filter(|_| now < *until));
        match (self.is_caused_by_peer(failure.first), &lost) {
            (true, None) => return self.rejoin_after_failure(now, failure),
            (true, Some(_)) => return self.rejoin(now),
            (false, _) => {}
        }
        let Some(lost) = lost else { return self.check_devices_or_decide(now, failure) };
        let change = MembershipChange::Lost(lost);
        let event = JobEvent::Changed { change, live: Vec::new(), grace: Duration::ZERO };
        [Action::Emit(event)].into_iter().chain(self.rejoin(now)).collect()
    }

    /// All workers of this node have succeeded.
    pub(super) fn on_local_success(&mut self, now: Instant) -> Vec<Action> {
        self.history.record_first_end(now);
        self.phase = JobPhase::Settling { report_at: Some(now + PEER_WAIT_REPORT_DELAY) };
        vec![Action::TellSuccess]
    }

    /// The job does not end well although all workers of this node have succeeded: leftover processes are
    /// killed, not awaited.
    pub(super) fn finish_failed_after_success(&mut self, now: Instant, reason: StopReason) -> Vec<Action> {
        let first = self.remote_end_and_cause().1;
        let early = self.finished_before_loss_event(first.as_ref());
        let kill = self.kill_leftovers(now, BTreeSet::new(), reason, None);
        [kill].into_iter().chain(early).collect()
    }

    /// The message where all workers of this node had exited with 0, and `first` lost one of them or an
    /// unnamed peer.
    fn finished_before_loss_event(&self, first: Option<&FailureNote>) -> Option<Action> {
        let Some(FailureNote::Worker(failed)) = first else { return None };
        let ours = |rank| (0..self.rules.workers.get()).any(|at| self.history.rank_of(LocalRank(at)) == rank);
        let is_ours = match failed.lost_peer? {
            PeerLoss::Rank(rank) => ours(rank),
            PeerLoss::Unnamed => true,
        };
        is_ours.then(|| Action::Emit(JobEvent::FinishedBeforeLoss { failed: failed.clone() }))
    }

    /// The workers of all nodes have succeeded.
    pub(super) fn on_all_succeeded(&mut self) -> Vec<Action> {
        match self.phase {
            JobPhase::Settling { .. } => vec![self.succeed(None)],
            _ => Vec::new(),
        }
    }

    /// The rendezvous is over for this node.
    pub(super) fn on_job_ended_elsewhere(&mut self, now: Instant, ending: RendezvousEnd) -> Vec<Action> {
        if self.phase == JobPhase::Finished || self.peers.remote_end.is_some() {
            return Vec::new();
        }
        let is_their_doing = self.is_effect_of_peer_stop(now, &ending);
        self.peers.remote_end =
            Some(JobEndElsewhere { end: ending.clone(), is_cause_of_failure: is_their_doing });
        let ranks = self.collect_ranks_for_end(now, &ending);
        let kill_by = match &ending {
            RendezvousEnd::Failed { kill_by, .. } => *kill_by,
            RendezvousEnd::NotNeeded
            | RendezvousEnd::Excluded { .. }
            | RendezvousEnd::Closed { .. }
            | RendezvousEnd::ByRule { .. } => None,
        };
        self.peers.ended_lease = kill_by.or(self.peers.ended_lease);
        match std::mem::replace(&mut self.phase, JobPhase::Finished) {
            JobPhase::Running { live }
            | JobPhase::Undecided { live, .. }
            | JobPhase::Observing { live, .. } => {
                let ours = self.running_workers(&live);
                let actions = self.stop_workers(now, live, StopReason::EndedElsewhere, None);
                self.limit_kill_time(kill_by);
                let grace = self.remaining_grace(now);
                let event = JobEvent::EndedElsewhere { remote_end: ending, live: ours, grace };
                ranks.into_iter().chain(with_event_after_signal(actions, event)).collect()
            }
            phase @ JobPhase::Stopping { .. } => {
                self.phase = phase;
                self.limit_kill_time(kill_by);
                Vec::new()
            }
            JobPhase::Blaming { failure, .. }
            | JobPhase::Checking { failure, .. }
            | JobPhase::Waiting { failure, .. } => {
                self.finish_as_ended_elsewhere(&failure).into_iter().collect()
            }
            JobPhase::Joining { failure, .. } => vec![self.finish_failed(failure)],
            JobPhase::Settling { .. } => self.finish_failed_after_success(now, StopReason::EndedElsewhere),
            JobPhase::Starting | JobPhase::ShuttingDown(_) | JobPhase::Finished => {
                vec![self.finish_failed(None)]
            }
        }
    }

    /// The end of the workers is then limited by the lease, and the user knows.
    const fn has_failed_rendezvous(&self) -> bool {
        matches!(self.peers.remote_end, Some(JobEndElsewhere { end: RendezvousEnd::Failed { .. }, .. }))
    }

    fn is_effect_of_peer_stop(&self, now: Instant, ending: &RendezvousEnd) -> bool {
        let RendezvousEnd::Closed { failure: Some(note) } = ending else { return false };
        let is_new = |end: Instant| now.saturating_duration_since(end) <= SAME_MOMENT;
        note.why_node_ended_job().is_some() && self.history.first_end().is_none_or(is_new)
    }

    /// How the job ended on another node, and its first failure there.
    pub(super) fn remote_end_and_cause(&self) -> (Option<RendezvousEnd>, Option<FailureNote>) {
        let over = self.peers.remote_end.as_ref().map(|over| over.end.clone());
        let reported = match &over {
            // A failure that a rule counts as success is not the job's cause.
            Some(RendezvousEnd::ByRule { rule, .. }) if rule.is_success() => return (over, None),
            Some(RendezvousEnd::Closed { failure } | RendezvousEnd::ByRule { failure, .. }) => {
                failure.clone()
            }
            _ => None,
        };
        let first = reported.or_else(|| self.peers.first_failure.clone()).filter(|_| over.is_some());
        (over, first)
    }

    /// What the other nodes are told when this node ends badly. A node that leaves does not close the job:
    /// the others may go on.
    pub(super) const fn peer_notice(&self, failure: Option<&Failure>) -> PeerNotice {
        let has_own_error = self.launcher_error.is_some() || self.scan_error.is_some();
        let is_explained = self.stopped_by.is_some()
            || self.time_limit_timer.has_ended_job()
            || self.peers.remote_end.is_some();
        if !is_explained && (failure.is_some() || has_own_error) {
            PeerNotice::Failed
        } else {
            PeerNotice::Left
        }
    }

    /// Before the first start a stop has another exit status (contract 3.3).
    pub(super) const fn has_started(&self) -> bool {
        self.peers.nodes.is_some()
    }

    /// The exit status of a job that ended on another node.
    pub(super) fn remote_exit_status(&self) -> Option<ExitStatus> {
        self.peers.remote_end.as_ref().map(|over| match over.end {
            RendezvousEnd::NotNeeded => ExitStatus::SUCCESS,
            RendezvousEnd::ByRule { ref rule, .. } => rule.then.status(),
            RendezvousEnd::Excluded { .. } | RendezvousEnd::Closed { .. } | RendezvousEnd::Failed { .. } => {
                ExitStatus::Code(LAUNCHER_FAILED)
            }
        })
    }
}

/// The latest time to kill the workers of a round that ended this way.
const fn kill_deadline(now: Instant, change: &MembershipChange) -> Option<Instant> {
    match change {
        MembershipChange::CutOff { kill_by } => Some(*kill_by),
        MembershipChange::Removed | MembershipChange::StoodStill => Some(now),
        MembershipChange::Failed(_)
        | MembershipChange::Lost(_)
        | MembershipChange::Left { .. }
        | MembershipChange::NodeWaits { .. } => None,
    }
}

/// Says it at once, but not before the running workers get the stop signal.
fn with_event_after_signal(actions: Vec<Action>, event: JobEvent) -> Vec<Action> {
    let at = usize::from(matches!(actions.first(), Some(Action::Signal { .. })));
    insert_action(actions, at, Action::Emit(event))
}
