//! Hands the shared segment over: rank 0 makes it, and passes it to every rank that knows the group's token.
//!
//! Rank 0 listens on an abstract socket whose name is in the store only. A connection must present the token,
//! its version and its rank. Any other connection is closed at its first wrong byte; an idle one delays no
//! other. A rank keeps its connection until all have arrived, so that the death of a rank without a place in
//! the segment is detected at once.

mod client;
mod host;

use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rankrun_contract::rank::Rank;

use self::client::SegmentClient;
use self::host::SegmentHost;
use super::Shm;
use super::error::SegmentError;
use super::map::{Map, STAGING_SLOT_BYTES, STAGING_SLOTS};
use super::member::Member;
use super::segment::{LAYOUT_VERSION, Segment};
use super::wait::Spin;
use super::watch::RankState;
use crate::process_group::element::DataType;
use crate::process_group::error::{GroupError, GroupFailure};
use crate::process_group::message::{Call, Operation};
use crate::process_group::rendezvous::{Membership, with_agreed_failure};
use crate::process_group::transport::Step;
use crate::store::TcpStore;

/// Store key of rank 0's address.
const ADDRESS_KEY: &str = "shared memory";
/// Start of its value if rank 0 failed to make the segment; the reason follows.
const FAILURE_PREFIX: &str = "nothing: ";
/// The most bytes of rank 0's reason that other ranks get.
const MAX_REASON_BYTES: usize = 512;

const TOKEN_LEN: usize = 36;
const GREETING: &[u8; 12] = b"rankrun shm\n";
const GREETING_LEN: usize = GREETING.len() + 4 + TOKEN_LEN + 8;
const ANSWER: &[u8; 8] = b"rankrun\n";
const ANSWER_LEN: usize = ANSWER.len() + 16;

/// Answer codes of rank 0 to a rank that knows the token.
const WELCOME: u32 = 0;
const OTHER_VERSION: u32 = 1;
const OTHER_USER: u32 = 2;

/// Shares memory with the other ranks of the group, which are all on this host. `store`
/// has keys of this group only.
pub(crate) fn join(store: &TcpStore, membership: &Membership) -> Result<Shm, GroupError> {
    connect_ranks(store, membership).map_err(|error| with_agreed_failure(store, membership, error))
}

fn connect_ranks(store: &TcpStore, membership: &Membership) -> Result<Shm, GroupError> {
    // All ranks see this error before one of them waits for another.
    Map::new(membership.world_size, 0)?;
    let call = Call {
        operation: Operation::Join,
        data_type: DataType::None,
        reduce_op: None,
        root: None,
        count: 0,
        sequence: 0,
    };
    let step = Step { call, deadline: membership.join_deadline, timeout: membership.timeout };
    let join_failed = |failure| join_error(membership, failure);
    let mut shm = if membership.rank == Rank(0) {
        let segment_result =
            Segment::create(membership.world_size).and_then(|segment| enter_segment(segment, membership));
        if let Err(error) = &segment_result {
            // The launcher may stop this rank before its own error is written, so the other ranks can say why.
            let reason = error.to_string();
            let reason = &reason[..reason.floor_char_boundary(MAX_REASON_BYTES)];
            drop(store.set(ADDRESS_KEY, format!("{FAILURE_PREFIX}{reason}").as_bytes()));
        }
        let mut shm = segment_result?;
        shm.member.advance_counter();
        SegmentHost::new(store, membership, &shm.member)?.wait_for_ranks(&step)?;
        // All have read it. Without the store there is nothing to delete.
        drop(store.delete_key(ADDRESS_KEY));
        shm.member.wait_for_all(&step).map_err(join_failed)?;
        shm
    } else {
        let client = SegmentClient::connect(store, membership, &step)?;
        let mut shm = enter_segment(client.segment, membership)?;
        shm.member.advance_counter();
        // Rank 0 may have closed the connection: it has all it needs.
        drop(send_no_sigpipe(&client.stream, b"."));
        shm.member.wait_for_all(&step).map_err(join_failed)?;
        shm
    };
    shm.finish_setup();
    Ok(shm)
}

