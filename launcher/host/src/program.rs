//! How a program is found, and the reason that one cannot be run.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::process::exec_problem::is_on_noexec_mount;
use rankrun_core::facts::{Facts, FileKind};

/// The reason that a program cannot be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramProblem {
    /// The file does not exist.
    Missing {
        /// The working folder, which a relative path starts from; empty if that was removed.
        folder: PathBuf,
    },
    /// `PATH` has no program of this name.
    NotInPath {
        /// How many folders `PATH` names.
        folders: usize,
    },
    /// The path is a folder.
    Directory,
    /// The program is on a file system where none may run.
    NoExecMount {
        /// The path of the program.
        path: PathBuf,
    },
    /// The file has no run permission.
    NotExecutable {
        /// The path of the file.
        path: PathBuf,
    },
}

impl ProgramProblem {
    /// The reason that a file which is there cannot be run.
    #[must_use]
    pub fn of_refused_file(path: PathBuf) -> Self {
        match is_on_noexec_mount(&path) {
            true => Self::NoExecMount { path },
            false => Self::NotExecutable { path },
        }
    }
}

impl fmt::Display for ProgramProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { folder } if folder.as_os_str().is_empty() => {
                f.write_str("does not exist, and the working folder was removed")
            }
            Self::Missing { folder } => write!(f, "does not exist (working folder `{}`)", folder.display()),
            Self::NotInPath { folders: 0 } => f.write_str("is not in PATH, which names no folder"),
            Self::NotInPath { folders: 1 } => f.write_str("is not in PATH (1 folder)"),
            Self::NotInPath { folders } => write!(f, "is not in PATH ({folders} folders)"),
            Self::Directory => f.write_str("is a folder"),
            Self::NoExecMount { path } => {
                write!(f, "cannot run: its file system is mounted with `noexec` (`{}`)", path.display())
            }
            Self::NotExecutable { path } => write!(f, "has no run permission (`{}`)", path.display()),
        }
    }
}

/// Returns a program as `execvp` finds it: by its path if there is a slash in its name, else in `PATH`.
///
/// # Errors
/// There is none, or it may not be run.
pub fn find_program(name: &OsStr, facts: &Facts) -> Result<PathBuf, ProgramProblem> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match facts.world().kind(&path) {
            FileKind::Missing => Err(ProgramProblem::Missing { folder: facts.working_folder() }),
            FileKind::Directory => Err(ProgramProblem::Directory),
            _ if facts.is_executable(&path) => Ok(path),
            _ => Err(ProgramProblem::of_refused_file(path)),
        };
    }
    let searched = facts.search_path();
    facts.find_in_path(name).ok_or_else(|| {
        let mut files = searched.iter().map(|folder| folder.join(name));
        match files.find(|file| facts.world().kind(file) == FileKind::File) {
            Some(path) => ProgramProblem::of_refused_file(path),
            None => ProgramProblem::NotInPath { folders: searched.len() },
        }
    })
}

/// Returns the folder of the path by which the launcher was called. Its links are kept: a link in a venv's `bin/` means
/// the venv.
#[must_use]
pub fn folder_of_launcher(argv0: &OsStr, facts: &Facts) -> Option<PathBuf> {
    let path =
        if argv0.as_bytes().contains(&b'/') { PathBuf::from(argv0) } else { facts.find_in_path(argv0)? };
    facts.absolute(&path).parent().map(Path::to_owned)
}
