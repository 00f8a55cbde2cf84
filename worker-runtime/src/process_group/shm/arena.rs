//! This rank's memory for buffers, which the others read where it lies.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::bytes::Span;
use super::map::{HUGE, PAGE};
use super::segment::Segment;
use crate::process_group::buffer::Memory;

/// What of a range is free, in order and as few pieces. Pure.
#[derive(Debug, Default)]
struct Free {
    pieces: Vec<Range<usize>>,
}

impl Free {
    /// Takes `bytes` bytes that begin at a multiple of `alignment`, from the first piece that has them.
    fn take(&mut self, bytes: usize, alignment: usize) -> Option<Range<usize>> {
        let fit = |piece: &Range<usize>| {
            let start = piece.start.next_multiple_of(alignment);
            let end = start.checked_add(bytes)?;
            (end <= piece.end).then_some(start..end)
        };
        let (index, taken) =
            self.pieces.iter().enumerate().find_map(|(index, it)| Some((index, fit(it)?)))?;
        let piece = self.pieces[index].clone();
        let rest = [piece.start..taken.start, taken.end..piece.end];
        self.pieces.splice(index..=index, rest.into_iter().filter(|it| !it.is_empty()));
        Some(taken)
    }

    fn give(&mut self, range: Range<usize>) {
        let index = self.pieces.partition_point(|piece| piece.start < range.start);
        self.pieces.insert(index, range);
        // Joined with its neighbours where they touch.
        for index in [index + 1, index] {
            if index > 0
                && index < self.pieces.len()
                && self.pieces[index - 1].end == self.pieces[index].start
            {
                self.pieces[index - 1].end = self.pieces.remove(index).end;
            }
        }
    }
}

/// Gives this rank's memory to buffers. They may outlive the group.
#[derive(Debug)]
pub(crate) struct Arena {
    segment: Arc<Segment>,
    free: Arc<Mutex<Free>>,
    range: Range<usize>,
}

impl Arena {
    pub(crate) fn new(segment: Arc<Segment>, rank: usize) -> Self {
        let range = segment.map().arena(rank);
        let pieces = if range.is_empty() { Vec::new() } else { vec![range.clone()] };
        Self { segment, free: Arc::new(Mutex::new(Free { pieces })), range }
    }

    /// Zeroed memory; none where there is not so much.
    pub(crate) fn allocate(&self, bytes: usize) -> Option<Memory> {
        let length = bytes.max(1).checked_next_multiple_of(PAGE)?;
        let range = lock(&self.free).take(length, if length >= HUGE { HUGE } else { PAGE })?;
        let piece = Piece { segment: Arc::clone(&self.segment), free: Arc::clone(&self.free), range };
        // Without the pages, which are given back with the piece, the owner's first write would end the process.
        self.segment.populate(piece.range.start, length).ok()?;
        let address = NonNull::new(self.segment.at(piece.range.start, length))?;
        // SAFETY: the pages are mapped for as long as the piece keeps the segment, zeroed (new, or punched before they were given
        // back), aligned to pages; the piece is no other one's. Other ranks only read, and only during calls.
        #[expect(unsafe_code, reason = "memory from the segment")]
        Some(unsafe { Memory::of(address, length, Box::new(piece)) })
    }

    /// Where memory lies in the segment, if it is one of ours.
    pub(crate) fn place(&self, memory: Span) -> Option<u64> {
        let offset = self.segment.offset_of(memory.at(&(0..memory.bytes)))?;
        let end = offset.checked_add(memory.bytes)?;
        (offset >= self.range.start && end <= self.range.end).then_some(offset as u64)
    }
}

/// Memory that is in use. When it is dropped, the kernel has its pages back.
struct Piece {
    segment: Arc<Segment>,
    free: Arc<Mutex<Free>>,
    range: Range<usize>,
}

impl Drop for Piece {
    fn drop(&mut self) {
        if self.segment.is_ours() {
            self.segment.punch(self.range.start, self.range.len());
            lock(&self.free).give(self.range.clone());
        }
    }
}

fn lock(free: &Mutex<Free>) -> MutexGuard<'_, Free> {
    free.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_never_overlap_and_all_come_back(
            steps in proptest::collection::vec((1usize..9, any::<bool>(), any::<prop::sample::Index>()), 1..80),
        ) {
            let whole = || std::iter::once(0..64).collect::<Vec<_>>();
            let mut free = Free { pieces: whole() };
            let mut taken: Vec<Range<usize>> = Vec::new();
            for (bytes, gives, which) in steps {
                if gives && !taken.is_empty() {
                    let index = which.index(taken.len());
                    free.give(taken.swap_remove(index));
                } else if let Some(range) = free.take(bytes, if bytes > 4 { 4 } else { 1 }) {
                    prop_assert_eq!(range.len(), bytes);
                    prop_assert!(bytes <= 4 || range.start.is_multiple_of(4));
                    taken.push(range);
                }
                let mut all: Vec<_> = taken.iter().chain(&free.pieces).cloned().collect();
                all.sort_by_key(|range| range.start);
                prop_assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start));
                prop_assert_eq!(all.iter().map(ExactSizeIterator::len).sum::<usize>(), 64);
            }
            taken.into_iter().for_each(|range| free.give(range));
            prop_assert_eq!(free.pieces, whole());
        }
    }
}
