//! What the agent reads of how the thread stands with the store, without waiting for the thread.
//!
//! Until when the others do not take this node for lost: the thread writes it with each sign of life that the store has
//! acknowledged, and the agent reads it, so that nothing that the thread waits for can put off the end of the workers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::process::watchdog::Watchdog;

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

/// When the store has answered last, and how long the way there and back takes.
#[derive(Debug, Clone)]
pub(super) struct Heard(Arc<Mutex<(Instant, Duration)>>);

impl Heard {
    pub(super) fn new(now: Instant) -> Self {
        Self(Arc::new(Mutex::new((now, Duration::ZERO))))
    }

    fn get(&self) -> MutexGuard<'_, (Instant, Duration)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self, now: Instant) {
        self.get().0 = now;
    }

    pub(super) fn last(&self) -> Instant {
        self.get().0
    }

    pub(super) fn takes(&self, round_trip: Duration) {
        self.get().1 = round_trip;
    }

    pub(super) fn round_trip(&self) -> Duration {
        self.get().1
    }
}

/// What is known of the signs of life of this node. Pure.
#[derive(Debug, Default)]
struct Signs {
    fence: Option<Fence>,
    /// When the newest was sent that the store has acknowledged.
    acknowledged: Option<Instant>,
    /// Others may have been about to take us for dead, and not all have seen that we live, until then.
    doubted_until: Option<Instant>,
}

impl Signs {
    fn acknowledge(&mut self, sent: Instant, lease: Duration) {
        if self.acknowledged.is_some_and(|before| before >= sent) {
            return;
        }
        let is_late = |before: Instant| sent.saturating_duration_since(before) >= lease * 3 / 5;
        if self.acknowledged.replace(sent).is_some_and(is_late) {
            self.doubted_until = Some(sent + lease * 2 / 5);
        }
        if let Some(fence) = &mut self.fence {
            *fence = Fence::of(sent, lease);
        }
    }
}

/// The signs of life, and who is told until when the workers may live, while there may be any.
#[derive(Debug, Default)]
struct Post {
    signs: Signs,
    watch: Option<Watchdog>,
}

impl Post {
    fn tell(&self) {
        if let Some(watch) = &self.watch {
            watch.set_kill_deadline(self.signs.fence.map(|fence| fence.kill_by));
        }
    }
}

/// Where it stands: whoever gives signs of life sets it, and the agent reads it.
#[derive(Debug, Clone, Default)]
pub(super) struct Fencepost(Arc<Mutex<Post>>);

impl Fencepost {
    fn post(&self) -> MutexGuard<'_, Post> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Signs)) {
        let mut post = self.post();
        change(&mut post.signs);
        post.tell();
    }

    /// Workers may run, and that one is told until when; or none do.
    pub(super) fn watched_by(&self, watch: Option<Watchdog>) {
        let mut post = self.post();
        if let Some(before) = std::mem::replace(&mut post.watch, watch) {
            before.set_kill_deadline(None);
        }
        post.tell();
    }

    /// A sign of life that was sent then is acknowledged. A fence that stands is put off.
    pub(super) fn acknowledge(&self, sent: Instant, lease: Duration) {
        self.change(|signs| signs.acknowledge(sent, lease));
    }

    /// As [`Self::acknowledge`], by a node that others may take for dead from now on.
    pub(super) fn put_up(&self, sent: Instant, lease: Duration) {
        self.change(|signs| {
            signs.fence.get_or_insert(Fence::of(sent, lease));
            signs.acknowledge(sent, lease);
        });
    }

    /// Nobody takes this node for dead any more, or nobody is left who would go on without it.
    pub(super) fn take_down(&self) {
        self.change(|signs| signs.fence = None);
    }

    pub(super) fn get(&self) -> Option<Fence> {
        self.post().signs.fence
    }

    /// Whether a store has ever acknowledged a sign of life of this node, whatever has become of it.
    pub(super) fn is_known(&self) -> bool {
        self.acknowledged().is_some()
    }

    /// When the newest sign of life was sent that was acknowledged.
    pub(super) fn acknowledged(&self) -> Option<Instant> {
        self.post().signs.acknowledged
    }

    /// Until when a round that this node is in may be one that the others have gone on from without it.
    pub(super) fn doubted_until(&self, now: Instant) -> Option<Instant> {
        self.post().signs.doubted_until.filter(|until| *until > now)
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
        let post = Fencepost::default();
        post.acknowledge(at(0), LEASE);
        assert_eq!(post.get(), None, "nobody takes it for dead");
        post.put_up(at(0), LEASE);
        post.acknowledge(at(1_000), LEASE);
        post.put_up(at(500), LEASE);
        let fence = Fence { stop_at: at(4_500), kill_by: at(5_750) };
        assert_eq!((post.get(), post.acknowledged()), (Some(fence), Some(at(1_000))));
        assert_eq!(post.doubted_until(at(1_000)), None);
        post.acknowledge(at(4_000), LEASE);
        assert_eq!(post.doubted_until(at(5_999)), Some(at(6_000)), "others may have been about to go on");
        assert_eq!(post.doubted_until(at(6_000)), None);
        post.take_down();
        post.acknowledge(at(5_000), LEASE);
        assert_eq!(post.get(), None);
    }

    #[test]
    fn guard_gets_deadline_while_workers_and_peers_may_run() {
        #[expect(clippy::disallowed_methods, reason = "a test's clock starts somewhere")]
        let origin = Instant::now();
        let at = |millis| origin + Duration::from_millis(millis);
        let (post, watch) = (Fencepost::default(), Watchdog::open(origin).unwrap());
        post.put_up(at(0), LEASE);
        assert_eq!(watch.kill_by(), None, "nobody runs");
        post.watched_by(Some(watch.clone()));
        assert_eq!(watch.kill_by(), Some(at(4_750)));
        post.acknowledge(at(1_000), LEASE);
        assert_eq!(watch.kill_by(), Some(at(5_750)));
        post.take_down();
        assert_eq!(watch.kill_by(), None);
        post.put_up(at(2_000), LEASE);
        assert_eq!(watch.kill_by(), Some(at(6_750)));
        post.watched_by(None);
        assert_eq!(watch.kill_by(), None);
        post.acknowledge(at(3_000), LEASE);
        assert_eq!(watch.kill_by(), None);
    }
}
