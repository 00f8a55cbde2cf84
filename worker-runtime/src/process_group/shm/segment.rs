//! The shared memory of a group: a mapped file without a name, sealed against shrinking.
//!
//! Other processes write to it at any time, so that only atomics are referenced; all else goes through raw
//! pointers, at times on which the ranks have agreed.

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
use super::map::{HUGE_PAGE_SIZE, MAGIC_OFFSET, Map, VERSION_OFFSET};
use crate::socket;
use rankrun_contract::rank::WorldSize;

/// Version of the layout and of its use.
pub(crate) const LAYOUT_VERSION: u32 = 1;
const MAGIC: u64 = u64::from_le_bytes(*b"rankrun\0");

/// Prevents a process from removing memory that others use.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

#[derive(Debug)]
pub(crate) struct Segment {
    file: OwnedFd,
    address: NonNull<u8>,
    /// Mapped bytes: the whole file, or all but the arenas.
    mapped_bytes: usize,
    map: Map,
    /// A forked child has a copy of this value and must not change the segment.
    owner: rustix::process::Pid,
}

// SAFETY: the mapping belongs to no thread; each dereference has a reason of its own.
#[expect(unsafe_code, reason = "a raw pointer to a mapping that this value owns")]
unsafe impl Send for Segment {}
// SAFETY: as above; safe methods give references to atomics only.
#[expect(unsafe_code, reason = "a raw pointer to a mapping that this value owns")]
unsafe impl Sync for Segment {}

impl Segment {
    /// Makes a segment with the largest arenas that memory and limits permit.
    pub(crate) fn create(world_size: WorldSize) -> Result<Self, SegmentError> {
        let file = create_memfd().map_err(|cause| match io::Error::from(cause) {
            cause if socket::is_own_shortage(&cause) => SegmentError::Socket(cause),
            cause => SegmentError::NoFile(cause),
        })?;
        let mut arena = max_arena_bytes(world_size);
        loop {
            let map = Map::new(world_size, arena as u64)?;
            let failed = match mmap_file(&file, map.total_bytes()) {
                Ok(address) => {
                    let owner = getpid();
                    let segment = Self { file, address, mapped_bytes: map.total_bytes(), map, owner };
                    segment.initialise()?;
                    return Ok(segment);
                }
                Err(cause) => SegmentError::Memory { bytes: map.total_bytes(), cause: cause.into() },
            };
            if arena == 0 {
                return Err(failed);
            }
            // Smaller arenas are not worth the mapping.
            arena =
                if arena >= 16 * HUGE_PAGE_SIZE { arena / 2 / HUGE_PAGE_SIZE * HUGE_PAGE_SIZE } else { 0 };
        }
    }

    fn initialise(&self) -> Result<(), SegmentError> {
        let bytes = self.map.total_bytes();
        let failed = |cause: Errno| SegmentError::Memory { bytes, cause: cause.into() };
        // Beyond this limit the kernel would end the process with SIGXFSZ.
        if getrlimit(Resource::Fsize).current.is_some_and(|limit| bytes as u64 > limit) {
            return Err(failed(Errno::FBIG));
        }
        rustix::fs::ftruncate(&self.file, bytes as u64).map_err(failed)?;
        rustix::fs::fcntl_add_seals(&self.file, SEALS).map_err(failed)?;
        self.populate(0, self.map.control_end())?;
        self.atomic_u64(MAGIC_OFFSET).store(MAGIC, std::sync::atomic::Ordering::Relaxed);
        self.atomic_u32(VERSION_OFFSET).store(LAYOUT_VERSION, std::sync::atomic::Ordering::Release);
        Ok(())
    }

    /// Maps a segment from rank 0, without the arenas if they cannot be mapped.
    pub(crate) fn open(file: OwnedFd, map: Map) -> Result<Self, SegmentError> {
        let is_sealed =
            rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        let is_long =
            rustix::fs::fstat(&file).is_ok_and(|stat| usize::try_from(stat.st_size) == Ok(map.total_bytes()));
        let is_writable =
            rustix::fs::fcntl_getfl(&file).is_ok_and(|flags| flags & OFlags::RWMODE == OFlags::RDWR);
        if !(is_sealed && is_long && is_writable) {
            return Err(SegmentError::Strange);
        }
        let all = mmap_file(&file, map.total_bytes()).map(|address| (address, map.total_bytes()));
        let (address, mapped) = all
            .or_else(|_| mmap_file(&file, map.arenas_start()).map(|address| (address, map.arenas_start())))
            .map_err(|cause| SegmentError::Memory { bytes: map.arenas_start(), cause: cause.into() })?;
        let segment = Self { file, address, mapped_bytes: mapped, map, owner: getpid() };
        let magic = segment.atomic_u64(MAGIC_OFFSET).load(std::sync::atomic::Ordering::Relaxed);
        let version = segment.atomic_u32(VERSION_OFFSET).load(std::sync::atomic::Ordering::Acquire);
        if (magic, version) == (MAGIC, LAYOUT_VERSION) { Ok(segment) } else { Err(SegmentError::Strange) }
    }

