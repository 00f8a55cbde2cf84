//! Connects the ranks by TCP: addresses through the store, then one connection for every pair of ranks.
//!
//! Every rank listens and publishes its address; it connects to all lower ranks and accepts all higher ones.
//! A connection must present the token that rank 0 put into the store, then run, generation and rank. Any
//! other connection is closed at its first wrong byte. An idle connection delays no other, and a flood of
//! connections keeps no rank out ([`Unidentified`]).

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use rankrun_contract::rank::{Rank, WorldSize};
use rustix::process::{Resource, getrlimit};

use super::exchange::rank_from_index;
use super::mesh::Mesh;
use crate::process_group::error::{GroupError, LossCause};
use crate::process_group::host;
use crate::process_group::plan::PROTOCOL_VERSION;
use crate::process_group::poll::poll;
use crate::process_group::rendezvous::{self, Membership, lost_rank_error};
use crate::process_group::unidentified::{ACCEPT_BATCH, BACKLOG, Entry, Retry, UnidentifiedConnections};
use crate::store::TcpStore;
use crate::{clock, socket};

/// Bytes of the run id in a greeting at most.
const MAX_RUN_ID_BYTES: usize = 1024;
/// Store key of rank 0's secret.
const TOKEN_KEY: &str = "token";

/// Finds the other ranks through `store`, which has keys of this group only.
pub(crate) fn join(store: &TcpStore, membership: &Membership) -> Result<Mesh, GroupError> {
    let mesh = Mesh::new(connect(store, membership)?)?;
    Ok(if has_own_processor(membership) { mesh.with_spinning() } else { mesh })
}

/// Whether this rank may use at least one processor for each rank of its host.
fn has_own_processor(membership: &Membership) -> bool {
    let host = membership.hosts.get(membership.rank.index());
    let ranks = membership.hosts.iter().filter(|&other| Some(other) == host).count();
    std::thread::available_parallelism().is_ok_and(|processors| processors.get() >= ranks)
}

/// Connects to every other rank; returns the connections by rank, all non-blocking.
pub(crate) fn connect(
    store: &TcpStore,
    membership: &Membership,
) -> Result<Vec<Option<TcpStream>>, GroupError> {
    if let Err(error) = check_descriptor_limit(membership.world_size, getrlimit(Resource::Nofile).current) {
        return Err(rendezvous::with_agreed_failure(store, membership, error));
    }
    let mut join_state = JoinState::new(membership, listen(store, membership)?);
    match join_state.connect_all(store) {
        Ok(()) => Ok(join_state.into_streams()),
        // Other ranks take closed connections for a loss, so the verdict is written first.
        Err(error) => Err(rendezvous::with_agreed_failure(store, membership, error)),
    }
}

/// Refuses a group that must fail after many connections: one for each
/// other rank, and three standard streams.
fn check_descriptor_limit(world_size: WorldSize, limit: Option<u64>) -> Result<(), GroupError> {
    match limit {
        Some(limit) if u64::from(world_size.get()) + 2 > limit => {
            Err(GroupError::FewDescriptors { world_size, limit })
        }
        _ => Ok(()),
    }
}

/// Listens on the loopback interface, unless ranks are on other hosts.
fn listen(store: &TcpStore, membership: &Membership) -> Result<TcpListener, GroupError> {
    let listener = if membership.spans_hosts() {
        TcpListener::bind((
            host::listen_address(membership.interface.as_deref(), store.local_address()?)?,
            0,
        ))?
    } else {
        let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
        TcpListener::bind(&loopback.map(|ip| SocketAddr::new(ip, 0))[..])?
    };
    listener.set_nonblocking(true)?;
    rustix::net::listen(&listener, BACKLOG).map_err(io::Error::from)?;
    Ok(listener)
}

fn address_key(rank: u32) -> String {
    format!("address/{rank}")
}

/// The addresses of all lower ranks.
fn lower_rank_addresses(store: &TcpStore, membership: &Membership) -> Result<Vec<SocketAddr>, GroupError> {
    let keys: Vec<String> = (0..membership.rank.0).map(address_key).collect();
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    rendezvous::wait_for_rank_keys(store, membership, &keys)?;
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let parse = |(key, value): (&&str, Vec<u8>)| {
        let address = std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
        address.ok_or_else(|| GroupError::unexpected_entry(key, &value))
    };
    keys.iter().zip(store.multi_get(&keys)?).map(parse).collect()
}

fn connection_lost_error(membership: &Membership, rank: Rank, error: &io::Error) -> GroupError {
    lost_rank_error(membership, rank, LossCause::from(error.kind()))
}

