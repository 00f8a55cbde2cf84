//! One failure as data: of a worker here, of another node, or of the launcher.

use std::time::Duration;

use serde::Serialize;

use rankrun_contract::rank::Rank;
use rankrun_contract::report::cut::{MAX_CUT_TEXT, cut_text};
use rankrun_core::agent::failure::failure_cause;
use rankrun_core::hang::verdict::Verdict;
use rankrun_core::job_event::FailureKind;
use rankrun_core::job_event::memory::OomEvidence;
use rankrun_core::plain::plain;
use rankrun_core::posix::{Exit, signal_name};
use rankrun_core::rendezvous::{FailureNote, NodeName, PeerLoss, RendezvousEnd, WorkerFailure};
use rankrun_core::spec::restart::FailureCause;
use rankrun_core::stacks::WorkerStacks;

use super::device::{DeviceRecord, device_record};
use super::hang::{HangRecord, hang_record};
use super::{seconds, some};
use crate::reporter::exception::{WorkerException, exception_of_message};
use crate::reporter::summary::peers::PeerReport;
use crate::reporter::summary::{FailureReport, headline, timestamp};
use crate::reporter::{early, log_space, memory, nodes};

/// One failure; [`kind`](Self::kind) is a word of a closed list.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct FailureRecord {
    kind: &'static str,
    sentence: String,
    rank: Option<u32>,
    local_rank: Option<u32>,
    pid: Option<i32>,
    node: Option<FailedNode>,
    device: Option<DeviceRecord>,
    exit: Option<ExitRecord>,
    started: Option<String>,
    ended: Option<String>,
    seconds: Option<f64>,
    /// The limit in seconds that the job or the worker exceeded.
    limit: Option<f64>,
    /// The rank whose loss the worker reports.
    lost_rank: Option<u32>,
    exception: Option<ExceptionRecord>,
    hang: Option<HangRecord>,
    not_joined: Option<Vec<u32>>,
    memory: Option<MemoryRecord>,
    dead_devices: Option<Vec<DeadDeviceRecord>>,
    notes: Option<Vec<String>>,
    finished_early: Option<Vec<EarlyRecord>>,
    others: Option<Vec<OtherRecord>>,
    other_errors: Option<Vec<OtherError>>,
    stacks: Option<Vec<WorkerStacks>>,
    last_lines: Option<Vec<String>>,
    logs: Option<Vec<String>>,
    hint: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct FailedNode {
    name: Option<String>,
    rank: Option<u32>,
    address: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
enum ExitRecord {
    Code { code: i32 },
    Signal { signal: i32, name: String, core_dumped: bool },
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct ExceptionRecord {
    #[serde(rename = "type")]
    kind: Option<String>,
    message: Option<String>,
    file: Option<String>,
    line: Option<u32>,
    function: Option<String>,
    traceback: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct MemoryRecord {
    out_of_memory: &'static str,
    is_certain: Option<bool>,
    limit_bytes: Option<u64>,
    peak_bytes: Option<u64>,
    cgroup_kills: Option<u64>,
    machine_kills: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct DeadDeviceRecord {
    device: String,
    ranks: Vec<u32>,
    reason: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct EarlyRecord {
    rank: u32,
    seconds_before: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct OtherRecord {
    rank: u32,
    exit: ExitRecord,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct OtherError {
    ranks: Vec<u32>,
    message: String,
}

/// A failure of this launcher itself, or of the job as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LauncherFailure {
    /// The launcher could not go on.
    Error,
    /// The nodes did not find each other, or their store is lost.
    Rendezvous,
    /// The time limit has ended the job.
    TimeLimit(Duration),
}

/// The failure of a worker of this node; `verdict` is of a failure for missing progress.
#[must_use]
pub(crate) fn local_failure(
    failure: &FailureReport,
    verdict: Option<&Verdict>,
    hint: Option<&str>,
) -> FailureRecord {
    let exception = exception_of(failure);
    let early = failure.early.iter();
    let early = early.map(|it| EarlyRecord { rank: it.rank.0, seconds_before: seconds(it.before) }).collect();
    let others = failure.other_ends.iter();
    let others = others.map(|it| OtherRecord { rank: it.rank.0, exit: exit_record(it.exit) }).collect();
    let dead_devices = failure.dead_devices.iter().map(|dead| DeadDeviceRecord {
        device: dead.device.clone(),
        ranks: numbers(&dead.ranks),
        reason: dead.why.clone(),
    });
    let cause = early::probable_cause(failure).map(|cause| format!("probably an early end: {cause}"));
    let rows = memory::rows(failure).into_iter().chain(log_space::row(failure)).map(|(_, text)| text);
    FailureRecord {
        kind: kind_of(failure, verdict, exception.is_some()),
        sentence: headline(failure),
        rank: Some(failure.rank.0),
        local_rank: Some(failure.local_rank.0),
        pid: Some(failure.pid.as_raw()),
        node: Some(failed_node(&failure.node)),
        device: device_record(&failure.device, failure.counters.as_ref()),
        exit: Some(exit_record(failure.exit)),
        started: Some(timestamp(failure.started)),
        ended: Some(timestamp(failure.ended)),
        seconds: Some(seconds(failure.ended.duration_since(failure.started).unwrap_or_default())),
        limit: match failure.kind {
            FailureKind::NotJoined { limit } => Some(seconds(limit)),
            FailureKind::Uninterruptible { .. }
            | FailureKind::Ended
            | FailureKind::EndedByStop
            | FailureKind::Hang => None,
        },
        lost_rank: failure.report.as_ref().and_then(|report| report.lost_rank).map(|rank| rank.0),
        exception,
        hang: verdict.or(failure.collectives.as_ref()).and_then(hang_record),
        not_joined: some(numbers(&failure.not_joined)),
        memory: memory_record(failure),
        dead_devices: some(dead_devices.collect()),
        notes: some(rows.chain(cause).map(|text| plain(&text)).collect()),
        finished_early: some(early),
        others: some(others),
        other_errors: some(other_errors(failure)),
        stacks: some(failure.stacks.clone()),
        last_lines: some(failure.tail.clone()),
        logs: some(failure.files.iter().map(|file| file.display().to_string()).collect()),
        hint: hint.map(str::to_owned),
    }
}

/// The failure that ended the job on another node, as its launcher told it.
#[must_use]
pub(crate) fn remote_failure(note: Option<&FailureNote>, ending: Option<&RendezvousEnd>) -> FailureRecord {
    let Some(note) = note else {
        let sentence = ending.map(nodes::remote_end_text).unwrap_or_default();
        return FailureRecord { kind: "remote", sentence, ..FailureRecord::default() };
    };
    let sentence = nodes::first_cause(note);
    let of_all = FailureRecord {
        kind: match note {
            FailureNote::Worker(_) => "remote",
            FailureNote::NodeLost { .. } => "lost_node",
            FailureNote::NodeLeft { .. } => "node_left",
            FailureNote::LauncherFailed { .. } => "launcher",
        },
        sentence: sentence.lines().next().unwrap_or_default().to_owned(),
        node: Some(failed_node(note.node())),
        hint: Some(nodes::hint(note)),
        ..FailureRecord::default()
    };
    match note {
        FailureNote::Worker(WorkerFailure {
            rank, local_rank, pid, message, last_lines, lost_peer, ..
        }) => FailureRecord {
            rank: Some(rank.0),
            local_rank: Some(local_rank.0),
            pid: Some(*pid),
            exception: message
                .as_deref()
                .map(|message| exception_record(exception_of_message(message), None)),
            lost_rank: lost_peer.and_then(|peer| match peer {
                PeerLoss::Rank(rank) => Some(rank.0),
                PeerLoss::Unnamed => None,
            }),
            last_lines: some(last_lines.clone()),
            ..of_all
        },
        FailureNote::NodeLost { .. } | FailureNote::NodeLeft { .. } | FailureNote::LauncherFailed { .. } => {
            of_all
        }
    }
}

/// A failure without a worker.
#[must_use]
pub(crate) fn launcher_failure(
    failure: &LauncherFailure,
    sentence: String,
    hint: Option<String>,
) -> FailureRecord {
    let (kind, limit) = match failure {
        LauncherFailure::Error => ("launcher", None),
        LauncherFailure::Rendezvous => ("rendezvous", None),
        LauncherFailure::TimeLimit(limit) => ("time_limit", Some(seconds(*limit))),
    };
    FailureRecord { kind, sentence, limit, hint, ..FailureRecord::default() }
}

fn kind_of(failure: &FailureReport, verdict: Option<&Verdict>, has_exception: bool) -> &'static str {
    match (failure.kind, failure_cause(failure.kind, failure.foreign_kill, verdict)) {
        (FailureKind::Hang, Some(FailureCause::Desync)) => "desync",
        (FailureKind::Hang, _) => "hang",
        (FailureKind::NotJoined { .. }, _) => "not_joined",
        (FailureKind::Uninterruptible { .. }, _) => "uninterruptible",
        (FailureKind::EndedByStop, _) => "exception",
        (FailureKind::Ended, Some(FailureCause::Oom)) => "out_of_memory",
        (FailureKind::Ended, _) => match failure.exit {
            Exit::Signal { .. } => "signal",
            Exit::Code(_) if has_exception => "exception",
            Exit::Code(_) => "exit",
        },
    }
}

fn exception_of(failure: &FailureReport) -> Option<ExceptionRecord> {
    let callstack = failure.report.as_ref().and_then(|report| report.callstack.as_deref());
    let traceback = callstack.map(|callstack| cut_text(callstack, MAX_CUT_TEXT).into_owned());
    Some(exception_record(failure.exception()?, traceback))
}

fn exception_record(exception: WorkerException, traceback: Option<String>) -> ExceptionRecord {
    let WorkerException { kind, message, frame } = exception;
    let (file, line) = (frame.as_ref().map(|frame| frame.file.clone()), frame.as_ref().map(|it| it.line));
    ExceptionRecord {
        kind,
        message: message.map(|message| cut_text(&message, MAX_CUT_TEXT).into_owned()),
        file,
        line,
        function: frame.map(|frame| frame.function).filter(|function| !function.is_empty()),
        traceback,
    }
}

fn memory_record(failure: &FailureReport) -> Option<MemoryRecord> {
    let kills = failure.oom.cgroup.filter(|count| *count > 0);
    if failure.foreign_kill.is_none() && kills.is_none() {
        return None;
    }
    let evidence = failure.foreign_kill.map(|kill| kill.oom);
    let (out_of_memory, is_certain, limit, machine_kills) = match evidence {
        Some(OomEvidence::InCgroup { limit, is_certain }) => ("in_cgroup", Some(is_certain), limit, None),
        Some(OomEvidence::OnMachine { count }) => ("on_machine", None, None, Some(count)),
        Some(OomEvidence::NoKill) => ("none", None, None, None),
        Some(OomEvidence::Unknown) => ("unknown", None, None, None),
        None => ("beside", None, failure.oom.limit, None),
    };
    Some(MemoryRecord {
        out_of_memory,
        is_certain,
        limit_bytes: limit,
        peak_bytes: failure.foreign_kill.and_then(|kill| kill.peak).map(|peak| peak.bytes),
        cgroup_kills: kills,
        machine_kills,
    })
}

fn other_errors(failure: &FailureReport) -> Vec<OtherError> {
    let of_peer = |peer: &PeerReport| {
        let report = peer.report.as_ref().or(failure.report.as_ref());
        let message = report.map(|report| cut_text(&report.message, MAX_CUT_TEXT).into_owned());
        message.map(|message| OtherError { ranks: numbers(&peer.ranks), message })
    };
    failure.peers.iter().filter_map(of_peer).collect()
}

fn failed_node(node: &NodeName) -> FailedNode {
    FailedNode { name: node.host.clone(), rank: node.rank.map(|rank| rank.0), address: node.addr.clone() }
}

fn exit_record(exit: Exit) -> ExitRecord {
    match exit {
        Exit::Code(code) => ExitRecord::Code { code },
        Exit::Signal { number, core_dumped } => {
            ExitRecord::Signal { signal: number, name: signal_name(number), core_dumped }
        }
    }
}

fn numbers(ranks: &[Rank]) -> Vec<u32> {
    ranks.iter().map(|rank| rank.0).collect()
}
