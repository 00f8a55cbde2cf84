//! The oracle: what has happened so far, recorded independently of the machine. The world feeds it every
//! input and action in order; the invariants read it. It decides nothing.

use std::time::{Duration, Instant};

use crate::posix::Signal;

use rankrun_contract::rank::{Generation, LocalRank};

use super::budget::Record;
use super::node::Node;
use super::others::{LONGEST_LOST_NODE_QUERY, PeerFailure, PeerOracle};
use super::setup::{Setup, millis};
use crate::agent::leftovers::LeftoverStep;
use crate::agent::message::{Action, Input};
use crate::job_event::{JobEvent, WorkerEnd};
use crate::spec::Unhealthy;
use crate::spec::stop::StopReason;

/// By how much the machine's actions may be late.
pub(super) const LENIENCY: Duration = Duration::from_millis(100);
/// From the query for the checkpoint folder until the machine stops waiting for the answer.
const LONGEST_PROBE: Duration = Duration::from_secs(10);
/// From a worker's exit by a stop signal to the launcher's own signal.
pub(super) const WINDOW: Duration = Duration::from_millis(500);

/// The record of one history.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts that come one after the other")]
pub(super) struct Oracle {
    pub(super) setup: Setup,
    pub(super) ready: bool,
    /// When the first workers were started.
    pub(super) began: Option<Instant>,
    /// How often the workers got the warning of the time limit.
    pub(super) warnings: u32,
    /// Since when the job is suspended.
    pub(super) suspended_at: Option<Instant>,
    /// The suspension ends in this turn.
    pub(super) resumes: bool,
    /// When the job resumed after a suspension: nothing was done before that.
    pub(super) resumed_at: Option<Instant>,
    pub(super) starts: u32,
    pub(super) generation: Generation,
    /// Number of workers of the next start.
    pub(super) next_workers: u32,
    pub(super) open_question: Option<Question>,
    /// When the question was asked, shifted by suspensions since then.
    asked_at: Option<Instant>,
    /// The first signal by which the launcher was told to stop.
    pub(super) stop_signal: Option<Signal>,
    /// The job has its outcome.
    pub(super) finished: bool,
    /// The launcher exits.
    pub(super) has_exited: bool,
    /// How often the user was told of a leftover that SIGKILL does not end.
    pub(super) survivor_reports: usize,
    pub(super) sweep: SweepRecord,
    /// The output is drained, and the parent's error file is written.
    pub(super) is_drained: bool,
    pub(super) is_reported: bool,
    pub(super) record: Record,
    pub(super) peers: PeerOracle,
    pub(super) current: GenerationRecord,
}

/// The answer that the machine waits for when no worker runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    Devices,
    NewDevices,
    Progress,
    LostNode,
}

/// The record of one generation.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "facts that come in any order and combination")]
pub(super) struct GenerationRecord {
    pub(super) began: Option<Instant>,
    /// A worker that ended by a signal that may be about to reach the launcher too: nothing may follow from
    /// it at first.
    pub(super) suspect: Option<PossibleFailure>,
    /// From when on the workers may join the store: their start, shifted by suspensions.
    pub(super) joins_from: Option<Instant>,
    /// How long the generation was suspended while it lived.
    pub(super) suspended_for: Duration,
    /// How long the job was suspended between the generation's first end and the restart.
    pub(super) suspended_since_end: Duration,
    /// When its workers got the warning: a worker that ends by the warning has obeyed.
    pub(super) warned_at: Option<Instant>,
    /// How often the store was queried for missing workers.
    pub(super) join_probes: u32,
    /// The notice of its failed start is on its way to the machine.
    pub(super) start_pending: bool,
    /// The exits that the machine was told of.
    pub(super) ends: Vec<WorkerEnd>,
    /// Why it ends: the first reason that the machine was told.
    pub(super) cause: Option<Cause>,
    /// Number of exits before the cause.
    pub(super) ends_before: usize,
    /// Number of exits known when the cause was decided.
    pub(super) ends_decided: usize,
    /// When the first worker failed, or all were told to stop.
    pub(super) ended: Option<Instant>,
    pub(super) asked_at: Option<Instant>,
    /// Number of exits known when the workers were told to stop.
    pub(super) ends_asked: usize,
    pub(super) stop_requested_at: Option<Instant>,
    /// When the other nodes take this node for dead.
    pub(super) cut_off: Option<Instant>,
    /// The failure that another node has reported.
    pub(super) peer: Option<PeerFailure>,
    /// The worker that failed here is the peer that another node has lost.
    pub(super) is_lost_peer: bool,
    /// A lost node caused the failure.
    pub(super) is_blamed_elsewhere: bool,
    /// The other nodes were told of the failure.
    pub(super) is_failure_reported: bool,
    /// When all its workers had succeeded, before those of other nodes.
    pub(super) settled_at: Option<Instant>,
    pub(super) kill_by: Option<Instant>,
    pub(super) killed_at: Option<Instant>,
    /// All its workers were killed in a suspension.
    pub(super) is_killed_suspended: bool,
    /// Workers that were reported as impossible to kill.
    pub(super) given_up: Vec<LocalRank>,
    pub(super) released: Option<StopReason>,
    pub(super) group_failed: Option<WorkerEnd>,
    pub(super) swept_at: Option<Instant>,
    /// Since when a leftover that SIGKILL does not end is awaited.
    pub(super) leftover_since: Option<Instant>,
    /// The last question that was answered, and when.
    pub(super) last_answer: Option<(Question, Instant)>,
    /// A device is dead, and the remaining devices cannot be assigned.
    pub(super) is_without_devices: bool,
}

