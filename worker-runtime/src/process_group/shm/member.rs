//! One rank's part in the exchanges of a group: it publishes its call, advances its counter, and
//! waits for those of the others.
//!
//! Every rank counts its exchanges; since all ranks make the same calls, the counters keep step. A waiting
//! rank also checks whether the group has failed, whether a rank that it needs is gone, and the clock. The
//! first rank that detects a failure writes it into one word of the head, and every rank reports that word.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rankrun_contract::rank::Rank;

use super::pending::{PendingWait, WaitTarget};
use super::segment::Segment;
use super::wait::{Counter, Spin};
use super::watch::{self, FailureWord};
use crate::clock;
use crate::process_group::error::{GroupFailure, LossCause};
use crate::process_group::message::{Call, HEADER_LEN, Header};
use crate::process_group::transport::{Step, TransportProbe};

/// The offset of memory outside of the segment.
pub(crate) const FOREIGN: u64 = u64::MAX;

/// Words of a header; the previous call, which follows in the wire form, is the same on all ranks here.
pub(crate) const WORDS: usize = 5;
/// Offset, after the header, of the number of messages sent but not received, and of the memory of the call.
const MESSAGES: usize = WORDS * 8;
const PLACE: usize = MESSAGES + 8;

/// A rank of a group that shares memory.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) segment: Arc<Segment>,
    pub(crate) me: usize,
    pub(crate) world: usize,
    pub(crate) spin: Spin,
    /// Exchanges of this rank so far.
    turn: u32,
    /// Calls of the whole group so far.
    calls: u64,
    /// This rank's call, as all ranks must make it.
    header: [u64; WORDS],
    /// Messages that this rank has sent, minus those that it has received; it wraps around.
    pub(crate) messages: u64,
    /// Whether this rank has published its wait.
    pub(crate) is_waiting: Cell<bool>,
    /// Additional time for ranks that wait for other hosts.
    pub(crate) patience: Duration,
    /// The ranks of the group behind the local indices, for messages.
    pub(crate) names: Vec<Rank>,
    /// Another part of the transport, to check while this rank waits.
    pub(crate) probe: RefCell<Option<Box<dyn TransportProbe>>>,
}

impl Member {
    pub(crate) fn new(segment: Arc<Segment>, me: usize) -> Self {
        let world = segment.map().world();
        let (spin, is_waiting) = (Spin::new(false), Cell::new(false));
        Self {
            segment,
            me,
            world,
            spin,
            turn: 0,
            calls: 0,
            header: [0; WORDS],
            messages: 0,
            is_waiting,
            patience: Duration::ZERO,
            names: (0..world).map(rank_at).collect(),
            probe: RefCell::new(None),
        }
    }

    /// Sets the number of exchanges so far.
    #[cfg(test)]
    pub(crate) fn start_at(&mut self, turn: u32) {
        self.turn = turn;
        self.counter(self.me).set(turn);
    }