/// The first bytes of a connection: the group, and the rank that it wants
/// to reach. The sender's rank follows.
fn greeting_message(membership: &Membership, token: &[u8], to: Rank) -> Vec<u8> {
    let run_id = membership.run_id.as_bytes();
    let run_id = &run_id[..run_id.len().min(MAX_RUN_ID_BYTES)];
    let mut bytes = format!("rankrun group {PROTOCOL_VERSION}\n").into_bytes();
    for text in [token, run_id] {
        bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
        bytes.extend_from_slice(text);
    }
    for number in [membership.generation, membership.world_size.get(), to.0] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// Length of a greeting up to the end of the token.
fn greeting_token_end(token: &[u8]) -> usize {
    format!("rankrun group {PROTOCOL_VERSION}\n").len() + size_of::<u64>() + token.len()
}

/// The answer of the listener.
fn welcome_message(token: &[u8]) -> Vec<u8> {
    [b"rankrun welcome\n", token].concat()
}

/// The connections of a group that is not complete yet.
struct JoinState<'a> {
    membership: &'a Membership,
    /// Rank 0's secret; empty until it is read.
    token: Vec<u8>,
    listener: TcpListener,
    slots: Vec<PeerSlot>,
    unidentified: UnidentifiedConnections<Handshake, IpAddr>,
}

/// The connection to one rank.
enum PeerSlot {
    Own,
    Empty,
    /// Connected by this rank; its welcome has not arrived.
    Greeted(Handshake, Attempt),
    /// The other end closed the connection before it answered; connect again at this time.
    RetryAt(Instant, Attempt),
    /// Connected. `watched` until its first message has arrived.
    Connected {
        stream: TcpStream,
        is_watched: bool,
    },
}

/// The attempts to reach a lower rank.
#[derive(Clone, Copy)]
struct Attempt {
    address: SocketAddr,
    retry: Retry,
    /// Why the first connection ended.
    first_error: Option<ErrorKind>,
}

