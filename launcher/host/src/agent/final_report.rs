//! The final report: text for the user on the console, and the error file for the process that started the
//! launcher. It reads the job's outcome and the worker group; it changes neither.
#![expect(clippy::disallowed_methods, reason = "the report of an end has its time")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rankrun_contract::report::{self, ErrorReport, MessageForm};

use crate::agent::parent_error_file::ParentErrorFile;
use crate::agent::workers::WorkerGroup;
use crate::reporter::summary::FailureReport;
use crate::reporter::summary::peers::{self, ShownTexts};
use crate::reporter::user_log::UserLog;
use crate::reporter::{nodes, parent_file, program, summary, torch_log, torch_report};
use rankrun_core::agent::failure::Failure;
use rankrun_core::agent::message::JobOutcome;
use rankrun_core::exit_code::ExitStatus;
use rankrun_core::posix::{Exit, Pid};
use rankrun_core::rendezvous::{FailureNote, RendezvousEnd};
use rankrun_core::spec::options::LogFrom;
use rankrun_core::spec::{CliFlavor, LaunchSpec};

/// Settings of the final report that the job itself does not need.
#[derive(Debug)]
pub(super) struct FinalReport {
    cli_flavor: CliFlavor,
    title: String,
    parent_file: Option<PathBuf>,
    report_file: Option<PathBuf>,
    launcher: Pid,
    log_from: Option<LogFrom>,
}

/// The failure of a worker of this node, as console and report file show it.
pub(super) struct FailureSummary {
    pub(super) report: FailureReport,
    /// The texts of error files that the console shows.
    shown: ShownTexts,
    pub(super) hint: Option<String>,
}

impl FinalReport {
    /// For one launch; `foreign_python` is a `PYTHON_EXEC` other than the Python beside the launcher.
    pub(super) fn new(spec: &LaunchSpec, foreign_python: Option<OsString>, launcher: Pid) -> Self {
        Self {
            cli_flavor: spec.cli_flavor,
            title: program::title(spec, foreign_python.as_deref()),
            parent_file: spec.parent_error_file.clone(),
            report_file: spec.options.report.as_ref().map(|file| file.0.clone()),
            launcher,
            log_from: spec.options.log_from,
        }
    }

    /// The file of `--report`.
    pub(super) fn report_file(&self) -> Option<&Path> {
        self.report_file.as_deref()
    }

    /// The start has refused the file, and the user knows it.
    pub(super) fn forget_report_file(&mut self) {
        self.report_file = None;
    }

    /// Collects what is known of the failure; call after the drain.
    pub(super) fn summarize(&self, outcome: &JobOutcome, workers: &WorkerGroup) -> Option<FailureSummary> {
        let failure = outcome.failure.as_ref()?;
        let (mut report, shown) = workers.failure_context(failure).failure_report(failure);
        if self.cli_flavor == CliFlavor::Rankrun {
            report.cause_hint = workers.cause_hint(&report);
        }
        let hint = summary::hint(&report);
        Some(FailureSummary { report, shown, hint })
    }

    pub(super) const fn launcher(&self) -> Pid {
        self.launcher
    }

    /// Prints the cause of the failure for the user. Where torchrun prints a stack trace of its own source,
    /// rankrun prints its failure report. Returns the texts of error files that were shown.
    pub(super) fn report(
        &self,
        (outcome, summary): (&JobOutcome, Option<FailureSummary>),
        workers: &WorkerGroup,
        user_log: &UserLog,
    ) -> ShownTexts {
        let mut shown = ShownTexts::default();
        if self.log_from == Some(LogFrom::FirstFailure)
            && let Some(note @ FailureNote::Worker(failed)) = remote_cause(outcome, workers)
        {
            user_log.failure(&nodes::first_failure(failed), Some(&nodes::hint(note)));
            return shown;
        }
        let summary = summary.or_else(|| self.summarize(outcome, workers));
        match (&outcome.failure, outcome.stopped_by, self.cli_flavor) {
            (Some(failure), ..) => {
                shown = summary.map_or(shown, |it| self.report_failure((failure, it), workers, user_log));
            }
            (None, Some(signal), CliFlavor::Torchrun) if matches!(outcome.status, ExitStatus::Code(_)) => {
                user_log.print(&torch_report::of_signal(signal, self.launcher));
            }
            (None, ..) => {}
        }
        report_remote_failure(outcome, workers, user_log);
        if outcome.failure.is_none() {
            let reports = workers.peer_reports(&mut shown);
            if !reports.is_empty() {
                user_log.print_line(&peers::render(&reports));
            }
        }
        shown
    }