/// Enters this rank into the segment.
fn enter_segment(segment: Segment, membership: &Membership) -> Result<Shm, SegmentError> {
    let rank = membership.rank.index();
    let map = *segment.map();
    segment.lock_rank(rank)?;
    segment.populate(map.staging_slots(rank), STAGING_SLOT_BYTES * STAGING_SLOTS as usize)?;
    let (high, low) = process_uuid().as_u64_pair();
    for (at, half) in [(0, high), (8, low)] {
        segment.atomic_u64(map.process_id(rank) + at).store(half, Ordering::Relaxed);
    }
    for (index, bits) in allowed_cpus().into_iter().enumerate() {
        segment.atomic_u64(map.cpu_set(rank) + index * 8).store(bits, Ordering::Relaxed);
    }
    segment
        .atomic_u32(map.arenas_mapped_flag(rank))
        .store(u32::from(segment.has_arenas()), Ordering::Relaxed);
    let member = Member::new(Arc::new(segment), rank);
    member.set_state(RankState::Here);
    Ok(Shm::new(member))
}

/// An id of this process; a fork has another one.
fn process_uuid() -> uuid::Uuid {
    use std::sync::OnceLock;
    static PROCESS: OnceLock<uuid::Uuid> = OnceLock::new();
    let pid = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    uuid::Uuid::from_u128(PROCESS.get_or_init(uuid::Uuid::new_v4).as_u128() ^ u128::from(pid))
}

/// The processors that this rank may use, one bit each; all bits if there are too many.
fn allowed_cpus() -> [u64; 16] {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return [u64::MAX; 16] };
    std::array::from_fn(|index| {
        (0..64).filter(|bit| set.is_set(index * 64 + bit)).fold(0, |bits, bit| bits | 1 << bit)
    })
}

impl Shm {
    /// Chooses what depends on all ranks, once all are here.
    fn finish_setup(&mut self) {
        let (segment, world) = (&self.member.segment, self.member.world);
        let map = segment.map();
        let word =
            |rank, index: usize| segment.atomic_u64(map.cpu_set(rank) + index * 8).load(Ordering::Relaxed);
        let union = |index| (0..world).fold(0, |bits, rank| bits | word(rank, index));
        let processors: u32 = (0..16).map(|index| union(index).count_ones()).sum();
        let has_arenas = |rank| segment.atomic_u32(map.arenas_mapped_flag(rank)).load(Ordering::Relaxed) == 1;
        let all_have_arenas = (0..world).all(has_arenas);
        self.member.spin = Spin::new(processors as usize >= world);
        self.open_arena(all_have_arenas);
    }
}

fn join_error(membership: &Membership, failure: GroupFailure) -> GroupError {
    GroupError::Failed { operation: Operation::Join, failure, members: membership.members.clone() }
}

fn greeting_message(token: &[u8], membership: &Membership) -> Vec<u8> {
    let numbers = [membership.world_size.get(), membership.rank.0].map(u32::to_le_bytes).concat();
    [GREETING, &LAYOUT_VERSION.to_le_bytes()[..], token, &numbers].concat()
}

/// Sends a few bytes without the risk of SIGPIPE.
fn send_no_sigpipe(stream: &UnixStream, bytes: &[u8]) -> io::Result<()> {
    let sent = rustix::net::send(stream, bytes, rustix::net::SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

/// Whether the process at the other end runs as the same user. (rustix also demands a process id, which a
/// process of another pid namespace does not have here.)
fn is_same_user(stream: &UnixStream) -> bool {
    let peer = getsockopt(stream, PeerCredentials);
    peer.is_ok_and(|peer_user| peer_user.uid() == rustix::process::geteuid().as_raw())
}