    pub(crate) fn counter(&self, rank: usize) -> Counter<'_> {
        Counter::at(&self.segment, self.segment.map().turn(rank))
    }

    /// Publishes this rank's call and the offset of its memory.
    ///
    /// `shares` is a hash of the lengths by rank, on which ranks must agree as well.
    pub(crate) fn announce(&mut self, step: &Step, shares: u64, place: u64) {
        self.calls += 1;
        self.header = words(step.call, shares);
        let slot = self.segment.map().call(self.me, self.calls);
        self.write_header(slot, &self.header);
        self.segment.word64(slot + MESSAGES).store(self.messages, Ordering::Relaxed);
        self.segment.word64(slot + PLACE).store(place, Ordering::Relaxed);
    }

    /// The published header of this rank.
    pub(crate) fn own_header(&self) -> [u64; WORDS] {
        self.header
    }

    /// Offset of a rank's memory, after it has published this call.
    pub(crate) fn place(&self, rank: usize) -> u64 {
        let slot = self.segment.map().call(rank, self.calls);
        self.segment.word64(slot + PLACE).load(Ordering::Relaxed)
    }

    /// The first exchange of a call: waits for all ranks and compares their calls.
    pub(crate) fn begin_call(&mut self, step: &Step) -> Result<(), GroupFailure> {
        self.arrive();
        self.wait_for_turns(step, true)?;
        let slot = |rank| self.segment.map().call(rank, self.calls);
        let messages = |rank| self.segment.word64(slot(rank) + MESSAGES).load(Ordering::Relaxed);
        let unreceived = (0..self.world).fold(0u64, |sum, rank| sum.wrapping_add(messages(rank)));
        if unreceived == 0 { Ok(()) } else { self.find_unreceived(step) }
    }

    /// Waits for all ranks: what each has written before is visible to all afterwards.
    pub(crate) fn sync(&mut self, step: &Step) -> Result<(), GroupFailure> {
        self.arrive();
        self.wait_for_turns(step, false)
    }

    /// The last exchange of a call in which ranks have read each other's own memory. A rank that gave
    /// up earlier may have written to its memory although it has advanced its counter, so the copies
    /// are not used after a failure.
    pub(crate) fn finish_call(&mut self, step: &Step) -> Result<(), GroupFailure> {
        self.sync(step)?;
        self.failure(step).map_or(Ok(()), Err)
    }

    /// Advances this rank's counter without waiting for the others.
    pub(crate) fn arrive(&mut self) {
        self.turn = self.turn.wrapping_add(1);
        self.counter(self.me).set(self.turn);
    }

    /// Waits until all ranks have reached this exchange.
    pub(crate) fn wait_for_all(&self, step: &Step) -> Result<(), GroupFailure> {
        self.wait_for_turns(step, false)
    }

    fn wait_for_turns(&self, step: &Step, is_first: bool) -> Result<(), GroupFailure> {
        for distance in 1..self.world {
            let rank = (self.me + distance) % self.world;
            self.spin.wait(self.counter(rank), self.turn, |slept| self.look(step, is_first, slept))?;
            if is_first && self.read_header(self.segment.map().call(rank, self.calls)) != self.header {
                return Err(self.differ(step));
            }
        }
        self.wait_no_more();
        Ok(())
    }

    /// Whether waiting for all ranks is in vain.
    fn look(&self, step: &Step, is_first: bool, slept: bool) -> Result<(), GroupFailure> {
        let is_here = |rank: usize| self.counter(rank).has_reached(self.turn);
        let slot = |rank| self.segment.map().call(rank, self.calls);
        let differs = |rank: usize| is_here(rank) && self.read_header(slot(rank)) != self.header;
        if is_first && (0..self.world).any(differs) {
            return Err(self.differ(step));
        }
        let wait = PendingWait { what: WaitTarget::Turns, header: self.header, target: self.turn };
        self.look_for(step, slept.then_some(&wait), |rank| !is_here(rank))
    }

    /// Whether waiting for the ranks that are `missing` is in vain. A rank that has slept also asks
    /// the kernel, and publishes its wait.
    pub(crate) fn look_for(
        &self,
        step: &Step,
        slept: Option<&PendingWait>,
        missing: impl Fn(usize) -> bool,
    ) -> Result<(), GroupFailure> {
        if let Some(failure) = self.failure(step) {
            return Err(failure);
        }
        for rank in (0..self.world).filter(|&rank| missing(rank)) {
            let Some(cause) = self.gone(rank, slept.is_some()) else { continue };
            // It may have arrived just before it ended.
            if missing(rank) {
                return Err(self.end(step, FailureWord::Lost { rank, cause }));
            }
        }
        if let Some(wait) = slept {
            self.publish_wait(wait);
            self.find_mutual(step, wait, &missing)?;
            if let Some(probe) = &mut *self.probe.borrow_mut() {
                probe.look(step)?;
            }
        }
        if clock::until(step.deadline).is_zero() {
            // A rank that waits for another host will soon name the rank it misses there.
            let is_late = clock::until(step.deadline + self.patience).is_zero();
            // Of the missing ranks, the one furthest behind delays the others too.
            let behind = |&rank: &usize| self.turn.wrapping_sub(self.counter(rank).value());
            let blamed = |&rank: &usize| missing(rank) && (is_late || !self.is_away(rank));
            if let Some(rank) = (0..self.world).filter(blamed).rev().max_by_key(behind) {
                return Err(
                    self.end(step, FailureWord::Lost { rank, cause: LossCause::Timeout(step.timeout) })
                );
            }
        }
        Ok(())
    }

    /// Ends the group since two ranks make different calls: names the lowest two of the arrived ranks.
    fn differ(&self, step: &Step) -> GroupFailure {
        let header = |rank| self.read_header(self.segment.map().call(rank, self.calls));
        let mut here = (0..self.world).filter(|&rank| self.counter(rank).has_reached(self.turn));
        let first = here.next().unwrap_or(self.me);
        let second = here.find(|&rank| header(rank) != header(first)).unwrap_or(self.me);
        self.disagree(step, [first, second], [header(first), header(second)])
    }

    /// Ends the group since two ranks make different calls.
    pub(crate) fn disagree(
        &self,
        step: &Step,
        [first, second]: [usize; 2],
        headers: [[u64; WORDS]; 2],
    ) -> GroupFailure {
        let evidence = self.segment.map().evidence(self.me);
        for (number, header) in headers.iter().enumerate() {
            self.write_header(evidence + number * WORDS * 8, header);
        }
        self.end(step, FailureWord::Mismatch { noticed_by: self.me, first, second })
    }

    /// Writes this failure, unless another one is there; returns the group's failure.
    pub(crate) fn end(&self, step: &Step, word: FailureWord) -> GroupFailure {
        let abort = watch::abort(&self.segment);
        let won = abort.compare_exchange(0, word.encode(), Ordering::SeqCst, Ordering::SeqCst).is_ok();
        (0..self.world).for_each(|rank| self.counter(rank).wake());
        match word {
            FailureWord::Lost { rank, cause } if won => GroupFailure::Lost { rank: self.names[rank], cause },
            word => self.failure(step).unwrap_or_else(|| self.read(step, word)),
        }
    }

    /// The failure of the group, if there is one.
    pub(crate) fn failure(&self, step: &Step) -> Option<GroupFailure> {
        match watch::abort(&self.segment).load(Ordering::SeqCst) {
            0 => None,
            word => Some(self.read(step, FailureWord::decode(word, self.world)?)),
        }
    }

    fn read(&self, step: &Step, word: FailureWord) -> GroupFailure {
        match word {
            FailureWord::Lost { rank, cause: LossCause::Timeout(_) } => {
                GroupFailure::Lost { rank: self.names[rank], cause: LossCause::Reported }
            }
            FailureWord::Lost { rank, cause } => GroupFailure::Lost { rank: self.names[rank], cause },
            FailureWord::Mismatch { noticed_by, first, second } => {
                let evidence = self.segment.map().evidence(noticed_by);
                let call =
                    |number| header(&self.read_header(evidence + number * WORDS * 8)).map(|it| it.call);
                let [one, other] = [0, 1].map(|number| call(number).map(Box::new));
                let own = |call: Option<Box<Call>>| call.unwrap_or_else(|| Box::new(step.call));
                let [first, second] = [first, second].map(|rank| self.names[rank]);
                match self.names[self.me] {
                    me if me == first => {
                        GroupFailure::Mismatch { rank: second, theirs: other, ours: own(one) }
                    }
                    me if me == second => {
                        GroupFailure::Mismatch { rank: first, theirs: one, ours: own(other) }
                    }
                    _ => {
                        GroupFailure::Disagreed { rank: second, call: own(other), other: first, others: one }
                    }
                }
            }
        }
    }

    pub(crate) fn write_header(&self, at: usize, header: &[u64; WORDS]) {
        for (index, &word) in header.iter().enumerate() {
            self.segment.word64(at + index * 8).store(word, Ordering::Relaxed);
        }
    }

    pub(crate) fn read_header(&self, at: usize) -> [u64; WORDS] {
        std::array::from_fn(|index| self.segment.word64(at + index * 8).load(Ordering::Relaxed))
    }
}

