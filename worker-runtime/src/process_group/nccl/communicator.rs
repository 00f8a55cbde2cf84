//! An owned communicator of NCCL: its calls, their time limits, and its end.
//!
//! Every communicator is non-blocking: NCCL returns at once, and is polled until the call is done. A
//! lock admits one thread at a time into the library, as the *NCCL User Guide* demands ("Thread
//! Safety"). `ncclCommAbort` waits for that lock too, but only for a while: it must also end a thread
//! that hangs inside the library ("Fault Tolerance"). The guide does not permit an abort from another
//! thread in that case. PyTorch's watchdog does it all the same, and NVIDIA treats its failures as bugs,
//! fixed in 2.19.1 (NVIDIA/nccl#992). Before that the abort itself may hang, so it runs on a thread of
//! its own with a time limit.
#![expect(unsafe_code, reason = "calls into a foreign library")]

use std::ffi::c_int;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use rankrun_contract::rank::{Rank, WorldSize};

use super::detached::{DetachedError, run_detached};
use super::library::{Nccl, NcclError, NcclId};
use super::ops::NcclCalls;
use super::symbols::{Code, Config, Handle, IN_PROGRESS, NO_COLOR, SUCCESS, UniqueId};
use crate::clock;

/// How long an abort waits for a call inside the library. Calls of
/// a non-blocking communicator return at once.
const ACTIVE_CALL_TIMEOUT: Duration = Duration::from_millis(250);
/// Time limit of the abort itself.
const ABORT_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit of an orderly end, before it becomes an abort.
const FINALIZE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of a drop, whatever NCCL does.
const DROP_TIMEOUT: Duration = Duration::from_secs(10);
/// Polls of a call in progress without a pause: most calls are done within microseconds.
const EAGER_POLLS: u32 = 200;
/// The longest pause between two polls.
const MAX_POLL_PAUSE: Duration = Duration::from_millis(2);

/// The ranks of a job, connected by NCCL. Calls are asynchronous: each is enqueued on a stream.
///
/// Dropping it ends it in good order, or by an abort after a failed call or in a
/// panic. Both have a time limit.
pub struct Communicator {
    core: Arc<Core>,
    rank: Rank,
    world_size: WorldSize,
    timeout: Duration,
}

/// The part of a communicator that its threads share.
pub(super) struct Core {
    nccl: Nccl,
    /// Null before the initialisation and after the end. The thread that swaps it out ends the communicator.
    handle: AtomicPtr<std::ffi::c_void>,
    /// Held by the thread that is inside the library.
    call_lock: Mutex<()>,
}

impl Communicator {
    /// Joins `world_size` ranks with the same `id` on the current device of this
    /// thread. Returns when all have joined.
    ///
    /// # Errors
    /// An error of NCCL's, or [`NcclError::Timeout`] without the missing rank;
    /// [`NcclGroup`](super::NcclGroup) names it.
    pub fn init(
        nccl: &Nccl,
        id: &NcclId,
        (rank, world_size): (Rank, WorldSize),
        timeout: Duration,
    ) -> Result<Self, NcclError> {
        let communicator = Self::begin_init(nccl, id, (rank, world_size), timeout)?;
        communicator.core.wait_until_settled("ncclCommInitRankConfig", timeout)?;
        Ok(communicator)
    }

    /// Begins [`init`](Self::init), which continues in NCCL's own thread.
    pub(super) fn begin_init(
        nccl: &Nccl,
        id: &NcclId,
        (rank, world_size): (Rank, WorldSize),
        timeout: Duration,
    ) -> Result<Self, NcclError> {
        const FUNCTION: &str = "ncclCommInitRankConfig";
        let core = Arc::new(Core::new(nccl));
        let (ranks, own, id) = (int(world_size.get()), int(rank.0), UniqueId(id.0));
        let shared = Arc::clone(&core);
        // It initialises CUDA, which may hang with a faulty driver.
        let begun = run_detached(FUNCTION, timeout, move || {
            let (mut handle, mut config): (Handle, _) = (ptr::null_mut(), Config::non_blocking());
            // SAFETY: handle and configuration live through the call; NCCL copies the latter.
            let code =
                unsafe { (shared.nccl.symbols().init)(&raw mut handle, ranks, id, own, &raw mut config) };
            shared.store_handle(FUNCTION, handle, code)
        });
        begun.map_err(|error| detached_error(error, FUNCTION, timeout))??;
        Ok(Self { core, rank, world_size, timeout })
    }

    /// Rank of this process.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Number of ranks.
    #[must_use]
    pub fn world_size(&self) -> WorldSize {
        self.world_size
    }

    /// The library that made it.
    #[must_use]
    pub fn nccl(&self) -> &Nccl {
        &self.core.nccl
    }

