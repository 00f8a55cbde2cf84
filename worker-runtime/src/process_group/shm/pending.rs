//! The published wait of each rank. Two ranks that wait for each other in different calls, or a
//! message that is not received before the next call of all ranks, are a mismatch that is reported at
//! once instead of after the timeout.

use std::sync::atomic::{Ordering, fence};

use super::map::PAIR_SLOTS;
use super::member::{HEADER_WORDS, Member};
use super::wait::Counter;
use crate::process_group::error::GroupFailure;
use crate::process_group::message::Operation;
use crate::process_group::transport::Step;

/// The wait of a rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PendingWait {
    pub(crate) wait_target: WaitTarget,
    /// The header of its call.
    pub(crate) header: [u64; HEADER_WORDS],
    /// The counter value that it waits for.
    pub(crate) target_value: u32,
}

/// The counter that it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitTarget {
    /// The exchange counters of all ranks.
    Turns,
    /// A filled slot of a sender.
    Message { from: usize },
    /// An empty slot of a receiver.
    Room { to: usize },
}

impl WaitTarget {
    fn encode(self) -> u64 {
        let (kind, rank) = match self {
            Self::Turns => (1, 0),
            Self::Message { from } => (2, from),
            Self::Room { to } => (3, to),
        };
        kind << 32 | rank as u64
    }

    /// `None` if the rank does not wait.
    fn decode(word: u64) -> Option<Self> {
        let rank = (word & 0xFFFF_FFFF) as usize;
        match word >> 32 {
            1 => Some(Self::Turns),
            2 => Some(Self::Message { from: rank }),
            3 => Some(Self::Room { to: rank }),
            _ => None,
        }
    }

    /// Whether two ranks that wait for each other make different calls: in the same call one of them could
    /// continue. Two ranks that both send first only lack room, and run into the timeout.
    fn contradicts(self, other: Self) -> bool {
        !matches!((self, other), (Self::Turns, Self::Turns) | (Self::Room { .. }, Self::Room { .. }))
    }
}

impl Member {
    pub(crate) fn publish_wait(&self, wait: &PendingWait) {
        self.is_waiting.set(true);
        let at = self.segment.map().pending_wait(self.me);
        self.write_header(at + 16, &wait.header);
        self.segment.atomic_u64(at + 8).store(wait.target_value.into(), Ordering::Relaxed);
        self.segment.atomic_u64(at).store(wait.wait_target.encode(), Ordering::Release);
    }

    pub(crate) fn clear_wait(&self) {
        if self.is_waiting.replace(false) {
            self.segment.atomic_u64(self.segment.map().pending_wait(self.me)).store(0, Ordering::Release);
        }
    }

    /// The wait of another rank.
    fn read_wait(&self, rank: usize) -> Option<PendingWait> {
        let at = self.segment.map().pending_wait(rank);
        let what = self.segment.atomic_u64(at).load(Ordering::Acquire);
        let header = self.read_header(at + 16);
        let target = self.segment.atomic_u64(at + 8).load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        // It may have changed while it was read.
        let is_whole = self.segment.atomic_u64(at).load(Ordering::Relaxed) == what;
        let wait = PendingWait {
            wait_target: WaitTarget::decode(what)?,
            header,
            target_value: u32::try_from(target).ok()?,
        };
        is_whole.then_some(wait)
    }

    /// Finds a rank that waits for this one, in a different call, while this one waits for it. The counter
    /// that the other rank waits for is written by this rank only, so that the other rank still waits if
    /// it did when it was read.
    pub(crate) fn find_mutual_wait(
        &self,
        step: &Step,
        wait: &PendingWait,
        is_missing: impl Fn(usize) -> bool,
    ) -> Result<(), GroupFailure> {
        for rank in (0..self.world).filter(|&rank| rank != self.me && is_missing(rank)) {
            let Some(other_wait) =
                self.read_wait(rank).filter(|other| other.wait_target.contradicts(wait.wait_target))
            else {
                continue;
            };
            let map = self.segment.map();
            let own_target = match other_wait.wait_target {
                WaitTarget::Turns => map.exchange_counter(self.me),
                WaitTarget::Message { from } if from == self.me => map.filled_counter(self.me, rank),
                WaitTarget::Room { to } if to == self.me => map.emptied_counter(rank, self.me),
                WaitTarget::Message { .. } | WaitTarget::Room { .. } => continue,
            };
            // It may have arrived, and wait in its next call.
            if !Counter::at(&self.segment, own_target).has_reached(other_wait.target_value)
                && is_missing(rank)
            {
                return Err(self.report_mismatch(step, [rank, self.me], [other_wait.header, wait.header]));
            }
        }
        Ok(())
    }

    /// In a call in which every rank depends on every other: finds a message that was sent and not received.
    /// All ranks find the same one.
    pub(crate) fn find_unreceived_message(&self, step: &Step) -> Result<(), GroupFailure> {
        let is_among_all = matches!(
            step.call.operation,
            Operation::Barrier
                | Operation::AllReduce
                | Operation::AllGather
                | Operation::ReduceScatter
                | Operation::Split
        );
        let (segment, map) = (&self.segment, self.segment.map());
        let value = |at| Counter::at(segment, at).value();
        let pairs = (0..self.world).flat_map(|from| (0..self.world).map(move |to| (from, to)));
        for (from, to) in pairs.filter(|_| is_among_all) {
            let (filled, emptied) =
                (value(map.filled_counter(from, to)), value(map.emptied_counter(from, to)));
            if (1..=PAIR_SLOTS as u32).contains(&filled.wrapping_sub(emptied)) {
                let header = self.read_header(map.pair_slot(from, to, emptied));
                return Err(self.report_mismatch(step, [from, to], [header, self.own_header()]));
            }
        }
        Ok(())
    }
}
