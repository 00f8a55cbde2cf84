//! Work in a thread of its own, for calls into a library that may never return.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::cuda;

/// Why there is no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// It is not done; the thread goes on, and what it gives is dropped.
    Late,
    /// The system has no more threads, or the work panicked.
    NoThread,
}

/// Does `work` in a thread with the CUDA context of this one, and waits for it.
pub(super) fn apart<R: Send + 'static>(
    name: &str,
    patience: Duration,
    work: impl FnOnce() -> R + Send + 'static,
) -> Result<R, Failure> {
    let (done, result) = mpsc::channel();
    let context = cuda::driver().ok().and_then(|driver| Some((driver, driver.context().ok()?)));
    let spawned = thread::Builder::new().name(name.chars().take(15).collect()).spawn(move || {
        if let Some((driver, context)) = context {
            // Without it NCCL takes the first device, and says what is wrong with it.
            drop(driver.enter(context));
        }
        // Nobody waits for what is late.
        drop(done.send(work()));
    });
    spawned.map_err(|_| Failure::NoThread)?;
    result.recv_timeout(patience).map_err(|error| match error {
        RecvTimeoutError::Timeout => Failure::Late,
        RecvTimeoutError::Disconnected => Failure::NoThread,
    })
}
