//! Gathers what is known of a failure (exits, error files, last output lines) and builds the failure report
//! from it. The worker group provides the data; `final_report` prints the result. This module decides nothing
//! about the job.

use std::collections::BTreeMap;
use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rankrun_contract::rank::{LocalRank, NodeCount, Rank};
use rankrun_contract::report::cut::{JsonCutter, MAX_CUT_TEXT, cut_text};
use rankrun_contract::report::{self, ErrorFile, ErrorReport, MessageForm, ReportError};

use crate::agent::host;
use crate::agent::recorder_dumps::verdict_of_dumps;
use crate::blocking::file_calls::FileCalls;
use crate::logs::tree::{Attempt, ERROR_FILE};
use crate::process::oom::OomKills;
use crate::regular_file::{self, NotRegular};
use crate::reporter::early::EarlyRank;
use crate::reporter::local_time::LocalTime;
use crate::reporter::log_space::LogDisk;
use crate::reporter::summary::peers::{self, PeerReport, ShownTexts};
use crate::reporter::summary::{DeadDeviceSummary, FailureReport, KeptOutput, OtherEnd, ProgramKind};
use crate::reporter::torch_report::{FailedWorker, Message, TorchReport};
use crate::system::short_hostname;
use rankrun_core::agent::failure::{Failure, FollowingEnd};
use rankrun_core::device::WorkerDevice;
use rankrun_core::device::reading::DeviceCounters;
use rankrun_core::hang::sentence::{failure_sentence, sentence};
use rankrun_core::hang::verdict::Verdict;
use rankrun_core::job_event::{FailureKind, WorkerEnd};
use rankrun_core::log_route::streams_of_rank;
use rankrun_core::placement::Placement;
use rankrun_core::rendezvous::{NodeName, Round};
use rankrun_core::spec::{Entrypoint, LaunchSpec, LogDir};
use rankrun_core::stacks::WorkerStacks;

/// What the worker group knows of a failure, beside the exits of the workers.
pub(super) struct FailureContext<'a> {
    /// The rank and device of each worker.
    pub(super) placements: &'a [Placement],
    /// The round of the generation, if it completed one.
    pub(super) round: Option<&'a Round>,
    pub(super) started: SystemTime,
    pub(super) spec: &'a LaunchSpec,
    /// The log folders of the generation, where it has any.
    pub(super) attempt: Option<&'a Attempt>,
    /// The error files that workers of the generation wrote.
    pub(super) error_files: &'a BTreeMap<LocalRank, ErrorFile>,
    /// The last output lines of the worker that failed first.
    pub(super) tail: Vec<String>,
    pub(super) file_calls: &'a FileCalls,
    /// Whether the launcher sees its output.
    pub(super) is_output_seen: bool,
    /// What the kernel's OOM killer has killed.
    pub(super) oom: OomKills,
    /// The disk of that worker's logs, where the disk was full.
    pub(super) log_disk: Option<LogDisk>,
    /// Where workers stood that were killed since they did not answer.
    pub(super) stacks: &'a [WorkerStacks],
    /// The counters of the device of the worker that failed first, if they were read.
    pub(super) counters: Option<&'a DeviceCounters>,
}

/// torchrun's report shows this many bytes of all messages together, and at least [`MAX_CUT_TEXT`] bytes of
/// each.
const MAX_TORCH_REPORT_TEXT: usize = 1024 * 1024;

/// The files that a worker may leave in its log folder.
const FILES: [&str; 3] = ["stdout.log", "stderr.log", ERROR_FILE];

