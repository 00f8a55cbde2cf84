//! Numbers the calls of a group: one sequence for the whole group, two for each pair of ranks. Pure.

use rankrun_contract::rank::WorldSize;

use crate::process_group::message::{Call, Operation};

/// Sequence numbers of the calls so far.
#[derive(Debug)]
pub(crate) struct CallNumbers {
    group_calls: u64,
    /// With each other rank: sent to it, received from it.
    pair_calls: Vec<[u64; 2]>,
}

impl CallNumbers {
    pub(crate) fn new(world_size: WorldSize) -> Self {
        Self { group_calls: 0, pair_calls: vec![[0; 2]; world_size.get() as usize] }
    }

    /// The call with its number, and whether the whole group makes it.
    pub(crate) fn assign_sequence(&mut self, call: Call) -> (Call, bool) {
        let (sequence, is_of_all) = match (call.operation, call.root) {
            (Operation::Send, Some(to)) => (&mut self.pair_calls[to.index()][0], false),
            (Operation::Receive, Some(from)) => (&mut self.pair_calls[from.index()][1], false),
            _ => (&mut self.group_calls, true),
        };
        *sequence += 1;
        (Call { sequence: *sequence, ..call }, is_of_all)
    }
}
