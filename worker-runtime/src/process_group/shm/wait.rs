//! Waits for a counter that another process advances: first by spinning, then in the kernel.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex::{self, Flags};

use super::segment::Segment;

/// Longest sleep before the waiter checks for failures: it bounds how late a loss is detected.
const SLEEP_SLICE: Duration = Duration::from_millis(20);

/// Limits of the number of spins before the sleep.
const MIN_SPINS: u32 = 128;
const MAX_SPINS: u32 = 1 << 13;

/// A counter in shared memory that one process advances, and the number of its sleepers.
#[derive(Clone, Copy)]
pub(crate) struct Counter<'a> {
    value: &'a AtomicU32,
    sleepers: &'a AtomicU32,
}

impl<'a> Counter<'a> {
    pub(crate) fn at(segment: &'a Segment, offset: usize) -> Self {
        Self { value: segment.atomic_u32(offset), sleepers: segment.atomic_u32(offset + 4) }
    }

    pub(crate) fn value(self) -> u32 {
        self.value.load(Ordering::Acquire)
    }

    /// Whether the counter is at or beyond `target`, across a wrap-around.
    pub(crate) fn has_reached(self, target: u32) -> bool {
        self.value().wrapping_sub(target) <= u32::MAX / 2
    }

    /// Sets the value and wakes sleepers. Writes before it are visible to every
    /// process that sees the new value.
    pub(crate) fn set(self, value: u32) {
        // Sequentially consistent with the sleepers' count: either the sleeper sees the new value or this
        // call sees the sleeper.
        self.value.store(value, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            self.wake();
        }
    }

    /// Wakes all sleepers, for an event outside of the counter.
    pub(crate) fn wake(self) {
        // The waiters are other processes, so the private flag is not set. It fails for wrong addresses only.
        let _ = futex::wake(self.value, Flags::empty(), i32::MAX as u32);
    }

    /// Sleeps until the counter moves, one slice at most.
    fn sleep(self, target: u32) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        let current = self.value.load(Ordering::SeqCst);
        if current.wrapping_sub(target) > u32::MAX / 2 {
            let slice = rustix::thread::Timespec { tv_sec: 0, tv_nsec: SLEEP_SLICE.subsec_nanos().into() };
            // Whatever ends the sleep, the caller checks again.
            let _ = futex::wait(self.value, Flags::empty(), current, Some(&slice));
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How long to spin before sleeping: it adapts to earlier waits.
#[derive(Debug)]
pub(crate) struct Spin {
    /// Zero if ranks share processors: spinning would delay the rank that is waited for.
    max_spins: u32,
    current_spins: Cell<u32>,
}

impl Spin {
    pub(crate) fn new(has_own_processor: bool) -> Self {
        let most = if has_own_processor { MAX_SPINS } else { 0 };
        Self { max_spins: most, current_spins: Cell::new(most) }
    }

    /// Waits until the counter reaches `target`. Before each sleep it calls `look`, which may give up and is
    /// told whether this rank has slept.
    pub(crate) fn wait<E>(
        &self,
        counter: Counter<'_>,
        target: u32,
        mut check: impl FnMut(bool) -> Result<(), E>,
    ) -> Result<(), E> {
        if counter.has_reached(target) {
            return Ok(());
        }
        for _ in 0..self.current_spins.get() {
            std::hint::spin_loop();
            if counter.has_reached(target) {
                self.current_spins.set((self.current_spins.get() * 2).min(self.max_spins));
                return Ok(());
            }
        }
        self.current_spins.set((self.current_spins.get() / 2).max(MIN_SPINS).min(self.max_spins));
        for slept in std::iter::once(false).chain(std::iter::repeat(true)) {
            match check(slept) {
                // The counter may have moved before the failure.
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
