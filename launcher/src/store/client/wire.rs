//! The client's socket: whole requests out and whole answers in, each until a moment at the latest.

#![expect(clippy::disallowed_methods, reason = "how long is left is read from the clock")]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rankrun_contract::store::protocol::{HANDSHAKE, Reply, ReplyDecoder, ReplyKind, Request};

use super::super::socket;
use super::open::open;
use super::{ClientError, ClientSettings, ROUND_TRIPS, answer_limit, stranger};

/// Longest answer, in bytes: a state and everything beside it, or the names of a few hundred thousand keys.
const MAX_ANSWER: usize = 32 * 1024 * 1024;

/// How much is read at once.
const PIECE: usize = 16 * 1024;

/// How long an answer may be under way before something else is sent.
const NUDGE: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    /// What arrived and is not decoded.
    input: Vec<u8>,
    /// The number in our greeting, and in what is sent only to send something.
    nonce: u32,
    /// So many answers come before the next that is wanted, and mean nothing.
    owed: u32,
}

/// An answer of which a part may have come.
struct Reading {
    decoder: ReplyDecoder,
    taken: usize,
}

impl Reading {
    const fn of(kind: ReplyKind) -> Self {
        Self { decoder: ReplyDecoder::new(kind), taken: 0 }
    }
}

impl Wire {
    /// Connects to one address by `deadline`, introduces itself and is answered: by `deadline` too, or within a few of the
    /// round trips that the connection has shown to take.
    pub(super) fn connect(
        address: SocketAddr,
        settings: &ClientSettings,
        deadline: Instant,
    ) -> Result<Self, ClientError> {
        let stream = open(address, deadline)?;
        socket::set_peer_timeout(&stream, settings.silence).map_err(io::Error::from)?;
        let nonce = settings.nonce;
        let mut wire = Self { stream, input: Vec::new(), nonce, owed: 0 };
        let (began, round_trip) = (Instant::now(), wire.round_trip());
        let deadline = deadline.max(began + round_trip * ROUND_TRIPS);
        let deadline = deadline.min(began + answer_limit(settings.answer, round_trip));
        let greeted = wire.greet(deadline).map_err(|error| wire.stranger_or(error))?;
        let answer = if greeted { wire.answer(ReplyKind::Pong, deadline) } else { Ok(None) };
        match answer.map_err(|error| wire.stranger_or(error))? {
            Some(Reply::Pong(answer)) if answer == nonce => Ok(wire),
            Some(Reply::Pong(answer)) => {
                let said = [&answer.to_le_bytes(), wire.input.as_slice()].concat();
                Err(ClientError::Stranger { said: stranger::first_line(&mut wire.stream, said) })
            }
            Some(_) => Err(ClientError::NoStore),
            None => {
                let millis = u64::try_from((deadline - began).as_millis()).unwrap_or(u64::MAX);
                Err(ClientError::Silent { limit: Duration::from_millis(millis) })
            }
        }
    }

    /// A greeting that ended after fewer bytes than a store answers was ended by another program.
    fn stranger_or(&mut self, error: ClientError) -> ClientError {
        let said = stranger::first_line(&mut self.stream, std::mem::take(&mut self.input));
        if said.is_empty() { error } else { ClientError::Stranger { said } }
    }

    /// Introduces itself; whether the kernel took it in time.
    fn greet(&mut self, deadline: Instant) -> Result<bool, ClientError> {
        let nonce = self.nonce;
        Ok(self.write(&HANDSHAKE, deadline)? && self.send(&Request::Ping { nonce }, deadline)?)
    }

    /// The kernel's smoothed round-trip time of the connection; zero where it knows none.
    pub(super) fn round_trip(&self) -> Duration {
        socket::round_trip(&self.stream)
    }

    pub(super) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// Whether the kernel took the request in time; after a `false` the connection is of no use.
    pub(super) fn send(&mut self, request: &Request, deadline: Instant) -> Result<bool, ClientError> {
        let mut bytes = Vec::new();
        request.encode(&mut bytes).map_err(|_| ClientError::Limit)?;
        Ok(self.write(&bytes, deadline)?)
    }

