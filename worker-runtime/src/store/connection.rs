//! One connection to the store: connecting, requests and answers, waits and their cancellation.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rankrun_contract::store::protocol::{HANDSHAKE, Reply, ReplyDecoder, ReplyKind, Request};

use super::error::{ConnectFailure, StoreError};
use crate::{clock, socket};

/// Limit for one address to accept, and for the first answer.
const TRY_TIMEOUT: Duration = Duration::from_secs(30);
/// Without an acknowledgement of the other kernel for this time the connection is lost.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);
/// More are not in a store: the text of another protocol, read as a number, is larger.
const MAX_KEYS: i64 = 1 << 40;
/// First and longest pause between two tries to connect.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) host: String,
    pub(super) port: u16,
}

#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// Received bytes that are not decoded.
    input: Vec<u8>,
    /// Set during a request; an incomplete request leaves it set.
    is_broken: bool,
    /// Limit for answers that need no waiting.
    answer_timeout: Duration,
}

impl Connection {
    /// Connects, sends the handshake and waits for the first answer.
    pub(super) fn open(
        server: &Server,
        timeout: Duration,
        answer_timeout: Duration,
    ) -> Result<Self, StoreError> {
        let deadline = clock::after(timeout);
        let (mut pause, mut earlier) = (RETRY_PAUSES.0, None);
        loop {
            let failure = match Self::try_open(server, deadline, answer_timeout) {
                Ok(connection) => return Ok(connection),
                // A try that ran out of time has less information than an earlier one.
                Err(ConnectFailure::Silent) => earlier.unwrap_or(ConnectFailure::Silent),
                // Another try cannot help.
                Err(ConnectFailure::Io(error)) if socket::is_own_shortage(&error) => {
                    return Err(StoreError::NoSocket(error));
                }
                Err(failure) => failure,
            };
            if clock::until(deadline) <= pause {
                let Server { host, port } = server.clone();
                return Err(StoreError::Unreachable { host, port, timeout, source: failure });
            }
            // There is no event for a new listener, so try again.
            std::thread::sleep(pause);
            earlier = Some(failure);
            pause = (pause * 3 / 2).min(RETRY_PAUSES.1);
        }
    }

    fn try_open(
        server: &Server,
        deadline: Instant,
        answer_timeout: Duration,
    ) -> Result<Self, ConnectFailure> {
        let ping = Request::Ping { nonce: std::process::id() };
        match Self::greet(server, deadline, answer_timeout, &ping) {
            // The server of PyTorch 2.4 knows no ping, and closes the connection.
            Err(ConnectFailure::Io(error)) if is_closed(&error) => {
                let without_ping = Self::greet(server, deadline, answer_timeout, &Request::GetNumKeys)?;
                // Another server that had closed for a moment knows the worker by its ping.
                Self::greet(server, deadline, answer_timeout, &ping).or(Ok(without_ping))
            }
            greeted => greeted,
        }
    }

    /// Connects, and sends the handshake and this request, which only a store answers rightly.
    fn greet(
        server: &Server,
        deadline: Instant,
        answer_timeout: Duration,
        request: &Request,
    ) -> Result<Self, ConnectFailure> {
        let stream = connect(server, deadline)?;
        socket::enable_keepalive(&stream, Some(UNACKNOWLEDGED)).map_err(io::Error::from)?;
        stream.set_write_timeout(Some(answer_timeout))?;
        let mut connection = Self { stream, input: Vec::new(), is_broken: false, answer_timeout };
        connection.stream.write_all(&HANDSHAKE)?;
        match (request, connection.exchange(request, try_deadline(deadline))) {
            (Request::Ping { nonce }, Ok(Some(Reply::Pong(answer)))) if answer == *nonce => Ok(connection),
            (Request::GetNumKeys, Ok(Some(Reply::Number(0..=MAX_KEYS)))) => Ok(connection),
            (_, Err(StoreError::Io(error))) if is_timeout(&error) => Err(ConnectFailure::Silent),
            (_, Err(StoreError::Io(error))) => Err(ConnectFailure::Io(error)),
            _ => Err(ConnectFailure::NoStore),
        }
    }

    pub(super) fn local_address(&self) -> Result<IpAddr, StoreError> {
        Ok(self.stream.local_addr()?.ip().to_canonical())
    }

    /// Sends a request without an answer.
    pub(super) fn send(&mut self, request: &Request) -> Result<(), StoreError> {
        self.run_or_break(|connection| connection.write(request))
    }

    /// Makes a request that is answered at once.
    pub(super) fn call(&mut self, request: &Request) -> Result<Reply, StoreError> {
        let reply = self.run_or_break(|connection| {
            connection.exchange(request, clock::after(connection.answer_timeout))
        })?;
        Ok(reply.unwrap_or(Reply::Arrived))
    }