/// A worker that may or may not have failed.
#[derive(Debug, Clone, Copy)]
pub(super) struct PossibleFailure {
    pub(super) local_rank: LocalRank,
    pub(super) at: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    Failed(LocalRank),
    Uninterruptible(LocalRank),
    NotJoined(LocalRank),
    /// No worker of this node failed.
    Stop(StopReason),
}

/// What was done to the processes that the workers left running.
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "facts that come one after the other")]
pub(super) struct SweepRecord {
    pub(super) is_asked: bool,
    pub(super) is_killed: bool,
    pub(super) is_over: bool,
}

impl SweepRecord {
    pub(super) fn record_step(&mut self, step: LeftoverStep) {
        self.is_asked |= matches!(step, LeftoverStep::Ask { .. });
        self.is_killed |= matches!(step, LeftoverStep::Kill { .. });
    }
}

impl Oracle {
    pub(super) fn new(setup: &Setup) -> Self {
        Self {
            setup: *setup,
            ready: false,
            began: None,
            warnings: 0,
            suspended_at: None,
            resumes: false,
            resumed_at: None,
            starts: 0,
            generation: Generation(0),
            next_workers: setup.workers,
            open_question: None,
            asked_at: None,
            stop_signal: None,
            finished: false,
            has_exited: false,
            survivor_reports: 0,
            sweep: SweepRecord::default(),
            is_drained: false,
            is_reported: false,
            record: Record::default(),
            peers: PeerOracle::default(),
            current: GenerationRecord::default(),
        }
    }

    /// True if the input is about a generation that is over.
    pub(super) fn is_stale(&self, input: &Input) -> bool {
        let about = match input {
            Input::Started { generation }
            | Input::StartFailed { generation, .. }
            | Input::StartCancelled { generation }
            | Input::Exited { generation, .. }
            | Input::ExternalWorkerStarted { generation, .. }
            | Input::DStateProbed { generation, .. }
            | Input::JoinedProbed { generation, .. }
            | Input::RanksCollected { generation, .. }
            | Input::DevicesProbed { generation, .. }
            | Input::DevicesReassigned { generation, .. }
            | Input::Signalled { generation, .. }
            | Input::GroupsSignalled { generation, .. }
            | Input::ProgressProbed { generation, .. } => *generation,
            Input::HangJudged(judged) => judged.generation,
            Input::Ready
            | Input::OpeningFailed(_)
            | Input::LeftoversKilled { .. }
            | Input::StopRequested { .. }
            | Input::RestartRequested
            | Input::SignalForwarded { .. }
            | Input::Joined(_)
            | Input::Changed(_)
            | Input::LostNodeFound(_)
            | Input::AllSucceeded
            | Input::RendezvousEnded(_)
            | Input::SuspendRequested
            | Input::ResumeRequested
            | Input::SuspendedTooLong
            | Input::DescendantReaped
            | Input::LeftoversSwept { .. }
            | Input::OutputDrained
            | Input::ParentFileWritten
            | Input::PeersNotified { .. }
            | Input::PeersLeft
            | Input::DeadlinePassed => return false,
        };
        about != self.generation
    }

