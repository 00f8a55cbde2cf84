//! The start of a generation: first its log folders, on a thread of their own, then its workers. Signals are answered
//! meanwhile.
#![expect(clippy::disallowed_methods, reason = "the agent's shell says when the workers start")]

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Instant, SystemTime};

use rankrun_contract::rank::{Generation, RestartCount};

use crate::agent::Agent;
use crate::agent::watched_call::WatchedCall;
use crate::agent::workers::{PendingStart, RoundContext, StartFailed};
use crate::blocking::CallProgress;
use crate::error::LaunchError;
use crate::reporter::parent_file;
use rankrun_core::agent::message::Input;
use rankrun_core::agent::message::launcher_error::LauncherError;
use rankrun_core::error_chain::format_chain;

impl Agent<'_> {
    /// When a call that is under way has something to say. A suspended job starts nothing.
    pub(super) fn call_deadlines(&self) -> impl Iterator<Item = Instant> {
        let starts = !self.state.is_suspended();
        let opening = self.opening.as_ref().filter(|_| starts).and_then(WatchedCall::deadline);
        let join = self.pending_join.as_ref().filter(|_| starts).and_then(|join| join.call.deadline());
        let start = self.pending_start.as_ref().filter(|_| starts).and_then(|start| start.call.deadline());
        let parent_file = self.parent_file.as_ref().and_then(|file| file.call.deadline());
        let job_report = self.job_report.as_ref().and_then(WatchedCall::deadline);
        [opening, join, start, parent_file, job_report].into_iter().flatten()
    }

    /// Readable when such a call has ended.
    pub(super) fn call_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let opening = self.opening.iter().map(AsFd::as_fd);
        let opening = opening.chain(self.pending_join.iter().map(|join| join.call.as_fd()));
        let calls = opening.chain(self.pending_start.iter().map(|start| start.call.as_fd()));
        let parent_file = self.parent_file.iter().map(|file| file.call.as_fd());
        let end_files = parent_file.chain(self.job_report.iter().map(AsFd::as_fd));
        calls.filter(|_| !self.state.is_suspended()).chain(end_files)
    }

    /// Tells the user of a call that takes long. The job can be asked and stopped over its socket from then on.
    pub(super) fn report_long_calls(&mut self) {
        let waits = [
            self.opening.as_mut().and_then(WatchedCall::report_long_wait),
            self.pending_join.as_mut().and_then(|join| join.call.report_long_wait()),
            self.pending_start.as_mut().and_then(|start| start.call.report_long_wait()),
        ];
        for wait in waits.iter().flatten() {
            self.announce_call(wait);
            self.open_control_socket();
        }
    }

    /// [`Input::Ready`] once the stores and the log folder are open.
    pub(super) fn advance_opening(&mut self) -> Option<Input> {
        let opened = match self.opening.as_ref()?.progress() {
            CallProgress::Running => return None,
            CallProgress::Returned(opened) => opened,
            CallProgress::Lost => Err(lost_thread("open the stores and the log folder")),
        };
        self.opening = None;
        match opened {
            Ok(resources) => {
                let rendezvous = self.workers.install(resources);
                self.rendezvous.install(rendezvous);
                Some(Input::Ready)
            }
            Err(error) => {
                if matches!(error, LaunchError::Report(_)) {
                    self.final_report.forget_report_file();
                }
                Some(Input::OpeningFailed(self.report_launcher_error(&error)))
            }
        }
    }

    pub(super) fn prepare_start(
        &mut self,
        generation: Generation,
        restart_count: RestartCount,
        joined: RoundContext,
    ) -> Option<Input> {
        match self.workers.prepare_start(generation, restart_count, joined) {
            Ok(pending) => {
                self.pending_start = Some(pending);
                None
            }
            Err(failed) => Some(self.start_failed(generation, failed)),
        }
    }

    /// Starts the workers once their log folders are made. The state gets this input before any later one.
    pub(super) fn advance_start(&mut self) {
        let Some(pending) = &self.pending_start else { return };
        let folders = match pending.call.progress() {
            CallProgress::Running => return,
            CallProgress::Returned(folders) => folders.map_err(LaunchError::from),
            CallProgress::Lost => Err(lost_thread("make the log folders")),
        };
        let Some(PendingStart { context, .. }) = self.pending_start.take() else { return };
        let generation = context.generation;
        if let Err(failed) = self.workers.start(&context, folders, SystemTime::now()) {
            self.answers.push_back(self.start_failed(generation, failed));
            return;
        }
        self.start_progress_watch();
        self.answers.push_back(Input::Started { generation });
        self.publish_start();
        self.open_control_socket();
        if let Some(external) = self.workers.external_worker() {
            // At any log level: the job cannot go on without the user.
            self.user_log.print(&external.hint());
        }
        self.start_readings();
    }

    /// The workers are stopped before they were started.
    pub(super) fn cancel_start(&mut self, generation: Generation) -> Option<Input> {
        let pending = self.pending_start.take_if(|pending| pending.context.generation == generation)?;
        self.abandon_call(pending.call);
        Some(Input::StartCancelled { generation })
    }

    fn start_failed(&self, generation: Generation, failed: StartFailed) -> Input {
        let StartFailed { failed_rank, error } = failed;
        Input::StartFailed { generation, failed: failed_rank, error: self.report_launcher_error(&error) }
    }

    /// Shows an error of the launcher to the user; the result is for the state.
    pub(super) fn report_launcher_error(&self, error: &LaunchError) -> Box<LauncherError> {
        self.announce_error(error, error.hint().as_deref());
        Box::new(launcher_error(error, SystemTime::now()))
    }
}

/// An error of the launcher at this time, as the state keeps it.
pub(super) fn launcher_error(error: &LaunchError, at: SystemTime) -> LauncherError {
    LauncherError { why: format_chain(error), report: parent_file::of_error("LaunchError", error, at) }
}

fn lost_thread(what: &'static str) -> LaunchError {
    LaunchError::Setup { what, source: std::io::Error::other("its thread has panicked") }
}
