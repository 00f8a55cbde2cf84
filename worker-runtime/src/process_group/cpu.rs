//! A process group on CPU memory: numbers and checks calls, and agrees with the other ranks on
//! the failure that ended the group.
//!
//! A [`Transport`] moves the data; a [`Coordinator`] holds the agreement.

use rankrun_contract::rank::{Rank, WorldSize};

use super::buffer::Memory;
use super::collective::{Collective, HostCollective};
use super::element::DataType;
use super::error::{GroupError, GroupFailure};
use super::fork::ForkId;
use super::message::{Call, Operation};
use super::rendezvous::{Coordinator, GroupBacking, Membership};
use super::split::{self, SplitChoice};
use super::transport::{Step, Transport};
use super::{Backend, ProcessGroup, dropped_groups, reduce};
use crate::clock;

/// A process group whose calls a [`Transport`] performs.
#[derive(Debug)]
pub(crate) struct CpuGroup {
    membership: Membership,
    backend: Backend,
    /// `None` after the group was left or dropped.
    transport: Option<Box<dyn Transport>>,
    coordinator: Box<dyn Coordinator>,
    /// Calls of the whole group so far.
    sequence: u64,
    /// Calls so far with each other rank: sent to it, received from it.
    pair_sequences: Vec<[u64; 2]>,
    failure: Option<GroupFailure>,
    /// The process that joined. A forked child has a copy of this value and must not use its connections.
    owner: ForkId,
}

impl CpuGroup {
    pub(crate) fn new(membership: Membership, backing: GroupBacking) -> Self {
        let GroupBacking { backend, transport, coordinator } = backing;
        let pairs = vec![[0; 2]; membership.world_size.get() as usize];
        let transport = Some(transport);
        Self {
            membership,
            backend,
            transport,
            coordinator,
            sequence: 0,
            pair_sequences: pairs,
            failure: None,
            owner: ForkId::current(),
        }
    }

    /// Adds the sequence number. Calls of the whole group share one sequence; each pair of
    /// ranks has two of its own.
    fn with_sequence(&mut self, call: Call) -> Call {
        let (sequence, call) = match (call.operation, call.root) {
            (Operation::Send, Some(to)) => (&mut self.pair_sequences[to.index()][0], call),
            // The transport sees the same call at both ends.
            (Operation::Receive, Some(from)) => (
                &mut self.pair_sequences[from.index()][1],
                Call { operation: Operation::Send, root: Some(self.membership.rank), ..call },
            ),
            _ => (&mut self.sequence, call),
        };
        *sequence += 1;
        Call { sequence: *sequence, ..call }
    }

    /// Performs a call of all ranks, or of two.
    fn perform(
        &mut self,
        operation: Operation,
        call: Call,
        work: HostCollective<'_>,
    ) -> Result<(), GroupError> {
        if !self.owner.is_current() {
            return Err(GroupError::Forked { rank: self.membership.rank });
        }
        if let Some(failure) = self.failure.clone() {
            return Err(self.failed_error(operation, failure));
        }
        let call = self.with_sequence(call);
        let step =
            Step { call, deadline: clock::after(self.membership.timeout), timeout: self.membership.timeout };
        match &mut self.transport {
            Some(transport) => {
                transport.run(&step, work).map_err(|failure| self.end_group(operation, failure))
            }
            None => Ok(()),
        }
    }

    /// Agrees with the other ranks on the failure, then closes the connections.
    fn end_group(&mut self, operation: Operation, local_failure: GroupFailure) -> GroupError {
        let failure =
            self.coordinator.agree_on_failure(&self.membership, self.restore_receive(local_failure));
        if let Some(transport) = &mut self.transport {
            transport.close();
        }
        self.failure = Some(failure.clone());
        self.failed_error(operation, failure)
    }

    /// Restores `receive`: the transport sees the matching `send` at both ends.
    fn restore_receive(&self, failure: GroupFailure) -> GroupFailure {
        match failure {
            GroupFailure::Mismatch { rank, other_call, mut own_call }
                if own_call.operation == Operation::Send && own_call.root == Some(self.membership.rank) =>
            {
                (own_call.operation, own_call.root) = (Operation::Receive, Some(rank));
                GroupFailure::Mismatch { rank, other_call, own_call }
            }
            seen => seen,
        }
    }

    fn failed_error(&self, operation: Operation, failure: GroupFailure) -> GroupError {
        GroupError::Failed { operation, failure, members: self.membership.members.clone() }
    }
}

impl ProcessGroup for CpuGroup {
    fn rank(&self) -> Rank {
        self.membership.rank
    }

    fn world_size(&self) -> WorldSize {
        self.membership.world_size
    }

    fn backend(&self) -> Backend {
        self.backend
    }

    fn run(&mut self, data_type: DataType, work: HostCollective<'_>) -> Result<(), GroupError> {
        work.check(data_type, self.membership.rank, self.membership.world_size)?;
        // torch refuses it as well. NCCL permits it within one group of calls.
        if let HostCollective::Send { to: rank, .. } | HostCollective::Receive { from: rank, .. } = work
            && rank == self.membership.rank
        {
            return Err(GroupError::ToItself { operation: work.operation(), rank });
        }
        self.perform(work.operation(), work.call(data_type), work)
    }

    fn split(&mut self, color: Option<u32>, key: u32) -> Result<Option<Box<dyn ProcessGroup>>, GroupError> {
        dropped_groups::leave_kept_groups();
        let own = SplitChoice { color, key }.encode();
        let mut all = vec![[0i64; 2]; self.membership.world_size.get() as usize];
        let work = Collective::AllGather {
            input: reduce::as_bytes(&own),
            output: reduce::as_bytes_mut(all.as_flattened_mut()),
        };
        let call = Call { operation: Operation::Split, ..work.call(DataType::I64) };
        self.perform(Operation::Split, call, work)?;
        let choices: Vec<SplitChoice> = all.into_iter().map(SplitChoice::decode).collect();
        let (Some(color), Some(members)) = (color, split::subgroup_members(&choices, self.membership.rank))
        else {
            return Ok(None);
        };
        let membership = self.membership.for_subgroup(&members, clock::after(self.membership.timeout));
        let backing =
            self.coordinator.connect_subgroup(&membership, &format!("split {}/{color}", self.sequence))?;
        Ok(Some(Box::new(Self::new(membership, backing))))
    }

    fn allocate(&mut self, bytes: usize) -> Memory {
        // A forked child shares this memory with its parent and must not hand it out again.
        let transport = self.transport.as_mut().filter(|_| self.owner.is_current());
        let own = transport.and_then(|transport| transport.allocate(bytes));
        own.unwrap_or_else(|| Memory::on_heap(bytes))
    }

    fn leave(&mut self) {
        if let Some(mut transport) = self.transport.take().filter(|_| self.owner.is_current()) {
            transport.leave();
        }
    }
}

impl Drop for CpuGroup {
    fn drop(&mut self) {
        let (None, Some(mut transport)) = (&self.failure, self.transport.take()) else { return };
        if !self.owner.is_current() {
            return;
        }
        // A thread's group ends with the thread; the process may live on.
        match transport.is_in_process() {
            true if std::thread::panicking() => transport.close(),
            true => transport.leave(),
            false => dropped_groups::keep_or_leave(Box::new(transport)),
        }
    }
}
