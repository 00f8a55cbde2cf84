//! The words by which ranks tell each other that they are here or gone, and how the group ended.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::map::ABORT_AT;
use super::segment::Segment;
use crate::process_group::error::LossCause;

/// Whether a rank takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It has not come yet.
    Absent,
    /// It is here, for as long as its process lives.
    Here,
    /// It left in good order.
    Left,
    /// It dropped the group without leaving.
    Gone,
}

impl State {
    pub(crate) fn of(word: u32) -> Self {
        match word {
            0 => Self::Absent,
            1 => Self::Here,
            2 => Self::Left,
            _ => Self::Gone,
        }
    }
}

/// How the group ended, in one word: zero while it goes on.
pub(crate) fn abort(segment: &Segment) -> &AtomicU64 {
    segment.word64(ABORT_AT)
}

/// How a group ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Word {
    /// A rank is gone or silent.
    Lost { rank: usize, cause: LossCause },
    /// Two ranks make different calls, which lie where the rank that noticed keeps its evidence.
    Mismatch { noticed_by: usize, first: usize, second: usize },
}

impl Word {
    /// Kind, cause, and up to three ranks of 16 bits, which hold every rank of a segment.
    pub(crate) fn encode(&self) -> u64 {
        let pack = |kind: u8, cause: u8, ranks: [usize; 3]| {
            let [one, two, three] = ranks.map(|rank| rank as u64 & 0xFFFF);
            u64::from(kind) | u64::from(cause) << 8 | one << 16 | two << 32 | three << 48
        };
        match *self {
            Self::Lost { rank, ref cause } => {
                let cause = match cause {
                    LossCause::Left => 1,
                    LossCause::Timeout(_) => 2,
                    _ => 0,
                };
                pack(1, cause, [0, rank, 0])
            }
            Self::Mismatch { noticed_by, first, second } => pack(2, 0, [noticed_by, first, second]),
        }
    }

    /// `None` for a word that no rank of this version writes.
    pub(crate) fn decode(word: u64, world: usize) -> Option<Self> {
        let [one, two, three] = [16, 32, 48].map(|shift| (word >> shift & 0xFFFF) as usize);
        if [one, two, three].into_iter().any(|rank| rank >= world) {
            return None;
        }
        match word & 0xFFFF {
            0x001 => Some(Self::Lost { rank: two, cause: LossCause::Closed }),
            0x101 => Some(Self::Lost { rank: two, cause: LossCause::Left }),
            // How long it was waited for is known to who waited.
            0x201 => Some(Self::Lost { rank: two, cause: LossCause::Timeout(Duration::ZERO) }),
            0x002 => Some(Self::Mismatch { noticed_by: one, first: two, second: three }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(ranks in any::<[u16; 3]>(), kind in 0..4) {
            let [rank, first, second] = ranks.map(usize::from);
            let word = match kind {
                0 => Word::Lost { rank, cause: LossCause::Closed },
                1 => Word::Lost { rank, cause: LossCause::Left },
                2 => Word::Lost { rank, cause: LossCause::Timeout(Duration::ZERO) },
                _ => Word::Mismatch { noticed_by: rank, first, second },
            };
            prop_assert_eq!(Word::decode(word.encode(), 1 << 16), Some(word));
        }

        #[test]
        fn no_word_panics_or_names_a_rank_that_is_none(word in any::<u64>(), world in 1usize..9) {
            match Word::decode(word, world) {
                Some(Word::Lost { rank, .. }) => prop_assert!(rank < world),
                Some(Word::Mismatch { noticed_by, first, second }) => {
                    prop_assert!([noticed_by, first, second].into_iter().all(|rank| rank < world));
                }
                None => {}
            }
        }
    }
}
