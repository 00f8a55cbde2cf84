//! `all_reduce` and `reduce`.
//!
//! - Few bytes: every rank copies its memory into a slot, they meet once, and every rank reduces all slots.
//! - Many bytes, all in arenas: piece by piece, every rank reduces its part from the other ranks' memory, and copies the other parts of the previous piece from the ranks that have reduced them.
//! - Otherwise the same through slots: while one piece is copied into the slots, the previous one is reduced and the one before is copied out, so that ranks meet once per piece. A rank with memory in its arena skips the copy into slots.
//!
//! Values are combined in rank order, element by element: all ways give the same bits.

use std::ops::Range;

use super::bytes::{self, Span};
use super::map::STAGING_SLOT_BYTES;
use super::member::NOT_IN_SEGMENT;
use super::{MAX_LOCAL_REDUCE_BYTES, Shm};
use crate::process_group::element::ReduceOp;
use crate::process_group::error::GroupFailure;
use crate::process_group::reduce;
use crate::process_group::transport::Step;

/// Parts of ranks end at cache lines.
const CACHE_LINE_SIZE: usize = 64;
/// Bytes of a piece if all memory lies in arenas: reduced values are still in the cache when they are copied.
const PIECE_BYTES: usize = 1024 * 1024;

/// Up to this many bytes two ranks reduce through slots although their memory lies in arenas:
/// without a common cache this takes 15 to 20 % less time. With more ranks each writes less
/// to memory that others have read.
const MAX_TWO_RANK_STAGED_BYTES: usize = 4 * 1024 * 1024;
/// Bytes that are reduced at once if other ranks read the result in place: they are still in the first-level
/// cache when they are copied there.
const IN_PLACE_BLOCK_BYTES: usize = 16 * 1024;

struct ReduceCall<'a> {
    step: &'a Step,
    data: Span,
    op: ReduceOp,
    /// The rank that gets the result; `None` for all ranks.
    root: Option<usize>,
    /// Addresses of the ranks' memory, if it lies in their arenas.
    arenas: Vec<Option<*const u8>>,
    piece_bytes: usize,
}

impl ReduceCall<'_> {
    fn piece_range(&self, number: usize) -> Range<usize> {
        let start = number * self.piece_bytes;
        start..(start + self.piece_bytes).min(self.data.bytes)
    }
}

impl Shm {
    pub(crate) fn all_reduce(
        &mut self,
        step: &Step,
        data: &mut [u8],
        (op, root): (ReduceOp, Option<usize>),
    ) -> Result<(), GroupFailure> {
        let data = Span::from_mut_slice(data);
        if data.bytes <= MAX_LOCAL_REDUCE_BYTES {
            return self.reduce_small(step, data, (op, root));
        }
        let is_few = self.member.world == 2 && data.bytes <= MAX_TWO_RANK_STAGED_BYTES;
        let place = if is_few { NOT_IN_SEGMENT } else { self.buffer_offset(data) };
        self.member.publish_call(step, 0, place);
        let mut work =
            ReduceCall { step, data, op, root, arenas: Vec::new(), piece_bytes: STAGING_SLOT_BYTES };
        if place == NOT_IN_SEGMENT {
            self.stage_piece(&work, 0);
        }
        self.member.begin_call(step)?;
        let arenas = (0..self.member.world).map(|rank| self.arena_buffer(step, rank, data.bytes));
        work.arenas = arenas.collect::<Result<_, _>>()?;
        if root.is_none() && work.arenas.iter().all(Option::is_some) {
            work.piece_bytes = PIECE_BYTES;
        }
        self.reduce_pieces(&work)
    }

    fn reduce_small(
        &mut self,
        step: &Step,
        data: Span,
        (op, root): (ReduceOp, Option<usize>),
    ) -> Result<(), GroupFailure> {
        let all = 0..data.bytes;
        self.member.publish_call(step, 0, NOT_IN_SEGMENT);
        // SAFETY: our slot, which others read only between this exchange and their next one.
        #[expect(unsafe_code, reason = "memory that ranks share")]
        unsafe {
            bytes::copy(data.ptr_at(&all), self.staging_slot(self.member.me, 0), data.bytes);
        }
        self.member.begin_call(step)?;
        if root.is_none_or(|root| root == self.member.me) {
            let slot = |rank| self.staging_slot(rank, 0).cast_const();
            self.fold(step, op, (data.ptr_at(&all), data.bytes), slot);
        }
        self.pieces_passed += 1;
        Ok(())
    }

    fn reduce_pieces(&mut self, work: &ReduceCall<'_>) -> Result<(), GroupFailure> {
        let pieces = work.data.bytes.div_ceil(work.piece_bytes);
        let puts = work.arenas[self.member.me].is_none();
        for number in 1..pieces + 2 {
            if puts && number < pieces {
                self.stage_piece(work, number);
            }
            if number <= pieces {
                self.reduce_part(work, number - 1);
            }
            if number >= 2 {
                self.copy_reduced_parts(work, number - 2);
            }
            if number <= pieces {
                self.member.sync(work.step)?;
            }
        }
        self.pieces_passed += pieces as u64;
        // Slots are not reused so soon that ranks must wait for the last copies.
        if work.arenas.iter().any(Option::is_some) { self.member.finish_call(work.step) } else { Ok(()) }
    }

