//! The account of a job's processes: those with the job's mark, and the wait until none is left.
#![expect(unsafe_code, reason = "nix has no pidfd_open")]

use std::fs;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::signal::Signal;

/// One living process.
#[derive(Debug)]
pub struct Process {
    /// Its id.
    pub pid: i32,
    /// Its command line.
    pub command: String,
    handle: OwnedFd,
}

impl Process {
    /// The process of that id, if it lives.
    #[must_use]
    pub fn open(pid: i32) -> Option<Self> {
        let handle = pidfd_open(pid)?;
        let raw = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&raw).replace('\0', " ");
        Some(Self { pid, command, handle })
    }

    /// Waits until it has ended (it may still be a zombie).
    #[must_use]
    pub fn ended_by(&self, until: Instant) -> bool {
        readable_by(&self.handle, until)
    }

    /// Signals it, and no later owner of its pid; one that has ended already is left in peace.
    pub fn signal(&self, signal: Signal) {
        let (handle, number) = (self.handle.as_raw_fd(), signal as i32);
        // SAFETY: no memory is passed but a null pointer, which says that there is nothing to tell.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, handle, number, std::ptr::null::<()>(), 0) };
    }

    /// Whether it lives.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "a look is a wait that is over at once")]
    pub fn is_alive(&self) -> bool {
        !self.ended_by(Instant::now())
    }

    /// Waits until its parent has taken its exit status, so that no zombie is left.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "a wait reads the clock")]
    pub fn reaped_within(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let is_gone = || stat(self.pid).is_none();
        // A pidfd hangs up when its process is reaped, on Linux 6.9 and later; before, the time is waited out.
        is_gone()
            || (self.ended_by(until) && (poll_until(&self.handle, PollFlags::empty(), until) || is_gone()))
    }
}

/// The living processes that carry the mark.
pub(crate) fn processes_with_mark(mark: &str) -> Vec<Process> {
    let is_marked = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    pids().into_iter().filter(is_marked).filter_map(Process::open).collect()
}

/// Waits until no process carries the mark, or says which still do.
pub(crate) fn wait_for_none(mark: &str, until: Instant) -> Result<(), Vec<Process>> {
    let mut empty_looks = 0;
    // A process has no environment to read for an instant within `execve`: one empty look proves nothing.
    while empty_looks < 2 {
        let running = processes_with_mark(mark);
        if running.is_empty() {
            empty_looks += 1;
            continue;
        }
        empty_looks = 0;
        if !running.iter().all(|process| process.ended_by(until)) {
            return Err(running.into_iter().filter(|process| !process.ended_by(until)).collect());
        }
    }
    Ok(())
}

/// The children of a process.
pub(crate) fn children_of(parent: i32) -> Vec<i32> {
    pids().into_iter().filter(|pid| stat(*pid).is_some_and(|(_, ppid)| ppid == parent)).collect()
}

/// The first child of a process, found without a walk over all processes if the kernel lists children.
pub(crate) fn first_child_of(parent: i32) -> Option<i32> {
    match fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")) {
        Ok(children) => children.split_ascii_whitespace().next()?.parse().ok(),
        Err(_) => children_of(parent).first().copied(),
    }
}

/// All live descendants of a process.
pub(crate) fn descendants(root: i32) -> Vec<Process> {
    let mut found = Vec::new();
    let mut pending = vec![root];
    while let Some(parent) = pending.pop() {
        let children = children_of(parent);
        found.extend(children.iter().filter_map(|pid| Process::open(*pid)).filter(Process::is_alive));
        pending.extend(children);
    }
    found
}

/// Whether a process has ended, reaped or not.
#[must_use]
pub fn is_zombie_or_gone(pid: i32) -> bool {
    stat(pid).is_none_or(|(state, _)| state == 'Z')
}

/// Whether a process is stopped (SIGSTOP, Ctrl-Z).
#[must_use]
pub fn is_stopped(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _)| state == 'T')
}

/// Whether a thread of a process is in uninterruptible sleep (state `D`).
#[must_use]
pub fn has_thread_in_dstate(pid: i32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| stat_of(&thread.path())).any(|(state, _)| state == 'D')
}

/// Whether a process waits for something.
#[must_use]
pub fn is_sleeping(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _)| state == 'S')
}

fn pids() -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("/proc is mounted");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// The state letter and the parent. The name between the parentheses may hold anything, also parentheses.
fn stat(pid: i32) -> Option<(char, i32)> {
    stat_of(&Path::new("/proc").join(pid.to_string()))
}

fn stat_of(folder: &Path) -> Option<(char, i32)> {
    let raw = fs::read(folder.join("stat")).ok()?;
    let text = String::from_utf8_lossy(&raw);
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

pub(crate) fn pidfd_open(pid: i32) -> Option<OwnedFd> {
    // SAFETY: no memory is passed; a non-negative answer is a descriptor without another owner.
    let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let raw = i32::try_from(raw).ok().filter(|raw| *raw >= 0)?;
    // SAFETY: see above.
    Some(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Waits until the descriptor is readable: for a pidfd, until the process has ended.
pub(crate) fn readable_by(fd: &impl AsFd, until: Instant) -> bool {
    poll_until(fd, PollFlags::POLLIN, until)
}

/// Waits for one of the flags, or for the descriptor to hang up.
fn poll_until(fd: &impl AsFd, flags: PollFlags, until: Instant) -> bool {
    loop {
        #[expect(clippy::disallowed_methods, reason = "a wait reads the clock")]
        let remaining = until.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(fd.as_fd(), flags)];
        // Rounded up, so that a rest below a millisecond does not spin.
        let left_ms = (remaining + Duration::from_micros(999)).as_millis();
        let timeout = PollTimeout::try_from(left_ms).unwrap_or(PollTimeout::MAX);
        match nix::poll::poll(&mut fds, timeout) {
            Ok(0) if remaining.is_zero() => return false,
            Ok(0) | Err(nix::Error::EINTR) => {}
            Ok(_) => return true,
            Err(error) => panic!("poll failed: {error}"),
        }
    }
}
