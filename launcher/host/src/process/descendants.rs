//! Finds and ends the processes that a job left below this process.
//!
//! As a child subreaper (prctl(2)) guard and agent inherit every orphan below them, so a walk down the tree of
//! children meets every process of the job, also those that double-forked into a session of their own.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::process::{own_pid, signal_set};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rankrun_core::posix::ProcessIdentity;
use rankrun_core::posix::ProcessScanError;
use rankrun_core::posix::Signal;

use rankrun_core::posix::Pid;

use rankrun_contract::env::{JOB, KEEP};
use rankrun_contract::rank::JobId;

use crate::process::child::{Reaped, wait_for_any};
use crate::process::proc::{
    self, ProcessEnvironment, ProcessStat, absent_if_not_found, can_scan_processes, parse_pid,
};
use crate::process::reserve::with_reserve;

/// The descendants that a sweep may kill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KillScope {
    /// All of them: this process had no children before the job.
    All,
    /// Descendants that carry the job's mark, and everything below them. For PID 1 of a container, which inherits
    /// unrelated orphans, and for a process that had children before the job.
    Marked(JobId),
}

/// How long killed processes may take to go; longer only in uninterruptible sleep.
const REAP_LIMIT: Duration = Duration::from_secs(5);
/// How long to wait where the deaths of children cannot be heard of.
const WAIT_WITHOUT_SIGCHLD: Duration = Duration::from_millis(10);
/// A second walk finds processes born during the first. More walks than these mean a fork storm that cannot be
/// stopped.
const MAX_SCANS: usize = 16;

/// Kills every descendant in `scope` and reaps until none is left; returns those that survive SIGKILL.
///
/// Handles SIGCHLD itself, which the caller has blocked. The caller has no other use for the exit statuses of its
/// remaining children.
///
/// # Errors
/// The processes cannot be listed, so it is unknown whether any is left.
pub(crate) fn kill_descendants(scope: &KillScope) -> Result<Vec<Pid>, ProcessScanError> {
    let children = signal_set([Signal::SIGCHLD]);
    let inbox = SignalFd::with_flags(&children, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).ok();
    #[expect(clippy::disallowed_methods, reason = "the limit on a blocking wait is this shell's own")]
    let now = Instant::now;
    let give_up = now() + REAP_LIMIT;
    loop {
        while let Reaped::Child { .. } = wait_for_any() {}
        let survivors = kill_present(scope);
        let remaining = give_up.saturating_duration_since(now());
        if survivors.as_ref().is_ok_and(Vec::is_empty) || remaining.is_zero() {
            return survivors.map(pids_of);
        }
        // Others may have freed something by then.
        let remaining = if survivors.is_ok() { remaining } else { remaining.min(WAIT_WITHOUT_SIGCHLD) };
        wait_for_child_signal(inbox.as_ref(), remaining);
    }
}

/// Kills the descendants that are there, and waits for none; returns them. The caller has reaped its children.
///
/// # Errors
/// The processes cannot be listed, so it is unknown whether any is left.
pub(crate) fn kill_present_descendants() -> Result<Vec<ProcessIdentity>, ProcessScanError> {
    Ok(kill_present(&KillScope::All)?.iter().map(FoundProcess::identity).collect())
}

fn kill_present(scope: &KillScope) -> Result<Vec<FoundProcess>, ProcessScanError> {
    with_reserve(|| {
        let present = kill_targets(scope)?;
        present.iter().for_each(|found| found.signal_if_same(Signal::SIGKILL));
        Ok(present)
    })
}

fn pids_of(found: Vec<FoundProcess>) -> Vec<Pid> {
    found.into_iter().map(|found| found.pid).collect()
}

fn wait_for_child_signal(inbox: Option<&SignalFd>, at_most: Duration) {
    let at_most = if inbox.is_some() { at_most } else { at_most.min(WAIT_WITHOUT_SIGCHLD) };
    let timeout = PollTimeout::try_from(at_most).unwrap_or(PollTimeout::MAX);
    let mut inputs: Vec<_> =
        inbox.iter().map(|inbox| PollFd::new(inbox.as_fd(), PollFlags::POLLIN)).collect();
    let _ = poll(&mut inputs, timeout);
    while let Some(Ok(Some(_))) = inbox.map(SignalFd::read_signal) {}
}

