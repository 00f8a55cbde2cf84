//! The collective calls of more than one rank, piece by piece: each rank shows its piece to all, waits for those of the others,
//! and takes from them what it needs. Ranks that make different calls wait for each other until they are aborted, as with NCCL.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::device::Device;
use crate::memory;
use crate::reduce::{self, ReduceOp, size};
use crate::wire::{LETTER, SLOT, Wire};
use crate::world::{Comm, SUCCESS};

/// As a call that was interrupted.
pub(crate) const INTERRUPTED: c_int = 3;
/// So many looks are without a pause.
const EAGER_POLLS: u32 = 100;
const PAUSE: Duration = Duration::from_micros(50);

thread_local! {
    /// Groups that are open in this thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// The first error of a call in them.
    static FAILED: Cell<Option<c_int>> = const { Cell::new(None) };
    /// What is to be done at the end of the outermost one.
    static WAITING: RefCell<Vec<Work>> = const { RefCell::new(Vec::new()) };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    AllReduce(ReduceOp),
    Broadcast(usize),
    Reduce(ReduceOp, usize),
    ReduceScatter(ReduceOp),
    AllGather,
    Send(usize),
    Receive(usize),
}

/// A call as it was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    pub(crate) kind: Kind,
    pub(crate) data_type: c_int,
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Elements, as the call counts them.
    pub(crate) count: usize,
}

impl Order {
    /// Bytes of the memory that this rank reads and writes.
    pub(crate) fn extent(&self, rank: usize, ranks: usize) -> (usize, usize) {
        let bytes = self.count * size(self.data_type);
        match self.kind {
            Kind::AllReduce(_) => (bytes, bytes),
            Kind::Broadcast(root) => (if rank == root { bytes } else { 0 }, bytes),
            Kind::Reduce(_, root) => (bytes, if rank == root { bytes } else { 0 }),
            Kind::ReduceScatter(_) => (bytes * ranks, bytes),
            Kind::AllGather => (bytes, bytes * ranks),
            Kind::Send(_) => (bytes, 0),
            Kind::Receive(_) => (0, bytes),
        }
    }

    /// Whether the device has the memory of this call.
    pub(crate) fn is_on(&self, device: Device, rank: usize, ranks: usize) -> bool {
        let (read, written) = self.extent(rank, ranks);
        memory::is_of(device, self.from, read) && memory::is_of(device, self.to, written)
    }

    /// The same for all ranks that make the same call.
    fn mark(&self) -> u64 {
        let (kind, how, root) = match self.kind {
            Kind::AllReduce(how) => (1, how as u64, 0),
            Kind::Broadcast(root) => (2, 0, root as u64),
            Kind::Reduce(how, root) => (3, how as u64, root as u64),
            Kind::ReduceScatter(how) => (4, how as u64, 0),
            Kind::AllGather => (5, 0, 0),
            Kind::Send(_) | Kind::Receive(_) => (6, 0, 0),
        };
        (self.count as u64) << 32
            | u64::from(self.data_type.cast_unsigned()) << 24
            | root << 16
            | how << 8
            | kind
    }

    fn is_transfer(&self) -> bool {
        matches!(self.kind, Kind::Send(_) | Kind::Receive(_))
    }
}

/// A call under way.
struct Work {
    comm: &'static Comm,
    order: Order,
    /// Bytes that are exchanged in all, and those that are done.
    bytes: usize,
    done: usize,
    /// Whether the next piece is in this rank's slot.
    is_shown: bool,
}

/// Begins a group in this thread.
pub(crate) fn begin() {
    DEPTH.set(DEPTH.get() + 1);
}

/// Ends it, and with the outermost one makes its calls.
pub(crate) fn end() -> c_int {
    DEPTH.set(DEPTH.get().saturating_sub(1));
    if DEPTH.get() > 0 {
        return SUCCESS;
    }
    let works = WAITING.take();
    FAILED.take().unwrap_or_else(|| run(works))
}

/// A call went wrong: the group that it belongs to comes to nothing.
pub(crate) fn fail(code: c_int) -> c_int {
    if DEPTH.get() > 0 && FAILED.get().is_none() {
        FAILED.set(Some(code));
    }
    code
}

/// Makes a call, now or at the end of the group.
pub(crate) fn put(comm: &'static Comm, order: Order) -> c_int {
    let (read, written) = order.extent(comm.rank(), comm.size());
    let bytes = match order.kind {
        Kind::Broadcast(_) | Kind::Receive(_) => written,
        _ => read,
    };
    let work = Work { comm, order, bytes, done: 0, is_shown: false };
    if DEPTH.get() > 0 {
        WAITING.with_borrow_mut(|waiting| waiting.push(work));
        return SUCCESS;
    }
    run(vec![work])
}

/// Makes calls that advance together.
fn run(mut works: Vec<Work>) -> c_int {
    let mut polls = 0_u32;
    loop {
        works.retain(|work| work.done < work.bytes);
        if works.is_empty() {
            return SUCCESS;
        }
        if works.iter().any(|work| !work.comm.is_alive()) {
            return INTERRUPTED;
        }
        let mut has_moved = false;
        for at in 0..works.len() {
            let (before, rest) = works.split_at_mut(at);
            if !before.iter().any(|earlier| earlier.holds_up(&rest[0])) {
                has_moved |= rest[0].advance();
            }
        }
        polls = if has_moved { 0 } else { polls.saturating_add(1) };
        if polls > EAGER_POLLS {
            std::thread::sleep(PAUSE);
        } else if polls > 0 {
            std::thread::yield_now();
        }
    }
}

