//! The failure report: the rank that failed first, its node, exit, time and last output. Pure; the agent collects
//! the facts, the console prints the text.

pub(crate) mod peers;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::SystemTime;

use rankrun_contract::rank::{LocalRank, Rank, RestartCount};
use rankrun_contract::report::ErrorReport;
use rankrun_contract::report::cut::{MAX_CUT_TEXT, cut_text};

use crate::logs::tree::ERROR_FILE;
use crate::process::oom::OomKills;
use crate::reporter::causes::is_exception;
use crate::reporter::device;
use crate::reporter::early::{self, EarlyRank};
use crate::reporter::exception::{WorkerException, exception_in_output, exception_of_report};
use crate::reporter::log_space::{self, LogDisk};
use crate::reporter::memory::{self, kill_in_words};
use crate::reporter::stacks::render_briefly;
use peers::PeerReport;
use rankrun_core::device::WorkerDevice;
use rankrun_core::device::reading::DeviceCounters;
use rankrun_core::hang::sentence::collectives_sentence;
use rankrun_core::hang::verdict::Verdict;
use rankrun_core::job_event::{FailureKind, ForeignKill};
use rankrun_core::plain::plain;
use rankrun_core::posix::{Exit, Pid, signal_name};
use rankrun_core::rendezvous::NodeName;
use rankrun_core::stacks::WorkerStacks;

/// Everything that is known of the failure that ended the job.
#[derive(Debug, Clone)]
pub(crate) struct FailureReport {
    /// The rank of the first failure.
    pub rank: Rank,
    /// The local rank of the first failure.
    pub local_rank: LocalRank,
    /// The process id of the failed worker.
    pub pid: Pid,
    /// The device that the worker computed on.
    pub device: WorkerDevice,
    /// The node of the worker. In a job of one node only its host name is set.
    pub node: NodeName,
    /// How the worker ended: exit code or signal.
    pub exit: Exit,
    /// The known facts of a SIGKILL that the launcher did not send.
    pub foreign_kill: Option<ForeignKill>,
    /// The OOM kills since its generation was started.
    pub oom: OomKills,
    /// The disk of its logs, where that is full.
    pub log_disk: Option<LogDisk>,
    /// Whether the worker ended by itself or the launcher ended it.
    pub kind: FailureKind,
    /// The time at which its generation was started.
    pub started: SystemTime,
    /// The time at which its end was seen.
    pub ended: SystemTime,
    /// Restarts used, and how many there were.
    pub restarts: (RestartCount, RestartCount),
    /// The worker's own report, from its error file.
    pub report: Option<ErrorReport>,
    /// The paths of its error file and logs that exist.
    pub files: Vec<PathBuf>,
    /// The options that already send its output to files.
    pub kept: KeptOutput,
    /// The last lines of the worker's output.
    pub tail: Vec<String>,
    /// Whether the launcher sees the worker's output.
    pub is_output_captured: bool,
    /// The kind of program that the worker ran.
    pub program: ProgramKind,
    /// The ranks that had not joined the store when the start limit expired.
    pub not_joined: Vec<Rank>,
    /// Why the workers made no progress, in words.
    pub hang: Option<String>,
    /// The error counters of its device, if they were read.
    pub counters: Option<DeviceCounters>,
    /// What ranks waited in, by dump files of PyTorch's flight recorders.
    pub collectives: Option<Verdict>,
    /// The devices that were found dead after it.
    pub dead_devices: Vec<DeadDeviceSummary>,
    /// The workers that had exited with 0 before it, in the order in which that was seen.
    pub early: Vec<EarlyRank>,
    /// The ends of the other workers, in the order in which they were seen.
    pub other_ends: Vec<OtherEnd>,
    /// The reports of the other workers, if their error files are removed.
    pub peers: Vec<PeerReport>,
    /// Where workers stood that were killed since they did not answer.
    pub stacks: Vec<WorkerStacks>,
    /// The cause that its output and its exit point to: the hint of [`causes`](crate::reporter::causes).
    pub cause_hint: Option<String>,
}

/// The options that already send a worker's output to files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct KeptOutput {
    /// `--tee` or `--redirects` names one of its streams.
    pub by_streams: bool,
    /// `--log-dir` names a folder for the output.
    pub in_folder: bool,
}

