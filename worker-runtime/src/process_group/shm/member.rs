//! One rank's part in the exchanges of a group: it says what it calls, takes its turn, and waits for the others' turns.
//!
//! Every rank counts the exchanges that it took part in; since all ranks make the same calls, the counters keep step. A rank that
//! waits looks now and then whether the group has ended, whether a rank that it needs is gone, and at the clock.
//! The first rank that notices an ending writes it into one word of the head, and what is there is what all ranks report.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rankrun_contract::rank::Rank;

use super::pending::{Wait, What};
use super::segment::Segment;
use super::wait::{Counter, Spin};
use super::watch::{self, Word};
use crate::clock;
use crate::process_group::error::{Ending, LossCause};
use crate::process_group::message::{Call, HEADER_LEN, Header};
use crate::process_group::transport::{Outlook, Step};

/// Says that a call's memory does not lie in the segment.
pub(crate) const FOREIGN: u64 = u64::MAX;

/// Words of a header; the call before, which follows, is the same on all ranks here.
pub(crate) const WORDS: usize = 5;
/// Where a rank says how many messages it has sent more than received, and where its memory is, after the header of its call.
const MESSAGES: usize = WORDS * 8;
const PLACE: usize = MESSAGES + 8;

/// A rank of a group that shares memory.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) segment: Arc<Segment>,
    pub(crate) me: usize,
    pub(crate) world: usize,
    pub(crate) spin: Spin,
    /// Exchanges that this rank took part in.
    turn: u32,
    /// Calls of the whole group so far.
    calls: u64,
    /// What this rank calls, as all must call it.
    header: [u64; WORDS],
    /// Messages that this rank has sent, less those that it has received; it wraps around.
    pub(crate) messages: u64,
    /// Whether the others know for what this rank waits.
    pub(crate) is_waiting: Cell<bool>,
    /// How much longer than for the others it waits for ranks that wait for other hosts.
    pub(crate) patience: Duration,
    /// How the ranks are named in messages.
    pub(crate) names: Vec<Rank>,
    /// What else this rank asks while it waits.
    pub(crate) outlook: RefCell<Option<Box<dyn Outlook>>>,
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
            outlook: RefCell::new(None),
        }
    }

    /// As if this rank had taken so many turns already.
    #[cfg(test)]
    pub(crate) fn start_at(&mut self, turn: u32) {
        self.turn = turn;
        self.counter(self.me).set(turn);
    }

    pub(crate) fn counter(&self, rank: usize) -> Counter<'_> {
        Counter::at(&self.segment, self.segment.map().turn(rank))
    }

    /// Says what this rank calls, and where the others find its memory.
    ///
    /// `shares` stand for what each rank gives or takes, where ranks must agree on that.
    pub(crate) fn announce(&mut self, step: &Step, shares: u64, place: u64) {
        self.calls += 1;
        self.header = words(step.call, shares);
        let slot = self.segment.map().call(self.me, self.calls);
        self.write_header(slot, &self.header);
        self.segment.word64(slot + MESSAGES).store(self.messages, Ordering::Relaxed);
        self.segment.word64(slot + PLACE).store(place, Ordering::Relaxed);
    }

    /// What this rank calls.
    pub(crate) fn own_header(&self) -> [u64; WORDS] {
        self.header
    }

    /// Where a rank's memory lies, once it has made this call.
    pub(crate) fn place(&self, rank: usize) -> u64 {
        let slot = self.segment.map().call(rank, self.calls);
        self.segment.word64(slot + PLACE).load(Ordering::Relaxed)
    }

    /// Meets all ranks for the first time in a call: they make the same one.
    pub(crate) fn meet(&mut self, step: &Step) -> Result<(), Ending> {
        self.arrive();
        self.wait_for_turns(step, true)?;
        let slot = |rank| self.segment.map().call(rank, self.calls);
        let messages = |rank| self.segment.word64(slot(rank) + MESSAGES).load(Ordering::Relaxed);
        let unreceived = (0..self.world).fold(0u64, |sum, rank| sum.wrapping_add(messages(rank)));
        if unreceived == 0 { Ok(()) } else { self.find_unreceived(step) }
    }

    /// Meets all ranks: what each has written before is seen by all afterwards.
    pub(crate) fn sync(&mut self, step: &Step) -> Result<(), Ending> {
        self.arrive();
        self.wait_for_turns(step, false)
    }

    /// Meets all ranks at the end of a call in which they have read each other's own memory. A rank that gave up before its end may
    /// have written to its memory already, although it has taken this turn: what was read of it is not believed.
    pub(crate) fn part(&mut self, step: &Step) -> Result<(), Ending> {
        self.sync(step)?;
        self.ending(step).map_or(Ok(()), Err)
    }

    /// Takes this rank's turn, without waiting for the others.
    pub(crate) fn arrive(&mut self) {
        self.turn = self.turn.wrapping_add(1);
        self.counter(self.me).set(self.turn);
    }

    /// Waits until all ranks have taken this turn.
    pub(crate) fn wait_for_all(&self, step: &Step) -> Result<(), Ending> {
        self.wait_for_turns(step, false)
    }

    fn wait_for_turns(&self, step: &Step, is_first: bool) -> Result<(), Ending> {
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

    /// Whether there is a reason to wait no longer for all ranks' turns.
    fn look(&self, step: &Step, is_first: bool, slept: bool) -> Result<(), Ending> {
        let is_here = |rank: usize| self.counter(rank).has_reached(self.turn);
        let slot = |rank| self.segment.map().call(rank, self.calls);
        let differs = |rank: usize| is_here(rank) && self.read_header(slot(rank)) != self.header;
        if is_first && (0..self.world).any(differs) {
            return Err(self.differ(step));
        }
        let wait = Wait { what: What::Turns, header: self.header, target: self.turn };
        self.look_for(step, slept.then_some(&wait), |rank| !is_here(rank))
    }

    /// Whether there is a reason to wait no longer for the ranks that are `missing`. Who has slept asks the kernel, too, and tells the
    /// others for what it waits.
    pub(crate) fn look_for(
        &self,
        step: &Step,
        slept: Option<&Wait>,
        missing: impl Fn(usize) -> bool,
    ) -> Result<(), Ending> {
        if let Some(ending) = self.ending(step) {
            return Err(ending);
        }
        for rank in (0..self.world).filter(|&rank| missing(rank)) {
            let Some(cause) = self.gone(rank, slept.is_some()) else { continue };
            // It may have done its part just before it went.
            if missing(rank) {
                return Err(self.end(step, Word::Lost { rank, cause }));
            }
        }
        if let Some(wait) = slept {
            self.tell(wait);
            self.find_mutual(step, wait, &missing)?;
            if let Some(outlook) = &mut *self.outlook.borrow_mut() {
                outlook.look(step)?;
            }
        }
        if clock::until(step.deadline).is_zero() {
            // Who waits for another host is soon to say whom it misses there.
            let is_late = clock::until(step.deadline + self.patience).is_zero();
            // Of those who are missing, who is furthest behind keeps the others waiting, too.
            let behind = |&rank: &usize| self.turn.wrapping_sub(self.counter(rank).value());
            let blamed = |&rank: &usize| missing(rank) && (is_late || !self.is_away(rank));
            if let Some(rank) = (0..self.world).filter(blamed).rev().max_by_key(behind) {
                return Err(self.end(step, Word::Lost { rank, cause: LossCause::Timeout(step.timeout) }));
            }
        }
        Ok(())
    }

    /// Ends the group because of two ranks that make different calls: the lowest ones of those that are here.
    fn differ(&self, step: &Step) -> Ending {
        let header = |rank| self.read_header(self.segment.map().call(rank, self.calls));
        let mut here = (0..self.world).filter(|&rank| self.counter(rank).has_reached(self.turn));
        let first = here.next().unwrap_or(self.me);
        let second = here.find(|&rank| header(rank) != header(first)).unwrap_or(self.me);
        self.disagree(step, [first, second], [header(first), header(second)])
    }

    /// Ends the group because two ranks make different calls.
    pub(crate) fn disagree(
        &self,
        step: &Step,
        [first, second]: [usize; 2],
        headers: [[u64; WORDS]; 2],
    ) -> Ending {
        let evidence = self.segment.map().evidence(self.me);
        for (number, header) in headers.iter().enumerate() {
            self.write_header(evidence + number * WORDS * 8, header);
        }
        self.end(step, Word::Mismatch { noticed_by: self.me, first, second })
    }

    /// Ends the group in this way, unless it has ended already.
    pub(crate) fn end(&self, step: &Step, word: Word) -> Ending {
        let abort = watch::abort(&self.segment);
        let won = abort.compare_exchange(0, word.encode(), Ordering::SeqCst, Ordering::SeqCst).is_ok();
        (0..self.world).for_each(|rank| self.counter(rank).wake());
        match word {
            Word::Lost { rank, cause } if won => Ending::Lost { rank: self.names[rank], cause },
            word => self.ending(step).unwrap_or_else(|| self.read(step, word)),
        }
    }

    /// How the group has ended, if it has.
    pub(crate) fn ending(&self, step: &Step) -> Option<Ending> {
        match watch::abort(&self.segment).load(Ordering::SeqCst) {
            0 => None,
            word => Some(self.read(step, Word::decode(word, self.world)?)),
        }
    }

    fn read(&self, step: &Step, word: Word) -> Ending {
        match word {
            Word::Lost { rank, cause: LossCause::Timeout(_) } => {
                Ending::Lost { rank: self.names[rank], cause: LossCause::Reported }
            }
            Word::Lost { rank, cause } => Ending::Lost { rank: self.names[rank], cause },
            Word::Mismatch { noticed_by, first, second } => {
                let evidence = self.segment.map().evidence(noticed_by);
                let call =
                    |number| header(&self.read_header(evidence + number * WORDS * 8)).map(|it| it.call);
                let [one, other] = [0, 1].map(|number| call(number).map(Box::new));
                let own = |call: Option<Box<Call>>| call.unwrap_or_else(|| Box::new(step.call));
                let [first, second] = [first, second].map(|rank| self.names[rank]);
                match self.names[self.me] {
                    me if me == first => Ending::Mismatch { rank: second, theirs: other, ours: own(one) },
                    me if me == second => Ending::Mismatch { rank: first, theirs: one, ours: own(other) },
                    _ => Ending::Disagreed { rank: second, call: own(other), other: first, others: one },
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

fn rank_at(index: usize) -> Rank {
    Rank(u32::try_from(index).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_group::element::DataType;
    use crate::process_group::message::Operation;
    use crate::process_group::shm::Shm;
    use crate::process_group::shm::watch::State;
    use crate::process_group::transport::Transport;
    use rankrun_contract::rank::WorldSize;

    /// Two ranks that have come, and a call.
    fn two() -> ([Member; 2], Step) {
        let segment = Arc::new(Segment::create(WorldSize::new(2).unwrap()).unwrap());
        let members = [0, 1].map(|rank| Member::new(Arc::clone(&segment), rank));
        members.iter().for_each(|member| member.set_state(State::Here));
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

    fn lost(rank: u32, cause: LossCause) -> Result<(), Ending> {
        Err(Ending::Lost { rank: Rank(rank), cause })
    }

    #[test]
    fn a_turn_that_was_taken_counts_although_its_rank_is_gone() {
        let ([mut one, mut other], step) = two();
        other.arrive();
        other.set_state(State::Gone);
        assert_eq!(one.sync(&step), Ok(()));
        assert_eq!(one.sync(&step), lost(1, LossCause::Closed));
    }

    #[test]
    fn memory_of_a_rank_that_gave_up_at_the_end_of_a_call_is_not_believed() {
        let ([mut one, mut other], step) = two();
        other.arrive();
        drop(other.end(&step, Word::Lost { rank: 0, cause: LossCause::Timeout(step.timeout) }));
        assert_eq!(one.part(&step), lost(0, LossCause::Reported));
    }

    #[test]
    fn nor_is_that_of_a_rank_for_which_the_group_ended_elsewhere() {
        let ([mut one, mut other], step) = two();
        other.arrive();
        Shm::new(other).close();
        assert_eq!(one.part(&step), lost(1, LossCause::Closed));
    }

    #[test]
    fn the_first_ending_is_the_one_of_all() {
        let ([one, other], step) = two();
        let first = one.end(&step, Word::Lost { rank: 1, cause: LossCause::Left });
        let second = other.end(&step, Word::Lost { rank: 0, cause: LossCause::Closed });
        assert_eq!((first, second.clone()), (second, Ending::Lost { rank: Rank(1), cause: LossCause::Left }));
    }

    #[test]
    fn who_waits_for_another_host_is_named_only_when_it_says_nothing() {
        let ([mut one, other], step) = two();
        let step = Step { deadline: clock::after(Duration::ZERO), ..step };
        other.set_away(true);
        one.patience = Duration::from_secs(60);
        one.arrive();
        assert_eq!(one.look_for(&step, None, |rank| rank == 1), Ok(()));
        one.patience = Duration::ZERO;
        assert_eq!(one.look_for(&step, None, |rank| rank == 1), lost(1, LossCause::Timeout(step.timeout)));
    }

    #[test]
    fn a_rank_whose_time_is_over_names_who_is_missing() {
        let ([mut one, _], step) = two();
        let step = Step { deadline: clock::after(Duration::ZERO), ..step };
        assert_eq!(one.sync(&step), lost(1, LossCause::Timeout(step.timeout)));
    }
}
