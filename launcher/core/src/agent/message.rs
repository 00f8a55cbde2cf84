//! The messages between the agent's loop and its pure state: inputs (what happened) and actions (what to do).
//! This module owns the types only; `state` and the loop give them meaning.

pub mod launcher_error;

use std::time::{Duration, Instant, SystemTime};

use crate::posix::{Pid, ProcessIdentity, ProcessScanError, Signal};

use rankrun_contract::rank::{Generation, LocalRank, LocalWorldSize, RestartCount};

use crate::agent::device_report::DeviceReport;
use crate::agent::failure::Failure;
use crate::agent::leftovers::LeftoverStep;
use crate::agent::recurrence::{ProgressMark, RaisedException};
use crate::exit_code::ExitStatus;
use crate::hang::verdict::Verdict;
use crate::job_event::rank_table::{EndedRank, RankTable};
use crate::job_event::{JobEvent, ShutdownNotice, UninterruptibleWorker, WorkerEnd};
use crate::rendezvous::note::RuleNote;
use crate::rendezvous::{FailureNote, LostNode, MembershipChange, RendezvousEnd, Round};
use crate::spec::stop::StopReason;
use launcher_error::LauncherError;

/// An event, as input of the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Everything is ready for the first generation.
    Ready,
    /// A store or the log folder cannot be opened, so no worker can be started.
    OpeningFailed(Box<LauncherError>),
    /// The answer to [`Action::Start`]: the workers have processes.
    Started {
        /// The generation that was started.
        generation: Generation,
    },
    /// Not every worker of the generation could be started; those before `failed` are running.
    StartFailed {
        /// The generation that was being started.
        generation: Generation,
        /// The first worker that was not started.
        failed: LocalRank,
        /// Why it was not.
        error: Box<LauncherError>,
    },
    /// The workers of the generation were told to stop before the first one was started.
    StartCancelled {
        /// The generation that was being started.
        generation: Generation,
    },
    /// A worker was reaped by the agent.
    Exited {
        /// The generation that the worker belonged to.
        generation: Generation,
        /// The exit of the worker, with its evidence.
        end: WorkerEnd,
    },
    /// The user has started the external worker.
    ExternalWorkerStarted {
        /// The generation that the worker belongs to.
        generation: Generation,
        /// The local rank of the worker.
        local_rank: LocalRank,
        /// The pid that the wrapper reported.
        pid: Pid,
    },
    /// The launcher was told to stop, by a signal or by `rankrun stop`.
    StopRequested {
        /// The signal that the launcher received.
        signal: Signal,
        /// True if an earlier signal was handled: then the workers are killed at once.
        is_second: bool,
    },
    /// The user wants all workers to start again (`rankrun restart`).
    RestartRequested,
    /// The launcher got a signal that is for the workers.
    SignalForwarded {
        /// The signal to pass on to the workers.
        signal: Signal,
    },
    /// The answer to [`Action::ProbeDState`]: a snapshot of process states.
    DStateProbed {
        /// The generation that was looked at.
        generation: Generation,
        /// Time of the snapshot on the wall clock.
        at: SystemTime,
        /// The workers in uninterruptible sleep (state `D`).
        uninterruptible: Vec<UninterruptibleWorker>,
    },
    /// The answer to [`Action::ProbeJoined`]: a snapshot of the store's clients.
    JoinedProbed {
        /// The generation that was looked at.
        generation: Generation,
        /// Time of the snapshot on the wall clock.
        at: SystemTime,
        /// The workers that have not joined the store.
        missing: Vec<NotJoined>,
    },
    /// The workers make no progress, or wait for one that does.
    HangJudged(Box<JudgedHang>),
    /// The answer to [`Action::CollectRanks`], sent before the stop signal.
    RanksCollected {
        /// The generation that the table describes.
        generation: Generation,
        /// The ranks before the stop signal reaches them.
        table: RankTable,
    },
    /// The answer to [`Action::ProbeDevices`]: the condition of the devices.
    DevicesProbed {
        /// The generation that used the devices.
        generation: Generation,
        /// The judged condition of each device.
        report: DeviceReport,
    },
    /// The answer to [`Action::ReassignDevices`]: a new assignment, or none.
    DevicesReassigned {
        /// The generation that has ended before it.
        generation: Generation,
        /// The number of workers from now on, or in words why the remaining devices cannot be assigned.
        result: Result<LocalWorldSize, String>,
    },
    /// The answer to [`Action::ProbeProgress`].
    ProgressProbed {
        /// The generation that has ended before it.
        generation: Generation,
        /// How far the job has come; `None` where that could not be seen.
        mark: Option<ProgressMark>,
        /// The exception of the worker that was asked for, if it is known.
        exception: Option<RaisedException>,
    },
    /// The user suspends the job (Ctrl-Z). The guard waits for [`Action::Suspend`].
    SuspendRequested,
    /// The suspended job continues: the user wants it to, or another input has to be handled
    /// ([`State::next_input`](super::state::State::next_input)).
    ResumeRequested,
    /// The other nodes take this node for dead while its workers are suspended: an
    /// [`Input::Changed`] with [`MembershipChange::CutOff`] waits.
    SuspendedTooLong,
    /// A round is complete, and this node is in it.
    Joined(Box<Round>),
    /// The round is over because of another node or the store.
    Changed(MembershipChange),
    /// The answer to [`Action::FindLostNode`]: the node that was lost, if any.
    LostNodeFound(Option<LostNode>),
    /// The workers of all nodes have succeeded.
    AllSucceeded,
    /// The rendezvous is over for this node.
    RendezvousEnded(RendezvousEnd),
    /// The answer to [`Action::DrainOutput`].
    OutputDrained,
    /// The answer to [`Action::WriteParentFile`].
    ParentFileWritten,
    /// The other nodes are told of the outcome.
    PeersNotified {
        /// Until when they may need something of this node.
        until: Instant,
    },
    /// The other nodes need nothing more of this node.
    PeersLeft,
    /// A process that is not a worker was reaped.
    DescendantReaped,
    /// The answer to [`Action::Signal`], where the groups of some of the workers are awaited.
    Signalled {
        /// The generation of the workers.
        generation: Generation,
        /// The workers whose process groups did not get the signal.
        alone: Vec<LocalRank>,
        /// The workers that got it with their group, and whose process only wraps the training program.
        wrappers: Vec<LocalRank>,
    },
    /// The answer to [`Action::SignalGroups`].
    GroupsSignalled {
        /// The generation of the workers.
        generation: Generation,
        /// The workers whose process groups have no process left.
        empty: Vec<LocalRank>,
    },
    /// The answer to [`Action::KillLeftovers`].
    LeftoversKilled {
        /// The processes that were there and were killed.
        remaining: Result<Vec<ProcessIdentity>, ProcessScanError>,
    },
    /// The answer to [`Action::SweepLeftovers`].
    LeftoversSwept {
        /// What remains.
        result: SweepResult,
    },
    /// [`State::deadline`](super::state::State::deadline) has come.
    DeadlinePassed,
}

