//! The ranks of this node at the moment of a stop, as shown to the user when a rank may hang.
//! `workers::rank_table` fills the table; this module only says whether it is worth showing.

use std::time::Duration;

use rankrun_contract::rank::LocalRank;

use crate::job_event::activity::LastOutput;
use crate::job_event::activity::RunState;
use crate::posix::{Exit, Pid};
use crate::spec::stop::StopReason;

/// The ranks of this node, before the stop signal reaches them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankTable {
    /// Why the workers are being stopped.
    pub reason: StopReason,
    /// One row per rank, in the order of the local ranks.
    pub rows: Vec<RankRow>,
}

/// The state of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankRow {
    /// The rank's index on the node.
    pub local_rank: LocalRank,
    /// The worker's pid; `None` if it has not been started.
    pub pid: Option<Pid>,
    /// The state of the worker process.
    pub process: ProcessState,
    /// Whether the rank has joined the store.
    pub joined: JoinState,
    /// User and system time of the worker and its descendants.
    pub cpu_time: Option<Duration>,
    /// The last output line of the worker.
    pub output: LastOutput,
}

/// The state of a worker process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessState {
    /// The launcher has not started the worker yet.
    NotStarted,
    /// The external worker, which the user has not started yet.
    ExternalNotStarted,
    /// It is alive, in this kernel state.
    Alive(RunState),
    /// It has ended with this exit.
    Ended(Exit),
    /// `/proc` does not show the state.
    Unknown,
}

/// Whether a rank has joined the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinState {
    /// The worker or one of its descendants has joined.
    Joined,
    /// Neither the worker nor a descendant has joined.
    NotJoined,
    /// The store is on another node, or the processes cannot be examined.
    Unknown,
}

/// A worker that has ended while others run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedRank {
    /// The local rank of the worker.
    pub local_rank: LocalRank,
    /// The exit of the worker.
    pub exit: Exit,
}

impl RankTable {
    /// True if the table helps to explain the stop. A signal, here or on another node, may end a job that runs
    /// well.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        matches!(self.reason, StopReason::TimeLimit | StopReason::StartTimeout)
            || self.rows.iter().any(RankRow::may_explain_a_hang)
    }
}

impl RankRow {
    /// True if other ranks may wait for this rank: it may not have joined, or it has finished before them.
    #[must_use]
    pub(crate) fn may_explain_a_hang(&self) -> bool {
        self.may_be_missing() || self.has_finished()
    }

    /// True if the worker exited with 0.
    #[must_use]
    pub const fn has_finished(&self) -> bool {
        matches!(self.process, ProcessState::Ended(exit) if exit.is_success())
    }

    /// True if the worker is alive and is not known to have joined.
    #[must_use]
    pub fn may_be_missing(&self) -> bool {
        !matches!(self.process, ProcessState::Ended(_)) && self.joined != JoinState::Joined
    }
}
