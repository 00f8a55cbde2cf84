//! How ranks of one host come to share memory: rank 0 makes it, and passes it to who knows the group's token.
//!
//! Rank 0 listens on a socket whose name only the store tells, and which is in no file system. Whoever connects must say the token,
//! which version it speaks and which rank it is; anything else is closed at its first wrong byte and has no effect, and a
//! connection that says nothing holds up nobody. A rank keeps its connection until all are here, so that one that dies before it
//! has its place in the memory is missed at once.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use rankrun_contract::rank::Rank;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use super::Shm;
use super::error::SegmentError;
use super::map::{Map, STAGE, STAGES};
use super::member::Member;
use super::segment::{Segment, VERSION};
use super::wait::Spin;
use super::watch::{State, Word};
use crate::clock;
use crate::process_group::element::DataType;
use crate::process_group::error::{Ending, GroupError, LossCause};
use crate::process_group::meet::{Seat, agreed, lost};
use crate::process_group::message::{Call, Operation};
use crate::process_group::tcp::mesh::poll;
use crate::process_group::transport::Step;
use crate::store::{StoreError, TcpStore};

/// Where rank 0 says how it is reached.
const KEY: &str = "shared memory";
/// How long a connection may take to introduce itself.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
/// Most connections that have not introduced themselves, beyond one for each rank.
const MAX_STRANGERS: usize = 64;
/// How long rank 0 waits for connections before it looks what is in the memory.
const SLICE: Duration = Duration::from_millis(20);

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
        let segment = Segment::create(seat.world_size)?;
        let mut shm = take_seat(segment, seat)?;
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
        drop((&guest.stream).write_all(b"."));
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

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

/// Whether the process at the other end of a connection runs as the same user.
fn is_same_user(stream: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(stream).is_ok_and(|it| it.uid == rustix::process::geteuid())
}

/// Rank 0's end.
struct Host<'a> {
    seat: &'a Seat,
    member: &'a Member,
    token: Vec<u8>,
    listener: UnixListener,
    strangers: Vec<Stranger>,
    /// Connections of ranks that have been let in.
    guests: Vec<(usize, UnixStream)>,
}

/// A connection that has not said who it is.
struct Stranger {
    stream: UnixStream,
    heard: Vec<u8>,
    deadline: Instant,
}

impl<'a> Host<'a> {
    /// Listens, and says where.
    fn new(store: &TcpStore, seat: &'a Seat, member: &'a Member) -> Result<Self, GroupError> {
        let [name, token] = [0; 2].map(|_| uuid::Uuid::new_v4().to_string());
        let address =
            SocketAddr::from_abstract_name(format!("rankrun {name}")).map_err(SegmentError::from)?;
        let listener = UnixListener::bind_addr(&address).map_err(SegmentError::from)?;
        listener.set_nonblocking(true).map_err(SegmentError::from)?;
        store.set(KEY, format!("{name} {token}").as_bytes())?;
        let token = token.into_bytes();
        Ok(Self { seat, member, token, listener, strangers: Vec::new(), guests: Vec::new() })
    }

    /// Lets all ranks in.
    fn receive_all(mut self, step: &Step) -> Result<(), GroupError> {
        let is_missing = |rank: usize| !self.member.counter(rank).has_reached(1);
        let seat = self.seat;
        let ended = |ending| ended(seat, ending);
        while (0..self.member.world).any(is_missing) {
            self.member.look_for(step, None, is_missing).map_err(ended)?;
            self.accept();
            self.hear_strangers()?;
            if let Some(rank) = self.find_closed().filter(|_| (0..self.member.world).any(is_missing)) {
                return Err(ended(self.member.end(step, Word::Lost { rank, cause: LossCause::Closed })));
            }
            self.wait(step.deadline).map_err(SegmentError::from)?;
        }
        Ok(())
    }

    fn wait(&self, deadline: Instant) -> io::Result<()> {
        let streams = self.strangers.iter().map(|it| &it.stream).chain(self.guests.iter().map(|(_, it)| it));
        let mut fds: Vec<_> = streams.map(|it| PollFd::new(it.as_fd(), PollFlags::POLLIN)).collect();
        fds.push(PollFd::new(self.listener.as_fd(), PollFlags::POLLIN));
        poll(&mut fds, deadline.min(clock::after(SLICE))).map(drop)
    }