    /// Records an input, just before the machine gets it.
    pub(super) fn record_input(&mut self, input: &Input, node: &mut Node, now: Instant) {
        if self.is_stale(input) {
            return;
        }
        match input {
            Input::Ready => self.ready = true,
            Input::StartFailed { .. } => {
                self.current.start_pending = false;
                self.current.set_cause(Cause::Stop(StopReason::NotStarted), now);
            }
            Input::Exited { end, .. } => {
                node.mark_known(end.pid);
                if self.current.swept_at.is_some() {
                    // The external worker's exit comes too late to be a cause.
                    return;
                }
                if self.ends_as_lost(end, node) {
                    (self.current.cause, self.current.is_lost_peer) =
                        (Some(Cause::Failed(end.local_rank)), true);
                    self.current.ends_before = self.current.ends.len();
                    self.current.ends_decided = self.current.ends.len();
                }
                let is_free = self.current.cause.is_none() && self.current.suspect.is_none();
                if is_free && self.current.warned_at.is_some() && self.setup.is_exit_by_warning(end.exit) {
                    self.current.set_cause(Cause::Stop(StopReason::TimeLimit), now);
                } else if !end.exit.is_success() {
                    self.current.record_failure(end, self.setup.may_be_group_signal(end.exit), now);
                }
                self.current.ends.push(*end);
            }
            Input::SuspendRequested => self.record_suspension(now),
            Input::ResumeRequested => self.record_resumption(now),
            Input::StopRequested { signal, .. } => self.record_stop_request(*signal, now),
            Input::RestartRequested => self.record_restart_request(node, now),
            Input::DevicesProbed { report: checkup, .. } if self.record_answer(Question::Devices, now) => {
                let refuses = self.setup.unhealthy == Some(Unhealthy::Refuse);
                self.current.is_without_devices = refuses && !checkup.dead.is_empty();
            }
            Input::DevicesReassigned { result: assignment, .. }
                if self.record_answer(Question::NewDevices, now) =>
            {
                self.current.is_without_devices = assignment.is_err();
            }
            Input::ProgressProbed { .. } if self.record_answer(Question::Progress, now) => self.saw_files(),
            Input::DeadlinePassed if self.question_expires_at().is_some_and(|end| end <= now) => {
                if let Some(open) = self.open_question {
                    self.record_answer(open, now);
                }
            }
            Input::Joined(_)
            | Input::Changed(_)
            | Input::LostNodeFound(_)
            | Input::AllSucceeded
            | Input::RendezvousEnded(_) => self.enter_elsewhere(input, now),
            _ => {}
        }
    }

    fn record_suspension(&mut self, now: Instant) {
        if !self.has_exited {
            self.suspended_at.get_or_insert(now);
        }
    }

    fn record_resumption(&mut self, now: Instant) {
        let Some(since) = self.suspended_at.take() else { return };
        let lasted = now - since;
        self.resumes = true;
        self.resumed_at = Some(now);
        if let Some(asked_at) = &mut self.asked_at {
            *asked_at += lasted;
        }
        self.current.was_halted(lasted);
    }

    fn record_stop_request(&mut self, signal: Signal, now: Instant) {
        if self.finished {
            return;
        }
        self.stop_signal.get_or_insert(signal);
        self.current.stop_requested_at.get_or_insert(now);
        // The stop never extends a running grace period.
        let stop = Cause::Stop(StopReason::Signal(signal));
        let kill_by = now + self.setup.grace_of(stop);
        self.current.kill_by = self.current.kill_by.map(|before| before.min(kill_by));
        if self.starts > 0 {
            self.current.set_cause(stop, now);
        }
    }

    /// A request counts while workers run that no event has suspended, ended, or may have ended.
    fn record_restart_request(&mut self, node: &Node, now: Instant) {
        let runs = node.launched_workers(self.generation).any(|process| !process.is_known());
        let is_free = self.current.suspect.is_none() && self.current.swept_at.is_none();
        let goes_on = self.suspended_at.is_none();
        let may_run = goes_on && (runs || self.current.start_pending || self.setup.external_worker.is_some());
        if self.starts > 0 && !self.setup.others && may_run && is_free && self.stop_signal.is_none() {
            self.current.set_cause(Cause::Stop(StopReason::RestartRequest), now);
        }
    }