impl FailureContext<'_> {
    fn files_in(&self, folder: PathBuf) -> Option<Vec<PathBuf>> {
        let list = {
            let folder = folder.clone();
            move || files_in(&folder)
        };
        self.file_calls.run(&folder, list)
    }

    fn placement(&self, local_rank: LocalRank) -> Option<&Placement> {
        self.placements.get(local_rank.index())
    }

    fn rank(&self, local_rank: LocalRank) -> Rank {
        self.placement(local_rank).map_or(Rank(local_rank.0), |placement| placement.rank)
    }

    /// The report of one failure, and the texts of error files that the report shows.
    pub(super) fn failure_report(&self, failure: &Failure) -> (FailureReport, ShownTexts) {
        let first = failure.first;
        let folder = self.attempt.map(|attempt| attempt.worker(first.local_rank));
        let mut shown = ShownTexts::default();
        let report = self.error_files.get(&first.local_rank).map(|file| file.report.clone());
        let is_shown = report.as_ref().is_some_and(|report| shown.add(report));
        let mut files = folder.and_then(|folder| self.files_in(folder)).unwrap_or_default();
        let mut peers = Vec::new();
        if matches!(self.spec.logs.dir, LogDir::ErrorFiles(_)) {
            // The error file is removed, so the report does not name it.
            files.retain(|file| !is_shown || !file.ends_with(ERROR_FILE));
            let others = self.error_files.iter().filter(|(local_rank, _)| **local_rank != first.local_rank);
            let others = others.map(|(local_rank, file)| (self.rank(*local_rank), &file.report));
            peers = peers::group(others, &mut shown);
        }
        let failure_report = self.build_failure_report(failure, (report, files, peers));
        (FailureReport { collectives: self.verdict_of_dumps(failure), ..failure_report }, shown)
    }

    /// By dump files of flight recorders, where no recorder was asked or its answers have led to no verdict.
    fn verdict_of_dumps(&self, failure: &Failure) -> Option<Verdict> {
        let attempt = self.attempt.filter(|_| failure.hang.is_none() && self.spec.has_hooks())?;
        let folder = attempt.folder().to_path_buf();
        let ranks: Vec<Rank> = self.placements.iter().map(|placement| placement.rank).collect();
        let has_other_nodes = self.round.is_some_and(|round| round.nodes > NodeCount::ONE);
        let read = {
            let folder = folder.clone();
            move || verdict_of_dumps(&folder, &ranks, has_other_nodes)
        };
        self.file_calls.run(&folder, read).flatten()
    }

    /// Rank and address of this node, left out in a job of a single node.
    fn shown_node_name(&self) -> NodeName {
        let round = self.round.filter(|round| round.nodes > NodeCount::ONE);
        round.map(Round::own_name).unwrap_or_default()
    }

    fn kept_output(&self, local_rank: LocalRank) -> KeptOutput {
        let logs = &self.spec.logs;
        let streams = [streams_of_rank(&logs.tee, local_rank), streams_of_rank(&logs.redirects, local_rank)];
        KeptOutput {
            by_streams: streams.iter().any(|streams| streams.stdout || streams.stderr),
            in_folder: matches!(logs.dir, LogDir::At(_)),
        }
    }

    fn build_failure_report(
        &self,
        failure: &Failure,
        (report, files, peers): (Option<ErrorReport>, Vec<PathBuf>, Vec<PeerReport>),
    ) -> FailureReport {
        let first = failure.first;
        FailureReport {
            rank: self.rank(first.local_rank),
            local_rank: first.local_rank,
            pid: first.pid,
            device: self
                .placement(first.local_rank)
                .map_or(WorkerDevice::cpu(first.local_rank), |placement| placement.device.clone()),
            node: NodeName { host: Some(short_hostname()), ..self.shown_node_name() },
            exit: first.exit,
            foreign_kill: first.foreign_kill,
            oom: self.oom,
            log_disk: self.log_disk.clone(),
            kind: failure.kind,
            started: self.started,
            ended: first.at,
            restarts: (failure.restart_count, self.spec.max_restarts),
            report,
            files,
            kept: self.kept_output(first.local_rank),
            tail: self.tail.clone(),
            is_output_captured: self.is_output_seen,
            program: match self.spec.entrypoint {
                Entrypoint::Program { .. } => ProgramKind::Any,
                Entrypoint::Script { .. } | Entrypoint::Module { .. } | Entrypoint::RunPath { .. } => {
                    ProgramKind::Python
                }
            },
            hang: failure.hang.as_deref().map(failure_sentence),
            collectives: None,
            not_joined: failure.not_joined.iter().map(|local_rank| self.rank(*local_rank)).collect(),
            counters: self.counters.cloned(),
            dead_devices: failure
                .dead_devices
                .iter()
                .map(|dead| DeadDeviceSummary {
                    ranks: dead.local_ranks.iter().map(|local_rank| self.rank(*local_rank)).collect(),
                    device: dead.device.clone(),
                    why: dead.reason.clone(),
                })
                .collect(),
            early: failure
                .early_successes
                .iter()
                .map(|early| EarlyRank { rank: self.rank(early.end.local_rank), before: early.before })
                .collect(),
            other_ends: failure
                .following_ends
                .iter()
                .map(|other| OtherEnd { rank: self.rank(other.end.local_rank), exit: other.end.exit })
                .collect(),
            peers,
            stacks: self.stacks.to_vec(),
            cause_hint: None,
        }
    }

    /// torchrun's failure report with this title.
    pub(super) fn torch_report(&self, failure: &Failure, title: String) -> TorchReport {
        let recorded = listed_exits(&failure.following_ends);
        let most = (MAX_TORCH_REPORT_TEXT / (recorded.len() + 1)).max(MAX_CUT_TEXT);
        let mut root_cause = self.failed_worker(&failure.first, most);
        if let (FailureKind::Uninterruptible { blocked_for: dwell }, Message::None) =
            (failure.kind, &root_cause.message)
        {
            let dwell = dwell.as_secs_f64();
            root_cause.message =
                Message::Text(format!("Worker stuck in uninterruptible sleep (D-state) for {dwell:.1}s"));
        }
        if let (FailureKind::NotJoined { limit }, Message::None) = (failure.kind, &root_cause.message) {
            let limit = limit.as_secs_f64();
            root_cause.message = Message::Text(format!("Worker had not joined the store within {limit}s"));
        }
        if let (Some(verdict), Message::None) = (&failure.hang, &root_cause.message) {
            root_cause.message = Message::Text(format!("Workers made no progress: {}", sentence(verdict)));
        }
        let others = recorded.iter().map(|other| self.failed_worker(&other.end, most)).collect();
        TorchReport { title, host: host::full_name(), root_cause, others }
    }

    /// Cuts a message of more than `most` bytes.
    fn failed_worker(&self, end: &WorkerEnd, most: usize) -> FailedWorker {
        let file = self.error_files.get(&end.local_rank);
        let path = self.attempt.map(|attempt| attempt.error_file(end.local_rank));
        let reported_at = file.and_then(|file| file.report.unix_seconds).filter(|seconds| *seconds > 0);
        let reported_at =
            reported_at.and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
        FailedWorker {
            rank: self.rank(end.local_rank),
            local_rank: end.local_rank,
            pid: end.pid,
            exit: end.exit,
            time: LocalTime::of(reported_at.unwrap_or(end.at)),
            error_file: path.filter(|_| file.is_some()),
            message: file.map_or(Message::None, |file| error_message(file, most)),
        }
    }
}

