//! What the agent tells the user while a job runs, as plain data. `agent::state` creates it; `reporter` puts it into
//! words. It stands below both.

pub mod activity;
pub mod failure_signature;
mod job_state;
pub mod memory;
pub mod rank_table;
mod worker_end;

use std::time::Duration;

use crate::hang::verdict::Verdict;
use crate::posix::{Pid, Signal};

use rankrun_contract::rank::{LocalRank, LocalWorldSize, RestartCount};

use crate::rendezvous::{MembershipChange, RendezvousEnd, Round, WorkerFailure};
use crate::spec::restart::RestartRule;
use failure_signature::FailureSignature;
pub use job_state::JobState;
use rank_table::RankTable;
pub use worker_end::{ErrorFileInfo, FailureKind, ForeignKill, LostPeer, WorkerEnd, lost_peer_phrase};

/// A message for the user while the job runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEvent {
    /// A worker failed, and the others are being stopped.
    WorkerFailed {
        /// The exit of the failed worker.
        end: WorkerEnd,
        /// The other workers that are alive.
        live: Vec<LocalRank>,
        /// The grace period: time until SIGKILL.
        grace: Duration,
    },
    /// A worker was uninterruptible (state `D`) for too long, and all are being stopped.
    Uninterruptible {
        /// The uninterruptible worker and its pid.
        worker: UninterruptibleWorker,
        /// How long it has been uninterruptible.
        blocked_for: Duration,
        /// The limit that the user set.
        limit: Duration,
        /// All workers that are alive.
        live: Vec<LocalRank>,
        /// The grace period: time until SIGKILL.
        grace: Duration,
    },
    /// The start took too long, and all workers are being stopped.
    NotJoined {
        /// The workers that have not joined the store.
        missing: Vec<LocalRank>,
        /// The start limit that the user set.
        limit: Duration,
        /// All workers that are alive.
        live: Vec<LocalRank>,
        /// The grace period: time until SIGKILL.
        grace: Duration,
    },
    /// The workers make no progress, and all are being stopped.
    Hang {
        /// Which ranks wait, and which are missing.
        verdict: Box<Verdict>,
        /// All workers that are alive.
        live: Vec<LocalRank>,
        /// The grace period: time until SIGKILL.
        grace: Duration,
    },
    /// The workers make no progress, or wait for one that does; they go on.
    NoProgress {
        /// Which ranks wait, and which are missing.
        verdict: Box<Verdict>,
    },
    /// Another node caused a new round: all workers start again. Also the lost node that caused the failure here.
    Changed {
        /// What happened to the other node.
        change: MembershipChange,
        /// The workers that are being stopped.
        live: Vec<LocalRank>,
        /// The grace period: time until SIGKILL.
        grace: Duration,
    },
    /// A further round is complete.
    Rejoined {
        /// The round that this node is in.
        round: Box<Round>,
    },
    /// The job has ended on another node, and all workers are being stopped.
    EndedElsewhere {
        /// How the other node ended the job.
        remote_end: RendezvousEnd,
        /// The workers that are being stopped.
        live: Vec<LocalRank>,
        /// The grace period: time until SIGKILL.
        grace: Duration,
    },
    /// Some workers of this node have finished, and others still run after a long time.
    SomeFinished {
        /// The workers that exited with 0.
        finished: Vec<LocalRank>,
        /// The workers that still run.
        live: Vec<LocalRank>,
        /// Time since the first of those exits.
        waited: Duration,
    },
    /// The workers of other nodes take longer than those of this node.
    Settling,
    /// All workers of this node had exited with 0, and a worker of another node lost a peer: probably one of
    /// these.
    FinishedBeforeLoss {
        /// The failure that the other node reported.
        failed: WorkerFailure,
    },
    /// The last worker of a failed generation was reaped.
    GroupFailed {
        /// The exit that was the cause.
        cause: WorkerEnd,
    },
    /// The user has started the external worker.
    ExternalWorkerStarted {
        /// The local rank of the worker.
        local_rank: LocalRank,
        /// The pid that the wrapper reported.
        pid: Pid,
    },
    /// The launcher was told to stop by a signal.
    Stopping {
        /// The signal that the launcher received.
        signal: Signal,
        /// The signal that the workers received.
        worker_signal: Signal,
        /// The workers that are alive.
        live: Vec<LocalRank>,
        /// The grace period: time until SIGKILL.
        grace: Duration,
    },
    /// The user wants all workers to start again, and they are being stopped.
    RestartRequested {
        /// The workers that are alive.
        live: Vec<LocalRank>,
        /// The grace period: time until SIGKILL.
        grace: Duration,
    },
    /// All workers start again at the user's request, outside of the budget.
    RestartedByRequest,
    /// The time limit expires soon, and the workers get the warning signal that the user asked for.
    TimeIsShort {
        /// Time from now to the time limit.
        remaining: Duration,
        /// The warning signal that the workers get.
        signal: Signal,
        /// The workers that get the warning signal.
        live: Vec<LocalRank>,
    },
    /// The time limit has expired, and all workers are being stopped.
    TimeIsUp {
        /// The time limit that the user set.
        limit: Duration,
        /// The worker that ended by the warning signal, if one did: the job then stops before the limit.
        by_warning: Option<WorkerEnd>,
        /// The workers that are alive.
        live: Vec<LocalRank>,
        /// The grace period: time until SIGKILL.
        grace: Duration,
    },
    /// The ranks of this node before the stop; some of them may hang.
    RankTable(RankTable),
    /// Workers that did not end by the stop signal get SIGKILL.
    Killing {
        /// The workers that have not ended.
        local_ranks: Vec<LocalRank>,
        /// The signal that they have ignored for the grace period; `None` after a second stop signal.
        ignored_signal: Option<Signal>,
    },
    /// The workers have ended, and processes of their groups have not ended by the stop signal so far.
    AwaitingGroups {
        /// The workers that left the processes.
        local_ranks: Vec<LocalRank>,
        /// The signal that the processes got.
        signal: Signal,
        /// Time until SIGKILL.
        grace: Duration,
    },
    /// Processes of the groups of ended workers get SIGKILL.
    KillingGroups {
        /// The workers that left the processes.
        local_ranks: Vec<LocalRank>,
        /// The signal that the processes have ignored for the grace period; `None` after a second stop signal.
        ignored_signal: Option<Signal>,
    },
    /// A worker is still there five seconds after SIGKILL.
    CannotEnd {
        /// The workers that are still there.
        local_ranks: Vec<LocalRank>,
    },
    /// Processes that the workers left behind take long to end by SIGKILL.
    AwaitingLeftovers {
        /// The signal by which the launcher was told to stop.
        signal: Option<Signal>,
        /// The processes that are still there.
        pids: Vec<Pid>,
        /// The longest wait from now on.
        at_most: Duration,
    },
    /// Processes that the workers left behind are still there after SIGKILL.
    LeftoversSurvive {
        /// The processes that are still there.
        pids: Vec<Pid>,
    },
    /// The health check of the devices takes more than two seconds.
    CheckingDevices,
    /// The health check could not examine every device.
    DevicesUnchecked {
        /// The sources that gave no answer, in words.
        reason: String,
    },
    /// A device works but reports a problem.
    DeviceWarning(DeviceWarning),
    /// A device is dead and cannot be used.
    DeviceDead(DeadDevice),
    /// A restart was left, but cannot happen without the dead devices.
    NoRestart {
        /// Why the remaining devices could not be assigned, if that was tried.
        reason: Option<String>,
    },
    /// The workers were assigned to the remaining devices.
    DevicesReassigned {
        /// The number of workers from now on.
        workers: LocalWorldSize,
    },
    /// To see the job's progress takes more than two seconds.
    LookingForProgress,
    /// The job's progress could not be seen, or not in time.
    ProgressUnknown,
    /// The job fails again and again for the same cause, and nothing shows whether it makes progress.
    CauseRecurs {
        /// The cause.
        signature: Box<FailureSignature>,
        /// The restarts in a row that were followed by it.
        restarts: u32,
    },
    /// The policy refuses a restart, for a reason that is not obvious.
    RestartRefused(NoRestart),
    /// A rule counts the failure as a success.
    CalledSuccess {
        /// The rule that matched the failure.
        rule: RestartRule,
    },
    /// All workers start again after a wait.
    Waiting {
        /// The time from now to the restart.
        wait: Duration,
        /// Restarts used, including the coming one.
        used: RestartCount,
    },
    /// All workers start again at once.
    Restarting {
        /// Restarts used, including this one.
        used: RestartCount,
    },
}

