//! Sends a real-time signal, which has no name in [`rankrun_core::posix::Signal`].
#![expect(unsafe_code, reason = "the safe wrappers know only signals with a name")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use rankrun_core::posix::Pid;
use rustix::process::{PidfdFlags, pidfd_open};

/// A process that no later owner of its pid can take the place of, from Linux 5.3 on.
#[derive(Debug)]
pub(crate) struct SignalTarget {
    pid: Pid,
    handle: Option<OwnedFd>,
}

impl SignalTarget {
    /// The process that has this pid now. The caller checks afterwards that it is the one that was meant.
    pub(crate) fn open(pid: Pid) -> Self {
        let raw = rustix::process::Pid::from_raw(pid.as_raw());
        Self { pid, handle: raw.and_then(|raw| pidfd_open(raw, PidfdFlags::empty()).ok()) }
    }

    /// # Errors
    /// The process has ended, or is another user's.
    pub(crate) fn send(&self, signal: libc::c_int) -> io::Result<()> {
        // SAFETY: both calls take numbers, and no pointer but the null that stands for "no details".
        let result = unsafe {
            match &self.handle {
                Some(handle) => libc::syscall(
                    libc::SYS_pidfd_send_signal,
                    handle.as_raw_fd(),
                    signal,
                    ptr::null::<libc::siginfo_t>(),
                    0,
                ),
                None => libc::c_long::from(libc::kill(self.pid.as_raw(), signal)),
            }
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}
