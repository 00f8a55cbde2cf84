//! Rank 0's end of the handover: admits ranks that know the token and passes the segment to them.

use std::io::{self, ErrorKind, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rankrun_contract::rank::Rank;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{Resource, getrlimit};

use super::{
    ADDRESS_KEY, ANSWER, GREETING, GREETING_LEN, OTHER_USER, OTHER_VERSION, TOKEN_LEN, WELCOME, is_same_user,
    join_error, read_u32,
};
use crate::process_group::error::{GroupError, LossCause};
use crate::process_group::poll::poll;
use crate::process_group::rendezvous::Membership;
use crate::process_group::shm::error::SegmentError;
use crate::process_group::shm::member::Member;
use crate::process_group::shm::segment::LAYOUT_VERSION;
use crate::process_group::shm::watch::FailureWord;
use crate::process_group::transport::Step;
use crate::process_group::unidentified::{ACCEPT_BATCH, BACKLOG, Entry, UnidentifiedConnections};
use crate::store::TcpStore;
use crate::{clock, socket};

/// How long rank 0 waits for connections before it reads the segment again.
const POLL_SLICE: Duration = Duration::from_millis(20);

/// Rank 0's listener and connections.
pub(super) struct SegmentHost<'a> {
    membership: &'a Membership,
    member: &'a Member,
    token: Vec<u8>,
    listener: UnixListener,
    unidentified: UnidentifiedConnections<UnidentifiedPeer, PeerIdentity>,
    admitted: Vec<(usize, UnixStream)>,
}

/// User and process at the other end of a connection, if known.
type PeerIdentity = Option<(u32, i32)>;

/// A connection that has not identified itself.
struct UnidentifiedPeer {
    stream: UnixStream,
    received: Vec<u8>,
}

impl<'a> SegmentHost<'a> {
    /// Listens and publishes the address.
    pub(super) fn new(
        store: &TcpStore,
        membership: &'a Membership,
        member: &'a Member,
    ) -> Result<Self, GroupError> {
        let [name, token] = [0; 2].map(|_| uuid::Uuid::new_v4().to_string());
        let address =
            SocketAddr::from_abstract_name(format!("rankrun {name}")).map_err(SegmentError::from)?;
        let listener = UnixListener::bind_addr(&address).map_err(SegmentError::from)?;
        listener.set_nonblocking(true).map_err(SegmentError::from)?;
        rustix::net::listen(&listener, BACKLOG).map_err(io::Error::from).map_err(SegmentError::from)?;
        store.set(ADDRESS_KEY, format!("{name} {token}").as_bytes())?;
        let token = token.into_bytes();
        let unidentified = UnidentifiedConnections::new(member.world, getrlimit(Resource::Nofile).current);
        Ok(Self { membership, member, token, listener, unidentified, admitted: Vec::new() })
    }

    pub(super) fn wait_for_ranks(mut self, step: &Step) -> Result<(), GroupError> {
        let is_missing = |rank: usize| !self.member.counter(rank).has_reached(1);
        let membership = self.membership;
        let join_failed = |failure| join_error(membership, failure);
        while (0..self.member.world).any(is_missing) {
            self.member.check_missing_ranks(step, None, is_missing).map_err(join_failed)?;
            self.accept()?;
            self.read_unidentified()?;
            if let Some(rank) = self.find_closed().filter(|_| (0..self.member.world).any(is_missing)) {
                return Err(join_failed(
                    self.member.fail_group(step, FailureWord::Lost { rank, cause: LossCause::Closed }),
                ));
            }
            self.wait(step.deadline).map_err(SegmentError::from)?;
        }
        Ok(())
    }

    fn wait(&self, deadline: Instant) -> io::Result<()> {
        let streams = self
            .unidentified
            .connections()
            .map(|entry| &entry.stream)
            .chain(self.admitted.iter().map(|(_, entry)| entry));
        let mut fds: Vec<_> = streams.map(|stream| PollFd::new(stream.as_fd(), PollFlags::POLLIN)).collect();
        let now = clock::now();
        if self.unidentified.next_accept_at(now) <= now {
            fds.push(PollFd::new(self.listener.as_fd(), PollFlags::POLLIN));
        }
        poll(&mut fds, deadline.min(clock::after(POLL_SLICE))).map(drop)
    }