impl JobEvent {
    /// The name of the event for programs; it stays the same in all versions.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::WorkerFailed { .. } => "worker_failed",
            Self::Uninterruptible { .. } => "worker_stuck",
            Self::NotJoined { .. } => "workers_not_joined",
            Self::Hang { .. } => "workers_hang",
            Self::NoProgress { .. } => "no_progress",
            Self::Changed { .. } => "membership_changed",
            Self::Rejoined { .. } => "round_joined",
            Self::EndedElsewhere { .. } => "job_ended_elsewhere",
            Self::SomeFinished { .. } => "some_workers_finished",
            Self::Settling => "waiting_for_other_nodes",
            Self::FinishedBeforeLoss { .. } => "finished_before_loss",
            Self::GroupFailed { .. } => "group_failed",
            Self::ExternalWorkerStarted { .. } => "external_worker_started",
            Self::Stopping { .. } => "stopping",
            Self::RestartRequested { .. } => "restart_requested",
            Self::RestartedByRequest => "restarted_by_request",
            Self::TimeIsShort { .. } => "time_limit_warning",
            Self::TimeIsUp { .. } => "time_limit_over",
            Self::RankTable(_) => "rank_table",
            Self::Killing { .. } => "killing",
            Self::AwaitingGroups { .. } => "waiting_for_groups",
            Self::KillingGroups { .. } => "killing_groups",
            Self::CannotEnd { .. } => "workers_survive_kill",
            Self::AwaitingLeftovers { .. } => "waiting_for_leftovers",
            Self::LeftoversSurvive { .. } => "leftovers_survive_kill",
            Self::CheckingDevices => "checking_devices",
            Self::DevicesUnchecked { .. } => "devices_unchecked",
            Self::DeviceWarning(_) => "device_warning",
            Self::DeviceDead(_) => "device_dead",
            Self::NoRestart { .. } => "no_restart",
            Self::DevicesReassigned { .. } => "devices_reassigned",
            Self::LookingForProgress => "reading_checkpoint_folder",
            Self::ProgressUnknown => "checkpoint_folder_unreadable",
            Self::CauseRecurs { .. } => "cause_recurs",
            Self::RestartRefused(_) => "restart_refused",
            Self::CalledSuccess { .. } => "failure_counts_as_success",
            Self::Waiting { .. } => "waiting_for_restart",
            Self::Restarting { .. } => "restarting",
        }
    }
}

