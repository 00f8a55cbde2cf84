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
pub(crate) const NOT_IN_SEGMENT: u64 = u64::MAX;

/// Words of a header; the previous call, which follows in the wire form, is the same on all ranks here.
pub(crate) const HEADER_WORDS: usize = 5;
/// Offset, after the header, of the number of messages sent but not received, and of the memory of the call.
const MESSAGES_WORD_OFFSET: usize = HEADER_WORDS * 8;
const BUFFER_WORD_OFFSET: usize = MESSAGES_WORD_OFFSET + 8;

/// A rank of a group that shares memory.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) segment: Arc<Segment>,
    pub(crate) me: usize,
    pub(crate) world: usize,
    pub(crate) spin: Spin,
    /// Exchanges of this rank so far.
    exchange_count: u32,
    /// Calls of the whole group so far.
    call_count: u64,
    /// This rank's call, as all ranks must make it.
    header: [u64; HEADER_WORDS],
    /// Messages that this rank has sent, minus those that it has received; it wraps around.
    pub(crate) unreceived_messages: u64,
    /// Whether this rank has published its wait.
    pub(crate) is_waiting: Cell<bool>,
    /// Additional time for ranks that wait for other hosts.
    pub(crate) remote_wait_extra: Duration,
    /// The ranks of the group behind the local indices, for messages.
    pub(crate) group_ranks: Vec<Rank>,
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
            exchange_count: 0,
            call_count: 0,
            header: [0; HEADER_WORDS],
            unreceived_messages: 0,
            is_waiting,
            remote_wait_extra: Duration::ZERO,
            group_ranks: (0..world).map(rank_from_index).collect(),
            probe: RefCell::new(None),
        }
    }

    /// Sets the number of exchanges so far.
    #[cfg(test)]
    pub(crate) fn set_exchange_count(&mut self, turn: u32) {
        self.exchange_count = turn;
        self.counter(self.me).set(turn);
    }

    pub(crate) fn counter(&self, rank: usize) -> Counter<'_> {
        Counter::at(&self.segment, self.segment.map().exchange_counter(rank))
    }

    /// Publishes this rank's call and the offset of its memory.
    ///
    /// `shares` is a hash of the lengths by rank, on which ranks must agree as well.
    pub(crate) fn publish_call(&mut self, step: &Step, lengths_hash: u64, buffer_offset: u64) {
        self.call_count += 1;
        self.header = encode_call_header(step.call, lengths_hash);
        let slot = self.segment.map().call_header(self.me, self.call_count);
        self.write_header(slot, &self.header);
        self.segment
            .atomic_u64(slot + MESSAGES_WORD_OFFSET)
            .store(self.unreceived_messages, Ordering::Relaxed);
        self.segment.atomic_u64(slot + BUFFER_WORD_OFFSET).store(buffer_offset, Ordering::Relaxed);
    }

    /// The published header of this rank.
    pub(crate) fn own_header(&self) -> [u64; HEADER_WORDS] {
        self.header
    }

    /// Offset of a rank's memory, after it has published this call.
    pub(crate) fn buffer_offset(&self, rank: usize) -> u64 {
        let slot = self.segment.map().call_header(rank, self.call_count);
        self.segment.atomic_u64(slot + BUFFER_WORD_OFFSET).load(Ordering::Relaxed)
    }

    /// The first exchange of a call: waits for all ranks and compares their calls.
    pub(crate) fn begin_call(&mut self, step: &Step) -> Result<(), GroupFailure> {
        self.advance_counter();
        self.wait_for_exchange(step, true)?;
        let slot = |rank| self.segment.map().call_header(rank, self.call_count);
        let messages =
            |rank| self.segment.atomic_u64(slot(rank) + MESSAGES_WORD_OFFSET).load(Ordering::Relaxed);
        let unreceived = (0..self.world).fold(0u64, |sum, rank| sum.wrapping_add(messages(rank)));
        if unreceived == 0 { Ok(()) } else { self.find_unreceived_message(step) }
    }

    /// Waits for all ranks: what each has written before is visible to all afterwards.
    pub(crate) fn sync(&mut self, step: &Step) -> Result<(), GroupFailure> {
        self.advance_counter();
        self.wait_for_exchange(step, false)
    }

    /// The last exchange of a call in which ranks have read each other's own memory. A rank that gave
    /// up earlier may have written to its memory although it has advanced its counter, so the copies
    /// are not used after a failure.
    pub(crate) fn finish_call(&mut self, step: &Step) -> Result<(), GroupFailure> {
        self.sync(step)?;
        self.failure(step).map_or(Ok(()), Err)
    }

    /// Advances this rank's counter without waiting for the others.
    pub(crate) fn advance_counter(&mut self) {
        self.exchange_count = self.exchange_count.wrapping_add(1);
        self.counter(self.me).set(self.exchange_count);
    }

    /// Waits until all ranks have reached this exchange.
    pub(crate) fn wait_for_all(&self, step: &Step) -> Result<(), GroupFailure> {
        self.wait_for_exchange(step, false)
    }

    fn wait_for_exchange(&self, step: &Step, is_first: bool) -> Result<(), GroupFailure> {
        for distance in 1..self.world {
            let rank = (self.me + distance) % self.world;
            self.spin.wait(self.counter(rank), self.exchange_count, |slept| {
                self.check_all_ranks(step, is_first, slept)
            })?;
            if is_first
                && self.read_header(self.segment.map().call_header(rank, self.call_count)) != self.header
            {
                return Err(self.report_first_mismatch(step));
            }
        }
        self.clear_wait();
        Ok(())
    }

    /// Whether waiting for all ranks is in vain.
    fn check_all_ranks(&self, step: &Step, is_first: bool, has_slept: bool) -> Result<(), GroupFailure> {
        let is_here = |rank: usize| self.counter(rank).has_reached(self.exchange_count);
        let slot = |rank| self.segment.map().call_header(rank, self.call_count);
        let differs = |rank: usize| is_here(rank) && self.read_header(slot(rank)) != self.header;
        if is_first && (0..self.world).any(differs) {
            return Err(self.report_first_mismatch(step));
        }
        let wait = PendingWait {
            wait_target: WaitTarget::Turns,
            header: self.header,
            target_value: self.exchange_count,
        };
        self.check_missing_ranks(step, has_slept.then_some(&wait), |rank| !is_here(rank))
    }

    /// Whether waiting for the ranks that are `missing` is in vain. A rank that has slept also asks
    /// the kernel, and publishes its wait.
    pub(crate) fn check_missing_ranks(
        &self,
        step: &Step,
        published_wait: Option<&PendingWait>,
        is_missing: impl Fn(usize) -> bool,
    ) -> Result<(), GroupFailure> {
        if let Some(failure) = self.failure(step) {
            return Err(failure);
        }
        for rank in (0..self.world).filter(|&rank| is_missing(rank)) {
            let Some(cause) = self.loss_cause(rank, published_wait.is_some()) else { continue };
            // It may have arrived just before it ended.
            if is_missing(rank) {
                return Err(self.fail_group(step, FailureWord::Lost { rank, cause }));
            }
        }
        if let Some(wait) = published_wait {
            self.publish_wait(wait);
            self.find_mutual_wait(step, wait, &is_missing)?;
            if let Some(probe) = &mut *self.probe.borrow_mut() {
                probe.check(step)?;
            }
        }
        if clock::until(step.deadline).is_zero() {
            // A rank that waits for another host will soon name the rank it misses there.
            let is_late = clock::until(step.deadline + self.remote_wait_extra).is_zero();
            // Of the missing ranks, the one furthest behind delays the others too.
            let behind = |&rank: &usize| self.exchange_count.wrapping_sub(self.counter(rank).value());
            let blamed = |&rank: &usize| is_missing(rank) && (is_late || !self.is_waiting_remotely(rank));
            if let Some(rank) = (0..self.world).filter(blamed).rev().max_by_key(behind) {
                return Err(self
                    .fail_group(step, FailureWord::Lost { rank, cause: LossCause::Timeout(step.timeout) }));
            }
        }
        Ok(())
    }

    /// Ends the group since two ranks make different calls: names the lowest two of the arrived ranks.
    fn report_first_mismatch(&self, step: &Step) -> GroupFailure {
        let header = |rank| self.read_header(self.segment.map().call_header(rank, self.call_count));
        let mut here = (0..self.world).filter(|&rank| self.counter(rank).has_reached(self.exchange_count));
        let first = here.next().unwrap_or(self.me);
        let second = here.find(|&rank| header(rank) != header(first)).unwrap_or(self.me);
        self.report_mismatch(step, [first, second], [header(first), header(second)])
    }

    /// Ends the group since two ranks make different calls.
    pub(crate) fn report_mismatch(
        &self,
        step: &Step,
        [first, second]: [usize; 2],
        headers: [[u64; HEADER_WORDS]; 2],
    ) -> GroupFailure {
        let evidence = self.segment.map().mismatch_headers(self.me);
        for (number, header) in headers.iter().enumerate() {
            self.write_header(evidence + number * HEADER_WORDS * 8, header);
        }
        self.fail_group(step, FailureWord::Mismatch { reporter: self.me, first, second })
    }

    /// Writes this failure, unless another one is there; returns the group's failure.
    pub(crate) fn fail_group(&self, step: &Step, word: FailureWord) -> GroupFailure {
        let abort = watch::failure_word(&self.segment);
        let is_first = abort.compare_exchange(0, word.encode(), Ordering::SeqCst, Ordering::SeqCst).is_ok();
        (0..self.world).for_each(|rank| self.counter(rank).wake());
        match word {
            FailureWord::Lost { rank, cause } if is_first => {
                GroupFailure::Lost { rank: self.group_ranks[rank], cause }
            }
            word => self.failure(step).unwrap_or_else(|| self.to_group_failure(step, word)),
        }
    }

    /// The failure of the group, if there is one.
    pub(crate) fn failure(&self, step: &Step) -> Option<GroupFailure> {
        match watch::failure_word(&self.segment).load(Ordering::SeqCst) {
            0 => None,
            word => Some(self.to_group_failure(step, FailureWord::decode(word, self.world)?)),
        }
    }

    fn to_group_failure(&self, step: &Step, word: FailureWord) -> GroupFailure {
        match word {
            FailureWord::Lost { rank, cause: LossCause::Timeout(_) } => {
                GroupFailure::Lost { rank: self.group_ranks[rank], cause: LossCause::Reported }
            }
            FailureWord::Lost { rank, cause } => GroupFailure::Lost { rank: self.group_ranks[rank], cause },
            FailureWord::Mismatch { reporter: noticed_by, first, second } => {
                let evidence = self.segment.map().mismatch_headers(noticed_by);
                let call = |number| {
                    decode_call_header(&self.read_header(evidence + number * HEADER_WORDS * 8))
                        .map(|header| header.call)
                };
                let [one, other] = [0, 1].map(|number| call(number).map(Box::new));
                let own = |call: Option<Box<Call>>| call.unwrap_or_else(|| Box::new(step.call));
                let [first, second] = [first, second].map(|rank| self.group_ranks[rank]);
                match self.group_ranks[self.me] {
                    me if me == first => {
                        GroupFailure::Mismatch { rank: second, other_call: other, own_call: own(one) }
                    }
                    me if me == second => {
                        GroupFailure::Mismatch { rank: first, other_call: one, own_call: own(other) }
                    }
                    _ => GroupFailure::Disagreed {
                        rank: second,
                        call: own(other),
                        other_rank: first,
                        other_call: one,
                    },
                }
            }
        }
    }

    pub(crate) fn write_header(&self, at: usize, header: &[u64; HEADER_WORDS]) {
        for (index, &word) in header.iter().enumerate() {
            self.segment.atomic_u64(at + index * 8).store(word, Ordering::Relaxed);
        }
    }

    pub(crate) fn read_header(&self, at: usize) -> [u64; HEADER_WORDS] {
        std::array::from_fn(|index| self.segment.atomic_u64(at + index * 8).load(Ordering::Relaxed))
    }
}