    fn accept(&mut self) {
        // An error here is that of one connection, which is gone again, or passes: the others are not worse off.
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_ok() {
                let deadline = clock::after(GREETING_TIMEOUT);
                self.strangers.push(Stranger { stream, heard: Vec::new(), deadline });
            }
        }
        let excess = self.strangers.len().saturating_sub(MAX_STRANGERS + self.member.world);
        self.strangers.drain(..excess);
    }

    fn hear_strangers(&mut self) -> Result<(), GroupError> {
        for mut stranger in std::mem::take(&mut self.strangers) {
            let is_complete = stranger.hear();
            if !self.may_be_member(&stranger.heard) {
                continue;
            }
            match is_complete {
                Ok(true) => self.answer(stranger)?,
                Ok(false) if !clock::until(stranger.deadline).is_zero() => self.strangers.push(stranger),
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether nothing of what was heard is wrong; the version may be another one.
    fn may_be_member(&self, heard: &[u8]) -> bool {
        let starts = |heard: &[u8], expected: &[u8]| {
            let common = heard.len().min(expected.len());
            heard[..common] == expected[..common]
        };
        starts(heard, GREETING) && heard.get(GREETING.len() + 4..).is_none_or(|it| starts(it, &self.token))
    }

    /// Lets a rank in that knows the token, or says why not.
    fn answer(&mut self, stranger: Stranger) -> Result<(), GroupError> {
        let heard = &stranger.heard;
        let version = number(heard, GREETING.len());
        let [world, rank] = [GREETING_LEN - 8, GREETING_LEN - 4].map(|at| number(heard, at));
        let is_expected = (1..self.seat.world_size.get()).contains(&rank);
        let is_known = self.guests.iter().any(|(guest, _)| Rank(rank).index() == *guest);
        if version == VERSION && (world != self.seat.world_size.get() || !is_expected || is_known) {
            return Ok(());
        }
        let code = match (version == VERSION, is_same_user(&stranger.stream)) {
            (false, _) => OTHER_VERSION,
            (_, false) => OTHER_USER,
            _ => WELCOME,
        };
        // A rank that does not hear the answer is missed.
        if self.send_answer(&stranger.stream, code).is_err() {
            return Ok(());
        }
        match code {
            OTHER_VERSION => {
                let rank = Rank(rank);
                Err(SegmentError::OtherVersion { rank, theirs: version, ours: VERSION }.into())
            }
            OTHER_USER => Err(SegmentError::OtherUser { rank: Rank(rank) }.into()),
            _ => {
                self.guests.push((Rank(rank).index(), stranger.stream));
                Ok(())
            }
        }
    }

    fn send_answer(&self, stream: &UnixStream, code: u32) -> io::Result<()> {
        let arena = self.member.segment.map().arena_bytes() as u64;
        let numbers = [code, VERSION].map(u32::to_le_bytes).concat();
        let answer = [ANSWER, &numbers[..], &arena.to_le_bytes()].concat();
        let files = [self.member.segment.file()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if code == WELCOME {
            control.push(SendAncillaryMessage::ScmRights(&files));
        }
        let sent = rustix::net::sendmsg(stream, &[IoSlice::new(&answer)], &mut control, SendFlags::NOSIGNAL)?;
        if sent == answer.len() { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
    }

    /// A rank that was let in and whose connection is closed.
    fn find_closed(&self) -> Option<usize> {
        let is_closed = |mut stream: &UnixStream| match stream.read(&mut [0; 8]) {
            Ok(0) => true,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
            Ok(_) => false,
        };
        self.guests.iter().find(|(_, stream)| is_closed(stream)).map(|(rank, _)| *rank)
    }
}

impl Stranger {
    /// Reads what is there of the greeting; whether it is complete.
    fn hear(&mut self) -> io::Result<bool> {
        while self.heard.len() < GREETING_LEN {
            let mut bytes = [0; GREETING_LEN];
            match self.stream.read(&mut bytes[self.heard.len()..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    let start = self.heard.len();
                    self.heard.extend_from_slice(&bytes[start..start + read]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// The end of every other rank.
struct Guest {
    stream: UnixStream,
    segment: Segment,
}

impl Guest {
    /// Receives the memory from rank 0.
    fn connect(store: &TcpStore, seat: &Seat, step: &Step) -> Result<Self, GroupError> {
        let timed_out = || lost(seat, Rank(0), LossCause::Timeout(step.timeout));
        match store.wait(&[KEY], clock::until(step.deadline)) {
            Err(StoreError::WaitTimeout { .. }) => return Err(timed_out()),
            result => result?,
        }
        let value = String::from_utf8_lossy(&store.get(KEY)?).into_owned();
        let Some((name, token)) = value.split_once(' ').filter(|(_, token)| token.len() == TOKEN_LEN) else {
            return Err(GroupError::strange_entry(KEY, value.as_bytes()));
        };
        let failed = |error: io::Error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => timed_out(),
            // Its socket is gone.
            ErrorKind::ConnectionRefused => lost(seat, Rank(0), LossCause::Closed),
            kind => lost(seat, Rank(0), kind.into()),
        };
        let stream = connect(name, step.deadline).map_err(failed)?;
        if !is_same_user(&stream) {
            return Err(SegmentError::OtherUser { rank: Rank(0) }.into());
        }
        (&stream).write_all(&greeting(token.as_bytes(), seat)).map_err(failed)?;
        let (answer, file) = receive(&stream, step.deadline).map_err(failed)?;
        let segment = open(&answer, file, seat)?;
        Ok(Self { stream, segment })
    }
}

/// Connects to the socket with this name. What is done on it ends at the deadline.
fn connect(name: &str, deadline: Instant) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let remaining = clock::until(deadline).max(Duration::from_millis(1));
    // Connecting waits, too, where many do so at once.
    for direction in [sockopt::Timeout::Send, sockopt::Timeout::Recv] {
        sockopt::set_socket_timeout(&socket, direction, Some(remaining))?;
    }
    let address = SocketAddrUnix::new_abstract_name(format!("rankrun {name}").as_bytes())?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket.into())
}

/// Receives rank 0's answer, and the file that comes with it.
fn receive(stream: &UnixStream, deadline: Instant) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let (mut answer, mut file) = (Vec::new(), None);
    while answer.len() < ANSWER_LEN {
        let mut bytes = [0; ANSWER_LEN];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let missing = ANSWER_LEN - answer.len();
        let mut buffers = [IoSliceMut::new(&mut bytes[..missing])];
        let received = rustix::net::recvmsg(stream, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC);
        let read = match received {
            Ok(received) if received.bytes == 0 => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(received) => received.bytes,
            Err(rustix::io::Errno::INTR) if !clock::until(deadline).is_zero() => continue,
            Err(error) => return Err(error.into()),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut files) = message {
                file = files.next();
            }
        }
        answer.extend_from_slice(&bytes[..read]);
    }
    Ok((answer, file))
}

/// What rank 0's answer means.
fn open(answer: &[u8], file: Option<OwnedFd>, seat: &Seat) -> Result<Segment, SegmentError> {
    if answer[..ANSWER.len()] != *ANSWER {
        return Err(SegmentError::Strange);
    }
    let [code, version] = [0, 4].map(|at| number(answer, ANSWER.len() + at));
    let arena = u64::from_le_bytes(std::array::from_fn(|index| answer[ANSWER.len() + 8 + index]));
    match (code, file) {
        (OTHER_VERSION, _) => {
            Err(SegmentError::OtherVersion { rank: Rank(0), theirs: version, ours: VERSION })
        }
        (OTHER_USER, _) => Err(SegmentError::OtherUser { rank: Rank(0) }),
        (WELCOME, Some(file)) => Segment::open(file, Map::new(seat.world_size, arena)?),
        _ => Err(SegmentError::Strange),
    }
}