/// A device that no worker can work on any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeadDeviceSummary {
    /// The ranks that the device was assigned to.
    pub ranks: Vec<Rank>,
    /// The name of the device, as the report prints it.
    pub device: String,
    /// The finding of the health check, in words.
    pub why: String,
}

/// The kind of program that the workers run, for hints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgramKind {
    /// A Python script or module (`-m`).
    Python,
    /// A program that is not run by Python.
    Any,
}

/// The end of a worker that was not the first to fail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OtherEnd {
    /// The rank of the worker that ended.
    pub rank: Rank,
    /// How the worker ended: exit code or signal.
    pub exit: Exit,
}

impl FailureReport {
    /// The texts of the error that the worker ended with: its report, and lines of its output that name an exception.
    pub(in crate::reporter) fn error_texts(&self) -> impl Iterator<Item = &str> {
        let report = self.report.iter().flat_map(|report| [Some(&report.message), report.callstack.as_ref()]);
        let raised = self.tail.iter().filter(|line| is_exception(line));
        report.flatten().chain(raised).map(String::as_str)
    }

    /// Of the error file, else of the output of a worker with the exit code that Python has for an exception.
    pub(in crate::reporter) fn exception(&self) -> Option<WorkerException> {
        let is_of_python = self.kind == FailureKind::Ended && self.exit == Exit::Code(1);
        match &self.report {
            Some(report) => Some(exception_of_report(report)),
            None => exception_in_output(&self.tail).filter(|_| is_of_python),
        }
    }
}

/// The report stays on one screen.
const MAX_STACK_LINES: usize = 16;
const SHOWN_CALLS: usize = 3;

/// A call stack with this number of bytes of the message's start shows the message.
const MESSAGE_START: usize = 1000;

/// The first line of the report: which worker failed first, and how.
#[must_use]
pub(crate) fn headline(failure: &FailureReport) -> String {
    let worker = match failure.node.rank {
        Some(_) => worker_name_on_node(failure.rank, failure.local_rank, &failure.node),
        None => format!("rank {}", failure.rank),
    };
    format!("{worker} failed first: {}", failure_text(failure))
}

/// The report as text, each line ended.
#[must_use]
pub(crate) fn render(failure: &FailureReport) -> String {
    let mut lines = vec![headline(failure)];
    let mut row = |name: &str, value: String| lines.push(format!("  {name:<9} {value}"));
    row("worker", format!("rank {}, local rank {}, pid {}", failure.rank, failure.local_rank, failure.pid));
    if let Some(exception) = failure.exception().and_then(|exception| exception.as_row()) {
        row("raised", plain(&exception));
    }
    if failure.device.is_known_to_runtime {
        row("device", device::identity(&failure.device));
    }
    if let Some(counters) = failure.counters.as_ref().and_then(device::counters) {
        row("counters", plain(&counters));
    }
    for dead in &failure.dead_devices {
        row("dead", plain(&format!("{} of {}: {}", dead.device, ranks(&dead.ranks), dead.why)));
    }
    if !failure.not_joined.is_empty() {
        row("missing", ranks(&failure.not_joined));
    }
    row("node", plain(&failure.node.as_row()));
    row("started", timestamp(failure.started));
    let lifetime = failure.ended.duration_since(failure.started).unwrap_or_default();
    row("ended", format!("{}, after {:.1} s", timestamp(failure.ended), lifetime.as_secs_f64()));
    let (used, most) = failure.restarts;
    // More than that where the policy gives them back.
    row("restarts", if used > most { format!("{used} used") } else { format!("{used} of {most} used") });
    for file in &failure.files {
        row("log", file.display().to_string());
    }
    if let Some(text) = failure.collectives.as_ref().and_then(collectives_sentence) {
        row("waits", format!("{text} (by the dumps of PyTorch's flight recorders)"));
    }
    for (name, value) in memory::rows(failure).into_iter().chain(log_space::row(failure)) {
        row(name, plain(&value));
    }
    if let Some(cause) = early::probable_cause(failure) {
        row("cause", format!("probably an early end: {cause}"));
    }
    let other_ends = early::other_ends_text(failure);
    if !other_ends.is_empty() {
        row("others", other_ends);
    }
    lines.extend(peers::lines(&failure.peers));
    if let Some(report) = &failure.report {
        lines.push("  what it reported:".to_owned());
        lines.extend(peers::text_lines(report));
    }
    let tail = tail_beside_report(failure);
    if !tail.is_empty() {
        lines.push("  its last lines:".to_owned());
        lines.extend(tail.iter().map(|line| format!("    | {line}")));
    }
    if !failure.stacks.is_empty() {
        let which = if failure.kind == FailureKind::Hang { "" } else { " that did not answer" };
        lines.push(format!("  where workers stood{which}:"));
        let stacks = render_briefly(&failure.stacks, SHOWN_CALLS, MAX_STACK_LINES);
        lines.extend(stacks.iter().map(|line| format!("    {line}")));
    }
    lines.iter().fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "{}", line.trim_end());
        text
    })
}

