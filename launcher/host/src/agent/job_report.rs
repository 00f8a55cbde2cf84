//! Writes the report of the job (`--report`), on a thread of its own: its file system may not answer.
#![expect(clippy::disallowed_methods, reason = "the report of an end has its time")]

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rankrun_contract::rank::{JobId, RestartCount};

use crate::agent::final_report::remote_cause;
use crate::agent::parent_error_file::no_thread;
use crate::agent::watched_call::WatchedCall;
use crate::agent::{Agent, AgentSetup};
use crate::blocking::{BlockingCall, CallProgress, CallStep};
use crate::error::LaunchError;
use crate::report_file::{self, ReportFileError};
use crate::reporter::job_report::{
    FailureRecord, JobEnd, LauncherFailure, launcher_failure, local_failure, remote_failure, render,
};
use crate::reporter::user_log::UserLog;
use crate::system::short_hostname;
use rankrun_core::agent::message::JobOutcome;
use rankrun_core::agent::phase::FLUSH_TIMEOUT;
use rankrun_core::error_chain::format_chain;
use rankrun_core::exit_code::{ExitStatus, LAUNCHER_FAILED};
use rankrun_core::posix::Pid;
use rankrun_core::rendezvous::RendezvousEnd;

/// The report, while it is written.
pub(super) type JobReportCall = WatchedCall<Result<(), ReportFileError>>;

/// The name of the event for a report that is not written.
const NOT_WRITTEN: &str = "report_not_written";

impl Agent<'_> {
    /// Starts to write the report, if there is one.
    pub(super) fn start_job_report(&mut self) {
        let Some(path) = self.final_report.report_file().map(Path::to_owned) else { return };
        let Some(text) = self.job_report_text() else { return };
        match BlockingCall::start("job-report", write_report(&path, text)).map(WatchedCall::new) {
            Ok(call) => self.job_report = Some(call),
            Err(error) => self.announce(NOT_WRITTEN, &no_thread(&path, &error)),
        }
    }

    /// Takes the answer of the call, if there is one. A report that is not written does not change the exit status.
    pub(super) fn advance_job_report(&mut self) {
        let Some(call) = &mut self.job_report else { return };
        match call.progress() {
            CallProgress::Running => {
                let wait = call.report_long_wait();
                wait.iter().for_each(|text| self.announce_call(text));
                return;
            }
            CallProgress::Returned(Err(error)) => self.announce(NOT_WRITTEN, &warning(&error)),
            CallProgress::Returned(Ok(())) | CallProgress::Lost => {}
        }
        self.job_report = None;
    }

    fn job_report_text(&mut self) -> Option<String> {
        if let Some(pending) = &mut self.pending_report {
            pending.summary = self.final_report.summarize(&pending.outcome, &self.workers);
        }
        let pending = self.pending_report.as_ref()?;
        let outcome = &pending.outcome;
        let (status, cut_by) = self.state.expected_exit().unwrap_or((outcome.status, None));
        let verdict = outcome.failure.as_ref().and_then(|failure| failure.hang.as_deref());
        let summary = pending.summary.as_ref();
        let own = summary.map(|it| local_failure(&it.report, verdict, it.hint.as_deref()));
        let (failure, consequence) = match (remote_cause(outcome, &self.workers), own) {
            _ if status == ExitStatus::SUCCESS => (None, None),
            (Some(note), own) => (Some(remote_failure(Some(note), None)), own),
            (None, Some(own)) => (Some(own), None),
            (None, None) => (self.failure_without_worker(outcome, pending.time_limit_error.as_ref()), None),
        };
        let remote_rule = match &outcome.remote_end {
            Some(RendezvousEnd::ByRule { rule, .. }) => Some(rule),
            _ => None,
        };
        let ended = SystemTime::now();
        let spec = self.workers.spec();
        let restarts = self.state.summary();
        let end = JobEnd {
            job: self.workers.job(),
            run_id: &spec.rendezvous.run_id().to_string(),
            host: &short_hostname(),
            place: self.workers.round().map(|round| (round.node_rank, round.nodes)),
            launcher: self.final_report.launcher(),
            started: ended.checked_sub(self.began.elapsed()).unwrap_or(ended),
            ended,
            status,
            stopped_by: outcome.stopped_by.or(cut_by).filter(|_| outcome.time_limit.is_none()),
            restarts: (restarts.restarts, restarts.max_restarts),
            rule: outcome.rule.as_ref().or(remote_rule),
        };
        Some(render(&end, failure.as_ref(), consequence.as_ref()))
    }

    /// Why the job has failed, where no worker is known to have failed.
    fn failure_without_worker(
        &self,
        outcome: &JobOutcome,
        time_limit: Option<&LaunchError>,
    ) -> Option<FailureRecord> {
        if let Some(RendezvousEnd::Failed { error, .. }) = &outcome.remote_end {
            let hint = error.hint().map(str::to_owned);
            return Some(launcher_failure(&LauncherFailure::Rendezvous, format_chain(error.error()), hint));
        }
        if let Some(source) = self.state.scan_error() {
            return Some(failed_launcher(&LaunchError::Unswept { source }));
        }
        if let Some(error) = self.state.launcher_error() {
            return Some(launcher_failure(&LauncherFailure::Error, error.why.clone(), None));
        }
        if let (Some(error), Some(limit)) = (time_limit, outcome.time_limit) {
            let hint = error.hint().map(Into::into);
            return Some(launcher_failure(&LauncherFailure::TimeLimit(limit), format_chain(error), hint));
        }
        match &outcome.remote_end {
            Some(ending @ (RendezvousEnd::Closed { .. } | RendezvousEnd::ByRule { .. })) => {
                Some(remote_failure(None, Some(ending)))
            }
            Some(
                RendezvousEnd::NotNeeded | RendezvousEnd::Excluded { .. } | RendezvousEnd::Failed { .. },
            )
            | None => None,
        }
    }
}

