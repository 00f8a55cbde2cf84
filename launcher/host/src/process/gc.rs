//! Finds and ends processes of jobs after the death of their launcher. [`rankrun_core::gc`] decides which processes
//! those are.
#![expect(clippy::disallowed_methods, reason = "the limits on blocking waits are this shell's own")]

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::getpid;
use rankrun_core::posix::ProcessScanError;
use rankrun_core::posix::Signal;

use rankrun_core::posix::Pid;
use uuid::Uuid;

use rankrun_contract::env::{JOB, KEEP};

use crate::process::attach::ABANDONED_WRAPPER_NAME;
use crate::process::guard::AGENT_NAME;
use crate::process::job_limit;
use crate::process::proc::{
    ProcessEnvironment, ProcessStat, absent_if_not_found, can_scan_processes, displayed_command, parse_pid,
    signal_if_same_start,
};
use rankrun_core::gc::{
    GcOutcome, GcReport, GcRequest, Leftover, MarkEvidence, ProcessRecord, ProcessRelation, find_leftovers,
};

/// From SIGTERM to SIGKILL, and from there to giving up.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// The most processes that are awaited by pidfds at once; the rest is checked when one of these ends.
const MAX_WATCHED: usize = 256;
/// Of the clock in `/proc/PID/stat`: `USER_HZ`, which is 100 on every architecture that we are built for.
const TICKS_PER_SECOND: u64 = 100;
/// The launcher's process names, as rankrun and as torchrun.
const LAUNCHERS: [&str; 2] = ["rankrun", "torchrun"];

/// The agent's name in version 0.1.
const OLD_AGENT_NAME: &str = "rankrun-agent";

/// Reasons why the processes cannot be inspected.
#[derive(Debug, thiserror::Error)]
pub enum GcError {
    /// No `/proc`, or that of other processes.
    #[error("cannot look at processes: `/proc` does not show those of this pid namespace")]
    NoProc,
    /// `/proc` exists and cannot be read.
    #[error("cannot look at processes")]
    Unreadable(#[source] io::Error),
    /// No descriptor or memory is left to read `/proc`.
    #[error(transparent)]
    ScanFailed(#[from] ProcessScanError),
}

impl GcError {
    /// One thing to do about it.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::NoProc | Self::Unreadable(_) => {
                "mount it, as `unshare --mount-proc` and every container runtime do"
            }
            Self::ScanFailed(_) => "raise the limit of open files (`ulimit -n`)",
        }
    }
}

/// Lists the leftover processes, and ends them unless the request is only to list.
///
/// # Errors
/// The processes cannot be inspected.
pub fn collect(request: &GcRequest) -> Result<GcReport, GcError> {
    if !can_scan_processes() {
        return Err(GcError::NoProc);
    }
    let ends = |found: &FoundLeftover| request.ends_process(found.leftover.evidence);
    let (mut found, doubtful): (Vec<_>, Vec<_>) = list_leftovers()?.into_iter().partition(ends);
    for (signal, fate) in [(Signal::SIGTERM, GcOutcome::Ended), (Signal::SIGKILL, GcOutcome::Killed)] {
        terminate_and_wait(&mut found, (signal, fate), &ends)?;
    }
    found.extend(doubtful);
    found.sort_by_key(|found| found.leftover.pid);
    let processes = found.into_iter().map(|found| found.leftover).collect();
    Ok(GcReport { processes, paths: Vec::new() })
}

/// A leftover, and how to be sure that it is still the same.
struct FoundLeftover {
    started: u64,
    leftover: Leftover,
}

impl FoundLeftover {
    fn key(&self) -> (Pid, u64) {
        (Pid::from_raw(self.leftover.pid), self.started)
    }
}

/// Signals all that live and waits for their end. Processes of the same jobs that were born meanwhile are found too.
fn terminate_and_wait(
    found: &mut Vec<FoundLeftover>,
    (signal, fate): (Signal, GcOutcome),
    ends: &dyn Fn(&FoundLeftover) -> bool,
) -> Result<(), GcError> {
    let jobs: Vec<Uuid> = found.iter().map(|found| found.leftover.job).collect();
    let give_up = Instant::now() + KILL_TIMEOUT;
    let most = getrlimit(Resource::RLIMIT_NOFILE).map_or(1, |(soft, _)| soft / 2);
    let most = usize::try_from(most).unwrap_or(MAX_WATCHED).min(MAX_WATCHED);
    let mut signalled: Vec<(Pid, u64)> = Vec::new();
    while found.iter().any(|found| found.leftover.fate.is_alive()) {
        let mut handles = Vec::new();
        for found in found.iter_mut().filter(|found| found.leftover.fate.is_alive()) {
            let handle = open_pidfd(found.key())?;
            if handle.is_none() && !is_same_process_alive(found.key())? {
                found.leftover.fate = fate;
                continue;
            }
            if !signalled.contains(&found.key()) {
                signal_if_same_start(found.key(), signal);
                // A stopped process cannot act on a signal.
                signal_if_same_start(found.key(), Signal::SIGCONT);
                signalled.push(found.key());
            }
            if let Some(handle) = handle.filter(|_| handles.len() < most) {
                handles.push(handle);
            }
            found.leftover.fate = GcOutcome::Alive;
        }
        let remaining = give_up.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            break;
        }
        wait_for_any_exit(&handles, remaining);
        let known: Vec<_> = found.iter().map(FoundLeftover::key).collect();
        let born =
            list_leftovers()?.into_iter().filter(|born| jobs.contains(&born.leftover.job) && ends(born));
        found.extend(born.filter(|born| !known.contains(&born.key())));
    }
    Ok(())
}

