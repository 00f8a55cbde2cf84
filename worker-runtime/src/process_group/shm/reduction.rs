//! `all_reduce` and `reduce`.
//!
//! - Little: every rank puts its memory into a slot, they meet once, and every rank reduces all slots.
//! - Much, all of it in arenas: one piece after another, every rank reduces its part where the others' memory lies, and copies the
//!   parts of the piece before from where the others have reduced them.
//! - Else the same through slots: while a piece is put into the slots, the one before is reduced and the one before that is copied
//!   out, so that ranks meet once per piece. A rank whose memory lies in its arena puts nothing into slots.
//!
//! Values are always taken in rank order, element by element: all ways give the same bits.

use std::ops::Range;

use super::bytes::{self, Span};
use super::map::STAGE;
use super::member::FOREIGN;
use super::{SMALL, Shm};
use crate::process_group::element::Reduction;
use crate::process_group::error::Ending;
use crate::process_group::reduce;
use crate::process_group::transport::Step;

/// Parts of ranks end at cache lines.
const LINE: usize = 64;
/// Bytes of a piece where all memory lies in arenas: what the ranks have reduced is still in their caches when it is copied.
const PIECE: usize = 1024 * 1024;

/// Up to so many bytes two ranks reduce through slots although their memory lies in arenas: where processors have no cache in common,
/// this takes 15 to 20 % less time. Of several ranks each writes less to memory that others have read.
const FEW_OF_TWO: usize = 4 * 1024 * 1024;
/// Bytes that are reduced at once where the others read the result in this rank's memory: they are still in the first cache when they
/// are copied there.
const BLOCK: usize = 16 * 1024;

/// A reduction under way.
struct Work<'a> {
    step: &'a Step,
    data: Span,
    how: Reduction,
    /// Who gets the result; else all do.
    root: Option<usize>,
    /// The other ranks' memory, where it lies in arenas.
    arenas: Vec<Option<*const u8>>,
    /// Bytes of a piece.
    piece: usize,
}

impl Work<'_> {
    fn piece(&self, number: usize) -> Range<usize> {
        let start = number * self.piece;
        start..(start + self.piece).min(self.data.bytes)
    }
}

impl Shm {
    pub(crate) fn all_reduce(
        &mut self,
        step: &Step,
        data: &mut [u8],
        (how, root): (Reduction, Option<usize>),
    ) -> Result<(), Ending> {
        let data = Span::of_mut(data);
        if data.bytes <= SMALL {
            return self.reduce_little(step, data, (how, root));
        }
        let is_few = self.member.world == 2 && data.bytes <= FEW_OF_TWO;
        let place = if is_few { FOREIGN } else { self.place(data) };
        self.member.announce(step, 0, place);
        let mut work = Work { step, data, how, root, arenas: Vec::new(), piece: STAGE };
        if place == FOREIGN {
            self.put(&work, 0);
        }
        self.member.meet(step)?;
        let arenas = (0..self.member.world).map(|rank| self.arena_of(step, rank, data.bytes));
        work.arenas = arenas.collect::<Result<_, _>>()?;
        if root.is_none() && work.arenas.iter().all(Option::is_some) {
            work.piece = PIECE;
        }
        self.reduce_pieces(&work)
    }

    fn reduce_little(
        &mut self,
        step: &Step,
        data: Span,
        (how, root): (Reduction, Option<usize>),
    ) -> Result<(), Ending> {
        let all = 0..data.bytes;
        self.member.announce(step, 0, FOREIGN);
        // SAFETY: our slot, which others read only between this meeting and their next one.
        #[expect(unsafe_code, reason = "memory that ranks share")]
        unsafe {
            bytes::copy(data.at(&all), self.slot(self.member.me, 0), data.bytes);
        }
        self.member.meet(step)?;
        if root.is_none_or(|root| root == self.member.me) {
            let slot = |rank| self.slot(rank, 0).cast_const();
            self.fold(step, how, (data.at(&all), data.bytes), slot);
        }
        self.pieces += 1;
        Ok(())
    }

    fn reduce_pieces(&mut self, work: &Work<'_>) -> Result<(), Ending> {
        let pieces = work.data.bytes.div_ceil(work.piece);
        let puts = work.arenas[self.member.me].is_none();
        for number in 1..pieces + 2 {
            if puts && number < pieces {
                self.put(work, number);
            }
            if number <= pieces {
                self.reduce_part(work, number - 1);
            }
            if number >= 2 {
                self.take_parts(work, number - 2);
            }
            if number <= pieces {
                self.member.sync(work.step)?;
            }
        }
        self.pieces += pieces as u64;
        // Nobody needs to wait for those who copy out of slots: these are not used again so soon.
        if work.arenas.iter().any(Option::is_some) { self.member.part(work.step) } else { Ok(()) }
    }

