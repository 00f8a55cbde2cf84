//! Notes that agents store for each other: failures, reasons for leaving, and the job's end. Pure.
//!
//! `json` has their bytes. The notes come from other machines and are printed on terminals: every text that is read is
//! bounded and free of control characters.

mod json;
#[cfg(test)]
mod tests;

use rankrun_contract::rank::{LocalRank, Rank};
use serde::{Deserialize, Serialize};

use super::NodeName;
use crate::exit_code::{DO_NOT_REQUEUE, ExitStatus, REQUEUE};
use crate::spec::restart::{RestartRule, RuleAction};

pub use json::parse_leave_reason;

/// The failure that ended a round or the job. Every node prints the same first failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FailureNote {
    /// A worker has failed.
    Worker(WorkerFailure),
    /// A node was lost. Failures elsewhere at the same moment are consequences.
    NodeLost {
        /// The lost node, with its rank in the round that failed.
        node: NodeName,
    },
    /// A node that hosts the store has left, and the job has ended with it.
    NodeLeft {
        /// The node that left.
        node: NodeName,
        /// The reason that it gave.
        why: String,
    },
    /// A launcher has failed, and has ended the job.
    LauncherFailed {
        /// The node of the launcher.
        node: NodeName,
        /// The launcher's error.
        why: String,
    },
}

/// The failure of one worker, as told by its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerFailure {
    /// The node of the worker, with its rank in the round that failed.
    pub node: NodeName,
    /// Global rank of the worker.
    pub rank: Rank,
    /// Local rank of the worker.
    pub local_rank: LocalRank,
    /// Pid of the worker on its host.
    pub pid: i32,
    /// How the worker ended, for user messages: `exit code 7`, `killed by SIGKILL (9)`.
    pub ended: String,
    /// The last line of the worker's error, if it reported one.
    pub message: Option<String>,
    /// The last lines of the worker's output, as far as the launcher sees them.
    pub last_lines: Vec<String>,
    /// The peer on another node that the worker lost, by its own report. The failure is then a consequence.
    pub lost_peer: Option<PeerLoss>,
}

/// The lost peer that made a worker fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerLoss {
    /// The report names the rank of the peer.
    Rank(Rank),
    /// The report only says that a connection to a peer broke.
    Unnamed,
}

impl FailureNote {
    /// Name of the node that the note is about.
    #[must_use]
    pub const fn node(&self) -> &NodeName {
        match self {
            Self::Worker(WorkerFailure { node, .. })
            | Self::NodeLost { node }
            | Self::NodeLeft { node, .. }
            | Self::LauncherFailed { node, .. } => node,
        }
    }

    /// The peer that the failed worker lost; `None` if it lost none, or if the note is not about a worker.
    #[must_use]
    pub const fn lost_peer(&self) -> Option<PeerLoss> {
        match self {
            Self::Worker(worker) => worker.lost_peer,
            Self::NodeLost { .. } | Self::NodeLeft { .. } | Self::LauncherFailed { .. } => None,
        }
    }

    /// Whether this failure replaces `reported` as the cause of a round's end: `reported` lost a peer, and this one did
    /// not.
    #[must_use]
    pub const fn overrides(&self, reported: &Self) -> bool {
        reported.lost_peer().is_some() && self.lost_peer().is_none()
    }

    /// The reason for which the node ended the job; `None` if the note is about a worker or a lost node.
    #[must_use]
    pub fn why_node_ended_job(&self) -> Option<&str> {
        match self {
            Self::NodeLeft { why, .. } | Self::LauncherFailed { why, .. } => Some(why),
            Self::Worker(_) | Self::NodeLost { .. } => None,
        }
    }
}

/// How the job ended, for agents that read it from the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClosingNote {
    /// Whether the job has succeeded.
    pub succeeded: bool,
    /// The first failure, if it is known. After a success it is set only if a rule treats that failure as a success.
    pub failure: Option<FailureNote>,
    /// The rule that decides what the failure means for the whole job.
    pub rule: Option<RuleNote>,
}

/// The restart rule by which one node ended the job. All nodes then exit with the same status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleNote {
    /// Text of the rule as the user wrote it.
    pub text: String,
    /// The outcome of the job by this rule.
    pub then: RuleEnd,
}

/// The outcome of a job that a rule decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuleEnd {
    /// The job is complete and must not be repeated.
    Succeed,
    /// The scheduler should start the job again.
    Requeue,
    /// A repeated job would fail again.
    NoRequeue,
}

impl RuleNote {
    /// The note of a rule that ends the job; `None` if each node exits with its own status.
    #[must_use]
    pub fn of(rule: &RestartRule) -> Option<Self> {
        let then = match rule.then {
            RuleAction::Succeed => RuleEnd::Succeed,
            RuleAction::Requeue => RuleEnd::Requeue,
            RuleAction::NoRequeue => RuleEnd::NoRequeue,
            RuleAction::Restart | RuleAction::Fail => return None,
        };
        Some(Self { text: rule.to_string(), then })
    }

    /// Whether the rule makes the job a success.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.then == RuleEnd::Succeed
    }
}

impl RuleEnd {
    /// The exit status of every launcher of the job, independent of the launcher's name.
    #[must_use]
    pub const fn status(self) -> ExitStatus {
        match self {
            Self::Succeed => ExitStatus::SUCCESS,
            Self::Requeue => ExitStatus::Code(REQUEUE),
            Self::NoRequeue => ExitStatus::Code(DO_NOT_REQUEUE),
        }
    }
}