/// The header of a call as it lies in shared memory.
pub(crate) fn words(call: Call, shares: u64) -> [u64; WORDS] {
    let bytes = Header { call, step: 0, length: shares, previous: None, latest: 0 }.encode();
    std::array::from_fn(|index| u64::from_le_bytes(std::array::from_fn(|byte| bytes[index * 8 + byte])))
}

fn header(words: &[u64; WORDS]) -> Option<Header> {
    let word = |index: usize| words.get(index / 8).copied().unwrap_or(0);
    Header::decode(&std::array::from_fn::<u8, HEADER_LEN, _>(|index| word(index).to_le_bytes()[index % 8]))
}

pub(super) fn rank_at(index: usize) -> Rank {
    Rank(u32::try_from(index).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_group::element::DataType;
    use crate::process_group::message::Operation;
    use crate::process_group::shm::Shm;
    use crate::process_group::shm::watch::RankState;
    use crate::process_group::transport::Transport;
    use rankrun_contract::rank::WorldSize;

    /// Two ranks in their group, and a call.
    fn two() -> ([Member; 2], Step) {
        let segment = Arc::new(Segment::create(WorldSize::new(2).unwrap()).unwrap());
        let members = [0, 1].map(|rank| Member::new(Arc::clone(&segment), rank));
        members.iter().for_each(|member| member.set_state(RankState::Here));
        let call = Call {
            operation: Operation::Barrier,
            data_type: DataType::None,
            reduction: None,
            root: None,
            count: 0,
            sequence: 1,
        };
        let timeout = Duration::from_secs(60);
        (members, Step { call, deadline: clock::after(timeout), timeout })
    }

    fn lost_rank(rank: u32, cause: LossCause) -> Result<(), GroupFailure> {
        Err(GroupFailure::Lost { rank: Rank(rank), cause })
    }

    #[test]
    fn turn_that_was_taken_counts_although_its_rank_is_gone() {
        let ([mut one, mut other], step) = two();
        other.arrive();
        other.set_state(RankState::Gone);
        assert_eq!(one.sync(&step), Ok(()));
        assert_eq!(one.sync(&step), lost_rank(1, LossCause::Closed));
    }

    #[test]
    fn memory_of_a_rank_that_gave_up_in_a_call_is_not_used() {
        let ([mut one, mut other], step) = two();
        other.arrive();
        drop(other.end(&step, FailureWord::Lost { rank: 0, cause: LossCause::Timeout(step.timeout) }));
        assert_eq!(one.finish_call(&step), lost_rank(0, LossCause::Reported));
    }

    #[test]
    fn memory_of_a_rank_with_a_failed_group_is_not_used() {
        let ([mut one, mut other], step) = two();
        other.arrive();
        Shm::new(other).close();
        assert_eq!(one.finish_call(&step), lost_rank(1, LossCause::Closed));
    }

    #[test]
    fn first_ending_is_the_one_of_all() {
        let ([one, other], step) = two();
        let first = one.end(&step, FailureWord::Lost { rank: 1, cause: LossCause::Left });
        let second = other.end(&step, FailureWord::Lost { rank: 0, cause: LossCause::Closed });
        assert_eq!(
            (first, second.clone()),
            (second, GroupFailure::Lost { rank: Rank(1), cause: LossCause::Left })
        );
    }

    #[test]
    fn rank_waiting_for_another_host_is_named_only_after_extra_time() {
        let ([mut one, other], step) = two();
        let step = Step { deadline: clock::after(Duration::ZERO), ..step };
        other.set_away(true);
        one.patience = Duration::from_secs(60);
        one.arrive();
        assert_eq!(one.look_for(&step, None, |rank| rank == 1), Ok(()));
        one.patience = Duration::ZERO;
        assert_eq!(
            one.look_for(&step, None, |rank| rank == 1),
            lost_rank(1, LossCause::Timeout(step.timeout))
        );
    }

    #[test]
    fn rank_after_deadline_names_the_missing_rank() {
        let ([mut one, _], step) = two();
        let step = Step { deadline: clock::after(Duration::ZERO), ..step };
        assert_eq!(one.sync(&step), lost_rank(1, LossCause::Timeout(step.timeout)));
    }
}