/// The worker's last lines without lines that its report already shows. Empty if only blank lines are left.
fn tail_beside_report(failure: &FailureReport) -> Vec<&str> {
    let report =
        failure.report.iter().flat_map(|report| [Some(&*report.message), report.callstack.as_deref()]);
    let reported: Vec<&str> =
        report.flatten().flat_map(str::lines).map(str::trim).filter(|line| !line.is_empty()).collect();
    let prefix = format!("rank {}: ", failure.rank);
    let text = |line: &str| line.trim_start_matches(&prefix).trim().to_owned();
    let mut tail: Vec<&str> = failure.tail.iter().map(String::as_str).collect();
    // A traceback that was printed has a few lines more than the same one in a report.
    let callstack =
        failure.report.as_ref().and_then(|report| report.callstack.as_deref()).unwrap_or_default();
    let ends = [callstack.lines().next(), callstack.trim_end().lines().last()];
    let ends = ends.map(|end| tail.iter().rposition(|line| end.is_some_and(|end| text(line) == end.trim())));
    if let [Some(first), Some(last)] = ends
        && first < last
    {
        tail.drain(first..=last);
    }
    tail.retain(|line| !reported.contains(&text(line).as_str()));
    let is_blank = |line: &&str| line.trim().is_empty();
    let from = tail.iter().take_while(|line| is_blank(line)).count();
    let end = tail.iter().rposition(|line| !is_blank(line)).map_or(from, |last| last + 1);
    tail[from..end].to_vec()
}

/// One worker of several nodes: `rank 5 (local rank 1) on node 1 (th2, 10.0.0.2)`.
#[must_use]
pub(crate) fn worker_name_on_node(rank: Rank, local_rank: LocalRank, node: &NodeName) -> String {
    plain(&format!("rank {rank} (local rank {local_rank}) on {node}"))
}

/// A worker's text, with any bytes and of any length.
fn quoted_lines(text: &str) -> Vec<String> {
    let text = cut_text(text.trim_end(), MAX_CUT_TEXT);
    text.lines().map(|line| format!("    | {}", plain(line))).collect()
}

/// The one thing to do about it, where something can be said.
#[must_use]
pub(crate) fn hint(failure: &FailureReport) -> Option<String> {
    if matches!(failure.kind, FailureKind::Uninterruptible { .. }) {
        return Some("a device or a file server does not answer: see `dmesg`".to_owned());
    }
    if matches!(failure.kind, FailureKind::NotJoined { .. }) {
        return Some(not_joined_hint(failure));
    }
    if !failure.dead_devices.is_empty() {
        return Some(
            "see `dmesg` for what the driver says of it; leave it out until it is repaired".to_owned(),
        );
    }
    if early::probable_cause(failure).is_some() {
        return Some(format!(
            "all ranks make the same collective calls: see why {} ended before rank {}",
            early::early_ranks(failure),
            failure.rank
        ));
    }
    if let Some(hint) = memory::hint(failure).or_else(|| log_space::hint(failure)) {
        return Some(hint);
    }
    if failure.cause_hint.is_some() {
        return failure.cause_hint.clone();
    }
    match failure.exit {
        Exit::Signal { number: libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE, .. } => {
            Some("it crashed in native code: `PYTHONFAULTHANDLER=1` makes Python print where".to_owned())
        }
        Exit::Signal { number: libc::SIGXFSZ, .. } => Some(
            "it wrote to a file beyond the limit on file sizes: raise it with `ulimit -f` in the shell that starts the \
             launcher"
                .to_owned(),
        ),
        Exit::Code(127) => Some("exit code 127 is a shell's `command not found`".to_owned()),
        _ if failure.report.is_some() || !failure.tail.is_empty() => None,
        _ => silent_hint(failure),
    }
}

