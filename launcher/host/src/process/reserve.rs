//! Descriptors that are reserved for reading `/proc`. Another consumer may take all the others, such as a client that
//! connects to the store without end; a sweep must still find every process.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::resource::{Resource, getrlimit};

/// A walk has a folder and two files open at the same time, or a file and a pidfd.
const FDS_OF_A_WALK: usize = 4;
/// [`open_keeping_reserve`] leaves this number more to the rest of the process (log files, pidfds, a second walk): an
/// eighth of the limit, and no more than these.
const MAX_FDS_LEFT_FREE: u64 = 16;

#[derive(Debug)]
struct Reserve {
    /// Empty while a walk runs.
    kept: Vec<OwnedFd>,
    /// The walks that run now.
    walks: usize,
}

static RESERVE: Mutex<Reserve> = Mutex::new(Reserve { kept: Vec::new(), walks: 0 });

fn lock_reserve() -> MutexGuard<'static, Reserve> {
    RESERVE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn placeholder() -> io::Result<OwnedFd> {
    Ok(EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?.into())
}

impl Reserve {
    /// Takes the descriptors that no walk needs now.
    fn fill(&mut self) -> io::Result<()> {
        while self.walks == 0 && self.kept.len() < FDS_OF_A_WALK {
            self.kept.push(placeholder()?);
        }
        Ok(())
    }
}

/// A walk that has the descriptors.
struct Walk;

impl Walk {
    fn begin() -> Self {
        let mut reserve = lock_reserve();
        reserve.walks += 1;
        reserve.kept.clear();
        Self
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        let mut reserve = lock_reserve();
        reserve.walks -= 1;
        let _ = reserve.fill();
    }
}

/// Takes the descriptors, as many as there are.
pub fn open_reserve() {
    let _ = lock_reserve().fill();
}

/// Frees the descriptors for `scan`, and takes them back. A walk may take long: no lock is held meanwhile.
pub(super) fn with_reserve<T>(scan: impl FnOnce() -> T) -> T {
    let _walk = Walk::begin();
    scan()
}

/// Opens a descriptor that clients may ask for without end, unless few are left.
///
/// # Errors
/// `EMFILE` where few are left; the errors of `open`.
pub(crate) fn open_keeping_reserve<T>(open: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    // Held meanwhile: the descriptors that a walk frees belong to the reserve.
    let mut reserve = lock_reserve();
    reserve.fill()?;
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    // The kernel gives the lowest number that is free: all below it are taken.
    let lowest = u64::try_from(placeholder()?.as_raw_fd()).unwrap_or(soft);
    if is_nearly_full(lowest, reserve.walks, soft) {
        return Err(Errno::EMFILE.into());
    }
    open()
}

/// The descriptors of walks count as taken: they may not be open yet.
fn is_nearly_full(lowest_free: u64, walks: usize, soft_limit: u64) -> bool {
    let lent = if walks > 0 { FDS_OF_A_WALK as u64 } else { 0 };
    lowest_free + lent >= soft_limit - MAX_FDS_LEFT_FREE.min(soft_limit / 8)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn long_walk_delays_neither_clients_nor_other_walks() {
        let (done, is_done) = mpsc::channel();
        with_reserve(|| {
            thread::spawn(move || {
                let client = open_keeping_reserve(|| Ok(()));
                done.send((client.is_ok(), with_reserve(|| true)))
            });
            assert_eq!(is_done.recv_timeout(Duration::from_secs(10)), Ok((true, true)));
        });
    }

    #[test]
    fn client_gets_no_descriptor_that_is_lent_to_a_walk() {
        for (lowest_free, walks, is_full) in
            [(895, 0, false), (896, 0, true), (891, 1, false), (892, 2, true)]
        {
            assert_eq!(is_nearly_full(lowest_free, walks, 912), is_full, "{lowest_free} {walks}");
        }
        assert!(!is_nearly_full(27, 0, 32) && is_nearly_full(28, 0, 32));
    }
}
