//! The only reader of the clock; all other modules take a deadline.

#![expect(clippy::disallowed_methods, reason = "a shell: blocking calls have deadlines")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The longest timeout: longer ones would overflow an `Instant`.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The current instant, for decisions that take the time as an argument.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The instant `timeout` from now.
pub(crate) fn after(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(CENTURY)
}

/// The time left until `deadline`; zero after it.
pub(crate) fn until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Seconds since the Unix epoch.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
