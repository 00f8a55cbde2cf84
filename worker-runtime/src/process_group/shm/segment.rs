//! The memory that the ranks of a group share: a file without a name, sealed so that nobody can shrink it, and its mapping.
//!
//! Everything in it is written by other processes at any time, so there is no reference into it but to atomics; all else goes
//! through raw pointers, at times on which the ranks have agreed.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{FallocateFlags, MemfdFlags, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::{Resource, getpid, getrlimit};

use super::error::SegmentError;
use super::map::{HUGE, MAGIC_AT, Map, VERSION_AT};
use crate::socket;
use rankrun_contract::rank::WorldSize;

/// Of what lies in the memory, and of how ranks use it.
pub(crate) const VERSION: u32 = 1;
const MAGIC: u64 = u64::from_le_bytes(*b"rankrun\0");

/// Why nobody can take memory away that others use.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A mapped segment.
#[derive(Debug)]
pub(crate) struct Segment {
    file: OwnedFd,
    address: NonNull<u8>,
    /// Bytes that are mapped: all of them, or all but the arenas.
    mapped: usize,
    map: Map,
    /// A forked child has all of this, and must not end what its parent goes on with.
    owner: rustix::process::Pid,
}

// SAFETY: the mapping belongs to no thread; whoever dereferences it says why it may.
#[expect(unsafe_code, reason = "a raw pointer to a mapping that this value owns")]
unsafe impl Send for Segment {}
// SAFETY: as above; safe methods give references to atomics only.
#[expect(unsafe_code, reason = "a raw pointer to a mapping that this value owns")]
unsafe impl Sync for Segment {}

impl Segment {
    /// A new one, with arenas as large as this machine and our limits let them be.
    pub(crate) fn create(world_size: WorldSize) -> Result<Self, SegmentError> {
        let file = memory_file().map_err(|cause| match io::Error::from(cause) {
            cause if socket::is_own_shortage(&cause) => SegmentError::Socket(cause),
            cause => SegmentError::NoFile(cause),
        })?;
        let mut arena = largest_arena(world_size);
        loop {
            let map = Map::new(world_size, arena as u64)?;
            let failed = match map_file(&file, map.total()) {
                Ok(address) => {
                    let owner = getpid();
                    let segment = Self { file, address, mapped: map.total(), map, owner };
                    segment.initialise()?;
                    return Ok(segment);
                }
                Err(cause) => SegmentError::Memory { bytes: map.total(), cause: cause.into() },
            };
            if arena == 0 {
                return Err(failed);
            }
            // Below this, buffers are hardly worth an arena.
            arena = if arena >= 16 * HUGE { arena / 2 / HUGE * HUGE } else { 0 };
        }
    }

    fn initialise(&self) -> Result<(), SegmentError> {
        let bytes = self.map.total();
        let failed = |cause: Errno| SegmentError::Memory { bytes, cause: cause.into() };
        // Beyond this limit the kernel would send a signal that ends the process.
        if getrlimit(Resource::Fsize).current.is_some_and(|limit| bytes as u64 > limit) {
            return Err(failed(Errno::FBIG));
        }
        rustix::fs::ftruncate(&self.file, bytes as u64).map_err(failed)?;
        rustix::fs::fcntl_add_seals(&self.file, SEALS).map_err(failed)?;
        self.populate(0, self.map.common())?;
        self.word64(MAGIC_AT).store(MAGIC, std::sync::atomic::Ordering::Relaxed);
        self.word32(VERSION_AT).store(VERSION, std::sync::atomic::Ordering::Release);
        Ok(())
    }

    /// One that rank 0 has passed: arenas are left out where they cannot be mapped.
    pub(crate) fn open(file: OwnedFd, map: Map) -> Result<Self, SegmentError> {
        let is_sealed =
            rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        let is_long =
            rustix::fs::fstat(&file).is_ok_and(|stat| usize::try_from(stat.st_size) == Ok(map.total()));
        let is_writable =
            rustix::fs::fcntl_getfl(&file).is_ok_and(|flags| flags & OFlags::RWMODE == OFlags::RDWR);
        if !(is_sealed && is_long && is_writable) {
            return Err(SegmentError::Strange);
        }
        let all = map_file(&file, map.total()).map(|address| (address, map.total()));
        let (address, mapped) = all
            .or_else(|_| map_file(&file, map.base()).map(|address| (address, map.base())))
            .map_err(|cause| SegmentError::Memory { bytes: map.base(), cause: cause.into() })?;
        let segment = Self { file, address, mapped, map, owner: getpid() };
        let magic = segment.word64(MAGIC_AT).load(std::sync::atomic::Ordering::Relaxed);
        let version = segment.word32(VERSION_AT).load(std::sync::atomic::Ordering::Acquire);
        if (magic, version) == (MAGIC, VERSION) { Ok(segment) } else { Err(SegmentError::Strange) }
    }

