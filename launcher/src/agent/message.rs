//! What can happen to a job, and what can be done about it.

mod happening;
pub mod rank_table;

use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use rankrun_contract::rank::{Generation, LocalRank, LocalWorldSize, RestartCount};

use crate::agent::checkup::Checkup;
use crate::agent::failure::{Failure, Testimony};
use crate::agent::policy::Sight;
use crate::agent::stuck::Asleep;
use crate::exit_code::ExitStatus;
use crate::process::Exit;
use crate::process::oom::OomEvidence;
use crate::rendezvous::note::RuleNote;
use crate::rendezvous::{Change, FailureNote, NodeName, Round};
pub use happening::{Happening, Impatience};
use rank_table::{EndedRank, RankTable, TableCause};

/// Something happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Everything is ready for the first generation.
    Ready,
    /// Not every worker of the generation could be started; those before `failed` are running.
    StartFailed {
        /// The generation.
        generation: Generation,
        /// The first worker that is not there.
        failed: LocalRank,
    },
    /// A worker was reaped.
    Exited {
        /// Which life of the group it belonged to.
        generation: Generation,
        /// How it ended.
        end: WorkerEnd,
    },
    /// The worker that was left to a person runs.
    StartedByHand {
        /// Which life of the group it belongs to.
        generation: Generation,
        /// Which worker.
        local_rank: LocalRank,
        /// Its pid.
        pid: Pid,
    },
    /// The launcher was told to stop.
    StopRequested {
        /// By which signal.
        signal: Signal,
        /// Whether an earlier one had been handled: then nobody wants to wait.
        again: bool,
    },
    /// The launcher got a signal that is for the workers.
    SignalPassed {
        /// Which one.
        signal: Signal,
    },
    /// The look that [`Action::Look`] asked for.
    Looked {
        /// Which life of the group.
        generation: Generation,
        /// When, on the wall clock.
        at: SystemTime,
        /// Who sits in the kernel.
        asleep: Vec<Asleep>,
    },
    /// The look that [`Action::LookWhoJoined`] asked for.
    JoinsSeen {
        /// Which life of the group.
        generation: Generation,
        /// When, on the wall clock.
        at: SystemTime,
        /// Who has not joined the store.
        missing: Vec<NotJoined>,
    },
    /// The answer to [`Action::CollectRanks`].
    RanksCollected {
        /// Which life of the group.
        generation: Generation,
        /// The ranks before the stop signal.
        table: RankTable,
    },
    /// The look at the devices that [`Action::CheckDevices`] asked for.
    DevicesChecked {
        /// Which life of the group sat on them.
        generation: Generation,
        /// What it gave.
        checkup: Checkup,
    },
    /// What came of [`Action::Reseat`].
    Reseated {
        /// Which life of the group has ended.
        generation: Generation,
        /// How many workers there are from now on, or why there are no seats for them, in words.
        seating: Result<LocalWorldSize, String>,
    },
    /// What came of [`Action::LookForProgress`].
    ProgressSeen {
        /// Which life of the group has ended.
        generation: Generation,
        /// What is in the job's folder; nothing where nobody could look.
        sight: Option<Sight>,
    },
    /// Everybody of the job was stopped (Ctrl-Z) until now, and goes on.
    Halted {
        /// For how long.
        lasted: Duration,
    },
    /// A round is complete, and this node is in it.
    Joined(Box<Round>),
    /// The round is over for a reason elsewhere.
    Changed(Change),
    /// The answer to [`Action::AskBlame`]: the node that was lost, if any.
    Blamed(Option<NodeName>),
    /// The workers of all nodes have succeeded.
    AllSucceeded,
    /// There is nothing to take part in any more.
    Over(Ending),
    /// [`State::deadline`](super::state::State::deadline) has come.
    DeadlinePassed,
}

/// How the job has ended, as far as it was not this node that ended it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// It has succeeded, and needs nothing more of this node, which was a spare or done.
    NotNeeded,
    /// Another node has ended it, by this failure where it was told.
    Closed {
        /// The first cause.
        failure: Option<FailureNote>,
    },
    /// Another node has ended it by a rule, which says for all nodes how.
    ByRule {
        /// The rule.
        rule: RuleNote,
        /// The failure that fits it, where it was told.
        failure: Option<FailureNote>,
    },
    /// The rendezvous itself failed, which is told apart.
    Failed {
        /// Then the others, who may still have it, take this node for dead, and no worker may be left.
        kill_by: Option<Instant>,
    },
}

/// What the other nodes are told of the end, where there are any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Farewell {
    /// The job is done.
    Succeeded,
    /// The job has failed for good.
    Failed,
    /// This node goes, and the others may go on.
    Left,
}

/// A worker that has not joined the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotJoined {
    /// Who.
    pub local_rank: LocalRank,
    /// Its pid.
    pub pid: Pid,
}

/// The end of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerEnd {
    /// Who.
    pub local_rank: LocalRank,
    /// Its pid.
    pub pid: Pid,
    /// How.
    pub exit: Exit,
    /// When the launcher saw it.
    pub at: SystemTime,
    /// What it wrote about its failure.
    pub testimony: Option<Testimony>,
    /// What is known of a SIGKILL that the launcher did not send.
    pub foreign_kill: Option<ForeignKill>,
}

