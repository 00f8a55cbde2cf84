//! Process state from the launcher's parent: descriptors that no worker may inherit, and limits that every worker
//! gets back.
#![expect(unsafe_code, reason = "close_range has no safe wrapper")]

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

/// The first descriptor behind standard input, output and error.
const FIRST_INHERITED_FD: RawFd = 3;

/// Marks every descriptor from 3 on as closed on exec: torchrun hands down none of them (`close_fds`).
///
/// `close_range(2)` where there is one (Linux 5.11, and seccomp allows it), else one by one.
///
/// # Errors
/// Neither was possible: workers may then see descriptors of the launcher's parent.
pub fn set_close_on_exec() -> io::Result<()> {
    // SAFETY: only sets a flag on descriptors, opens and closes none.
    if unsafe { close_range(FIRST_INHERITED_FD, libc::CLOSE_RANGE_CLOEXEC) } {
        return Ok(());
    }
    for number in open_descriptors()?.into_iter().filter(|number| *number >= FIRST_INHERITED_FD) {
        // SAFETY: used for this one call; a number that was closed meanwhile gives EBADF.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let _ = fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
    }
    Ok(())
}

/// Ends this process, without destructors. All descriptors are closed first: they would stay open as long as a thread waits
/// in the kernel for a file system, and the reader of the launcher's output would wait with it.
pub fn close_all_and_exit() -> ! {
    // SAFETY: this thread uses no descriptor from here on, and the others are about to end.
    unsafe {
        if !close_range(0, 0) {
            for number in open_descriptors().unwrap_or_default() {
                libc::close(number);
            }
        }
        libc::_exit(0)
    }
}

/// close_range(2) up to the last descriptor; false if the kernel has no such call.
///
/// # Safety
/// Without a flag it closes descriptors that have owners.
unsafe fn close_range(first: RawFd, flags: libc::c_uint) -> bool {
    let first = libc::c_uint::try_from(first).unwrap_or_default();
    // SAFETY: as the caller says; no memory is passed.
    unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, flags) == 0 }
}

fn open_descriptors() -> io::Result<Vec<RawFd>> {
    let open = fs::read_dir("/proc/self/fd")?;
    Ok(open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// The limits on open files that the launcher was started with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLimits {
    /// The soft limit: the value that the kernel enforces.
    pub soft: rlim_t,
    /// How far it may be raised.
    pub hard: rlim_t,
}

/// Raises our own limit on open files as far as allowed (the store serves a socket per worker and more) and
/// returns the limits to give back to the workers; `None` where nothing was changed.
#[must_use]
pub fn raise_file_limit() -> Option<FileLimits> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    (soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok())
        .then_some(FileLimits { soft, hard })
}

/// Whether the limit on file sizes forbids every byte (`ulimit -f 0`).
#[must_use]
pub fn is_file_size_limit_zero() -> bool {
    nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_FSIZE).is_ok_and(|(soft, _)| soft == 0)
}