    fn report_failure(
        &self,
        (failure, summary): (&Failure, FailureSummary),
        workers: &WorkerGroup,
        user_log: &UserLog,
    ) -> ShownTexts {
        let FailureSummary { mut report, shown, hint } = summary;
        if self.cli_flavor == CliFlavor::Torchrun {
            // Printed once: torchrun's report shows it.
            report.report = None;
        }
        user_log.failure(&summary::render(&report), hint.as_deref());
        if self.cli_flavor == CliFlavor::Torchrun {
            let report = workers.failure_context(failure).torch_report(failure, self.title.clone());
            user_log.torch_report(&torch_report::render(&report));
        }
        shown
    }

    /// The error file that the parent process asked for. If it cannot be written, the job's result stays the
    /// same.
    pub(super) fn parent_file(
        &self,
        outcome: &JobOutcome,
        died_of: Option<&ErrorReport>,
        workers: &WorkerGroup,
        user_log: &UserLog,
    ) -> Option<ParentErrorFile> {
        let cause = outcome.failure.as_ref().map(|failure| failure.first);
        let error_file = cause.and_then(|cause| Some((workers.error_file(cause.local_rank)?, cause.exit)));
        if let Some(((file, path), _)) = &error_file
            && file.form == MessageForm::Text
        {
            user_log.log(&[torch_log::no_place_for_code(&path.display().to_string())]);
        }
        match (&self.parent_file, error_file, died_of) {
            (Some(path), Some(((file, _), exit)), _) => {
                let code = match exit {
                    Exit::Code(code) => code,
                    Exit::Signal { number, .. } => -number,
                };
                let (path, text) = (path.clone(), file.with_exit_code(code));
                Some(ParentErrorFile { path, text, shows_replaced_text: true })
            }
            (Some(path), None, Some(died_of)) => {
                let (path, text) = (path.clone(), report::render(died_of));
                Some(ParentErrorFile { path, text, shows_replaced_text: false })
            }
            (None, Some(((_, path), _)), _) => {
                user_log.log(&[torch_log::no_parent_file(&path.display().to_string())]);
                None
            }
            (Some(_), None, None) | (None, None, _) => None,
        }
    }
}

/// The first cause, where it is on another node. Every node of the job shows the same one.
pub(super) fn remote_cause<'a>(outcome: &'a JobOutcome, workers: &WorkerGroup) -> Option<&'a FailureNote> {
    let first = outcome.failure.as_ref().map(|failure| failure.first);
    let is_own = |note: &FailureNote| match note {
        FailureNote::Worker(failed) => {
            first.is_some_and(|first| first.pid.as_raw() == failed.pid)
                && workers.is_on_this_node(&failed.node)
        }
        FailureNote::NodeLost { .. } | FailureNote::NodeLeft { .. } | FailureNote::LauncherFailed { .. } => {
            false
        }
    };
    // Where all nodes were stopped alike, each has its own reason.
    let is_stopped = outcome.stop_reason().is_some();
    let is_hidden = |note: &FailureNote| is_own(note) || (is_stopped && note.why_node_ended_job().is_some());
    outcome.first_cause.as_deref().filter(|note| !is_hidden(note))
}

/// Prints how the job ended on other nodes.
fn report_remote_failure(outcome: &JobOutcome, workers: &WorkerGroup, user_log: &UserLog) {
    if let Some(ending @ RendezvousEnd::ByRule { .. }) = &outcome.remote_end {
        user_log.print_line(&nodes::remote_end_text(ending));
    }
    if let Some(note) = remote_cause(outcome, workers) {
        user_log.failure(&nodes::first_cause(note), Some(&nodes::hint(note)));
    }
    match (&outcome.first_cause, &outcome.remote_end) {
        (Some(_), _) => {}
        (None, Some(ending @ (RendezvousEnd::NotNeeded | RendezvousEnd::Excluded { .. }))) => {
            user_log.print_line(&nodes::remote_end_text(ending))
        }
        (None, Some(ending @ RendezvousEnd::Closed { .. })) => {
            user_log.failure(&nodes::remote_end_text(ending), Some("its launcher says why"));
        }
        (None, Some(RendezvousEnd::ByRule { .. } | RendezvousEnd::Failed { .. }) | None) => {}
    }
}

/// The error of this node, where the job ended elsewhere.
pub(super) fn remote_error_report(outcome: &JobOutcome) -> Option<ErrorReport> {
    // A failure of this node's own workers is reported by the workers.
    let ending = outcome.remote_end.as_ref().filter(|_| outcome.failure.is_none())?;
    let now = SystemTime::now();
    match (&outcome.first_cause, ending) {
        (_, RendezvousEnd::Failed { error, .. }) => {
            Some(parent_file::of_error("RendezvousError", error.error(), now))
        }
        (Some(note), _) => Some(parent_file::of_text(nodes::first_cause(note).trim_end(), now)),
        (None, RendezvousEnd::NotNeeded) => None,
        (None, RendezvousEnd::ByRule { rule, .. }) if rule.is_success() => None,
        (None, ending) => Some(parent_file::of_text(&nodes::remote_end_text(ending), now)),
    }
}
