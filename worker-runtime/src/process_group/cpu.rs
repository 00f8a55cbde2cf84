//! A group of ranks on the CPU: numbers the calls, checks them, and agrees with the other ranks on how the group ended.

use rankrun_contract::rank::{Rank, WorldSize};

use super::buffer::Memory;
use super::collective::{Collective, HostCollective};
use super::element::DataType;
use super::error::{Ending, GroupError};
use super::fork::Process;
use super::meet::{Connected, Meeting, Seat};
use super::message::{Call, Operation};
use super::split::{self, Choice};
use super::transport::{Step, Transport};
use super::{Backend, ProcessGroup, parting, reduce};
use crate::clock;

/// Ranks that a [`Transport`] connects.
#[derive(Debug)]
pub(crate) struct CpuGroup {
    seat: Seat,
    backend: Backend,
    /// `None` once it was given away.
    transport: Option<Box<dyn Transport>>,
    meeting: Box<dyn Meeting>,
    /// Calls of the whole group so far.
    sequence: u64,
    /// Calls so far between this rank and each other one: sent to it, received from it.
    pairs: Vec<[u64; 2]>,
    ending: Option<Ending>,
    /// The process that joined. A forked child of it has all of this, and must not speak for it.
    owner: Process,
}

impl CpuGroup {
    pub(crate) fn new(seat: Seat, connected: Connected) -> Self {
        let Connected { backend, transport, meeting } = connected;
        let pairs = vec![[0; 2]; seat.world_size.get() as usize];
        let transport = Some(transport);
        Self { seat, backend, transport, meeting, sequence: 0, pairs, ending: None, owner: Process::this() }
    }

    /// Numbers the call: those of the group as one, those between two ranks by themselves.
    fn number(&mut self, call: Call) -> Call {
        let (sequence, call) = match (call.operation, call.root) {
            (Operation::Send, Some(to)) => (&mut self.pairs[to.index()][0], call),
            // Both ends make the same call.
            (Operation::Receive, Some(from)) => (
                &mut self.pairs[from.index()][1],
                Call { operation: Operation::Send, root: Some(self.seat.rank), ..call },
            ),
            _ => (&mut self.sequence, call),
        };
        *sequence += 1;
        Call { sequence: *sequence, ..call }
    }

    /// Performs a call on all ranks.
    fn carry(&mut self, as_asked: Operation, call: Call, work: HostCollective<'_>) -> Result<(), GroupError> {
        if !self.owner.is_this() {
            return Err(GroupError::Forked { rank: self.seat.rank });
        }
        if let Some(ending) = self.ending.clone() {
            return Err(self.ended(as_asked, ending));
        }
        let call = self.number(call);
        let step = Step { call, deadline: clock::after(self.seat.timeout), timeout: self.seat.timeout };
        match &mut self.transport {
            Some(transport) => transport.run(&step, work).map_err(|ending| self.end(as_asked, ending)),
            None => Ok(()),
        }
    }

    /// Agrees with the other ranks on how the group ended, then lets them see it.
    fn end(&mut self, operation: Operation, seen: Ending) -> GroupError {
        let ending = self.meeting.agree(&self.seat, self.as_asked(seen));
        if let Some(transport) = &mut self.transport {
            transport.close();
        }
        self.ending = Some(ending.clone());
        self.ended(operation, ending)
    }

    /// The other end of a `send` made the same call to the transport; its program called it `receive`.
    fn as_asked(&self, seen: Ending) -> Ending {
        match seen {
            Ending::Mismatch { rank, theirs, mut ours }
                if ours.operation == Operation::Send && ours.root == Some(self.seat.rank) =>
            {
                (ours.operation, ours.root) = (Operation::Receive, Some(rank));
                Ending::Mismatch { rank, theirs, ours }
            }
            seen => seen,
        }
    }

    fn ended(&self, operation: Operation, ending: Ending) -> GroupError {
        GroupError::Ended { operation, ending, members: self.seat.members.clone() }
    }
}

impl ProcessGroup for CpuGroup {
    fn rank(&self) -> Rank {
        self.seat.rank
    }

    fn world_size(&self) -> WorldSize {
        self.seat.world_size
    }

    fn backend(&self) -> Backend {
        self.backend
    }

    fn run(&mut self, data_type: DataType, work: HostCollective<'_>) -> Result<(), GroupError> {
        work.check(data_type, self.seat.rank, self.seat.world_size)?;
        // As torch does it; on a device NCCL carries such a message, where both ends are in one group of calls.
        if let HostCollective::Send { to: rank, .. } | HostCollective::Receive { from: rank, .. } = work
            && rank == self.seat.rank
        {
            return Err(GroupError::ToItself { operation: work.operation(), rank });
        }
        self.carry(work.operation(), work.call(data_type), work)
    }

    fn split(&mut self, color: Option<u32>, key: u32) -> Result<Option<Box<dyn ProcessGroup>>, GroupError> {
        parting::go_on();
        let own = Choice { color, key }.encode();
        let mut all = vec![[0i64; 2]; self.seat.world_size.get() as usize];
        let work = Collective::AllGather {
            input: reduce::as_bytes(&own),
            output: reduce::as_bytes_mut(all.as_flattened_mut()),
        };
        let call = Call { operation: Operation::Split, ..work.call(DataType::I64) };
        self.carry(Operation::Split, call, work)?;
        let choices: Vec<Choice> = all.into_iter().map(Choice::decode).collect();
        let (Some(color), Some(members)) = (color, split::members(&choices, self.seat.rank)) else {
            return Ok(None);
        };
        let seat = self.seat.within(&members, clock::after(self.seat.timeout));
        let connected = self.meeting.subgroup(&seat, &format!("split {}/{color}", self.sequence))?;
        Ok(Some(Box::new(Self::new(seat, connected))))
    }

    fn allocate(&mut self, bytes: usize) -> Memory {
        // What a forked child would have of it, its parent would give away, too.
        let transport = self.transport.as_mut().filter(|_| self.owner.is_this());
        let own = transport.and_then(|transport| transport.allocate(bytes));
        own.unwrap_or_else(|| Memory::on_heap(bytes))
    }

    fn leave(&mut self) {
        if let Some(mut transport) = self.transport.take().filter(|_| self.owner.is_this()) {
            transport.leave();
        }
    }
}

impl Drop for CpuGroup {
    fn drop(&mut self) {
        let (None, Some(mut transport)) = (&self.ending, self.transport.take()) else { return };
        if !self.owner.is_this() {
            return;
        }
        // A rank that is a thread has ended when it drops its group, whatever becomes of the process.
        match transport.is_among_threads() {
            true if std::thread::panicking() => transport.close(),
            true => transport.leave(),
            false => parting::take(Box::new(transport)),
        }
    }
}