/// A descriptor of the process that becomes readable at its end; nothing where it has ended, or before Linux 5.3.
fn open_pidfd(key: (Pid, u64)) -> Result<Option<OwnedFd>, ProcessScanError> {
    let Some(pid) = rustix::process::Pid::from_raw(key.0.as_raw()) else { return Ok(None) };
    let handle = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
    Ok(absent_if_not_found(handle.map_err(io::Error::from))?
        .filter(|_| is_same_process_alive(key).unwrap_or(true)))
}

fn is_same_process_alive((pid, started): (Pid, u64)) -> Result<bool, ProcessScanError> {
    let stat = ProcessStat::of(pid)?;
    Ok(stat.is_some_and(|stat| stat.start_ticks() == Some(started) && !stat.has_ended()))
}

fn wait_for_any_exit(handles: &[OwnedFd], at_most: Duration) {
    // Without descriptors to wait on, a look now and then has to do.
    let at_most = if handles.is_empty() { at_most.min(Duration::from_millis(100)) } else { at_most };
    let mut inputs: Vec<_> =
        handles.iter().map(|handle| PollFd::new(handle.as_fd(), PollFlags::POLLIN)).collect();
    let _ = poll(&mut inputs, PollTimeout::try_from(at_most).unwrap_or(PollTimeout::MAX));
}

fn list_leftovers() -> Result<Vec<FoundLeftover>, GcError> {
    let processes = all_processes()?;
    let now = uptime();
    let leftover = |(process, job, evidence): (&ProcessRecord, Uuid, MarkEvidence)| FoundLeftover {
        started: process.started,
        leftover: Leftover {
            pid: process.pid,
            job,
            evidence,
            age: now.saturating_sub(Duration::from_secs(process.started / TICKS_PER_SECOND)),
            command: displayed_command(Pid::from_raw(process.pid)),
            fate: GcOutcome::Listed,
        },
    };
    Ok(find_leftovers(&processes, getpid().as_raw()).into_iter().map(leftover).collect())
}

fn all_processes() -> Result<Vec<ProcessRecord>, GcError> {
    let me = rustix::process::geteuid().as_raw();
    let program = fs::metadata("/proc/self/exe").map(|file| (file.dev(), file.ino())).ok();
    let entries = fs::read_dir("/proc").map_err(GcError::Unreadable)?;
    let pids = entries.flatten().filter_map(|entry| parse_pid(entry.file_name().to_str()?));
    let all: Result<Vec<_>, ProcessScanError> = pids.map(|pid| process_record(pid, me, program)).collect();
    Ok(all?.into_iter().flatten().collect())
}

fn process_record(
    pid: Pid,
    me: u32,
    program: Option<(u64, u64)>,
) -> Result<Option<ProcessRecord>, ProcessScanError> {
    let Some(stat) = ProcessStat::of(pid)? else { return Ok(None) };
    let is_ours = || fs::metadata(format!("/proc/{pid}")).is_ok_and(|folder| folder.uid() == me);
    let standing = if is_launcher(pid, &stat, program) {
        ProcessRelation::Launcher
    } else if stat.has_ended() || stat.has_terminal() || !is_ours() {
        ProcessRelation::Unrelated
    } else {
        mark_of(pid, &ProcessEnvironment::of(pid)?)?.unwrap_or(ProcessRelation::Unrelated)
    };
    let parent = stat.parent().map_or(0, Pid::as_raw);
    Ok(stat.start_ticks().map(|started| ProcessRecord { pid: pid.as_raw(), parent, started, standing }))
}

/// Our program, also another copy of it (an earlier version, a second environment): whatever that runs is not touched.
/// torchrun itself, a script that Python runs, is none, nor is the wrapper of a worker that was started by hand once
/// its launcher is gone.
fn is_launcher(pid: Pid, stat: &ProcessStat, program: Option<(u64, u64)>) -> bool {
    let has_our_name = |name: &str| LAUNCHERS.contains(&name);
    match stat.name() {
        Some(ABANDONED_WRAPPER_NAME) => return false,
        Some(OLD_AGENT_NAME) => return true,
        Some(name) if name.as_bytes() == AGENT_NAME.to_bytes() => return true,
        _ => {}
    }
    let exe = format!("/proc/{pid}/exe");
    if program.is_some() && fs::metadata(&exe).map(|file| (file.dev(), file.ino())).ok() == program {
        return true;
    }
    match fs::read_link(exe) {
        Ok(path) => path.file_name().and_then(|name| name.to_str()).is_some_and(|name| {
            // As the kernel writes it once the file was replaced.
            has_our_name(name.strip_suffix(" (deleted)").unwrap_or(name))
        }),
        Err(_) => stat.name().is_some_and(has_our_name),
    }
}

/// A mark that is not a UUID is not a launcher's: a worker that is started by hand may have one.
fn mark_of(pid: Pid, environment: &ProcessEnvironment) -> Result<Option<ProcessRelation>, ProcessScanError> {
    let Some(job) = environment.value(JOB).and_then(|mark| Uuid::try_parse_ascii(mark).ok()) else {
        return Ok(None);
    };
    let inherits = job_limit::has_job_mark(pid, job)?;
    // The limits of a process that is just ending are empty.
    if !inherits && ProcessStat::of(pid)?.is_none_or(|stat| stat.has_ended()) {
        return Ok(None);
    }
    let evidence = if inherits { MarkEvidence::Inherited } else { MarkEvidence::Environment };
    Ok(Some(ProcessRelation::Marked { job, evidence, kept: environment.value(KEEP) == Some(b"1") }))
}

/// Since boot, on the clock by which the kernel notes a process's start.
fn uptime() -> Duration {
    let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = uptime.split_ascii_whitespace().next().and_then(|seconds| seconds.parse().ok());
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default()
}
