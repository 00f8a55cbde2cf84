//! Numbers the calls of a group: one sequence for the whole group, two for each pair of ranks. Pure.

use rankrun_contract::rank::WorldSize;

use crate::process_group::message::{Call, Operation};

/// Sequence numbers of the calls so far.
#[derive(Debug)]
pub(crate) struct CallNumbers {
    all: u64,
    /// With each other rank: sent to it, received from it.
    pairs: Vec<[u64; 2]>,
}

impl CallNumbers {
    pub(crate) fn new(world_size: WorldSize) -> Self {
        Self { all: 0, pairs: vec![[0; 2]; world_size.get() as usize] }
    }

    /// The call with its number, and whether the whole group makes it.
    pub(crate) fn number(&mut self, call: Call) -> (Call, bool) {
        let (sequence, is_of_all) = match (call.operation, call.root) {
            (Operation::Send, Some(to)) => (&mut self.pairs[to.index()][0], false),
            (Operation::Receive, Some(from)) => (&mut self.pairs[from.index()][1], false),
            _ => (&mut self.all, true),
        };
        *sequence += 1;
        (Call { sequence: *sequence, ..call }, is_of_all)
    }
}