    pub(crate) fn map(&self) -> &Map {
        &self.map
    }

    /// Whether the arenas of all ranks are mapped.
    pub(crate) fn has_arenas(&self) -> bool {
        self.map.arena_bytes() > 0 && self.mapped_bytes == self.map.total_bytes()
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Whether this process joined, and not a parent of it.
    pub(crate) fn is_owner_process(&self) -> bool {
        self.owner == getpid()
    }

    /// The address of `bytes` mapped bytes.
    pub(crate) fn ptr_at(&self, offset: usize, bytes: usize) -> *mut u8 {
        let end = offset.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.mapped_bytes), "within the mapping");
        self.address.as_ptr().wrapping_add(offset)
    }

    /// A 32-bit word that any rank may change.
    pub(crate) fn atomic_u32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "aligned");
        // SAFETY: mapped for as long as `self` lives (`ptr_at` checks the bounds), aligned, initialised with
        // zeros by the kernel, and accessed through atomics only by every process.
        #[expect(unsafe_code, reason = "an atomic in shared memory")]
        unsafe {
            AtomicU32::from_ptr(self.ptr_at(offset, 4).cast())
        }
    }

    /// As [`atomic_u32`](Self::atomic_u32), with 64 bits.
    pub(crate) fn atomic_u64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "aligned");
        // SAFETY: as in `atomic_u32`.
        #[expect(unsafe_code, reason = "an atomic in shared memory")]
        unsafe {
            AtomicU64::from_ptr(self.ptr_at(offset, 8).cast())
        }
    }

    /// Offset of an address of this process from the beginning of the segment; `None` if it lies before.
    pub(crate) fn offset_of(&self, address: *const u8) -> Option<usize> {
        (address as usize).checked_sub(self.address.as_ptr() as usize)
    }

    /// Allocates the pages now, near this processor: a later shortage of memory would end the process.
    pub(crate) fn populate(&self, offset: usize, bytes: usize) -> Result<(), SegmentError> {
        let start = offset / super::map::PAGE_SIZE * super::map::PAGE_SIZE;
        let length = (offset + bytes - start).next_multiple_of(super::map::PAGE_SIZE);
        let address: *mut c_void = self.ptr_at(start, length).cast();
        // SAFETY: the range is mapped; populating changes no byte.
        #[expect(unsafe_code, reason = "advice on a mapping")]
        let populated = unsafe { rustix::mm::madvise(address, length, Advice::LinuxPopulateWrite) };
        match populated {
            // Linux before 5.14 lacks this advice.
            Err(Errno::INVAL) => {
                rustix::fs::fallocate(&self.file, FallocateFlags::empty(), start as u64, length as u64)
            }
            result => result,
        }
        .map_err(|cause| SegmentError::Memory { bytes, cause: cause.into() })
    }

    /// Returns the pages to the kernel; they read as zeros afterwards.
    pub(crate) fn punch_hole(&self, offset: usize, bytes: usize) {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // It fails for wrong arguments only.
        let _ = rustix::fs::fallocate(&self.file, mode, offset as u64, bytes as u64);
    }

    /// Marks this process as rank `rank` for its lifetime, with a record lock: it belongs to the
    /// process alone (no child inherits it), the kernel releases it at exit, and every process
    /// sees it, in any pid namespace.
    pub(crate) fn lock_rank(&self, rank: usize) -> Result<(), SegmentError> {
        let lock = record_lock(rank);
        match fcntl(&self.file, FcntlArg::F_SETLK(&lock)) {
            Ok(_) => Ok(()),
            Err(cause) => {
                Err(SegmentError::Memory { bytes: self.mapped_bytes, cause: io::Error::from(cause) })
            }
        }
    }

    /// Whether the process of a rank has released its lock, by exiting. The locks of
    /// this process itself are never visible.
    pub(crate) fn is_lock_released(&self, rank: usize) -> bool {
        let mut lock = record_lock(rank);
        let queried = fcntl(&self.file, FcntlArg::F_GETLK(&mut lock));
        queried.is_ok() && i32::from(lock.l_type) == libc::F_UNLCK
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: this value mapped it, and no pointer into it remains: buffers keep the segment alive.
        #[expect(unsafe_code, reason = "unmaps what was mapped")]
        let unmapped = unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), self.mapped_bytes) };
        debug_assert!(unmapped.is_ok(), "it fails only for arguments that are wrong");
    }
}

