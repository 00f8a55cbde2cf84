//! The other nodes of the job: workers run only in a completed round, and what happens elsewhere ends it for all. Pure.
//!
//! - A worker is started only for a round that is complete, and not twice for one (invariant 2).
//! - What others do uses no restart of this node (invariant 6): they fail first, are lost, leave or come, or this node
//!   is cut off. A failure here that is a lost node's doing is as good as none.
//! - Nothing of this is waited for by a signal, nor by the time limit (invariants 7 and 10).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use rankrun_contract::rank::LocalRank;

use super::{State, with_at};
use crate::agent::failure::{Failure, Manner};
use crate::agent::message::{Action, Ending, Farewell, Happening, OwnStop, WorkerEnd};
use crate::agent::phase::{Phase, Stage, StopCause};
use crate::agent::policy::{Decision, Place, Refusal};
use crate::exit_code::{ExitStatus, LAUNCHER_FAILED};
use crate::rendezvous::{Change, FailureNote, NodeName, PeerLoss, Round};
use crate::spec::Persona;

/// Who is asked whether a failure is another node's answers within 50 ms where a lost node is known at once, else within
/// 7 s, or does not know.
const LONGEST_BLAME: Duration = Duration::from_secs(8);
/// What fails here so shortly before it is known that a node has ended the job, by its own stop or as its launcher failed,
/// fails of that: its workers are told to stop in the same moment as this node is told of it.
pub(super) const SAME_MOMENT: Duration = Duration::from_secs(1);
/// A longer wait for the other nodes says what it waits for.
const SILENT_WAIT: Duration = Duration::from_secs(2);

/// The end of the job elsewhere.
#[derive(Debug)]
struct Over {
    ending: Ending,
    /// What has failed here is the doing of the node that has ended it.
    is_their_doing: bool,
}

/// What is known of the other nodes.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// The first failure of this round, where it is another node's.
    failed_first: Option<FailureNote>,
    /// The job is over.
    over: Option<Over>,
    /// The workers have been started before.
    has_started: bool,
    /// They could not be started here.
    cannot_start: bool,
}

impl State {
    /// Takes part in the next round; no worker of the one before is left.
    pub(super) fn join(&mut self, now: Instant, failure: Option<Failure>) -> Action {
        self.phase = Phase::Joining { failure, since: now };
        Action::Join { workers: self.rules.workers }
    }

    /// A round is complete, and this node is in it.
    pub(super) fn joined(&mut self, now: Instant, round: Box<Round>) -> Vec<Action> {
        let Phase::Joining { failure, since } = &mut self.phase else { return Vec::new() };
        let (failure, since) = (failure.take(), *since);
        let again = std::mem::replace(&mut self.others.has_started, true);
        if again && self.no_time_for_a_restart(now) {
            return vec![self.finish_failed(failure)];
        }
        if !again {
            self.timer.start(self.rules.time_limit, now);
        }
        self.others.failed_first = None;
        let place = Place { node: round.node_rank, base: round.base_rank };
        self.history.joined(place, now.saturating_duration_since(since));
        let said = again.then(|| Action::Say(Happening::Rejoined { round: round.clone() }));
        said.into_iter().chain([self.start(now, Some(round))]).collect()
    }

    /// The round is over for a reason elsewhere.
    pub(super) fn changed(&mut self, now: Instant, change: Change) -> Vec<Action> {
        let is_newcomer = matches!(change, Change::NodeWaits { .. });
        let kill_by = kill_by(now, &change);
        let ranks = self.collect_ranks_for_change(now, &change);
        match std::mem::replace(&mut self.phase, Phase::Finished) {
            Phase::Running { live } | Phase::Undecided { live, .. } => {
                self.remember(&change);
                ranks.into_iter().chain(self.stop_for_others(now, live, change)).collect()
            }
            Phase::Stopping { live, cause, stage } => {
                self.remember(&change);
                self.phase = Phase::Stopping { live, cause, stage };
                self.kill_no_later_than(kill_by);
                let said = Happening::Changed { change, live: Vec::new(), grace: Duration::ZERO };
                (!is_newcomer).then_some(Action::Say(said)).into_iter().collect()
            }
            phase @ Phase::Settling { .. }
                if matches!(change, Change::CutOff { .. } | Change::StoodStill) =>
            {
                // No worker is left to be killed, and who is done stays so.
                self.phase = phase;
                Vec::new()
            }
            Phase::Settling { .. } => {
                self.remember(&change);
                let said = Happening::Changed { change, live: Vec::new(), grace: Duration::ZERO };
                let swept = Action::KillLeftovers { generation: self.generation };
                let early = self.finished_before_loss(self.others.failed_first.as_ref());
                let said = [swept, Action::Say(said)].into_iter().chain(early);
                said.chain(self.go_on_with_others(now)).collect()
            }
            phase => {
                let is_blaming = matches!(phase, Phase::Blaming { .. });
                self.phase = phase;
                let Change::PeerFailed(note) = &change else { return Vec::new() };
                if !is_blaming || self.others.failed_first.as_ref() == Some(note) {
                    return Vec::new();
                }
                self.remember(&change);
                let said = Happening::Changed { change, live: Vec::new(), grace: Duration::ZERO };
                vec![Action::Say(said)]
            }
        }
    }

