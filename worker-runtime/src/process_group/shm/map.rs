//! The layout of the shared segment. Pure.
//!
//! ```text
//! head            one page: magic, version, and the failure word
//! control         per rank: counters, state, and its current call
//! pair control    per ordered pair of ranks: counters of sent and received slots
//! staging         per rank: slots for memory outside of arenas
//! pair slots      per ordered pair of ranks
//! arenas          per rank: memory for buffers
//! ```
//! The file is sparse: untouched pages cost nothing.

use rankrun_contract::rank::WorldSize;

use super::error::SegmentError;

/// Ranks of a group at most: the slots of all pairs grow with the square.
pub(crate) const MAX_RANKS: u32 = 1024;
/// Bytes of a staging slot: the slots of a few ranks fit into a core's cache, and a call on one takes long
/// compared with a meeting of the ranks.
pub(crate) const STAGING_SLOT_BYTES: usize = 512 * 1024;
/// Slots per rank: one is filled, the one before is reduced, and the one before that is copied out.
pub(crate) const STAGING_SLOTS: u64 = 3;
/// Slots per ordered pair of ranks.
pub(crate) const PAIR_SLOTS: usize = 8;
/// Bytes of the header in a pair slot.
pub(crate) const PAIR_HEADER_BYTES: usize = 64;

/// Size of a huge page; arenas and large buffers are aligned to it.
pub(crate) const HUGE_PAGE_SIZE: usize = 2 * 1024 * 1024;
pub(crate) const PAGE_SIZE: usize = 4096;

/// Two cache lines, since processors prefetch them in pairs.
pub(crate) const LINE_PAIR_SIZE: usize = 128;
const CONTROL_BLOCK_SIZE: usize = 8 * LINE_PAIR_SIZE;
const PAIR_CONTROL_SIZE: usize = 2 * LINE_PAIR_SIZE;

/// Offset of the magic number in the head.
pub(crate) const MAGIC_OFFSET: usize = 0;
pub(crate) const VERSION_OFFSET: usize = 8;
pub(crate) const FAILURE_OFFSET: usize = LINE_PAIR_SIZE;

/// Offsets of all parts, in bytes from the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Map {
    world: usize,
    arena: usize,
}

impl Map {
    /// The layout for ranks with `arena` bytes for buffers each.
    pub(crate) fn new(world_size: WorldSize, arena: u64) -> Result<Self, SegmentError> {
        if world_size.get() > MAX_RANKS {
            return Err(SegmentError::TooManyRanks { world_size, limit: MAX_RANKS });
        }
        let world = world_size.get() as usize;
        let arena = usize::try_from(arena).ok().filter(|&arena| {
            arena.is_multiple_of(HUGE_PAGE_SIZE) && arena.checked_mul(world).is_some_and(|all| all < 1 << 46)
        });
        Ok(Self { world, arena: arena.ok_or(SegmentError::Strange)? })
    }

    pub(crate) fn world(&self) -> usize {
        self.world
    }

    /// Counter of the exchanges of a rank, with the number of processes that sleep on it.
    pub(crate) fn exchange_counter(&self, rank: usize) -> usize {
        self.control_block(rank)
    }

    /// State of a rank: absent, here, left or gone.
    pub(crate) fn rank_state(&self, rank: usize) -> usize {
        self.control_block(rank) + LINE_PAIR_SIZE
    }

    /// Two words that identify the process.
    pub(crate) fn process_id(&self, rank: usize) -> usize {
        self.control_block(rank) + LINE_PAIR_SIZE + 64
    }

    /// Whether the rank has mapped the arenas.
    pub(crate) fn arenas_mapped_flag(&self, rank: usize) -> usize {
        self.control_block(rank) + LINE_PAIR_SIZE + 4
    }

    /// Whether the rank waits for ranks of other hosts.
    pub(crate) fn remote_wait_flag(&self, rank: usize) -> usize {
        self.control_block(rank) + LINE_PAIR_SIZE + 8
    }

    /// The header of the rank's call and the offset of its memory. Two alternate, so that the next call
    /// does not overwrite the current one.
    pub(crate) fn call_header(&self, rank: usize, number: u64) -> usize {
        self.control_block(rank)
            + 2 * LINE_PAIR_SIZE
            + if number.is_multiple_of(2) { 0 } else { LINE_PAIR_SIZE }
    }

    /// The two headers by which the rank has found that two ranks differ.
    pub(crate) fn mismatch_headers(&self, rank: usize) -> usize {
        self.control_block(rank) + 4 * LINE_PAIR_SIZE
    }

    /// The wait of the rank.
    pub(crate) fn pending_wait(&self, rank: usize) -> usize {
        self.control_block(rank) + 5 * LINE_PAIR_SIZE
    }

    /// Bit set of the processors that the rank may use.
    pub(crate) fn cpu_set(&self, rank: usize) -> usize {
        self.control_block(rank) + 6 * LINE_PAIR_SIZE
    }

    fn control_block(&self, rank: usize) -> usize {
        assert!(rank < self.world, "a rank of the group");
        PAGE_SIZE + rank * CONTROL_BLOCK_SIZE
    }

