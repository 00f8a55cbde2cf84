//! What a rank waits for, as the others see it: two ranks that wait for each other in different calls, or one that sent what is not
//! received before the next call of all ranks, make different calls, and hear so at once rather than when their time is over.

use std::sync::atomic::{Ordering, fence};

use super::map::PAIR_SLOTS;
use super::member::{Member, WORDS};
use super::wait::Counter;
use crate::process_group::error::Ending;
use crate::process_group::message::Operation;
use crate::process_group::transport::Step;

/// What a rank waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wait {
    pub(crate) what: What,
    /// Its call.
    pub(crate) header: [u64; WORDS],
    /// How far the other rank's counter must be.
    pub(crate) target: u32,
}

/// Whose counter is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// All ranks' turns.
    Turns,
    /// That a rank sends.
    Message { from: usize },
    /// That a rank receives.
    Room { to: usize },
}

impl What {
    fn encode(self) -> u64 {
        let (kind, rank) = match self {
            Self::Turns => (1, 0),
            Self::Message { from } => (2, from),
            Self::Room { to } => (3, to),
        };
        kind << 32 | rank as u64
    }

    /// `None` for who does not wait.
    fn decode(word: u64) -> Option<Self> {
        let rank = (word & 0xFFFF_FFFF) as usize;
        match word >> 32 {
            1 => Some(Self::Turns),
            2 => Some(Self::Message { from: rank }),
            3 => Some(Self::Room { to: rank }),
            _ => None,
        }
    }

    /// Whether two ranks that wait for each other do so because their calls differ: both would wait for ever if they made the same
    /// one. Ranks of which each sends first only have too little room, and their time ends.
    fn contradicts(self, other: Self) -> bool {
        !matches!((self, other), (Self::Turns, Self::Turns) | (Self::Room { .. }, Self::Room { .. }))
    }
}

impl Member {
    /// Tells the others for what this rank waits.
    pub(crate) fn tell(&self, wait: &Wait) {
        self.is_waiting.set(true);
        let at = self.segment.map().wait(self.me);
        self.write_header(at + 16, &wait.header);
        self.segment.word64(at + 8).store(wait.target.into(), Ordering::Relaxed);
        self.segment.word64(at).store(wait.what.encode(), Ordering::Release);
    }

    /// Tells the others that this rank waits no more.
    pub(crate) fn wait_no_more(&self) {
        if self.is_waiting.replace(false) {
            self.segment.word64(self.segment.map().wait(self.me)).store(0, Ordering::Release);
        }
    }

    /// For what another rank waits.
    fn heard(&self, rank: usize) -> Option<Wait> {
        let at = self.segment.map().wait(rank);
        let what = self.segment.word64(at).load(Ordering::Acquire);
        let header = self.read_header(at + 16);
        let target = self.segment.word64(at + 8).load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        // It may have gone on while we read.
        let is_whole = self.segment.word64(at).load(Ordering::Relaxed) == what;
        let wait = Wait { what: What::decode(what)?, header, target: u32::try_from(target).ok()? };
        is_whole.then_some(wait)
    }

    /// Whether this rank, which does `wait`, and one that it waits for wait for each other in different calls. What another rank waits
    /// for here is in a counter of ours, which does not move meanwhile: it waits on if it waited when we looked.
    pub(crate) fn find_mutual(
        &self,
        step: &Step,
        wait: &Wait,
        missing: impl Fn(usize) -> bool,
    ) -> Result<(), Ending> {
        for rank in (0..self.world).filter(|&rank| rank != self.me && missing(rank)) {
            let Some(theirs) = self.heard(rank).filter(|it| it.what.contradicts(wait.what)) else { continue };
            let map = self.segment.map();
            let ours = match theirs.what {
                What::Turns => map.turn(self.me),
                What::Message { from } if from == self.me => map.filled(self.me, rank),
                What::Room { to } if to == self.me => map.emptied(rank, self.me),
                What::Message { .. } | What::Room { .. } => continue,
            };
            // It may have done its part, and waits for its next one.
            if !Counter::at(&self.segment, ours).has_reached(theirs.target) && missing(rank) {
                return Err(self.disagree(step, [rank, self.me], [theirs.header, wait.header]));
            }
        }
        Ok(())
    }

    /// In a call in which every rank hears of every other one: whether one has sent what was not received. All ranks find the same.
    pub(crate) fn find_unreceived(&self, step: &Step) -> Result<(), Ending> {
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
            let (filled, emptied) = (value(map.filled(from, to)), value(map.emptied(from, to)));
            if (1..=PAIR_SLOTS as u32).contains(&filled.wrapping_sub(emptied)) {
                let theirs = self.read_header(map.pair_slot(from, to, emptied));
                return Err(self.disagree(step, [from, to], [theirs, self.own_header()]));
            }
        }
        Ok(())
    }
}
