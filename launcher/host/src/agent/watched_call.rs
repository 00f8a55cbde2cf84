//! A call that the job needs and that may never return. The loop polls it and answers signals meanwhile. A wait that is
//! longer says what it waits for.
#![expect(clippy::disallowed_methods, reason = "the agent's shell measures how long a call takes")]

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::blocking::{BlockingCall, CallProgress};
use rankrun_core::agent::phase::USUAL_WAIT;

/// A longer wait is reported.
const SILENT_WAIT: Duration = Duration::from_secs(2);

/// A call, and when its wait is reported.
pub(super) struct WatchedCall<T> {
    call: BlockingCall<T>,
    began: Instant,
    report_at: Option<Instant>,
}

impl<T: Send + 'static> WatchedCall<T> {
    /// Watches a call that has just started.
    pub(super) fn new(call: BlockingCall<T>) -> Self {
        let began = Instant::now();
        Self { call, began, report_at: Some(began + SILENT_WAIT) }
    }

    /// When [`Self::report_long_wait`] has something to say, if the call does not end before.
    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.report_at
    }

    /// The answer, if there is one.
    pub(super) fn progress(&self) -> CallProgress<T> {
        self.call.progress()
    }

    /// The line about a long wait, once. The caller has asked for the answer just before.
    pub(super) fn report_long_wait(&mut self) -> Option<String> {
        self.report_at.take_if(|at| *at <= Instant::now())?;
        Some(format!("waiting for {}; a signal ends the wait", self.call.step()))
    }

    /// The call is not needed any more. The line about a long wait that has ended.
    pub(super) fn abandon(self) -> Option<String> {
        let is_long =
            matches!(self.call.progress(), CallProgress::Running) && self.began.elapsed() >= USUAL_WAIT;
        is_long.then(|| format!("gave up waiting for {}", self.call.step()))
    }
}

impl<T> AsFd for WatchedCall<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }
}