impl Work {
    /// Whether another one must wait for this one: collective calls keep their order, and the letters of two ranks theirs.
    fn holds_up(&self, later: &Self) -> bool {
        let is_same = std::ptr::eq(self.comm, later.comm) && self.done < self.bytes;
        is_same
            && (self.order.kind == later.order.kind
                || !(self.order.is_transfer() || later.order.is_transfer()))
    }

    fn advance(&mut self) -> bool {
        let Some(wire) = self.comm.wire() else { return false };
        match self.order.kind {
            Kind::Send(to) => self.send(wire, to),
            Kind::Receive(from) => self.receive(wire, from),
            _ => self.exchange(wire),
        }
    }

    fn send(&mut self, wire: &Wire, to: usize) -> bool {
        let rank = self.comm.rank();
        let post = wire.post(rank, to);
        let number = post.written.load(Ordering::Acquire);
        if post.read.load(Ordering::Acquire) < number {
            return false;
        }
        let bytes = (self.bytes - self.done).min(LETTER);
        // SAFETY: the caller vouches for its memory, and the letter has room.
        unsafe { place(self.order.from, self.done).copy_to(wire.letter(rank, to), bytes) };
        post.bytes.store(bytes as u64, Ordering::Relaxed);
        post.written.store(number + 1, Ordering::Release);
        self.done += bytes;
        true
    }

    fn receive(&mut self, wire: &Wire, from: usize) -> bool {
        let rank = self.comm.rank();
        let post = wire.post(from, rank);
        let number = post.written.load(Ordering::Acquire);
        if post.read.load(Ordering::Acquire) == number {
            return false;
        }
        let bytes = usize::try_from(post.bytes.load(Ordering::Relaxed)).unwrap_or(0);
        // The sender sends more than the receiver awaits.
        if bytes > self.bytes - self.done {
            return false;
        }
        // SAFETY: the caller vouches for its memory, which has room for these bytes.
        unsafe { wire.letter(from, rank).copy_to(place(self.order.to, self.done), bytes) };
        post.read.store(number, Ordering::Release);
        self.done += bytes;
        true
    }

    /// One piece of a call of all ranks.
    fn exchange(&mut self, wire: &Wire) -> bool {
        let (rank, number) = (self.comm.rank(), self.comm.pieces() + 1);
        let (slots, own) = (wire.slots(), &wire.slots()[rank]);
        let bytes = (self.bytes - self.done).min(SLOT);
        if !self.is_shown {
            if slots.iter().any(|slot| slot.read.load(Ordering::Acquire) < number - 1) {
                return false;
            }
            if !matches!(self.order.kind, Kind::Broadcast(root) if root != rank) {
                // SAFETY: the caller vouches for its memory, and the slot has room.
                unsafe { place(self.order.from, self.done).copy_to(wire.slot(rank), bytes) };
            }
            own.call.store(self.order.mark(), Ordering::Relaxed);
            own.written.store(number, Ordering::Release);
            self.is_shown = true;
        }
        if slots.iter().any(|slot| slot.written.load(Ordering::Acquire) < number) {
            return false;
        }
        if slots.iter().any(|slot| slot.call.load(Ordering::Relaxed) != self.order.mark()) {
            return false;
        }
        self.take(wire, bytes);
        own.read.store(number, Ordering::Release);
        self.comm.count_piece();
        self.done += bytes;
        self.is_shown = false;
        true
    }

    /// What this rank needs of the pieces in all slots.
    fn take(&self, wire: &Wire, bytes: usize) {
        let Order { kind, data_type, to, .. } = self.order;
        // SAFETY: all ranks have written so many bytes, and change nothing before this one has read them.
        let slot = |rank: usize| unsafe { std::slice::from_raw_parts(wire.slot(rank), bytes) };
        let slots: Vec<&[u8]> = (0..self.comm.size()).map(slot).collect();
        let reduced = |how| reduce::reduce(data_type, how, &slots).unwrap_or_default();
        // SAFETY: the caller vouches for its memory, which is as long as the call says.
        let write = |at: usize, piece: &[u8]| unsafe { piece.as_ptr().copy_to(place(to, at), piece.len()) };
        match kind {
            Kind::AllReduce(how) => write(self.done, &reduced(how)),
            Kind::Reduce(how, root) if root == self.comm.rank() => write(self.done, &reduced(how)),
            Kind::Broadcast(root) => write(self.done, slots[root]),
            Kind::AllGather => {
                slots.iter().enumerate().for_each(|(rank, slot)| write(rank * self.bytes + self.done, slot));
            }
            Kind::ReduceScatter(how) => {
                let part = self.bytes / slots.len();
                let own = part * self.comm.rank();
                let (start, end) = (own.max(self.done), (own + part).min(self.done + bytes));
                if start < end {
                    write(start - own, &reduced(how)[start - self.done..end - self.done]);
                }
            }
            Kind::Reduce(..) | Kind::Send(_) | Kind::Receive(_) => {}
        }
    }
}

fn place(address: u64, offset: usize) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0) + offset)
}
