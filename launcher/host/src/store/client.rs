//! A client of a store: one connection, one request at a time, and no call without an end.
//!
//! Keys are raw, as they are on the wire: the caller adds the `/` that torch's clients put before theirs.

#![expect(clippy::disallowed_methods, reason = "a shell: the limit of a call is by the clock")]

pub(crate) mod another_program;
#[cfg(test)]
pub(crate) mod blocking;
mod open;
#[cfg(test)]
mod tests;
mod wire;

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rankrun_contract::store::protocol::{Reply, ReplyKind, Request};

use wire::Wire;

/// The pauses between two rounds of connection attempts: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// The most round trips of its connection that an answer may take: a lost packet is sent again after about two.
pub(crate) const ROUND_TRIPS: u32 = 4;

/// How long the store may take to answer over a connection with this round trip.
#[must_use]
pub(crate) fn answer_limit(answer: Duration, round_trip: Duration) -> Duration {
    answer.max(round_trip.saturating_mul(ROUND_TRIPS))
}

/// How a client connects.
#[derive(Debug, Clone)]
pub struct ClientSettings {
    /// Our client id, the number in the store's PING.
    pub nonce: u32,
    /// How long the store may take to answer what it can answer at once; longer if the round trip is long
    /// (`answer_limit`).
    pub answer: Duration,
    /// A connection on which the other machine has acknowledged nothing for so long is lost, also while no call waits
    /// for an answer. The store's host then sees the connection closed, and takes this client for dead.
    pub silence: Duration,
}

/// A connection to a store. Every call ends: with its answer, or with an error once [`ClientSettings::answer`] is over.
/// After an error other than [`ClientError::Limit`], and after a call that was dropped before its end, the connection
/// cannot be used any more.
///
/// Calls without an answer of the store ([`set`](Self::set), [`multi_set`](Self::multi_set)) return when the kernel has
/// taken them. The answer of the next call shows that the store has them too.
#[derive(Debug)]
pub struct Client {
    settings: ClientSettings,
    wire: Wire,
    /// Set during a call, and left set if the call fails or is dropped.
    broken: bool,
    /// A wait was begun and has not ended.
    waiting: bool,
    /// The first request since the last answer.
    unanswered: Option<UnansweredRequest>,
    /// Start of the last call.
    last_call: Instant,
}

/// A request that the store may have refused: it refuses by closing the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnansweredRequest {
    /// Its name in the store's protocol.
    pub request: &'static str,
    /// The only or first key that it names.
    pub key: String,
}

impl Client {
    /// Tries the addresses in turn, again and again (torch's delays are too long for us), until one answers or
    /// `deadline` has come. An address that is connected by then has a few round trips more to answer.
    ///
    /// # Errors
    /// No store has answered in time.
    pub async fn connect(
        addresses: &[SocketAddr],
        settings: ClientSettings,
        deadline: Instant,
    ) -> Result<Self, ClientError> {
        let mut pause = PAUSES.0;
        let mut failure: Option<ClientError> = None;
        loop {
            let mut best = None;
            for (untried, address) in (1..=addresses.len()).rev().zip(addresses) {
                let left = deadline.saturating_duration_since(Instant::now());
                // A silent address leaves the others their part of the time.
                let part = left / u32::try_from(untried).unwrap_or(u32::MAX);
                match Self::try_connect(*address, &settings, Instant::now() + part).await {
                    Ok(client) => return Ok(client),
                    Err(error) => best = Some(error.or_better(best)),
                }
            }
            // A round that ran out of time says less than one that did not.
            if failure.is_none() || best.as_ref().is_some_and(|best| !best.is_timeout()) {
                failure = best;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || addresses.is_empty() {
                return Err(failure.unwrap_or_else(|| {
                    io::Error::new(io::ErrorKind::NotFound, "there is no address to connect to").into()
                }));
            }
            // A new listener is noticed only by another attempt.
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 3 / 2).min(PAUSES.1);
        }
    }

    /// As [`Self::connect`], from now on.
    ///
    /// # Errors
    /// See [`Self::connect`].
    pub async fn connect_within(
        addresses: &[SocketAddr],
        settings: ClientSettings,
        limit: Duration,
    ) -> Result<Self, ClientError> {
        Self::connect(addresses, settings, Instant::now() + limit).await
    }

    async fn try_connect(
        address: SocketAddr,
        settings: &ClientSettings,
        deadline: Instant,
    ) -> Result<Self, ClientError> {
        let wire = Wire::connect(address, settings, deadline).await?;
        let (settings, last_call) = (settings.clone(), Instant::now());
        Ok(Self { settings, wire, broken: false, waiting: false, unanswered: None, last_call })
    }