    pub(crate) fn map(&self) -> &Map {
        &self.map
    }

    /// Whether the arenas of all ranks are mapped here.
    pub(crate) fn has_arenas(&self) -> bool {
        self.map.arena_bytes() > 0 && self.mapped == self.map.total()
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Whether this process joined: a forked child of it did not.
    pub(crate) fn is_ours(&self) -> bool {
        self.owner == getpid()
    }

    /// Where `bytes` bytes lie that are mapped.
    pub(crate) fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        let end = offset.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.mapped), "within the mapping");
        self.address.as_ptr().wrapping_add(offset)
    }

    /// A number of four bytes that all ranks change.
    pub(crate) fn word32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "aligned");
        // SAFETY: it is mapped for as long as `self` lives (`at` checks the bounds), aligned, initialised (zeros of the kernel's),
        // and every process accesses it through atomics only.
        #[expect(unsafe_code, reason = "an atomic in shared memory")]
        unsafe {
            AtomicU32::from_ptr(self.at(offset, 4).cast())
        }
    }

    /// As [`word32`](Self::word32), of eight bytes.
    pub(crate) fn word64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "aligned");
        // SAFETY: as in `word32`.
        #[expect(unsafe_code, reason = "an atomic in shared memory")]
        unsafe {
            AtomicU64::from_ptr(self.at(offset, 8).cast())
        }
    }

    /// How far an address of this process lies from the beginning of the segment, unless it is before it.
    pub(crate) fn offset_of(&self, address: *const u8) -> Option<usize> {
        (address as usize).checked_sub(self.address.as_ptr() as usize)
    }

    /// Has the kernel give us the pages now, near this processor: later, memory that is not there ends the process.
    pub(crate) fn populate(&self, offset: usize, bytes: usize) -> Result<(), SegmentError> {
        let start = offset / super::map::PAGE * super::map::PAGE;
        let length = (offset + bytes - start).next_multiple_of(super::map::PAGE);
        let address: *mut c_void = self.at(start, length).cast();
        // SAFETY: the range is mapped; populating changes no byte.
        #[expect(unsafe_code, reason = "advice on a mapping")]
        let populated = unsafe { rustix::mm::madvise(address, length, Advice::LinuxPopulateWrite) };
        match populated {
            // Before Linux 5.14.
            Err(Errno::INVAL) => {
                rustix::fs::fallocate(&self.file, FallocateFlags::empty(), start as u64, length as u64)
            }
            result => result,
        }
        .map_err(|cause| SegmentError::Memory { bytes, cause: cause.into() })
    }

    /// Gives the pages back to the kernel; whoever reads them reads zeros.
    pub(crate) fn punch(&self, offset: usize, bytes: usize) {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // It fails only for arguments that are wrong.
        let _ = rustix::fs::fallocate(&self.file, mode, offset as u64, bytes as u64);
    }

    /// Says for as long as this process lives that it is rank `rank`: by a record lock, which belongs to the process alone (no child
    /// inherits it), which the kernel gives up with it, and which every process can see, in whatever pid namespace it is.
    pub(crate) fn take_seat(&self, rank: usize) -> Result<(), SegmentError> {
        let lock = record(rank);
        match fcntl(&self.file, FcntlArg::F_SETLK(&lock)) {
            Ok(_) => Ok(()),
            Err(cause) => Err(SegmentError::Memory { bytes: self.mapped, cause: io::Error::from(cause) }),
        }
    }

    /// Whether the process of a rank that took its seat is gone. Ranks of this same process are never seen to be gone.
    pub(crate) fn is_vacant(&self, rank: usize) -> bool {
        let mut lock = record(rank);
        let asked = fcntl(&self.file, FcntlArg::F_GETLK(&mut lock));
        asked.is_ok() && i32::from(lock.l_type) == libc::F_UNLCK
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: it was mapped by us, and nobody has a pointer into it any more: buffers keep the segment alive.
        #[expect(unsafe_code, reason = "unmaps what was mapped")]
        let unmapped = unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), self.mapped) };
        debug_assert!(unmapped.is_ok(), "it fails only for arguments that are wrong");
    }
}

