//! Attempts to reach the store, each as a task of its own: the rendezvous takes commands while a slow network answers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::rendezvous::address;
use crate::rendezvous::c10d::C10dBackend;
use crate::rendezvous::host::{self, StoreEndpoint};
use crate::store::client::{ClientError, ClientSettings, ROUND_TRIPS, another_program};
use rankrun_core::rendezvous::keys::RendezvousKeys;

use super::connection::ConnectFailure;
use super::opening::interfaces;

/// Time limit of the first attempt.
const FIRST_ATTEMPT_LIMIT: Duration = Duration::from_secs(1);
/// How long a silent program may take to answer in another protocol.
const PROGRAM_ANSWER_LIMIT: Duration = Duration::from_millis(500);
/// Bounds of the longest attempt; between the two it is the lease.
const LONGEST_ATTEMPT_RANGE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(15));
/// Time limit for a name server, and the time after which it is asked again.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(2);

/// What one attempt needs.
#[derive(Debug)]
pub(super) struct AttemptSetup {
    pub(super) addresses: AddressSource,
    pub(super) settings: ClientSettings,
    pub(super) keys: RendezvousKeys,
    /// A program that accepts the connection in silence is asked what it is.
    pub(super) asks_program: bool,
}

/// How an attempt learns the addresses of the store.
#[derive(Debug)]
pub(super) enum AddressSource {
    /// They are known.
    Known(Vec<SocketAddr>),
    /// This node hosts the store, which listens there.
    Own(StoreEndpoint, SocketAddr),
    /// A name server is asked. If it does not answer, the known addresses are used.
    Name {
        endpoint: StoreEndpoint,
        /// `--iface`
        iface: Option<String>,
        known: Vec<SocketAddr>,
        /// The look-up of an earlier attempt, if it has no answer yet.
        pending: PendingLookup,
    },
}

/// A look-up that the name server has not answered. The next attempt waits for it too: a resolver cannot be
/// interrupted, so each look-up would leave a thread behind.
#[derive(Debug, Clone, Default)]
pub(super) struct PendingLookup(Arc<Mutex<Option<LookupTask>>>);

type LookupTask = JoinHandle<io::Result<Vec<SocketAddr>>>;

impl PendingLookup {
    /// The answer, of a look-up that is started unless one is under way.
    async fn answer(
        &self,
        limit: Duration,
        start: impl FnOnce() -> LookupTask,
    ) -> io::Result<Vec<SocketAddr>> {
        let mut pending = self.0.lock().await;
        let found = timeout(limit, pending.get_or_insert_with(start)).await.map_err(|_| host::no_answer())?;
        *pending = None;
        found.map_err(io::Error::other)?
    }
}

/// The result of one attempt.
#[derive(Debug)]
pub(super) struct AttemptResult {
    /// The addresses of the store; empty if they could not be found.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) outcome: Result<C10dBackend, ConnectFailure>,
}

/// The attempt that runs, and the time limit of the next one.
#[derive(Debug)]
pub(super) struct ConnectAttempts {
    running: Option<JoinHandle<AttemptResult>>,
    limit: Duration,
    longest: Duration,
    round_trip: Duration,
    has_result: bool,
    /// When a name server is asked again.
    resolve_at: Option<Instant>,
    pending_lookup: PendingLookup,
}

impl ConnectAttempts {
    pub(super) fn new(lease: Duration) -> Self {
        let longest = lease.clamp(LONGEST_ATTEMPT_RANGE.0, LONGEST_ATTEMPT_RANGE.1);
        Self {
            running: None,
            limit: FIRST_ATTEMPT_LIMIT,
            longest,
            round_trip: Duration::ZERO,
            has_result: false,
            resolve_at: None,
            pending_lookup: PendingLookup::default(),
        }
    }

    /// The round trip to the store, as the newest connection has measured it; zero before the first.
    pub(super) const fn round_trip(&self) -> Duration {
        self.round_trip
    }

    pub(super) const fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Whether the name server is to be asked by the attempt that begins now.
    pub(super) fn asks_name_server(&mut self, now: Instant) -> bool {
        let is_due = self.resolve_at.is_none_or(|at| now >= at);
        if is_due {
            self.resolve_at = Some(now + RESOLVE_INTERVAL);
        }
        is_due
    }

    /// For the next attempt that asks a name server.
    pub(super) fn pending_lookup(&self) -> PendingLookup {
        self.pending_lookup.clone()
    }

    /// When the name server is asked again.
    pub(super) const fn resolve_at(&self) -> Option<Instant> {
        self.resolve_at
    }

    /// The first attempt ends before the time that is `left`: its result is the reason that the user reads.
    pub(super) fn fit_first_attempt(&mut self, left: Duration) {
        if !self.has_result {
            self.limit = self.limit.min(left / 2);
        }
    }

    /// Begins an attempt.
    pub(super) fn begin(&mut self, setup: AttemptSetup) {
        self.running = Some(tokio::spawn(setup.connect(self.limit)));
    }

    /// The result of the attempt that runs; pending if none runs. May be dropped at any time.
    pub(super) async fn result(&mut self) -> AttemptResult {
        let Some(running) = &mut self.running else { return std::future::pending().await };
        let result = running.await.unwrap_or_else(|error| AttemptResult {
            addresses: Vec::new(),
            outcome: Err(ConnectFailure::Store(io::Error::other(error).into())),
        });
        self.running = None;
        self.has_result = true;
        if let Ok(backend) = &result.outcome {
            self.round_trip = backend.round_trip();
        }
        let was_slow = match &result.outcome {
            Ok(_) => None,
            Err(ConnectFailure::Store(error)) => Some(error.is_timeout()),
            Err(ConnectFailure::Name(_)) => Some(false),
        };
        self.limit = next_limit((self.limit, self.longest), was_slow, self.round_trip);
        result
    }
}