    /// Our end. An IPv4-mapped address is returned as IPv4.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn local_addr(&self) -> Result<SocketAddr, ClientError> {
        Ok(match self.wire.local_addr()? {
            SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
                Some(v4) => SocketAddr::from((v4, v6.port())),
                None => v6.into(),
            },
            v4 @ SocketAddr::V4(_) => v4,
        })
    }

    /// The first request without an answer. If the connection was closed, it is the likely reason.
    #[must_use]
    pub const fn unanswered(&self) -> Option<&UnansweredRequest> {
        self.unanswered.as_ref()
    }

    /// Start of the last call. No two calls have the same.
    #[must_use]
    pub(crate) const fn last_call(&self) -> Instant {
        self.last_call
    }

    /// The other end.
    ///
    /// # Errors
    /// The connection is gone.
    pub(crate) fn peer_addr(&self) -> Result<SocketAddr, ClientError> {
        Ok(self.wire.peer_addr()?)
    }

    /// The kernel's smoothed round-trip time of the connection; zero where it knows none.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        self.wire.round_trip()
    }

    /// # Errors
    /// See [`Client`].
    pub async fn set(&mut self, key: &str, value: &[u8]) -> Result<(), ClientError> {
        self.tell(&Request::Set { key: key.into(), value: value.into() }).await
    }

    /// Empty where the key is absent.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn get(&mut self, key: &str) -> Result<Vec<u8>, ClientError> {
        self.ask(&Request::Get { key: key.into() }).await.and_then(value)
    }

    /// The value after it: `desired` where it was written. Where the key is absent and `expected` is not empty, that
    /// is `expected`, and nothing is written.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn compare_set(
        &mut self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<Vec<u8>, ClientError> {
        let (expected, desired) = (expected.into(), desired.into());
        self.ask(&Request::CompareSet { key: key.into(), expected, desired }).await.and_then(value)
    }

    /// The sum.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn add(&mut self, key: &str, delta: i64) -> Result<i64, ClientError> {
        self.ask(&Request::Add { key: key.into(), delta }).await.and_then(number)
    }

    /// Whether all are there.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn check(&mut self, keys: &[&str]) -> Result<bool, ClientError> {
        match self.ask(&Request::Check { keys: owned(keys) }).await? {
            Reply::AllPresent(all) => Ok(all),
            _ => Err(ClientError::NoStore),
        }
    }

    /// Whether it was there.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn delete(&mut self, key: &str) -> Result<bool, ClientError> {
        Ok(self.ask(&Request::DeleteKey { key: key.into() }).await.and_then(number)? > 0)
    }

    /// One value for each key, empty where it is absent.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn multi_get(&mut self, keys: &[&str]) -> Result<Vec<Vec<u8>>, ClientError> {
        match self.ask(&Request::MultiGet { keys: owned(keys) }).await? {
            Reply::Values(values) => Ok(unshared(values)),
            _ => Err(ClientError::NoStore),
        }
    }

    /// [`Self::add`], with a [`Self::multi_get`] in the same write. The sum does not wait for the values, which
    /// [`Self::requested_values`] returns.
    ///
    /// # Errors
    /// See [`Client`].
    pub(crate) async fn add_and_request(
        &mut self,
        key: &str,
        delta: i64,
        keys: &[String],
    ) -> Result<i64, ClientError> {
        self.begin_call()?;
        let added = self.exchange_before(&Request::Add { key: key.into(), delta }, keys).await;
        self.end_call(added).and_then(number)
    }

    /// The values that were requested with the last sum, one for each key; `None` if they have not come by `deadline`.
    /// They are skipped if another call comes first.
    ///
    /// # Errors
    /// See [`Client`].
    pub(crate) async fn requested_values(
        &mut self,
        deadline: Instant,
    ) -> Result<Option<Vec<Vec<u8>>>, ClientError> {
        self.begin_call()?;
        let read = self.wire.read_owed_values(deadline).await;
        Ok(self.end_call(read)?.map(unshared))
    }

    /// # Errors
    /// See [`Client`].
    pub async fn multi_set(&mut self, pairs: &[(&str, &[u8])]) -> Result<(), ClientError> {
        let pairs = pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        self.tell(&Request::MultiSet { pairs }).await
    }

    /// All keys of the store.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn list_keys(&mut self) -> Result<Vec<Vec<u8>>, ClientError> {
        match self.ask(&Request::ListKeys).await? {
            Reply::Keys(keys) => Ok(keys.iter().map(|key| key.to_vec()).collect()),
            _ => Err(ClientError::NoStore),
        }
    }

    /// Waits until all keys exist; `false` if `deadline` comes before (the wait is then cancelled).
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn wait(&mut self, keys: &[&str], deadline: Instant) -> Result<bool, ClientError> {
        self.begin_wait(keys).await?;
        self.end_wait_by(Some(deadline), true).await
    }

    /// Begins to wait: [`Self::readable`] returns when the answer is there, and [`Self::end_wait`] takes it. Any other
    /// call meanwhile is refused, and the connection stays usable.
    ///
    /// # Errors
    /// See [`Client`].
    pub(crate) async fn begin_wait(&mut self, keys: &[&str]) -> Result<(), ClientError> {
        self.tell(&Request::Wait { keys: owned(keys) }).await?;
        self.waiting = true;
        Ok(())
    }

    /// Returns when the answer of a wait has arrived, or the connection has ended. May be dropped at any time.
    pub async fn readable(&self) {
        // An error of the connection is the result of the next call.
        let _ = self.wire.readable().await;
    }

    /// Whether the wait that was begun is answered. If it is not, it is cancelled if `take_back`. `false` also if no
    /// wait was begun.
    ///
    /// # Errors
    /// See [`Client`].
    pub(crate) async fn end_wait(&mut self, take_back: bool) -> Result<bool, ClientError> {
        self.end_wait_by(None, take_back).await
    }

    /// Waits until `deadline`, if there is one, for the answer of the wait that was begun.
    async fn end_wait_by(&mut self, deadline: Option<Instant>, take_back: bool) -> Result<bool, ClientError> {
        if !std::mem::replace(&mut self.waiting, false) {
            return Ok(false);
        }
        self.begin_call()?;
        let ended = self.read_wait(deadline.unwrap_or_else(Instant::now), take_back).await;
        let (arrived, waiting) = self.end_call(ended)?;
        self.waiting = waiting;
        if !waiting {
            self.unanswered = None;
        }
        Ok(arrived)
    }

    /// Whether the wait is answered, or continues.
    async fn read_wait(&mut self, deadline: Instant, take_back: bool) -> Result<(bool, bool), ClientError> {
        match self.wire.read(ReplyKind::Wait, deadline).await? {
            Some(Reply::Arrived) => Ok((true, false)),
            Some(_) => Err(ClientError::NoStore),
            None if take_back => Ok((self.cancel_wait().await?, false)),
            None => Ok((false, true)),
        }
    }

    /// Cancels the wait; whether it was answered meanwhile.
    async fn cancel_wait(&mut self) -> Result<bool, ClientError> {
        match self.exchange(&Request::CancelWait).await? {
            Reply::Cancelled => Ok(false),
            // The answer of the wait crossed with the cancellation, whose own answer follows.
            Reply::Arrived => match self.wire.next(ReplyKind::Wait, self.limit()).await? {
                Some(Reply::Cancelled) => Ok(true),
                Some(_) => Err(ClientError::NoStore),
                None => Err(self.silent()),
            },
            _ => Err(ClientError::NoStore),
        }
    }

    /// A request without an answer.
    async fn tell(&mut self, request: &Request) -> Result<(), ClientError> {
        self.begin_call()?;
        let sent = self.send(request).await;
        self.end_call(sent)
    }

    /// A request that is answered at once.
    async fn ask(&mut self, request: &Request) -> Result<Reply, ClientError> {
        self.begin_call()?;
        let answered = self.exchange(request).await;
        self.end_call(answered)
    }

    fn begin_call(&mut self) -> Result<(), ClientError> {
        if self.waiting {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "the connection waits").into());
        }
        if std::mem::replace(&mut self.broken, true) {
            let text = "the connection has failed before";
            return Err(io::Error::new(io::ErrorKind::NotConnected, text).into());
        }
        self.last_call = Instant::now();
        Ok(())
    }

    fn end_call<T>(&mut self, result: Result<T, ClientError>) -> Result<T, ClientError> {
        // A request above a limit is refused before a byte of it is sent.
        self.broken = !matches!(result, Ok(_) | Err(ClientError::Limit));
        result
    }

    async fn exchange(&mut self, request: &Request) -> Result<Reply, ClientError> {
        self.send(request).await?;
        let kind = request.reply_kind().ok_or(ClientError::NoStore)?;
        let reply = self.wire.answer(kind, self.limit()).await?.ok_or_else(|| self.silent())?;
        self.unanswered = None;
        Ok(reply)
    }

    /// [`Self::exchange`], with a request for values behind it whose answer is not awaited.
    async fn exchange_before(&mut self, request: &Request, keys: &[String]) -> Result<Reply, ClientError> {
        self.record_unanswered(request);
        let kind = request.reply_kind().ok_or(ClientError::NoStore)?;
        let values = Request::MultiGet { keys: keys.iter().map(|key| key.as_str().into()).collect() };
        let requests = if keys.is_empty() { vec![request] } else { vec![request, &values] };
        if !self.wire.send_all(&requests, self.limit()).await? {
            return Err(self.silent());
        }
        let owed = (!keys.is_empty()).then_some(ReplyKind::Values(keys.len()));
        let reply = self.wire.answer_before(kind, owed, self.limit()).await?.ok_or_else(|| self.silent())?;
        self.unanswered = None;
        Ok(reply)
    }

    fn record_unanswered(&mut self, request: &Request) {
        if let (None, Some(key)) = (&self.unanswered, request.first_key()) {
            let key = String::from_utf8_lossy(key).into_owned();
            self.unanswered = Some(UnansweredRequest { request: request.name(), key });
        }
    }

    async fn send(&mut self, request: &Request) -> Result<(), ClientError> {
        self.record_unanswered(request);
        if self.wire.send(request, self.limit()).await? { Ok(()) } else { Err(self.silent()) }
    }

    fn limit(&self) -> Instant {
        Instant::now() + self.answer()
    }

    /// How long an answer may take now.
    fn answer(&self) -> Duration {
        answer_limit(self.settings.answer, self.round_trip())
    }

    fn silent(&self) -> ClientError {
        let millis = u64::try_from(self.answer().as_millis()).unwrap_or(u64::MAX);
        ClientError::Silent { limit: Duration::from_millis(millis) }
    }
}