/// What a sweep found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SweepResult {
    /// No process of the job is left.
    Empty,
    /// Processes are left, and the step was done to them.
    Remaining,
    /// The processes cannot be listed.
    Unknown,
}

/// What this node tells the other nodes at its end, if there are any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerNotice {
    /// All workers of the job have succeeded.
    Succeeded,
    /// The job has failed for good.
    Failed,
    /// This node leaves, and the others may go on.
    Left,
}

/// A worker that has not joined the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotJoined {
    /// The local rank of the worker.
    pub local_rank: LocalRank,
    /// The pid of the running worker.
    pub pid: Pid,
}

/// A verdict on the workers of this node that the user needs to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JudgedHang {
    /// The generation that was judged.
    pub generation: Generation,
    /// Time of the verdict on the wall clock.
    pub at: SystemTime,
    /// A hang, a desync or a straggler.
    pub verdict: Verdict,
    /// The worker to blame: one that others wait for, else one that waits.
    pub local_rank: LocalRank,
    /// Its pid.
    pub pid: Pid,
}

/// An effect that the agent's loop performs for the state.
#[expect(clippy::large_enum_variant, reason = "there are few at a time, and the largest one is the last")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Give the workers an empty store and a log folder, and start them all.
    Start {
        /// The generation to start.
        generation: Generation,
        /// Restarts that were used so far.
        restart_count: RestartCount,
        /// The round that they run in.
        round: Box<Round>,
    },
    /// Take part in the next round; no worker is left.
    Join {
        /// The number of workers of this node in the round.
        workers: LocalWorldSize,
        /// This node leaves instead, if the other nodes are enough: its workers fail too often.
        leaves_if_possible: bool,
    },
    /// Tell the other nodes that a worker of this node has failed.
    TellFailure {
        /// The exit of the worker.
        end: WorkerEnd,
        /// Why the workers made no progress, if that is the failure.
        hang: Option<Box<Verdict>>,
    },
    /// Find out whether a lost node caused the failure here; signals are answered meanwhile.
    FindLostNode,
    /// Tell the other nodes that all workers of this node have succeeded.
    TellSuccess,
    /// Tell the other nodes that this node is being stopped, where the job ends with it.
    TellStop {
        /// The reason for this node's stop.
        reason: StopReason,
    },
    /// Signal these workers, each alone or with its process group
    /// ([`signal_scope`](super::signal_scope::signal_scope)). SIGKILL is for the groups, in one instant.
    Signal {
        /// The generation of the workers.
        generation: Generation,
        /// The local ranks of the workers.
        local_ranks: Vec<LocalRank>,
        /// The signal for each of them.
        signal: Signal,
    },
    /// Signal what is left of the process groups of these workers, which have ended.
    SignalGroups {
        /// The generation of the workers.
        generation: Generation,
        /// The local ranks of the workers.
        local_ranks: Vec<LocalRank>,
        /// The signal for each process; `None` if only the answer matters.
        signal: Option<Signal>,
    },
    /// Signal these workers themselves, but not their child processes.
    ForwardSignal {
        /// The generation of the workers.
        generation: Generation,
        /// The local ranks of the workers.
        local_ranks: Vec<LocalRank>,
        /// The signal for each worker process.
        signal: Signal,
    },
    /// Find out which of these workers are uninterruptible (state `D`).
    ProbeDState {
        /// The generation of the workers.
        generation: Generation,
        /// The local ranks of the workers.
        local_ranks: Vec<LocalRank>,
    },
    /// Find out which of these workers have joined the store.
    ProbeJoined {
        /// The generation of the workers.
        generation: Generation,
        /// The local ranks of the workers.
        local_ranks: Vec<LocalRank>,
    },
    /// Collect what is known of all ranks of this node. The answer is left out where the table would not be
    /// needed.
    CollectRanks {
        /// The generation that the table describes.
        generation: Generation,
        /// The ranks that have already ended.
        ended: Vec<EndedRank>,
        /// Why the workers are about to be stopped.
        reason: StopReason,
    },
    /// Check the devices of the workers, none of which is left; signals are answered meanwhile.
    ProbeDevices {
        /// The generation that used the devices.
        generation: Generation,
    },
    /// Assign the remaining devices for the next generation; signals are answered meanwhile.
    ReassignDevices {
        /// The generation that has ended before it.
        generation: Generation,
    },
    /// See how far the job has come; signals are answered meanwhile.
    ProbeProgress {
        /// The generation that has ended before it.
        generation: Generation,
        /// The worker whose exception is asked for: the first to fail, if it ended by itself.
        raised_by: Option<LocalRank>,
    },
    /// Tell the external worker, running or not, that the job no longer waits for it.
    ReleaseExternalWorker {
        /// Why the other workers are stopped.
        reason: StopReason,
        /// The exit of the worker that failed, if one did.
        failed: Option<WorkerEnd>,
    },
    /// Kill the processes that the workers of the ended generation left behind, and wait for none.
    KillLeftovers {
        /// The generation that is over.
        generation: Generation,
    },
    /// Print a message for the user.
    Emit(JobEvent),
    /// Stop the processes of the job, and tell the guard that the job is suspended.
    Suspend {
        /// False if only probes run, which have deadlines and are not stopped.
        has_processes: bool,
    },
    /// Continue the processes of the job.
    Resume {
        /// False if none was stopped.
        has_processes: bool,
        /// How long the suspension lasted.
        suspended_for: Duration,
    },
    /// Kill the suspended processes of the job.
    KillSuspended,
    /// The job has this outcome; the other nodes are told.
    Finish(JobOutcome),
    /// List the processes that the workers left running, and do this to them.
    SweepLeftovers {
        /// What to do, if a process is left.
        step: LeftoverStep,
    },
    /// Write out the output of the workers.
    DrainOutput,
    /// Tell the user of a long shutdown.
    Notify(ShutdownNotice),
    /// Write the error file that the parent process asked for, and the report of the job.
    WriteParentFile,
    /// Print the final report. A parent's error file that is not written is left behind.
    ReportOutcome,
    /// Exit with this status.
    Exit {
        /// The exit status of the launcher.
        status: ExitStatus,
    },
}

