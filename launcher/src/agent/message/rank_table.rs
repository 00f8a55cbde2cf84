//! The ranks of this node at the moment of a stop.

use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use rankrun_contract::rank::LocalRank;

use crate::logs::last_output::LastOutput;
use crate::process::Exit;
use crate::process::usage::RunState;

/// Why the workers are stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableCause {
    /// The launcher was told to stop.
    Signal(Signal),
    /// The time limit of the job is over.
    TimeLimit,
    /// A rank has not joined the store by the start limit.
    StartTimeout,
    /// Another node has left, or has ended the job by its own stop.
    OtherNode,
}

impl TableCause {
    /// Whether the table is worth reading also when no rank is missing: a signal, here or on another node, may end a job that
    /// runs well.
    #[must_use]
    pub const fn is_for_every_job(self) -> bool {
        !matches!(self, Self::Signal(_) | Self::OtherNode)
    }
}

/// The ranks of this node, before the stop signal reaches them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankTable {
    /// Why they are stopped.
    pub cause: TableCause,
    /// One row for each, in the order of the local ranks.
    pub rows: Vec<RankRow>,
}

/// One rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankRow {
    /// Its index on the node.
    pub local_rank: LocalRank,
    /// The worker's pid; nothing where it has not been started.
    pub pid: Option<Pid>,
    /// What the worker does.
    pub process: ProcessState,
    /// Whether it has joined the store.
    pub joined: JoinState,
    /// User and system time of the worker and its descendants.
    pub cpu_time: Option<Duration>,
    /// The last line that it wrote.
    pub output: LastOutput,
}

/// What a worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessState {
    /// It has not been started.
    NotStarted,
    /// It is alive.
    Alive(RunState),
    /// It has ended in this way.
    Ended(Exit),
    /// `/proc` does not tell.
    Unknown,
}

/// Whether a rank has joined the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinState {
    /// It has, itself or by a descendant.
    Joined,
    /// It has not.
    NotJoined,
    /// The store is elsewhere, or the processes cannot be looked at.
    Unknown,
}

/// A worker that has ended while others run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedRank {
    /// Which.
    pub local_rank: LocalRank,
    /// How.
    pub exit: Exit,
}

impl RankTable {
    /// Whether a reader learns something from it.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        self.cause.is_for_every_job() || self.rows.iter().any(RankRow::may_explain_a_hang)
    }
}

impl RankRow {
    /// Whether the other ranks may wait for it: it may not have joined, or it has finished before them.
    #[must_use]
    pub fn may_explain_a_hang(&self) -> bool {
        self.may_be_missing() || self.has_finished()
    }

    /// Whether it exited with 0.
    #[must_use]
    pub const fn has_finished(&self) -> bool {
        matches!(self.process, ProcessState::Ended(exit) if exit.is_success())
    }

    /// Whether it is alive, and is not known to have joined.
    #[must_use]
    pub fn may_be_missing(&self) -> bool {
        !matches!(self.process, ProcessState::Ended(_)) && self.joined != JoinState::Joined
    }
}
