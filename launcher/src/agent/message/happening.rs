//! What people are told of a job while it runs.

use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use rankrun_contract::rank::{LocalRank, LocalWorldSize, RestartCount};

use super::rank_table::RankTable;
use super::{Ending, WorkerEnd};
use crate::agent::checkup::{DeadDevice, DeviceWarning};
use crate::agent::policy::Refusal;
use crate::agent::stuck::Asleep;
use crate::rendezvous::{Change, FailureNote, NodeName, Round};
use crate::spec::restart::RestartRule;

/// What people are told while the job runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// A worker failed, and the others are being stopped.
    WorkerFailed {
        /// Its end.
        end: WorkerEnd,
        /// The others that are alive.
        others: Vec<LocalRank>,
        /// From now to SIGKILL.
        grace: Duration,
    },
    /// A worker sits in the kernel for too long, and all are being stopped.
    Stuck {
        /// Who.
        asleep: Asleep,
        /// For how long.
        dwell: Duration,
        /// How long it may.
        limit: Duration,
        /// All that are alive.
        live: Vec<LocalRank>,
        /// From now to SIGKILL.
        grace: Duration,
    },
    /// The start took too long, and all are being stopped.
    NotJoined {
        /// Who has not joined the store.
        missing: Vec<LocalRank>,
        /// How long that may take.
        limit: Duration,
        /// All that are alive.
        live: Vec<LocalRank>,
        /// From now to SIGKILL.
        grace: Duration,
    },
    /// Something has happened to another node, and all workers start again.
    Changed {
        /// What.
        change: Change,
        /// Who is being stopped for that.
        live: Vec<LocalRank>,
        /// From now to SIGKILL.
        grace: Duration,
    },
    /// The failure was put down to a node that was lost.
    Blamed {
        /// Which.
        node: NodeName,
    },
    /// A further round is complete.
    Rejoined {
        /// What it is like.
        round: Box<Round>,
    },
    /// The job has ended elsewhere, and all are being stopped.
    OverElsewhere {
        /// How.
        ending: Ending,
        /// Who is being stopped for that.
        live: Vec<LocalRank>,
        /// From now to SIGKILL.
        grace: Duration,
    },
    /// Some workers of this node have finished, and others go on for long.
    SomeFinished {
        /// The workers that exited with 0.
        finished: Vec<LocalRank>,
        /// The workers that go on.
        live: Vec<LocalRank>,
        /// Since the first of those exits.
        since: Duration,
    },
    /// The workers of the other nodes take longer than those of this one.
    Settling,
    /// All workers of this node had exited with 0, and one of another node lost a peer: probably one of these.
    FinishedBeforeLoss {
        /// The failure of that worker.
        note: FailureNote,
    },
    /// The last worker of a generation that failed is gone.
    GroupFailed {
        /// The end that was the cause.
        cause: WorkerEnd,
    },
    /// The worker that was left to a person runs.
    StartedByHand {
        /// Which worker.
        local_rank: LocalRank,
        /// Its pid.
        pid: Pid,
    },
    /// The launcher was told to stop.
    Stopping {
        /// By which signal.
        signal: Signal,
        /// The signal that the workers got.
        told: Signal,
        /// Who is alive.
        live: Vec<LocalRank>,
        /// From now to SIGKILL.
        grace: Duration,
    },
    /// The time limit will be over soon, and the workers get the signal that was asked for.
    TimeIsShort {
        /// How long before.
        before: Duration,
        /// Which signal.
        signal: Signal,
        /// Who gets it.
        live: Vec<LocalRank>,
    },
    /// The time limit is over, and all are being stopped.
    TimeIsUp {
        /// What it was.
        limit: Duration,
        /// The worker for which it was over with the warning, where one ended by that.
        by_warning: Option<WorkerEnd>,
        /// Who is alive.
        live: Vec<LocalRank>,
        /// From now to SIGKILL.
        grace: Duration,
    },
    /// The ranks of this node before the stop, of which some may hang.
    RankTable(RankTable),
    /// Workers that were asked to end are killed.
    Killing {
        /// Who has not ended.
        local_ranks: Vec<LocalRank>,
        /// Why now.
        because: Impatience,
    },
    /// SIGKILL did not help within five seconds.
    CannotEnd {
        /// Who is still there.
        local_ranks: Vec<LocalRank>,
    },
    /// The look at the devices takes long.
    CheckingDevices,
    /// Not every device could be looked at.
    DevicesUnchecked {
        /// Whom nobody could ask, in words.
        why: String,
    },
    /// A device has a blemish.
    DeviceWarning(DeviceWarning),
    /// A device is dead.
    DeviceDead(DeadDevice),
    /// There would have been a restart left, but not without the dead devices.
    NoRestart {
        /// Why not, where somebody tried.
        why: Option<String>,
    },
    /// The workers sit on the devices that are left.
    Reseated {
        /// How many there are.
        workers: LocalWorldSize,
    },
    /// The look at the job's folder takes long.
    LookingForProgress,
    /// Nobody could look at the job's folder, or not in time.
    ProgressUnknown,
    /// There is no restart, for a reason that is not plain to see.
    RestartRefused(Refusal),
    /// A failure that a rule calls a success.
    CalledSuccess {
        /// Which rule.
        rule: RestartRule,
    },
    /// All workers are started again after a wait.
    Waiting {
        /// For how long.
        wait: Duration,
        /// Restarts used, the one to come included.
        used: RestartCount,
    },
    /// All workers are started again.
    Restarting {
        /// Restarts used, this one included.
        used: RestartCount,
    },
}

/// Why nobody waits any longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Impatience {
    /// The grace is over since this signal.
    GraceOver(Signal),
    /// The user said so twice.
    SecondSignal,
}
