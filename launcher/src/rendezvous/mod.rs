//! The rendezvous: which nodes take part in the job, their order, and the master address of the workers. The agents of
//! several nodes, rankrun's and torchrun's, agree on that over one store.
//!
//! Agent and rendezvous exchange messages. A [`RendezvousCommand`] goes to the [`Rendezvous`], a [`RendezvousEvent`] comes
//! back. In a job of one node the event is there at once. Otherwise a task owns every connection to other agents, so a
//! slow or dead machine never delays a signal on this one. This module does not start or stop workers.

pub mod address;
pub mod assign_ranks;
pub mod c10d;
pub mod descriptor;
pub mod failure_detector;
pub mod host;
pub mod keys;
pub mod local;
pub mod membership;
pub mod node_name;
pub mod note;
pub mod pickle;
pub mod port_owner;
pub mod ranks;
pub mod ranks_text;
pub mod roles;
pub mod round;
pub mod state;
pub mod static_rdzv;
pub mod task;
pub mod text;
pub mod torchrun_compat;
pub mod training_store;
pub mod unreached;

pub(crate) use keys::checksum;
pub use membership::{LossRole, LostNode, MembershipChange};
pub use node_name::NodeName;
pub use note::{FailureNote, PeerLoss, WorkerFailure};

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rankrun_contract::env::Master;
use rankrun_contract::rank::{LocalWorldSize, NodeCount, NodeRank, Rank, WorldSize};

use crate::error_chain::format_chain;
use crate::store::StoreServer;
use local::LocalRendezvous;
use task::{NetworkRendezvous, Setup};
use training_store::TrainingStore;

/// How this node gets into rounds.
#[derive(Debug)]
pub enum Rendezvous {
    /// A job of one node.
    Local(LocalRendezvous),
    /// A static or c10d job, in which other nodes may take part.
    Network(NetworkRendezvous),
}

impl Rendezvous {
    /// Opens the stores that this node hosts from the start. It joins no round yet.
    ///
    /// # Errors
    /// A store, or an address for this node, cannot be had.
    pub fn open(setup: Setup) -> Result<Self, error::RendezvousError> {
        if setup.spec.is_shared() {
            return Ok(Self::Network(NetworkRendezvous::open(setup)?));
        }
        let training_store = TrainingStore::open_local(&setup.spec, &setup.network)?;
        Ok(Self::Local(LocalRendezvous::new(training_store)))
    }

    /// Sends a command. Returns the answer if it needs no other node; otherwise it is an event of `NetworkRendezvous::receive`.
    pub fn send(&mut self, command: RendezvousCommand) -> Option<RendezvousEvent> {
        match self {
            Self::Local(local) => local.answer(&command),
            Self::Network(network) => {
                network.send_command(command);
                None
            }
        }
    }

    /// The connection to other nodes, if there may be any.
    #[must_use]
    pub const fn network(&self) -> Option<&NetworkRendezvous> {
        match self {
            Self::Local(_) => None,
            Self::Network(network) => Some(network),
        }
    }
}

/// One completed rendezvous, as this node sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// Number of the round; the first is 0.
    pub number: u64,
    /// This node's rank among the members.
    pub node_rank: NodeRank,
    /// Number of nodes in the round.
    pub nodes: NodeCount,
    /// Global rank of this node's local rank 0.
    pub base_rank: Rank,
    /// Number of workers on all members together.
    pub world_size: WorldSize,
    /// Role rank of this node's local rank 0.
    pub base_role_rank: Rank,
    /// Number of workers with the same role on all members.
    pub role_world_size: WorldSize,
    /// Master address and port for the workers' process group.
    pub master: Master,
    /// All known members, ordered by node rank.
    pub members: Vec<Member>,
    /// The interface by which this node reaches other nodes, if the job may have other nodes.
    pub interface: Option<String>,
}

/// One node that takes part in a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its node rank in the round.
    pub node_rank: NodeRank,
    /// Name of the node for user messages.
    pub name: NodeName,
    /// Number of its workers, if the node has published it.
    pub workers: Option<LocalWorldSize>,
}

impl Round {
    /// The first round of a job of one node.
    #[must_use]
    pub fn of_one_node(workers: LocalWorldSize, master: Master) -> Self {
        let world_size = WorldSize(workers.0);
        Self {
            number: 0,
            node_rank: NodeRank(0),
            nodes: NodeCount::ONE,
            base_rank: Rank(0),
            world_size,
            base_role_rank: Rank(0),
            role_world_size: world_size,
            master,
            members: Vec::new(),
            interface: None,
        }
    }

    /// Name of this node for user messages.
    #[must_use]
    pub fn own_name(&self) -> NodeName {
        let own = self.members.iter().find(|member| member.node_rank == self.node_rank);
        own.map_or_else(|| NodeName::of_rank(self.node_rank), |member| member.name.clone())
    }
}

/// A command of the agent to the rendezvous task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RendezvousCommand {
    /// Take part in the next round. No worker of the previous round is left.
    Join {
        /// Number of workers on this node.
        workers: LocalWorldSize,
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
        rule: Option<note::RuleNote>,
    },
    /// This node leaves, and the other nodes may continue.
    Leave {
        /// The reason, for user messages.
        why: String,
    },
}

/// A message of the rendezvous task to the agent.
#[derive(Debug)]
pub enum RendezvousEvent {
    /// A round is complete, and this node is in it.
    Joined {
        /// The members and their ranks.
        round: Box<Round>,
        /// The server of the round's training store, if it is this agent's.
        training_server: Option<Arc<StoreServer>>,
    },
    /// The round ended for a reason on another node: stop the workers, then send [`RendezvousCommand::Join`].
    Changed(MembershipChange),
    /// The answer to [`RendezvousCommand::FindLostNode`]: the lost node, if any.
    LostNodeFound(Option<LostNode>),
    /// The workers of all nodes have succeeded.
    AllSucceeded,
    /// The rendezvous still waits for nodes.
    Waiting(WaitStatus),
    /// The store has not answered for a while: one line for the user.
    StoreUnreached(String),
    /// One line for the user, such as the chosen address or the host of the store.
    Note(String),
    /// There are no more rounds for this node.
    Over(RendezvousEnd),
    /// The same, since the rendezvous itself failed.
    Failed(error::RendezvousError),
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

/// The error of a failed rendezvous. Two are equal if they read the same.
#[derive(Debug, Clone)]
pub struct RendezvousFailure(Arc<error::RendezvousError>);

impl From<error::RendezvousError> for RendezvousFailure {
    fn from(error: error::RendezvousError) -> Self {
        Self(Arc::new(error))
    }
}

impl Deref for RendezvousFailure {
    type Target = error::RendezvousError;

    fn deref(&self) -> &error::RendezvousError {
        &self.0
    }
}

impl PartialEq for RendezvousFailure {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || format_chain(&*self.0) == format_chain(&*other.0)
    }
}

impl Eq for RendezvousFailure {}

/// Why there are no more rounds for this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RendezvousEnd {
    /// The job has succeeded without this node. It was a spare, or its workers had already succeeded when the other
    /// nodes wanted to repeat the round.
    NotNeeded,
    /// Another node ended the job.
    Closed {
        /// The first failure, if the other node told it.
        failure: Option<FailureNote>,
    },
    /// Another node ended the job by a rule, which decides the outcome for all nodes.
    ByRule {
        /// The rule that ended the job.
        rule: note::RuleNote,
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

pub mod error;

#[cfg(test)]
mod simulation;
