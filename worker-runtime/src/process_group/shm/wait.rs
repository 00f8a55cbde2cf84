//! Waiting for a counter that another process moves on: first on the processor, then in the kernel.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex::{self, Flags};

use super::segment::Segment;

/// How long the kernel is waited in before the waiter looks at what else may have happened: it bounds how late a loss is noticed.
const SLICE: Duration = Duration::from_millis(20);

/// Bounds of how often a counter is looked at before the kernel is asked.
const SHORTEST_SPIN: u32 = 128;
const LONGEST_SPIN: u32 = 1 << 13;

/// A counter in shared memory that one process moves on, and how many wait in the kernel for it.
#[derive(Clone, Copy)]
pub(crate) struct Counter<'a> {
    value: &'a AtomicU32,
    sleepers: &'a AtomicU32,
}

impl<'a> Counter<'a> {
    pub(crate) fn at(segment: &'a Segment, offset: usize) -> Self {
        Self { value: segment.word32(offset), sleepers: segment.word32(offset + 4) }
    }

    pub(crate) fn value(self) -> u32 {
        self.value.load(Ordering::Acquire)
    }

    /// Whether the counter is at `target` or beyond; it may wrap around.
    pub(crate) fn has_reached(self, target: u32) -> bool {
        self.value().wrapping_sub(target) <= u32::MAX / 2
    }

    /// Moves it on and wakes who sleeps. What was written before is seen by those who see the new value.
    pub(crate) fn set(self, value: u32) {
        // One total order with the sleepers' count: either the sleeper sees the new value or we see the sleeper.
        self.value.store(value, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            self.wake();
        }
    }

    /// Wakes all, for news that is not in the counter.
    pub(crate) fn wake(self) {
        // Processes wait on it, so the flag for one process's own words is not set. It fails only for addresses that are wrong.
        let _ = futex::wake(self.value, Flags::empty(), i32::MAX as u32);
    }

    /// Waits in the kernel until the counter moves, but for a slice of time at most.
    fn sleep(self, target: u32) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        let seen = self.value.load(Ordering::SeqCst);
        if seen.wrapping_sub(target) > u32::MAX / 2 {
            let slice = rustix::thread::Timespec { tv_sec: 0, tv_nsec: SLICE.subsec_nanos().into() };
            // Whatever ends the wait: who called us looks again.
            let _ = futex::wait(self.value, Flags::empty(), seen, Some(&slice));
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How long to look at a counter before sleeping: it follows what helped before.
#[derive(Debug)]
pub(crate) struct Spin {
    /// Zero where ranks share processors: who spins keeps the others from what is waited for.
    most: u32,
    now: Cell<u32>,
}

impl Spin {
    pub(crate) fn new(has_own_processor: bool) -> Self {
        let most = if has_own_processor { LONGEST_SPIN } else { 0 };
        Self { most, now: Cell::new(most) }
    }

    /// Waits until the counter is there. Before it sleeps it asks `look`, which may give up; it is told whether this rank has slept.
    pub(crate) fn wait<E>(
        &self,
        counter: Counter<'_>,
        target: u32,
        mut look: impl FnMut(bool) -> Result<(), E>,
    ) -> Result<(), E> {
        if counter.has_reached(target) {
            return Ok(());
        }
        for _ in 0..self.now.get() {
            std::hint::spin_loop();
            if counter.has_reached(target) {
                self.now.set((self.now.get() * 2).min(self.most));
                return Ok(());
            }
        }
        self.now.set((self.now.get() / 2).max(SHORTEST_SPIN).min(self.most));
        for slept in std::iter::once(false).chain(std::iter::repeat(true)) {
            match look(slept) {
                // What was waited for came before what ends the wait.
                Err(_) if counter.has_reached(target) => return Ok(()),
                result => result?,
            }
            counter.sleep(target);
            if counter.has_reached(target) {
                return Ok(());
            }
        }
        Ok(())
    }
}
