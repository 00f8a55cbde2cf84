//! The client's socket: whole requests out and whole answers in, each until a deadline.

#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clock for its deadlines")]

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rankrun_contract::store::protocol::{HANDSHAKE, Reply, ReplyDecoder, ReplyKind, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout_at;

use super::super::socket;
use super::open::open;
use super::{ClientError, ClientSettings, ROUND_TRIPS, another_program, answer_limit};

/// Longest answer, in bytes: a state and everything beside it, or the names of a few hundred thousand keys.
const MAX_ANSWER: usize = 32 * 1024 * 1024;

/// Size of one read, in bytes.
const READ_BYTES: usize = 16 * 1024;

/// How long an answer may be under way before something else is sent.
const NUDGE_DELAY: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    /// Bytes that have arrived and are not decoded.
    input: Vec<u8>,
    /// Our client id, the number in each PING.
    nonce: u32,
    /// Answers that come before the next one that is wanted: values that were requested, and those of nudges.
    owed: VecDeque<PartialReply>,
}

/// An answer of which a part may have come.
#[derive(Debug)]
struct PartialReply {
    decoder: ReplyDecoder,
    taken: usize,
}

impl PartialReply {
    const fn of(kind: ReplyKind) -> Self {
        Self { decoder: ReplyDecoder::new(kind), taken: 0 }
    }
}

impl Wire {
    /// Connects to one address by `deadline`, sends the greeting, and reads its answer: by `deadline` too, or within a
    /// few of the round trips that the connection has shown to take.
    pub(super) async fn connect(
        address: SocketAddr,
        settings: &ClientSettings,
        deadline: Instant,
    ) -> Result<Self, ClientError> {
        let stream = open(address, deadline).await?;
        socket::set_peer_timeout(&stream, settings.silence).map_err(io::Error::from)?;
        let nonce = settings.nonce;
        let mut wire = Self { stream, input: Vec::new(), nonce, owed: VecDeque::new() };
        let (began, round_trip) = (Instant::now(), wire.round_trip());
        let deadline = deadline.max(began + round_trip * ROUND_TRIPS);
        let deadline = deadline.min(began + answer_limit(settings.answer, round_trip));
        let answer = match wire.greet(deadline).await {
            Ok(answer) => answer,
            Err(error) => return Err(wire.another_program_or(error).await),
        };
        match answer {
            Some(Reply::Pong(answer)) if answer == nonce => Ok(wire),
            Some(Reply::Pong(answer)) => {
                let reply = [&answer.to_le_bytes(), wire.input.as_slice()].concat();
                Err(ClientError::AnotherProgram {
                    reply: another_program::first_line(&mut wire.stream, reply).await,
                })
            }
            Some(_) => Err(ClientError::NoStore),
            None => {
                let millis = u64::try_from((deadline - began).as_millis()).unwrap_or(u64::MAX);
                Err(ClientError::Silent { limit: Duration::from_millis(millis) })
            }
        }
    }

    /// A greeting that ended after fewer bytes than a store answers was ended by another program.
    async fn another_program_or(&mut self, error: ClientError) -> ClientError {
        let reply = another_program::first_line(&mut self.stream, std::mem::take(&mut self.input)).await;
        if reply.is_empty() { error } else { ClientError::AnotherProgram { reply } }
    }

