//! This rank's part of the shared memory, for buffers that other ranks read in place.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::bytes::Span;
use super::map::{HUGE_PAGE_SIZE, PAGE_SIZE};
use super::segment::Segment;
use crate::process_group::buffer::Memory;

/// Free ranges, sorted and merged. Pure.
#[derive(Debug, Default)]
struct FreeList {
    ranges: Vec<Range<usize>>,
}

impl FreeList {
    /// Takes `bytes` bytes, aligned to `alignment`, from the first range that has them.
    fn allocate(&mut self, bytes: usize, alignment: usize) -> Option<Range<usize>> {
        let fit = |block: &Range<usize>| {
            let start = block.start.next_multiple_of(alignment);
            let end = start.checked_add(bytes)?;
            (end <= block.end).then_some(start..end)
        };
        let (index, taken) =
            self.ranges.iter().enumerate().find_map(|(index, range)| Some((index, fit(range)?)))?;
        let block = self.ranges[index].clone();
        let rest = [block.start..taken.start, taken.end..block.end];
        self.ranges.splice(index..=index, rest.into_iter().filter(|range| !range.is_empty()));
        Some(taken)
    }

    fn release(&mut self, range: Range<usize>) {
        let index = self.ranges.partition_point(|block| block.start < range.start);
        self.ranges.insert(index, range);
        // Merge with adjacent ranges.
        for index in [index + 1, index] {
            if index > 0
                && index < self.ranges.len()
                && self.ranges[index - 1].end == self.ranges[index].start
            {
                self.ranges[index - 1].end = self.ranges.remove(index).end;
            }
        }
    }
}

/// Allocates buffers from this rank's arena. They may outlive the group.
#[derive(Debug)]
pub(crate) struct Arena {
    segment: Arc<Segment>,
    free: Arc<Mutex<FreeList>>,
    range: Range<usize>,
}

impl Arena {
    pub(crate) fn new(segment: Arc<Segment>, rank: usize) -> Self {
        let range = segment.map().arena(rank);
        let pieces = if range.is_empty() { Vec::new() } else { vec![range.clone()] };
        Self { segment, free: Arc::new(Mutex::new(FreeList { ranges: pieces })), range }
    }

    /// Zeroed memory; `None` if the arena is full.
    pub(crate) fn allocate(&self, bytes: usize) -> Option<Memory> {
        let length = bytes.max(1).checked_next_multiple_of(PAGE_SIZE)?;
        let range = lock_free_list(&self.free)
            .allocate(length, if length >= HUGE_PAGE_SIZE { HUGE_PAGE_SIZE } else { PAGE_SIZE })?;
        let block = ArenaBlock { segment: Arc::clone(&self.segment), free: Arc::clone(&self.free), range };
        // Without the pages, which are returned with the block, the owner's first write could end the
        // process.
        self.segment.populate(block.range.start, length).ok()?;
        let address = NonNull::new(self.segment.ptr_at(block.range.start, length))?;
        // SAFETY: the pages stay mapped as long as the block keeps the segment, are zeroed (new, or punched
        // when they were returned) and page-aligned; the block is used once. Other ranks only read, and only
        // during calls.
        #[expect(unsafe_code, reason = "memory from the segment")]
        Some(unsafe { Memory::from_raw_parts(address, length, Box::new(block)) })
    }

    /// The offset of `memory` in the segment, if it lies in this arena.
    pub(crate) fn segment_offset(&self, memory: Span) -> Option<u64> {
        let offset = self.segment.offset_of(memory.ptr_at(&(0..memory.bytes)))?;
        let end = offset.checked_add(memory.bytes)?;
        (offset >= self.range.start && end <= self.range.end).then_some(offset as u64)
    }
}

/// An allocated range. Dropping it returns its pages to the kernel.
struct ArenaBlock {
    segment: Arc<Segment>,
    free: Arc<Mutex<FreeList>>,
    range: Range<usize>,
}

impl Drop for ArenaBlock {
    fn drop(&mut self) {
        if self.segment.is_owner_process() {
            self.segment.punch_hole(self.range.start, self.range.len());
            lock_free_list(&self.free).release(self.range.clone());
        }
    }
}

fn lock_free_list(free: &Mutex<FreeList>) -> MutexGuard<'_, FreeList> {
    free.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn free_list_ranges_never_overlap_and_merge_after_free(
            steps in proptest::collection::vec((1usize..9, any::<bool>(), any::<prop::sample::Index>()), 1..80),
        ) {
            let whole = || std::iter::once(0..64).collect::<Vec<_>>();
            let mut free = FreeList { ranges: whole() };
            let mut taken: Vec<Range<usize>> = Vec::new();
            for (bytes, gives, which) in steps {
                if gives && !taken.is_empty() {
                    let index = which.index(taken.len());
                    free.release(taken.swap_remove(index));
                } else if let Some(range) = free.allocate(bytes, if bytes > 4 { 4 } else { 1 }) {
                    prop_assert_eq!(range.len(), bytes);
                    prop_assert!(bytes <= 4 || range.start.is_multiple_of(4));
                    taken.push(range);
                }
                let mut all: Vec<_> = taken.iter().chain(&free.ranges).cloned().collect();
                all.sort_by_key(|range| range.start);
                prop_assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start));
                prop_assert_eq!(all.iter().map(ExactSizeIterator::len).sum::<usize>(), 64);
            }
            taken.into_iter().for_each(|range| free.release(range));
            prop_assert_eq!(free.ranges, whole());
        }
    }
}
