//! Communicators, and the ranks that meet under one id.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::device::{self, Device};
use crate::faults::value;
use crate::wire::{Slot, Wire};

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const IN_PROGRESS: c_int = 7;
const INVALID_USAGE: c_int = 5;

/// How many ranks have come, by id.
static ARRIVED: LazyLock<Mutex<HashMap<u64, c_int>>> = LazyLock::new(Mutex::default);
/// Communicators under way: while there are some, and work on streams is stuck, nothing on a stream is done.
static ALIVE: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// What a rank sends to itself: matched when the group ends.
    static SENT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    /// Where it receives, and how much.
    static AWAITED: RefCell<Vec<(u64, usize)>> = const { RefCell::new(Vec::new()) };
}

/// A communicator. It is leaked, so that a use after its end is seen and does no harm.
pub(crate) struct Comm {
    id: u64,
    pub(crate) ranks: c_int,
    pub(crate) rank: c_int,
    /// Its device, on a machine.
    pub(crate) device: Option<Device>,
    /// What its ranks exchange through, where they do.
    wire: Option<Wire>,
    /// Pieces of calls that all ranks have exchanged.
    pieces: AtomicU64,
    is_over: Mutex<bool>,
    ended: Condvar,
    /// Looks until what is in progress is done.
    looks: AtomicU32,
    calls: AtomicU32,
    is_inside: AtomicBool,
}

/// A number that no communicator of this process has.
pub(crate) fn fresh_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed) + (u64::from(std::process::id()) << 32)
}

/// What real NCCL would crash of, sooner or later.
#[expect(clippy::print_stderr, reason = "the process ends here")]
pub(crate) fn used_after_its_end(function: &str) -> ! {
    eprintln!("fake NCCL: `{function}` on a communicator that was freed");
    std::process::abort()
}

/// Whether work on streams is done.
pub(crate) fn streams_are_done() -> bool {
    value("stuck").is_none() || ALIVE.load(Ordering::SeqCst) == 0
}

/// A number for a device of all machines, and never 0.
fn name_of(device: Device) -> u64 {
    let mut hasher = DefaultHasher::new();
    (value("host"), device.number()).hash(&mut hasher);
    hasher.finish() | 1
}

/// What was sent comes to where it is awaited.
pub(crate) fn deliver() {
    let (sent, awaited) = (SENT.take(), AWAITED.take());
    for (bytes, (to, length)) in sent.into_iter().zip(awaited) {
        // SAFETY: the receiver gave so many bytes, and waits for them.
        unsafe { bytes.as_ptr().copy_to(to as *mut u8, length.min(bytes.len())) };
    }
}

impl Comm {
    pub(crate) fn join(id: u64, ranks: c_int, rank: c_int, wire: Option<Wire>) -> Self {
        let device = device::current().ok().filter(|_| device::is_machine());
        if let Some((wire, device)) = wire.as_ref().zip(device) {
            wire.slots()[rank.cast_unsigned() as usize].device.store(name_of(device), Ordering::SeqCst);
        }
        *locked(&ARRIVED).entry(id).or_default() += 1;
        ALIVE.fetch_add(1, Ordering::SeqCst);
        let comm = Self {
            id,
            ranks,
            rank,
            device,
            wire,
            pieces: AtomicU64::new(0),
            is_over: Mutex::new(false),
            ended: Condvar::new(),
            looks: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            is_inside: AtomicBool::new(false),
        };
        comm.answer();
        comm
    }

    pub(crate) fn is_alive(&self) -> bool {
        !*locked(&self.is_over)
    }

    /// Notes that a thread is inside with it: two at a time is what NCCL forbids.
    #[expect(clippy::print_stderr, reason = "the process ends here")]
    pub(crate) fn inside(&self, function: &str) -> Inside<'_> {
        if self.is_inside.swap(true, Ordering::SeqCst) {
            eprintln!("fake NCCL: `{function}` while another thread is inside");
            std::process::abort()
        }
        Inside(self)
    }

    pub(crate) fn end(&self) {
        let mut is_over = locked(&self.is_over);
        if !*is_over {
            ALIVE.fetch_sub(1, Ordering::SeqCst);
        }
        *is_over = true;
        self.ended.notify_all();
    }

    pub(crate) fn wait_for_abort(&self) {
        let mut is_over = locked(&self.is_over);
        while !*is_over {
            is_over = self.ended.wait(is_over).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn put_on_a_stream(&self) {
        self.calls.fetch_add(1, Ordering::SeqCst);
    }

    /// What a call that may take long returns.
    pub(crate) fn answer(&self) -> c_int {
        let polls = value("slow").and_then(|polls| polls.parse().ok()).unwrap_or(0);
        self.looks.store(polls, Ordering::SeqCst);
        if polls > 0 || value("busy").is_some() { IN_PROGRESS } else { SUCCESS }
    }

    /// What `ncclCommGetAsyncError` reports.
    pub(crate) fn state(&self) -> c_int {
        let devices: Vec<u64> = self.wire.iter().flat_map(Wire::slots).map(Slot::device).collect();
        if (1..devices.len()).any(|at| devices[at] != 0 && devices[..at].contains(&devices[at])) {
            return INVALID_USAGE;
        }
        let arrived = locked(&ARRIVED).get(&self.id).copied().unwrap_or(0);
        let is_short = arrived < self.ranks && value("together").is_none();
        if (if self.wire.is_some() { devices.contains(&0) } else { is_short }) || value("absent").is_some() {
            return IN_PROGRESS;
        }
        if value("busy").is_some() && self.calls.load(Ordering::SeqCst) > 0 {
            return IN_PROGRESS;
        }
        if self.looks.load(Ordering::SeqCst) > 0 {
            self.looks.fetch_sub(1, Ordering::SeqCst);
            return IN_PROGRESS;
        }
        let error = value("async").and_then(|code| code.parse().ok());
        error.filter(|_| self.calls.load(Ordering::SeqCst) > 0).unwrap_or(SUCCESS)
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank.cast_unsigned() as usize
    }

    pub(crate) fn size(&self) -> usize {
        self.ranks.cast_unsigned() as usize
    }

    pub(crate) fn wire(&self) -> Option<&Wire> {
        self.wire.as_ref()
    }

    pub(crate) fn pieces(&self) -> u64 {
        self.pieces.load(Ordering::SeqCst)
    }

    pub(crate) fn count_piece(&self) {
        self.pieces.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn post(&self, bytes: Vec<u8>) {
        SENT.with_borrow_mut(|sent| sent.push(bytes));
    }

    pub(crate) fn await_post(&self, to: u64, length: usize) {
        AWAITED.with_borrow_mut(|awaited| awaited.push((to, length)));
    }
}

/// A thread that is inside with a communicator.
pub(crate) struct Inside<'a>(&'a Comm);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.is_inside.store(false, Ordering::SeqCst);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
