//! The words in shared memory for the state of each rank and the failure of the group.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::map::FAILURE_OFFSET;
use super::member::Member;
use super::segment::Segment;
use crate::process_group::error::{GroupFailure, LossCause};
use crate::process_group::transport::Step;

/// The state of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RankState {
    /// It has not joined yet.
    Absent,
    /// It has joined, and its process may be alive.
    Here,
    /// It left in good order.
    Left,
    /// It dropped the group without leaving.
    Gone,
}

impl RankState {
    pub(crate) fn from_word(word: u32) -> Self {
        match word {
            0 => Self::Absent,
            1 => Self::Here,
            2 => Self::Left,
            _ => Self::Gone,
        }
    }
}

/// The word of the failure; zero without one.
pub(crate) fn failure_word(segment: &Segment) -> &AtomicU64 {
    segment.atomic_u64(FAILURE_OFFSET)
}

/// A failure as it fits into one word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FailureWord {
    /// A rank is gone or silent.
    Lost { rank: usize, cause: LossCause },
    /// Two ranks make different calls; the headers lie in the evidence of the rank that noticed.
    Mismatch { reporter: usize, first: usize, second: usize },
}

impl FailureWord {
    /// Packs kind, cause, and up to three ranks of 16 bits.
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
            Self::Mismatch { reporter: noticed_by, first, second } => pack(2, 0, [noticed_by, first, second]),
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
            // Only the waiting rank knows its timeout.
            0x201 => Some(Self::Lost { rank: two, cause: LossCause::Timeout(Duration::ZERO) }),
            0x002 => Some(Self::Mismatch { reporter: one, first: two, second: three }),
            _ => None,
        }
    }
}

impl Member {
    /// Whether the group has failed or another rank has crashed; for a rank that waits elsewhere.
    pub(crate) fn check_host(&self, step: &Step) -> Result<(), GroupFailure> {
        if let Some(failure) = self.failure(step) {
            return Err(failure);
        }
        let other_ranks = (0..self.world).filter(|&rank| rank != self.me);
        let crashed = |&rank: &usize| self.loss_cause(rank, true) == Some(LossCause::Closed);
        match other_ranks.into_iter().find(crashed) {
            Some(rank) => Err(self.fail_group(step, FailureWord::Lost { rank, cause: LossCause::Closed })),
            None => Ok(()),
        }
    }

    /// Why a rank takes no part any more. Only the kernel knows whether its process lives.
    pub(crate) fn loss_cause(&self, rank: usize, asks_kernel: bool) -> Option<LossCause> {
        match self.state(rank) {
            RankState::Left => Some(LossCause::Left),
            RankState::Gone => Some(LossCause::Closed),
            RankState::Here if asks_kernel && self.is_dead(rank) => Some(LossCause::Closed),
            RankState::Here | RankState::Absent => None,
        }
    }

    pub(crate) fn state(&self, rank: usize) -> RankState {
        RankState::from_word(
            self.segment.atomic_u32(self.segment.map().rank_state(rank)).load(Ordering::SeqCst),
        )
    }

    pub(crate) fn set_state(&self, state: RankState) {
        self.segment.atomic_u32(self.segment.map().rank_state(self.me)).store(state as u32, Ordering::SeqCst);
        self.counter(self.me).wake();
    }

    /// Publishes whether this rank waits for ranks of other hosts.
    pub(crate) fn set_waiting_remotely(&self, is_waiting: bool) {
        let word = self.segment.atomic_u32(self.segment.map().remote_wait_flag(self.me));
        word.store(is_waiting.into(), Ordering::SeqCst);
    }

    pub(crate) fn is_waiting_remotely(&self, rank: usize) -> bool {
        self.segment.atomic_u32(self.segment.map().remote_wait_flag(rank)).load(Ordering::SeqCst) != 0
    }

    /// Whether the process of a rank has ended.
    fn is_dead(&self, rank: usize) -> bool {
        let process = |rank| {
            let at = self.segment.map().process_id(rank);
            [0, 8].map(|word| self.segment.atomic_u64(at + word).load(Ordering::Relaxed))
        };
        process(rank) != process(self.me) && self.segment.is_lock_released(rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn failure_word_round_trips(ranks in any::<[u16; 3]>(), kind in 0..4) {
            let [rank, first, second] = ranks.map(usize::from);
            let word = match kind {
                0 => FailureWord::Lost { rank, cause: LossCause::Closed },
                1 => FailureWord::Lost { rank, cause: LossCause::Left },
                2 => FailureWord::Lost { rank, cause: LossCause::Timeout(Duration::ZERO) },
                _ => FailureWord::Mismatch { reporter: rank, first, second },
            };
            prop_assert_eq!(FailureWord::decode(word.encode(), 1 << 16), Some(word));
        }

        #[test]
        fn failure_word_arbitrary_decodes_to_valid_ranks_only(word in any::<u64>(), world in 1usize..9) {
            match FailureWord::decode(word, world) {
                Some(FailureWord::Lost { rank, .. }) => prop_assert!(rank < world),
                Some(FailureWord::Mismatch { reporter, first, second }) => {
                    prop_assert!([reporter, first, second].into_iter().all(|rank| rank < world));
                }
                None => {}
            }
        }
    }
}
