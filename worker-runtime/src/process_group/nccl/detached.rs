//! Runs a call on a thread of its own, for calls into a library that may never return.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::cuda;

/// Why there is no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DetachedError {
    /// The call has not returned in time. Its thread continues, and its result is dropped.
    TimedOut,
    /// The system refuses a thread, or the call panicked.
    NoThread,
}

/// Runs `work` on a new thread with the CUDA context of this one, and waits for its result.
pub(super) fn run_detached<R: Send + 'static>(
    name: &str,
    timeout: Duration,
    work: impl FnOnce() -> R + Send + 'static,
) -> Result<R, DetachedError> {
    let (done, result) = mpsc::channel();
    let context = cuda::driver().ok().and_then(|driver| Some((driver, driver.context().ok()?)));
    let spawned = thread::Builder::new().name(name.chars().take(15).collect()).spawn(move || {
        if let Some((driver, context)) = context {
            // Without the context NCCL takes the first device, and reports its errors.
            drop(driver.enter(context));
        }
        // The receiver is gone if the time is over.
        drop(done.send(work()));
    });
    spawned.map_err(|_| DetachedError::NoThread)?;
    result.recv_timeout(timeout).map_err(|error| match error {
        RecvTimeoutError::Timeout => DetachedError::TimedOut,
        RecvTimeoutError::Disconnected => DetachedError::NoThread,
    })
}
