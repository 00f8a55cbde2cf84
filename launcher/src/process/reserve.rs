//! Descriptors that are reserved for reading `/proc`. Another consumer may take all the others, such as a client that
//! connects to the store without end; a sweep must still find every process.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::resource::{Resource, getrlimit};

/// A walk has a folder and two files open at the same time, or a file and a pidfd.
const KEPT: usize = 4;
/// [`sparingly`] leaves so many more to the rest of the process (log files, pidfds): an eighth of the limit, and no
/// more than these.
const LEFT_TO_OTHERS: u64 = 16;

static KEEP: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

fn keep() -> MutexGuard<'static, Vec<OwnedFd>> {
    KEEP.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fill(kept: &mut Vec<OwnedFd>) -> io::Result<()> {
    while kept.len() < KEPT {
        kept.push(EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?.into());
    }
    Ok(())
}

/// Takes the descriptors, as many as there are.
pub fn hold() {
    let _ = fill(&mut keep());
}

/// Frees the descriptors for `look`, and takes them back. Not to be nested.
pub(super) fn with_reserve<T>(look: impl FnOnce() -> T) -> T {
    let mut kept = keep();
    kept.clear();
    let seen = look();
    let _ = fill(&mut kept);
    seen
}

/// Opens a descriptor that clients may ask for without end, unless few are left.
///
/// # Errors
/// `EMFILE` where few are left; the errors of `open`.
pub fn sparingly<T>(open: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    // Held meanwhile: the descriptors that a walk frees belong to the reserve.
    let mut kept = keep();
    fill(&mut kept)?;
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let most = soft - LEFT_TO_OTHERS.min(soft / 8);
    // The kernel gives the lowest number that is free: all below it are taken.
    let lowest = kept.first().map(OwnedFd::try_clone).transpose()?;
    if lowest.is_some_and(|fd| u64::try_from(fd.as_raw_fd()).is_ok_and(|number| number >= most)) {
        return Err(Errno::EMFILE.into());
    }
    open()
}