    /// Records an answer; returns whether that question was open.
    pub(super) fn record_answer(&mut self, question: Question, now: Instant) -> bool {
        let is_it = self.open_question == Some(question);
        if is_it {
            (self.open_question, self.current.last_answer) = (None, Some((question, now)));
        }
        is_it
    }

    /// Records an action of the machine.
    pub(super) fn record_action(&mut self, action: &Action, now: Instant) {
        match action {
            Action::Start { generation, .. } => {
                self.starts += 1;
                self.generation = *generation;
                self.current = GenerationRecord::new(now);
                self.began.get_or_insert(now);
            }
            Action::Signal { signal, .. } => {
                if self.current.asked_at.is_none() {
                    self.current.ends_asked = self.current.ends.len();
                }
                self.current.asked_at.get_or_insert(now);
                if *signal == Signal::SIGKILL {
                    self.current.killed_at.get_or_insert(now);
                }
            }
            Action::ReleaseExternalWorker { reason, .. } => self.current.released = Some(*reason),
            Action::KillLeftovers { generation } => self.record_sweep(*generation, now),
            Action::Emit(JobEvent::LeftoversSurvive { .. }) => self.survivor_reports += 1,
            Action::ProbeProgress { .. } => {
                (self.open_question, self.asked_at) = (Some(Question::Progress), Some(now))
            }
            Action::ProbeDevices { .. } => self.open_question = Some(Question::Devices),
            Action::ReassignDevices { .. } => self.open_question = Some(Question::NewDevices),
            Action::ProbeJoined { .. } => self.current.join_probes += 1,
            Action::Emit(JobEvent::TimeIsShort { .. }) => {
                self.warnings += 1;
                self.current.warned_at = Some(now);
            }
            Action::Emit(JobEvent::GroupFailed { cause }) => self.current.group_failed = Some(*cause),
            Action::Emit(JobEvent::CannotEnd { local_ranks }) => {
                self.current.given_up.clone_from(local_ranks)
            }
            Action::Emit(JobEvent::DevicesReassigned { workers }) => self.next_workers = workers.get(),
            Action::Finish(_) => self.finished = true,
            Action::Exit { .. } => self.has_exited = true,
            Action::SweepLeftovers { step } => self.sweep.record_step(*step),
            Action::DrainOutput => self.sweep.is_over = true,
            Action::WriteParentFile => self.is_drained = true,
            Action::ReportOutcome => self.is_reported = true,
            Action::Emit(_) | Action::Notify(_) | Action::Suspend { .. } | Action::Resume { .. } => {}
            Action::KillSuspended => self.current.is_killed_suspended = true,
            Action::Join { .. } => self.peers.is_joining = true,
            Action::TellFailure { .. } => self.current.is_failure_reported = true,
            Action::FindLostNode => {
                (self.open_question, self.asked_at) = (Some(Question::LostNode), Some(now))
            }
            Action::TellSuccess => {
                self.current.settled_at = Some(now);
                self.current.ended.get_or_insert(now);
            }
            Action::TellStop { .. }
            | Action::SignalGroups { .. }
            | Action::ForwardSignal { .. }
            | Action::ProbeDState { .. }
            | Action::CollectRanks { .. } => {}
        }
        if let Some(cause) = self.current.cause_in_action(action) {
            self.current.set_cause(cause, now);
        }
    }

    /// The leftovers are killed. One that survives is awaited, unless the user was told of it before.
    fn record_sweep(&mut self, generation: Generation, now: Instant) {
        self.current.swept_at = Some(now);
        if self.survivor_reports == 0 && self.setup.unkillable_after(generation).is_some() {
            self.current.leftover_since.get_or_insert(now);
            if self.current.settled_at.is_some() && self.time_limit_at().is_some_and(|end| end <= now) {
                self.current.set_cause(Cause::Stop(StopReason::TimeLimit), now);
            }
        }
    }

    /// Records a join of the next round: whether it is a restart of this node, and whether it counts.
    pub(super) fn record_join(&mut self, (is_own, counts): (bool, bool), now: Instant) {
        if self.starts > 0 {
            self.record.record_restart(&self.current, now, counts);
            self.peers.restarts += u32::from(is_own);
        }
    }

