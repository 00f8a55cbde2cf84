//! `send` and `receive`: a ring of slots for every ordered pair of ranks, independent of other calls.

use super::Shm;
use super::bytes::{self, Span};
use super::map::{LINE, PAIR_HEAD, PAIR_SLOTS};
use super::member::{self, Member};
use super::pending::{PendingWait, WaitTarget};
use super::wait::Counter;
use crate::process_group::error::{GroupFailure, LossCause};
use crate::process_group::message::{Call, Operation};
use crate::process_group::transport::Step;

/// The state of the rings between this rank and all others.
#[derive(Debug)]
pub(crate) struct Pairs {
    to: Vec<Ring>,
    from: Vec<Ring>,
}

/// The ring of one direction.
#[derive(Debug, Default, Clone)]
struct Ring {
    /// Slots that this rank has filled or emptied.
    passed: u32,
    /// Whether its pages are allocated.
    is_ready: bool,
}

impl Pairs {
    pub(crate) fn new(world: usize) -> Self {
        Self { to: vec![Ring::default(); world], from: vec![Ring::default(); world] }
    }

    /// Sets the number of slots that have passed.
    #[cfg(test)]
    pub(crate) fn start_at(&mut self, passed: u32) {
        self.to.iter_mut().chain(&mut self.from).for_each(|ring| ring.passed = passed);
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
        (counter(map.filled(self.from, self.to)), counter(map.emptied(self.from, self.to)))
    }

    fn slot(self, member: &Member, number: u32) -> usize {
        member.segment.map().pair_slot(self.from, self.to, number)
    }

    /// Allocates the pages of the ring once.
    fn prepare(self, member: &Member, ring: &mut Ring) -> Result<(), GroupFailure> {
        if ring.is_ready {
            return Ok(());
        }
        let (segment, map) = (&member.segment, member.segment.map());
        let control = segment.populate(map.filled(self.from, self.to), 2 * LINE);
        let slots = segment.populate(self.slot(member, 0), map.pair_slot_bytes() * PAIR_SLOTS);
        if control.and(slots).is_err() {
            let cause = LossCause::ConnectionFailed(std::io::ErrorKind::OutOfMemory);
            let other = if self.from == member.me { self.to } else { self.from };
            return Err(GroupFailure::Lost { rank: member.names[other], cause });
        }
        ring.is_ready = true;
        Ok(())
    }
}

impl Shm {
    pub(crate) fn send(&mut self, step: &Step, data: &[u8], to: usize) -> Result<(), GroupFailure> {
        // From here on the message is in the ring, or the receiver is waited for.
        self.member.messages = self.member.messages.wrapping_add(1);
        let (member, direction) = (&self.member, Direction { from: self.member.me, to });
        let ring = &mut self.pairs.to[to];
        direction.prepare(member, ring)?;
        let (filled, emptied) = direction.counters(member);
        let (data, length) = (Span::of(data), member.segment.map().pair_slot_bytes() - PAIR_HEAD);
        let header = member::words(step.call, 0);
        // An empty message takes one empty slot.
        for start in (0..data.bytes.max(1)).step_by(length) {
            let range = start..(start + length).min(data.bytes);
            // All slots but the one to fill may be full.
            let target = ring.passed.wrapping_add(1).wrapping_sub(PAIR_SLOTS as u32);
            let wait = PendingWait { what: WaitTarget::Room { to }, header, target };
            member.spin.wait(emptied, target, |slept| {
                member.look_for(step, slept.then_some(&wait), |it| it == to && !emptied.has_reached(target))
            })?;
            let slot = direction.slot(member, ring.passed);
            member.write_header(slot, &header);
            // SAFETY: memory of this call, and a slot that the receiver reads only after the counter moves.
            #[expect(unsafe_code, reason = "memory that ranks share")]
            unsafe {
                bytes::copy(data.at(&range), member.segment.at(slot + PAIR_HEAD, length), range.len());
            }
            ring.passed = ring.passed.wrapping_add(1);
            filled.set(ring.passed);
        }
        member.wait_no_more();
        Ok(())
    }

    pub(crate) fn receive(&mut self, step: &Step, data: &mut [u8], from: usize) -> Result<(), GroupFailure> {
        let (member, direction) = (&self.member, Direction { from, to: self.member.me });
        let ring = &mut self.pairs.from[from];
        direction.prepare(member, ring)?;
        let (filled, emptied) = direction.counters(member);
        let (data, length) = (Span::of_mut(data), member.segment.map().pair_slot_bytes() - PAIR_HEAD);
        let expected = member::words(step.call, 0);
        // The call as the program of this end made it.
        let root = Some(member.names[from]);
        let ours = member::words(Call { operation: Operation::Receive, root, ..step.call }, 0);
        for start in (0..data.bytes.max(1)).step_by(length) {
            let range = start..(start + length).min(data.bytes);
            let target = ring.passed.wrapping_add(1);
            let wait = PendingWait { what: WaitTarget::Message { from }, header: ours, target };
            member.spin.wait(filled, target, |slept| {
                member.look_for(step, slept.then_some(&wait), |it| it == from && !filled.has_reached(target))
            })?;
            let slot = direction.slot(member, ring.passed);
            let theirs = member.read_header(slot);
            if theirs != expected {
                return Err(member.disagree(step, [from, member.me], [theirs, ours]));
            }
            // SAFETY: memory of this call, and a slot that the sender fills again only after the counter
            // moves.
            #[expect(unsafe_code, reason = "memory that ranks share")]
            unsafe {
                let slot = member.segment.at(slot + PAIR_HEAD, length).cast_const();
                bytes::copy(slot, data.at(&range), range.len());
            }
            ring.passed = target;
            emptied.set(target);
        }
        member.wait_no_more();
        self.member.messages = self.member.messages.wrapping_sub(1);
        Ok(())
    }
}
