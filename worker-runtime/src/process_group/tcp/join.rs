//! How ranks become a group: addresses through the store, then one connection between every two ranks.
//!
//! Every rank listens and publishes its address; a rank connects to all lower ranks and is connected to by
//! all higher ones. Whoever connects must say the token that rank 0 put into the store, and for which run,
//! life and rank it comes: anything else is closed at its first wrong byte and has no effect. A connection
//! that says nothing holds up no other, and a flood of connections keeps no rank out ([`Unidentified`]).

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use rankrun_contract::rank::{Rank, WorldSize};
use rustix::process::{Resource, getrlimit};

use super::exchange::rank_at;
use super::mesh::Mesh;
use crate::process_group::error::{GroupError, LossCause};
use crate::process_group::host;
use crate::process_group::meet::{self, Seat, lost};
use crate::process_group::plan::PROTOCOL;
use crate::process_group::poll::poll;
use crate::process_group::unidentified::{ACCEPT_BATCH, BACKLOG, Entry, Retry, Unidentified};
use crate::store::TcpStore;
use crate::{clock, socket};

/// Most bytes of the run id in a greeting.
const MAX_RUN_ID: usize = 1024;
/// Where rank 0's secret lies.
const TOKEN_KEY: &str = "token";

/// Finds the other ranks through `store`, which must be seen by this group only.
pub(crate) fn join(store: &TcpStore, seat: &Seat) -> Result<Mesh, GroupError> {
    let mesh = Mesh::new(connect(store, seat)?)?;
    Ok(if has_own_processor(seat) { mesh.spinning() } else { mesh })
}

/// Whether there is a processor for each rank of this host, as far as this rank may use them.
fn has_own_processor(seat: &Seat) -> bool {
    let host = seat.hosts.get(seat.rank.index());
    let ranks = seat.hosts.iter().filter(|&it| Some(it) == host).count();
    std::thread::available_parallelism().is_ok_and(|processors| processors.get() >= ranks)
}

/// A connection to every other rank, by rank, on which nothing waits.
pub(crate) fn connect(store: &TcpStore, seat: &Seat) -> Result<Vec<Option<TcpStream>>, GroupError> {
    if let Err(error) = has_room(seat.world_size, getrlimit(Resource::Nofile).current) {
        return Err(meet::agreed(store, seat, error));
    }
    let mut joining = Joining::new(seat, listen(store, seat)?);
    match joining.meet(store) {
        Ok(()) => Ok(joining.into_streams()),
        // The connections are closed, which others take for a loss, only when the verdict is written.
        Err(error) => Err(meet::agreed(store, seat, error)),
    }
}

/// Refuses at once what is sure to fail after many connections: one to each other rank, and the three standard streams.
fn has_room(world_size: WorldSize, limit: Option<u64>) -> Result<(), GroupError> {
    match limit {
        Some(limit) if u64::from(world_size.get()) + 2 > limit => {
            Err(GroupError::FewDescriptors { world_size, limit })
        }
        _ => Ok(()),
    }
}

