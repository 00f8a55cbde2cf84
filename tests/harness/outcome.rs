//! What is left of a job: how it ended, and all that it said.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::machine::opened;
use crate::place::Scratch;
use crate::transcript::{Text, lines_of};

/// The end of a launch.
#[derive(Debug)]
pub struct Outcome {
    /// How the process that the test started ended.
    pub status: ExitStatus,
    /// From the start to that end.
    pub took: Duration,
    text: Text,
    scratch: Option<Scratch>,
}

impl Outcome {
    pub(crate) const fn new(
        status: ExitStatus,
        text: Text,
        took: Duration,
        scratch: Option<Scratch>,
    ) -> Self {
        Self { status, took, text, scratch }
    }

    /// The temporary folder that the launcher saw, with what it left there. It goes with the outcome.
    ///
    /// # Panics
    /// Never: a job that ended hands its folder on.
    #[must_use]
    pub fn temporary(&self) -> PathBuf {
        self.scratch.as_ref().expect("a job that ended hands its folder on").path().join("tmp")
    }

    /// Each opening of a vendor's library, in order: the library's name and the pid.
    ///
    /// # Panics
    /// Never: a job that ended hands its folder on.
    #[must_use]
    pub fn opened(&self) -> Vec<(String, i32)> {
        let scratch = self.scratch.as_ref().expect("a job that ended hands its folder on");
        opened(&scratch.path().join("machine"))
    }

    /// Fails if a process still had the launcher's output open: its reader would wait for more.
    ///
    /// # Panics
    /// See above.
    #[track_caller]
    pub fn expect_closed_output(&self) {
        assert_eq!(self.text.open, 0, "streams are still open\n{self}");
    }

    /// The bytes of standard output.
    #[must_use]
    pub fn stdout_bytes(&self) -> &[u8] {
        &self.text.out
    }

    /// The bytes of standard error.
    #[must_use]
    pub fn stderr_bytes(&self) -> &[u8] {
        &self.text.err
    }

    /// Standard output.
    #[must_use]
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.text.out).into_owned()
    }

    /// Standard error.
    #[must_use]
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.text.err).into_owned()
    }

    /// The lines of standard output.
    #[must_use]
    pub fn stdout_lines(&self) -> Vec<String> {
        lines_of(&self.text.out)
    }

    /// The lines of both streams that contain the text.
    #[must_use]
    pub fn lines_with(&self, text: &str) -> Vec<String> {
        self.text.lines().into_iter().filter(|line| line.contains(text)).collect()
    }

    /// Fails unless the launcher exited with this status.
    ///
    /// # Panics
    /// See above.
    #[track_caller]
    pub fn expect_exit_code(&self, code: i32) -> &Self {
        assert_eq!(self.status.code(), Some(code), "the exit status is {}\n{self}", self.status);
        self
    }

    /// Fails unless the launcher died of this signal.
    ///
    /// # Panics
    /// See above.
    #[track_caller]
    pub fn expect_signal(&self, signal: Signal) -> &Self {
        assert_eq!(self.status.signal(), Some(signal as i32), "the exit status is {}\n{self}", self.status);
        self
    }

    /// Fails unless standard output contains the text.
    ///
    /// # Panics
    /// See above.
    #[track_caller]
    pub fn expect_stdout(&self, text: &str) -> &Self {
        assert!(self.stdout().contains(text), "stdout lacks `{text}`\n{self}");
        self
    }

    /// Fails unless standard error contains the text.
    ///
    /// # Panics
    /// See above.
    #[track_caller]
    pub fn expect_stderr(&self, text: &str) -> &Self {
        assert!(self.stderr().contains(text), "stderr lacks `{text}`\n{self}");
        self
    }

    /// Fails if either stream contains the text.
    ///
    /// # Panics
    /// See above.
    #[track_caller]
    pub fn expect_absent(&self, text: &str) -> &Self {
        assert!(self.lines_with(text).is_empty(), "the output has `{text}`\n{self}");
        self
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "---- {} after {:?}", self.status, self.took)?;
        self.text.fmt(f)
    }
}
