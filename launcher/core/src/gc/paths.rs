//! Leftover files and folders, and the text about them. Pure.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::{GcMode, as_seconds, format_age};
use crate::plain::plain;

/// The origin of a leftover path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PathKind {
    /// A job without an agent: its folder of error files.
    ErrorFiles,
    /// A job without an agent: the folder of its control socket.
    ControlSocket,
    /// A `rankrun shim` that was interrupted: a new file that did not come to its place, or an old one.
    Shim,
}

/// The result for one leftover path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PathOutcome {
    /// The path was only listed (`--dry-run`).
    Listed,
    /// The file or folder was removed.
    Removed,
    /// It was the only copy of its original file, and was moved back to its place.
    PutBack,
    /// The kernel refused, in its words.
    Failed(String),
}

/// A file or folder that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftPath {
    /// The path of the file or folder.
    #[serde(serialize_with = "as_shown")]
    pub path: PathBuf,
    /// The kind of job or command that left it.
    pub kind: PathKind,
    /// The time since its last modification.
    #[serde(rename = "age_seconds", serialize_with = "as_seconds")]
    pub age: Duration,
    /// The result for this leftover path.
    pub fate: PathOutcome,
}

fn as_shown<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// The table and its summary; empty without paths.
pub(super) fn describe_paths(paths: &[LeftPath], mode: GcMode) -> String {
    if paths.is_empty() {
        return String::new();
    }
    let mut text = format!("{:>8}  {:24}  PATH\n", "AGE", "LEFT BY");
    for LeftPath { path, kind, age, .. } in paths {
        let kind = match kind {
            PathKind::ErrorFiles | PathKind::ControlSocket => "a dead job",
            PathKind::Shim => "an interrupted shim",
        };
        let path = plain(&path.display().to_string());
        text.push_str(&format!("{:>8}  {kind:24}  {path}\n", format_age(*age)));
    }
    let count = |fate: &PathOutcome| paths.iter().filter(|path| path.fate == *fate).count();
    text.push_str(&match (mode, count(&PathOutcome::PutBack)) {
        (GcMode::List, _) => format!("{} left; `rankrun gc` clears them away\n", count_paths(paths.len())),
        (_, 0) => format!("{} removed\n", count_paths(count(&PathOutcome::Removed))),
        (_, back) => format!(
            "{} removed, {back} put back\n`rankrun shim on` or `rankrun shim off` does what was interrupted\n",
            count_paths(count(&PathOutcome::Removed))
        ),
    });
    for LeftPath { path, fate, .. } in paths {
        if let PathOutcome::Failed(why) = fate {
            text.push_str(&format!(
                "cannot remove `{}`: {}\n",
                plain(&path.display().to_string()),
                plain(why)
            ));
        }
    }
    text
}

fn count_paths(count: usize) -> String {
    format!("{count} path{}", if count == 1 { "" } else { "s" })
}
