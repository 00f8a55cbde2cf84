//! The launcher's own error, as the state keeps it. Pure.

use rankrun_contract::report::ErrorReport;

/// Why this node cannot go on, where no worker is to blame. The user has seen the error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LauncherError {
    /// The error with its causes, for the other nodes.
    pub why: String,
    /// The same, for the process that started the launcher.
    pub report: ErrorReport,
}