    /// End of the head and the control blocks.
    pub(crate) fn control_end(&self) -> usize {
        (PAGE_SIZE + self.world * CONTROL_BLOCK_SIZE).next_multiple_of(PAGE_SIZE)
    }

    /// Counter of the slots that one rank has filled for another.
    pub(crate) fn filled_counter(&self, from: usize, to: usize) -> usize {
        self.control_end() + self.pair(from, to) * PAIR_CONTROL_SIZE
    }

    /// Counter of the slots that the receiver has emptied.
    pub(crate) fn emptied_counter(&self, from: usize, to: usize) -> usize {
        self.filled_counter(from, to) + LINE_PAIR_SIZE
    }

    fn pair(&self, from: usize, to: usize) -> usize {
        assert!(from < self.world && to < self.world, "ranks of the group");
        from * self.world + to
    }

    fn staging(&self) -> usize {
        (self.control_end() + self.world * self.world * PAIR_CONTROL_SIZE).next_multiple_of(HUGE_PAGE_SIZE)
    }

    /// All staging slots of a rank.
    pub(crate) fn staging_slots(&self, rank: usize) -> usize {
        assert!(rank < self.world, "a rank of the group");
        self.staging() + rank * STAGING_SLOT_BYTES * STAGING_SLOTS as usize
    }

    /// The staging slot of a rank for piece `number`.
    pub(crate) fn staging_slot(&self, rank: usize, number: u64) -> usize {
        self.staging_slots(rank) + STAGING_SLOT_BYTES * (number % STAGING_SLOTS) as usize
    }

    /// Bytes of a pair slot with its header: fewer if there are many pairs.
    pub(crate) fn pair_slot_bytes(&self) -> usize {
        (1024 * 1024 / self.world.next_power_of_two()).clamp(2 * PAGE_SIZE, 64 * 1024)
    }

    fn pair_slots(&self) -> usize {
        self.staging() + self.world * STAGING_SLOT_BYTES * STAGING_SLOTS as usize
    }

    /// Slot `number` of a pair.
    pub(crate) fn pair_slot(&self, from: usize, to: usize, number: u32) -> usize {
        let number = number as usize % PAIR_SLOTS;
        self.pair_slots() + (self.pair(from, to) * PAIR_SLOTS + number) * self.pair_slot_bytes()
    }

    pub(crate) fn arenas_start(&self) -> usize {
        (self.pair_slots() + self.world * self.world * PAIR_SLOTS * self.pair_slot_bytes())
            .next_multiple_of(HUGE_PAGE_SIZE)
    }

    /// The arena of a rank.
    pub(crate) fn arena(&self, rank: usize) -> std::ops::Range<usize> {
        assert!(rank < self.world, "a rank of the group");
        let start = self.arenas_start() + rank * self.arena;
        start..start + self.arena
    }

    pub(crate) fn arena_bytes(&self) -> usize {
        self.arena
    }

    pub(crate) fn total_bytes(&self) -> usize {
        self.arenas_start() + self.world * self.arena
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn segment_regions_never_overlap(world in 1u32..12, arena in 0u64..3) {
            let map = Map::new(WorldSize::new(world).unwrap(), arena * HUGE_PAGE_SIZE as u64).unwrap();
            let mut ranges = vec![(0, PAGE_SIZE)];
            for rank in 0..map.world() {
                ranges.extend([(map.exchange_counter(rank), 8), (map.rank_state(rank), 4), (map.arenas_mapped_flag(rank), 4), (map.process_id(rank), 16)]);
                ranges.extend([(map.call_header(rank, 0), 48), (map.call_header(rank, 1), 48), (map.mismatch_headers(rank), 80), (map.pending_wait(rank), 64)]);
                ranges.extend([(map.cpu_set(rank), 128), (map.arena(rank).start, map.arena_bytes())]);
                ranges.extend((0..STAGING_SLOTS).map(|number| (map.staging_slot(rank, number), STAGING_SLOT_BYTES)));
                for other in 0..map.world() {
                    ranges.push((map.filled_counter(rank, other), 2 * LINE_PAIR_SIZE));
                    let slots = [0, 1, 7].map(|number| map.pair_slot(rank, other, number));
                    ranges.extend(slots.map(|slot| (slot, map.pair_slot_bytes())));
                }
            }
            ranges.push((map.total_bytes(), 0));
            ranges.sort_unstable();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        }
    }

    #[test]
    fn world_above_max_ranks_is_rejected_with_tcp_hint() {
        assert!(Map::new(WorldSize::new(MAX_RANKS).unwrap(), 0).is_ok());
        let error = Map::new(WorldSize::new(1025).unwrap(), 0).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("1025 ranks") && text.contains("1024"), "{text}");
        assert_eq!(error.hint(), Some("use the backend `tcp` for larger groups"));
    }

    #[test]
    fn arena_length_invalid_is_rejected() {
        let world = WorldSize::new(4).unwrap();
        for arena in [1, u64::MAX, 1 << 46] {
            assert!(matches!(Map::new(world, arena), Err(SegmentError::Strange)));
        }
    }
}
