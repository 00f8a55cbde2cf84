//! Writes the error file that the parent process asked for, on a thread of its own: its file system may not answer.

use std::path::{Path, PathBuf};

use rankrun_contract::report::ErrorReport;

use crate::agent::Agent;
use crate::agent::watched_call::WatchedCall;
use crate::blocking::{BlockingCall, CallProgress, CallStep};
use crate::reporter::parent_file::{self, ParentFileError};
use crate::reporter::user_log::UserLog;
use rankrun_core::agent::phase::FLUSH_TIMEOUT;

/// The error file of the parent process, and what will be in it.
#[derive(Debug)]
pub(super) struct ParentErrorFile {
    pub(super) path: PathBuf,
    pub(super) text: String,
    /// The user sees the text that the file had before.
    pub(super) shows_replaced_text: bool,
}

/// The file, while it is written.
pub(super) struct ParentFileCall {
    pub(super) call: WatchedCall<ReplacedText>,
    path: PathBuf,
    shows_replaced_text: bool,
}

/// The name of the event for a file that is not written.
const NOT_WRITTEN: &str = "parent_error_file_not_written";

/// The start of the text that the file had before.
type ReplacedText = Result<Option<String>, ParentFileError>;

impl Agent<'_> {
    /// Starts to write the file, if there is one.
    pub(super) fn start_parent_file(&mut self) {
        let Some(report) = &self.pending_report else { return };
        let (outcome, own_error) = (&report.outcome, report.own_error.as_ref());
        let file = self.final_report.parent_file(outcome, own_error, &self.workers, self.user_log);
        let Some(ParentErrorFile { path, text, shows_replaced_text }) = file else { return };
        match BlockingCall::start("parent-file", replace_file(&path, text)).map(WatchedCall::new) {
            Ok(call) => self.parent_file = Some(ParentFileCall { call, path, shows_replaced_text }),
            Err(error) => self.announce(NOT_WRITTEN, &no_thread(&path, &error)),
        }
    }

    /// Takes the answer of the call, if there is one.
    pub(super) fn advance_parent_file(&mut self) {
        let Some(file) = &mut self.parent_file else { return };
        match file.call.progress() {
            CallProgress::Running => {
                let wait = file.call.report_long_wait();
                wait.iter().for_each(|text| self.announce_call(text));
                return;
            }
            CallProgress::Returned(Ok(Some(replaced))) if file.shows_replaced_text => {
                self.user_log.replaced(&file.path.display().to_string(), replaced.trim_end());
            }
            CallProgress::Returned(Err(error)) => self.announce(NOT_WRITTEN, &error.to_string()),
            CallProgress::Returned(Ok(_)) | CallProgress::Lost => {}
        }
        self.parent_file = None;
    }
}

/// Writes the launcher's own error into the file, where there is no loop to wait in.
pub(super) fn write_error_report(path: &Path, error: &ErrorReport, user_log: &UserLog) {
    let text = rankrun_contract::report::render(error);
    match BlockingCall::start("parent-file", replace_file(path, text)) {
        Ok(call) => {
            if let Some(Err(error)) = call.wait(FLUSH_TIMEOUT) {
                user_log.print_line(&error.to_string());
            }
        }
        Err(error) => user_log.print_line(&no_thread(path, &error)),
    }
}

fn replace_file(path: &Path, text: String) -> impl FnOnce(&CallStep) -> ReplacedText + Send + 'static {
    let path = path.to_owned();
    move |step| {
        step.set(format!("the file system of the error file `{}`", path.display()));
        parent_file::replace(&path, &text)
    }
}

pub(super) fn no_thread(path: &Path, error: &std::io::Error) -> String {
    format!("cannot write `{}`: no thread can be started: {error}", path.display())
}
