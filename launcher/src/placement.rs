//! Who sits where: workers × devices → one seat for each worker. Pure.

use std::fmt;

use rankrun_contract::rank::{Generation, LocalRank, LocalWorldSize, Rank};

/// What a worker computes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// One of several CPU devices; the number tells replicas apart, it binds nothing.
    Cpu(u32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(index) => write!(f, "cpu:{index}"),
        }
    }
}

/// One worker's seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
pub fn assign(workers: LocalWorldSize) -> Vec<Placement> {
    (0..workers.get())
        .map(|index| Placement {
            rank: Rank(index),
            local_rank: LocalRank(index),
            device: Device::Cpu(index),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_exactly_zero_to_world_size() {
        for workers in [1, 2, 7, 64] {
            let seats = assign(LocalWorldSize::new(workers).unwrap());
            let ranks: Vec<u32> = seats.iter().map(|seat| seat.rank.0).collect();
            assert_eq!(ranks, (0..workers).collect::<Vec<_>>());
            assert!(seats.iter().all(|seat| seat.local_rank.0 == seat.rank.0));
        }
    }
}
