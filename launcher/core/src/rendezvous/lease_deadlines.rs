//! Until when the workers of a node may live that does not reach the store. Pure.

use std::time::{Duration, Instant};

/// The deadlines of the workers, by the last acknowledged heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseDeadlines {
    /// Without another acknowledged heartbeat by then, the workers are to be stopped.
    pub stop_at: Instant,
    /// All workers must have ended by then: the others declare this node dead.
    pub kill_by: Instant,
}

impl LeaseDeadlines {
    /// By a heartbeat that was sent at this time.
    ///
    /// One heartbeat may be late by several attempts to send it, and the next comes a fifth of the lease later. The last
    /// part is for the kernel, which takes time to end a large process.
    #[must_use]
    pub fn of(sent: Instant, lease: Duration) -> Self {
        Self { stop_at: sent + lease * 7 / 10, kill_by: sent + lease * 19 / 20 }
    }
}
