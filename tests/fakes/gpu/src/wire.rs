//! The memory that the ranks of a communicator share: a file without a name, which the others find by the process that made it.
//! So nothing is left when ranks are killed.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::ftruncate;
use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::compile::memory_file;

/// Bytes that a rank shows all others at a time.
pub(crate) const SLOT: usize = 1 << 16;
/// Bytes that a rank sends another one at a time.
pub(crate) const LETTER: usize = 1 << 14;
const MOST_RANKS: usize = 64;

/// What a rank says of itself.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// Its device, by a number that is another one for each device of all machines; 0 before it has come.
    pub(crate) device: AtomicU64,
    /// The number of the piece in its slot.
    pub(crate) written: AtomicU64,
    /// The number of the last piece that it has read from all slots.
    pub(crate) read: AtomicU64,
    /// What the piece in its slot belongs to.
    pub(crate) call: AtomicU64,
}

impl Slot {
    pub(crate) fn device(&self) -> u64 {
        self.device.load(Ordering::SeqCst)
    }
}

/// What two ranks say of the letters from one of them to the other.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Post {
    /// The number of the letter that lies there.
    pub(crate) written: AtomicU64,
    /// The number of the last one that was taken.
    pub(crate) read: AtomicU64,
    /// Bytes of it.
    pub(crate) bytes: AtomicU64,
}

/// The shared memory. It is never unmapped, since a thread may still wait there when its communicator ends.
#[derive(Debug)]
pub(crate) struct Wire {
    start: NonNull<u8>,
    ranks: usize,
}

// SAFETY: what is not atomic is written by one rank and read by others in turns, which the numbers settle.
unsafe impl Send for Wire {}
// SAFETY: as above.
unsafe impl Sync for Wire {}

/// Where others find the memory of a new communicator: a process and its descriptor, which stays open.
pub(crate) fn create() -> io::Result<(u32, u32)> {
    let file = memory_file(c"nccl")?;
    let descriptor = file.as_raw_fd().cast_unsigned();
    std::mem::forget(file);
    Ok((std::process::id(), descriptor))
}

impl Wire {
    pub(crate) fn open((process, descriptor): (u32, u32), ranks: usize) -> io::Result<Self> {
        if ranks > MOST_RANKS {
            return Err(io::Error::other("too many ranks"));
        }
        let path = format!("/proc/{process}/fd/{descriptor}");
        let file: OwnedFd = OpenOptions::new().read(true).write(true).open(path)?.into();
        let length = letters(ranks) + ranks * ranks * LETTER;
        // All ranks give it the same length.
        ftruncate(&file, length as u64)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping does not change an existing one.
        let start = unsafe { mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, &file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, ranks })
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        // SAFETY: they are at the beginning, and zeros are valid slots.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.ranks) }
    }

    pub(crate) fn post(&self, from: usize, to: usize) -> &Post {
        let at = posts(self.ranks) + (from * self.ranks + to) * size_of::<Post>();
        // SAFETY: there is one for each pair, aligned like the mapping, and zeros are one.
        unsafe { &*self.start.as_ptr().add(at).cast() }
    }

    pub(crate) fn slot(&self, rank: usize) -> *mut u8 {
        // SAFETY: the mapping has a slot for each rank.
        unsafe { self.start.as_ptr().add(slots(self.ranks) + rank * SLOT) }
    }

    pub(crate) fn letter(&self, from: usize, to: usize) -> *mut u8 {
        // SAFETY: the mapping has one for each pair.
        unsafe { self.start.as_ptr().add(letters(self.ranks) + (from * self.ranks + to) * LETTER) }
    }
}

fn posts(ranks: usize) -> usize {
    ranks * size_of::<Slot>()
}

fn slots(ranks: usize) -> usize {
    posts(ranks) + ranks * ranks * size_of::<Post>()
}

fn letters(ranks: usize) -> usize {
    slots(ranks) + ranks * SLOT
}
