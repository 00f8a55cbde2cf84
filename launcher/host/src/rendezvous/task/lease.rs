//! Until when the other nodes take this node for alive.
//!
//! The rendezvous writes it with each heartbeat that the store has acknowledged. The agent reads it without waiting for
//! the rendezvous, so no request that waits for its answer can put off the end of the workers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::process::watchdog::Watchdog;
use rankrun_core::rendezvous::lease_deadlines::LeaseDeadlines;

/// Time of the store's last answer, and the round trip to the store. Shared by the task and the handle.
#[derive(Debug, Clone)]
pub(super) struct StoreContact(Arc<Mutex<(Instant, Duration)>>);

impl StoreContact {
    pub(super) fn new(now: Instant) -> Self {
        Self(Arc::new(Mutex::new((now, Duration::ZERO))))
    }

    fn get(&self) -> MutexGuard<'_, (Instant, Duration)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_last_answer(&self, now: Instant) {
        self.get().0 = now;
    }

    pub(super) fn last_answer(&self) -> Instant {
        self.get().0
    }

    pub(super) fn set_round_trip(&self, round_trip: Duration) {
        self.get().1 = round_trip;
    }

    pub(super) fn round_trip(&self) -> Duration {
        self.get().1
    }
}

/// The acknowledged heartbeats of this node. Pure.
#[derive(Debug, Default)]
struct Heartbeats {
    deadlines: Option<LeaseDeadlines>,
    /// Send time of the newest acknowledged heartbeat.
    acknowledged: Option<Instant>,
    /// Until then the others may have been about to declare this node dead, and not all have seen its new heartbeat.
    doubted_until: Option<Instant>,
}

impl Heartbeats {
    fn acknowledge(&mut self, sent: Instant, lease: Duration) {
        if self.acknowledged.is_some_and(|before| before >= sent) {
            return;
        }
        let is_late = |before: Instant| sent.saturating_duration_since(before) >= lease * 3 / 5;
        if self.acknowledged.replace(sent).is_some_and(is_late) {
            self.doubted_until = Some(sent + lease * 2 / 5);
        }
        if let Some(deadlines) = &mut self.deadlines {
            *deadlines = LeaseDeadlines::of(sent, lease);
        }
    }
}

/// The heartbeats, and the guard's watchdog while workers may run.
#[derive(Debug, Default)]
struct Lease {
    heartbeats: Heartbeats,
    watchdog: Option<Watchdog>,
}

impl Lease {
    fn update_watchdog(&self) {
        if let Some(watchdog) = &self.watchdog {
            watchdog.set_kill_deadline(self.heartbeats.deadlines.map(|deadlines| deadlines.kill_by));
        }
    }
}

/// The lease of this node. The tasks that send heartbeats write it, and the agent reads it.
#[derive(Debug, Clone, Default)]
pub(super) struct LeaseState(Arc<Mutex<Lease>>);

impl LeaseState {
    fn lease(&self) -> MutexGuard<'_, Lease> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Heartbeats)) {
        let mut lease = self.lease();
        change(&mut lease.heartbeats);
        lease.update_watchdog();
    }

    /// Sets the watchdog that gets the deadline, while workers may run.
    pub(super) fn set_watchdog(&self, watchdog: Option<Watchdog>) {
        let mut lease = self.lease();
        if let Some(before) = std::mem::replace(&mut lease.watchdog, watchdog) {
            before.set_kill_deadline(None);
        }
        lease.update_watchdog();
    }

    /// Records an acknowledged heartbeat with its send time. Deadlines that exist are extended.
    pub(super) fn acknowledge(&self, sent: Instant, lease: Duration) {
        self.change(|heartbeats| heartbeats.acknowledge(sent, lease));
    }

    /// As [`Self::acknowledge`], by a node that other nodes may declare dead from now on.
    pub(super) fn begin(&self, sent: Instant, lease: Duration) {
        self.change(|heartbeats| {
            heartbeats.deadlines.get_or_insert(LeaseDeadlines::of(sent, lease));
            heartbeats.acknowledge(sent, lease);
        });
    }

    /// No other node declares this node dead any more, or continues without it.
    pub(super) fn end(&self) {
        self.change(|heartbeats| heartbeats.deadlines = None);
    }

    pub(super) fn deadlines(&self) -> Option<LeaseDeadlines> {
        self.lease().heartbeats.deadlines
    }

    /// Whether a store has ever acknowledged a heartbeat of this node.
    pub(super) fn is_known(&self) -> bool {
        self.acknowledged().is_some()
    }

    /// Send time of the newest acknowledged heartbeat.
    pub(super) fn acknowledged(&self) -> Option<Instant> {
        self.lease().heartbeats.acknowledged
    }

    /// Until when the other nodes may have gone on from this node's round without it.
    pub(super) fn doubted_until(&self, now: Instant) -> Option<Instant> {
        self.lease().heartbeats.doubted_until.filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(5);

    #[test]
    fn newest_heartbeat_counts_over_any_connection() {
        #[expect(clippy::disallowed_methods, reason = "a test's clock starts somewhere")]
        let origin = Instant::now();
        let at = |millis| origin + Duration::from_millis(millis);
        let lease = LeaseState::default();
        lease.acknowledge(at(0), LEASE);
        assert_eq!(lease.deadlines(), None, "no other node declares it dead");
        lease.begin(at(0), LEASE);
        lease.acknowledge(at(1_000), LEASE);
        lease.begin(at(500), LEASE);
        let deadlines = LeaseDeadlines { stop_at: at(4_500), kill_by: at(5_750) };
        assert_eq!((lease.deadlines(), lease.acknowledged()), (Some(deadlines), Some(at(1_000))));
        assert_eq!(lease.doubted_until(at(1_000)), None);
        lease.acknowledge(at(4_000), LEASE);
        assert_eq!(lease.doubted_until(at(5_999)), Some(at(6_000)), "others may have been about to go on");
        assert_eq!(lease.doubted_until(at(6_000)), None);
        lease.end();
        lease.acknowledge(at(5_000), LEASE);
        assert_eq!(lease.deadlines(), None);
    }

    #[test]
    fn guard_gets_deadline_while_workers_and_peers_may_run() {
        #[expect(clippy::disallowed_methods, reason = "a test's clock starts somewhere")]
        let origin = Instant::now();
        let at = |millis| origin + Duration::from_millis(millis);
        let (lease, watch) = (LeaseState::default(), Watchdog::open(origin).unwrap());
        lease.begin(at(0), LEASE);
        assert_eq!(watch.kill_by(), None, "no worker runs");
        lease.set_watchdog(Some(watch.clone()));
        assert_eq!(watch.kill_by(), Some(at(4_750)));
        lease.acknowledge(at(1_000), LEASE);
        assert_eq!(watch.kill_by(), Some(at(5_750)));
        lease.end();
        assert_eq!(watch.kill_by(), None);
        lease.begin(at(2_000), LEASE);
        assert_eq!(watch.kill_by(), Some(at(6_750)));
        lease.set_watchdog(None);
        assert_eq!(watch.kill_by(), None);
        lease.acknowledge(at(3_000), LEASE);
        assert_eq!(watch.kill_by(), None);
    }
}