/// The byte of the file that stands for a rank.
fn record(rank: usize) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: rank as libc::off_t,
        l_len: 1,
        l_pid: 0,
    }
}

/// Whether this process may make what ranks share.
///
/// # Errors
/// It may, but can open no more.
pub(crate) fn is_permitted() -> io::Result<bool> {
    match memory_file().map_err(io::Error::from) {
        Ok(_) => Ok(true),
        Err(error) if socket::is_own_shortage(&error) => Err(error),
        Err(_) => Ok(false),
    }
}

fn memory_file() -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Where the administrator lets no memory be executed, it must be said; before Linux 6.3 nothing of it is known.
    match rustix::fs::memfd_create("rankrun", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create("rankrun", flags),
        result => result,
    }
}

fn map_file(file: &OwnedFd, bytes: usize) -> Result<NonNull<u8>, Errno> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    #[expect(unsafe_code, reason = "maps shared memory")]
    let address = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, flags, file, 0)? };
    // A core file would fill the arenas to have their zeros. Huge pages only make it faster.
    for advice in [Advice::LinuxDontDump, Advice::LinuxHugepage] {
        // SAFETY: the range was mapped above; the advice changes no byte.
        #[expect(unsafe_code, reason = "advice on a mapping")]
        let _ = unsafe { rustix::mm::madvise(address, bytes, advice) };
    }
    NonNull::new(address.cast()).ok_or(Errno::NOMEM)
}

/// Bytes of each rank's arena: all of them together as large as the memory, within the limits of this process.
fn largest_arena(world_size: WorldSize) -> usize {
    let memory = usize::try_from(rustix::system::sysinfo().totalram).unwrap_or(usize::MAX);
    let limit = |resource| getrlimit(resource).current.and_then(|limit| usize::try_from(limit).ok());
    // Half of the addresses remain for the program, and the file has other parts, too.
    let limits = [limit(Resource::As), limit(Resource::Fsize)].into_iter().flatten().map(|limit| limit / 2);
    // Many groups have room for theirs in what addresses there are.
    let all = limits.chain([memory, 1 << 40]).min().unwrap_or(0);
    all / world_size.get() as usize / HUGE * HUGE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> WorldSize {
        WorldSize::new(2).unwrap()
    }

    /// A file like that of a segment, but for its length and seals.
    fn file(bytes: usize, seals: SealFlags) -> OwnedFd {
        let file = memory_file().unwrap();
        rustix::fs::ftruncate(&file, bytes as u64).unwrap();
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
        let head = [&MAGIC.to_le_bytes()[..], &VERSION.to_le_bytes()].concat();
        rustix::io::pwrite(&file, &head, 0).unwrap();
        file
    }

    #[test]
    fn only_a_file_that_cannot_shrink_is_taken_for_shared_memory() {
        let map = Map::new(two(), HUGE as u64).unwrap();
        assert!(Segment::open(file(map.total(), SEALS), map).is_ok());
        let is_strange = |file| matches!(Segment::open(file, map), Err(SegmentError::Strange));
        assert!(is_strange(file(map.total(), SealFlags::GROW)), "it could shrink");
        assert!(is_strange(file(map.total() - 1, SEALS)), "it is too short");
        let other = file(map.total(), SealFlags::SHRINK);
        rustix::io::pwrite(&other, &[VERSION as u8 + 1], VERSION_AT as u64).unwrap();
        assert!(is_strange(other), "it is of another version");
        let reading = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(is_strange(reading.into()), "it cannot be written");
    }

    #[test]
    fn a_seat_is_vacant_until_it_is_taken_and_never_to_its_own_process() {
        let segment = Segment::create(two()).unwrap();
        assert!(segment.is_vacant(1));
        segment.take_seat(1).unwrap();
        assert!(segment.is_vacant(1), "the kernel does not tell a process of its own locks");
    }

    #[test]
    fn what_is_punched_is_zero_again() {
        let segment = Segment::create(two()).unwrap();
        let at = segment.map().arena(1).start;
        segment.populate(at, HUGE).unwrap();
        segment.word64(at + 8).store(7, std::sync::atomic::Ordering::Relaxed);
        segment.punch(at, HUGE);
        assert_eq!(segment.word64(at + 8).load(std::sync::atomic::Ordering::Relaxed), 0);
    }
}