/// All processes below `root` now; empty if `/proc` does not show them.
///
/// # Errors
/// No descriptor or memory is left to read `/proc`.
pub(crate) fn descendants_of(root: Pid) -> Result<Vec<Pid>, ProcessScanError> {
    with_reserve(|| filter_descendants(root, true, &|_, parent_is| Ok(parent_is))).map(pids_of)
}

/// The same on another thread than the agent's, which must not wait for the reserve of descriptors.
pub(crate) fn scan_descendants_of(root: Pid) -> Result<Vec<Pid>, ProcessScanError> {
    filter_descendants(root, true, &|_, parent_is| Ok(parent_is)).map(pids_of)
}

fn kill_targets(scope: &KillScope) -> Result<Vec<FoundProcess>, ProcessScanError> {
    match scope {
        KillScope::All => filter_descendants(own_pid(), true, &|_, parent_is| Ok(parent_is)),
        KillScope::Marked(job) => {
            filter_descendants(own_pid(), false, &|pid, parent_is| Ok(parent_is || is_marked(pid, job)?))
        }
    }
}

/// The descendants without `RANKRUN_KEEP=1` in their environment and in that of their ancestors; parents first. The
/// caller has reaped its children.
///
/// # Errors
/// No descriptor or memory is left to read `/proc`.
pub(crate) fn leftover_processes() -> Result<Vec<FoundProcess>, ProcessScanError> {
    let is_kept = |pid| Ok(ProcessEnvironment::of(pid)?.value(KEEP) == Some(b"1"));
    with_reserve(|| {
        let mut live = Vec::new();
        for found in filter_descendants(own_pid(), true, &|pid, parent_is| Ok(parent_is && !is_kept(pid)?))? {
            if ProcessStat::of(found.pid)?.is_some_and(|stat| !stat.has_ended()) {
                live.push(found);
            }
        }
        Ok(live)
    })
}

/// Stops all processes below this process. A process born during a walk is met by the next one, and a stopped process
/// does not fork.
///
/// # Errors
/// No descriptor or memory is left to read `/proc`; some processes may not be stopped.
pub(crate) fn stop_descendants() -> Result<(), ProcessScanError> {
    with_reserve(|| signal_descendants_of(own_pid(), HashSet::new(), Signal::SIGSTOP, &|| true))
}

/// Kills all processes below this process, and reaps none.
///
/// # Errors
/// No descriptor or memory is left to read `/proc`; some processes may be left.
pub(crate) fn kill_unreaped() -> Result<(), ProcessScanError> {
    with_reserve(|| signal_descendants_of(own_pid(), HashSet::new(), Signal::SIGKILL, &|| true))
}

/// The living processes below `root`.
///
/// # Errors
/// No descriptor or memory is left to read `/proc`.
pub(super) fn live_descendants(root: Pid) -> Result<Vec<FoundProcess>, ProcessScanError> {
    with_reserve(|| {
        let mut live = Vec::new();
        for found in filter_descendants(root, true, &|_, parent_is| Ok(parent_is))? {
            if ProcessStat::of(found.pid)?.is_some_and(|stat| !stat.has_ended()) {
                live.push(found);
            }
        }
        Ok(live)
    })
}

/// Kills the known processes and, while `is_wanted` holds, any other process below `root`. If `/proc` cannot be read,
/// the rest is left to `root`.
pub(super) fn kill_descendants_of(root: Pid, known: &[FoundProcess], is_wanted: &dyn Fn() -> bool) {
    with_reserve(|| {
        known.iter().for_each(|found| found.signal_if_same(Signal::SIGKILL));
        let known = known.iter().map(|found| found.pid).collect();
        let _ = signal_descendants_of(root, known, Signal::SIGKILL, is_wanted);
    });
}

/// Signals all processes below `root` except the known ones, until a walk meets no new process.
fn signal_descendants_of(
    root: Pid,
    mut known: HashSet<Pid>,
    signal: Signal,
    is_wanted: &dyn Fn() -> bool,
) -> Result<(), ProcessScanError> {
    for _ in 0..MAX_SCANS {
        let mut found = filter_descendants(root, true, &|_, parent_is| Ok(parent_is))?;
        found.retain(|found| known.insert(found.pid));
        if found.is_empty() || !is_wanted() {
            break;
        }
        found.iter().for_each(|found| found.signal_if_same(signal));
    }
    Ok(())
}

/// Continues all processes below this process.
///
/// # Errors
/// No descriptor or memory is left to read `/proc`; some processes may stay stopped.
pub(crate) fn continue_descendants() -> Result<(), ProcessScanError> {
    with_reserve(|| {
        kill_targets(&KillScope::All)?.iter().for_each(|found| found.signal_if_same(Signal::SIGCONT));
        Ok(())
    })
}

