//! The phase of a job on this node. `state` owns the phase and every transition; this module holds the types.
//! Pure.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::posix::Signal;

use rankrun_contract::rank::LocalRank;

use crate::agent::failure::Failure;
use crate::agent::leftovers::LeftoverWait;
use crate::exit_code::ExitStatus;
use crate::spec::stop::StopReason;

/// Even with a grace period of 0, the final output of workers and launcher has this long to be written.
pub const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// A call that is given up sooner was not hanging.
pub const USUAL_WAIT: Duration = Duration::from_millis(100);

/// After SIGKILL only a process in uninterruptible sleep is still there.
pub(super) const GIVE_UP_AFTER_KILL: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum JobPhase {
    /// Before the first start of any worker.
    Starting,
    /// No worker is alive, and this node has waited for the next round `since` then. `failure` is set if that
    /// round is a restart after a failure.
    Joining { failure: Option<Failure>, since: Instant },
    /// The workers in `live` are alive, and none has failed.
    Running { live: BTreeSet<LocalRank> },
    /// A worker ended by a stop signal. Nothing is decided before `until`: the launcher may be about to get
    /// the same signal. The workers in `live` are alive.
    Undecided { live: BTreeSet<LocalRank>, failure: Failure, until: Instant },
    /// A worker failed for good under the name torchrun. Before `until` its siblings may end by themselves;
    /// those in `live` are alive.
    Observing { live: BTreeSet<LocalRank>, failure: Failure, until: Instant },
    /// The workers in `live` are being stopped. `failure` is set if one of them failed, before the stop or in it.
    Stopping { live: BTreeSet<LocalRank>, reason: StopReason, failure: Option<Failure>, stage: StopStage },
    /// No worker is alive, and the rendezvous is asked whether a lost node caused the failure. After `until`
    /// the failure counts as our own.
    Blaming { failure: Failure, until: Instant },
    /// No worker is alive. A check of the devices or of the job's progress runs. The launcher tells the user at
    /// `report_at`; the check is abandoned at `give_up_at`.
    Checking { failure: Failure, step: CheckStep, report_at: Option<Instant>, give_up_at: Option<Instant> },
    /// No worker is alive, and all start again at `until`.
    Waiting { failure: Failure, until: Instant },
    /// All workers of this node have succeeded, and this node waits for the others. The launcher tells the user at
    /// `report_at`.
    Settling { report_at: Option<Instant> },
    /// The job has its outcome, and no worker is left.
    ShuttingDown(Shutdown),
    /// This node has nothing more to do.
    Finished,
}

/// Whether the workers of a started generation have processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartProgress {
    /// Its log folders are being made.
    Pending,
    /// The workers were started, or will not be.
    Done,
}

/// The way from the outcome to the exit of the launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shutdown {
    /// The exit status, unless a signal cuts the shutdown short.
    pub(super) status: ExitStatus,
    /// The signal that cut it short.
    pub(super) signal: Option<Signal>,
    /// Why the job was stopped, if it did not end by itself.
    pub(super) reason: Option<StopReason>,
    /// Until when the other nodes may need something of this node.
    pub(super) peers_until: Option<Instant>,
    pub(super) step: ShutdownStep,
}

/// How far a shutdown has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ShutdownStep {
    /// Processes that the workers left running are awaited, then stopped.
    Sweeping(LeftoverWait),
    /// The output of the workers is written out, until `give_up_at` or the time limit. The launcher tells the user at
    /// `report_at`.
    Draining { give_up_at: Option<Instant>, time_limit: Option<Instant>, report_at: Option<Instant> },
    /// The error file of the parent process is written, until `give_up_at`. A signal ends the wait, but not
    /// before `usual_until`: most file systems answer before.
    WritingParentFile { give_up_at: Instant, usual_until: Instant },
    /// The outcome is reported, and the other nodes may still need something of this node. The launcher tells the user
    /// at `report_at`.
    Leaving { until: Instant, report_at: Option<Instant> },
}

/// All processes of the job are stopped by Ctrl-Z, in whatever phase it is. Inputs wait meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Suspension {
    pub(super) since: Instant,
    /// False if only probes run, which are not stopped.
    pub(super) has_processes: bool,
    /// The other nodes take this node for dead, so the suspended processes were killed.
    pub(super) is_killed: bool,
}

/// The question that a check answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckStep {
    /// The condition of the devices.
    Condition,
    /// The assignment of the remaining devices. The policy has granted a restart after this wait.
    Devices { wait: Duration },
    /// Whether the checkpoint folder has changed. The policy has granted a restart after this wait.
    Progress { wait: Duration },
}

/// How far a stop has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopStage {
    Asked {
        signal: Signal,
        kill_at: Instant,
    },
    Killed {
        give_up_at: Instant,
    },
    /// The processes that the workers left behind were killed, and are counted again at `next_try`. The launcher tells
    /// the user of them from `report_at` on. Workers in `live` have survived SIGKILL.
    KillingLeftovers {
        next_try: Instant,
        report_at: Option<Instant>,
        give_up_at: Instant,
    },
}