impl Drop for ConnectAttempts {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.abort();
        }
    }
}

impl AttemptSetup {
    async fn connect(self, limit: Duration) -> AttemptResult {
        let addresses = match self.addresses.find().await {
            Ok(addresses) => addresses,
            Err(error) => {
                return AttemptResult { addresses: Vec::new(), outcome: Err(ConnectFailure::Name(error)) };
            }
        };
        let outcome = C10dBackend::connect(&addresses, &self.settings, self.keys, limit).await;
        let outcome = match outcome {
            Err(ClientError::Silent { limit }) if self.asks_program => {
                Err(another_program::ask(&addresses, PROGRAM_ANSWER_LIMIT)
                    .await
                    .unwrap_or(ClientError::Silent { limit }))
            }
            outcome => outcome,
        };
        AttemptResult { addresses, outcome: outcome.map_err(ConnectFailure::Store) }
    }
}

impl AddressSource {
    async fn find(self) -> io::Result<Vec<SocketAddr>> {
        match self {
            Self::Known(known) => Ok(known),
            Self::Own(endpoint, store) => Ok(host::own_addresses(&endpoint, store).await),
            Self::Name { endpoint, iface, known, pending } => {
                let asked = endpoint.clone();
                let start = || tokio::spawn(async move { asked.look_up(Duration::MAX).await });
                match pending.answer(RESOLVE_INTERVAL, start).await {
                    Ok(mut addresses) => {
                        addresses.extend(at_named_interface(&endpoint, iface.as_deref(), &addresses));
                        Ok(addresses)
                    }
                    // They were found a moment ago.
                    Err(_) if !known.is_empty() => Ok(known),
                    Err(error) => Err(error),
                }
            }
        }
    }
}

/// The address of a store that another agent of this machine hosts on the named interface alone, if the endpoint is a
/// loopback address.
fn at_named_interface(
    endpoint: &StoreEndpoint,
    iface: Option<&str>,
    addresses: &[SocketAddr],
) -> Option<SocketAddr> {
    let first = addresses.first().filter(|_| endpoint.is_loopback())?;
    let address = address::interface_address(&interfaces().ok()?, iface?, first.is_ipv6()).ok()?;
    Some(SocketAddr::new(address, first.port()))
}

/// Time limit of the next attempt. `was_slow` says whether the one before failed for lack of time. Pure.
fn next_limit(
    (limit, longest): (Duration, Duration),
    was_slow: Option<bool>,
    round_trip: Duration,
) -> Duration {
    let by_path = FIRST_ATTEMPT_LIMIT.max(round_trip.saturating_mul(ROUND_TRIPS));
    if was_slow == Some(true) { by_path.max((limit * 2).min(longest)) } else { by_path }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_attempt_time_grows_until_an_answer() {
        let seconds = Duration::from_secs;
        let mut limits = vec![FIRST_ATTEMPT_LIMIT];
        for was_slow in [Some(true); 4] {
            let limit = *limits.last().unwrap();
            limits.push(next_limit((limit, seconds(5)), was_slow, Duration::ZERO));
        }
        assert_eq!(limits, [1, 2, 4, 5, 5].map(seconds));
        let after = |was_slow, round_trip| {
            next_limit((seconds(5), seconds(5)), was_slow, Duration::from_millis(round_trip))
        };
        assert_eq!(after(Some(false), 0), seconds(1), "a host that refuses is there");
        assert_eq!(after(None, 1), seconds(1));
        assert_eq!([after(None, 700), after(Some(false), 2_000)], [2_800, 8_000].map(Duration::from_millis));
        assert_eq!(after(Some(true), 2_000), seconds(8), "the path is longer than any limit");
    }

    #[test]
    fn name_without_answer_is_looked_up_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let pending = PendingLookup::default();
            let (found, answer) = tokio::sync::oneshot::channel();
            let start = || tokio::spawn(async move { answer.await.map_err(io::Error::other) });
            let limit = Duration::from_millis(1);
            let first = pending.answer(limit, start).await;
            assert_eq!(first.unwrap_err().kind(), io::ErrorKind::TimedOut);
            let second = pending.answer(limit, || panic!("one is under way")).await;
            assert_eq!(second.unwrap_err().kind(), io::ErrorKind::TimedOut);
            let addresses = vec![SocketAddr::from(([127, 0, 0, 1], 1))];
            found.send(addresses.clone()).unwrap();
            let late = pending.answer(Duration::MAX, || panic!("one is under way")).await;
            assert_eq!(late.unwrap(), addresses);
            let next = pending.answer(Duration::MAX, || tokio::spawn(async { Ok(Vec::new()) })).await;
            assert_eq!(next.unwrap(), [], "asked again");
        });
    }

    #[test]
    fn first_attempt_takes_half_of_a_short_timeout() {
        let mut attempts = ConnectAttempts::new(Duration::from_secs(8));
        attempts.fit_first_attempt(Duration::from_secs(600));
        assert_eq!(attempts.limit, FIRST_ATTEMPT_LIMIT);
        attempts.fit_first_attempt(Duration::from_millis(500));
        assert_eq!(attempts.limit, Duration::from_millis(250));
        (attempts.limit, attempts.has_result) = (FIRST_ATTEMPT_LIMIT, true);
        attempts.fit_first_attempt(Duration::from_millis(500));
        assert_eq!(attempts.limit, FIRST_ATTEMPT_LIMIT, "a later attempt takes its time");
    }

    #[test]
    fn long_lease_allows_longer_attempts() {
        let longest = |lease| ConnectAttempts::new(Duration::from_secs(lease)).longest.as_secs();
        assert_eq!([longest(2), longest(8), longest(60)], [5, 8, 15]);
    }
}
