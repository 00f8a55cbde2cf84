//! A countdown latch: one thread waits with poll(2) until the other threads are done. The agent waits so for the pumps.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

#[derive(Debug)]
struct Latch {
    remaining: AtomicUsize,
    event: EventFd,
}

/// A worker thread holds it until it is done; its drop counts as done, also in a panic.
#[derive(Debug)]
pub(super) struct Completion(Arc<Latch>);

/// Complete when all output of the ended workers is on the launcher's outputs and in the files. A blocked terminal
/// delays it too: the waiting thread sets the limit.
#[derive(Debug)]
#[must_use = "wait for it, or drop it to go on without"]
pub struct Drained(Arc<Latch>);

/// The waiting end, and one promise for each of `count` threads.
pub(super) fn wait_for_drain(count: usize) -> Result<(Drained, Vec<Completion>), Errno> {
    let opened = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    let latch = Arc::new(Latch { remaining: AtomicUsize::new(count), event: opened });
    let promises = (0..count).map(|_| Completion(Arc::clone(&latch))).collect();
    Ok((Drained(latch), promises))
}

impl Drop for Completion {
    fn drop(&mut self) {
        if self.0.remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Fails only when the counter is full, and then it is readable.
            let _ = self.0.event.write(1);
        }
    }
}

impl Drained {
    /// Whether all the threads are done.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.0.remaining.load(Ordering::Acquire) == 0
    }
}

/// Readable once it is complete, unless it was so from the beginning.
impl AsFd for Drained {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}