    fn write(&mut self, mut bytes: &[u8], deadline: Instant) -> io::Result<bool> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if left(deadline).is_zero() {
                        return Ok(false);
                    }
                    self.ready(PollFlags::POLLOUT, deadline)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// The answer of a request that can be answered at once; `None` where it has not come whole by then.
    ///
    /// Where a packet is lost, the kernels learn it from those that come after it, within the time of a way there and
    /// back; without such only after a time that they guess, which is several times as long. So while nothing comes,
    /// something is sent that means nothing.
    pub(super) fn answer(
        &mut self,
        kind: ReplyKind,
        deadline: Instant,
    ) -> Result<Option<Reply>, ClientError> {
        let mut reading = Reading::of(kind);
        let mut nudges = 0;
        loop {
            let until = deadline.min(Instant::now() + NUDGE);
            let reply = if self.settle(until)? { self.take(&mut reading, until)? } else { None };
            if reply.is_some() {
                self.owed += nudges;
                return Ok(reply);
            }
            let nonce = self.nonce;
            if left(deadline).is_zero() || !self.send(&Request::Ping { nonce }, deadline)? {
                return Ok(None);
            }
            nudges += 1;
        }
    }

    /// One answer; `None` where it has not come whole by then. What has come already is taken however late it is.
    pub(super) fn read(&mut self, kind: ReplyKind, deadline: Instant) -> Result<Option<Reply>, ClientError> {
        if self.settle(deadline)? { self.next(kind, deadline) } else { Ok(None) }
    }

    /// As [`Self::read`], for a second answer of the request that [`Self::answer`] was for: it comes before what is owed.
    pub(super) fn next(&mut self, kind: ReplyKind, deadline: Instant) -> Result<Option<Reply>, ClientError> {
        self.take(&mut Reading::of(kind), deadline)
    }

    /// Takes what is owed; whether all of it has come.
    fn settle(&mut self, deadline: Instant) -> Result<bool, ClientError> {
        while self.owed > 0 {
            match self.next(ReplyKind::Pong, deadline)? {
                Some(Reply::Pong(nonce)) if nonce == self.nonce => self.owed -= 1,
                Some(_) => return Err(ClientError::NoStore),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn take(&mut self, reading: &mut Reading, deadline: Instant) -> Result<Option<Reply>, ClientError> {
        let mut piece = [0; PIECE];
        let mut late = false;
        loop {
            let decoded = reading.decoder.decode(&self.input);
            let (consumed, reply) = decoded.map_err(|_| ClientError::NoStore)?;
            self.input.drain(..consumed);
            reading.taken += consumed;
            if reading.taken > MAX_ANSWER {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the answer is too long").into());
            }
            // A server that sends without end is read once after the deadline. What was read is kept for the next call.
            if reply.is_some() || late {
                return Ok(reply);
            }
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(read) => {
                    self.input.extend_from_slice(&piece[..read]);
                    late = left(deadline).is_zero();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if left(deadline).is_zero() {
                        return Ok(None);
                    }
                    self.ready(PollFlags::POLLIN, deadline)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Until the socket is ready or the time is over; may end early.
    fn ready(&self, flags: PollFlags, deadline: Instant) -> io::Result<()> {
        // Rounded up, so that the last millisecond is not spent in a spin.
        let millis = i32::try_from(left(deadline).as_millis() + 1).unwrap_or(i32::MAX);
        let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.stream.as_fd(), flags)], timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Each look ends at once, in the middle of an answer that goes on.
    #[test]
    fn answer_interrupted_by_deadline_loses_no_byte() {
        let value: Vec<u8> = (0..4_000_000_u32).map(|at| (at % 251) as u8).collect();
        let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback has a free port");
        let stream = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
        stream.set_nonblocking(true).expect("a socket can be set");
        let mut bytes = u64::try_from(value.len()).expect("it fits").to_le_bytes().to_vec();
        bytes.extend(&value);
        let store = thread::spawn(move || listener.accept().expect("a client").0.write_all(&bytes));
        let mut wire = Wire { stream, input: Vec::new(), nonce: 1, owed: 0 };
        let mut reading = Reading::of(ReplyKind::Value);
        let reply = loop {
            if let Some(reply) = wire.take(&mut reading, Instant::now()).expect("no byte is lost") {
                break reply;
            }
        };
        store.join().expect("the store has sent").expect("the client reads");
        assert!(matches!(reply, Reply::Value(read) if *read == value), "another value came");
    }
}
