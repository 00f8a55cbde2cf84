//! Tries to reach the store, each on a thread of its own: the driver takes commands while a slow network answers.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::rendezvous::c10d::C10dBackend;
use crate::rendezvous::keys::RendezvousKeys;
use crate::store::client::{ClientError, ClientSettings, ROUND_TRIPS, stranger};

/// How long the driver waits for a try before it looks for commands again.
const SLICE: Duration = Duration::from_millis(200);
/// How long a first try takes at most.
const FIRST: Duration = Duration::from_secs(1);
/// How long a silent program may take to answer in another protocol.
const ASK: Duration = Duration::from_millis(500);
/// Bounds of the longest try; between the two it is the lease. Each try looks up the host's name again.
const LONGEST: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(15));

type Outcome = Result<C10dBackend, ClientError>;

/// The try that runs, and how long the next one may take.
#[derive(Debug)]
pub(super) struct Attempts {
    running: Option<mpsc::Receiver<Outcome>>,
    limit: Duration,
    longest: Duration,
    round_trip: Duration,
    has_result: bool,
}

impl Attempts {
    pub(super) fn new(lease: Duration) -> Self {
        let longest = lease.clamp(LONGEST.0, LONGEST.1);
        Self { running: None, limit: FIRST, longest, round_trip: Duration::ZERO, has_result: false }
    }

    /// The round trip to the store, as the newest connection has measured it; zero before the first.
    pub(super) const fn round_trip(&self) -> Duration {
        self.round_trip
    }

    pub(super) const fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// The first try ends before the time that is `left`: its result is the reason that the user reads.
    pub(super) fn fit_first_try(&mut self, left: Duration) {
        if !self.has_result {
            self.limit = self.limit.min(left / 2);
        }
    }

    /// Begins a try. Where `asks`, a program that accepts the connection in silence is asked what it is.
    pub(super) fn begin(
        &mut self,
        addresses: Vec<SocketAddr>,
        settings: ClientSettings,
        keys: RendezvousKeys,
        asks: bool,
    ) -> Result<(), ClientError> {
        let (outcome, running) = mpsc::channel();
        let limit = self.limit;
        thread::Builder::new().name("store-connect".to_owned()).spawn(move || {
            let connected = C10dBackend::connect(&addresses, &settings, keys, limit).map_err(|error| {
                let is_silent = asks && matches!(error, ClientError::Silent { .. });
                let said = if is_silent { stranger::ask(&addresses, ASK) } else { None };
                said.unwrap_or(error)
            });
            // A driver that has ended drops the connection.
            let _ = outcome.send(connected);
        })?;
        self.running = Some(running);
        Ok(())
    }

    /// How the try ended that was begun; nothing where it goes on after a slice.
    pub(super) fn wait(&mut self) -> Option<Outcome> {
        let outcome = match self.running.as_ref()?.recv_timeout(SLICE) {
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("its thread has ended").into()),
            Ok(outcome) => outcome,
        };
        self.running = None;
        self.has_result = true;
        if let Ok(backend) = &outcome {
            self.round_trip = backend.round_trip();
        }
        let was_slow = outcome.as_ref().err().map(ClientError::is_timeout);
        self.limit = next_limit((self.limit, self.longest), was_slow, self.round_trip);
        Some(outcome)
    }
}

/// How long the next try may take, where `was_slow` says whether the one before failed for lack of time. Pure.
fn next_limit(
    (limit, longest): (Duration, Duration),
    was_slow: Option<bool>,
    round_trip: Duration,
) -> Duration {
    let by_path = FIRST.max(round_trip.saturating_mul(ROUND_TRIPS));
    if was_slow == Some(true) { by_path.max((limit * 2).min(longest)) } else { by_path }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_attempt_time_grows_until_an_answer() {
        let seconds = Duration::from_secs;
        let mut limits = vec![FIRST];
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
    fn first_attempt_takes_half_of_a_short_timeout() {
        let mut attempts = Attempts::new(Duration::from_secs(8));
        attempts.fit_first_try(Duration::from_secs(600));
        assert_eq!(attempts.limit, FIRST);
        attempts.fit_first_try(Duration::from_millis(500));
        assert_eq!(attempts.limit, Duration::from_millis(250));
        (attempts.limit, attempts.has_result) = (FIRST, true);
        attempts.fit_first_try(Duration::from_millis(500));
        assert_eq!(attempts.limit, FIRST, "a later try takes its time");
    }

    #[test]
    fn long_lease_allows_longer_attempts() {
        let longest = |lease| Attempts::new(Duration::from_secs(lease)).longest.as_secs();
        assert_eq!([longest(2), longest(8), longest(60)], [5, 8, 15]);
    }
}
