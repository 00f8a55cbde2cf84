//! The two halves of a reduction, for ranks that exchange data with other hosts in between: each rank reduces
//! one part of the memory, and later distributes its part.

use std::ops::Range;

use super::Shm;
use super::bytes::{self, Span};
use super::map::STAGING_SLOT_BYTES;
use super::relay::{Relay, RelaySource};
use crate::process_group::element::ReduceOp;
use crate::process_group::error::GroupFailure;
use crate::process_group::reduce;
use crate::process_group::transport::Step;

impl Shm {
    /// Reduces this rank's part of `data` over all ranks, in place; the other parts become undefined. A mean
    /// is not divided. `parts` has whole elements and no overlaps.
    pub(crate) fn reduce_own_part(
        &mut self,
        step: &Step,
        data: &mut [u8],
        (parts, op): (&[Range<usize>], ReduceOp),
    ) -> Result<(), GroupFailure> {
        let data = Span::from_mut_slice(data);
        let own = data.ptr_at(&parts[self.member.me]);
        self.reduce_parts(step, (data, own), (parts, op))
    }

    /// As [`reduce_own_part`](Self::reduce_own_part), into other memory with the length of the part.
    pub(crate) fn reduce_own_part_into(
        &mut self,
        step: &Step,
        (input, output): (&[u8], &mut [u8]),
        (parts, op): (&[Range<usize>], ReduceOp),
    ) -> Result<(), GroupFailure> {
        assert_eq!(output.len(), parts[self.member.me].len(), "the output is as long as the part");
        self.reduce_parts(step, (Span::from_slice(input), output.as_mut_ptr()), (parts, op))
    }

    fn reduce_parts(
        &mut self,
        step: &Step,
        (input, target): (Span, *mut u8),
        (parts, op): (&[Range<usize>], ReduceOp),
    ) -> Result<(), GroupFailure> {
        let (me, kind) = (self.member.me, (step.call.data_type, op));
        let piece = self.part_slot_bytes();
        let memory = |_| input.bytes;
        let relay = part_relay(input, parts, piece, &memory);
        let mut from = Vec::with_capacity(self.member.world);
        let take = |range: Range<usize>, sources: &mut dyn Iterator<Item = (usize, RelaySource)>| {
            let own = part_subrange(&parts[me], &range);
            let target = target.wrapping_add(own.start - parts[me].start);
            from.clear();
            from.extend(sources.map(|(rank, source)| {
                if rank == me { input.ptr_at(&own) } else { source.ptr(own.start, me * piece).cast_mut() }
                    .cast_const()
            }));
            // SAFETY: every source has this range of our part. Its owner wrote it before the ranks met and
            // writes it again only after they have met once more. The target is memory of this call with the
            // length of our part: either that part exactly, which no other rank reads, or apart from the
            // input.
            #[expect(unsafe_code, reason = "memory that other ranks have written")]
            unsafe {
                reduce::reduce_raw(kind, target, (&from, own.len()), None);
            }
        };
        let fill = |range: Range<usize>, slot: *mut u8| {
            for (rank, part) in parts.iter().enumerate().filter(|&(rank, _)| rank != me) {
                copy_to_slot(input, &part_subrange(part, &range), slot.wrapping_add(rank * piece));
            }
        };
        self.relay(step, &relay, fill, take)
    }

    /// Overwrites every part of `data` with that of its owner.
    pub(crate) fn all_gather_parts(
        &mut self,
        step: &Step,
        data: &mut [u8],
        parts: &[Range<usize>],
    ) -> Result<(), GroupFailure> {
        let me = self.member.me;
        let data = Span::from_mut_slice(data);
        let memory = |_| data.bytes;
        let relay = part_relay(data, parts, STAGING_SLOT_BYTES, &memory);
        let take = |range: Range<usize>, sources: &mut dyn Iterator<Item = (usize, RelaySource)>| {
            for (rank, source) in sources.filter(|&(rank, _)| rank != me) {
                let part = part_subrange(&parts[rank], &range);
                let from = source.ptr(part.start, 0);
                // SAFETY: the owner has written its part before the ranks met, and writes it again only after
                // they have met once more; only this rank writes our memory.
                #[expect(unsafe_code, reason = "memory that other ranks have written")]
                unsafe {
                    bytes::copy(from, data.ptr_at(&part), part.len());
                }
            }
        };
        self.relay(
            step,
            &relay,
            |range, slot| copy_to_slot(data, &part_subrange(&parts[me], &range), slot),
            take,
        )
    }

    /// Bytes of each part in one slot, which has one piece for each rank.
    fn part_slot_bytes(&self) -> usize {
        STAGING_SLOT_BYTES / self.member.world / 64 * 64
    }
}

/// All ranks provide memory, as much as the longest part.
fn part_relay<'a>(
    gives: Span,
    parts: &[Range<usize>],
    piece: usize,
    memory: &'a dyn Fn(usize) -> usize,
) -> Relay<'a> {
    let bytes = parts.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
    Relay {
        root: None,
        input: Some(gives),
        bytes,
        piece_bytes: piece,
        lengths_hash: 0,
        provided_bytes: memory,
    }
}

/// The piece of a part at a range that counts from its beginning.
fn part_subrange(part: &Range<usize>, range: &Range<usize>) -> Range<usize> {
    let bound = |at: usize| part.start + at.min(part.len());
    bound(range.start)..bound(range.end)
}

/// Copies a range of this rank's memory into its slot.
fn copy_to_slot(memory: Span, range: &Range<usize>, slot: *mut u8) {
    debug_assert!(range.len() <= STAGING_SLOT_BYTES, "a piece is no longer than a slot");
    // SAFETY: memory of this call and our slot, which others read only between the next two exchanges.
    #[expect(unsafe_code, reason = "memory that ranks share")]
    unsafe {
        bytes::copy(memory.ptr_at(range), slot, range.len());
    }
}