    /// Records the end of a turn, after all its actions.
    pub(super) fn close_turn(&mut self) {
        self.resumes = false;
        if self.finished || self.survivor_reports > 0 {
            self.current.leftover_since = None;
        }
        let current = &mut self.current;
        if let (Some(asked_at), Some(cause), None) = (current.asked_at, current.cause, current.kill_by) {
            let by_cause = asked_at + self.setup.grace_of(cause);
            // A signal may come before the siblings of a failed worker are told to stop.
            let by_request = current.stop_requested_at.zip(self.stop_signal).map(|(requested_at, signal)| {
                requested_at + self.setup.grace_of(Cause::Stop(StopReason::Signal(signal)))
            });
            current.kill_by = current.cut_off.into_iter().chain(by_request).chain([by_cause]).min();
        }
    }
}

impl GenerationRecord {
    fn new(began: Instant) -> Self {
        Self { began: Some(began), joins_from: Some(began), ..Self::default() }
    }

    fn record_failure(&mut self, end: &WorkerEnd, may_hit_launcher: bool, now: Instant) {
        if self.cause.is_some() || self.suspect.is_some() {
            return;
        }
        if may_hit_launcher {
            self.suspect = Some(PossibleFailure { local_rank: end.local_rank, at: now });
            self.ends_before = self.ends.len();
            self.ended = Some(now);
        } else {
            self.set_cause(Cause::Failed(end.local_rank), now);
        }
    }

    pub(super) fn set_cause(&mut self, cause: Cause, now: Instant) {
        if self.cause.is_some() {
            return;
        }
        self.cause = Some(cause);
        self.ends_decided = self.ends.len();
        self.ended.get_or_insert(now);
        if self.suspect.is_none() {
            self.ends_before = self.ends.len();
        }
    }

    /// Puts off every deadline that gives a process time to act.
    fn was_halted(&mut self, lasted: Duration) {
        match self.ended {
            None => self.suspended_for += lasted,
            Some(_) => self.suspended_since_end += lasted,
        }
        let suspected = self.suspect.as_mut().map(|suspect| &mut suspect.at);
        let others = [
            &mut self.asked_at,
            &mut self.stop_requested_at,
            &mut self.kill_by,
            &mut self.killed_at,
            &mut self.joins_from,
            &mut self.cut_off,
            &mut self.leftover_since,
        ];
        for moment in others.into_iter().filter_map(Option::as_mut).chain(suspected) {
            *moment += lasted;
        }
    }

    /// A cause that the machine finds out by itself.
    pub(super) fn cause_in_action(&self, action: &Action) -> Option<Cause> {
        match action {
            Action::Emit(JobEvent::Uninterruptible { worker: uninterruptible, .. }) => {
                Some(Cause::Uninterruptible(uninterruptible.local_rank))
            }
            Action::Emit(JobEvent::NotJoined { missing, .. }) => {
                missing.first().copied().map(Cause::NotJoined)
            }
            Action::Emit(JobEvent::TimeIsUp { .. }) => Some(Cause::Stop(StopReason::TimeLimit)),
            Action::Emit(JobEvent::WorkerFailed { .. }) => {
                self.suspect.map(|suspect| Cause::Failed(suspect.local_rank))
            }
            _ => None,
        }
    }

    /// The exits since the cause, including the cause.
    pub(super) fn exits_since_cause(&self) -> &[WorkerEnd] {
        &self.ends[self.ends_before..]
    }
}

impl Oracle {
    /// When the machine stops waiting for the answer to its question.
    pub(super) fn question_expires_at(&self) -> Option<Instant> {
        let longest = match self.open_question? {
            Question::Progress => LONGEST_PROBE,
            Question::LostNode => LONGEST_LOST_NODE_QUERY,
            Question::Devices | Question::NewDevices => return None,
        };
        self.asked_at.map(|asked| asked + longest)
    }

    /// When the time limit of the job expires.
    pub(super) fn time_limit_at(&self) -> Option<Instant> {
        Some(self.began? + millis(self.setup.time_limit?))
    }

    /// From when on an action that was due at `due` is late.
    pub(super) fn action_late_from(&self, due: Instant) -> Instant {
        self.resumed_at.map_or(due, |woke| woke.max(due)) + LENIENCY
    }

    /// When the workers get the warning of the time limit.
    pub(super) fn warned_at(&self) -> Option<Instant> {
        let before = self.setup.time_limit?.saturating_sub(self.setup.warning?);
        Some(self.began? + millis(before))
    }
}