    /// Makes a request that is answered when its keys exist; cancels it after `timeout`.
    pub(super) fn wait(&mut self, request: &Request, timeout: Duration) -> Result<(), StoreError> {
        let ended =
            self.run_or_break(|connection| match connection.exchange(request, clock::after(timeout)) {
                Err(StoreError::Io(error)) if is_timeout(&error) => connection.cancel().map(WaitResult::from),
                Ok(Some(Reply::Arrived)) => Ok(WaitResult::Arrived),
                // An answer without a cancellation: the store is full.
                Ok(Some(Reply::Cancelled)) => Ok(WaitResult::Refused),
                Ok(Some(reply)) => Err(StoreError::WrongReply { reply }),
                Ok(None) => Ok(WaitResult::Arrived),
                Err(error) => Err(error),
            })?;
        match ended {
            WaitResult::Arrived => Ok(()),
            WaitResult::TimedOut => Err(StoreError::WaitTimeout { timeout, keys: request_keys(request) }),
            WaitResult::Refused => Err(StoreError::WaitRefused { keys: request_keys(request) }),
        }
    }

    /// Cancels a wait; returns whether it was answered meanwhile.
    fn cancel(&mut self) -> Result<bool, StoreError> {
        let deadline = clock::after(self.answer_timeout);
        match self.exchange(&Request::CancelWait, deadline)? {
            // The answer of the wait crossed the cancellation, whose own answer follows.
            Some(Reply::Arrived) => match self.read(ReplyKind::Wait, deadline)? {
                Reply::Cancelled => Ok(true),
                reply => Err(StoreError::WrongReply { reply }),
            },
            _ => Ok(false),
        }
    }

    fn run_or_break<T>(
        &mut self,
        body: impl FnOnce(&mut Self) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if std::mem::replace(&mut self.is_broken, true) {
            return Err(StoreError::Broken);
        }
        let result = body(self);
        // A request above a limit is refused before it is sent.
        self.is_broken = !matches!(result, Ok(_) | Err(StoreError::Limit(_))) || !self.input.is_empty();
        result
    }

    fn exchange(&mut self, request: &Request, deadline: Instant) -> Result<Option<Reply>, StoreError> {
        self.write(request)?;
        request.reply_kind().map(|kind| self.read(kind, deadline)).transpose()
    }

    fn write(&mut self, request: &Request) -> Result<(), StoreError> {
        let mut bytes = Vec::new();
        request.encode(&mut bytes).map_err(StoreError::Limit)?;
        Ok(self.stream.write_all(&bytes)?)
    }

    fn read(&mut self, kind: ReplyKind, deadline: Instant) -> Result<Reply, StoreError> {
        let mut decoder = ReplyDecoder::new(kind);
        let mut piece = [0; 16 * 1024];
        loop {
            let (consumed, reply) = decoder.decode(&self.input)?;
            self.input.drain(..consumed);
            if let Some(reply) = reply {
                return Ok(reply);
            }
            let remaining = clock::until(deadline);
            if remaining.is_zero() {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            self.stream.set_read_timeout(Some(remaining))?;
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(read) => self.input.extend_from_slice(&piece[..read]),
                // The loop checks the deadline.
                Err(error) if is_timeout(&error) || error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Connects to the first address of the server that accepts.
fn connect(server: &Server, deadline: Instant) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (server.host.as_str(), server.port).to_socket_addrs()? {
        match connect_to(&address, deadline) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn connect_to(address: &SocketAddr, deadline: Instant) -> io::Result<TcpStream> {
    let remaining = clock::until(try_deadline(deadline));
    TcpStream::connect_timeout(address, remaining.max(Duration::from_millis(1)))
}

/// The deadline of one step of a try.
fn try_deadline(deadline: Instant) -> Instant {
    deadline.min(clock::after(TRY_TIMEOUT))
}

/// A blocking read reports its timeout as either kind.
fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
}

fn request_keys(request: &Request) -> Vec<String> {
    let text = |key: &Vec<u8>| String::from_utf8_lossy(key).into_owned();
    match request {
        Request::Wait { keys } => keys.iter().map(text).collect(),
        Request::Barrier { key, .. } => vec![text(key)],
        _ => Vec::new(),
    }
}

/// The result of a wait.
enum WaitResult {
    Arrived,
    TimedOut,
    Refused,
}

impl From<bool> for WaitResult {
    fn from(arrived: bool) -> Self {
        if arrived { Self::Arrived } else { Self::TimedOut }
    }
}
