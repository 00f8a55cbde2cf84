//! The transport through memory that the ranks of one host share.
//!
//! - `map.rs` is the layout, `segment.rs` owns the memory, `handover/` passes it from rank 0 to the others.
//! - `wait.rs` waits for counters, `watch.rs` has the state and failure words, `pending.rs` the published waits, `member.rs` is one rank's part in an exchange.
//! - `arena.rs` allocates buffers. `relay.rs` and `calls.rs`, `reduction.rs` and `pair.rs` are the calls; `parts.rs` is for the calls of [`mixed`](super::mixed).

mod arena;
mod bytes;
mod calls;
mod error;
mod handover;
mod map;
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
pub(crate) use handover::join;
pub(crate) use map::MAX_RANKS;
pub(crate) use segment::is_permitted;

use arena::Arena;
use bytes::Span;
use map::STAGE;
use member::{FOREIGN, Member};
use pair::Pairs;
use watch::{FailureWord, RankState};

use super::buffer::Memory;
use super::collective::HostCollective;
use super::error::{GroupFailure, LossCause};
use super::transport::{Step, Transport, TransportProbe};

/// Up to this many bytes every rank reduces for itself, which is quicker than another exchange.
const SMALL: usize = 2048;
/// Up to this many bytes go through slots even from an arena, which is quicker than the exchange
/// before the owner may write again.
const FEW: usize = 256 * 1024;

/// A rank of a group that shares memory.
#[derive(Debug)]
pub(crate) struct Shm {
    member: Member,
    arena: Option<Arena>,
    pairs: Pairs,
    /// Pieces that have passed this rank's slots.
    pieces: u64,
}

impl Shm {
    fn new(member: Member) -> Self {
        let pairs = Pairs::new(member.world);
        Self { member, arena: None, pairs, pieces: 0 }
    }

    /// Connects this transport with another one: gives the ranks their numbers in the whole group, checks
    /// `outlook` while this rank waits here, and returns the check for a rank that waits there.
    pub(crate) fn open_to(
        &mut self,
        names: &[Rank],
        probe: Box<dyn TransportProbe>,
    ) -> Box<dyn TransportProbe> {
        let mut beside = Member::new(Arc::clone(&self.member.segment), self.member.me);
        self.member.names = names.to_vec();
        beside.names = names.to_vec();
        self.member.probe.replace(Some(probe));
        Box::new(HostProbe(beside))
    }

    /// Sets the additional time for ranks that wait for other hosts.
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.member.patience = patience;
    }

    /// Publishes whether this rank waits for ranks of other hosts.
    pub(crate) fn set_away(&self, is_away: bool) {
        self.member.set_away(is_away);
    }

    /// From now on buffers lie in this rank's arena, if all ranks have mapped all arenas.
    fn open_arena(&mut self, all_have_arenas: bool) {
        self.arena = all_have_arenas.then(|| Arena::new(self.member.segment.clone(), self.member.me));
    }

    /// The staging slot of a rank for a piece of this call.
    fn slot(&self, rank: usize, number: usize) -> *mut u8 {
        let segment = &self.member.segment;
        segment.at(segment.map().stage(rank, self.pieces + number as u64), STAGE)
    }

    /// The offset at which other ranks find memory of this rank.
    fn place(&self, memory: Span) -> u64 {
        let arena = self.arena.as_ref().filter(|_| memory.bytes > FEW);
        arena.and_then(|arena| arena.place(memory)).unwrap_or(FOREIGN)
    }

    /// The address of a rank's memory of this call, if it lies in its arena.
    fn arena_of(&self, step: &Step, rank: usize, bytes: usize) -> Result<Option<*const u8>, GroupFailure> {
        let place = self.member.place(rank);
        if place == FOREIGN {
            return Ok(None);
        }
        let arena = self.member.segment.map().arena(rank);
        let start = usize::try_from(place).ok().filter(|start| arena.contains(start));
        match start.filter(|start| self.arena.is_some() && bytes <= arena.end - start) {
            Some(start) => Ok(Some(self.member.segment.at(start, bytes).cast_const())),
            // A rank of this version never writes such an offset.
            None => {
                let ours = Box::new(step.call);
                Err(GroupFailure::Mismatch { rank: self.member.names[rank], theirs: None, ours })
            }
        }
    }
}

impl Transport for Shm {
    fn run(&mut self, step: &Step, work: HostCollective<'_>) -> Result<(), GroupFailure> {
        let size = step.call.data_type.size();
        let lengths = |counts: &[usize]| counts.iter().map(|count| count * size).collect::<Vec<_>>();
        match work {
            HostCollective::Barrier => self.barrier(step),
            HostCollective::Broadcast { data, root } => self.broadcast(step, data, root.index()),
            HostCollective::AllReduce { data, op } => self.all_reduce(step, data, (op, None)),
            HostCollective::Reduce { data, op, root } => {
                self.all_reduce(step, data, (op, Some(root.index())))
            }
            HostCollective::ReduceScatter { input, output, op } => {
                self.reduce_scatter(step, (input, output), op)
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
        self.go(RankState::Left);
    }

    fn close(&mut self) {
        let member = &self.member;
        if member.segment.is_ours() {
            // Whatever ended the group: from now on the program may write to memory that others read in this
            // call.
            let word = FailureWord::Lost { rank: member.me, cause: LossCause::Closed }.encode();
            let _ =
                watch::abort(&member.segment).compare_exchange(0, word, Ordering::SeqCst, Ordering::SeqCst);
        }
        self.go(RankState::Gone);
    }
}

/// Checks the ranks of this host while this rank waits for other hosts.
#[derive(Debug)]
struct HostProbe(Member);

impl TransportProbe for HostProbe {
    fn look(&mut self, step: &Step) -> Result<(), GroupFailure> {
        self.0.check_host(step)
    }
}

impl Shm {
    /// Publishes that this rank takes no part any more, once.
    fn go(&self, op: RankState) {
        if self.member.segment.is_ours() && self.member.state(self.member.me) == RankState::Here {
            self.member.set_state(op);
        }
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        self.go(RankState::Gone);
    }
}

#[cfg(test)]
mod tests;
