//! Finds and removes files and folders that dead jobs and an interrupted `rankrun shim` have left.
#![expect(clippy::disallowed_methods, reason = "the age of a file is read from the clock")]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::shim;
use rankrun_core::facts::Facts;
use rankrun_core::gc::GcMode;
use rankrun_core::gc::paths::{LeftPath, PathKind, PathOutcome};
use rankrun_host::control::folder::{FoundFolders, JobFolder, RuntimeFolders, SearchError};
use rankrun_host::logs::error_folder;

/// Removes the found paths unless the request is only to list. Where the runtime folders cannot be searched, it does the
/// rest and returns the reason too.
#[must_use]
pub fn collect_left_paths(
    mode: GcMode,
    argv0: &OsStr,
    facts: &Facts,
) -> (Vec<LeftPath>, Option<SearchError>) {
    let mut paths = collect_error_folders(mode, &error_folder::parents_of_error_files(facts));
    let found = RuntimeFolders::of_environment(facts.environment()).find_job_folders();
    let (found, unsearched) = found.map_or_else(|error| (None, Some(error)), |found| (Some(found), None));
    paths.extend(found.into_iter().flat_map(|found| collect_control_folders(mode, found)));
    paths.extend(collect_shim_files(mode, argv0, facts));
    (paths, unsearched)
}

fn collect_error_folders(mode: GcMode, parents: &BTreeSet<PathBuf>) -> Vec<LeftPath> {
    let dead = parents.iter().flat_map(|parent| error_folder::find_dead(parent));
    let to_left_path = |folder: error_folder::DeadFolder| {
        let (path, age) = (folder.path.clone(), age_of(folder.modified));
        let fate = match mode {
            GcMode::List => PathOutcome::Listed,
            GcMode::End | GcMode::EndAll => outcome_of(folder.remove().map(|()| PathOutcome::Removed))?,
        };
        Some(LeftPath { path, kind: PathKind::ErrorFiles, age, fate })
    };
    dead.filter_map(to_left_path).collect()
}

fn collect_control_folders(mode: GcMode, found: FoundFolders) -> Vec<LeftPath> {
    let to_left_path = |folder: JobFolder| {
        let age = folder.modified().map(age_of).unwrap_or_default();
        let fate = match mode {
            GcMode::List => PathOutcome::Listed,
            GcMode::End | GcMode::EndAll => outcome_of(folder.remove().map(|()| PathOutcome::Removed))?,
        };
        Some(LeftPath { path: folder.path, kind: PathKind::ControlSocket, age, fate })
    };
    found.into_dead(SystemTime::now()).into_iter().filter_map(to_left_path).collect()
}

fn collect_shim_files(mode: GcMode, argv0: &OsStr, facts: &Facts) -> Vec<LeftPath> {
    let interrupted = shim::find_interrupted(argv0, facts);
    let to_left_path = |file: &shim::InterruptedFile| {
        let fate = match mode {
            GcMode::List => PathOutcome::Listed,
            GcMode::End | GcMode::EndAll => outcome_of(file.clean_up().map(|done| match done {
                shim::CleanupResult::Removed => PathOutcome::Removed,
                shim::CleanupResult::PutBack => PathOutcome::PutBack,
            }))?,
        };
        Some(LeftPath { path: file.path.clone(), kind: PathKind::Shim, age: age_of(file.modified), fate })
    };
    interrupted.files.iter().filter_map(to_left_path).collect()
}

/// `None` if another process removed the path first: a job that ends while it is looked at removes its own folders.
fn outcome_of(done: io::Result<PathOutcome>) -> Option<PathOutcome> {
    match done {
        Ok(outcome) => Some(outcome),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(PathOutcome::Failed(error.to_string())),
    }
}

/// A clock that was set back makes no age.
fn age_of(modified: SystemTime) -> Duration {
    SystemTime::now().duration_since(modified).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_that_another_process_removed_is_not_reported() {
        assert_eq!(outcome_of(Err(io::Error::from(io::ErrorKind::NotFound))), None);
        let refused = outcome_of(Err(io::Error::from(io::ErrorKind::PermissionDenied)));
        assert_eq!(refused, Some(PathOutcome::Failed("permission denied".to_owned())));
        assert_eq!(outcome_of(Ok(PathOutcome::Removed)), Some(PathOutcome::Removed));
    }
}
