//! The words by which ranks tell each other that they are here or gone, and how the group ended.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::map::ABORT_AT;
use super::member::Member;
use super::segment::Segment;
use crate::process_group::error::{Ending, LossCause};
use crate::process_group::transport::Step;

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

impl Member {
    /// Whether the group has ended, or another rank has crashed, for a rank that waits for none of these.
    pub(crate) fn look_around(&self, step: &Step) -> Result<(), Ending> {
        if let Some(ending) = self.ending(step) {
            return Err(ending);
        }
        let others = (0..self.world).filter(|&rank| rank != self.me);
        let crashed = |&rank: &usize| self.gone(rank, true) == Some(LossCause::Closed);
        match others.into_iter().find(crashed) {
            Some(rank) => Err(self.end(step, Word::Lost { rank, cause: LossCause::Closed })),
            None => Ok(()),
        }
    }

    /// Why a rank takes no part any more; whether its process lives only the kernel says.
    pub(crate) fn gone(&self, rank: usize, asks_kernel: bool) -> Option<LossCause> {
        match self.state(rank) {
            State::Left => Some(LossCause::Left),
            State::Gone => Some(LossCause::Closed),
            State::Here if asks_kernel && self.is_dead(rank) => Some(LossCause::Closed),
            State::Here | State::Absent => None,
        }
    }

    pub(crate) fn state(&self, rank: usize) -> State {
        State::of(self.segment.word32(self.segment.map().state(rank)).load(Ordering::SeqCst))
    }

    pub(crate) fn set_state(&self, state: State) {
        self.segment.word32(self.segment.map().state(self.me)).store(state as u32, Ordering::SeqCst);
        self.counter(self.me).wake();
    }

    /// Says whether this rank waits for ranks of other hosts.
    pub(crate) fn set_away(&self, is_away: bool) {
        let word = self.segment.word32(self.segment.map().away(self.me));
        word.store(is_away.into(), Ordering::SeqCst);
    }

    pub(crate) fn is_away(&self, rank: usize) -> bool {
        self.segment.word32(self.segment.map().away(rank)).load(Ordering::SeqCst) != 0
    }

    /// Whether the process of a rank that took its seat is gone.
    fn is_dead(&self, rank: usize) -> bool {
        let process = |rank| {
            let at = self.segment.map().process(rank);
            [0, 8].map(|word| self.segment.word64(at + word).load(Ordering::Relaxed))
        };
        process(rank) != process(self.me) && self.segment.is_vacant(rank)
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