fn error_message(file: &ErrorFile, most: usize) -> Message {
    let report = &file.report;
    let text = |text: &str| cut_text(text, most).into_owned();
    match (file.form, &report.callstack) {
        (MessageForm::Object, Some(callstack)) => Message::Traceback(text(callstack)),
        (MessageForm::Object, None) => Message::Traceback(text(&report.message)),
        (MessageForm::Text, _) if report.message.is_empty() => Message::None,
        (MessageForm::Text, _) => Message::Text(text(&report.message)),
    }
}

/// The bad exits in torchrun's order: first the workers that ended by themselves, as seen; then those ended
/// by our stop, by local rank.
fn listed_exits(others: &[FollowingEnd]) -> Vec<FollowingEnd> {
    let bad = || others.iter().filter(|other| !other.end.exit.is_success()).copied();
    let mut stopped: Vec<FollowingEnd> = bad().filter(|other| other.is_stopped_by_us).collect();
    stopped.sort_by_key(|other| other.end.local_rank);
    bad().filter(|other| !other.is_stopped_by_us).chain(stopped).collect()
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    FILES.iter().map(|name| folder.join(name)).filter(|path| path.exists()).collect()
}

#[derive(Debug, thiserror::Error)]
enum ErrorFileProblem {
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    NotRegular(#[from] NotRegular),
    #[error(transparent)]
    NoReport(#[from] ReportError),
}

/// Reads a failed worker's error file and its modification time. An unreadable file counts as missing and is
/// logged.
pub(super) fn load_error_file(path: &Path) -> Option<(ErrorFile, SystemTime)> {
    match read_error_file(path) {
        Ok(read) => Some(read),
        Err(ErrorFileProblem::Io(error)) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!("`{}` is left out: {error}", path.display());
            None
        }
    }
}

/// True if the file is an error file with a text among these, or without any text.
pub(super) fn is_shown(path: &Path, shown: &ShownTexts) -> bool {
    let is_empty = |metadata: &Metadata| metadata.is_file() && metadata.len() == 0;
    fs::symlink_metadata(path).as_ref().is_ok_and(is_empty)
        || read_error_file(path).is_ok_and(|(file, _)| shown.has(&file.report))
}

/// Never blocks: a worker may have put a FIFO or a device there, which is not a report.
fn read_error_file(path: &Path) -> Result<(ErrorFile, SystemTime), ErrorFileProblem> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    regular_file::ensure_regular(&metadata)?;
    let mut bytes = Vec::new();
    let limit = u64::try_from(report::MAX_REPORT_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    if metadata.len() < limit {
        file.take(limit).read_to_end(&mut bytes)?;
    } else {
        bytes = read_truncated(file)?;
    }
    Ok((ErrorFile::parse(&bytes)?, metadata.modified()?))
}

/// Reads the JSON of a long file in bounded memory.
fn read_truncated(mut file: impl Read) -> Result<Vec<u8>, ErrorFileProblem> {
    let (mut cutter, mut buffer) = (JsonCutter::default(), vec![0; 64 * 1024]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(cutter.finish()?),
            Ok(count) => cutter.feed(&buffer[..count])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
#[path = "failure_context_tests.rs"]
mod tests;
