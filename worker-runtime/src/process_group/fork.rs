//! What the groups of a rank are in a process that it forks: nothing.
//!
//! A forked child has all that its parent has. What it says on a connection it says in the parent's place, and a connection is open
//! until both have closed it: the other ranks would wait for a rank that is dead. So the C library's `fork` puts connections out
//! of the child's reach (pthread_atfork(3)), and the child is known to be another process. A child that a bare system call makes is not
//! noticed; one that becomes another program loses what it inherited in any case.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use nix::libc;

/// How often the ancestors of this process were forked since the first of them had a group.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Descriptors of connections that are this process's alone.
static OWN: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// Stands for a process among its ancestors. To ask costs less than a process id, for which the kernel is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Process(u32);

impl Process {
    /// This one.
    pub(crate) fn this() -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the handler stays for ever, and does only what may be done after a fork.
            #[expect(unsafe_code, reason = "asks to be told of forks")]
            let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            // It fails where there is no memory for a few words; then children are not told from their parents.
            debug_assert_eq!(failed, 0, "the handler of forks is there");
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether it is the one that asks.
    pub(crate) fn is_this(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

/// Connections that forked children do not get. It must go before they are closed.
#[derive(Debug, Default)]
pub(crate) struct Unshared {
    connections: Vec<RawFd>,
    owner: Process,
}

impl Unshared {
    pub(crate) fn new<'a, F: AsFd + 'a>(connections: impl Iterator<Item = &'a F>) -> Self {
        let owner = Process::this();
        let all: Vec<RawFd> = connections.map(|connection| connection.as_fd().as_raw_fd()).collect();
        own().extend(&all);
        Self { connections: all, owner }
    }
}

impl Drop for Unshared {
    fn drop(&mut self) {
        // In a forked child another thread of the parent may hold the lock for ever, and the list is not the child's.
        if self.owner.is_this() && !self.connections.is_empty() {
            own().retain(|fd| !self.connections.contains(fd));
        }
    }
}

fn own() -> MutexGuard<'static, Vec<RawFd>> {
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs in the only thread of a child, before its program goes on: other threads of the parent may have held any lock, so it takes
/// none and allocates nothing.
extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    let Ok(own) = OWN.try_lock() else { return };
    // SAFETY: these functions may be called after a fork (signal-safety(7)); the path ends with a zero.
    #[expect(unsafe_code, reason = "descriptors by their numbers")]
    unsafe {
        let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for &fd in own.iter().filter(|_| nothing >= 0) {
            // The number stays taken: who holds it in the child still closes it.
            libc::dup3(nothing, fd, libc::O_CLOEXEC);
        }
        libc::close(nothing);
    }
}
