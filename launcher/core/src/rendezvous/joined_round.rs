//! A completed rendezvous, as this node sees it. Pure.

use rankrun_contract::env::Master;
use rankrun_contract::rank::{LocalWorldSize, NodeCount, NodeRank, Rank, WorldSize};

use super::node_name::NodeName;

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