    /// Puts a piece into this rank's slot, but for the part that it reduces itself.
    fn put(&self, work: &Work<'_>, number: usize) {
        let piece = work.piece(number);
        let slot = self.slot(self.member.me, number);
        let own = self.part(&piece, self.member.me);
        for range in [piece.start..own.start, own.end..piece.end] {
            // SAFETY: our memory, and our slot, which others read only after the next meeting and before the one after the next but one.
            #[expect(unsafe_code, reason = "memory that ranks share")]
            unsafe {
                bytes::copy(work.data.at(&range), slot.wrapping_add(range.start - piece.start), range.len());
            }
        }
    }

    /// Reduces this rank's part of a piece to where the others take it from.
    fn reduce_part(&self, work: &Work<'_>, number: usize) {
        let (me, piece) = (self.member.me, work.piece(number));
        let part = self.part(&piece, me);
        let in_slot = part.start - piece.start;
        let own = work.data.at(&part);
        let slot = self.slot(me, number);
        let stays_as_it_is = work.root.is_some_and(|root| root != me);
        if work.piece == PIECE {
            return self.reduce_directly(work, &part, slot);
        }
        let slot = slot.wrapping_add(in_slot);
        let target = if stays_as_it_is { slot } else { own };
        self.fold(work.step, work.how, (target, part.len()), |rank| match work.arenas[rank] {
            _ if rank == me => own.cast_const(),
            Some(start) => start.wrapping_add(part.start),
            None => self.slot(rank, number).wrapping_add(in_slot),
        });
        if target == own && work.root.is_none() && work.arenas[me].is_none() {
            // SAFETY: our memory and our slot, of which nobody reads this part before the next meeting.
            #[expect(unsafe_code, reason = "memory that ranks share")]
            unsafe {
                bytes::copy(own, slot, part.len());
            }
        }
    }

    /// Reduces this rank's part of a piece where all memory lies in arenas, a block at a time by way of `block`.
    ///
    /// The others have read this memory, so it is in their caches, too. To write to it as the sum is made is slow where processors
    /// have no cache in common: each line is fetched, then taken away from the others. A copy takes lines away without fetching them.
    fn reduce_directly(&self, work: &Work<'_>, part: &Range<usize>, block: *mut u8) {
        for start in part.clone().step_by(BLOCK) {
            let range = start..part.end.min(start + BLOCK);
            let own = work.data.at(&range);
            self.fold(work.step, work.how, (block, range.len()), |rank| match work.arenas[rank] {
                Some(memory) if rank != self.member.me => memory.wrapping_add(range.start),
                _ => own.cast_const(),
            });
            // SAFETY: our slot, as long as a block at least, of which nobody reads in this call, and our memory, of which nobody reads
            // this part before the next meeting.
            #[expect(unsafe_code, reason = "memory that ranks share")]
            unsafe {
                bytes::copy(block, own, range.len());
            }
        }
    }

    /// Takes the parts of a piece that the other ranks have reduced.
    fn take_parts(&self, work: &Work<'_>, number: usize) {
        let (me, piece) = (self.member.me, work.piece(number));
        if work.root.is_some_and(|root| root != me) {
            return;
        }
        // Each begins with its neighbour, so that not all read the same memory at once.
        for rank in (1..self.member.world).map(|distance| (me + distance) % self.member.world) {
            let part = self.part(&piece, rank);
            let from = match work.arenas[rank] {
                Some(start) if work.root.is_none() => start.wrapping_add(part.start),
                _ => self.slot(rank, number).wrapping_add(part.start - piece.start),
            };
            // SAFETY: the rank has reduced its part before the ranks met, and writes there again only after the next meeting.
            #[expect(unsafe_code, reason = "memory that ranks share")]
            unsafe {
                bytes::copy(from, work.data.at(&part), part.len());
            }
        }
    }

    /// The part of a piece that a rank reduces: whole cache lines, so whole elements.
    fn part(&self, piece: &Range<usize>, rank: usize) -> Range<usize> {
        let (lines, world) = (piece.len().div_ceil(LINE), self.member.world);
        let bound = |rank: usize| (piece.start + lines * rank / world * LINE).min(piece.end);
        bound(rank)..bound(rank + 1)
    }

    /// Reduces the memory of all ranks in rank order.
    fn fold(
        &self,
        step: &Step,
        how: Reduction,
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
        // SAFETY: every source was written by its rank before the ranks met and is written again only after the next meeting; the target
        // is ours: our memory, which may be one of the sources, or our slot's part that nobody reads yet.
        #[expect(unsafe_code, reason = "memory that ranks share")]
        unsafe {
            reduce::reduce_raw(
                (step.call.data_type, how),
                target,
                (sources, length),
                u32::try_from(world).ok(),
            );
        }
    }
}
