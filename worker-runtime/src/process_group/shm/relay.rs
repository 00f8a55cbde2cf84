//! Calls in which what one rank gives is what others take: `broadcast`, `all_gather`, `gather`, `scatter`, and `reduce_scatter`,
//! which reduces as it takes.
//!
//! Memory goes through the givers' slots, one piece after another: a piece is taken while the next one is filled in. A giver whose
//! memory lies in its arena fills nothing in: the others take it from there, and all wait for each other at the end, before its
//! program writes to that memory again. If all givers do so, there is one piece.

use std::ops::Range;

use super::Shm;
use super::bytes::Span;
use super::member::FOREIGN;
use crate::process_group::error::Ending;
use crate::process_group::transport::Step;

/// Who gives in a call, and how much.
pub(crate) struct Relay<'a> {
    /// The only rank that gives; else all do.
    pub(crate) root: Option<usize>,
    /// What this rank gives, if it does.
    pub(crate) gives: Option<Span>,
    /// Bytes that go through one rank's slots, of the rank with the most.
    pub(crate) bytes: usize,
    /// The most of them in one piece.
    pub(crate) piece: usize,
    /// Stands for what each rank gives or takes, where these differ.
    pub(crate) shares: u64,
    /// Bytes of all memory that a rank gives.
    pub(crate) memory: &'a dyn Fn(usize) -> usize,
}

/// Where a giver's memory is, for one piece of a call.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// All of it, in the giver's arena.
    Arena(*const u8),
    /// Its piece, in a slot.
    Slot(*const u8),
}

impl Source {
    /// Where a part of the piece lies: so far into all of the memory, or so far into the slot.
    pub(crate) fn at(self, in_memory: usize, in_slot: usize) -> *const u8 {
        match self {
            Self::Arena(start) => start.wrapping_add(in_memory),
            Self::Slot(start) => start.wrapping_add(in_slot),
        }
    }
}

impl Shm {
    /// Performs the call: `fill` copies a range of this rank's memory to its slot, `take` takes it from the givers.
    pub(crate) fn relay(
        &mut self,
        step: &Step,
        relay: &Relay<'_>,
        fill: impl Fn(Range<usize>, *mut u8),
        mut take: impl FnMut(Range<usize>, &mut dyn Iterator<Item = (usize, Source)>),
    ) -> Result<(), Ending> {
        let place = relay.gives.map_or(FOREIGN, |span| self.place(span));
        let piece = |number: usize, length: usize| {
            let start = number * length;
            start..(start + length).min(relay.bytes)
        };
        let fills = relay.gives.is_some() && place == FOREIGN && relay.bytes > 0;
        self.member.announce(step, relay.shares, place);
        if fills {
            fill(piece(0, relay.piece), self.slot(self.member.me, 0));
        }
        self.member.meet(step)?;
        let givers = relay.root.map_or(0..self.member.world, |root| root..root + 1);
        let sources = givers
            .map(|rank| Ok((rank, self.arena_of(step, rank, (relay.memory)(rank))?.map(Source::Arena))));
        let sources = sources.collect::<Result<Vec<_>, Ending>>()?;
        let is_direct = sources.iter().all(|(_, source)| source.is_some());
        let length = if is_direct { relay.bytes.max(1) } else { relay.piece };
        let pieces = relay.bytes.div_ceil(length);
        for number in 0..pieces {
            if fills && number + 1 < pieces {
                fill(piece(number + 1, length), self.slot(self.member.me, number + 1));
            }
            let slot = |rank| Source::Slot(self.slot(rank, number));
            take(
                piece(number, length),
                &mut sources.iter().map(|&(rank, it)| (rank, it.unwrap_or_else(|| slot(rank)))),
            );
            if number + 1 < pieces {
                self.member.sync(step)?;
            }
        }
        self.pieces += pieces as u64;
        if sources.iter().any(|(_, source)| source.is_some()) { self.member.part(step) } else { Ok(()) }
    }
}
