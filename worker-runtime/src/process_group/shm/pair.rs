//! `send` and `receive`: a ring of slots for every two ranks and direction, which disturbs no other call.

use super::Shm;
use super::bytes::{self, Span};
use super::map::{LINE, PAIR_HEAD, PAIR_SLOTS};
use super::member::{self, Member};
use super::pending::{Wait, What};
use super::wait::Counter;
use crate::process_group::error::{Ending, LossCause};
use crate::process_group::message::{Call, Operation};
use crate::process_group::transport::Step;

/// How far the messages between this rank and each other one are.
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
    /// Whether its pages are there.
    is_ready: bool,
}

impl Pairs {
    pub(crate) fn new(world: usize) -> Self {
        Self { to: vec![Ring::default(); world], from: vec![Ring::default(); world] }
    }

    /// As if so many slots had passed already.
    #[cfg(test)]
    pub(crate) fn start_at(&mut self, passed: u32) {
        self.to.iter_mut().chain(&mut self.from).for_each(|ring| ring.passed = passed);
    }
}

/// One direction between two ranks.
#[derive(Clone, Copy)]
struct Way {
    from: usize,
    to: usize,
}

impl Way {
    /// Slots filled by the one, and slots emptied by the other.
    fn counters(self, member: &Member) -> (Counter<'_>, Counter<'_>) {
        let (segment, map) = (&member.segment, member.segment.map());
        let counter = |at| Counter::at(segment, at);
        (counter(map.filled(self.from, self.to)), counter(map.emptied(self.from, self.to)))
    }

    fn slot(self, member: &Member, number: u32) -> usize {
        member.segment.map().pair_slot(self.from, self.to, number)
    }

    /// Has the kernel give the pages, unless it was done before.
    fn prepare(self, member: &Member, ring: &mut Ring) -> Result<(), Ending> {
        if ring.is_ready {
            return Ok(());
        }
        let (segment, map) = (&member.segment, member.segment.map());
        let control = segment.populate(map.filled(self.from, self.to), 2 * LINE);
        let slots = segment.populate(self.slot(member, 0), map.pair_slot_bytes() * PAIR_SLOTS);
        if control.and(slots).is_err() {
            let cause = LossCause::Failed(std::io::ErrorKind::OutOfMemory);
            let other = if self.from == member.me { self.to } else { self.from };
            return Err(Ending::Lost { rank: member.names[other], cause });
        }
        ring.is_ready = true;
        Ok(())
    }
}

impl Shm {
    pub(crate) fn send(&mut self, step: &Step, data: &[u8], to: usize) -> Result<(), Ending> {
        // From here on it lies there, or is waited for.
        self.member.messages = self.member.messages.wrapping_add(1);
        let (member, way) = (&self.member, Way { from: self.member.me, to });
        let ring = &mut self.pairs.to[to];
        way.prepare(member, ring)?;
        let (filled, emptied) = way.counters(member);
        let (data, length) = (Span::of(data), member.segment.map().pair_slot_bytes() - PAIR_HEAD);
        let header = member::words(step.call, 0);
        // Nothing is sent as one empty slot.
        for start in (0..data.bytes.max(1)).step_by(length) {
            let range = start..(start + length).min(data.bytes);
            // All slots but the one to be filled may be full.
            let target = ring.passed.wrapping_add(1).wrapping_sub(PAIR_SLOTS as u32);
            let wait = Wait { what: What::Room { to }, header, target };
            member.spin.wait(emptied, target, |slept| {
                member.look_for(step, slept.then_some(&wait), |it| it == to && !emptied.has_reached(target))
            })?;
            let slot = way.slot(member, ring.passed);
            member.write_header(slot, &header);
            // SAFETY: our memory, and a slot that the other rank reads only after the counter says so.
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

    pub(crate) fn receive(&mut self, step: &Step, data: &mut [u8], from: usize) -> Result<(), Ending> {
        let (member, way) = (&self.member, Way { from, to: self.member.me });
        let ring = &mut self.pairs.from[from];
        way.prepare(member, ring)?;
        let (filled, emptied) = way.counters(member);
        let (data, length) = (Span::of_mut(data), member.segment.map().pair_slot_bytes() - PAIR_HEAD);
        let expected = member::words(step.call, 0);
        // What the program of this end calls it.
        let root = Some(member.names[from]);
        let ours = member::words(Call { operation: Operation::Receive, root, ..step.call }, 0);
        for start in (0..data.bytes.max(1)).step_by(length) {
            let range = start..(start + length).min(data.bytes);
            let target = ring.passed.wrapping_add(1);
            let wait = Wait { what: What::Message { from }, header: ours, target };
            member.spin.wait(filled, target, |slept| {
                member.look_for(step, slept.then_some(&wait), |it| it == from && !filled.has_reached(target))
            })?;
            let slot = way.slot(member, ring.passed);
            let theirs = member.read_header(slot);
            if theirs != expected {
                return Err(member.disagree(step, [from, member.me], [theirs, ours]));
            }
            // SAFETY: our memory, and a slot that the other rank fills again only after the counter says so.
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
