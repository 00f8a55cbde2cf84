//! A call that the job needs and that may never return. The loop polls it and answers signals meanwhile. A wait that is
//! longer says what it waits for.
#![expect(clippy::disallowed_methods, reason = "the agent's shell measures how long a call takes")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::agent::inputs::wait_for_inputs;
use crate::blocking::{BlockingCall, CallProgress, CallStep, is_readable};
use crate::process::link::GuardLink;
use crate::reporter::user_log::UserLog;

/// A longer wait is told to the user.
const SILENT_WAIT: Duration = Duration::from_secs(2);
/// A call that is given up sooner was not hanging.
const USUAL_WAIT: Duration = Duration::from_millis(100);

/// A call, and when the user is told about it.
pub(super) struct WatchedCall<T> {
    call: BlockingCall<T>,
    began: Instant,
    report_at: Option<Instant>,
}

impl<T: Send + 'static> WatchedCall<T> {
    /// Starts the call on a thread with this name.
    ///
    /// # Errors
    /// No descriptor or no thread is left.
    pub(super) fn start(name: &str, call: impl FnOnce(&CallStep) -> T + Send + 'static) -> io::Result<Self> {
        let began = Instant::now();
        let call = BlockingCall::start(name, call)?;
        Ok(Self { call, began, report_at: Some(began + SILENT_WAIT) })
    }

    /// When [`Self::progress`] has something to say, if the call does not end before.
    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.report_at
    }

    /// The answer, if there is one. Tells the user about a long wait, once.
    pub(super) fn progress(&mut self, user_log: &UserLog) -> CallProgress<T> {
        let progress = self.call.progress();
        if matches!(progress, CallProgress::Running)
            && self.report_at.take_if(|at| *at <= Instant::now()).is_some()
        {
            user_log.print_line(&format!("waiting for {}; a signal ends the wait", self.call.step()));
        }
        progress
    }

    /// Waits for the answer; a message of the guard or `until` ends the wait.
    pub(super) fn wait(mut self, link: &GuardLink, until: Instant, user_log: &UserLog) -> Option<T> {
        let usual = self.began + USUAL_WAIT;
        loop {
            match self.progress(user_log) {
                CallProgress::Returned(answer) => return Some(answer),
                CallProgress::Lost => return None,
                CallProgress::Running => {}
            }
            // A usual call ends also where a signal came just before.
            let is_signalled = Instant::now() >= usual && is_readable(link.as_fd());
            if is_signalled || until <= Instant::now() {
                self.abandon(user_log);
                return None;
            }
            let ends = if Instant::now() < usual { usual.min(until) } else { until };
            let fds = [self.as_fd(), link.as_fd()];
            let fds = if Instant::now() < usual { &fds[..1] } else { &fds };
            if wait_for_inputs(fds, self.report_at.into_iter().chain([ends]).min()).is_err() {
                return None;
            }
        }
    }

    /// The call is not needed any more. Tells the user what was waited for.
    pub(super) fn abandon(self, user_log: &UserLog) {
        if matches!(self.call.progress(), CallProgress::Running) && self.began.elapsed() >= USUAL_WAIT {
            user_log.print_line(&format!("gave up waiting for {}", self.call.step()));
        }
    }
}

impl<T> AsFd for WatchedCall<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }
}
