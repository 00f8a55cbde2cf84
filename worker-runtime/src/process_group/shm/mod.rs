//! Calls through memory that ranks of one host share.
//!
//! - `map.rs` says where everything lies, `segment.rs` has the memory, `meeting.rs` passes it from rank 0 to the others.
//! - `wait.rs` waits for counters, `watch.rs` has the words that say who is here and how the group ended, `pending.rs`
//!   those that say who waits for what, `member.rs` is one rank's part in an exchange.
//! - `arena.rs` gives memory to buffers. `relay.rs` and `calls.rs`, `reduction.rs` and `pair.rs` are the calls, `parts.rs` what calls
//!   among hosts need.

mod arena;
mod bytes;
mod calls;
mod error;
mod map;
mod meeting;
mod member;
mod pair;
mod parts;
mod pending;
mod reduction;
mod relay;
mod segment;
mod wait;
mod watch;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rankrun_contract::rank::Rank;

pub use error::SegmentError;
pub(crate) use map::MAX_RANKS;
pub(crate) use meeting::join;
pub(crate) use segment::is_permitted;

use arena::Arena;
use bytes::Span;
use map::STAGE;
use member::{FOREIGN, Member};
use pair::Pairs;
use watch::{State, Word};

use super::buffer::Memory;
use super::collective::HostCollective;
use super::error::{Ending, LossCause};
use super::transport::{Outlook, Step, Transport};

/// Up to so many bytes every rank reduces for itself: that is quicker than another meeting.
const SMALL: usize = 2048;
/// Up to so many bytes go through slots even from an arena: that, too, is quicker than the meeting after which their owner may write
/// to them again.
const FEW: usize = 256 * 1024;

/// A rank of a group that shares memory.
#[derive(Debug)]
pub(crate) struct Shm {
    member: Member,
    arena: Option<Arena>,
    pairs: Pairs,
    /// Pieces that went through this rank's slots.
    pieces: u64,
}

impl Shm {
    fn new(member: Member) -> Self {
        let pairs = Pairs::new(member.world);
        Self { member, arena: None, pairs, pieces: 0 }
    }

    /// Gives the ranks other names, and has this one look there, too, while it waits for them; what it has to look at while it waits
    /// for others.
    pub(crate) fn open_to(&mut self, names: &[Rank], outlook: Box<dyn Outlook>) -> Box<dyn Outlook> {
        let mut beside = Member::new(Arc::clone(&self.member.segment), self.member.me);
        self.member.names = names.to_vec();
        beside.names = names.to_vec();
        self.member.outlook.replace(Some(outlook));
        Box::new(Beside(beside))
    }

    /// How much longer than for others this rank waits for those that are away.
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.member.patience = patience;
    }

    /// Says whether this rank waits for ranks of other hosts.
    pub(crate) fn set_away(&self, is_away: bool) {
        self.member.set_away(is_away);
    }

    /// Buffers lie in this rank's arena from now on, where all ranks have mapped all arenas.
    fn open_arena(&mut self, all_have_arenas: bool) {
        self.arena = all_have_arenas.then(|| Arena::new(self.member.segment.clone(), self.member.me));
    }

    /// A rank's slot for a piece of this call.
    fn slot(&self, rank: usize, number: usize) -> *mut u8 {
        let segment = &self.member.segment;
        segment.at(segment.map().stage(rank, self.pieces + number as u64), STAGE)
    }

    /// Where the others find memory of this rank.
    fn place(&self, memory: Span) -> u64 {
        let arena = self.arena.as_ref().filter(|_| memory.bytes > FEW);
        arena.and_then(|arena| arena.place(memory)).unwrap_or(FOREIGN)
    }

    /// Where a rank's memory of this call lies in its arena, if it does.
    fn arena_of(&self, step: &Step, rank: usize, bytes: usize) -> Result<Option<*const u8>, Ending> {
        let place = self.member.place(rank);
        if place == FOREIGN {
            return Ok(None);
        }
        let arena = self.member.segment.map().arena(rank);
        let start = usize::try_from(place).ok().filter(|start| arena.contains(start));
        match start.filter(|start| self.arena.is_some() && bytes <= arena.end - start) {
            Some(start) => Ok(Some(self.member.segment.at(start, bytes).cast_const())),
            // It is not what a rank of this version writes.
            None => {
                let ours = Box::new(step.call);
                Err(Ending::Mismatch { rank: self.member.names[rank], theirs: None, ours })
            }
        }
    }
}

impl Transport for Shm {
    fn run(&mut self, step: &Step, work: HostCollective<'_>) -> Result<(), Ending> {
        let size = step.call.data_type.size();
        let lengths = |counts: &[usize]| counts.iter().map(|count| count * size).collect::<Vec<_>>();
        match work {
            HostCollective::Barrier => self.barrier(step),
            HostCollective::Broadcast { data, root } => self.broadcast(step, data, root.index()),
            HostCollective::AllReduce { data, how } => self.all_reduce(step, data, (how, None)),
            HostCollective::Reduce { data, how, root } => {
                self.all_reduce(step, data, (how, Some(root.index())))
            }
            HostCollective::ReduceScatter { input, output, how } => {
                self.reduce_scatter(step, (input, output), how)
            }
            HostCollective::AllGather { input, output } => self.all_gather(step, input, output),
            HostCollective::Gather { input, output, counts, .. } => {
                self.gather(step, (input, output), &lengths(counts))
            }
            HostCollective::Scatter { input, output, counts, root } => {
                self.scatter(step, (input, output), (&lengths(counts), root.index()))
            }
            HostCollective::Send { data, to } => self.send(step, data, to.index()),
            HostCollective::Receive { data, from } => self.receive(step, data, from.index()),
        }
    }

    fn allocate(&mut self, bytes: usize) -> Option<Memory> {
        self.arena.as_ref()?.allocate(bytes)
    }

    fn leave(&mut self) {
        self.go(State::Left);
    }

    fn close(&mut self) {
        let member = &self.member;
        if member.segment.is_ours() {
            // Whatever has ended the group: from now on the program may write to memory that the others read in this call.
            let word = Word::Lost { rank: member.me, cause: LossCause::Closed }.encode();
            let _ =
                watch::abort(&member.segment).compare_exchange(0, word, Ordering::SeqCst, Ordering::SeqCst);
        }
        self.go(State::Gone);
    }
}

/// What is to be seen of the ranks of this host while one of them waits for others.
#[derive(Debug)]
struct Beside(Member);

impl Outlook for Beside {
    fn look(&mut self, step: &Step) -> Result<(), Ending> {
        self.0.look_around(step)
    }
}

impl Shm {
    /// Says that this rank takes no part any more, unless it has said so before.
    fn go(&self, how: State) {
        if self.member.segment.is_ours() && self.member.state(self.member.me) == State::Here {
            self.member.set_state(how);
        }
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        self.go(State::Gone);
    }
}

#[cfg(test)]
mod tests;
