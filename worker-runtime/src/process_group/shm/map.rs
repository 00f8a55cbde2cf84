//! Where everything lies in the memory that ranks share. Pure.
//!
//! ```text
//! head            one page: what the segment is, and the word that ends the group
//! control         per rank: counters, state, and what it calls
//! pair control    per ordered pair of ranks: counters of what is sent and received
//! staging         per rank: slots for calls on memory of others
//! pair slots      per ordered pair of ranks
//! arenas          per rank: memory for buffers
//! ```
//! The file is sparse: what no rank touches costs nothing.

use rankrun_contract::rank::WorldSize;

use super::error::SegmentError;

/// Most ranks of a group: the slots between all pairs grow with its square.
pub(crate) const MAX_RANKS: u32 = 1024;
/// Bytes of one slot for memory of others: slots of a few ranks stay within a core's cache, and calls on them are long beside
/// the time in which ranks meet.
pub(crate) const STAGE: usize = 512 * 1024;
/// Slots per rank: while one is filled, that before it is reduced and that before this one is copied out.
pub(crate) const STAGES: u64 = 3;
/// Slots per ordered pair of ranks.
pub(crate) const PAIR_SLOTS: usize = 8;
/// What precedes the bytes in a slot of a pair.
pub(crate) const PAIR_HEAD: usize = 64;

/// Arenas begin, and large buffers lie, at multiples of a huge page.
pub(crate) const HUGE: usize = 2 * 1024 * 1024;
pub(crate) const PAGE: usize = 4096;

/// Two cache lines, since processors fetch them in pairs.
pub(crate) const LINE: usize = 128;
const CONTROL: usize = 8 * LINE;
const PAIR_CONTROL: usize = 2 * LINE;

/// The head's fields.
pub(crate) const MAGIC_AT: usize = 0;
pub(crate) const VERSION_AT: usize = 8;
pub(crate) const ABORT_AT: usize = LINE;

/// Where things lie, in bytes from the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Map {
    world: usize,
    arena: usize,
}

impl Map {
    /// For ranks of which each has `arena` bytes for buffers.
    pub(crate) fn new(world_size: WorldSize, arena: u64) -> Result<Self, SegmentError> {
        if world_size.get() > MAX_RANKS {
            return Err(SegmentError::TooManyRanks { world_size, limit: MAX_RANKS });
        }
        let world = world_size.get() as usize;
        let arena = usize::try_from(arena).ok().filter(|&arena| {
            arena.is_multiple_of(HUGE) && arena.checked_mul(world).is_some_and(|all| all < 1 << 46)
        });
        Ok(Self { world, arena: arena.ok_or(SegmentError::Strange)? })
    }

    pub(crate) fn world(&self) -> usize {
        self.world
    }

    /// A rank's counter of the exchanges it took part in, and who sleeps until it moves on.
    pub(crate) fn turn(&self, rank: usize) -> usize {
        self.control(rank)
    }

    /// A rank's state.
    pub(crate) fn state(&self, rank: usize) -> usize {
        self.control(rank) + LINE
    }

    /// Two words that no other process has.
    pub(crate) fn process(&self, rank: usize) -> usize {
        self.control(rank) + LINE + 64
    }

    /// Whether a rank has mapped the arenas.
    pub(crate) fn arenas(&self, rank: usize) -> usize {
        self.control(rank) + LINE + 4
    }

    /// Whether a rank waits for ranks of other hosts.
    pub(crate) fn away(&self, rank: usize) -> usize {
        self.control(rank) + LINE + 8
    }

    /// What a rank calls: the header, and where its memory lies. One of two, so that the next call's does not disturb.
    pub(crate) fn call(&self, rank: usize, number: u64) -> usize {
        self.control(rank) + 2 * LINE + if number.is_multiple_of(2) { 0 } else { LINE }
    }

    /// The two calls by which a rank knows that two ranks differ.
    pub(crate) fn evidence(&self, rank: usize) -> usize {
        self.control(rank) + 4 * LINE
    }

    /// For what a rank waits.
    pub(crate) fn wait(&self, rank: usize) -> usize {
        self.control(rank) + 5 * LINE
    }

    /// The processors that a rank may use.
    pub(crate) fn processors(&self, rank: usize) -> usize {
        self.control(rank) + 6 * LINE
    }

    fn control(&self, rank: usize) -> usize {
        assert!(rank < self.world, "a rank of the group");
        PAGE + rank * CONTROL
    }

