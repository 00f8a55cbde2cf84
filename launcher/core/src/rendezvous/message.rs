//! What the agent and the rendezvous say to each other, as plain data; `RendezvousEvent` of the host has a server with it. Pure.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rankrun_contract::rank::{LocalWorldSize, NodeCount};

use super::node_name::NodeName;
use super::note::{FailureNote, RuleNote};
use crate::error_chain::format_chain;

/// A command of the agent to the rendezvous task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RendezvousCommand {
    /// Take part in the next round. No worker of the previous round is left.
    Join {
        /// Number of workers on this node.
        workers: LocalWorldSize,
        /// This node leaves instead, if the other nodes are enough: its workers fail too often.
        leaves_if_possible: bool,
    },
    /// Tell the other nodes at once that a worker of this node has failed. This node's other workers are being stopped.
    Failed(FailureNote),
    /// Answer whether a lost node caused the failure on this node.
    FindLostNode,
    /// All workers of this node have succeeded; wait for the other nodes.
    Succeeded,
    /// This node is stopping its workers for a reason of its own, then it leaves. If it hosts the store, the job ends
    /// with it. The other nodes must learn that before their workers fail.
    Stopping {
        /// The reason, for user messages.
        why: String,
    },
}

/// How an agent leaves the rendezvous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShutdownKind {
    /// The job is over for all nodes: it has succeeded, or failed for good.
    Close {
        /// Whether the job has succeeded.
        succeeded: bool,
        /// The failure that ended the job, if it is known.
        failure: Option<FailureNote>,
        /// The rule that decides what the failure means for the whole job.
        rule: Option<RuleNote>,
    },
    /// This node leaves, and the other nodes may continue.
    Leave {
        /// The reason, for user messages.
        why: String,
    },
}

/// State of a rendezvous that waits for nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitStatus {
    /// Names of the nodes that have joined, this node included.
    pub here: Vec<NodeName>,
    /// Names of the missing nodes of the previous round. If ranks are given, the missing node ranks.
    pub missing: Vec<NodeName>,
    /// Minimum number of nodes of the job.
    pub min: NodeCount,
    /// Maximum number of nodes of the job.
    pub max: NodeCount,
    /// Time left until the rendezvous fails.
    pub left: Duration,
    /// The event that this node waits for.
    pub awaited: WaitReason,
}

/// The event that a joining node waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaitReason {
    /// The minimum number of nodes has not joined yet.
    Enough,
    /// Enough nodes have joined; the round waits for more until the last call ends.
    More {
        /// Time until the round begins with the nodes that have joined.
        starts_in: Duration,
    },
    /// Live nodes still stop their workers. The join timeout does not count until they are done.
    Stops {
        /// Names of the nodes that stop their workers.
        nodes: Vec<NodeName>,
    },
    /// All nodes of the round have joined; their worker counts are missing.
    Ranks,
    /// The job runs without this node, which is a spare and waits for a place.
    Place,
}

/// The error of a failed rendezvous, with one hint at most. Two are equal if they read the same.
#[derive(Debug, Clone)]
pub struct RendezvousFailure {
    error: Arc<dyn Error + Send + Sync>,
    hint: Option<&'static str>,
}

impl RendezvousFailure {
    /// Of an error that the user will be shown.
    #[must_use]
    pub fn new(error: impl Error + Send + Sync + 'static, hint: Option<&'static str>) -> Self {
        Self { error: Arc::new(error), hint }
    }

    /// The error with its causes.
    #[must_use]
    pub fn error(&self) -> &(dyn Error + 'static) {
        &*self.error
    }

    /// One thing to do about it.
    #[must_use]
    pub const fn hint(&self) -> Option<&'static str> {
        self.hint
    }
}

impl PartialEq for RendezvousFailure {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.error, &other.error) || format_chain(self.error()) == format_chain(other.error())
    }
}

impl Eq for RendezvousFailure {}

/// Why there are no more rounds for this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RendezvousEnd {
    /// The job has succeeded without this node. It was a spare, or its workers had already succeeded when the other
    /// nodes wanted to repeat the round.
    NotNeeded,
    /// The other nodes go on without this one, whose workers failed first too often (`--exclude-node-after`).
    Excluded {
        /// The nodes that are there, with spares.
        others: usize,
    },
    /// Another node ended the job.
    Closed {
        /// The first failure, if the other node told it.
        failure: Option<FailureNote>,
    },
    /// Another node ended the job by a rule, which decides the outcome for all nodes.
    ByRule {
        /// The rule that ended the job.
        rule: RuleNote,
        /// The failure that matched the rule, if the other node told it.
        failure: Option<FailureNote>,
    },
    /// The rendezvous itself failed.
    Failed {
        /// Why it failed.
        error: RendezvousFailure,
        /// Past this time the other nodes may take this node for dead while they still reach the store. No worker may
        /// then be left.
        kill_by: Option<Instant>,
    },
}