/// A connection on which known bytes are expected.
struct Handshake {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Handshake {
    /// Reads available bytes, up to `length` in all; returns whether they are complete.
    fn read(&mut self, length: usize) -> io::Result<bool> {
        while self.received.len() < length {
            let start = self.received.len();
            self.received.resize(length, 0);
            let result = self.stream.read(&mut self.received[start..]);
            self.received.truncate(start + *result.as_ref().unwrap_or(&0));
            match result {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
        Ok(true)
    }
}

impl<'a> JoinState<'a> {
    fn new(membership: &'a Membership, listener: TcpListener) -> Self {
        let slot = |rank| if rank == membership.rank.0 { PeerSlot::Own } else { PeerSlot::Empty };
        let slots = (0..membership.world_size.get()).map(slot).collect();
        let unidentified = UnidentifiedConnections::new(
            membership.world_size.get() as usize,
            getrlimit(Resource::Nofile).current,
        );
        Self { membership, token: Vec::new(), listener, slots, unidentified }
    }

    fn connect_all(&mut self, store: &TcpStore) -> Result<(), GroupError> {
        let rank = self.membership.rank;
        if rank == Rank(0) {
            // Set before the address, so that a rank which finds the address also finds the token.
            store.set(TOKEN_KEY, uuid::Uuid::new_v4().to_string().as_bytes())?;
        }
        store.set(&address_key(rank.0), self.listener.local_addr()?.to_string().as_bytes())?;
        let addresses = lower_rank_addresses(store, self.membership)?;
        self.token = store.get(TOKEN_KEY)?;
        for (address, lower) in addresses.into_iter().zip(0..) {
            let attempt = Attempt { address, retry: Retry::new(clock::now()), first_error: None };
            self.send_greeting(Rank(lower), attempt)?;
        }
        self.wait_until_connected()?;
        if rank == Rank(0) {
            // Every rank has read the keys before it greeted rank 0. Deleting them keeps a long-lived store
            // small.
            store.delete_key(TOKEN_KEY)?;
            (0..self.membership.world_size.get())
                .try_for_each(|rank| store.delete_key(&address_key(rank)).map(drop))?;
        }
        Ok(())
    }

    /// Connects to a lower rank and sends the greeting.
    fn send_greeting(&mut self, rank: Rank, attempt: Attempt) -> Result<(), GroupError> {
        let connect = || {
            let remaining = clock::until(self.membership.join_deadline).max(Duration::from_millis(1));
            let stream = TcpStream::connect_timeout(&attempt.address, remaining)?;
            // Without a time limit: a busy rank may read nothing for long.
            socket::enable_keepalive(&stream, None)?;
            Ok(stream)
        };
        let mut stream = connect().map_err(|error: io::Error| match socket::is_own_shortage(&error) {
            true => error.into(),
            // If the rank is gone, the error of the first connection explains it.
            false => connection_lost_error(
                self.membership,
                rank,
                &attempt.first_error.map_or(error, io::Error::from),
            ),
        })?;
        let mut bytes = greeting_message(self.membership, &self.token, rank);
        bytes.extend_from_slice(&self.membership.rank.0.to_le_bytes());
        if let Err(error) = stream.write_all(&bytes).and_then(|()| stream.set_nonblocking(true)) {
            return self.schedule_retry(rank, attempt, &error);
        }
        self.slots[rank.index()] = PeerSlot::Greeted(Handshake { stream, received: Vec::new() }, attempt);
        Ok(())
    }

    /// Schedules another attempt after a lower rank closed the connection without an answer.
    fn schedule_retry(
        &mut self,
        rank: Rank,
        mut attempt: Attempt,
        error: &io::Error,
    ) -> Result<(), GroupError> {
        let is_closed = matches!(
            error.kind(),
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
        );
        let next = if is_closed { attempt.retry.next_attempt_at(clock::now()) } else { None };
        let Some(next) = next else { return Err(connection_lost_error(self.membership, rank, error)) };
        attempt.first_error.get_or_insert(error.kind());
        self.slots[rank.index()] = PeerSlot::RetryAt(next, attempt);
        Ok(())
    }

    /// Connects again to ranks whose retry is due.
    fn retry_greetings(&mut self) -> Result<(), GroupError> {
        let now = clock::now();
        for rank in 0..self.membership.rank.0 {
            match self.slots[Rank(rank).index()] {
                PeerSlot::RetryAt(at, attempt) if now >= at => self.send_greeting(Rank(rank), attempt)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Waits until every rank is connected.
    fn wait_until_connected(&mut self) -> Result<(), GroupError> {
        loop {
            self.retry_greetings()?;
            self.read_welcomes()?;
            self.check_connected()?;
            self.accept()?;
            self.read_unidentified();
            let Some(missing) = self.slots.iter().position(PeerSlot::is_pending) else { return Ok(()) };
            if clock::until(self.membership.join_deadline).is_zero() {
                return Err(lost_rank_error(
                    self.membership,
                    rank_from_index(missing),
                    LossCause::Timeout(self.membership.timeout),
                ));
            }
            let again = self.slots.iter().filter_map(PeerSlot::retry_at);
            let next =
                again.chain(self.unidentified.deadline()).fold(self.membership.join_deadline, Instant::min);
            self.wait(next)?;
        }
    }

    /// The connections by rank.
    fn into_streams(self) -> Vec<Option<TcpStream>> {
        let stream = |slot| if let PeerSlot::Connected { stream, .. } = slot { Some(stream) } else { None };
        self.slots.into_iter().map(stream).collect()
    }

    fn wait(&self, deadline: Instant) -> io::Result<()> {
        let streams = self.unidentified.connections().map(|entry| &entry.stream);
        let streams = streams.chain(self.slots.iter().filter_map(PeerSlot::watched_stream));
        let mut fds: Vec<_> = streams.map(|stream| PollFd::new(stream.as_fd(), PollFlags::POLLIN)).collect();
        let (now, mut deadline) = (clock::now(), deadline);
        match self.unidentified.next_accept_at(now) {
            at if at > now => deadline = deadline.min(at),
            _ => fds.push(PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)),
        }
        poll(&mut fds, deadline).map(drop)
    }

    fn read_welcomes(&mut self) -> Result<(), GroupError> {
        let expected = welcome_message(&self.token);
        for rank in 0..self.membership.rank.0 {
            let slot = &mut self.slots[Rank(rank).index()];
            let PeerSlot::Greeted(handshake, attempt) = slot else { continue };
            let complete = match handshake.read(expected.len()) {
                Ok(complete) => complete,
                Err(error) if handshake.received.is_empty() => {
                    let attempt = *attempt;
                    self.schedule_retry(Rank(rank), attempt, &error)?;
                    continue;
                }
                Err(error) => return Err(connection_lost_error(self.membership, Rank(rank), &error)),
            };
            if !expected.starts_with(&handshake.received) {
                return Err(connection_lost_error(
                    self.membership,
                    Rank(rank),
                    &ErrorKind::InvalidData.into(),
                ));
            }
            if complete && let PeerSlot::Greeted(handshake, _) = std::mem::replace(slot, PeerSlot::Empty) {
                *slot = PeerSlot::Connected { stream: handshake.stream, is_watched: true };
            }
        }
        Ok(())
    }

    /// Detects a connected rank that dies before the group is complete.
    fn check_connected(&mut self) -> Result<(), GroupError> {
        for (slot, rank) in self.slots.iter_mut().zip(0..) {
            let PeerSlot::Connected { stream, is_watched: watched @ true } = slot else { continue };
            match stream.peek(&mut [0]) {
                Ok(0) => return Err(lost_rank_error(self.membership, Rank(rank), LossCause::Closed)),
                Ok(_) => *watched = false,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(connection_lost_error(self.membership, Rank(rank), &error)),
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<(), GroupError> {
        for _ in 0..ACCEPT_BATCH {
            let now = clock::now();
            if self.unidentified.next_accept_at(now) > now {
                break;
            }
            let dropped = match self.listener.accept() {
                Ok((stream, from)) => {
                    if stream.set_nonblocking(true).is_err()
                        || socket::enable_keepalive(&stream, None).is_err()
                    {
                        continue;
                    }
                    let handshake = Handshake { stream, received: Vec::new() };
                    self.unidentified.insert_evicting(Entry::new(handshake, from.ip().to_canonical(), now))
                }
                Err(error) if socket::is_own_shortage(&error) => match self.unidentified.evict_one() {
                    Some(dropped) => Some(dropped),
                    None => return Err(error.into()),
                },
                // An error of one connection, which is gone again: the others are not affected.
                Err(_) => break,
            };
            if let Some(dropped) = dropped {
                // It may have identified itself a moment ago.
                drop(self.read_handshake(dropped));
            }
        }
        Ok(())
    }

    fn read_unidentified(&mut self) {
        for entry in self.unidentified.take_all() {
            if let Some(entry) = self.read_handshake(entry) {
                self.unidentified.put_back(entry);
            }
        }
    }

    /// Reads a connection, and admits its rank if the greeting is complete; returns it
    /// if it must be read again.
    fn read_handshake(&mut self, mut entry: Entry<Handshake, IpAddr>) -> Option<Entry<Handshake, IpAddr>> {
        let expected = greeting_message(self.membership, &self.token, self.membership.rank);
        let answer = entry.connection.read(expected.len() + size_of::<u32>());
        let received = &entry.connection.received;
        let common = received.len().min(expected.len());
        if received[..common] != expected[..common] {
            return None;
        }
        entry.knows_token = received.len() >= greeting_token_end(&self.token);
        match answer {
            Ok(true) => {
                self.admit(entry.connection, expected.len());
                None
            }
            Ok(false) if !clock::until(entry.deadline()).is_zero() => Some(entry),
            _ => None,
        }
    }

    fn admit(&mut self, handshake: Handshake, rank_offset: usize) {
        let Handshake { mut stream, received } = handshake;
        let Some(rank) = received[rank_offset..].first_chunk().map(|bytes| u32::from_le_bytes(*bytes)) else {
            return;
        };
        let slot = self.slots.get_mut(Rank(rank).index());
        if let Some(slot @ PeerSlot::Empty) = slot
            && stream.write_all(&welcome_message(&self.token)).is_ok()
        {
            *slot = PeerSlot::Connected { stream, is_watched: true };
        }
    }
}

impl PeerSlot {
    fn is_pending(&self) -> bool {
        matches!(self, Self::Empty | Self::Greeted(..) | Self::RetryAt(..))
    }

    fn retry_at(&self) -> Option<Instant> {
        if let Self::RetryAt(at, _) = self { Some(*at) } else { None }
    }

    fn watched_stream(&self) -> Option<&TcpStream> {
        match self {
            Self::Greeted(handshake, _) => Some(&handshake.stream),
            Self::Connected { stream, is_watched: true } => Some(stream),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_limit_below_world_size_is_rejected() {
        let may = |ranks, limit| {
            check_descriptor_limit(WorldSize::new(ranks).unwrap(), limit).map_err(|error| error.to_string())
        };
        assert_eq!(may(1022, Some(1024)), Ok(()));
        assert_eq!(may(1025, None), Ok(()));
        let error = may(1025, Some(1024)).unwrap_err();
        assert!(error.contains("1025 ranks") && error.contains("may open 1024 files"), "{error}");
        assert!(may(1023, Some(1024)).is_err());
    }
}
