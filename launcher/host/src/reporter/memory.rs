//! Texts about a worker's death by SIGKILL, and about OOM kills. Pure.

use bytesize::ByteSize;

use rankrun_contract::rank::Rank;

use crate::process::oom::OomKills;
use crate::reporter::summary::FailureReport;
use rankrun_core::job_event::memory::OomEvidence;
use rankrun_core::job_event::memory::PeakMemory;
use rankrun_core::job_event::{ForeignKill, WorkerEnd};
use rankrun_core::posix::Exit;

const MIB: u64 = 1 << 20;

const RAISE_LIMIT: &str = "raise the limit where the job is started (`docker run --memory`, a pod's `resources.limits.memory`, `sbatch --mem`), or \
     use less: a smaller batch, fewer data loader workers";

const USE_LESS: &str = "this machine had no memory left: use less (a smaller batch, fewer workers per node, fewer data loader \
                        workers); `dmesg` lists what ran when the kernel chose";

/// How a worker ended: its exit, or the cause of a SIGKILL that the launcher did not send.
#[must_use]
pub(crate) fn end_in_words(end: &WorkerEnd, rank: Rank) -> String {
    end.foreign_kill.map_or_else(|| end.exit.to_string(), |kill| kill_in_words(kill, rank))
}

/// The cause of a SIGKILL that the launcher did not send.
#[must_use]
pub(crate) fn kill_in_words(kill: ForeignKill, rank: Rank) -> String {
    let peak = kill.peak.map(|peak| peak_in_words(peak, rank));
    match kill.oom {
        OomEvidence::InCgroup { limit, is_certain } => {
            let limit = limit.map_or_else(
                || "no cgroup limit was reached".to_owned(),
                |limit| format!("cgroup limit {}", memory(limit)),
            );
            let numbers: Vec<String> = [Some(limit), peak].into_iter().flatten().collect();
            let by = if is_certain { "by the kernel" } else { "by SIGKILL, probably by the kernel" };
            format!("killed {by}: out of memory ({})", numbers.join(", "))
        }
        OomEvidence::OnMachine { .. } | OomEvidence::NoKill | OomEvidence::Unknown => {
            "killed by SIGKILL (not sent by rankrun)".to_owned()
        }
    }
}

fn peak_in_words(PeakMemory { bytes, is_own }: PeakMemory, rank: Rank) -> String {
    let or_other = if is_own { "" } else { " or a process that it started" };
    format!("rank {rank}{or_other} had {}", memory(bytes))
}

/// Rows of a failure report: name and value.
#[must_use]
pub(crate) fn rows(failure: &FailureReport) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    let on_machine = failure.foreign_kill.and_then(|kill| match kill.oom {
        OomEvidence::OnMachine { count } => Some(count),
        OomEvidence::InCgroup { .. } | OomEvidence::NoKill | OomEvidence::Unknown => None,
    });
    if let Some(count) = on_machine {
        let killed = processes(count);
        rows.push((
            "cause",
            format!(
                "perhaps out of memory: the kernel killed {killed} of this machine for lack of memory since the workers \
                 were started"
            ),
        ));
    }
    if let Some(kill) = failure.foreign_kill.filter(|kill| !is_by_kernel(kill))
        && let Some(peak) = kill.peak
    {
        rows.push(("memory", peak_in_words(peak, failure.rank)));
    }
    if let Some((count, limit)) = kills_beside(failure) {
        let limit = limit.map(|limit| format!(" (cgroup limit {})", memory(limit))).unwrap_or_default();
        let killed = processes(count);
        rows.push((
            "memory",
            format!("the kernel killed {killed} of the job's cgroup for lack of memory{limit}"),
        ));
    }
    rows
}

/// The hint for a lack of memory, or for a SIGKILL.
#[must_use]
pub(crate) fn hint(failure: &FailureReport) -> Option<String> {
    let of_limit = |limit: Option<u64>| if limit.is_some() { RAISE_LIMIT } else { USE_LESS };
    let hint = match failure.foreign_kill.map(|kill| kill.oom) {
        Some(OomEvidence::InCgroup { limit, .. }) => of_limit(limit),
        Some(OomEvidence::OnMachine { .. }) => {
            "`dmesg` names the processes that the kernel killed; any other SIGKILL is from a scheduler, a container runtime \
             or a person"
        }
        Some(OomEvidence::NoKill) => {
            "the kernel killed nothing for lack of memory: ask the scheduler or container runtime (its log, its time and \
             memory limits), or see which person, which other script or the script itself sends `kill -9`"
        }
        Some(OomEvidence::Unknown) => {
            "the kernel's counters cannot be read here: `dmesg` says whether it killed the worker for lack of memory"
        }
        None => {
            let (_, limit) = kills_beside(failure).filter(|_| may_be_of_a_child(failure))?;
            return Some(format!("perhaps for lack of memory: {}", of_limit(limit)));
        }
    };
    Some(hint.to_owned())
}

/// OOM kills beside a worker that ended in another way, with the limit that was reached.
fn kills_beside(failure: &FailureReport) -> Option<(u64, Option<u64>)> {
    let OomKills { cgroup, limit, .. } = failure.oom;
    let count = cgroup.filter(|count| *count > 0 && failure.foreign_kill.is_none())?;
    Some((count, limit))
}

/// Words of an error that follows the loss of a process, or a lack of memory.
const LOSS_WORDS: [&str; 7] = [
    "Killed",
    "killed",
    "SIGKILL",
    "MemoryError",
    "Cannot allocate memory",
    // Of `concurrent.futures` and of PyTorch's data loader.
    "terminated abruptly",
    "exited unexpectedly",
];

/// Whether the worker may have failed for want of a process that was killed: no visible error has another cause.
fn may_be_of_a_child(failure: &FailureReport) -> bool {
    let mut errors = failure.error_texts().peekable();
    failure.exit == Exit::Code(128 + libc::SIGKILL) || errors.peek().is_none() || errors.any(names_loss)
}

fn names_loss(error: &str) -> bool {
    // PyTorch's is about a device's memory.
    let error = error.replace("OutOfMemoryError", "");
    LOSS_WORDS.iter().any(|pattern| error.contains(pattern)) || error.lines().any(names_exit_by_sigkill)
}

/// `returned non-zero exit status 137`, `exitcode: -9`.
fn names_exit_by_sigkill(line: &str) -> bool {
    let is_of_number = |letter: char| letter.is_alphanumeric() || letter == '-';
    let mut tokens = line.split(|letter| !is_of_number(letter));
    ["exit", "code", "status"].iter().any(|token| line.contains(token))
        && tokens.any(|token| token == "137" || token == "-9")
}

const fn is_by_kernel(kill: &ForeignKill) -> bool {
    matches!(kill.oom, OomEvidence::InCgroup { .. })
}

fn processes(count: u64) -> String {
    if count == 1 { "1 process".to_owned() } else { format!("{count} processes") }
}

/// In whole MiB, the unit of limits; large amounts in GiB.
fn memory(bytes: u64) -> String {
    if !(MIB..10_000 * MIB).contains(&bytes) {
        return ByteSize(bytes).to_string();
    }
    format!("{} MiB", (bytes + MIB / 2) / MIB)
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