/// A process that the walk met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FoundProcess {
    /// The process id when it was found.
    pub pid: Pid,
    /// The start time, in clock ticks since boot.
    started: u64,
}

impl FoundProcess {
    /// The process that has this pid now.
    #[cfg(test)]
    pub(super) fn of(pid: Pid) -> Option<Self> {
        let started = ProcessStat::of(pid).ok()??.start_ticks()?;
        Some(Self { pid, started })
    }

    /// The process as plain data.
    #[must_use]
    pub(crate) const fn identity(&self) -> ProcessIdentity {
        ProcessIdentity { pid: self.pid, started: self.started }
    }

    /// Signals it, and no later owner of its pid.
    pub(crate) fn signal(&self, signal: Signal) {
        with_reserve(|| self.signal_if_same(signal));
    }

    /// As [`Found::signal`], where the reserve is free already.
    fn signal_if_same(&self, signal: Signal) {
        proc::signal_if_same_start((self.pid, self.started), signal);
    }

    /// Signals the process, and continues it: a stopped process cannot act on a signal.
    pub(crate) fn signal_and_continue(&self, signal: Signal) {
        self.signal(signal);
        self.signal(Signal::SIGCONT);
    }

    /// The command line of the process, in one line.
    #[must_use]
    pub(crate) fn command(&self) -> String {
        proc::displayed_command(self.pid)
    }
}

/// The living descendants that `chosen` selects, by the process and whether its parent is selected; parents first.
///
/// Empty where `/proc` is absent or shows another pid namespace: its numbers would mean other processes here.
pub(super) fn filter_descendants(
    root: Pid,
    is_root_selected: bool,
    is_selected: &dyn Fn(Pid, bool) -> Result<bool, ProcessScanError>,
) -> Result<Vec<FoundProcess>, ProcessScanError> {
    let mut found = Vec::new();
    if !can_scan_processes() {
        return Ok(found);
    }
    let mut visited = HashSet::new();
    let mut pending = vec![(root, is_root_selected)];
    while let Some((parent, parent_is)) = pending.pop() {
        for child in children_of(parent)? {
            if !visited.insert(child) {
                continue;
            }
            let is_chosen = is_selected(child, parent_is)?;
            if is_chosen && let Some(started) = ProcessStat::of(child)?.and_then(|stat| stat.start_ticks()) {
                found.push(FoundProcess { pid: child, started });
            }
            pending.push((child, is_chosen));
        }
    }
    Ok(found)
}

/// Children of every thread, by `/proc/PID/task/TID/children` (proc(5)), or by reading every process where the kernel
/// was built without `CONFIG_PROC_CHILDREN`.
fn children_of(parent: Pid) -> Result<Vec<Pid>, ProcessScanError> {
    let mut children = Vec::new();
    let Some(threads) = absent_if_not_found(fs::read_dir(format!("/proc/{parent}/task")))? else {
        return Ok(children);
    };
    for thread in threads.flatten() {
        match fs::read_to_string(thread.path().join("children")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if thread.path().exists() {
                    return children_by_parent_field(parent);
                }
            }
            list => {
                let list = absent_if_not_found(list)?.unwrap_or_default();
                children.extend(list.split_ascii_whitespace().filter_map(parse_pid));
            }
        }
    }
    Ok(children)
}

fn children_by_parent_field(parent: Pid) -> Result<Vec<Pid>, ProcessScanError> {
    let mut children = Vec::new();
    let Some(processes) = absent_if_not_found(fs::read_dir("/proc"))? else { return Ok(children) };
    for pid in processes.flatten().filter_map(|entry| parse_pid(entry.file_name().to_str()?)) {
        if ProcessStat::of(pid)?.is_some_and(|stat| stat.parent() == Some(parent)) {
            children.push(pid);
        }
    }
    Ok(children)
}

/// Whether the process is in uninterruptible sleep, as far as can be seen.
#[must_use]
pub(crate) fn is_in_dstate(pid: Pid) -> bool {
    with_reserve(|| ProcessStat::of(pid)).ok().flatten().is_some_and(|stat| stat.is_in_dstate())
}

fn is_marked(pid: Pid, job: &JobId) -> Result<bool, ProcessScanError> {
    Ok(ProcessEnvironment::of(pid)?.value(JOB) == Some(job.0.as_bytes()))
}
