//! The only place that reaps: the workers, in the order of their deaths, and every orphan of the job. It also signals
//! the workers' process groups. The agent decides what follows.
#![expect(unsafe_code, reason = "nix's waitpid fails on a death by a real-time signal and loses the status")]

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::process::{exit_of_wait_status, kill, kill_group, nix_pid};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use rankrun_core::job_event::memory::PeakMemory;
use rankrun_core::posix::Pid;
use rankrun_core::posix::Signal;

use crate::process::spawn::{InheritedState, Stdio, spawn};
use rankrun_core::placement::WorkerId;
use rankrun_core::posix::Exit;
use rankrun_core::worker_command::WorkerCommand;

/// The end of one worker, as reaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WorkerExit {
    /// The worker that the process was.
    pub worker: WorkerId,
    /// Its pid, free for reuse from now on.
    pub pid: Pid,
    /// How the worker ended: exit code or signal.
    pub exit: Exit,
    /// The most memory that it had; nothing where another process reaped it.
    pub peak: Option<PeakMemory>,
    /// Whether the launcher had sent it SIGKILL.
    pub is_killed: bool,
}

#[derive(Debug)]
struct Child {
    worker: WorkerId,
    /// Whether SIGKILL was sent to it.
    is_killed: bool,
    /// Kept open so that the epoll set keeps watching it.
    _pidfd: Option<OwnedFd>,
}

/// The workers that are not reaped yet.
#[derive(Debug)]
pub(crate) struct Children {
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
    pub(crate) fn spawn(
        &mut self,
        worker: WorkerId,
        command: &WorkerCommand,
        stdio: Stdio<'_>,
        original: &InheritedState,
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
        self.by_pid.insert(spawned.pid, Child { worker, is_killed: false, _pidfd: spawned.pidfd });
        Ok(spawned.pid)
    }

    /// Sends `signal` to the process group of each given worker that is not reaped yet, and SIGCONT after it: a
    /// stopped process cannot act on a signal.
    ///
    /// The leader is unreaped, so no other group can have taken the group's number.
    pub(crate) fn signal_groups(&mut self, workers: &[WorkerId], signal: Signal) {
        self.signal_each(workers, signal, kill_group);
        if signal != Signal::SIGKILL {
            self.signal_each(workers, Signal::SIGCONT, kill_group);
        }
    }

    /// Signals the process groups of all workers that are not reaped yet.
    pub(crate) fn signal_all_groups(&mut self, signal: Signal) {
        for (pid, child) in &mut self.by_pid {
            child.is_killed |= signal == Signal::SIGKILL;
            let _ = kill_group(*pid, signal);
        }
    }

    /// Signals the worker processes alone, without their groups.
    pub(crate) fn signal_leaders(&mut self, workers: &[WorkerId], signal: Signal) {
        self.signal_each(workers, signal, kill);
    }

    fn signal_each(
        &mut self,
        workers: &[WorkerId],
        signal: Signal,
        send: fn(Pid, Signal) -> nix::Result<()>,
    ) {
        for (pid, child) in self.by_pid.iter_mut().filter(|(_, child)| workers.contains(&child.worker)) {
            child.is_killed |= signal == Signal::SIGKILL;
            if let Err(error) = send(*pid, signal) {
                tracing::debug!(pid = pid.as_raw(), %signal, %error, "not signalled");
            }
        }
    }

    /// Reaps every child that has died, without waiting.
    pub(crate) fn reap(&mut self) -> ReapedWorkers {
        let mut reapings = ReapedWorkers::default();
        let mut ready = [EpollEvent::empty(); 64];
        while let Some(deaths) = &self.deaths
            && let Ok(count @ 1..) = deaths.wait(&mut ready, EpollTimeout::ZERO)
        {
            for event in &ready[..count] {
                let pid = Pid::from_raw(i32::try_from(event.data()).unwrap_or_default());
                // Read before: the process is gone from `/proc` once it is reaped.
                let faults = if is_dead_by_sigkill(pid) { faults_of_children(pid) } else { None };
                self.record_reaped(&mut reapings, wait_for(pid), faults);
            }
        }
        while let reaped @ Reaped::Child { .. } = wait_for_any() {
            self.record_reaped(&mut reapings, reaped, None);
        }
        reapings
    }