    fn accept(&mut self) -> Result<(), GroupError> {
        for _ in 0..ACCEPT_BATCH {
            let now = clock::now();
            if self.unidentified.next_accept_at(now) > now {
                break;
            }
            let dropped = match self.listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    let source = peer_identity(&stream);
                    self.unidentified.insert_evicting(Entry::new(
                        UnidentifiedPeer { stream, received: Vec::new() },
                        source,
                        now,
                    ))
                }
                Err(error) if socket::is_own_shortage(&error) => match self.unidentified.evict_one() {
                    Some(dropped) => Some(dropped),
                    None => return Err(SegmentError::from(error).into()),
                },
                // An error of one connection, which is gone again: the others are not affected.
                Err(_) => break,
            };
            if let Some(dropped) = dropped {
                // It may have identified itself a moment ago.
                drop(self.read_peer(dropped)?);
            }
        }
        Ok(())
    }

    fn read_unidentified(&mut self) -> Result<(), GroupError> {
        for entry in self.unidentified.take_all() {
            if let Some(entry) = self.read_peer(entry)? {
                self.unidentified.put_back(entry);
            }
        }
        Ok(())
    }

    /// Reads a connection, and answers it if its greeting is complete; returns it if it must be read again.
    fn read_peer(
        &mut self,
        mut entry: Entry<UnidentifiedPeer, PeerIdentity>,
    ) -> Result<Option<Entry<UnidentifiedPeer, PeerIdentity>>, GroupError> {
        let is_complete = entry.connection.read_greeting();
        if !self.is_greeting_prefix(&entry.connection.received) {
            return Ok(None);
        }
        entry.knows_token = entry.connection.received.len() >= GREETING.len() + 4 + TOKEN_LEN;
        match is_complete {
            Ok(true) => self.answer_peer(entry.connection).map(|()| None),
            Ok(false) if !clock::until(entry.deadline()).is_zero() => Ok(Some(entry)),
            _ => Ok(None),
        }
    }

    /// Whether the bytes so far are a correct greeting, of any version.
    fn is_greeting_prefix(&self, received: &[u8]) -> bool {
        let starts = |received_part: &[u8], expected: &[u8]| {
            let common = received_part.len().min(expected.len());
            received_part[..common] == expected[..common]
        };
        starts(received, GREETING)
            && received.get(GREETING.len() + 4..).is_none_or(|token| starts(token, &self.token))
    }

    /// Admits a rank that knows the token, or answers why not.
    fn answer_peer(&mut self, peer: UnidentifiedPeer) -> Result<(), GroupError> {
        let received = &peer.received;
        let version = read_u32(received, GREETING.len());
        let [world, rank] = [GREETING_LEN - 8, GREETING_LEN - 4].map(|at| read_u32(received, at));
        let is_expected = (1..self.membership.world_size.get()).contains(&rank);
        let is_known = self.admitted.iter().any(|(client, _)| Rank(rank).index() == *client);
        if version == LAYOUT_VERSION
            && (world != self.membership.world_size.get() || !is_expected || is_known)
        {
            return Ok(());
        }
        let code = match (version == LAYOUT_VERSION, is_same_user(&peer.stream)) {
            (false, _) => OTHER_VERSION,
            (_, false) => OTHER_USER,
            _ => WELCOME,
        };
        // A rank that misses the answer is missed by the group.
        if self.send_answer(&peer.stream, code).is_err() {
            return Ok(());
        }
        match code {
            OTHER_VERSION => {
                let rank = Rank(rank);
                Err(SegmentError::OtherVersion { rank, version, own_version: LAYOUT_VERSION }.into())
            }
            OTHER_USER => Err(SegmentError::OtherUser { rank: Rank(rank) }.into()),
            _ => {
                self.admitted.push((Rank(rank).index(), peer.stream));
                Ok(())
            }
        }
    }

    fn send_answer(&self, stream: &UnixStream, code: u32) -> io::Result<()> {
        let arena = self.member.segment.map().arena_bytes() as u64;
        let numbers = [code, LAYOUT_VERSION].map(u32::to_le_bytes).concat();
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

    /// An admitted rank whose connection has closed.
    fn find_closed(&self) -> Option<usize> {
        let is_closed = |mut stream: &UnixStream| match stream.read(&mut [0; 8]) {
            Ok(0) => true,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
            Ok(_) => false,
        };
        self.admitted.iter().find(|(_, stream)| is_closed(stream)).map(|(rank, _)| *rank)
    }
}

impl UnidentifiedPeer {
    /// Reads the available bytes of the greeting; returns whether it is complete.
    fn read_greeting(&mut self) -> io::Result<bool> {
        while self.received.len() < GREETING_LEN {
            let mut bytes = [0; GREETING_LEN];
            match self.stream.read(&mut bytes[self.received.len()..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    let start = self.received.len();
                    self.received.extend_from_slice(&bytes[start..start + read]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

fn peer_identity(stream: &UnixStream) -> PeerIdentity {
    getsockopt(stream, PeerCredentials).ok().map(|peer| (peer.uid(), peer.pid()))
}