/// The record lock on the byte of a rank.
fn record_lock(rank: usize) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: rank as libc::off_t,
        l_len: 1,
        l_pid: 0,
    }
}

/// Whether this process may make a segment.
///
/// # Errors
/// This process can open no more files.
pub(crate) fn can_create_segment() -> io::Result<bool> {
    match create_memfd().map_err(io::Error::from) {
        Ok(_) => Ok(true),
        Err(error) if socket::is_own_shortage(&error) => Err(error),
        Err(_) => Ok(false),
    }
}

fn create_memfd() -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // `vm.memfd_noexec` may demand this flag; Linux before 6.3 does not know it.
    match rustix::fs::memfd_create("rankrun", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create("rankrun", flags),
        result => result,
    }
}

fn mmap_file(file: &OwnedFd, bytes: usize) -> Result<NonNull<u8>, Errno> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    #[expect(unsafe_code, reason = "maps shared memory")]
    let address = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, flags, file, 0)? };
    // A core dump would touch every page of the arenas. Huge pages only add speed.
    for advice in [Advice::LinuxDontDump, Advice::LinuxHugepage] {
        // SAFETY: the range was mapped above; the advice changes no byte.
        #[expect(unsafe_code, reason = "advice on a mapping")]
        let _ = unsafe { rustix::mm::madvise(address, bytes, advice) };
    }
    NonNull::new(address.cast()).ok_or(Errno::NOMEM)
}

/// Bytes of each rank's arena: all together the size of the machine's memory,
/// within the limits of this process.
fn max_arena_bytes(world_size: WorldSize) -> usize {
    let memory = usize::try_from(rustix::system::sysinfo().totalram).unwrap_or(usize::MAX);
    let limit = |resource| getrlimit(resource).current.and_then(|limit| usize::try_from(limit).ok());
    // The program keeps half of the addresses; the file has other parts as well.
    let limits = [limit(Resource::As), limit(Resource::Fsize)].into_iter().flatten().map(|limit| limit / 2);
    // Leaves addresses for many groups.
    let all = limits.chain([memory, 1 << 40]).min().unwrap_or(0);
    all / world_size.get() as usize / HUGE_PAGE_SIZE * HUGE_PAGE_SIZE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_ranks() -> WorldSize {
        WorldSize::new(2).unwrap()
    }

    /// A file like that of a segment, but for its length and seals.
    fn segment_file(bytes: usize, seals: SealFlags) -> OwnedFd {
        let file = create_memfd().unwrap();
        rustix::fs::ftruncate(&file, bytes as u64).unwrap();
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
        let head = [&MAGIC.to_le_bytes()[..], &LAYOUT_VERSION.to_le_bytes()].concat();
        rustix::io::pwrite(&file, &head, 0).unwrap();
        file
    }

    #[test]
    fn segment_file_shrinkable_or_short_or_other_version_is_rejected() {
        let map = Map::new(two_ranks(), HUGE_PAGE_SIZE as u64).unwrap();
        assert!(Segment::open(segment_file(map.total_bytes(), SEALS), map).is_ok());
        let is_strange = |file| matches!(Segment::open(file, map), Err(SegmentError::Strange));
        assert!(is_strange(segment_file(map.total_bytes(), SealFlags::GROW)), "it could shrink");
        assert!(is_strange(segment_file(map.total_bytes() - 1, SEALS)), "it is too short");
        let other = segment_file(map.total_bytes(), SealFlags::SHRINK);
        rustix::io::pwrite(&other, &[LAYOUT_VERSION as u8 + 1], VERSION_OFFSET as u64).unwrap();
        assert!(is_strange(other), "it is of another version");
        let reading = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(is_strange(reading.into()), "it cannot be written");
    }

    #[test]
    fn rank_lock_held_by_own_process_reports_released() {
        let segment = Segment::create(two_ranks()).unwrap();
        assert!(segment.is_lock_released(1));
        segment.lock_rank(1).unwrap();
        assert!(segment.is_lock_released(1), "the kernel does not tell a process of its own locks");
    }

    #[test]
    fn punched_pages_read_as_zeros() {
        let segment = Segment::create(two_ranks()).unwrap();
        let at = segment.map().arena(1).start;
        segment.populate(at, HUGE_PAGE_SIZE).unwrap();
        segment.atomic_u64(at + 8).store(7, std::sync::atomic::Ordering::Relaxed);
        segment.punch_hole(at, HUGE_PAGE_SIZE);
        assert_eq!(segment.atomic_u64(at + 8).load(std::sync::atomic::Ordering::Relaxed), 0);
    }
}
