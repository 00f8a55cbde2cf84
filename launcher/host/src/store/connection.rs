//! One client's connection: bytes in and requests out, replies in and bytes out.
//!
//! Memory is bounded both ways. The input is at most one incomplete request and one piece read after it. The output
//! is encoded piece by piece, and a client with unsent answers above [`MAX_UNSENT`] is paused: it is served no
//! request until it has read some of them. The server bounds all connections together.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use rankrun_contract::store::keyspace::{KeyListing, KeyspaceError, OVERHEAD};
use rankrun_contract::store::protocol::{
    Key, ProtocolError, Reply, ReplyWriter, Request, RequestDecoder, Value,
};

use super::socket;

/// How much is read or written at once, about.
pub(super) const READ_CHUNK: usize = 64 * 1024;

/// Buffers above this size are given back when they are empty, so that a thousand idle connections are small.
const MAX_KEPT_CAPACITY: usize = 4 * 1024;

/// Bytes of unsent replies above which a connection's requests have to wait: it never holds more than this and
/// one reply.
///
/// A reply shares its values with the keyspace, but not for long: a value that is replaced, appended to or
/// popped lives on in the replies alone, where no limit of the keyspace reaches it.
pub(super) const MAX_UNSENT: u64 = 16 * 1024 * 1024;

/// Bytes that are written to one client before other clients have their turn.
const MAX_WRITTEN: u64 = 512 * 1024;

/// After so long without an acknowledgement by the other machine its connection is lost: as long as torch's agents take
/// to give up a node.
const SILENCE: Duration = Duration::from_secs(15);

