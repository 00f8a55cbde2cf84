//! Descriptors that are reserved for reading `/proc`. Another consumer may take all the others, such as a client that
//! connects to the store without end; a sweep must still find every process.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::resource::{Resource, getrlimit};

/// A walk has a folder and two files open at the same time, or a file and a pidfd.
const RESERVED_FDS: usize = 4;
/// [`open_keeping_reserve`] leaves so many more to the rest of the process (log files, pidfds): an eighth of the limit, and no
/// more than these.
const MAX_FDS_LEFT_FREE: u64 = 16;

static RESERVE: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

fn lock_reserve() -> MutexGuard<'static, Vec<OwnedFd>> {
    RESERVE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fill(kept: &mut Vec<OwnedFd>) -> io::Result<()> {
    while kept.len() < RESERVED_FDS {
        kept.push(EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?.into());
    }
    Ok(())
}

/// Takes the descriptors, as many as there are.
pub fn open_reserve() {
    let _ = fill(&mut lock_reserve());
}

/// Frees the descriptors for `look`, and takes them back. Not to be nested.
pub(super) fn with_reserve<T>(scan: impl FnOnce() -> T) -> T {
    let mut kept = lock_reserve();
    kept.clear();
    let result = scan();
    let _ = fill(&mut kept);
    result
}

/// Opens a descriptor that clients may ask for without end, unless few are left.
///
/// # Errors
/// `EMFILE` where few are left; the errors of `open`.
pub fn open_keeping_reserve<T>(open: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    // Held meanwhile: the descriptors that a walk frees belong to the reserve.
    let mut kept = lock_reserve();
    fill(&mut kept)?;
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let most = soft - MAX_FDS_LEFT_FREE.min(soft / 8);
    // The kernel gives the lowest number that is free: all below it are taken.
    let lowest = kept.first().map(OwnedFd::try_clone).transpose()?;
    if lowest.is_some_and(|fd| u64::try_from(fd.as_raw_fd()).is_ok_and(|number| number >= most)) {
        return Err(Errno::EMFILE.into());
    }
    open()
}
