//! Until when the others do not take this node for lost: the thread writes it with each sign of life that the store has
//! acknowledged, and the agent reads it, so that nothing that the thread waits for can put off the end of the workers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    pub(super) fn of(sent: Instant, lease: Duration) -> Self {
        Self { stop_at: sent + lease * 3 / 5, kill_by: sent + lease }
    }
}

/// Where it stands.
#[derive(Debug, Clone, Default)]
pub(super) struct Fencepost(Arc<Mutex<Post>>);

#[derive(Debug, Default)]
struct Post {
    fence: Option<Fence>,
    /// There was one once.
    is_known: bool,
}

impl Fencepost {
    /// Nothing where nobody takes this node for dead, or nobody is left who would go on without it.
    pub(super) fn set(&self, fence: Option<Fence>) {
        let mut post = self.post();
        post.is_known |= fence.is_some();
        post.fence = fence;
    }

    pub(super) fn get(&self) -> Option<Fence> {
        self.post().fence
    }

    /// Whether a store has ever acknowledged a sign of life of this node, whatever has become of it.
    pub(super) fn is_known(&self) -> bool {
        self.post().is_known
    }

    fn post(&self) -> MutexGuard<'_, Post> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