/// The header of a call as it lies in shared memory.
pub(crate) fn encode_call_header(call: Call, lengths_hash: u64) -> [u64; HEADER_WORDS] {
    let bytes =
        Header { call, step: 0, length: lengths_hash, previous_call: None, latest_sequence: 0 }.encode();
    std::array::from_fn(|index| u64::from_le_bytes(std::array::from_fn(|byte| bytes[index * 8 + byte])))
}

fn decode_call_header(words: &[u64; HEADER_WORDS]) -> Option<Header> {
    let word = |index: usize| words.get(index / 8).copied().unwrap_or(0);
    Header::decode(&std::array::from_fn::<u8, HEADER_LEN, _>(|index| word(index).to_le_bytes()[index % 8]))
}

pub(super) fn rank_from_index(index: usize) -> Rank {
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
    fn two_members() -> ([Member; 2], Step) {
        let segment = Arc::new(Segment::create(WorldSize::new(2).unwrap()).unwrap());
        let members = [0, 1].map(|rank| Member::new(Arc::clone(&segment), rank));
        members.iter().for_each(|member| member.set_state(RankState::Here));
        let call = Call {
            operation: Operation::Barrier,
            data_type: DataType::None,
            reduce_op: None,
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
    fn exchange_completed_by_gone_rank_still_counts() {
        let ([mut one, mut other], step) = two_members();
        other.advance_counter();
        other.set_state(RankState::Gone);
        assert_eq!(one.sync(&step), Ok(()));
        assert_eq!(one.sync(&step), lost_rank(1, LossCause::Closed));
    }

    #[test]
    fn finish_call_fails_after_another_rank_times_out() {
        let ([mut one, mut other], step) = two_members();
        other.advance_counter();
        drop(other.fail_group(&step, FailureWord::Lost { rank: 0, cause: LossCause::Timeout(step.timeout) }));
        assert_eq!(one.finish_call(&step), lost_rank(0, LossCause::Reported));
    }

    #[test]
    fn finish_call_fails_after_another_rank_closes() {
        let ([mut one, mut other], step) = two_members();
        other.advance_counter();
        Shm::new(other).close();
        assert_eq!(one.finish_call(&step), lost_rank(1, LossCause::Closed));
    }

    #[test]
    fn first_failure_written_is_returned_to_all_ranks() {
        let ([one, other], step) = two_members();
        let first = one.fail_group(&step, FailureWord::Lost { rank: 1, cause: LossCause::Left });
        let second = other.fail_group(&step, FailureWord::Lost { rank: 0, cause: LossCause::Closed });
        assert_eq!(
            (first, second.clone()),
            (second, GroupFailure::Lost { rank: Rank(1), cause: LossCause::Left })
        );
    }

    #[test]
    fn remote_wait_is_reported_lost_only_after_extra_time() {
        let ([mut one, other], step) = two_members();
        let step = Step { deadline: clock::after(Duration::ZERO), ..step };
        other.set_waiting_remotely(true);
        one.remote_wait_extra = Duration::from_secs(60);
        one.advance_counter();
        assert_eq!(one.check_missing_ranks(&step, None, |rank| rank == 1), Ok(()));
        one.remote_wait_extra = Duration::ZERO;
        assert_eq!(
            one.check_missing_ranks(&step, None, |rank| rank == 1),
            lost_rank(1, LossCause::Timeout(step.timeout))
        );
    }

    #[test]
    fn deadline_passed_names_missing_rank() {
        let ([mut one, _], step) = two_members();
        let step = Step { deadline: clock::after(Duration::ZERO), ..step };
        assert_eq!(one.sync(&step), lost_rank(1, LossCause::Timeout(step.timeout)));
    }
}
