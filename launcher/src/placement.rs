//! Assigns the devices of this node to the ranks of a round. Pure: specification and round in, placements out.

use std::fmt;

use rankrun_contract::device as contract;
use rankrun_contract::rank::{Generation, LocalRank, Rank};

use crate::device::{DeviceType, PciAddress};
use crate::rendezvous::Round;
use crate::spec::WorkerDevice;

/// The device that a worker computes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The type of the device; without meaning if `is_known_to_runtime` is false.
    pub kind: DeviceType,
    /// The device's number among those that the worker sees. CPUs: tells replicas apart, binds nothing.
    pub ordinal: u32,
    /// Which of the node's devices it is, where that was found out.
    pub identity: Option<DeviceIdentity>,
    /// Whether devices were probed. Without a probe the worker may still use an accelerator, and no device is named.
    pub is_known_to_runtime: bool,
}

/// One of the node's devices, in words for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// Its number as its vendor's tool counts; `1:0` for the first MIG device of GPU 1.
    pub index: String,
    /// The noun for its number: `GPU`, `MIG device`, `tile`, `HPU`, `NPU`.
    pub noun: &'static str,
    /// The product name of the device.
    pub name: String,
    /// The UUID of the device, if known.
    pub uuid: Option<String>,
    /// The PCI address of the device, if known.
    pub pci: Option<PciAddress>,
    /// The NUMA node that it hangs on.
    pub numa_node: Option<u32>,
    /// How it was chosen, such as `--devices 3` or `CUDA_VISIBLE_DEVICES entry 3`.
    pub chosen_by: String,
}

impl DeviceIdentity {
    /// The type and index: `GPU 3`.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{} {}", self.noun, self.index)
    }
}

impl fmt::Display for DeviceIdentity {
    /// Writes the device as `GPU 3 NVIDIA H100 (0000:1b:00.0)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.title())?;
        if !self.name.is_empty() {
            write!(f, " {}", self.name)?;
        }
        self.pci.map_or(Ok(()), |pci| write!(f, " ({pci})"))
    }
}

impl Device {
    /// One of several workers on the CPUs.
    #[must_use]
    pub const fn cpu(replica: u32) -> Self {
        Self { kind: DeviceType::Cpu, ordinal: replica, identity: None, is_known_to_runtime: true }
    }

    /// The value of `RANKRUN_DEVICE`; `None` if the launcher did not probe.
    #[must_use]
    pub fn contract_device(&self) -> Option<contract::Device> {
        let index = usize::try_from(self.ordinal).ok().filter(|_| self.is_known_to_runtime)?;
        contract::Device::new(self.kind.as_str(), index)
    }
}

impl fmt::Display for Device {
    /// Writes the device as workers see it: `cuda:1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_known_to_runtime {
            return f.write_str("not looked at");
        }
        write!(f, "{}:{}", self.kind, self.ordinal)
    }
}

/// The ranks and the device of one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The worker's index in the whole job.
    pub rank: Rank,
    /// Index among the workers of its role.
    pub role_rank: Rank,
    /// The worker's index on this node.
    pub local_rank: LocalRank,
    /// The device that the worker computes on.
    pub device: Device,
}

/// One worker in one life of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WorkerId {
    /// Which life of the worker group.
    pub generation: Generation,
    /// The index of the worker on the node.
    pub local_rank: LocalRank,
}

/// The placements of one node's workers in a round, in local rank order.
#[must_use]
pub fn assign_ranks(worker_devices: &[WorkerDevice], round: &Round) -> Vec<Placement> {
    (0..)
        .zip(worker_devices)
        .map(|(index, worker_device)| Placement {
            rank: Rank(round.base_rank.0.saturating_add(index)),
            role_rank: Rank(round.base_role_rank.0.saturating_add(index)),
            local_rank: LocalRank(index),
            device: worker_device.device.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use rankrun_contract::env::Master;
    use rankrun_contract::rank::{LocalWorldSize, NodeCount, NodeRank, WorldSize};

    #[test]
    fn each_device_type_is_known_to_worker_runtime() {
        for kind in DeviceType::ALL {
            let device = Device { kind, ordinal: 3, identity: None, is_known_to_runtime: true };
            let known = device.contract_device().unwrap();
            assert_eq!(known.to_string(), device.to_string());
            assert!(!matches!(known, contract::Device::Other { .. }), "{known}");
            assert_eq!(Device { is_known_to_runtime: false, ..device }.contract_device(), None);
        }
    }

    fn worker_devices(workers: u32) -> Vec<WorkerDevice> {
        (0..workers).map(|rank| WorkerDevice::cpu(LocalRank(rank))).collect()
    }

    fn master() -> Master {
        Master { addr: "th1".to_owned(), port: 29_500, uses_agent_store: true }
    }

    /// The rounds that the nodes of a job get, with so many workers each, of one of two roles.
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