    fn record_reaped(&mut self, reapings: &mut ReapedWorkers, reaped: Reaped, faults: Option<u64>) {
        let Reaped::Child { pid, exit, peak } = reaped else { return };
        match self.by_pid.remove(&pid) {
            Some(Child { worker, is_killed, .. }) => {
                let peak = Some(PeakMemory { bytes: peak, is_own: is_mostly_own(peak, faults) });
                reapings.workers.push(WorkerExit { worker, pid, exit, peak, is_killed });
            }
            None => reapings.other_processes.push((pid, exit)),
        }
    }
}

/// The processes reaped by one call.
#[derive(Debug, Default)]
pub(crate) struct ReapedWorkers {
    /// The reaped workers, in the order of their deaths.
    pub workers: Vec<WorkerExit>,
    /// Probes, and orphans that this process inherited as subreaper.
    pub other_processes: Vec<(Pid, Exit)>,
}

/// The most memory that one page fault brings: a huge page, in bytes.
const MAX_FAULT_BYTES: u64 = 2 << 20;

/// Whether children with this number of page faults had less than half of the peak, beside what they inherited.
fn is_mostly_own(peak: u64, faults_of_children: Option<u64>) -> bool {
    faults_of_children.is_some_and(|faults| faults.saturating_mul(MAX_FAULT_BYTES) <= peak / 2)
}

/// Whether a child, not yet reaped, is dead by SIGKILL: only then is its memory asked for.
fn is_dead_by_sigkill(pid: Pid) -> bool {
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    matches!(waitid(Id::Pid(nix_pid(pid)), look), Ok(WaitStatus::Signaled(_, nix::sys::signal::SIGKILL, _)))
}

/// The page faults of the children that a dead process, not yet reaped, has waited for.
fn faults_of_children(pid: Pid) -> Option<u64> {
    child_faults(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The page faults of the children that a process has waited for, of the text of `/proc/PID/stat`.
fn child_faults(stat: &str) -> Option<u64> {
    // `cminflt` and `cmajflt`, behind the name, which may hold anything: proc_pid_stat(5).
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(8);
    let (minor, major) = (fields.next()?, fields.nth(1)?);
    Some(minor.parse::<u64>().ok()?.saturating_add(major.parse().ok()?))
}

#[cfg(test)]
mod fault_tests {
    use super::*;

    #[test]
    fn child_faults_are_parsed_after_any_process_name() {
        let stat = "7 (a) S 1) Z 1 2 3 4 5 6 90 11 80 22 0 0";
        assert_eq!(child_faults(stat), Some(33));
        assert_eq!(child_faults("7 (a) Z 1 2 3"), None);
        assert_eq!(child_faults(""), None);
    }

    /// `import torch` starts a small process: 36 faults.
    #[test]
    fn peak_memory_is_own_if_children_faulted_little() {
        assert!(is_mostly_own(398 << 20, Some(36)) && is_mostly_own(1 << 20, Some(0)));
        assert!(!is_mostly_own(398 << 20, Some(199)) && !is_mostly_own(398 << 20, None));
    }
}

/// The result of one non-blocking `wait`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reaped {
    /// A child had died and was reaped.
    Child {
        /// The process id of the reaped child.
        pid: Pid,
        /// How the child ended: exit code or signal.
        exit: Exit,
        /// The most memory that it, or a process that it waited for, had at one time, in bytes.
        peak: u64,
    },
    /// There are children, none is dead.
    AllAlive,
    /// This process has no children at all.
    NoChildren,
}

/// Reaps any one dead child, without waiting.
#[must_use]
pub(crate) fn wait_for_any() -> Reaped {
    wait_for(Pid::from_raw(-1))
}

/// Reaps this child if it is dead, without waiting.
#[must_use]
pub(crate) fn wait_for(pid: Pid) -> Reaped {
    let mut status = 0;
    // SAFETY: numbers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both are valid places for the kernel to write to.
        match unsafe { libc::wait4(pid.as_raw(), &raw mut status, libc::WNOHANG, &raw mut usage) } {
            0 => return Reaped::AllAlive,
            -1 if Errno::last() == Errno::EINTR => {}
            -1 => return Reaped::NoChildren,
            pid => {
                // In KiB (getrusage(2)).
                let peak = u64::try_from(usage.ru_maxrss).unwrap_or_default() << 10;
                let exit = exit_of_wait_status(status);
                return Reaped::Child { pid: Pid::from_raw(pid), exit, peak };
            }
        }
    }
}