    /// Copies a piece into this rank's slot, except for the part that this rank reduces.
    fn stage_piece(&self, work: &ReduceCall<'_>, number: usize) {
        let piece = work.piece_range(number);
        let slot = self.staging_slot(self.member.me, number);
        let own = self.owned_part(&piece, self.member.me);
        for range in [piece.start..own.start, own.end..piece.end] {
            // SAFETY: memory of this call, and our slot, which others read only after the next exchange and
            // before the third.
            #[expect(unsafe_code, reason = "memory that ranks share")]
            unsafe {
                bytes::copy(
                    work.data.ptr_at(&range),
                    slot.wrapping_add(range.start - piece.start),
                    range.len(),
                );
            }
        }
    }

    /// Reduces this rank's part of a piece into the place from which the others copy it.
    fn reduce_part(&self, work: &ReduceCall<'_>, number: usize) {
        let (me, piece) = (self.member.me, work.piece_range(number));
        let part = self.owned_part(&piece, me);
        let in_slot = part.start - piece.start;
        let own = work.data.ptr_at(&part);
        let slot = self.staging_slot(me, number);
        let stays_as_it_is = work.root.is_some_and(|root| root != me);
        if work.piece_bytes == PIECE_BYTES {
            return self.reduce_in_arenas(work, &part, slot);
        }
        let slot = slot.wrapping_add(in_slot);
        let target = if stays_as_it_is { slot } else { own };
        self.fold(work.step, work.op, (target, part.len()), |rank| match work.arenas[rank] {
            _ if rank == me => own.cast_const(),
            Some(start) => start.wrapping_add(part.start),
            None => self.staging_slot(rank, number).wrapping_add(in_slot),
        });
        if target == own && work.root.is_none() && work.arenas[me].is_none() {
            // SAFETY: memory of this call and our slot; no rank reads this part before the next exchange.
            #[expect(unsafe_code, reason = "memory that ranks share")]
            unsafe {
                bytes::copy(own, slot, part.len());
            }
        }
    }

    /// Reduces this rank's part of a piece with all memory in arenas, a block at a time through `block`.
    ///
    /// Other ranks have read this memory, so it is in their caches too. Writing the sums in place
    /// is slow without a common cache: each line is fetched and then invalidated elsewhere. A
    /// copy invalidates lines without fetching them.
    fn reduce_in_arenas(&self, work: &ReduceCall<'_>, part: &Range<usize>, block: *mut u8) {
        for start in part.clone().step_by(IN_PLACE_BLOCK_BYTES) {
            let range = start..part.end.min(start + IN_PLACE_BLOCK_BYTES);
            let own = work.data.ptr_at(&range);
            self.fold(work.step, work.op, (block, range.len()), |rank| match work.arenas[rank] {
                Some(memory) if rank != self.member.me => memory.wrapping_add(range.start),
                _ => own.cast_const(),
            });
            // SAFETY: our slot, at least as long as a block, which no rank reads in this call, and memory of
            // this call, of which no rank reads this part before the next exchange.
            #[expect(unsafe_code, reason = "memory that ranks share")]
            unsafe {
                bytes::copy(block, own, range.len());
            }
        }
    }

    /// Copies the parts of a piece that the other ranks have reduced.
    fn copy_reduced_parts(&self, work: &ReduceCall<'_>, number: usize) {
        let (me, piece) = (self.member.me, work.piece_range(number));
        if work.root.is_some_and(|root| root != me) {
            return;
        }
        // Each rank begins with its neighbour, so that not all read the same memory at once.
        for rank in (1..self.member.world).map(|distance| (me + distance) % self.member.world) {
            let part = self.owned_part(&piece, rank);
            let from = match work.arenas[rank] {
                Some(start) if work.root.is_none() => start.wrapping_add(part.start),
                _ => self.staging_slot(rank, number).wrapping_add(part.start - piece.start),
            };
            // SAFETY: the rank has reduced its part before the ranks met, and writes it again only after the
            // next exchange.
            #[expect(unsafe_code, reason = "memory that ranks share")]
            unsafe {
                bytes::copy(from, work.data.ptr_at(&part), part.len());
            }
        }
    }

    /// The part of a piece that a rank reduces: whole cache lines, so whole elements.
    fn owned_part(&self, piece: &Range<usize>, rank: usize) -> Range<usize> {
        let (lines, world) = (piece.len().div_ceil(CACHE_LINE_SIZE), self.member.world);
        let bound = |rank: usize| (piece.start + lines * rank / world * CACHE_LINE_SIZE).min(piece.end);
        bound(rank)..bound(rank + 1)
    }

    /// Reduces the memory of all ranks in rank order.
    fn fold(
        &self,
        step: &Step,
        op: ReduceOp,
        (target, length): (*mut u8, usize),
        source: impl Fn(usize) -> *const u8,
    ) {
        let mut few = [std::ptr::null(); 8];
        let many: Vec<*const u8>;
        let world = self.member.world;
        let sources = if world <= few.len() {
            few.iter_mut().zip(0..world).for_each(|(place, rank)| *place = source(rank));
            &few[..world]
        } else {
            many = (0..world).map(source).collect();
            &many
        };
        // SAFETY: the ranks wrote the sources before they met and write them again only after the next
        // exchange. The target is memory of this call, which may be one of the sources, or the part of our
        // slot that no rank reads yet.
        #[expect(unsafe_code, reason = "memory that ranks share")]
        unsafe {
            reduce::reduce_raw(
                (step.call.data_type, op),
                target,
                (sources, length),
                u32::try_from(world).ok(),
            );
        }
    }
}
