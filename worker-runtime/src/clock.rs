//! The only reader of the clock: everything else takes a deadline.

#![expect(clippy::disallowed_methods, reason = "a shell: blocking calls have deadlines")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Stands for "never" where a caller's time is too long to be added.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The instant that it is, for decisions that take the time as an argument.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The instant that is `timeout` away.
pub(crate) fn after(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(CENTURY)
}

/// How long until `deadline`; zero once it has passed.
pub(crate) fn until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