/// How the job ended on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobOutcome {
    /// The exit status of the launcher.
    pub status: ExitStatus,
    /// The settled failure of the last generation.
    pub failure: Option<Failure>,
    /// The signal by which the launcher was told to stop.
    pub stopped_by: Option<Signal>,
    /// The time limit, if it ended the job.
    pub time_limit: Option<Duration>,
    /// What the other nodes are told.
    pub peer_notice: PeerNotice,
    /// The rule by which this node has ended the job, where it decides for all nodes.
    pub rule: Option<RuleNote>,
    /// How another node had ended the job, if one had.
    pub remote_end: Option<RendezvousEnd>,
    /// The failure of another node that was the first cause, where it was reported.
    pub first_cause: Option<Box<FailureNote>>,
}

impl JobOutcome {
    /// Of a job that was not told to end and had no failure.
    pub(super) const fn new(status: ExitStatus, peer_notice: PeerNotice) -> Self {
        Self {
            status,
            failure: None,
            stopped_by: None,
            time_limit: None,
            peer_notice,
            rule: None,
            remote_end: None,
            first_cause: None,
        }
    }

    /// Why the job was told to end, if it was. After the time limit a signal counts no more.
    #[must_use]
    pub fn stop_reason(&self) -> Option<StopReason> {
        let by_signal = self.stopped_by.map(StopReason::Signal);
        self.time_limit.map(|_| StopReason::TimeLimit).or(by_signal)
    }
}
