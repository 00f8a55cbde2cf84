//! The launcher's own error, as the state keeps it. Pure.

use std::time::SystemTime;

use rankrun_contract::report::ErrorReport;

use crate::error::LaunchError;
use crate::error_chain::format_chain;
use crate::reporter::parent_file;

/// Why this node cannot go on, where no worker is to blame. The user has seen the error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LauncherError {
    /// The error with its causes, for the other nodes.
    pub why: String,
    /// The same, for the process that started the launcher.
    pub report: ErrorReport,
}

impl LauncherError {
    /// Of an error at this time.
    #[must_use]
    pub fn new(error: &LaunchError, at: SystemTime) -> Self {
        Self { why: format_chain(error), report: parent_file::of_error("LaunchError", error, at) }
    }
}
