//! Assigns the devices of this node to the ranks of a round. Pure: specification and round in, placements out.

use rankrun_contract::rank::{Generation, LocalRank, Rank};

use crate::device::WorkerDevice;
use crate::rendezvous::Round;

/// The ranks and the device of one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The worker's index in the whole job.
    pub rank: Rank,
    /// Index among the workers of its role.
    pub role_rank: Rank,
    /// The worker's index on this node.
    pub local_rank: LocalRank,
    /// The device that the worker computes on, its variables and CPUs.
    pub device: WorkerDevice,
}

/// One worker of one generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WorkerId {
    /// The generation of the worker group.
    pub generation: Generation,
    /// The index of the worker on the node.
    pub local_rank: LocalRank,
}

/// The placements of one node's workers in a round, in local rank order.
#[must_use]
pub fn assign_ranks(workers: &[WorkerDevice], round: &Round) -> Vec<Placement> {
    (0..)
        .zip(workers)
        .map(|(index, device)| Placement {
            rank: Rank(round.base_rank.0.saturating_add(index)),
            role_rank: Rank(round.base_role_rank.0.saturating_add(index)),
            local_rank: LocalRank(index),
            device: device.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use rankrun_contract::env::Master;
    use rankrun_contract::rank::{LocalWorldSize, NodeCount, NodeRank, WorldSize};

    fn worker_devices(workers: u32) -> Vec<WorkerDevice> {
        (0..workers).map(|rank| WorkerDevice::cpu(LocalRank(rank))).collect()
    }

    fn master() -> Master {
        Master { addr: "th1".to_owned(), port: 29_500, uses_agent_store: true }
    }

    /// The rounds that the nodes of a job get, with these numbers of workers, of one of two roles.
    fn rounds(nodes: &[(u32, bool)]) -> Vec<Round> {
        let workers = |nodes: &[(u32, bool)], role: Option<bool>| {
            let counted = nodes.iter().filter(|(_, other)| role.is_none_or(|role| role == *other));
            counted.map(|(workers, _)| workers).sum::<u32>()
        };
        let round = |(at, (_, role)): (usize, &(u32, bool))| Round {
            number: 3,
            node_rank: NodeRank(u32::try_from(at).unwrap()),
            nodes: NodeCount::new(u32::try_from(nodes.len()).unwrap()).unwrap(),
            base_rank: Rank(workers(&nodes[..at], None)),
            world_size: WorldSize::new(workers(nodes, None)).unwrap(),
            base_role_rank: Rank(workers(&nodes[..at], Some(*role))),
            role_world_size: WorldSize::new(workers(nodes, Some(*role))).unwrap(),
            master: master(),
            members: Vec::new(),
            interface: None,
        };
        nodes.iter().enumerate().map(round).collect()
    }

    #[test]
    fn single_node_ranks_are_zero_to_world_size() {
        for workers in [1, 2, 7, 64] {
            let alone = Round::of_one_node(LocalWorldSize::new(workers).unwrap(), master());
            let placements = assign_ranks(&worker_devices(workers), &alone);
            let ranks: Vec<u32> = placements.iter().map(|placement| placement.rank.0).collect();
            assert_eq!(ranks, (0..workers).collect::<Vec<_>>());
            assert!(placements.iter().all(|placement| placement.local_rank.0 == placement.rank.0));
            assert!(placements.iter().all(|placement| placement.role_rank == placement.rank));
        }
    }

    proptest! {
        /// However many workers each node has, and whatever their roles.
        #[test]
        fn every_rank_and_role_rank_is_assigned_once(
            nodes in prop::collection::vec((1u32..9, any::<bool>()), 1..17),
        ) {
            let mut ranks = Vec::new();
            let mut of_roles = [Vec::new(), Vec::new()];
            for (round, (workers, role)) in rounds(&nodes).iter().zip(&nodes) {
                let placements = assign_ranks(&worker_devices(*workers), round);
                let local: Vec<u32> = placements.iter().map(|placement| placement.local_rank.0).collect();
                prop_assert_eq!(local, (0..*workers).collect::<Vec<_>>());
                ranks.extend(placements.iter().map(|placement| placement.rank.0));
                of_roles[usize::from(*role)].extend(placements.iter().map(|placement| placement.role_rank.0));
            }
            let world: u32 = nodes.iter().map(|(workers, _)| workers).sum();
            prop_assert_eq!(ranks, (0..world).collect::<Vec<_>>(), "in the order of the nodes");
            for of_role in of_roles {
                prop_assert_eq!(&of_role, &(0..u32::try_from(of_role.len()).unwrap()).collect::<Vec<_>>());
            }
        }
    }
}
