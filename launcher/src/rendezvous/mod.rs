//! Who takes part in the job, in which order, and where the workers meet: the agents of several nodes, ours and
//! torchrun's, over one store.
//!
//! The agent and the rendezvous speak by messages: a [`Wish`] goes to the rendezvous thread, [`News`] come back. The
//! thread owns every connection to other agents, so that nothing that another machine does can hold up a signal.

pub mod address;
pub mod c10d;
pub mod descriptor;
pub mod exchange;
pub mod fixed;
pub mod host;
pub mod keys;
pub mod node_name;
pub mod note;
pub mod pickle;
pub mod port_owner;
pub mod ranks;
pub mod ranks_text;
pub mod roles;
pub mod round;
pub mod sightings;
pub mod state;
pub mod text;
pub mod thread;
pub mod torch_peer;
pub mod unreached;
pub mod worker_store;

pub(crate) use keys::checksum;
pub use node_name::NodeName;

use std::time::{Duration, Instant};

use rankrun_contract::env::Master;
use rankrun_contract::rank::{LocalRank, LocalWorldSize, NodeCount, NodeRank, Rank, WorldSize};

/// One completed rendezvous, as this node sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// Which one, from 0.
    pub number: u64,
    /// This node's index among the members.
    pub node_rank: NodeRank,
    /// How many members there are.
    pub nodes: NodeCount,
    /// Global rank of this node's local rank 0.
    pub base_rank: Rank,
    /// Workers of all members.
    pub world_size: WorldSize,
    /// Role rank of this node's local rank 0.
    pub base_role_rank: Rank,
    /// Workers of the same role on all members.
    pub role_world_size: WorldSize,
    /// Where the workers meet.
    pub master: Master,
    /// All members by node rank, as far as they are known.
    pub members: Vec<Member>,
    /// The interface by which this node reaches the others, where there may be others.
    pub interface: Option<String>,
}

/// A node of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its index.
    pub node_rank: NodeRank,
    /// What messages call it.
    pub name: NodeName,
    /// How many workers it has, where it has told.
    pub workers: Option<LocalWorldSize>,
}

impl Round {
    /// The only round of a job of one node.
    #[must_use]
    pub fn alone(workers: LocalWorldSize, master: Master) -> Self {
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

    /// What messages call this node.
    #[must_use]
    pub fn own_name(&self) -> NodeName {
        let own = self.members.iter().find(|member| member.node_rank == self.node_rank);
        own.map_or_else(|| NodeName::of_rank(self.node_rank), |member| member.name.clone())
    }
}

/// How a node has ended whose launcher has failed.
const LAUNCHER_FAILED: &str = "the launcher has failed";

/// The failure that ended a round, as the node tells it on which it happened. Every node prints the same first one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureNote {
    /// Node rank of the round.
    pub node_rank: NodeRank,
    /// The host's name.
    pub host: String,
    /// The address that the node publishes, where the note tells it.
    pub addr: Option<String>,
    /// Global rank of the worker.
    pub rank: Rank,
    /// Its local rank.
    pub local_rank: LocalRank,
    /// Its pid on its host; no process has 0: then it is a whole node that was lost, or that has ended the job for the
    /// reason that is the message, as the host of the store that leaves, or since its launcher has failed.
    pub pid: i32,
    /// How it ended, in words: `exit code 7`, `killed by SIGKILL (9)`.
    pub ended: String,
    /// What it said about it, where it did: the last line of its error.
    pub message: Option<String>,
    /// The peer on another node that it lost, as its own report says: the failure is a consequence.
    pub lost: Option<PeerLoss>,
}

/// The peer that a worker lost, and failed of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerLoss {
    /// The report names it.
    Rank(Rank),
    /// The report only says that a connection to a peer broke.
    Unnamed,
}

impl FailureNote {
    /// A node was lost, and what failed elsewhere in the same moment is its doing.
    #[must_use]
    pub fn of_lost_node(node_rank: NodeRank, node: NodeName) -> Self {
        let ended = "the node is lost".to_owned();
        // A torchrun agent tells no more than its address.
        let host = node.host.or_else(|| node.addr.clone()).unwrap_or_default();
        Self {
            node_rank,
            host,
            addr: node.addr,
            rank: Rank(0),
            local_rank: LocalRank(0),
            pid: 0,
            ended,
            message: None,
            lost: None,
        }
    }

    /// Whether this one is the cause of a round's end in place of `told`: it lost no peer, and that one did.
    #[must_use]
    pub const fn outranks(&self, told: &Self) -> bool {
        told.lost.is_some() && self.lost.is_none()
    }

    /// The node that hosts the store leaves for this reason, and the job ends with it.
    #[must_use]
    pub fn of_leaving_host(node_rank: NodeRank, node: NodeName, why: String) -> Self {
        Self { message: Some(why), ..Self::of_lost_node(node_rank, node) }
    }

    /// The launcher on this node has failed for this reason, and has ended the job.
    #[must_use]
    pub fn of_failed_launcher(node_rank: NodeRank, node: NodeName, why: String) -> Self {
        Self { ended: LAUNCHER_FAILED.to_owned(), ..Self::of_leaving_host(node_rank, node, why) }
    }

