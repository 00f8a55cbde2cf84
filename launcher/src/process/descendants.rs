//! Finds and ends what a job left below this process.
//!
//! As a child subreaper (prctl(2)) guard and agent inherit every orphan below them, so a walk down the tree of
//! children meets every process of the job, also those that double-forked into a session of their own.

use std::collections::HashSet;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, getpid};

use rankrun_contract::env::JOB;
use rankrun_contract::rank::JobId;

use crate::process::child::{Reaped, wait_for_any};

/// Which descendants may be killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// All of them: this process had no children before the job.
    All,
    /// Those that carry the job's mark, and what is below them. For PID 1 of a container, whose descendants are
    /// everybody's orphans, and for a process that had children before the job.
    Marked(JobId),
}

/// How long killed processes may take to go; longer only in uninterruptible sleep.
const REAP_LIMIT: Duration = Duration::from_secs(5);

/// Kills every descendant in `scope` and reaps until none is left; returns those that would not go.
///
/// Handles SIGCHLD itself, which the caller has blocked. The caller has no other use for the exit statuses of
/// its remaining children.
#[must_use]
pub fn kill_all(scope: &Scope) -> Vec<Pid> {
    let children: SigSet = [Signal::SIGCHLD].into_iter().collect();
    let inbox = SignalFd::with_flags(&children, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).ok();
    #[expect(clippy::disallowed_methods, reason = "the limit on a blocking wait is this shell's own")]
    let now = Instant::now;
    let give_up = now() + REAP_LIMIT;
    loop {
        while let Reaped::Child { .. } = wait_for_any() {}
        let left = targets(scope);
        let remaining = give_up.saturating_duration_since(now());
        if left.is_empty() || remaining.is_zero() {
            return left.into_iter().map(|found| found.pid).collect();
        }
        left.iter().for_each(kill_one);
        wait_for_child_signal(inbox.as_ref(), remaining);
    }
}

/// Kills one descendant and no later owner of its pid: the pidfd holds on to a process, and only if that one still
/// has the start time that the walk saw is it the one that was meant. Gone meanwhile is as good as killed.
fn kill_one(found: &Found) {
    let is_the_same = || start_time(found.pid) == Some(found.started);
    let handle = rustix::process::Pid::from_raw(found.pid.as_raw())
        .map(|pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()));
    match handle {
        Some(Ok(pidfd)) if is_the_same() => {
            let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
        }
        // Before Linux 5.3, or refused: the instant between look and kill is left to chance.
        Some(Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM)) if is_the_same() => {
            let _ = kill(found.pid, Signal::SIGKILL);
        }
        Some(Ok(_) | Err(_)) | None => {}
    }
}

fn wait_for_child_signal(inbox: Option<&SignalFd>, at_most: Duration) {
    let timeout = PollTimeout::try_from(at_most).unwrap_or(PollTimeout::MAX);
    let Some(inbox) = inbox else { return };
    let _ = poll(&mut [PollFd::new(inbox.as_fd(), PollFlags::POLLIN)], timeout);
    while let Ok(Some(_)) = inbox.read_signal() {}
}

/// Whether `/proc` is there and of our own pid namespace; without it only the workers themselves can be ended.
#[must_use]
pub fn can_walk() -> bool {
    fs::read_link("/proc/self").ok().as_deref() == Some(Path::new(&getpid().to_string()))
}

/// Everybody who lives below this process now; nobody where that cannot be seen.
#[must_use]
pub fn everybody_below(root: Pid) -> Vec<Pid> {
    below(root, &|_| true).into_iter().map(|found| found.pid).collect()
}

fn targets(scope: &Scope) -> Vec<Found> {
    match scope {
        Scope::All => below(getpid(), &|_| true),
        Scope::Marked(job) => below(getpid(), &|pid| is_marked(pid, job)),
    }
}

/// A process that the walk met.
#[derive(Debug, Clone, Copy)]
struct Found {
    pid: Pid,
    /// In clock ticks since boot.
    started: u64,
}

/// The living descendants that are `chosen` or below one that is; parents first.
///
/// Empty where `/proc` is absent or shows another pid namespace: its numbers would mean other processes here.
fn below(root: Pid, chosen: &dyn Fn(Pid) -> bool) -> Vec<Found> {
    if !can_walk() {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    let mut pending = vec![(root, false)];
    while let Some((parent, parent_chosen)) = pending.pop() {
        for child in children_of(parent) {
            if !seen.insert(child) {
                continue;
            }
            let is_chosen = parent_chosen || chosen(child);
            if is_chosen && let Some(started) = start_time(child) {
                found.push(Found { pid: child, started });
            }
            pending.push((child, is_chosen));
        }
    }
    found
}

/// Children of every thread, by `/proc/PID/task/TID/children` (proc(5)), or by a look at every process where the
/// kernel was built without `CONFIG_PROC_CHILDREN`.
fn children_of(parent: Pid) -> Vec<Pid> {
    let Ok(threads) = fs::read_dir(format!("/proc/{parent}/task")) else { return Vec::new() };
    let mut children = Vec::new();
    for thread in threads.flatten() {
        match fs::read_to_string(thread.path().join("children")) {
            Ok(list) => children.extend(list.split_ascii_whitespace().filter_map(parse_pid)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if thread.path().exists() {
                    return children_by_parent_field(parent);
                }
            }
            Err(_) => {}
        }
    }
    children
}

fn children_by_parent_field(parent: Pid) -> Vec<Pid> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.flatten().filter_map(|entry| parse_pid(entry.file_name().to_str()?));
    pids.filter(|pid| {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| parent_field(&stat) == Some(parent))
    })
    .collect()
}

fn parent_field(stat: &str) -> Option<Pid> {
    field(stat, 4).and_then(parse_pid)
}

fn start_time(pid: Pid) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    field(&stat, 22)?.parse().ok()
}

/// Whether the process is in uninterruptible sleep.
#[must_use]
pub fn sits_in_the_kernel(pid: Pid) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| field(&stat, 3) == Some("D"))
}

/// A field of `/proc/PID/stat`, counted from 1 as in proc(5). The second, the name, may hold anything, so count
/// from its last `)`.
fn field(stat: &str, number: usize) -> Option<&str> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(number.checked_sub(3)?)
}

fn parse_pid(text: &str) -> Option<Pid> {
    text.parse().ok().filter(|pid| *pid > 0).map(Pid::from_raw)
}

fn is_marked(pid: Pid, job: &JobId) -> bool {
    let mark = format!("{JOB}={job}");
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_found_behind_any_name() {
        assert_eq!(parent_field("12 (a) S 7 12 12 0"), Some(Pid::from_raw(7)));
        assert_eq!(parent_field("12 (a) R 3 (b) S 7 12 12 0"), Some(Pid::from_raw(7)));
        assert_eq!(parent_field("garbage"), None);
    }

    #[test]
    fn the_state_is_found_behind_any_name() {
        assert_eq!(field("12 (a) D 7 12 12 0", 3), Some("D"));
        assert_eq!(field("12 (a) R 3 (b) S 7 12", 3), Some("S"));
        assert_eq!(field("garbage", 3), None);
    }
}
