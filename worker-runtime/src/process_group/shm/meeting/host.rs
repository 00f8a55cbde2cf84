//! Rank 0's end of the meeting: it lets in who knows the token, and passes the memory on.

use std::io::{self, ErrorKind, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use rankrun_contract::rank::Rank;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::{
    ANSWER, GREETING, GREETING_LEN, KEY, OTHER_USER, OTHER_VERSION, WELCOME, ended, is_same_user, number,
};
use crate::process_group::error::{GroupError, LossCause};
use crate::process_group::meet::Seat;
use crate::process_group::poll::poll;
use crate::process_group::shm::error::SegmentError;
use crate::process_group::shm::member::Member;
use crate::process_group::shm::segment::VERSION;
use crate::process_group::shm::watch::Word;
use crate::process_group::transport::Step;
use crate::store::TcpStore;
use crate::{clock, socket};

/// How long a connection may take to introduce itself.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
/// Most connections that have not introduced themselves, beyond one for each rank.
const MAX_STRANGERS: usize = 64;
/// How long rank 0 waits for connections before it looks what is in the memory.
const SLICE: Duration = Duration::from_millis(20);

/// Rank 0's end.
pub(super) struct Host<'a> {
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
    pub(super) fn new(store: &TcpStore, seat: &'a Seat, member: &'a Member) -> Result<Self, GroupError> {
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
    pub(super) fn receive_all(mut self, step: &Step) -> Result<(), GroupError> {
        let is_missing = |rank: usize| !self.member.counter(rank).has_reached(1);
        let seat = self.seat;
        let ended = |ending| ended(seat, ending);
        while (0..self.member.world).any(is_missing) {
            self.member.look_for(step, None, is_missing).map_err(ended)?;
            self.accept()?;
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

    fn accept(&mut self) -> Result<(), SegmentError> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if socket::is_own_shortage(&error) => return Err(error.into()),
                // That of one connection, which is gone again, or passes: the others are not worse off.
                Err(_) => break,
            };
            if stream.set_nonblocking(true).is_ok() {
                let deadline = clock::after(GREETING_TIMEOUT);
                self.strangers.push(Stranger { stream, heard: Vec::new(), deadline });
            }
        }
        let excess = self.strangers.len().saturating_sub(MAX_STRANGERS + self.member.world);
        self.strangers.drain(..excess);
        Ok(())
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
