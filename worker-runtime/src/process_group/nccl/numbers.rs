//! Numbers the calls of a group: those of all ranks as one, those between two ranks by themselves. Pure.

use rankrun_contract::rank::WorldSize;

use crate::process_group::message::{Call, Operation};

/// How many calls there have been.
#[derive(Debug)]
pub(crate) struct Numbers {
    all: u64,
    /// Between this rank and each other one: sent to it, received from it.
    pairs: Vec<[u64; 2]>,
}

impl Numbers {
    pub(crate) fn new(world_size: WorldSize) -> Self {
        Self { all: 0, pairs: vec![[0; 2]; world_size.get() as usize] }
    }

    /// The call with its number, and whether all ranks make it.
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
