//! The commands of accelerate beside `launch` (`config`, `env`, …): its own program runs them.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::cli::error::CliError;
use crate::cli::other_launcher::OtherProgram;
use crate::cli::python::choose_python;
use rankrun_core::facts::Facts;

/// This process's own file.
const OWN_FILE: &str = "/proc/self/exe";
const MODULE: &str = "accelerate.commands.accelerate_cli";

/// accelerate's program with these words: the next `accelerate` of `PATH` behind this one, else that of the active Python.
///
/// # Errors
/// There is no Python either.
pub(super) fn find(words: &[OsString], facts: &Facts) -> Result<OtherProgram, CliError> {
    if let Some(path) = next_in_path(facts) {
        let argv = [OsString::from("accelerate")].into_iter().chain(words.iter().cloned()).collect();
        return Ok(OtherProgram { path, argv });
    }
    let (python, _) = choose_python(OsStr::new("rankrun"), facts).map_err(|_| {
        let command = words.first().map_or_else(String::new, |word| format!(" {}", word.to_string_lossy()));
        CliError::refused(
            format!("`accelerate{command}` is a command of accelerate's own program, and PATH has neither it nor a Python"),
            "activate the environment that has accelerate, or `pip install accelerate`",
        )
    })?;
    let module = [python.clone().into_os_string(), "-m".into(), MODULE.into()];
    Ok(OtherProgram { path: python, argv: module.into_iter().chain(words.iter().cloned()).collect() })
}

/// This binary may be called `accelerate` itself: then a later folder counts, so that no two of them call each other.
fn next_in_path(facts: &Facts) -> Option<PathBuf> {
    let own = facts.world().resolve_links(Path::new(OWN_FILE));
    let found: Vec<PathBuf> = facts
        .search_path()
        .into_iter()
        .map(|folder| folder.join("accelerate"))
        .filter(|path| facts.is_executable(path))
        .collect();
    let is_own = |path: &PathBuf| facts.world().resolve_links(path) == own;
    let start = found.iter().rposition(is_own).map_or(0, |at| at + 1);
    found.into_iter().nth(start)
}
