//! Who sits where: which rank has which of the node's seats. Pure.

use std::fmt;

use rankrun_contract::rank::{Generation, LocalRank, Rank};

use crate::device::{DeviceType, PciAddress};
use crate::spec::Seat;

/// What a worker computes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// What it is; says nothing where `known` is false.
    pub kind: DeviceType,
    /// The number under which the worker finds it among those that it sees. CPUs: tells replicas apart, binds nothing.
    pub ordinal: u32,
    /// Which of the node's devices it is, where that was found out.
    pub card: Option<Card>,
    /// Whether anybody looked. A worker that nobody looked for may well run on an accelerator, and is told nothing.
    pub known: bool,
}

/// One of the node's devices, in words for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// Its number as its vendor's tool counts; `1:0` for the first MIG device of GPU 1.
    pub index: String,
    /// What its number counts: `GPU`, `MIG device`, `tile`, `HPU`, `NPU`.
    pub noun: &'static str,
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: Option<String>,
    /// Where it is plugged in.
    pub pci: Option<PciAddress>,
    /// The NUMA node that it hangs on.
    pub numa_node: Option<u32>,
    /// How it was chosen, such as `--devices 3` or `CUDA_VISIBLE_DEVICES entry 3`.
    pub how: String,
}

impl Card {
    /// `GPU 3`
    #[must_use]
    pub fn title(&self) -> String {
        format!("{} {}", self.noun, self.index)
    }
}

impl fmt::Display for Card {
    /// `GPU 3 NVIDIA H100 (0000:1b:00.0)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.title())?;
        if !self.name.is_empty() {
            write!(f, " {}", self.name)?;
        }
        self.pci.map_or(Ok(()), |pci| write!(f, " ({pci})"))
    }
}

impl Device {
    /// One of several CPU devices.
    #[must_use]
    pub const fn cpu(replica: u32) -> Self {
        Self { kind: DeviceType::Cpu, ordinal: replica, card: None, known: true }
    }
}

impl fmt::Display for Device {
    /// As workers are told: `cuda:1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.known {
            return f.write_str("not looked at");
        }
        write!(f, "{}:{}", self.kind, self.ordinal)
    }
}

/// One worker's seat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Index in the whole job.
    pub rank: Rank,
    /// Index on this node.
    pub local_rank: LocalRank,
    /// What it computes on.
    pub device: Device,
}

/// One worker in one life of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WorkerId {
    /// Which life of the worker group.
    pub generation: Generation,
    /// Which worker of it.
    pub local_rank: LocalRank,
}

/// The seats of a job on one node, in local rank order.
#[must_use]
pub fn assign(seats: &[Seat]) -> Vec<Placement> {
    (0..)
        .zip(seats)
        .map(|(index, seat)| Placement {
            rank: Rank(index),
            local_rank: LocalRank(index),
            device: seat.device.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_exactly_zero_to_world_size() {
        for workers in [1, 2, 7, 64] {
            let all: Vec<Seat> = (0..workers).map(|rank| Seat::cpu(LocalRank(rank))).collect();
            let seats = assign(&all);
            let ranks: Vec<u32> = seats.iter().map(|seat| seat.rank.0).collect();
            assert_eq!(ranks, (0..workers).collect::<Vec<_>>());
            assert!(seats.iter().all(|seat| seat.local_rank.0 == seat.rank.0));
        }
    }
}