    fn remember(&mut self, change: &Change) {
        if let Change::PeerFailed(note) = change {
            // What was told before a lost node was found out was not the cause, nor is a failure that lost a peer.
            let is_first = self.others.failed_first.as_ref().is_none_or(|told| note.outranks(told));
            if note.is_of_lost_node() || is_first {
                self.others.failed_first = Some(note.clone());
            }
        }
    }

    /// A worker ended while all of this node are stopped for others. Where their failure is that they lost this very
    /// worker, and our stop did not end it, it is the cause.
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
        let manner = if self.was_stopped(end.exit) { Manner::EndedByStop } else { Manner::Ended };
        (StopCause::Failure(self.failure(now, end, manner)), self.tell_of(end))
    }

    fn stop_for_others(&mut self, now: Instant, live: BTreeSet<LocalRank>, change: Change) -> Vec<Action> {
        let kill_by = kill_by(now, &change);
        let ours = self.ours(&live);
        let actions = self.stop(now, live, StopCause::Membership, Signal::SIGTERM);
        self.kill_no_later_than(kill_by);
        let grace = self.left_of_the_grace(now);
        told_at_once(actions, Happening::Changed { change, live: ours, grace })
    }

    /// Whether somebody may be alive who must not outlive this node's lease.
    pub const fn has_workers(&self) -> bool {
        self.is_running() || matches!(self.phase, Phase::Stopping { .. })
    }

    /// Who is cut off is taken for dead then, and nothing of it may live on.
    fn kill_no_later_than(&mut self, kill_by: Option<Instant>) {
        if let (Phase::Stopping { stage: Stage::Asked { kill_at, .. }, .. }, Some(kill_by)) =
            (&mut self.phase, kill_by)
        {
            *kill_at = kill_by.min(*kill_at);
        }
    }

    /// Nobody is left of a generation that ended for the others, or whose failure is theirs.
    pub(super) fn go_on_with_others(&mut self, now: Instant) -> Vec<Action> {
        let is_over = self.stopped_by.is_some() || self.others.over.is_some();
        if is_over || self.no_time_for_a_restart(now) {
            return vec![self.finish_failed(None)];
        }
        let by_worker = self.others.failed_first.as_ref().is_some_and(|told| told.pid != 0);
        // Under our own name the budget is the job's.
        if by_worker && self.rules.persona == Persona::Rankrun {
            self.history.restarted(now, &self.rules.restart);
            self.restarts_of_job.0 += 1;
        } else {
            self.history.rejoined(now, &self.rules.restart);
        }
        self.generation.0 += 1;
        vec![self.join(now, None)]
    }

    /// The same after a failure here that others told of first. A worker that failed by itself costs this node a
    /// restart, as under torchrun.
    fn go_on_after(&mut self, now: Instant, failure: Failure) -> Vec<Action> {
        let is_own = !failure.first.lost_elsewhere() && !self.is_lost_nodes_doing();
        let is_over = self.stopped_by.is_some() || self.others.over.is_some();
        if !is_own || is_over || self.no_time_for_a_restart(now) {
            return self.go_on_with_others(now);
        }
        if self.rules.persona == Persona::Torchrun {
            let decision = self.decide(now, &failure);
            if matches!(decision, Decision::Fail(Refusal::Budget | Refusal::Window { .. })) {
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

    /// The other nodes are told at once, unless they know better.
    pub(super) fn tell_of(&self, end: WorkerEnd) -> Option<Action> {
        let is_news = self.others.over.is_none() && !self.is_others_doing(end);
        (self.rules.has_rendezvous && is_news).then_some(Action::TellFailure { end })
    }

    /// Whether another node has told of the cause of such a failure. A failure that lost no peer is no consequence of
    /// one that did.
    pub(super) fn is_others_doing(&self, end: WorkerEnd) -> bool {
        let told = self.others.failed_first.as_ref();
        told.is_some_and(|told| told.lost.is_none() || end.lost_elsewhere())
    }

    /// This node stops its workers, and leaves when they have gone: others may not be able to go on without it.
    pub(super) fn tell_of_stop(&self, because: OwnStop) -> Option<Action> {
        let is_news = self.rules.has_rendezvous && self.others.over.is_none();
        is_news.then_some(Action::TellStop { because })
    }

    /// Whose failure it is, as long as a restart may come of it; nothing where this node alone decides.
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
        self.phase = Phase::Blaming { failure: failure.clone(), until: now + LONGEST_BLAME };
        Some(vec![Action::AskBlame])
    }

    /// The end of a job that is over elsewhere. What others have failed of before is no failure of this node.
    fn end_for_others(&mut self, failure: &Failure) -> Option<Action> {
        let over = self.others.over.as_ref()?;
        let is_own = !self.is_others_doing(failure.first) && !over.is_their_doing;
        let own = is_own.then(|| failure.clone());
        Some(self.finish_failed(own))
    }

    /// Somebody of the generation that has failed so is still there, and others have ended it or the job.
    pub(super) fn cannot_go_on_for_others(&mut self, failure: &Failure) -> Option<Action> {
        let theirs = self.is_others_doing(failure.first);
        self.end_for_others(failure).or_else(|| theirs.then(|| self.finish_failed(None)))
    }

    /// Whether what failed here is the doing of a node that was lost.
    pub(super) fn blamed(&mut self, now: Instant, lost: Option<NodeName>) -> Vec<Action> {
        let Phase::Blaming { failure, until } = &self.phase else { return Vec::new() };
        // An answer that comes too late is none.
        let (failure, lost) = (failure.clone(), lost.filter(|_| now < *until));
        match (self.is_others_doing(failure.first), &lost) {
            (true, None) => return self.go_on_after(now, failure),
            (true, Some(_)) => return self.go_on_with_others(now),
            (false, _) => {}
        }
        let Some(node) = lost else { return self.look_or_decide(now, failure) };
        let said = Action::Say(Happening::Blamed { node });
        [said].into_iter().chain(self.go_on_with_others(now)).collect()
    }

    /// All workers of this node have succeeded.
    pub(super) fn all_succeeded_here(&mut self, now: Instant) -> Vec<Action> {
        if !self.rules.has_rendezvous {
            return vec![self.succeed(None)];
        }
        self.history.generation_ended(now);
        self.history.generation_is_gone(now);
        self.phase = Phase::Settling { say_at: Some(now + SILENT_WAIT) };
        vec![Action::TellSuccess]
    }

    /// They have, and yet the job does not end well: what they left behind is no success's.
    pub(super) fn settled_badly(&mut self) -> Vec<Action> {
        let swept = Action::KillLeftovers { generation: self.generation };
        let first = self.ended_elsewhere().1;
        let early = self.finished_before_loss(first.as_ref());
        [swept].into_iter().chain(early).chain([self.finish_failed(None)]).collect()
    }

    /// What is said where all workers of this node had exited with 0, and `first` lost one of them or an unnamed peer.
    fn finished_before_loss(&self, first: Option<&FailureNote>) -> Option<Action> {
        let note = first?;
        let ours = |rank| (0..self.rules.workers.get()).any(|at| self.history.rank_of(LocalRank(at)) == rank);
        let is_ours = match note.lost? {
            PeerLoss::Rank(rank) => ours(rank),
            PeerLoss::Unnamed => true,
        };
        is_ours.then(|| Action::Say(Happening::FinishedBeforeLoss { note: note.clone() }))
    }

    /// And those of all other nodes.
    pub(super) fn all_succeeded(&mut self) -> Vec<Action> {
        match self.phase {
            Phase::Settling { .. } => vec![self.succeed(None)],
            _ => Vec::new(),
        }
    }

    /// There is nothing to take part in any more.
    pub(super) fn over(&mut self, now: Instant, ending: Ending) -> Vec<Action> {
        if self.phase == Phase::Finished || self.others.over.is_some() {
            return Vec::new();
        }
        let is_their_doing = self.fails_of_that_node(now, &ending);
        self.others.over = Some(Over { ending: ending.clone(), is_their_doing });
        let ranks = self.collect_ranks_for_end(now, &ending);
        let kill_by = match &ending {
            Ending::Failed { kill_by } => *kill_by,
            Ending::NotNeeded | Ending::Closed { .. } | Ending::ByRule { .. } => None,
        };
        match std::mem::replace(&mut self.phase, Phase::Finished) {
            Phase::Running { live } | Phase::Undecided { live, .. } | Phase::Observing { live, .. } => {
                let ours = self.ours(&live);
                let actions = self.stop(now, live, StopCause::Over, Signal::SIGTERM);
                self.kill_no_later_than(kill_by);
                let grace = self.left_of_the_grace(now);
                let said = Happening::OverElsewhere { ending, live: ours, grace };
                ranks.into_iter().chain(told_at_once(actions, said)).collect()
            }
            phase @ Phase::Stopping { .. } => {
                self.phase = phase;
                self.kill_no_later_than(kill_by);
                Vec::new()
            }
            Phase::Blaming { failure, .. }
            | Phase::Checking { failure, .. }
            | Phase::Waiting { failure, .. } => self.end_for_others(&failure).into_iter().collect(),
            Phase::Joining { failure, .. } => vec![self.finish_failed(failure)],
            Phase::Settling { .. } => self.settled_badly(),
            Phase::Starting | Phase::Finished => vec![self.finish_failed(None)],
        }
    }

    fn fails_of_that_node(&self, now: Instant, ending: &Ending) -> bool {
        let Ending::Closed { failure: Some(note) } = ending else { return false };
        let is_new = |end: Instant| now.saturating_duration_since(end) <= SAME_MOMENT;
        note.why_node_ended_job().is_some() && self.history.first_end().is_none_or(is_new)
    }

    /// How the job ended elsewhere, and of what first, where it did.
    pub(super) fn ended_elsewhere(&self) -> (Option<Ending>, Option<FailureNote>) {
        let over = self.others.over.as_ref().map(|over| over.ending.clone());
        let told = match &over {
            // What is no failure of the job is not its cause.
            Some(Ending::ByRule { rule, .. }) if rule.is_success() => return (over, None),
            Some(Ending::Closed { failure } | Ending::ByRule { failure, .. }) => failure.clone(),
            _ => None,
        };
        let first = told.or_else(|| self.others.failed_first.clone()).filter(|_| over.is_some());
        (over, first)
    }

    /// What the others are told when this node ends badly. Leaving is not closing: they may go on.
    pub(super) const fn farewell(&self, failure: Option<&Failure>) -> Farewell {
        let is_told = self.stopped_by.is_some() || self.timer.ended_it() || self.others.over.is_some();
        if !is_told && (failure.is_some() || self.others.cannot_start) {
            Farewell::Failed
        } else {
            Farewell::Left
        }
    }

    pub(super) const fn cannot_start(&mut self) {
        self.others.cannot_start = true;
    }

    /// Before the first start the launcher is not yet what it is afterwards (contract 3.3).
    pub(super) const fn has_started(&self) -> bool {
        self.others.has_started
    }

    /// What ends with the job where it ended elsewhere.
    pub(super) fn status_of_the_others(&self) -> Option<ExitStatus> {
        self.others.over.as_ref().map(|over| match over.ending {
            Ending::NotNeeded => ExitStatus::SUCCESS,
            Ending::ByRule { ref rule, .. } => rule.then.status(),
            Ending::Closed { .. } | Ending::Failed { .. } => ExitStatus::Code(LAUNCHER_FAILED),
        })
    }
}

/// When the workers of a round that is over so are killed at the latest.
const fn kill_by(now: Instant, change: &Change) -> Option<Instant> {
    match change {
        Change::CutOff { kill_by } => Some(*kill_by),
        Change::Removed | Change::StoodStill => Some(now),
        Change::PeerFailed(_)
        | Change::PeerLost { .. }
        | Change::PeerLeft { .. }
        | Change::NodeWaits { .. } => None,
    }
}

/// Told at once, but not before those who run are told to stop.
fn told_at_once(actions: Vec<Action>, said: Happening) -> Vec<Action> {
    let at = usize::from(matches!(actions.first(), Some(Action::Signal { .. })));
    with_at(actions, at, Action::Say(said))
}
