//! The one place that reaps: the workers, in the order in which they died, and every orphan of the job.
#![expect(unsafe_code, reason = "nix's waitpid fails on a death by a real-time signal and loses the status")]

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::placement::WorkerId;
use crate::process::Exit;
use crate::process::command::Command;
use crate::process::spawn::{Original, Stdio, spawn};

/// The end of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerExit {
    /// Who ended.
    pub worker: WorkerId,
    /// Its pid, free for reuse from now on.
    pub pid: Pid,
    /// How it ended.
    pub exit: Exit,
}

#[derive(Debug)]
struct Child {
    worker: WorkerId,
    /// Kept open so that the epoll set keeps watching it.
    _pidfd: Option<OwnedFd>,
}

/// The workers that are not reaped yet.
#[derive(Debug)]
pub struct Children {
    by_pid: HashMap<Pid, Child>,
    /// The workers' pidfds. The kernel lists them as ready in the order in which the processes died, which
    /// `waitpid(-1)` does not keep. Absent or empty where pidfds are not to be had; then that order is lost.
    deaths: Option<Epoll>,
}

impl Default for Children {
    fn default() -> Self {
        Self { by_pid: HashMap::new(), deaths: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).ok() }
    }
}

impl Children {
    /// Starts one worker. Main thread only, see [`spawn`].
    ///
    /// # Errors
    /// The kernel's refusal; then no process is left.
    pub fn spawn(
        &mut self,
        worker: WorkerId,
        command: &Command,
        stdio: Stdio<'_>,
        original: &Original,
    ) -> io::Result<Pid> {
        let spawned = spawn(command, stdio, original)?;
        let key = u64::from(spawned.pid.as_raw().unsigned_abs());
        match (&self.deaths, &spawned.pidfd) {
            (Some(deaths), Some(pidfd)) => {
                let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT, key);
                if let Err(error) = deaths.add(pidfd, event) {
                    tracing::debug!(pid = spawned.pid.as_raw(), %error, "no order of deaths for this worker");
                }
            }
            _ => tracing::info!("no pidfd for pid {}: the order of deaths is lost", spawned.pid),
        }
        self.by_pid.insert(spawned.pid, Child { worker, _pidfd: spawned.pidfd });
        Ok(spawned.pid)
    }

    /// Sends `signal` to the process group of each given worker that is not reaped yet, and SIGCONT after it: somebody
    /// who is stopped cannot act on a signal.
    ///
    /// The leader being unreaped, the group's number cannot have been taken over by another one.
    pub fn signal_groups(&self, workers: &[WorkerId], signal: Signal) {
        self.signal_each(workers, signal, killpg);
        if signal != Signal::SIGKILL {
            self.signal_each(workers, Signal::SIGCONT, killpg);
        }
    }

    /// Signals the process groups of all workers that are not reaped yet.
    pub fn signal_all_groups(&self, signal: Signal) {
        for pid in self.by_pid.keys() {
            let _ = killpg(*pid, signal);
        }
    }

    /// Signals the workers themselves.
    pub fn signal_alone(&self, workers: &[WorkerId], signal: Signal) {
        self.signal_each(workers, signal, kill);
    }

    fn signal_each(&self, workers: &[WorkerId], signal: Signal, send: fn(Pid, Signal) -> nix::Result<()>) {
        for (pid, _) in self.by_pid.iter().filter(|(_, child)| workers.contains(&child.worker)) {
            if let Err(error) = send(*pid, signal) {
                tracing::debug!(pid = pid.as_raw(), %signal, %error, "not signalled");
            }
        }
    }

    /// Reaps everything that has died.
    pub fn reap(&mut self) -> Reapings {
        let mut reapings = Reapings::default();
        let mut ready = [EpollEvent::empty(); 64];
        while let Some(deaths) = &self.deaths
            && let Ok(count @ 1..) = deaths.wait(&mut ready, EpollTimeout::ZERO)
        {
            for event in &ready[..count] {
                let pid = Pid::from_raw(i32::try_from(event.data()).unwrap_or_default());
                if let Reaped::Child { pid, exit } = wait_for(pid) {
                    self.sort_in(&mut reapings, pid, exit);
                }
            }
        }
        while let Reaped::Child { pid, exit } = wait_for_any() {
            self.sort_in(&mut reapings, pid, exit);
        }
        reapings
    }

    fn sort_in(&mut self, reapings: &mut Reapings, pid: Pid, exit: Exit) {
        match self.by_pid.remove(&pid) {
            Some(child) => reapings.workers.push(WorkerExit { worker: child.worker, pid, exit }),
            None => reapings.others.push((pid, exit)),
        }
    }
}

/// Who was reaped.
#[derive(Debug, Default)]
pub struct Reapings {
    /// The workers, first death first.
    pub workers: Vec<WorkerExit>,
    /// Probes, and orphans that the kernel handed to us as subreaper.
    pub others: Vec<(Pid, Exit)>,
}

/// What a look for dead children gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaped {
    /// This one, reaped now.
    Child {
        /// Its pid.
        pid: Pid,
        /// How it ended.
        exit: Exit,
    },
    /// There are children, none is dead.
    AllAlive,
    /// There are no children.
    NoChildren,
}

/// Reaps one dead child, whichever, without waiting.
#[must_use]
pub fn wait_for_any() -> Reaped {
    wait_for(Pid::from_raw(-1))
}

/// Reaps this child if it is dead, without waiting.
#[must_use]
pub fn wait_for(pid: Pid) -> Reaped {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a valid place for the kernel to write to.
        match unsafe { libc::waitpid(pid.as_raw(), &raw mut status, libc::WNOHANG) } {
            0 => return Reaped::AllAlive,
            -1 if Errno::last() == Errno::EINTR => {}
            -1 => return Reaped::NoChildren,
            pid => {
                return Reaped::Child { pid: Pid::from_raw(pid), exit: Exit::from_wait_status(status) };
            }
        }
    }
}