/// The hint for a worker that was stopped since it had not joined the store.
fn not_joined_hint(failure: &FailureReport) -> String {
    let output = if !tail_beside_report(failure).is_empty() {
        "its last lines say how far it got; "
    } else if failure.tail.is_empty() && failure.report.is_none() && failure.is_output_captured {
        "it has printed nothing; "
    } else {
        ""
    };
    format!(
        "{output}slow imports or data need a longer `--start-timeout`; a program without torch.distributed never joins"
    )
}

/// The hint for a worker that left no text. Python prints a traceback for all exceptions but `SystemExit`, for which
/// `record` writes no error file either.
fn silent_hint(failure: &FailureReport) -> Option<String> {
    let is_python = failure.program == ProgramKind::Python;
    let has_error_file = failure.files.iter().any(|file| file.ends_with(ERROR_FILE));
    match failure.exit {
        _ if has_error_file => None,
        Exit::Code(code) if failure.is_output_captured => {
            let example = if is_python { format!("sys.exit({code})") } else { format!("exit {code}") };
            Some(format!("the worker printed nothing before `{example}`; print the reason to stderr there"))
        }
        Exit::Code(_) if is_python => Some(
            "with `torch.distributed.elastic.multiprocessing.errors.record` around its main function, its traceback is \
             shown here"
                .to_owned(),
        ),
        _ => (!failure.is_output_captured && failure.files.is_empty()).then(|| keep_hint(failure)),
    }
}

/// The hint after a failure without a report, and with output that the launcher did not see.
fn keep_hint(failure: &FailureReport) -> String {
    match (failure.kept.by_streams, failure.kept.in_folder) {
        (false, false) => "run with `--tee 3 --log-dir DIR` to keep what each worker prints".to_owned(),
        (false, true) => "add `--tee 3` to keep what each worker prints in the log folder".to_owned(),
        (true, false) => "give `--log-dir` a folder to keep what each worker prints".to_owned(),
        (true, true) => format!(
            "it printed nothing; `rankrun explain --script {}` in front of the options makes a script that runs it \
             by hand",
            failure.local_rank
        ),
    }
}

fn failure_text(failure: &FailureReport) -> String {
    let exit = exit_text(failure.exit);
    match failure.kind {
        FailureKind::Ended => failure.foreign_kill.map_or(exit, |kill| kill_in_words(kill, failure.rank)),
        FailureKind::EndedByStop => format!("it had reported its failure when the stop ended it ({exit})"),
        FailureKind::Hang => {
            let why = failure.hang.as_deref().unwrap_or("hang: the workers made no progress");
            format!("{why}; stopped ({exit})")
        }
        FailureKind::NotJoined { limit } => {
            format!("it had not joined the store within {} s and was stopped ({exit})", limit.as_secs_f64())
        }
        FailureKind::Uninterruptible { blocked_for } => {
            format!("stuck in the kernel for {:.1} s and stopped ({exit})", blocked_for.as_secs_f64())
        }
    }
}

fn exit_text(exit: Exit) -> String {
    if let Exit::Code(code @ 129..=192) = exit {
        return format!("{exit} (a shell's way to say {})", signal_name(code - 128));
    }
    let meaning = match exit {
        Exit::Signal { number: libc::SIGSEGV, .. } => " (invalid memory access)",
        Exit::Signal { number: libc::SIGABRT, .. } => " (it aborted)",
        Exit::Signal { number: libc::SIGBUS, .. } => " (bus error: often a full /dev/shm)",
        Exit::Signal { number: libc::SIGFPE, .. } => " (arithmetic error)",
        Exit::Signal { number: libc::SIGILL, .. } => " (illegal instruction)",
        Exit::Code(_) | Exit::Signal { .. } => "",
    };
    format!("{exit}{meaning}")
}

fn ranks(ranks: &[Rank]) -> String {
    let list: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    format!("rank{} {}", if list.len() == 1 { "" } else { "s" }, list.join(", "))
}

/// A time as `2026-11-27T07:05:06.562Z`.
pub(in crate::reporter) fn timestamp(at: SystemTime) -> String {
    humantime::format_rfc3339_millis(at).to_string()
}

#[cfg(test)]
#[path = "summary_tests.rs"]
pub(super) mod tests;
