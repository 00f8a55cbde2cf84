//! A communicator of NCCL's that is owned: its calls, how long they may take, and its end.
//!
//! Every communicator is non-blocking: NCCL returns at once from what may take long, and is asked until it is done. One thread
//! at a time is inside the library with a communicator, as the *NCCL User Guide* demands ("Thread Safety"); there is a lock for it.
//! `ncclCommAbort` waits for it, too, but not for ever: it is there to end what hangs ("Fault Tolerance"), and a thread that hangs
//! inside never gives the lock back. The guide does not say that the abort may come from another thread then. PyTorch's watchdog
//! does just that, and NVIDIA counts what went wrong with it as defects, mended in 2.19.1 (NVIDIA/nccl#992): before, the abort may
//! hang as well, which is why nobody waits for it for ever.
#![expect(unsafe_code, reason = "calls into a foreign library")]

use std::ffi::c_int;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use rankrun_contract::rank::{Rank, WorldSize};

use super::apart::{self, apart};
use super::calls::{Nccl, NcclError, NcclId};
use super::ops::Calls;
use super::symbols::{Code, Config, Handle, IN_PROGRESS, NO_COLOR, SUCCESS, UniqueId};
use crate::clock;

/// How long an abort waits for a call that is inside the library. Calls of a non-blocking communicator return at once.
const CALL_PATIENCE: Duration = Duration::from_millis(250);
/// How long the abort itself is waited for.
const ABORT_PATIENCE: Duration = Duration::from_secs(3);
/// How long the end in good order may take, before it becomes an abort.
const FINALIZE_PATIENCE: Duration = Duration::from_secs(5);
/// How long a dropped communicator is waited for, whatever NCCL does.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// So often a call in progress is asked about without a pause: most are done within microseconds.
const EAGER_LOOKS: u32 = 200;
/// The longest pause between two looks.
const LONGEST_PAUSE: Duration = Duration::from_millis(2);

/// The ranks of a job, connected by NCCL. Calls are asynchronous: they are put on a stream, as NCCL does.
///
/// When it is dropped it ends in good order, after a failed call or in a panic by an abort; neither waits for ever.
pub struct Communicator {
    core: Arc<Core>,
    rank: Rank,
    world_size: WorldSize,
    timeout: Duration,
}

/// What the threads that look after a communicator share.
pub(super) struct Core {
    nccl: Nccl,
    /// Null before the beginning and after the end. Whoever takes it away ends the communicator.
    handle: AtomicPtr<std::ffi::c_void>,
    /// Held by the thread that is inside the library.
    inside: Mutex<()>,
}

impl Communicator {
    /// Joins `world_size` ranks that were given the same `id`, on the current device of this thread; returns when all are
    /// there.
    ///
    /// # Errors
    /// NCCL's own, or [`NcclError::Timeout`]: it does not say who is missing, which [`NcclGroup`](super::NcclGroup) does.
    pub fn init(
        nccl: &Nccl,
        id: &NcclId,
        (rank, world_size): (Rank, WorldSize),
        timeout: Duration,
    ) -> Result<Self, NcclError> {
        let communicator = Self::begin(nccl, id, (rank, world_size), timeout)?;
        communicator.core.settle("ncclCommInitRankConfig", timeout)?;
        Ok(communicator)
    }

