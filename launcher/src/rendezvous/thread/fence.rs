//! What the agent reads of how the thread stands with the store, without waiting for the thread.
//!
//! Until when the others do not take this node for lost: the thread writes it with each sign of life that the store has
//! acknowledged, and the agent reads it, so that nothing that the thread waits for can put off the end of the workers.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What follows from the last sign of life that was acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence {
    /// If no other follows by then, the workers are to be stopped.
    pub stop_at: Instant,
    /// Until then no worker may be left: the others take this node for dead.
    pub kill_by: Instant,
}

impl Fence {
    /// Of a sign of life that was sent then.
    ///
    /// One sign of life may be late by several tries to send it, and the next comes a fifth of the lease later. The last
    /// part is for the kernel, which takes time to end a large process.
    pub(super) fn of(sent: Instant, lease: Duration) -> Self {
        Self { stop_at: sent + lease * 7 / 10, kill_by: sent + lease * 19 / 20 }
    }
}

/// When the store has answered last.
#[derive(Debug, Clone)]
pub(super) struct Pulse(Arc<Mutex<Instant>>);

impl Pulse {
    pub(super) fn new(now: Instant) -> Self {
        Self(Arc::new(Mutex::new(now)))
    }

    pub(super) fn beats(&self, now: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    pub(super) fn last(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where it stands.
#[derive(Debug, Clone, Default)]
pub(super) struct Fencepost(Arc<Mutex<Option<Fence>>>);

impl Fencepost {
    /// Nothing where nobody takes this node for dead, or nobody is left who would go on without it.
    pub(super) fn set(&self, fence: Option<Fence>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = fence;
    }

    pub(super) fn get(&self) -> Option<Fence> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
