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
pub(crate) use segment::can_create_segment;

use arena::Arena;
use bytes::Span;
use map::STAGING_SLOT_BYTES;
use member::{Member, NOT_IN_SEGMENT};
use pair::Pairs;
use watch::{FailureWord, RankState};

use super::buffer::Memory;
use super::collective::HostCollective;
use super::error::{GroupFailure, LossCause};
use super::transport::{Step, Transport, TransportProbe};

/// Up to this many bytes every rank reduces for itself, which is quicker than another exchange.
const MAX_LOCAL_REDUCE_BYTES: usize = 2048;
/// Up to this many bytes go through slots even from an arena, which is quicker than the exchange
/// before the owner may write again.
const MAX_STAGED_BYTES: usize = 256 * 1024;

/// A rank of a group that shares memory.
#[derive(Debug)]
pub(crate) struct Shm {
    member: Member,
    arena: Option<Arena>,
    pairs: Pairs,
    /// Pieces that have passed this rank's slots.
    pieces_passed: u64,
}

impl Shm {
    fn new(member: Member) -> Self {
        let pairs = Pairs::new(member.world);
        Self { member, arena: None, pairs, pieces_passed: 0 }
    }

    /// Connects this transport with another one: gives the ranks their numbers in the whole group, checks
    /// `outlook` while this rank waits here, and returns the check for a rank that waits there.
    pub(crate) fn attach_to(
        &mut self,
        group_ranks: &[Rank],
        probe: Box<dyn TransportProbe>,
    ) -> Box<dyn TransportProbe> {
        let mut probe_member = Member::new(Arc::clone(&self.member.segment), self.member.me);
        self.member.group_ranks = group_ranks.to_vec();
        probe_member.group_ranks = group_ranks.to_vec();
        self.member.probe.replace(Some(probe));
        Box::new(HostProbe(probe_member))
    }

    /// Sets the additional time for ranks that wait for other hosts.
    pub(crate) fn set_remote_wait_extra(&mut self, extra: Duration) {
        self.member.remote_wait_extra = extra;
    }

    /// Publishes whether this rank waits for ranks of other hosts.
    pub(crate) fn set_waiting_remotely(&self, is_waiting: bool) {
        self.member.set_waiting_remotely(is_waiting);
    }

    /// From now on buffers lie in this rank's arena, if all ranks have mapped all arenas.
    fn open_arena(&mut self, all_have_arenas: bool) {
        self.arena = all_have_arenas.then(|| Arena::new(self.member.segment.clone(), self.member.me));
    }

    /// The staging slot of a rank for a piece of this call.
    fn staging_slot(&self, rank: usize, number: usize) -> *mut u8 {
        let segment = &self.member.segment;
        segment
            .ptr_at(segment.map().staging_slot(rank, self.pieces_passed + number as u64), STAGING_SLOT_BYTES)
    }

    /// The offset at which other ranks find memory of this rank.
    fn buffer_offset(&self, memory: Span) -> u64 {
        let arena = self.arena.as_ref().filter(|_| memory.bytes > MAX_STAGED_BYTES);
        arena.and_then(|arena| arena.segment_offset(memory)).unwrap_or(NOT_IN_SEGMENT)
    }

    /// The address of a rank's memory of this call, if it lies in its arena.
    fn arena_buffer(
        &self,
        step: &Step,
        rank: usize,
        bytes: usize,
    ) -> Result<Option<*const u8>, GroupFailure> {
        let place = self.member.buffer_offset(rank);
        if place == NOT_IN_SEGMENT {
            return Ok(None);
        }
        let arena = self.member.segment.map().arena(rank);
        let start = usize::try_from(place).ok().filter(|start| arena.contains(start));
        match start.filter(|start| self.arena.is_some() && bytes <= arena.end - start) {
            Some(start) => Ok(Some(self.member.segment.ptr_at(start, bytes).cast_const())),
            // A rank of this version never writes such an offset.
            None => {
                let own_call = Box::new(step.call);
                Err(GroupFailure::Mismatch {
                    rank: self.member.group_ranks[rank],
                    other_call: None,
                    own_call,
                })
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
        self.publish_exit(RankState::Left);
    }

    fn close(&mut self) {
        let member = &self.member;
        if member.segment.is_owner_process() {
            // Whatever ended the group: from now on the program may write to memory that others read in this
            // call.
            let word = FailureWord::Lost { rank: member.me, cause: LossCause::Closed }.encode();
            let _ = watch::failure_word(&member.segment).compare_exchange(
                0,
                word,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
        }
        self.publish_exit(RankState::Gone);
    }
}

/// Checks the ranks of this host while this rank waits for other hosts.
#[derive(Debug)]
struct HostProbe(Member);

impl TransportProbe for HostProbe {
    fn check(&mut self, step: &Step) -> Result<(), GroupFailure> {
        self.0.check_host(step)
    }
}

impl Shm {
    /// Publishes that this rank takes no part any more, once.
    fn publish_exit(&self, state: RankState) {
        if self.member.segment.is_owner_process() && self.member.state(self.member.me) == RankState::Here {
            self.member.set_state(state);
        }
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        self.publish_exit(RankState::Gone);
    }
}

#[cfg(test)]
mod tests;