/// A worker that was found in state `D`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UninterruptibleWorker {
    /// The local rank of the worker.
    pub local_rank: LocalRank,
    /// The pid of the worker process.
    pub pid: Pid,
}

/// A device on which no worker can run any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadDevice {
    /// The local ranks of the workers that used the device.
    pub local_ranks: Vec<LocalRank>,
    /// The device in words: `GPU 3 NVIDIA H100 (0000:1b:00.0)`.
    pub device: String,
    /// Why the device counts as dead, in words.
    pub reason: String,
}

/// A device that works but reports a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceWarning {
    /// The device in words, as in [`DeadDevice::device`].
    pub device: String,
    /// The problem that the device reports, in words.
    pub problem: String,
}

/// Why there is no restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRestart {
    /// The launcher was told to stop.
    Stopped,
    /// A worker is uninterruptible and may hold what a new one needs.
    Uninterruptible,
    /// A rule forbids it for such a failure.
    Rule(RestartRule),
    /// The job fails again and again for the same cause, without progress.
    NoProgress {
        /// Restarts in a row that were followed by the same failure without progress.
        restarts: u32,
        /// The highest step of the heartbeats; `None` where the checkpoint folder counts.
        step: Option<u64>,
    },
    /// All restarts of the budget are used up.
    Budget,
    /// The restart would come after the time limit.
    TooLate {
        /// The wait that the restart would need.
        wait: Duration,
    },
    /// All restarts that a window allows are used up.
    Window {
        /// Restarts that one window allows.
        restarts: RestartCount,
        /// The length of the window.
        window: Duration,
    },
}

/// The part of a long shutdown that the launcher reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownNotice {
    /// A reader of the workers' output is awaited.
    OutputPending,
    /// The time for the workers' output is over.
    OutputAbandoned,
    /// The other nodes are awaited.
    PeersPending,
}

impl ShutdownNotice {
    /// The name for programs, as [`JobEvent::name`].
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OutputPending => "waiting_for_output_reader",
            Self::OutputAbandoned => "output_abandoned",
            Self::PeersPending => "waiting_for_end_of_other_nodes",
        }
    }
}