/// A worker's death by a SIGKILL that the launcher did not send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForeignKill {
    /// Whether the kernel sent it for lack of memory.
    pub oom: OomEvidence,
    /// The most memory that the worker, or a process that it waited for, had at one time, in bytes.
    pub peak: Option<u64>,
}

impl WorkerEnd {
    /// Whether its own report says that it lost a peer, which may be on another node.
    pub(super) fn lost_elsewhere(&self) -> bool {
        self.testimony.is_some_and(|testimony| testimony.loss_elsewhere().is_some())
    }
}

/// Something is to be done.
#[expect(clippy::large_enum_variant, reason = "there are few at a time, and the largest one is the last")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Give the workers an empty store and a folder of their own, and start them all.
    Start {
        /// Which life of the group.
        generation: Generation,
        /// Restarts used so far.
        restart_count: RestartCount,
        /// The rendezvous that they live in; nothing where there is none but this node.
        round: Option<Box<Round>>,
    },
    /// Take part in the next round; no worker is left.
    Join {
        /// How many workers this node has in it.
        workers: LocalWorldSize,
    },
    /// Tell the other nodes that a worker of this one has failed.
    TellFailure {
        /// Its end.
        end: WorkerEnd,
    },
    /// Find out whether what has happened here is the doing of a node that was lost; signals are answered meanwhile.
    AskBlame,
    /// Tell the other nodes that all workers of this one have succeeded.
    TellSuccess,
    /// Tell the other nodes that this one is being stopped, where the job ends with it.
    TellStop {
        /// Why.
        because: OwnStop,
    },
    /// Signal the process groups of these workers.
    Signal {
        /// Which life of the group.
        generation: Generation,
        /// Which workers of it.
        local_ranks: Vec<LocalRank>,
        /// What to send.
        signal: Signal,
    },
    /// Signal these workers themselves and nobody whom they have started.
    Pass {
        /// Which life of the group.
        generation: Generation,
        /// Which workers of it.
        local_ranks: Vec<LocalRank>,
        /// What to send.
        signal: Signal,
    },
    /// See who of these workers sits in the kernel.
    Look {
        /// Which life of the group.
        generation: Generation,
        /// Which workers of it.
        local_ranks: Vec<LocalRank>,
    },
    /// See who of these workers has joined the store.
    LookWhoJoined {
        /// Which life of the group.
        generation: Generation,
        /// Which workers of it.
        local_ranks: Vec<LocalRank>,
    },
    /// Collect what is known of all ranks of this node. The answer is left out where the table would not be needed.
    CollectRanks {
        /// Which life of the group.
        generation: Generation,
        /// The ranks that have ended.
        ended: Vec<EndedRank>,
        /// Why the workers are about to be stopped.
        cause: TableCause,
    },
    /// See how the devices of the workers are, none of whom is left; signals are answered meanwhile.
    CheckDevices {
        /// Which life of the group sat on them.
        generation: Generation,
    },
    /// Find seats for the next generation on the devices that are left; signals are answered meanwhile.
    Reseat {
        /// Which life of the group has ended.
        generation: Generation,
    },
    /// See what is in the job's folder; signals are answered meanwhile.
    LookForProgress {
        /// Which life of the group has ended.
        generation: Generation,
    },
    /// Tell the worker that was left to a person, running or not, that nobody waits for it any more.
    Release {
        /// Why.
        because: Released,
    },
    /// Kill what the workers of the ended generation left behind.
    KillLeftovers {
        /// Which life of the group is over.
        generation: Generation,
    },
    /// Tell people.
    Say(Happening),
    /// The job is over.
    Finish(JobEnd),
}

/// Why this node stops its workers and leaves, whatever happens on others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnStop {
    /// The launcher was told to stop.
    Signal(Signal),
    /// The time limit of the job is over.
    TimeLimit,
}

/// Why nobody waits any more for the worker that was left to a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// Another worker failed.
    Failed(WorkerEnd),
    /// The launcher was told to stop.
    Stopped,
    /// The time limit of the job is over.
    TimeLimit,
    /// Another worker could not be started.
    NotStarted,
    /// Other nodes have failed, gone or come: all workers start again.
    Membership,
    /// The job has ended elsewhere.
    Over,
}

/// How the job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobEnd {
    /// What the launcher ends with.
    pub status: ExitStatus,
    /// The failure that ended the last generation, settled.
    pub failure: Option<Failure>,
    /// The signal by which the launcher was told to stop.
    pub stopped_by: Option<Signal>,
    /// The time limit, where that ended it.
    pub time_limit: Option<Duration>,
    /// What the other nodes are told.
    pub farewell: Farewell,
    /// The rule by which this node has ended it, where that says for all nodes how.
    pub rule: Option<RuleNote>,
    /// How the job had ended elsewhere, where it had.
    pub elsewhere: Option<Ending>,
    /// The failure of another node that was its first cause, where that was told.
    pub first_cause: Option<Box<FailureNote>>,
}
