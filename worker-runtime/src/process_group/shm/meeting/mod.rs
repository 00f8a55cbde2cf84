//! How ranks of one host come to share memory: rank 0 makes it, and passes it to who knows the group's token.
//!
//! Rank 0 listens on a socket whose name only the store tells, and which is in no file system. Whoever connects must say the token,
//! which version it speaks and which rank it is; anything else is closed at its first wrong byte and has no effect, and a
//! connection that says nothing holds up nobody. A rank keeps its connection until all are here, so that one that dies before it
//! has its place in the memory is missed at once.

mod guest;
mod host;

use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rankrun_contract::rank::Rank;

use self::guest::Guest;
use self::host::Host;
use super::Shm;
use super::error::SegmentError;
use super::map::{Map, STAGE, STAGES};
use super::member::Member;
use super::segment::{Segment, VERSION};
use super::wait::Spin;
use super::watch::State;
use crate::process_group::element::DataType;
use crate::process_group::error::{Ending, GroupError};
use crate::process_group::meet::{Seat, agreed};
use crate::process_group::message::{Call, Operation};
use crate::process_group::transport::Step;
use crate::store::TcpStore;

/// Where rank 0 says how it is reached.
const KEY: &str = "shared memory";
/// What it says where there is nothing to be reached.
const NOTHING: &str = "nothing: ";
/// The most bytes of rank 0's reason that other ranks get.
const LONGEST_REASON: usize = 512;

const TOKEN_LEN: usize = 36;
const GREETING: &[u8; 12] = b"rankrun shm\n";
const GREETING_LEN: usize = GREETING.len() + 4 + TOKEN_LEN + 8;
const ANSWER: &[u8; 8] = b"rankrun\n";
const ANSWER_LEN: usize = ANSWER.len() + 16;

/// What rank 0 answers to a rank that knows the token.
const WELCOME: u32 = 0;
const OTHER_VERSION: u32 = 1;
const OTHER_USER: u32 = 2;

/// Shares memory with the other ranks of the group, which are all on this host. `store` is seen by this group only.
pub(crate) fn join(store: &TcpStore, seat: &Seat) -> Result<Shm, GroupError> {
    meet(store, seat).map_err(|error| agreed(store, seat, error))
}

fn meet(store: &TcpStore, seat: &Seat) -> Result<Shm, GroupError> {
    // All ranks see it before one of them waits for another.
    Map::new(seat.world_size, 0)?;
    let call = Call {
        operation: Operation::Join,
        data_type: DataType::None,
        reduction: None,
        root: None,
        count: 0,
        sequence: 0,
    };
    let step = Step { call, deadline: seat.join_by, timeout: seat.timeout };
    let ended = |ending| ended(seat, ending);
    let mut shm = if seat.rank == Rank(0) {
        let made = Segment::create(seat.world_size).and_then(|segment| take_seat(segment, seat));
        if let Err(error) = &made {
            // The launcher may stop this rank before its own error is written, so the other ranks can say why.
            let why = error.to_string();
            let why = &why[..why.floor_char_boundary(LONGEST_REASON)];
            drop(store.set(KEY, format!("{NOTHING}{why}").as_bytes()));
        }
        let mut shm = made?;
        shm.member.arrive();
        Host::new(store, seat, &shm.member)?.receive_all(&step)?;
        // All have read it. A store that is gone meanwhile keeps nothing.
        drop(store.delete(KEY));
        shm.member.wait_for_all(&step).map_err(ended)?;
        shm
    } else {
        let guest = Guest::connect(store, seat, &step)?;
        let mut shm = take_seat(guest.segment, seat)?;
        shm.member.arrive();
        // Rank 0 has all it needs if it does not read this.
        drop(send(&guest.stream, b"."));
        shm.member.wait_for_all(&step).map_err(ended)?;
        shm
    };
    shm.settle();
    Ok(shm)
}

/// This rank's place in the memory.
fn take_seat(segment: Segment, seat: &Seat) -> Result<Shm, SegmentError> {
    let rank = seat.rank.index();
    let map = *segment.map();
    segment.take_seat(rank)?;
    segment.populate(map.stages(rank), STAGE * STAGES as usize)?;
    let (high, low) = process().as_u64_pair();
    for (at, word) in [(0, high), (8, low)] {
        segment.word64(map.process(rank) + at).store(word, Ordering::Relaxed);
    }
    for (index, word) in processors().into_iter().enumerate() {
        segment.word64(map.processors(rank) + index * 8).store(word, Ordering::Relaxed);
    }
    segment.word32(map.arenas(rank)).store(u32::from(segment.has_arenas()), Ordering::Relaxed);
    let member = Member::new(Arc::new(segment), rank);
    member.set_state(State::Here);
    Ok(Shm::new(member))
}

/// What no other process has, be it a fork of this one.
fn process() -> uuid::Uuid {
    use std::sync::OnceLock;
    static PROCESS: OnceLock<uuid::Uuid> = OnceLock::new();
    let pid = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    uuid::Uuid::from_u128(PROCESS.get_or_init(uuid::Uuid::new_v4).as_u128() ^ u128::from(pid))
}

/// The processors that this rank may use, a bit for each; all where there are too many to be told.
fn processors() -> [u64; 16] {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return [u64::MAX; 16] };
    std::array::from_fn(|word| {
        (0..64).filter(|bit| set.is_set(word * 64 + bit)).fold(0, |bits, bit| bits | 1 << bit)
    })
}

impl Shm {
    /// Chooses, when all are here, what depends on all.
    fn settle(&mut self) {
        let (segment, world) = (&self.member.segment, self.member.world);
        let map = segment.map();
        let word =
            |rank, index: usize| segment.word64(map.processors(rank) + index * 8).load(Ordering::Relaxed);
        let union = |index| (0..world).fold(0, |bits, rank| bits | word(rank, index));
        let processors: u32 = (0..16).map(|index| union(index).count_ones()).sum();
        let has_arenas = |rank| segment.word32(map.arenas(rank)).load(Ordering::Relaxed) == 1;
        let all_have_arenas = (0..world).all(has_arenas);
        self.member.spin = Spin::new(processors as usize >= world);
        self.open_arena(all_have_arenas);
    }
}

fn ended(seat: &Seat, ending: Ending) -> GroupError {
    GroupError::Ended { operation: Operation::Join, ending, members: seat.members.clone() }
}

fn greeting(token: &[u8], seat: &Seat) -> Vec<u8> {
    let numbers = [seat.world_size.get(), seat.rank.0].map(u32::to_le_bytes).concat();
    [GREETING, &VERSION.to_le_bytes()[..], token, &numbers].concat()
}

/// Sends a few bytes, without the signal by which a program may end where nobody reads them.
fn send(stream: &UnixStream, bytes: &[u8]) -> io::Result<()> {
    let sent = rustix::net::send(stream, bytes, rustix::net::SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

/// Whether the process at the other end of a connection runs as the same user. (rustix would have a process id as well, which a
/// process of another pid namespace does not have here.)
fn is_same_user(stream: &UnixStream) -> bool {
    let peer = getsockopt(stream, PeerCredentials);
    peer.is_ok_and(|it| it.uid() == rustix::process::geteuid().as_raw())
}
