//! A group of ranks on the CPU: numbers the calls, checks them, and agrees with the other ranks on how the group ended.

use std::time::Duration;

use rankrun_contract::rank::{Rank, WorldSize};

use super::buffer::Memory;
use super::collective::HostCollective;
use super::element::DataType;
use super::error::{Ending, GroupError};
use super::message::{Call, Operation};
use super::transport::{Step, Transport};
use super::{Backend, ProcessGroup, parting, verdict};
use crate::clock;
use crate::store::TcpStore;

/// Ranks that a [`Transport`] connects.
#[derive(Debug)]
pub(crate) struct CpuGroup {
    rank: Rank,
    world_size: WorldSize,
    timeout: Duration,
    backend: Backend,
    /// `None` once it was given away.
    transport: Option<Box<dyn Transport>>,
    /// Where the ending is agreed upon; none where the transport does it, and in a world of one, which has none.
    store: Option<TcpStore>,
    /// Calls of the whole group so far.
    sequence: u64,
    /// Calls so far between this rank and each other one: sent to it, received from it.
    pairs: Vec<[u64; 2]>,
    ending: Option<Ending>,
}

impl CpuGroup {
    pub(crate) fn new(
        (rank, world_size): (Rank, WorldSize),
        (backend, transport): (Backend, Box<dyn Transport>),
        timeout: Duration,
        store: Option<TcpStore>,
    ) -> Self {
        let pairs = vec![[0; 2]; world_size.get() as usize];
        let transport = Some(transport);
        Self { rank, world_size, timeout, backend, transport, store, sequence: 0, pairs, ending: None }
    }

    /// Numbers the call: those of the group as one, those between two ranks by themselves.
    fn number(&mut self, call: Call) -> Call {
        let (sequence, call) = match (call.operation, call.root) {
            (Operation::Send, Some(to)) => (&mut self.pairs[to.index()][0], call),
            // Both ends make the same call.
            (Operation::Receive, Some(from)) => (
                &mut self.pairs[from.index()][1],
                Call { operation: Operation::Send, root: Some(self.rank), ..call },
            ),
            _ => (&mut self.sequence, call),
        };
        *sequence += 1;
        Call { sequence: *sequence, ..call }
    }

    /// Agrees with the other ranks on how the group ended, then lets them see it.
    fn end(&mut self, operation: Operation, seen: Ending) -> GroupError {
        let ending = match &self.store {
            Some(store) => verdict::agree(store, seen, self.rank),
            None => seen,
        };
        if let Some(transport) = &mut self.transport {
            transport.close();
        }
        self.ending = Some(ending.clone());
        GroupError::Ended { operation, ending }
    }
}

impl ProcessGroup for CpuGroup {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn world_size(&self) -> WorldSize {
        self.world_size
    }

    fn backend(&self) -> Backend {
        self.backend
    }

    fn run(&mut self, data_type: DataType, work: HostCollective<'_>) -> Result<(), GroupError> {
        let operation = work.operation();
        if let Some(ending) = self.ending.clone() {
            return Err(GroupError::Ended { operation, ending });
        }
        work.check(data_type, self.rank, self.world_size)?;
        let call = self.number(work.call(data_type));
        let step = Step { call, deadline: clock::after(self.timeout), timeout: self.timeout };
        match &mut self.transport {
            Some(transport) => transport.run(&step, work).map_err(|ending| self.end(operation, ending)),
            None => Ok(()),
        }
    }

    fn allocate(&mut self, bytes: usize) -> Memory {
        let own = self.transport.as_mut().and_then(|transport| transport.allocate(bytes));
        own.unwrap_or_else(|| Memory::on_heap(bytes))
    }

    fn leave(&mut self) {
        if let Some(mut transport) = self.transport.take() {
            transport.leave();
        }
    }
}

impl Drop for CpuGroup {
    fn drop(&mut self) {
        if let (None, Some(transport)) = (&self.ending, self.transport.take()) {
            parting::take(Box::new(transport));
        }
    }
}