#[derive(Debug, thiserror::Error)]
pub(super) enum CloseReason {
    #[error("the client has gone")]
    ByClient,
    #[error("the connection failed")]
    Io(#[from] io::Error),
    #[error("the client does not speak the store's protocol")]
    Protocol(#[from] ProtocolError),
    #[error("the store cannot serve the client's request")]
    Keyspace(#[from] KeyspaceError),
    #[error("the client has asked for nothing since it connected")]
    Silent,
    #[error("the connections hold more than the store's limit, and this one the most")]
    TooMuch,
    #[error("the client has read none of its answers for too long")]
    Unread,
}

impl CloseReason {
    /// Whether the client, or the kernel of its machine, has ended the connection: a client that is not reached any
    /// more may be alive.
    pub(super) fn is_by_peer(&self) -> bool {
        match self {
            Self::ByClient => true,
            Self::Io(error) => {
                matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
            }
            Self::Protocol(_) | Self::Keyspace(_) | Self::Silent | Self::TooMuch | Self::Unread => false,
        }
    }
}

/// A reply that is not encoded to its end.
#[derive(Debug)]
struct PendingReply {
    writer: ReplyWriter,
    /// The memory that it may hold, in bytes.
    weight: u64,
    /// Its memory beside values, which it shares, in bytes.
    own: u64,
}

#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    decoder: RequestDecoder,
    /// Bytes that were read and not decoded yet.
    incoming: Vec<u8>,
    replies: VecDeque<PendingReply>,
    unsent: u64,
    /// The memory of all `replies` beside values.
    own_unsent: u64,
    /// Unsent bytes above which requests have to wait.
    allowed: u64,
    /// Bytes that the client has taken since the last tick.
    taken: u64,
    /// Ticks for which bytes were there for the client, and it took none.
    unread_ticks: u32,
    /// The read bytes may hold a request that waits for the client to read.
    is_paused: bool,
    /// The encoded part of `replies`, sent up to `sent`.
    outgoing: Vec<u8>,
    sent: usize,
    /// Bytes that were written in this turn.
    written_in_turn: u64,
    /// The keys found so far for a `LIST_KEYS`. The requests after it wait.
    listing: Option<KeyListing>,
    has_ended: bool,
    interest: EpollFlags,
}

impl Connection {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        if stream.peer_addr()?.ip().to_canonical().is_loopback() {
            // An idle client has not gone, and a client that reads late may be held up for long.
            stream.set_nodelay(true)?;
        } else {
            socket::set_peer_timeout(&stream, SILENCE)?;
        }
        Ok(Self {
            stream,
            decoder: RequestDecoder::new(),
            incoming: Vec::new(),
            replies: VecDeque::new(),
            unsent: 0,
            own_unsent: 0,
            allowed: MAX_UNSENT,
            taken: 0,
            unread_ticks: 0,
            is_paused: false,
            outgoing: Vec::new(),
            sent: 0,
            written_in_turn: 0,
            listing: None,
            has_ended: false,
            interest: EpollFlags::EPOLLIN,
        })
    }

    /// Lets the connection write another [`MAX_WRITTEN`]. The answers that the client has not read may be as large as
    /// `allowed`, or one alone may wait.
    pub(super) fn begin_turn(&mut self, allowed: u64) {
        self.written_in_turn = 0;
        self.allowed = allowed;
    }

    /// Reads once; nothing where nothing is there. A client that sends no more has `has_ended`.
    pub(super) fn receive<'a>(&mut self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        match (&self.stream).read(buffer) {
            Ok(length) => {
                self.has_ended = length == 0;
                Ok(&buffer[..length])
            }
            Err(error) if is_transient(&error) => Ok(&[]),
            Err(error) => Err(error),
        }
    }

    /// The requests that are complete with the `received` bytes, one by one; none while the client does not read its
    /// answers.
    pub(super) fn requests<'a>(&'a mut self, received: &'a [u8]) -> Requests<'a> {
        // Most requests come whole: their bytes are not copied.
        let received = if self.incoming.is_empty() {
            received
        } else {
            self.incoming.extend_from_slice(received);
            &[]
        };
        Requests { connection: self, received, decoded: 0 }
    }

    /// Queues a reply; [`flush`](Self::flush) sends it.
    pub(super) fn reply(&mut self, reply: Reply) {
        let (weight, own) = (weight(&reply), own_weight(&reply));
        self.queue(reply, weight, own);
    }

    /// The keys found so far for a `LIST_KEYS`, if the client has asked for one.
    pub(super) fn listing(&mut self) -> Option<&mut KeyListing> {
        self.listing.as_mut()
    }

    /// Queues the keys that were found as the reply of the `LIST_KEYS`.
    pub(super) fn reply_listing(&mut self) {
        // Counted as they were found: there may be millions of them.
        let own = self.listing_weight();
        let Some(KeyListing { keys, bytes }) = self.listing.take() else { return };
        let weight = bytes + (keys.len() as u64 + 1) * OVERHEAD;
        self.queue(Reply::Keys(keys), weight, own);
    }

    /// The memory of the keys found so far, in bytes.
    fn listing_weight(&self) -> u64 {
        self.listing.as_ref().map_or(0, |listing| own_weight_of_keys(listing.keys.len(), listing.bytes))
    }

    /// Takes the keys of all listings that are not sent, to be freed in steps.
    pub(super) fn take_listed_keys(&mut self) -> impl Iterator<Item = std::vec::IntoIter<Key>> {
        let found = self.listing.take().map(|listing| listing.keys.into_iter());
        let unsent = self.replies.drain(..).map(|reply| reply.writer.into_keys());
        found.into_iter().chain(unsent).filter(|keys| keys.len() > 0)
    }

    fn queue(&mut self, reply: Reply, weight: u64, own: u64) {
        self.unsent += weight;
        self.own_unsent += own;
        self.replies.push_back(PendingReply { writer: ReplyWriter::new(reply), weight, own });
    }

    /// Writes what the socket takes, up to the end of the turn.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        loop {
            if self.sent == self.outgoing.len() {
                self.outgoing.clear();
                self.sent = 0;
                self.encode();
            }
            if self.outgoing.is_empty() {
                shrink_buffer(&mut self.outgoing);
                return Ok(());
            }
            if self.is_turn_over() {
                return Ok(());
            }
            match (&self.stream).write(&self.outgoing[self.sent..]) {
                Ok(length) => {
                    self.sent += length;
                    self.taken += length as u64;
                    self.written_in_turn += length as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn encode(&mut self) {
        while self.outgoing.len() < READ_CHUNK
            && let Some(reply) = self.replies.front_mut()
        {
            if !reply.writer.fill(&mut self.outgoing, READ_CHUNK) {
                return;
            }
            self.unsent -= reply.weight;
            self.own_unsent -= reply.own;
            self.replies.pop_front();
        }
    }

    /// Bytes that this connection alone holds: requests that are not complete yet or wait for the client to read, and
    /// answers without their values.
    pub(super) fn held(&self) -> u64 {
        self.decoder.held_bytes()
            + (self.incoming.len() + self.outgoing.len()) as u64
            + self.own_unsent
            + self.listing_weight()
    }

    /// Bytes that may be free when this connection is closed, at most.
    pub(super) fn load(&self) -> u64 {
        self.held() - self.own_unsent + self.unsent
    }

    /// Counts a tick; for how many the client has taken nothing although something was there.
    pub(super) fn tick(&mut self) -> u32 {
        let has_read = std::mem::take(&mut self.taken) > 0 || !self.has_output();
        self.unread_ticks = if has_read { 0 } else { self.unread_ticks.saturating_add(1) };
        self.unread_ticks
    }

    /// For how many ticks the client has taken nothing.
    pub(super) fn unread_ticks(&self) -> u32 {
        self.unread_ticks
    }

    /// Whether requests wait for the client to read.
    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Whether something is left to do as soon as the client can be written to.
    pub(super) fn has_output(&self) -> bool {
        self.sent < self.outgoing.len() || !self.replies.is_empty() || self.is_paused
    }

    /// Whether more may be read from the client.
    pub(super) fn takes_input(&self) -> bool {
        !self.has_ended && !self.is_full() && self.listing.is_none()
    }

    fn is_full(&self) -> bool {
        self.unsent > self.allowed
    }

    fn is_turn_over(&self) -> bool {
        self.written_in_turn >= MAX_WRITTEN
    }

    /// The events to wait for, if they changed.
    pub(super) fn changed_interest(&mut self) -> Option<EpollFlags> {
        let mut interest = EpollFlags::empty();
        interest.set(EpollFlags::EPOLLIN, self.takes_input());
        interest.set(EpollFlags::EPOLLOUT, self.has_output());
        (std::mem::replace(&mut self.interest, interest) != interest).then_some(interest)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// See [`Connection::requests`]. The bytes that are left belong to the connection once this is dropped.
pub(super) struct Requests<'a> {
    connection: &'a mut Connection,
    /// Bytes that are not in the connection's buffer, which is empty then.
    received: &'a [u8],
    /// How much of the one or the other is decoded.
    decoded: usize,
}

impl Requests<'_> {
    pub(super) fn next(&mut self) -> Result<Option<Request>, CloseReason> {
        let connection = &mut *self.connection;
        if connection.is_full() {
            connection.flush()?;
        }
        connection.is_paused = connection.is_full() || connection.is_turn_over();
        if connection.is_paused || connection.listing.is_some() {
            return Ok(None);
        }
        let bytes = if self.received.is_empty() { &connection.incoming } else { self.received };
        let (consumed, request) = connection.decoder.decode(&bytes[self.decoded..])?;
        self.decoded += consumed;
        Ok(request)
    }

    pub(super) fn reply(&mut self, reply: Reply) {
        self.connection.reply(reply);
    }

    /// Begins to collect keys. The requests after this one wait for [`Connection::reply_listing`].
    pub(super) fn begin_listing(&mut self) {
        self.connection.listing = Some(KeyListing::default());
    }
}

impl Drop for Requests<'_> {
    fn drop(&mut self) {
        let incoming = &mut self.connection.incoming;
        if !self.received.is_empty() {
            incoming.extend_from_slice(&self.received[self.decoded..]);
            return;
        }
        incoming.drain(..self.decoded);
        shrink_buffer(incoming);
        // The pages of a large request stay with the buffer, and no limit counts them.
        if incoming.capacity() > 2 * READ_CHUNK && incoming.len() <= incoming.capacity() / 2 {
            incoming.shrink_to_fit();
        }
    }
}

