//! The memory that each call of a rank provides and takes.

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
    pub(crate) fn barrier(&mut self, step: &Step) -> Result<(), GroupFailure> {
        let relay = Relay {
            root: Some(0),
            input: None,
            bytes: 0,
            piece_bytes: STAGING_SLOT_BYTES,
            lengths_hash: 0,
            provided_bytes: &|_| 0,
        };
        self.relay(step, &relay, |_, _| {}, |_, _| {})
    }

    pub(crate) fn broadcast(
        &mut self,
        step: &Step,
        data: &mut [u8],
        root: usize,
    ) -> Result<(), GroupFailure> {
        let (data, is_root) = (Span::from_mut_slice(data), root == self.member.me);
        let memory = |_| data.bytes;
        let relay = Relay {
            root: Some(root),
            input: is_root.then_some(data),
            bytes: data.bytes,
            piece_bytes: STAGING_SLOT_BYTES,
            lengths_hash: 0,
            provided_bytes: &memory,
        };
        let take = |range: Range<usize>, sources: &mut dyn Iterator<Item = (usize, RelaySource)>| {
            for (_, source) in sources.filter(|_| !is_root) {
                copy(source.ptr(range.start, 0), data.ptr_at(&range), range.len());
            }
        };
        self.relay(step, &relay, |range, slot| copy_to_slot(data, &range, slot), take)
    }

    pub(crate) fn all_gather(
        &mut self,
        step: &Step,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<(), GroupFailure> {
        let (me, part) = (self.member.me, input.len());
        let (input, output) = (Span::from_slice(input), Span::from_mut_slice(output));
        let relay = Relay {
            root: None,
            input: Some(input),
            bytes: part,
            piece_bytes: STAGING_SLOT_BYTES,
            lengths_hash: 0,
            provided_bytes: &|_| part,
        };
        let take = |range: Range<usize>, sources: &mut dyn Iterator<Item = (usize, RelaySource)>| {
            for (rank, source) in sources {
                let from =
                    if rank == me { input.ptr_at(&range) } else { source.ptr(range.start, 0).cast_mut() };
                copy(from, output.ptr_at(&shift_range(&range, rank * part)), range.len());
            }
        };
        self.relay(step, &relay, |range, slot| copy_to_slot(input, &range, slot), take)
    }

    /// `lengths` are the bytes that each rank provides; the root takes them.
    pub(crate) fn gather(
        &mut self,
        step: &Step,
        (input, output): (&[u8], Option<&mut [u8]>),
        lengths: &[usize],
    ) -> Result<(), GroupFailure> {
        let me = self.member.me;
        let (input, output) = (Span::from_slice(input), output.map(Span::from_mut_slice));
        let memory = |rank: usize| lengths[rank];
        let bytes = lengths.iter().copied().max().unwrap_or(0);
        let relay = Relay {
            root: None,
            input: Some(input),
            bytes,
            piece_bytes: STAGING_SLOT_BYTES,
            lengths_hash: hash_lengths(lengths),
            provided_bytes: &memory,
        };
        let within =
            |range: &Range<usize>, rank: usize| range.start.min(lengths[rank])..range.end.min(lengths[rank]);
        let take = |range: Range<usize>, sources: &mut dyn Iterator<Item = (usize, RelaySource)>| {
            let Some(output) = output else { return };
            let mut start = 0;
            for (rank, source) in sources {
                let part = within(&range, rank);
                let from =
                    if rank == me { input.ptr_at(&part) } else { source.ptr(part.start, 0).cast_mut() };
                copy(from, output.ptr_at(&shift_range(&part, start)), part.len());
                start += lengths[rank];
            }
        };
        self.relay(step, &relay, |range, slot| copy_to_slot(input, &within(&range, me), slot), take)
    }

    /// `lengths` are the bytes that each rank takes from the root.
    pub(crate) fn scatter(
        &mut self,
        step: &Step,
        (input, output): (Option<&[u8]>, &mut [u8]),
        (lengths, root): (&[usize], usize),
    ) -> Result<(), GroupFailure> {
        let me = self.member.me;
        let (input, output) = (input.map(Span::from_slice), Span::from_mut_slice(output));
        let start: usize = lengths[..me].iter().sum();
        let bytes = lengths.iter().sum();
        let relay = Relay {
            root: Some(root),
            input,
            bytes,
            piece_bytes: STAGING_SLOT_BYTES,
            lengths_hash: hash_lengths(lengths),
            provided_bytes: &|_| bytes,
        };
        let take = |range: Range<usize>, sources: &mut dyn Iterator<Item = (usize, RelaySource)>| {
            let part = range.start.max(start)..range.end.min(start + lengths[me]);
            for (_, source) in sources.filter(|_| !part.is_empty()) {
                let from = match input {
                    Some(input) => input.ptr_at(&part).cast_const(),
                    None => source.ptr(part.start, part.start - range.start),
                };
                copy(from, output.ptr_at(&(part.start - start..part.end - start)), part.len());
            }
        };
        let fill = |range: Range<usize>, slot: *mut u8| {
            if let Some(input) = input {
                copy_to_slot(input, &range, slot);
            }
        };
        self.relay(step, &relay, fill, take)
    }

    pub(crate) fn reduce_scatter(
        &mut self,
        step: &Step,
        (input, output): (&[u8], &mut [u8]),
        op: ReduceOp,
    ) -> Result<(), GroupFailure> {
        let (me, world) = (self.member.me, self.member.world);
        let part = output.len();
        let (input, output) = (Span::from_slice(input), Span::from_mut_slice(output));
        // A slot holds a piece for each rank.
        let piece = STAGING_SLOT_BYTES / world / 64 * 64;
        let memory = |_| input.bytes;
        let relay = Relay {
            root: None,
            input: Some(input),
            bytes: part,
            piece_bytes: piece,
            lengths_hash: 0,
            provided_bytes: &memory,
        };
        let kind = (step.call.data_type, op);
        let mut from = Vec::with_capacity(world);
        let take = |range: Range<usize>, sources: &mut dyn Iterator<Item = (usize, RelaySource)>| {
            from.clear();
            from.extend(sources.map(|(rank, source)| {
                let own = shift_range(&range, me * part);
                if rank == me { input.ptr_at(&own) } else { source.ptr(own.start, me * piece).cast_mut() }
                    .cast_const()
            }));
            // SAFETY: every source has `range` of this rank's part. Its owner wrote it before the ranks met,
            // and writes it again only after they have met once more or after it has given up the call, as in
            // `copy`; the output belongs to this call.
            #[expect(unsafe_code, reason = "memory that other ranks have written")]
            unsafe {
                reduce::reduce_raw(
                    kind,
                    output.ptr_at(&range),
                    (&from, range.len()),
                    u32::try_from(world).ok(),
                );
            }
        };
        let fill = |range: Range<usize>, slot: *mut u8| {
            for rank in (0..world).filter(|&rank| rank != me) {
                copy_to_slot(input, &shift_range(&range, rank * part), slot.wrapping_add(rank * piece));
            }
        };
        self.relay(step, &relay, fill, take)
    }
}

/// A hash of lengths (FNV-1a of 64 bits, word by word); different lists have different
/// hashes, but for a rare collision.
fn hash_lengths(lengths: &[usize]) -> u64 {
    lengths
        .iter()
        .fold(0xCBF2_9CE4_8422_2325, |hash, &length| (hash ^ length as u64).wrapping_mul(0x100_0000_01B3))
}

fn shift_range(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}

/// Copies a part of this rank's memory into its slot.
fn copy_to_slot(memory: Span, range: &Range<usize>, slot: *mut u8) {
    debug_assert!(range.len() <= STAGING_SLOT_BYTES, "a piece is no longer than a slot");
    copy(memory.ptr_at(range), slot, range.len());
}

fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: both ends were checked against the memory of the call or lie in a slot. The owner writes a slot
    // or an arena before the ranks meet, and others read it after that until they meet again. Only a rank
    // that gives up the call, since another rank is lost or its time is over, does not wait for that: its
    // program may write to its arena while others read it. It has written the failure into the segment
    // before, and the others check for that at the end (`part`): then the call fails, and the copy is not
    // used.
    #[expect(unsafe_code, reason = "memory that ranks share")]
    unsafe {
        bytes::copy(from, to, bytes);
    }
}