/// What a report needs of a launch that fails before the loop of the agent.
pub(super) struct FailedStart {
    path: PathBuf,
    job: JobId,
    run_id: String,
    launcher: Pid,
    max_restarts: RestartCount,
    started: SystemTime,
}

impl FailedStart {
    /// Of a launch with a report.
    pub(super) fn of(setup: &AgentSetup) -> Option<Self> {
        let file = setup.spec.options.report.as_ref()?;
        Some(Self {
            path: file.0.clone(),
            job: setup.job.clone(),
            run_id: setup.spec.rendezvous.run_id().to_string(),
            launcher: setup.launcher_pid,
            max_restarts: setup.spec.max_restarts,
            started: SystemTime::now(),
        })
    }

    /// Writes the report where there is no loop to wait in.
    pub(super) fn write_report(&self, error: &LaunchError, user_log: &UserLog) {
        let end = JobEnd {
            job: &self.job,
            run_id: &self.run_id,
            host: &short_hostname(),
            place: None,
            launcher: self.launcher,
            started: self.started,
            ended: SystemTime::now(),
            status: ExitStatus::Code(LAUNCHER_FAILED),
            stopped_by: None,
            restarts: (RestartCount(0), self.max_restarts),
            rule: None,
        };
        let text = render(&end, Some(&failed_launcher(error)), None);
        match BlockingCall::start("job-report", write_report(&self.path, text)) {
            Ok(call) => {
                if let Some(Err(error)) = call.wait(FLUSH_TIMEOUT) {
                    user_log.print_line(&warning(&error));
                }
            }
            Err(error) => user_log.print_line(&no_thread(&self.path, &error)),
        }
    }
}

fn failed_launcher(error: &LaunchError) -> FailureRecord {
    launcher_failure(&LauncherFailure::Error, format_chain(error), error.hint().map(Into::into))
}

fn write_report(
    path: &Path,
    text: String,
) -> impl FnOnce(&CallStep) -> Result<(), ReportFileError> + Send + 'static {
    let path = path.to_owned();
    move |step| {
        step.set(format!("the file system of the report `{}`", path.display()));
        report_file::write(&path, &text)
    }
}

fn warning(error: &ReportFileError) -> String {
    format!("{}; {}", format_chain(error), error.hint())
}