    /// The node that it tells of.
    #[must_use]
    pub fn node(&self) -> NodeName {
        let host = Some(self.host.clone()).filter(|host| !host.is_empty());
        NodeName { rank: Some(self.node_rank), host, addr: self.addr.clone() }
    }

    /// Whether it tells of a launcher that has failed, and of no worker.
    #[must_use]
    pub fn is_of_failed_launcher(&self) -> bool {
        self.why_node_ended_job().is_some() && self.ended == LAUNCHER_FAILED
    }

    /// Whether it tells of a node that was lost, and of no worker.
    #[must_use]
    pub const fn is_of_lost_node(&self) -> bool {
        self.pid == 0 && self.message.is_none()
    }

    /// Why the node has ended the job, where it tells of that and of no worker.
    #[must_use]
    pub fn why_node_ended_job(&self) -> Option<&str> {
        self.message.as_deref().filter(|_| self.pid == 0)
    }
}

/// What the agent wants of the rendezvous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// Take part in the next round; no worker of the round before is left.
    Join {
        /// Workers of this node.
        workers: LocalWorldSize,
    },
    /// Tell the others at once: a worker of this node has failed, and the others of the node are being stopped.
    Failed(FailureNote),
    /// Say whether what has happened here is the doing of a node that was lost.
    Blame,
    /// All workers of this node have succeeded: wait for the others.
    Succeeded,
    /// This node's workers are being told to stop, for this reason of its own, and then it leaves: where the job ends with
    /// the store that it hosts, the others are to know at once, before what their workers fail of.
    Stopping {
        /// In words for people.
        why: String,
    },
}

/// How an agent goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parting {
    /// The job is over for all: it has succeeded, or failed for good, by this failure where one is known.
    Close {
        /// Whether it is a success.
        succeeded: bool,
        /// The failure.
        failure: Option<FailureNote>,
        /// The rule that says what it means for the whole job.
        rule: Option<note::RuleNote>,
    },
    /// This node goes, and the others may go on.
    Leave {
        /// Why, in words for people.
        why: String,
    },
}

/// What the rendezvous tells the agent.
#[derive(Debug)]
pub enum News {
    /// A round is complete, and this node is in it.
    Joined(Box<Round>),
    /// The round is over for a reason elsewhere: stop the workers, then [`Wish::Join`].
    Changed(Change),
    /// The answer to [`Wish::Blame`]: the node that was lost, if any.
    Blamed(Option<NodeName>),
    /// Nobody is left to wait for: the workers of all nodes have succeeded.
    AllSucceeded,
    /// Still waiting for nodes.
    Waiting(Waiting),
    /// Something that people want to know, in one line: which address was chosen, who hosts the store.
    Note(String),
    /// There is nothing to take part in any more.
    Over(Over),
}

/// Why a round is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A worker of another node has failed.
    PeerFailed(FailureNote),
    /// A node has gone without a word.
    PeerLost {
        /// Its name.
        node: NodeName,
    },
    /// A node has left.
    PeerLeft {
        /// Its name.
        node: NodeName,
        /// What it said.
        why: String,
    },
    /// A node wants to take part.
    NodeWaits {
        /// Its name.
        node: NodeName,
    },
    /// This node does not reach the store, and the others take it for dead by then.
    CutOff {
        /// Until then no worker may be left.
        kill_by: Instant,
    },
    /// This launcher was itself stopped for too long, and its workers were killed in its place.
    StoodStill,
    /// The others have gone on without this node, which was silent for too long.
    Removed,
}

/// What is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Names of those who are here, this node included.
    pub here: Vec<NodeName>,
    /// Names of those who were in the round before and are not here, or node ranks where ranks are given.
    pub missing: Vec<NodeName>,
    /// How many nodes the job needs at least.
    pub min: NodeCount,
    /// And at most.
    pub max: NodeCount,
    /// How long there is still time.
    pub left: Duration,
    /// For what.
    pub awaited: Awaited,
}

/// What a node waits for that wants to be in a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Awaited {
    /// As many nodes as the job needs.
    Enough,
    /// More of them: there are enough.
    More {
        /// Until the round begins with those who are here.
        starts_in: Duration,
    },
    /// Nodes that are there, and stop their workers. Until they have, no time counts.
    Stops {
        /// Their names.
        nodes: Vec<NodeName>,
    },
    /// What the others say of their workers: the nodes of the round are here.
    Ranks,
    /// A place in the job, which runs without this node, a spare.
    Place,
}

/// Why there is nothing to take part in.
#[derive(Debug)]
pub enum Over {
    /// The job has succeeded, and needs nothing more of this node: a spare, or one whose workers had all succeeded in a round
    /// that the others were about to repeat.
    NotNeeded,
    /// The job was ended elsewhere, by this failure where it was told.
    Closed {
        /// The first cause.
        failure: Option<FailureNote>,
    },
    /// Another node has ended the job by a rule, which says for all nodes how.
    ByRule {
        /// The rule.
        rule: note::RuleNote,
        /// The failure that fits it, where it was told.
        failure: Option<FailureNote>,
    },
    /// The rendezvous itself failed.
    Failed(error::RendezvousError),
}

pub mod error;

#[cfg(test)]
mod simulation;