fn owned(keys: &[&str]) -> Vec<Vec<u8>> {
    keys.iter().map(|key| (*key).into()).collect()
}

fn unshared(values: Vec<std::sync::Arc<Vec<u8>>>) -> Vec<Vec<u8>> {
    values.into_iter().map(std::sync::Arc::unwrap_or_clone).collect()
}

fn value(reply: Reply) -> Result<Vec<u8>, ClientError> {
    match reply {
        Reply::Value(value) => Ok(std::sync::Arc::unwrap_or_clone(value)),
        _ => Err(ClientError::NoStore),
    }
}

fn number(reply: Reply) -> Result<i64, ClientError> {
    match reply {
        Reply::Number(number) => Ok(number),
        _ => Err(ClientError::NoStore),
    }
}

/// Why a call to a store failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection failed, or nothing could be reached.
    #[error("the connection to the store failed")]
    Io(#[from] io::Error),
    /// The store did not answer in time.
    #[error("the store has not answered within {}", humantime::format_duration(*limit))]
    Silent {
        /// The time limit of the answer.
        limit: Duration,
    },
    /// The other end is not a store.
    #[error("the program at the store's address does not speak the store's protocol")]
    NoStore,
    /// The other end answers the first request and is not a store.
    #[error("the program at the store's address does not speak the store's protocol")]
    AnotherProgram {
        /// Its first bytes, not fit for a terminal.
        reply: Vec<u8>,
    },
    /// A key, value or count is above what the protocol allows.
    #[error("too much for the store's protocol")]
    Limit,
}