    /// What is shared by all and small.
    pub(crate) fn common(&self) -> usize {
        (PAGE + self.world * CONTROL).next_multiple_of(PAGE)
    }

    /// The counter of slots that one rank has filled for another one.
    pub(crate) fn filled(&self, from: usize, to: usize) -> usize {
        self.common() + self.pair(from, to) * PAIR_CONTROL
    }

    /// The counter of slots that the other one has emptied.
    pub(crate) fn emptied(&self, from: usize, to: usize) -> usize {
        self.filled(from, to) + LINE
    }

    fn pair(&self, from: usize, to: usize) -> usize {
        assert!(from < self.world && to < self.world, "ranks of the group");
        from * self.world + to
    }

    fn staging(&self) -> usize {
        (self.common() + self.world * self.world * PAIR_CONTROL).next_multiple_of(HUGE)
    }

    /// All slots of a rank.
    pub(crate) fn stages(&self, rank: usize) -> usize {
        assert!(rank < self.world, "a rank of the group");
        self.staging() + rank * STAGE * STAGES as usize
    }

    /// A rank's slot for the piece with this number.
    pub(crate) fn stage(&self, rank: usize, number: u64) -> usize {
        self.stages(rank) + STAGE * (number % STAGES) as usize
    }

    /// Bytes of a slot of a pair, its head included: less where there are many pairs.
    pub(crate) fn pair_slot_bytes(&self) -> usize {
        (1024 * 1024 / self.world.next_power_of_two()).clamp(2 * PAGE, 64 * 1024)
    }

    fn pair_slots(&self) -> usize {
        self.staging() + self.world * STAGE * STAGES as usize
    }

    /// The slots of a pair.
    pub(crate) fn pair_slot(&self, from: usize, to: usize, number: u32) -> usize {
        let number = number as usize % PAIR_SLOTS;
        self.pair_slots() + (self.pair(from, to) * PAIR_SLOTS + number) * self.pair_slot_bytes()
    }

    /// Without the arenas.
    pub(crate) fn base(&self) -> usize {
        (self.pair_slots() + self.world * self.world * PAIR_SLOTS * self.pair_slot_bytes())
            .next_multiple_of(HUGE)
    }

    /// A rank's memory for buffers.
    pub(crate) fn arena(&self, rank: usize) -> std::ops::Range<usize> {
        assert!(rank < self.world, "a rank of the group");
        let start = self.base() + rank * self.arena;
        start..start + self.arena
    }

    pub(crate) fn arena_bytes(&self) -> usize {
        self.arena
    }

    pub(crate) fn total(&self) -> usize {
        self.base() + self.world * self.arena
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_overlaps(world in 1u32..12, arena in 0u64..3) {
            let map = Map::new(WorldSize::new(world).unwrap(), arena * HUGE as u64).unwrap();
            let mut ranges = vec![(0, PAGE)];
            for rank in 0..map.world() {
                ranges.extend([(map.turn(rank), 8), (map.state(rank), 4), (map.arenas(rank), 4), (map.process(rank), 16)]);
                ranges.extend([(map.call(rank, 0), 48), (map.call(rank, 1), 48), (map.evidence(rank), 80), (map.wait(rank), 64)]);
                ranges.extend([(map.processors(rank), 128), (map.arena(rank).start, map.arena_bytes())]);
                ranges.extend((0..STAGES).map(|number| (map.stage(rank, number), STAGE)));
                for other in 0..map.world() {
                    ranges.push((map.filled(rank, other), 2 * LINE));
                    let slots = [0, 1, 7].map(|number| map.pair_slot(rank, other, number));
                    ranges.extend(slots.map(|slot| (slot, map.pair_slot_bytes())));
                }
            }
            ranges.push((map.total(), 0));
            ranges.sort_unstable();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        }
    }

    #[test]
    fn a_world_that_is_too_large_is_refused() {
        assert!(Map::new(WorldSize::new(MAX_RANKS).unwrap(), 0).is_ok());
        let error = Map::new(WorldSize::new(1025).unwrap(), 0).unwrap_err().to_string();
        assert!(error.contains("1025 ranks") && error.contains("1024") && error.contains("tcp"), "{error}");
    }

    #[test]
    fn arenas_of_strange_lengths_are_refused() {
        let world = WorldSize::new(4).unwrap();
        for arena in [1, u64::MAX, 1 << 46] {
            assert!(matches!(Map::new(world, arena), Err(SegmentError::Strange)));
        }
    }
}
