//! The progress page: memory that a worker shares with its launcher, which shows the collective that each of its groups
//! is in. The worker writes words, the launcher reads bytes, and neither waits for the other.
//!
//! A page has [`SLOTS`] slots of [`SLOT_WORDS`] words in the machine's byte order, one slot for each group:
//!
//! ```text
//! word 0   0 for a free slot; else 1, and 2 more for the group of all ranks
//! word 1   the collectives that the worker has called
//! word 2   those that are over
//! word 3   in its low byte the last one that was called, as an index of `OPERATIONS`; above it how often a send or a
//!          receive has begun or ended
//! word 4…  the name of the group, padded with zeros
//! ```

/// Its length in bytes.
pub const PAGE_BYTES: usize = SLOTS * SLOT_WORDS * 8;
/// Groups of one worker; more are not shown.
pub const SLOTS: usize = 64;
/// Words of one slot: a cache line.
pub const SLOT_WORDS: usize = 8;
/// The collectives that a page can name.
pub const OPERATIONS: [&str; 9] = [
    "barrier",
    "broadcast",
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "all_gather",
    "scatter",
    "gather",
    "split",
];

/// The index of the first word of the name.
pub const NAME_WORD: usize = 4;
/// Words of the name.
pub const NAME_WORDS: usize = SLOT_WORDS - NAME_WORD;
const NAME_BYTES: usize = NAME_WORDS * 8;
/// In word 3: one send or receive that begins or ends.
pub const MESSAGE: u64 = 1 << 8;
/// In word 3: the index of the last collective.
pub const OPERATION_MASK: u64 = MESSAGE - 1;
const USED: u64 = 1;
const WORLD: u64 = 2;

/// A group as its worker shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSlot {
    /// Equal on all ranks of the group.
    pub name: String,
    /// It is the group of all ranks.
    pub is_world: bool,
    /// The collectives that the worker has called.
    pub called: u64,
    /// Those that are over.
    pub finished: u64,
    /// The last one that was called.
    pub operation: &'static str,
    /// How often a send or a receive has begun or ended.
    pub messages: u64,
}

/// Word 0 of a used slot.
#[must_use]
pub const fn slot_flags(is_world: bool) -> u64 {
    if is_world { USED | WORLD } else { USED }
}

/// The name as words. Of a longer name the end is kept, which differs among sub-groups.
#[must_use]
pub fn name_words(name: &str) -> [u64; NAME_WORDS] {
    let bytes = name.as_bytes();
    let mut padded = [0; NAME_BYTES];
    let kept = &bytes[bytes.len().saturating_sub(NAME_BYTES)..];
    padded[..kept.len()].copy_from_slice(kept);
    let mut words = padded.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
    std::array::from_fn(|_| words.next().unwrap_or_default())
}

/// The groups on a page, in the order of their slots. A worker may have written anything: a slot without sense is
/// left out.
#[must_use]
pub fn parse_page(page: &[u8]) -> Vec<GroupSlot> {
    page.as_chunks::<{ SLOT_WORDS * 8 }>().0.iter().take(SLOTS).filter_map(parse_slot).collect()
}

fn parse_slot(bytes: &[u8; SLOT_WORDS * 8]) -> Option<GroupSlot> {
    let word = |index: usize| bytes.as_chunks::<8>().0.get(index).map(|word| u64::from_ne_bytes(*word));
    let (flags, called, finished) = (word(0)?, word(1)?, word(2)?);
    let last = word(3)?;
    let operation = OPERATIONS.get(usize::try_from(last & OPERATION_MASK).ok()?)?;
    let is_sound = matches!(flags, USED | 3) && finished <= called && called - finished <= 1;
    let name = bytes.get(NAME_WORD * 8..)?;
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    let name = String::from_utf8_lossy(&name[..length]).into_owned();
    let messages = last / MESSAGE;
    let is_world = flags & WORLD != 0;
    is_sound.then_some(GroupSlot { name, is_world, called, finished, operation, messages })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slot(words: [u64; NAME_WORD], name: &str) -> Vec<u8> {
        words.iter().chain(&name_words(name)).flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn page_shows_used_slots_alone() {
        let page = [
            slot([slot_flags(true), 7, 6, 2], "default"),
            slot([0, 7, 6, 2], "free"),
            slot([slot_flags(false), 3, 3, 5 * MESSAGE], "default/1/0"),
        ]
        .concat();
        let world = GroupSlot {
            name: "default".to_owned(),
            is_world: true,
            called: 7,
            finished: 6,
            operation: "all_reduce",
            messages: 0,
        };
        let name = "default/1/0".to_owned();
        let sub =
            GroupSlot { name, is_world: false, called: 3, finished: 3, operation: "barrier", messages: 5 };
        assert_eq!(parse_page(&page), [world, sub]);
    }

    #[test]
    fn slot_without_sense_is_skipped() {
        for words in [[4, 1, 1, 0], [1, 1, 2, 0], [1, 9, 2, 0], [1, 1, 1, 9], [1, 1, 1, u64::MAX]] {
            assert_eq!(parse_page(&slot(words, "a")), [], "{words:?}");
        }
    }

    #[test]
    fn long_name_keeps_its_end() {
        let name = format!("{}/1/0", "long".repeat(20));
        let page = slot([1, 0, 0, 0], &name);
        assert_eq!(parse_page(&page)[0].name, name[name.len() - NAME_BYTES..]);
    }

    proptest! {
        #[test]
        fn any_bytes_give_at_most_all_slots(page in proptest::collection::vec(any::<u8>(), 0..2 * PAGE_BYTES)) {
            prop_assert!(parse_page(&page).len() <= SLOTS);
        }
    }
}