impl ClientError {
    /// Whether the call ran out of time, and nothing else is known.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::Silent { .. } => true,
            Self::Io(error) => error.kind() == io::ErrorKind::TimedOut,
            Self::NoStore | Self::AnotherProgram { .. } | Self::Limit => false,
        }
    }

    /// How much a failed attempt shows of the other end: a program that accepts the connection in silence exists, while
    /// the other addresses of its name may belong to no machine.
    fn evidence(&self) -> u8 {
        match self {
            Self::NoStore | Self::AnotherProgram { .. } => 4,
            Self::Silent { .. } => 3,
            // A refusal comes from a machine; the other errors may come from an unused address.
            Self::Io(error) => match error.kind() {
                io::ErrorKind::TimedOut => 0,
                io::ErrorKind::ConnectionRefused
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::UnexpectedEof => 2,
                _ => 1,
            },
            Self::Limit => 0,
        }
    }

    /// Whether the other end has closed a connection that was open.
    #[must_use]
    pub(crate) fn is_closed_by_store(&self) -> bool {
        matches!(self, Self::Io(error) if matches!(
            error.kind(),
            io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::UnexpectedEof
        ))
    }

    /// The error with more evidence; the earlier one if both have as much.
    fn or_better(self, before: Option<Self>) -> Self {
        match before {
            Some(before) if before.evidence() >= self.evidence() => before,
            _ => self,
        }
    }
}
