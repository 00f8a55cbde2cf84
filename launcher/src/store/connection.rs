//! One client's connection: bytes in and requests out, replies in and bytes out.
//!
//! Memory is bounded both ways. What comes in is at most one incomplete request and one piece read after it;
//! what goes out is encoded piece by piece, and while a client does not read its answers nothing more is read
//! from it.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::epoll::EpollFlags;
use rankrun_contract::store::keyspace::KeyspaceError;
use rankrun_contract::store::protocol::{ProtocolError, Reply, ReplyWriter, Request, RequestDecoder};

/// How much is read or written at once, about.
pub(super) const PIECE: usize = 64 * 1024;

/// Buffers above this size are given back when they are empty, so that a thousand idle connections are small.
const KEPT: usize = 4 * 1024;

/// How many unsent replies and elements of them a connection may have and still be read from.
const MAX_BACKLOG: usize = 1024;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum Closed {
    #[error("the client has gone")]
    ByClient,
    #[error("the connection failed")]
    Io(#[from] io::Error),
    #[error("the client does not speak the store's protocol")]
    Protocol(#[from] ProtocolError),
    #[error("the store cannot serve the client's request")]
    Keyspace(#[from] KeyspaceError),
}

#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    decoder: RequestDecoder,
    /// What was read and not decoded yet.
    incoming: Vec<u8>,
    replies: VecDeque<ReplyWriter>,
    /// Upper bound of what `replies` holds, in replies and elements.
    backlog: usize,
    /// The encoded part of `replies`, sent up to `sent`.
    outgoing: Vec<u8>,
    sent: usize,
    /// The client sends no more.
    ended: bool,
    interest: EpollFlags,
}

impl Connection {
    /// Takes over an accepted connection.
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        // A request and its answer are a few bytes each way: waiting to fill a packet would cost 40 ms.
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            decoder: RequestDecoder::new(),
            incoming: Vec::new(),
            replies: VecDeque::new(),
            backlog: 0,
            outgoing: Vec::new(),
            sent: 0,
            ended: false,
            interest: EpollFlags::EPOLLIN,
        })
    }

    /// Reads once. A client that sends no more has `ended`.
    pub(super) fn receive(&mut self, piece: &mut [u8]) -> io::Result<()> {
        match (&self.stream).read(piece) {
            Ok(0) => self.ended = true,
            Ok(length) => self.incoming.extend_from_slice(&piece[..length]),
            Err(error) if is_transient(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The requests that are complete, one by one; none while the client does not read its answers.
    pub(super) fn requests(&mut self) -> Requests<'_> {
        Requests { connection: self, decoded: 0 }
    }

    /// Queues a reply; [`flush`](Self::flush) sends it.
    pub(super) fn reply(&mut self, reply: Reply) {
        self.backlog += match &reply {
            Reply::Values(values) => 1 + values.len(),
            Reply::Keys(keys) => 1 + keys.len(),
            _ => 1,
        };
        self.replies.push_back(ReplyWriter::new(reply));
    }

    /// Sends what the socket takes.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        loop {
            if self.sent == self.outgoing.len() {
                self.outgoing.clear();
                self.sent = 0;
                self.encode();
            }
            if self.outgoing.is_empty() {
                self.backlog = 0;
                give_back(&mut self.outgoing);
                return Ok(());
            }
            match (&self.stream).write(&self.outgoing[self.sent..]) {
                Ok(length) => self.sent += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn encode(&mut self) {
        while self.outgoing.len() < PIECE
            && let Some(reply) = self.replies.front_mut()
        {
            if !reply.fill(&mut self.outgoing, PIECE) {
                return;
            }
            self.replies.pop_front();
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(super) fn has_output(&self) -> bool {
        self.sent < self.outgoing.len() || !self.replies.is_empty()
    }

    /// Whether more may be read from the client.
    pub(super) fn takes_input(&self) -> bool {
        !self.ended && self.backlog <= MAX_BACKLOG
    }

    /// What to wait for, if that changed.
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

/// See [`Connection::requests`]. What was decoded leaves the buffer once, when this is dropped.
pub(super) struct Requests<'a> {
    connection: &'a mut Connection,
    decoded: usize,
}

impl Requests<'_> {
    pub(super) fn next(&mut self) -> Result<Option<Request>, Closed> {
        let connection = &mut *self.connection;
        if connection.backlog > MAX_BACKLOG {
            connection.flush()?;
            if connection.backlog > MAX_BACKLOG {
                return Ok(None);
            }
        }
        let (consumed, request) = connection.decoder.decode(&connection.incoming[self.decoded..])?;
        self.decoded += consumed;
        Ok(request)
    }

    pub(super) fn reply(&mut self, reply: Reply) {
        self.connection.reply(reply);
    }
}

impl Drop for Requests<'_> {
    fn drop(&mut self) {
        self.connection.incoming.drain(..self.decoded);
        give_back(&mut self.connection.incoming);
    }
}

/// Frees an empty buffer that has grown large.
fn give_back(buffer: &mut Vec<u8>) {
    if buffer.is_empty() && buffer.capacity() > KEPT {
        *buffer = Vec::new();
    }
}

/// Whether a call failed only for now.
pub(super) fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
