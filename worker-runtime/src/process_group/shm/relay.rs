//! Calls in which a rank takes what another rank provides: `broadcast`, `all_gather`, `gather`, `scatter`,
//! and `reduce_scatter`, which reduces on the way.
//!
//! Data passes the provider's slots piece by piece: a piece is taken while the next one is filled in. A
//! provider with memory in its arena skips the slots: the others read it there, and all ranks meet once more
//! at the end, before its program writes to that memory. If all providers do so, there is one piece.

use std::ops::Range;

use super::Shm;
use super::bytes::Span;
use super::member::NOT_IN_SEGMENT;
use crate::process_group::error::GroupFailure;
use crate::process_group::transport::Step;

/// The providers of a call, and their lengths.
pub(crate) struct Relay<'a> {
    /// The only provider; `None` if all ranks provide.
    pub(crate) root: Option<usize>,
    /// The memory that this rank provides.
    pub(crate) input: Option<Span>,
    /// Bytes that pass the slots of the rank with the most.
    pub(crate) bytes: usize,
    /// Bytes of one piece at most.
    pub(crate) piece_bytes: usize,
    /// A hash of the lengths by rank, if these differ.
    pub(crate) lengths_hash: u64,
    /// Bytes of all memory that a rank provides.
    pub(crate) provided_bytes: &'a dyn Fn(usize) -> usize,
}

/// The location of a provider's memory for one piece.
#[derive(Clone, Copy)]
pub(crate) enum RelaySource {
    /// All of the memory, in the provider's arena.
    Arena(*const u8),
    /// The piece, in a slot.
    Slot(*const u8),
}

impl RelaySource {
    /// The address of a byte range: by its offset in the memory, or by its offset in the slot.
    pub(crate) fn ptr(self, in_memory: usize, in_slot: usize) -> *const u8 {
        match self {
            Self::Arena(start) => start.wrapping_add(in_memory),
            Self::Slot(start) => start.wrapping_add(in_slot),
        }
    }
}

impl Shm {
    /// Performs the call: `fill` copies a range of this rank's memory to its slot, `take`
    /// copies a range from the providers.
    pub(crate) fn relay(
        &mut self,
        step: &Step,
        relay: &Relay<'_>,
        fill: impl Fn(Range<usize>, *mut u8),
        mut take: impl FnMut(Range<usize>, &mut dyn Iterator<Item = (usize, RelaySource)>),
    ) -> Result<(), GroupFailure> {
        let place = relay.input.map_or(NOT_IN_SEGMENT, |span| self.buffer_offset(span));
        let piece = |number: usize, length: usize| {
            let start = number * length;
            start..(start + length).min(relay.bytes)
        };
        let fills = relay.input.is_some() && place == NOT_IN_SEGMENT && relay.bytes > 0;
        self.member.publish_call(step, relay.lengths_hash, place);
        if fills {
            fill(piece(0, relay.piece_bytes), self.staging_slot(self.member.me, 0));
        }
        self.member.begin_call(step)?;
        let givers = relay.root.map_or(0..self.member.world, |root| root..root + 1);
        let sources = givers.map(|rank| {
            Ok((rank, self.arena_buffer(step, rank, (relay.provided_bytes)(rank))?.map(RelaySource::Arena)))
        });
        let sources = sources.collect::<Result<Vec<_>, GroupFailure>>()?;
        let is_direct = sources.iter().all(|(_, source)| source.is_some());
        let length = if is_direct { relay.bytes.max(1) } else { relay.piece_bytes };
        let pieces = relay.bytes.div_ceil(length);
        for number in 0..pieces {
            if fills && number + 1 < pieces {
                fill(piece(number + 1, length), self.staging_slot(self.member.me, number + 1));
            }
            let slot = |rank| RelaySource::Slot(self.staging_slot(rank, number));
            take(
                piece(number, length),
                &mut sources.iter().map(|&(rank, source)| (rank, source.unwrap_or_else(|| slot(rank)))),
            );
            if number + 1 < pieces {
                self.member.sync(step)?;
            }
        }
        self.pieces_passed += pieces as u64;
        if sources.iter().any(|(_, source)| source.is_some()) {
            self.member.finish_call(step)
        } else {
            Ok(())
        }
    }
}