    /// Makes one call, or several independent ones.
    ///
    /// # Errors
    /// The error of a call.
    pub fn call<R>(
        &self,
        calls: impl FnOnce(&NcclCalls<'_>) -> Result<R, NcclError>,
    ) -> Result<R, NcclError> {
        let inside = self.core.lock_calls("ncclCommGetAsyncError")?;
        let result = calls(&inside);
        self.finish_calls(inside, result)
    }

    /// Makes several calls as one group (`ncclGroupStart`): they advance together, so that two
    /// ranks can send to each other.
    ///
    /// # Errors
    /// The error of a call, or of the whole group.
    pub fn group<R>(
        &self,
        calls: impl FnOnce(&NcclCalls<'_>) -> Result<R, NcclError>,
    ) -> Result<R, NcclError> {
        let inside = self.core.lock_calls("ncclGroupStart")?;
        let result = inside.group(calls);
        self.finish_calls(inside, result)
    }

    fn finish_calls<R>(&self, inside: NcclCalls<'_>, result: Result<R, NcclError>) -> Result<R, NcclError> {
        let goes_on = inside.in_progress_function();
        drop(inside);
        // After an error the communicator is ended, so there is nothing to wait for.
        if result.is_ok()
            && let Some(function) = goes_on
        {
            self.core.wait_until_settled(function, self.timeout)?;
        }
        result
    }

    /// Splits the communicator: ranks with the same `color` share a new one, ordered by `key`. A rank without
    /// a color gets none. All ranks make the call.
    ///
    /// # Errors
    /// An error of NCCL's, [`NcclError::Timeout`], or [`NcclError::Color`] for a color above `i32::MAX`,
    /// which is refused before the call.
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Self>, NcclError> {
        const FUNCTION: &str = "ncclCommSplit";
        let color = match color {
            Some(color) => i32::try_from(color).map_err(|_| NcclError::Color { color })?,
            None => NO_COLOR,
        };
        let version = self.nccl().version();
        let split = self.nccl().symbols().split;
        let split = split.ok_or(NcclError::Unsupported { function: FUNCTION, version })?;
        let inside = self.core.lock_calls(FUNCTION)?;
        let (mut handle, mut config): (Handle, _) = (ptr::null_mut(), Config::non_blocking());
        // SAFETY: the handle is that of a living communicator (`lock_calls`); the others live through the call, and NCCL writes the
        // new handle before it returns.
        let code = unsafe { split(inside.handle(), color, key, &raw mut handle, &raw mut config) };
        drop(inside);
        let core = Arc::new(Core::new(self.nccl()));
        core.store_handle(FUNCTION, handle, code)?;
        // The parent is busy until the child is made.
        self.core.wait_until_settled(FUNCTION, self.timeout)?;
        if handle.is_null() {
            return Ok(None);
        }
        core.wait_until_settled(FUNCTION, self.timeout)?;
        let (rank, world_size) = core.lock_calls(FUNCTION)?.rank_and_world_size()?;
        Ok(Some(Self { core, rank, world_size, timeout: self.timeout }))
    }

    /// Ends the communicator at once. Calls under way and later calls fail,
    /// and their work leaves the streams.
    pub fn abort(&self) {
        self.core.abort();
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }
}

impl Core {
    fn new(nccl: &Nccl) -> Self {
        Self { nccl: nccl.clone(), handle: AtomicPtr::new(ptr::null_mut()), call_lock: Mutex::new(()) }
    }

    /// Takes ownership of the handle that a call has made.
    fn store_handle(&self, function: &'static str, handle: Handle, code: Code) -> Result<(), NcclError> {
        // After an error NCCL has freed the handle.
        self.nccl.check(function, code)?;
        self.handle.store(handle, Ordering::Release);
        Ok(())
    }

    /// Locks the library for this thread; fails after an abort.
    pub(super) fn lock_calls(&self, function: &'static str) -> Result<NcclCalls<'_>, NcclError> {
        let guard = self.call_lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.calls_with_lock(guard).ok_or(NcclError::Aborted { function })
    }

    fn calls_with_lock<'a>(&'a self, guard: MutexGuard<'a, ()>) -> Option<NcclCalls<'a>> {
        let handle = self.handle.load(Ordering::Acquire);
        (!handle.is_null()).then(|| NcclCalls::new(&self.nccl, handle, guard))
    }

    /// NCCL's state of the calls in progress; `None` while another thread is inside the library.
    pub(super) fn async_state(&self) -> Option<Result<Code, NcclError>> {
        match self.call_lock.try_lock() {
            Ok(guard) => self.calls_with_lock(guard).map(|inside| inside.async_error()),
            Err(TryLockError::Poisoned(poisoned)) => {
                self.calls_with_lock(poisoned.into_inner()).map(|inside| inside.async_error())
            }
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits until the call of `function` is done; aborts the communicator after `timeout`.
    pub(super) fn wait_until_settled(
        self: &Arc<Self>,
        function: &'static str,
        timeout: Duration,
    ) -> Result<(), NcclError> {
        let deadline = clock::after(timeout);
        let mut polls = 0;
        while !self.is_settled(function)? {
            if clock::until(deadline).is_zero() {
                self.abort();
                return Err(NcclError::Timeout { function, timeout });
            }
            pause_between_polls(&mut polls, deadline);
        }
        Ok(())
    }

    /// Whether the call of `function` is done.
    pub(super) fn is_settled(&self, function: &'static str) -> Result<bool, NcclError> {
        match self.lock_calls(function)?.async_error()? {
            SUCCESS => Ok(true),
            IN_PROGRESS => Ok(false),
            code => Err(self.nccl.error(function, code)),
        }
    }

    pub(super) fn nccl(&self) -> &Nccl {
        &self.nccl
    }

    /// Whether the communicator has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.handle.load(Ordering::Acquire).is_null()
    }

    /// Ends the communicator at once. Later calls fail; a call inside the library gets a moment to return.
    /// The abort has a time limit.
    pub(super) fn abort(self: &Arc<Self>) {
        let handle = self.take_handle();
        if !handle.is_null() {
            let (core, handle) = (Arc::clone(self), TakenHandle(handle));
            let _ = run_detached("ncclCommAbort", ABORT_TIMEOUT, move || core.abort_handle(handle));
        }
    }

    fn take_handle(&self) -> Handle {
        self.handle.swap(ptr::null_mut(), Ordering::AcqRel)
    }

    /// Aborts a communicator whose handle was swapped out.
    fn abort_handle(&self, handle: TakenHandle) {
        let deadline = clock::after(ACTIVE_CALL_TIMEOUT);
        let mut polls = EAGER_POLLS;
        let _guard = loop {
            match self.call_lock.try_lock() {
                Ok(guard) => break Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => break Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if clock::until(deadline).is_zero() => break None,
                Err(TryLockError::WouldBlock) => pause_between_polls(&mut polls, deadline),
            }
        };
        // SAFETY: the handle was swapped out, so no other thread ends it or enters with it. A thread still
        // inside the library hangs there, and does not use the handle after its call has returned. NCCL
        // provides the abort for that case and its other users rely on it; the documentation promises nothing
        // for two threads.
        // The return value is of no use: the communicator is gone in any case.
        unsafe { (self.nccl.symbols().abort)(handle.0) };
    }

    /// Ends the communicator after its calls are done; aborts it if that fails or takes too long.
    pub(super) fn finalize(self: &Arc<Self>) {
        const FUNCTION: &str = "ncclCommFinalize";
        let begun = self.lock_calls(FUNCTION).and_then(|inside| inside.finalize());
        if begun.is_err() || self.wait_until_settled(FUNCTION, FINALIZE_TIMEOUT).is_err() {
            self.abort();
            return;
        }
        let guard = self.call_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = self.take_handle();
        if !handle.is_null() {
            // SAFETY: the handle was swapped out under the lock, so no thread is inside with it or ends it
            // too.
            unsafe { (self.nccl.symbols().destroy)(handle) };
        }
        drop(guard);
    }
}

impl Drop for Core {
    /// Ends a communicator that failed to initialise; otherwise `Communicator` has ended it.
    fn drop(&mut self) {
        let handle = self.take_handle();
        if !handle.is_null() {
            self.abort_handle(TakenHandle(handle));
        }
    }
}

/// A handle that was swapped out of its communicator.
struct TakenHandle(Handle);

// SAFETY: a communicator may be ended by any thread.
unsafe impl Send for TakenHandle {}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.core.has_ended() {
            return;
        }
        let core = Arc::clone(&self.core);
        let in_order = !thread::panicking() && !matches!(core.async_state(), Some(Err(_)));
        // A thread that hangs in the library cannot be ended and is left behind.
        let end = move || if in_order { core.finalize() } else { core.abort() };
        let _ = run_detached("ncclCommFinalize", DROP_TIMEOUT, end);
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {} on {:?}", self.rank, self.world_size, self.core.nccl)
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a communicator on {:?}", self.nccl)
    }
}

/// Pauses between two polls: not at all at first, then longer and longer.
pub(super) fn pause_between_polls(polls: &mut u32, deadline: Instant) {
    *polls = polls.saturating_add(1);
    if *polls < EAGER_POLLS {
        thread::yield_now();
        return;
    }
    let pause = Duration::from_micros(20).saturating_mul(*polls - EAGER_POLLS + 1);
    thread::sleep(pause.min(MAX_POLL_PAUSE).min(clock::until(deadline)));
}

fn detached_error(error: DetachedError, function: &'static str, timeout: Duration) -> NcclError {
    match error {
        DetachedError::TimedOut => NcclError::Timeout { function, timeout },
        DetachedError::NoThread => NcclError::NoThread { function },
    }
}

pub(super) fn int(number: u32) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}
