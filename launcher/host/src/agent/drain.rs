//! Drains the workers' output and prints the final report, when the state says so (`state::shutdown`).
#![expect(clippy::disallowed_methods, reason = "a report has its time")]

use std::os::fd::AsFd;
use std::time::{Duration, SystemTime};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use rankrun_contract::report::ErrorReport;

use crate::agent::final_report::FailureSummary;
use crate::agent::{Agent, error_report, final_report};
use crate::error::LaunchError;
use crate::logs::Drained;
use crate::reporter::parent_file;
use rankrun_core::agent::message::{Input, JobOutcome};
use rankrun_core::agent::phase::FLUSH_TIMEOUT;
use rankrun_core::rendezvous::RendezvousEnd;
use rankrun_core::spec::CliFlavor;

/// The outcome of the job, until it is reported.
pub(super) struct PendingReport {
    pub(super) outcome: JobOutcome,
    pub(super) time_limit_error: Option<LaunchError>,
    /// The launcher's own error, for the process that started it.
    pub(super) own_error: Option<ErrorReport>,
    /// What is known of its failure, once it was needed.
    pub(super) summary: Option<FailureSummary>,
}

impl Agent<'_> {
    /// Tells the other nodes, and keeps what the report needs.
    pub(super) fn announce_outcome(&mut self, outcome: JobOutcome) -> Option<Input> {
        // Kills the probes that have not answered.
        self.device_check = None;
        self.read_failed_device(&outcome);
        if let Some(opening) = self.opening.take() {
            self.abandon_call(opening);
        }
        if let Some(pending) = self.pending_join.take() {
            self.abandon_call(pending.call);
        }
        if let Some(pending) = self.pending_start.take() {
            self.abandon_call(pending.call);
        }
        self.report_end_of_wait(&outcome);
        self.departure = self.leave(&outcome);
        let is_warned = self.workers.spec().time_limit.is_some_and(|limit| limit.warning.is_some());
        let time_limit_error = outcome.time_limit.map(|limit| LaunchError::TimeLimit { limit, is_warned });
        self.pending_report =
            Some(PendingReport { outcome, time_limit_error, own_error: None, summary: None });
        self.departure.as_ref().map(|departure| Input::PeersNotified { until: departure.until })
    }

    /// A signal before the first start has ended the wait for other nodes. torchrun says nothing.
    fn report_end_of_wait(&self, outcome: &JobOutcome) {
        if let (Some(signal), Some(awaited)) = (outcome.stopped_by, self.rendezvous.awaited())
            && self.workers.spec().cli_flavor == CliFlavor::Rankrun
            && !self.workers.has_started()
        {
            self.announce("gave_up_waiting", &format!("{signal}: gave up waiting for {awaited}"));
        }
    }

    /// Starts to write out what the workers wrote.
    pub(super) fn drain_output(&mut self) -> Option<Input> {
        let scan_error = self.report_scan_error();
        let launcher_error = self.state.launcher_error().map(|error| error.report.clone());
        let Some(report) = &mut self.pending_report else { return Some(Input::OutputDrained) };
        let end = &report.outcome;
        let elsewhere = final_report::remote_error_report(end);
        let launcher = self.final_report.launcher();
        report.own_error = scan_error
            .or(launcher_error)
            .or(elsewhere)
            .or_else(|| report.time_limit_error.as_ref().map(error_report))
            .or_else(|| {
                end.stopped_by.map(|signal| parent_file::of_signal(signal, launcher, SystemTime::now()))
            });
        let own_error = &report.own_error;
        let raw_error = own_error.as_ref().map(|report| report.callstack.clone().unwrap_or_default());
        self.workers.emit_end_events(end, raw_error);
        match self.workers.drain() {
            Ok(drained) => self.drained = Some(drained),
            Err(error) => {
                self.announce_error(&error, Some(error.hint()));
                return Some(Input::OutputDrained);
            }
        }
        self.take_drained()
    }

    /// The answer to [`Action::DrainOutput`](rankrun_core::agent::message::Action::DrainOutput), once there is one. The
    /// counters of the failed device belong to the report too.
    pub(super) fn take_drained(&mut self) -> Option<Input> {
        if self.device_readings.is_report_waiting() {
            return None;
        }
        self.drained.take_if(|drained| Drained::is_complete(drained)).map(|_| Input::OutputDrained)
    }

    /// Prints the final report, and writes out our own output.
    pub(super) fn report_outcome(&mut self) {
        self.drained = None;
        if let Some(file) = self.parent_file.take() {
            self.abandon_call(file.call);
        }
        if let Some(file) = self.job_report.take() {
            self.abandon_call(file);
        }
        let Some(PendingReport { outcome, time_limit_error, summary, .. }) = self.pending_report.take()
        else {
            return;
        };
        let shown = self.final_report.report((&outcome, summary), &self.workers, self.user_log);
        if let Some(RendezvousEnd::Failed { error, .. }) = &outcome.remote_end {
            self.announce_error(error.error(), error.hint());
        }
        if let Some(error) = time_limit_error {
            self.announce_error(&error, error.hint().as_deref());
        }
        let reported = self.workers.reported_error_files(&shown, self.user_log);
        // Without a guard, no process reads our output, and no process of the job may remain a second later.
        let timeout = if self.is_guard_gone() { Duration::ZERO } else { FLUSH_TIMEOUT };
        if self.user_log.console().flush(timeout) {
            self.workers.remove_reported(reported);
        }
    }

    fn is_guard_gone(&self) -> bool {
        let mut link = [PollFd::new(self.link.as_fd(), PollFlags::empty())];
        let _ = poll(&mut link, PollTimeout::ZERO);
        link[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
    }
}