    /// Sends the greeting; `None` if it is not answered in time.
    async fn greet(&mut self, deadline: Instant) -> Result<Option<Reply>, ClientError> {
        let nonce = self.nonce;
        let is_sent =
            self.write(&HANDSHAKE, deadline).await? && self.send(&Request::Ping { nonce }, deadline).await?;
        if is_sent { self.answer(ReplyKind::Pong, deadline).await } else { Ok(None) }
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

    /// Returns when bytes have arrived that are not read, or the connection has ended. `input` never has a whole answer.
    pub(super) async fn readable(&self) -> io::Result<()> {
        self.stream.readable().await
    }

    /// Whether the kernel took the request in time; after a `false` the connection is of no use.
    pub(super) async fn send(&mut self, request: &Request, deadline: Instant) -> Result<bool, ClientError> {
        self.send_all(&[request], deadline).await
    }

    /// As [`Self::send`], with one write.
    pub(super) async fn send_all(
        &mut self,
        requests: &[&Request],
        deadline: Instant,
    ) -> Result<bool, ClientError> {
        let mut bytes = Vec::new();
        for request in requests {
            request.encode(&mut bytes).map_err(|_| ClientError::Limit)?;
        }
        Ok(self.write(&bytes, deadline).await?)
    }

    async fn write(&mut self, bytes: &[u8], deadline: Instant) -> io::Result<bool> {
        match timeout_at(deadline.into(), self.stream.write_all(bytes)).await {
            Ok(written) => written.map(|()| true),
            Err(_) => Ok(false),
        }
    }

    /// The answer of a request that can be answered at once; `None` if it has not come whole by `deadline`.
    ///
    /// If a packet is lost, the kernels learn it from later packets, within a round trip. Without later packets they
    /// learn it only after a time that they guess, which is several times as long. So pings are sent while no answer
    /// comes.
    pub(super) async fn answer(
        &mut self,
        kind: ReplyKind,
        deadline: Instant,
    ) -> Result<Option<Reply>, ClientError> {
        self.answer_before(kind, None, deadline).await
    }

    /// As [`Self::answer`], before an answer that is then owed.
    pub(super) async fn answer_before(
        &mut self,
        kind: ReplyKind,
        owed: Option<ReplyKind>,
        deadline: Instant,
    ) -> Result<Option<Reply>, ClientError> {
        let mut partial = PartialReply::of(kind);
        let mut nudges = 0;
        loop {
            let until = deadline.min(Instant::now() + NUDGE_DELAY);
            let reply = if self.settle(until).await? { self.take(&mut partial, until).await? } else { None };
            if reply.is_some() {
                let pongs = std::iter::repeat_n(ReplyKind::Pong, nudges);
                self.owed.extend(owed.into_iter().chain(pongs).map(PartialReply::of));
                return Ok(reply);
            }
            let nonce = self.nonce;
            if is_past(deadline) || !self.send(&Request::Ping { nonce }, deadline).await? {
                return Ok(None);
            }
            nudges += 1;
        }
    }

    /// One answer; `None` if it has not come whole by `deadline`.
    pub(super) async fn read(
        &mut self,
        kind: ReplyKind,
        deadline: Instant,
    ) -> Result<Option<Reply>, ClientError> {
        if self.settle(deadline).await? { self.next(kind, deadline).await } else { Ok(None) }
    }

    /// As [`Self::read`], for a second answer of the request that [`Self::answer`] was for. It comes before the answers
    /// of the nudges.
    pub(super) async fn next(
        &mut self,
        kind: ReplyKind,
        deadline: Instant,
    ) -> Result<Option<Reply>, ClientError> {
        self.take(&mut PartialReply::of(kind), deadline).await
    }

    /// The values that are owed; `None` if they have not come whole by `deadline`, or none are owed.
    pub(super) async fn read_owed_values(
        &mut self,
        deadline: Instant,
    ) -> Result<Option<Vec<Arc<Vec<u8>>>>, ClientError> {
        while let Some(reply) = self.take_owed(deadline).await? {
            if let Reply::Values(values) = reply {
                return Ok(Some(values));
            }
        }
        Ok(None)
    }

    /// Reads the answers that are owed; whether all have come.
    async fn settle(&mut self, deadline: Instant) -> Result<bool, ClientError> {
        while self.take_owed(deadline).await?.is_some() {}
        Ok(self.owed.is_empty())
    }

    /// The next answer that is owed.
    async fn take_owed(&mut self, deadline: Instant) -> Result<Option<Reply>, ClientError> {
        let Some(mut partial) = self.owed.pop_front() else { return Ok(None) };
        let reply = self.take(&mut partial, deadline).await?;
        match &reply {
            Some(Reply::Pong(nonce)) if *nonce != self.nonce => return Err(ClientError::NoStore),
            Some(_) => {}
            None => self.owed.push_front(partial),
        }
        Ok(reply)
    }

    async fn take(
        &mut self,
        partial: &mut PartialReply,
        deadline: Instant,
    ) -> Result<Option<Reply>, ClientError> {
        let mut piece = [0; READ_BYTES];
        let mut is_late = false;
        loop {
            let decoded = partial.decoder.decode(&self.input);
            let (consumed, reply) = decoded.map_err(|_| ClientError::NoStore)?;
            self.input.drain(..consumed);
            partial.taken += consumed;
            if partial.taken > MAX_ANSWER {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the answer is too long").into());
            }
            // A server that sends without end is read once after the deadline. The bytes are kept for the next call.
            if reply.is_some() || is_late {
                return Ok(reply);
            }
            match timeout_at(deadline.into(), self.stream.read(&mut piece)).await {
                Err(_) => return Ok(None),
                Ok(Ok(0)) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(read) => {
                    self.input.extend_from_slice(&piece[..read?]);
                    is_late = is_past(deadline);
                }
            }
        }
    }
}

fn is_past(deadline: Instant) -> bool {
    deadline <= Instant::now()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;
    use std::thread;

    use super::super::blocking::runtime;
    use super::*;

    /// Each look ends at once, in the middle of an answer that goes on.
    #[test]
    fn answer_interrupted_by_deadline_loses_no_byte() {
        let value: Vec<u8> = (0..4_000_000_u32).map(|at| (at % 251) as u8).collect();
        let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let mut bytes = u64::try_from(value.len()).expect("it fits").to_le_bytes().to_vec();
        bytes.extend(&value);
        let store = thread::spawn(move || listener.accept().expect("a client").0.write_all(&bytes));
        let reply = runtime().block_on(async {
            let stream = TcpStream::connect(address).await.expect("it listens");
            let mut wire = Wire { stream, input: Vec::new(), nonce: 1, owed: VecDeque::new() };
            let mut partial = PartialReply::of(ReplyKind::Value);
            loop {
                if let Some(reply) = wire.take(&mut partial, Instant::now()).await.expect("no byte is lost") {
                    break reply;
                }
                tokio::task::yield_now().await;
            }
        });
        store.join().expect("the store has sent").expect("the client reads");
        assert!(matches!(reply, Reply::Value(read) if *read == value), "another value came");
    }
}
