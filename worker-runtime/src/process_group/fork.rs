//! Protects the groups of a process from its forked children.
//!
//! A forked child inherits every connection of its parent. What it sends would count as sent by the parent,
//! and a connection stays open until both have closed it, so that other ranks would wait for a dead rank. A
//! handler of the C library's `fork` (pthread_atfork(3)) therefore replaces the child's copies, and
//! [`ForkId`] tells the child from its parent. A child of a bare system call is not detected; a child that
//! executes another program loses the connections in any case.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use nix::libc;

/// Forks among the ancestors of this process since the first of them had a group.
static FORK_COUNT: AtomicU32 = AtomicU32::new(0);

/// Descriptors of connections that a forked child must not use.
static PARENT_FDS: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// Identifies a process among its ancestors. Reading it is cheaper than `getpid`, which is a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ForkId(u32);

impl ForkId {
    /// The identity of the calling process.
    pub(crate) fn current() -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the handler is a static function, and calls only functions that are permitted after a
            // fork.
            #[expect(unsafe_code, reason = "registers a fork handler")]
            let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            // It fails for want of memory only; then children are not told from their parents.
            debug_assert_eq!(failed, 0, "the handler of forks is there");
        });
        Self(FORK_COUNT.load(Ordering::Relaxed))
    }

    /// Whether it identifies the calling process.
    pub(crate) fn is_current(self) -> bool {
        self.0 == FORK_COUNT.load(Ordering::Relaxed)
    }
}

/// Descriptors that a forked child must not use. Drop it before the connections are closed.
#[derive(Debug, Default)]
pub(crate) struct ParentFds {
    connections: Vec<RawFd>,
    owner: ForkId,
}

impl ParentFds {
    pub(crate) fn new<'a, F: AsFd + 'a>(connections: impl Iterator<Item = &'a F>) -> Self {
        let owner = ForkId::current();
        let all: Vec<RawFd> = connections.map(|connection| connection.as_fd().as_raw_fd()).collect();
        lock_parent_fds().extend(&all);
        Self { connections: all, owner }
    }
}

impl Drop for ParentFds {
    fn drop(&mut self) {
        // In a forked child another thread of the parent may hold the lock for ever, and the list is not the child's.
        if self.owner.is_current() && !self.connections.is_empty() {
            lock_parent_fds().retain(|fd| !self.connections.contains(fd));
        }
    }
}

fn lock_parent_fds() -> MutexGuard<'static, Vec<RawFd>> {
    PARENT_FDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs in the only thread of a child, before its program continues. Other threads of the parent may have
/// held any lock, so it waits for none and allocates nothing.
extern "C" fn in_child() {
    FORK_COUNT.fetch_add(1, Ordering::Relaxed);
    let Ok(parent_fds) = PARENT_FDS.try_lock() else { return };
    // SAFETY: these functions may be called after a fork (signal-safety(7)); the path ends with a zero.
    #[expect(unsafe_code, reason = "descriptors by their numbers")]
    unsafe {
        let dev_null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for &fd in parent_fds.iter().filter(|_| dev_null >= 0) {
            // The number stays in use: its owner in the child still closes it.
            libc::dup3(dev_null, fd, libc::O_CLOEXEC);
        }
        libc::close(dev_null);
    }
}