/// A socket that only this machine can reach, unless ranks are on other ones.
fn listen(store: &TcpStore, seat: &Seat) -> Result<TcpListener, GroupError> {
    let listener = if seat.spans_hosts() {
        TcpListener::bind((host::address(seat.interface.as_deref(), store.local_address()?)?, 0))?
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

/// The addresses of all ranks below this one.
fn await_lower_ranks(store: &TcpStore, seat: &Seat) -> Result<Vec<SocketAddr>, GroupError> {
    let keys: Vec<String> = (0..seat.rank.0).map(address_key).collect();
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    meet::await_ranks(store, seat, &keys)?;
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let parse = |(key, value): (&&str, Vec<u8>)| {
        let address = std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
        address.ok_or_else(|| GroupError::strange_entry(key, &value))
    };
    keys.iter().zip(store.multi_get(&keys)?).map(parse).collect()
}

fn failed(seat: &Seat, rank: Rank, error: &io::Error) -> GroupError {
    lost(seat, rank, LossCause::from(error.kind()))
}

/// What a connection says first: to whom it thinks it speaks, then which rank it is.
fn greeting(seat: &Seat, token: &[u8], to: Rank) -> Vec<u8> {
    let run_id = seat.run_id.as_bytes();
    let run_id = &run_id[..run_id.len().min(MAX_RUN_ID)];
    let mut bytes = format!("rankrun group {PROTOCOL}\n").into_bytes();
    for text in [token, run_id] {
        bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
        bytes.extend_from_slice(text);
    }
    for number in [seat.life, seat.world_size.get(), to.0] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// How much of a greeting there is once the token was said.
fn token_end(token: &[u8]) -> usize {
    format!("rankrun group {PROTOCOL}\n").len() + size_of::<u64>() + token.len()
}

/// What the listener answers.
fn welcome(token: &[u8]) -> Vec<u8> {
    [b"rankrun welcome\n", token].concat()
}

/// The connections of a group that is not complete yet.
struct Joining<'a> {
    seat: &'a Seat,
    /// Rank 0's secret; empty until it is known.
    token: Vec<u8>,
    listener: TcpListener,
    chairs: Vec<Chair>,
    unidentified: Unidentified<Conversation, IpAddr>,
}

/// The connection to one rank.
enum Chair {
    Own,
    Empty,
    /// We connected; its welcome is under way.
    Greeted(Conversation, Attempt),
    /// It closed our connection before it said anything: we connect again then.
    Again(Instant, Attempt),
    /// `watched` until the first message of the rank is there.
    Taken {
        stream: TcpStream,
        watched: bool,
    },
}

/// A try to reach a lower rank.
#[derive(Clone, Copy)]
struct Attempt {
    address: SocketAddr,
    retry: Retry,
    /// Why the connection before this one ended.
    closed: Option<ErrorKind>,
}

/// A connection on which known bytes are expected.
struct Conversation {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Conversation {
    /// Reads what is there, up to `length` bytes in all and never beyond; whether they are complete.
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

impl<'a> Joining<'a> {
    fn new(seat: &'a Seat, listener: TcpListener) -> Self {
        let chair = |rank| if rank == seat.rank.0 { Chair::Own } else { Chair::Empty };
        let chairs = (0..seat.world_size.get()).map(chair).collect();
        let unidentified =
            Unidentified::new(seat.world_size.get() as usize, getrlimit(Resource::Nofile).current);
        Self { seat, token: Vec::new(), listener, chairs, unidentified }
    }

    fn meet(&mut self, store: &TcpStore) -> Result<(), GroupError> {
        let rank = self.seat.rank;
        if rank == Rank(0) {
            // Before its address, so that who has the one finds the other.
            store.set(TOKEN_KEY, uuid::Uuid::new_v4().to_string().as_bytes())?;
        }
        store.set(&address_key(rank.0), self.listener.local_addr()?.to_string().as_bytes())?;
        let addresses = await_lower_ranks(store, self.seat)?;
        self.token = store.get(TOKEN_KEY)?;
        for (address, lower) in addresses.into_iter().zip(0..) {
            let attempt = Attempt { address, retry: Retry::new(clock::now()), closed: None };
            self.greet(Rank(lower), attempt)?;
        }
        self.complete()?;
        if rank == Rank(0) {
            // Who greets has read everything, and all have greeted rank 0: a store that lives for long does not fill up.
            store.delete(TOKEN_KEY)?;
            (0..self.seat.world_size.get())
                .try_for_each(|rank| store.delete(&address_key(rank)).map(drop))?;
        }
        Ok(())
    }

    /// Connects to a lower rank.
    fn greet(&mut self, rank: Rank, attempt: Attempt) -> Result<(), GroupError> {
        let connect = || {
            let remaining = clock::until(self.seat.join_by).max(Duration::from_millis(1));
            let stream = TcpStream::connect_timeout(&attempt.address, remaining)?;
            // A rank may be busy for long and read nothing.
            socket::watch(&stream, None)?;
            Ok(stream)
        };
        let mut stream = connect().map_err(|error: io::Error| match socket::is_own_shortage(&error) {
            true => error.into(),
            // Where the rank is gone, the end of the first connection says how.
            false => failed(self.seat, rank, &attempt.closed.map_or(error, io::Error::from)),
        })?;
        let mut bytes = greeting(self.seat, &self.token, rank);
        bytes.extend_from_slice(&self.seat.rank.0.to_le_bytes());
        if let Err(error) = stream.write_all(&bytes).and_then(|()| stream.set_nonblocking(true)) {
            return self.try_again(rank, attempt, &error);
        }
        self.chairs[rank.index()] = Chair::Greeted(Conversation { stream, received: Vec::new() }, attempt);
        Ok(())
    }

    /// A lower rank has closed our connection before it said anything.
    fn try_again(&mut self, rank: Rank, mut attempt: Attempt, error: &io::Error) -> Result<(), GroupError> {
        let is_closed = matches!(
            error.kind(),
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
        );
        let next = if is_closed { attempt.retry.next(clock::now()) } else { None };
        let Some(next) = next else { return Err(failed(self.seat, rank, error)) };
        attempt.closed.get_or_insert(error.kind());
        self.chairs[rank.index()] = Chair::Again(next, attempt);
        Ok(())
    }

    /// Connects again to ranks whose time for it has come.
    fn greet_again(&mut self) -> Result<(), GroupError> {
        let now = clock::now();
        for rank in 0..self.seat.rank.0 {
            match self.chairs[Rank(rank).index()] {
                Chair::Again(at, attempt) if now >= at => self.greet(Rank(rank), attempt)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Waits until every chair is taken.
    fn complete(&mut self) -> Result<(), GroupError> {
        loop {
            self.greet_again()?;
            self.hear_welcomes()?;
            self.watch_taken()?;
            self.accept()?;
            self.hear_unidentified();
            let Some(missing) = self.chairs.iter().position(Chair::is_open) else { return Ok(()) };
            if clock::until(self.seat.join_by).is_zero() {
                return Err(lost(self.seat, rank_at(missing), LossCause::Timeout(self.seat.timeout)));
            }
            let again = self.chairs.iter().filter_map(Chair::again_at);
            let next = again.chain(self.unidentified.deadline()).fold(self.seat.join_by, Instant::min);
            self.wait(next)?;
        }
    }

    /// The connections by rank.
    fn into_streams(self) -> Vec<Option<TcpStream>> {
        let stream = |chair| if let Chair::Taken { stream, .. } = chair { Some(stream) } else { None };
        self.chairs.into_iter().map(stream).collect()
    }

    fn wait(&self, deadline: Instant) -> io::Result<()> {
        let streams = self.unidentified.connections().map(|it| &it.stream);
        let streams = streams.chain(self.chairs.iter().filter_map(Chair::watched));
        let mut fds: Vec<_> = streams.map(|it| PollFd::new(it.as_fd(), PollFlags::POLLIN)).collect();
        let (now, mut deadline) = (clock::now(), deadline);
        match self.unidentified.admits_at(now) {
            at if at > now => deadline = deadline.min(at),
            _ => fds.push(PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)),
        }
        poll(&mut fds, deadline).map(drop)
    }

    fn hear_welcomes(&mut self) -> Result<(), GroupError> {
        let expected = welcome(&self.token);
        for rank in 0..self.seat.rank.0 {
            let chair = &mut self.chairs[Rank(rank).index()];
            let Chair::Greeted(conversation, attempt) = chair else { continue };
            let complete = match conversation.read(expected.len()) {
                Ok(complete) => complete,
                Err(error) if conversation.received.is_empty() => {
                    let attempt = *attempt;
                    self.try_again(Rank(rank), attempt, &error)?;
                    continue;
                }
                Err(error) => return Err(failed(self.seat, Rank(rank), &error)),
            };
            if !expected.starts_with(&conversation.received) {
                return Err(failed(self.seat, Rank(rank), &ErrorKind::InvalidData.into()));
            }
            if complete && let Chair::Greeted(conversation, _) = std::mem::replace(chair, Chair::Empty) {
                *chair = Chair::Taken { stream: conversation.stream, watched: true };
            }
        }
        Ok(())
    }

    /// A rank that was here already may be gone before the others have come.
    fn watch_taken(&mut self) -> Result<(), GroupError> {
        for (chair, rank) in self.chairs.iter_mut().zip(0..) {
            let Chair::Taken { stream, watched: watched @ true } = chair else { continue };
            match stream.peek(&mut [0]) {
                Ok(0) => return Err(lost(self.seat, Rank(rank), LossCause::Closed)),
                Ok(_) => *watched = false,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(failed(self.seat, Rank(rank), &error)),
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<(), GroupError> {
        for _ in 0..ACCEPT_BATCH {
            let now = clock::now();
            if self.unidentified.admits_at(now) > now {
                break;
            }
            let dropped = match self.listener.accept() {
                Ok((stream, from)) => {
                    if stream.set_nonblocking(true).is_err() || socket::watch(&stream, None).is_err() {
                        continue;
                    }
                    let conversation = Conversation { stream, received: Vec::new() };
                    self.unidentified.add(Entry::new(conversation, from.ip().to_canonical(), now))
                }
                Err(error) if socket::is_own_shortage(&error) => match self.unidentified.make_room() {
                    Some(dropped) => Some(dropped),
                    None => return Err(error.into()),
                },
                // That of one connection, which is gone again, or passes: the others are not worse off.
                Err(_) => break,
            };
            if let Some(dropped) = dropped {
                // It may have identified itself a moment ago.
                drop(self.hear(dropped));
            }
        }
        Ok(())
    }

    fn hear_unidentified(&mut self) {
        for entry in self.unidentified.take_all() {
            if let Some(entry) = self.hear(entry) {
                self.unidentified.put_back(entry);
            }
        }
    }

    /// Hears a connection, and seats it where its greeting is complete; the connection where it has to be heard again.
    fn hear(&mut self, mut entry: Entry<Conversation, IpAddr>) -> Option<Entry<Conversation, IpAddr>> {
        let expected = greeting(self.seat, &self.token, self.seat.rank);
        let heard = entry.connection.read(expected.len() + size_of::<u32>());
        let received = &entry.connection.received;
        let common = received.len().min(expected.len());
        if received[..common] != expected[..common] {
            return None;
        }
        entry.knows_token = received.len() >= token_end(&self.token);
        match heard {
            Ok(true) => {
                self.seat_stranger(entry.connection, expected.len());
                None
            }
            Ok(false) if !clock::until(entry.deadline()).is_zero() => Some(entry),
            _ => None,
        }
    }

    fn seat_stranger(&mut self, conversation: Conversation, rank_at: usize) {
        let Conversation { mut stream, received } = conversation;
        let Some(rank) = received[rank_at..].first_chunk().map(|bytes| u32::from_le_bytes(*bytes)) else {
            return;
        };
        let chair = self.chairs.get_mut(Rank(rank).index());
        if let Some(chair @ Chair::Empty) = chair
            && stream.write_all(&welcome(&self.token)).is_ok()
        {
            *chair = Chair::Taken { stream, watched: true };
        }
    }
}

impl Chair {
    fn is_open(&self) -> bool {
        matches!(self, Self::Empty | Self::Greeted(..) | Self::Again(..))
    }

    fn again_at(&self) -> Option<Instant> {
        if let Self::Again(at, _) = self { Some(*at) } else { None }
    }

    fn watched(&self) -> Option<&TcpStream> {
        match self {
            Self::Greeted(conversation, _) => Some(&conversation.stream),
            Self::Taken { stream, watched: true } => Some(stream),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_for_which_there_are_not_enough_descriptors_is_refused_at_once() {
        let may = |ranks, limit| has_room(WorldSize::new(ranks).unwrap(), limit).map_err(|it| it.to_string());
        assert_eq!(may(1022, Some(1024)), Ok(()));
        assert_eq!(may(1025, None), Ok(()));
        let error = may(1025, Some(1024)).unwrap_err();
        assert!(error.contains("1025 ranks") && error.contains("may open 1024 files"), "{error}");
        assert!(may(1023, Some(1024)).is_err());
    }
}