    /// The beginning of [`init`](Self::init): it goes on in NCCL's own thread.
    pub(super) fn begin(
        nccl: &Nccl,
        id: &NcclId,
        (rank, world_size): (Rank, WorldSize),
        timeout: Duration,
    ) -> Result<Self, NcclError> {
        const FUNCTION: &str = "ncclCommInitRankConfig";
        let core = Arc::new(Core::new(nccl));
        let (ranks, own, id) = (int(world_size.get()), int(rank.0), UniqueId(id.0));
        let shared = Arc::clone(&core);
        // It initialises CUDA, which may hang with a sick driver.
        let begun = apart(FUNCTION, timeout, move || {
            let (mut handle, mut config): (Handle, _) = (ptr::null_mut(), Config::non_blocking());
            // SAFETY: handle and configuration live through the call; NCCL copies the latter.
            let code =
                unsafe { (shared.nccl.symbols().init)(&raw mut handle, ranks, id, own, &raw mut config) };
            shared.adopt(FUNCTION, handle, code)
        });
        begun.map_err(|error| apart_error(error, FUNCTION, timeout))??;
        Ok(Self { core, rank, world_size, timeout })
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn world_size(&self) -> WorldSize {
        self.world_size
    }

    /// The library.
    #[must_use]
    pub fn nccl(&self) -> &Nccl {
        &self.core.nccl
    }

    /// Makes one call, or several that NCCL does not tie together.
    ///
    /// # Errors
    /// A call's own.
    pub fn call<R>(&self, calls: impl FnOnce(&Calls<'_>) -> Result<R, NcclError>) -> Result<R, NcclError> {
        let inside = self.core.enter("ncclCommGetAsyncError")?;
        let result = calls(&inside);
        self.leave(inside, result)
    }

    /// Makes several calls as one: they advance together, so that two ranks can send to each other.
    ///
    /// # Errors
    /// A call's own, or that of the whole group.
    pub fn group<R>(&self, calls: impl FnOnce(&Calls<'_>) -> Result<R, NcclError>) -> Result<R, NcclError> {
        let inside = self.core.enter("ncclGroupStart")?;
        let result = inside.group(calls);
        self.leave(inside, result)
    }

    fn leave<R>(&self, inside: Calls<'_>, result: Result<R, NcclError>) -> Result<R, NcclError> {
        let goes_on = inside.goes_on();
        drop(inside);
        // What failed may have left something under way, but there is nobody whom it would help to wait for it.
        if result.is_ok()
            && let Some(function) = goes_on
        {
            self.core.settle(function, self.timeout)?;
        }
        result
    }

    /// Divides the ranks: those with the same `color` become a communicator, ordered by `key`; without a color this rank
    /// takes part in none. All ranks call it.
    ///
    /// # Errors
    /// NCCL's own, [`NcclError::Timeout`], or [`NcclError::Color`] for a color above `i32::MAX`: nothing was called then.
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Self>, NcclError> {
        const FUNCTION: &str = "ncclCommSplit";
        let color = match color {
            Some(color) => i32::try_from(color).map_err(|_| NcclError::Color { color })?,
            None => NO_COLOR,
        };
        let version = self.nccl().version();
        let split = self.nccl().symbols().split;
        let split = split.ok_or(NcclError::Unsupported { function: FUNCTION, version })?;
        let inside = self.core.enter(FUNCTION)?;
        let (mut handle, mut config): (Handle, _) = (ptr::null_mut(), Config::non_blocking());
        // SAFETY: the handle is that of a living communicator (`enter`); the others live through the call, and NCCL writes the
        // new handle before it returns.
        let code = unsafe { split(inside.handle(), color, key, &raw mut handle, &raw mut config) };
        drop(inside);
        let core = Arc::new(Core::new(self.nccl()));
        core.adopt(FUNCTION, handle, code)?;
        // The parent is busy until the child is there.
        self.core.settle(FUNCTION, self.timeout)?;
        if handle.is_null() {
            return Ok(None);
        }
        core.settle(FUNCTION, self.timeout)?;
        let (rank, world_size) = core.enter(FUNCTION)?.place()?;
        Ok(Some(Self { core, rank, world_size, timeout: self.timeout }))
    }

    /// Ends the communicator at once, whatever is under way; later calls fail, and work on streams ends.
    pub fn abort(&self) {
        self.core.abort();
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }
}

impl Core {
    fn new(nccl: &Nccl) -> Self {
        Self { nccl: nccl.clone(), handle: AtomicPtr::new(ptr::null_mut()), inside: Mutex::new(()) }
    }

    /// Takes over what a call has made.
    fn adopt(&self, function: &'static str, handle: Handle, code: Code) -> Result<(), NcclError> {
        // NCCL has freed what it could not make.
        self.nccl.check(function, code)?;
        self.handle.store(handle, Ordering::Release);
        Ok(())
    }

    /// Enters the library with the communicator.
    pub(super) fn enter(&self, function: &'static str) -> Result<Calls<'_>, NcclError> {
        let guard = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        self.with(guard).ok_or(NcclError::Aborted { function })
    }

    fn with<'a>(&'a self, guard: MutexGuard<'a, ()>) -> Option<Calls<'a>> {
        let handle = self.handle.load(Ordering::Acquire);
        (!handle.is_null()).then(|| Calls::new(&self.nccl, handle, guard))
    }

    /// What NCCL says of work that goes on: nothing while another thread is inside.
    pub(super) fn look(&self) -> Option<Result<Code, NcclError>> {
        match self.inside.try_lock() {
            Ok(guard) => self.with(guard).map(|inside| inside.async_error()),
            Err(TryLockError::Poisoned(poisoned)) => {
                self.with(poisoned.into_inner()).map(|inside| inside.async_error())
            }
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits until what `function` began is done; after `timeout` the communicator is aborted.
    pub(super) fn settle(
        self: &Arc<Self>,
        function: &'static str,
        timeout: Duration,
    ) -> Result<(), NcclError> {
        let deadline = clock::after(timeout);
        let mut looks = 0;
        while !self.is_settled(function)? {
            if clock::until(deadline).is_zero() {
                self.abort();
                return Err(NcclError::Timeout { function, timeout });
            }
            pause(&mut looks, deadline);
        }
        Ok(())
    }

    /// Whether what `function` began is done.
    pub(super) fn is_settled(&self, function: &'static str) -> Result<bool, NcclError> {
        match self.enter(function)?.async_error()? {
            SUCCESS => Ok(true),
            IN_PROGRESS => Ok(false),
            code => Err(self.nccl.error(function, code)),
        }
    }

    pub(super) fn nccl(&self) -> &Nccl {
        &self.nccl
    }

    /// Whether there is nothing more to call.
    pub(super) fn is_over(&self) -> bool {
        self.handle.load(Ordering::Acquire).is_null()
    }

    /// Ends it at once. Later calls fail from now on; a call that is inside the library gets a moment to return. NCCL gets its
    /// time, but nobody waits for it for ever.
    pub(super) fn abort(self: &Arc<Self>) {
        let handle = self.take();
        if !handle.is_null() {
            let (core, handle) = (Arc::clone(self), Taken(handle));
            let _ = apart("ncclCommAbort", ABORT_PATIENCE, move || core.end(handle));
        }
    }

    fn take(&self) -> Handle {
        self.handle.swap(ptr::null_mut(), Ordering::AcqRel)
    }

    /// Aborts a communicator that was taken away.
    fn end(&self, handle: Taken) {
        let deadline = clock::after(CALL_PATIENCE);
        let mut looks = EAGER_LOOKS;
        let _guard = loop {
            match self.inside.try_lock() {
                Ok(guard) => break Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => break Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if clock::until(deadline).is_zero() => break None,
                Err(TryLockError::WouldBlock) => pause(&mut looks, deadline),
            }
        };
        // SAFETY: the handle was taken away, so nobody else ends it, and nobody enters with it any more. A thread that still is
        // inside hangs there, and does not use the handle once its call has returned. That the abort ends such a call is what
        // NCCL provides it for, and what its other users do; its documentation promises nothing for two threads.
        // What it returns says nothing: the communicator is gone in any case.
        unsafe { (self.nccl.symbols().abort)(handle.0) };
    }

    /// Ends it in good order: what is under way is finished first. Becomes an abort if that does not work in time.
    pub(super) fn finish(self: &Arc<Self>) {
        const FUNCTION: &str = "ncclCommFinalize";
        let begun = self.enter(FUNCTION).and_then(|inside| inside.finalize());
        if begun.is_err() || self.settle(FUNCTION, FINALIZE_PATIENCE).is_err() {
            self.abort();
            return;
        }
        let guard = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = self.take();
        if !handle.is_null() {
            // SAFETY: the handle was taken away under the lock, so nobody is inside with it or ends it too.
            unsafe { (self.nccl.symbols().destroy)(handle) };
        }
        drop(guard);
    }
}

impl Drop for Core {
    /// Only where a beginning came to nothing: else `Communicator` has ended it.
    fn drop(&mut self) {
        let handle = self.take();
        if !handle.is_null() {
            self.end(Taken(handle));
        }
    }
}

/// A handle that only this value has.
struct Taken(Handle);

// SAFETY: a communicator may be ended by any thread.
unsafe impl Send for Taken {}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.core.is_over() {
            return;
        }
        let core = Arc::clone(&self.core);
        let in_order = !thread::panicking() && !matches!(core.look(), Some(Err(_)));
        // If it does not come back it is left behind: a thread that hangs in a library cannot be ended.
        let end = move || if in_order { core.finish() } else { core.abort() };
        let _ = apart("ncclCommFinalize", END_PATIENCE, end);
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

/// A pause between two looks at something that is done soon: none at first, then longer and longer ones.
pub(super) fn pause(looks: &mut u32, deadline: Instant) {
    *looks = looks.saturating_add(1);
    if *looks < EAGER_LOOKS {
        thread::yield_now();
        return;
    }
    let pause = Duration::from_micros(20).saturating_mul(*looks - EAGER_LOOKS + 1);
    thread::sleep(pause.min(LONGEST_PAUSE).min(clock::until(deadline)));
}

fn apart_error(error: apart::Failure, function: &'static str, timeout: Duration) -> NcclError {
    match error {
        apart::Failure::Late => NcclError::Timeout { function, timeout },
        apart::Failure::NoThread => NcclError::NoThread { function },
    }
}

pub(super) fn int(number: u32) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}
