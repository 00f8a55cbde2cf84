//! `send` and `receive`: a ring of slots for every ordered pair of ranks, independent of other calls.

use super::Shm;
use super::bytes::{self, Span};
use super::map::{LINE_PAIR_SIZE, PAIR_HEADER_BYTES, PAIR_SLOTS};
use super::member::{self, Member};
use super::pending::{PendingWait, WaitTarget};
use super::wait::Counter;
use crate::process_group::error::{GroupFailure, LossCause};
use crate::process_group::message::{Call, Operation};
use crate::process_group::transport::Step;

/// The state of the rings between this rank and all others.
#[derive(Debug)]
pub(crate) struct Pairs {
    send_rings: Vec<Ring>,
    receive_rings: Vec<Ring>,
}

/// The ring of one direction.
#[derive(Debug, Default, Clone)]
struct Ring {
    /// Slots that this rank has filled or emptied.
    slots_passed: u32,
    /// Whether its pages are allocated.
    is_ready: bool,
}

impl Pairs {
    pub(crate) fn new(world: usize) -> Self {
        Self { send_rings: vec![Ring::default(); world], receive_rings: vec![Ring::default(); world] }
    }

    /// Sets the number of slots that have passed.
    #[cfg(test)]
    pub(crate) fn set_slots_passed(&mut self, slots_passed: u32) {
        self.send_rings
            .iter_mut()
            .chain(&mut self.receive_rings)
            .for_each(|ring| ring.slots_passed = slots_passed);
    }
}

/// One direction between two ranks.
#[derive(Clone, Copy)]
struct Direction {
    from: usize,
    to: usize,
}

impl Direction {
    /// Slots filled by the sender, and slots emptied by the receiver.
    fn counters(self, member: &Member) -> (Counter<'_>, Counter<'_>) {
        let (segment, map) = (&member.segment, member.segment.map());
        let counter = |at| Counter::at(segment, at);
        (counter(map.filled_counter(self.from, self.to)), counter(map.emptied_counter(self.from, self.to)))
    }

    fn slot_offset(self, member: &Member, number: u32) -> usize {
        member.segment.map().pair_slot(self.from, self.to, number)
    }

    /// Allocates the pages of the ring once.
    fn populate_ring(self, member: &Member, ring: &mut Ring) -> Result<(), GroupFailure> {
        if ring.is_ready {
            return Ok(());
        }
        let (segment, map) = (&member.segment, member.segment.map());
        let control = segment.populate(map.filled_counter(self.from, self.to), 2 * LINE_PAIR_SIZE);
        let slots = segment.populate(self.slot_offset(member, 0), map.pair_slot_bytes() * PAIR_SLOTS);
        if control.and(slots).is_err() {
            let cause = LossCause::ConnectionFailed(std::io::ErrorKind::OutOfMemory);
            let other = if self.from == member.me { self.to } else { self.from };
            return Err(GroupFailure::Lost { rank: member.group_ranks[other], cause });
        }
        ring.is_ready = true;
        Ok(())
    }
}

impl Shm {
    pub(crate) fn send(&mut self, step: &Step, data: &[u8], to: usize) -> Result<(), GroupFailure> {
        // From here on the message is in the ring, or the receiver is waited for.
        self.member.unreceived_messages = self.member.unreceived_messages.wrapping_add(1);
        let (member, direction) = (&self.member, Direction { from: self.member.me, to });
        let ring = &mut self.pairs.send_rings[to];
        direction.populate_ring(member, ring)?;
        let (filled, emptied) = direction.counters(member);
        let (data, length) =
            (Span::from_slice(data), member.segment.map().pair_slot_bytes() - PAIR_HEADER_BYTES);
        let header = member::encode_call_header(step.call, 0);
        // An empty message takes one empty slot.
        for start in (0..data.bytes.max(1)).step_by(length) {
            let range = start..(start + length).min(data.bytes);
            // All slots but the one to fill may be full.
            let target = ring.slots_passed.wrapping_add(1).wrapping_sub(PAIR_SLOTS as u32);
            let wait = PendingWait { wait_target: WaitTarget::Room { to }, header, target_value: target };
            member.spin.wait(emptied, target, |slept| {
                member.check_missing_ranks(step, slept.then_some(&wait), |rank| {
                    rank == to && !emptied.has_reached(target)
                })
            })?;
            let slot = direction.slot_offset(member, ring.slots_passed);
            member.write_header(slot, &header);
            // SAFETY: memory of this call, and a slot that the receiver reads only after the counter moves.
            #[expect(unsafe_code, reason = "memory that ranks share")]
            unsafe {
                bytes::copy(
                    data.ptr_at(&range),
                    member.segment.ptr_at(slot + PAIR_HEADER_BYTES, length),
                    range.len(),
                );
            }
            ring.slots_passed = ring.slots_passed.wrapping_add(1);
            filled.set(ring.slots_passed);
        }
        member.clear_wait();
        Ok(())
    }

    pub(crate) fn receive(&mut self, step: &Step, data: &mut [u8], from: usize) -> Result<(), GroupFailure> {
        let (member, direction) = (&self.member, Direction { from, to: self.member.me });
        let ring = &mut self.pairs.receive_rings[from];
        direction.populate_ring(member, ring)?;
        let (filled, emptied) = direction.counters(member);
        let (data, length) =
            (Span::from_mut_slice(data), member.segment.map().pair_slot_bytes() - PAIR_HEADER_BYTES);
        let expected = member::encode_call_header(step.call, 0);
        // The call as the program of this end made it.
        let root = Some(member.group_ranks[from]);
        let own_call =
            member::encode_call_header(Call { operation: Operation::Receive, root, ..step.call }, 0);
        for start in (0..data.bytes.max(1)).step_by(length) {
            let range = start..(start + length).min(data.bytes);
            let target = ring.slots_passed.wrapping_add(1);
            let wait = PendingWait {
                wait_target: WaitTarget::Message { from },
                header: own_call,
                target_value: target,
            };
            member.spin.wait(filled, target, |slept| {
                member.check_missing_ranks(step, slept.then_some(&wait), |rank| {
                    rank == from && !filled.has_reached(target)
                })
            })?;
            let slot = direction.slot_offset(member, ring.slots_passed);
            let header = member.read_header(slot);
            if header != expected {
                return Err(member.report_mismatch(step, [from, member.me], [header, own_call]));
            }
            // SAFETY: memory of this call, and a slot that the sender fills again only after the counter
            // moves.
            #[expect(unsafe_code, reason = "memory that ranks share")]
            unsafe {
                let slot = member.segment.ptr_at(slot + PAIR_HEADER_BYTES, length).cast_const();
                bytes::copy(slot, data.ptr_at(&range), range.len());
            }
            ring.slots_passed = target;
            emptied.set(target);
        }
        member.clear_wait();
        self.member.unreceived_messages = self.member.unreceived_messages.wrapping_sub(1);
        Ok(())
    }
}