/// Upper bound of the memory that a reply holds, in bytes: its elements and the cost of each beside its bytes.
fn weight(reply: &Reply) -> u64 {
    let of = |length: usize| OVERHEAD + length as u64;
    let elements = match reply {
        Reply::Value(value) | Reply::Popped(Some((_, value))) => of(value.len()),
        Reply::Values(values) => values.iter().map(|value| of(value.len())).sum(),
        Reply::Keys(keys) => keys.iter().map(|key| of(key.len())).sum(),
        _ => 0,
    };
    OVERHEAD + elements
}

/// The memory of a reply beside the bytes of values, which it shares with the keyspace and other replies.
fn own_weight(reply: &Reply) -> u64 {
    match reply {
        Reply::Values(values) => (size_of::<PendingReply>() + values.len() * size_of::<Value>()) as u64,
        Reply::Keys(keys) => own_weight_of_keys(keys.len(), keys.iter().map(|key| key.len() as u64).sum()),
        _ => size_of::<PendingReply>() as u64,
    }
}

/// As [`own_weight`], for keys with this total of bytes.
fn own_weight_of_keys(count: usize, bytes: u64) -> u64 {
    (size_of::<PendingReply>() + count * size_of::<Key>()) as u64 + bytes
}

/// Frees an empty buffer that has grown large.
fn shrink_buffer(buffer: &mut Vec<u8>) {
    if buffer.is_empty() && buffer.capacity() > MAX_KEPT_CAPACITY {
        *buffer = Vec::new();
    }
}

/// Whether a call failed only for now.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Whether accepting failed for the connection, not for the listener.
pub(super) fn is_of_one_connection(error: &io::Error) -> bool {
    let aborted = matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::PermissionDenied);
    // Linux hands errors of the new connection, such as an unreachable network, to `accept`.
    let network = matches!(
        error.raw_os_error().map(Errno::from_raw),
        Some(
            Errno::ENETDOWN
                | Errno::EPROTO
                | Errno::ENOPROTOOPT
                | Errno::EHOSTDOWN
                | Errno::ENONET
                | Errno::EHOSTUNREACH
                | Errno::EOPNOTSUPP
                | Errno::ENETUNREACH
        )
    );
    aborted || network || is_transient(error)
}
