//! The clock of tests whose functions take the time.

use std::time::{Duration, Instant};

/// The time so many milliseconds after a fixed start.
#[expect(clippy::disallowed_methods, reason = "a test's clock starts somewhere")]
pub(super) fn clock() -> impl Fn(u64) -> Instant {
    let start = Instant::now();
    move |millis| start + Duration::from_millis(millis)
}
