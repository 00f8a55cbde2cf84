//! The files that the launcher writes at the end of the job: the error file of its parent process and the report of the job.
//! Their file systems may not answer, so the state gives the wait its time.
#![expect(clippy::disallowed_methods, reason = "a wait has its time")]

use std::time::Instant;

use crate::agent::Agent;
use crate::agent::inputs::wait_for_inputs;
use rankrun_core::agent::message::Input;
use rankrun_core::agent::phase::USUAL_WAIT;

impl Agent<'_> {
    /// Starts to write the files; [`Input::ParentFileWritten`] if there is none.
    pub(super) fn write_end_files(&mut self) -> Option<Input> {
        self.start_parent_file();
        self.start_job_report();
        self.end_files_written()
    }

    /// [`Input::ParentFileWritten`] once the last file is written.
    pub(super) fn advance_end_files(&mut self) -> Option<Input> {
        if self.end_files_written().is_some() {
            return None;
        }
        self.advance_parent_file();
        self.advance_job_report();
        self.end_files_written()
    }

    /// Writes the files where the loop has ended. A file system that does not answer at once is left behind.
    pub(super) fn write_end_files_now(&mut self) {
        let until = Instant::now() + USUAL_WAIT;
        let mut written = self.write_end_files();
        while written.is_none() && Instant::now() < until {
            let _ = wait_for_inputs(&self.call_fds().collect::<Vec<_>>(), Some(until));
            written = self.advance_end_files();
        }
    }

    fn end_files_written(&self) -> Option<Input> {
        (self.parent_file.is_none() && self.job_report.is_none()).then_some(Input::ParentFileWritten)
    }
}
