//! Starts a Python and asks it for the folders of its environment.
#![expect(clippy::disallowed_methods, reason = "only that Python knows, and no job runs yet")]

use std::path::Path;
use std::process::{Command, Stdio};

use super::environment::PROBE_SCRIPT;
use super::error::ShimError;
use super::script::Launcher;

/// Its answer, unread.
///
/// # Errors
/// It cannot be started, or it fails.
pub(super) fn run_python_probe(python: &Path) -> Result<Vec<u8>, ShimError> {
    let packages = Launcher::ALL.map(Launcher::package);
    let mut command = Command::new(python);
    let result = command.args(["-c", PROBE_SCRIPT]).args(packages).stdin(Stdio::null()).output();
    let output = result.map_err(|source| ShimError::CannotAsk { python: python.to_owned(), source })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let message = errors
        .lines()
        .rfind(|line| !line.trim().is_empty())
        .map_or_else(|| output.status.to_string(), |line| line.trim().to_owned());
    Err(ShimError::PythonSilent { python: python.to_owned(), answer: message })
}
