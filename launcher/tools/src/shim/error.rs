//! Errors of `rankrun shim`. Unless an error says otherwise, nothing was changed.

use std::io;
use std::path::PathBuf;

use super::script::Launcher;
use rankrun_host::program::ProgramProblem;

/// Reasons why the shim command failed.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    /// `--python` names nothing that can be run.
    #[error("the Python `{named}` {problem}")]
    NoSuchPython {
        /// The Python as it was typed.
        named: String,
        /// The reason why it cannot be run.
        problem: ProgramProblem,
    },
    /// There is no Python beside rankrun, and no active environment.
    #[error("no Python environment is found; looked in {}", join_places(folders))]
    NoEnvironment {
        /// The places that were searched for a Python.
        folders: Vec<PathBuf>,
    },
    /// The Python interpreter cannot be started.
    #[error("cannot start `{}`", python.display())]
    CannotAsk {
        /// The path of the Python interpreter.
        python: PathBuf,
        /// The error of `execve`, from the kernel.
        source: io::Error,
    },
    /// The Python did not report where its packages are.
    #[error("`{}` does not say where its packages are: {answer}", python.display())]
    PythonSilent {
        /// The path of the Python interpreter.
        python: PathBuf,
        /// The output that it printed instead.
        answer: String,
    },
    /// A Python that PyTorch and we do not know.
    #[error("`{}` is Python {version}; the shim needs 3.8 or later", python.display())]
    PythonTooOld {
        /// The path of the Python interpreter.
        python: PathBuf,
        /// The version that the Python reports.
        version: String,
    },
    /// A path that a script cannot contain.
    #[error("the path `{}` has a quote, a backslash or a control character", path.display())]
    Unquotable {
        /// The path of the environment's file.
        path: PathBuf,
    },
    /// The package is missing, so there is no launcher to replace.
    #[error("the environment `{}` has no {launcher}", prefix.display())]
    NotInstalled {
        /// The launcher whose package it is.
        launcher: Launcher,
        /// The environment's prefix, its root folder.
        prefix: PathBuf,
    },
    /// Another program is installed in place of a launcher's script.
    #[error("`{}` is not the script that comes with {launcher}", path.display())]
    Foreign {
        /// The launcher whose script has this name.
        launcher: Launcher,
        /// The path of the other program.
        path: PathBuf,
    },
    /// A file of the environment cannot be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// The path of the environment's file.
        path: PathBuf,
        /// The kernel's error for the file.
        source: io::Error,
    },
    /// A file of the environment cannot be changed.
    #[error("cannot change `{}`; {}", path.display(), describe_lost_file(lost.as_ref()))]
    Change {
        /// The path of the environment's file.
        path: PathBuf,
        /// The kernel's error for the file.
        source: io::Error,
        /// The file that could not be restored afterwards, and its place now.
        lost: Option<(PathBuf, PathBuf)>,
    },
}

impl ShimError {
    /// Advice for the user, one line, if there is any.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::NoSuchPython { .. } => "as in `--python /path/to/venv/bin/python`",
            Self::NoEnvironment { .. } => {
                "activate the environment, or name its Python with `--python /path/to/venv/bin/python`"
            }
            Self::CannotAsk { .. } | Self::PythonSilent { .. } => "name another Python with `--python`",
            Self::PythonTooOld { .. } => "use the environment that has PyTorch",
            Self::Unquotable { .. } => "an environment in a folder with a plain name works",
            Self::NotInstalled { .. } => {
                "install it first, or name the Python of the environment that has it with `--python`"
            }
            Self::Foreign { .. } => "move it away; `rankrun shim on` then makes one of its own",
            Self::Change { source, .. } if is_forbidden(source) => {
                "the environment belongs to another user or is read-only: run this as its owner, or name your own with \
                 `--python`"
            }
            Self::Read { .. } | Self::Change { .. } => return None,
        })
    }
}

fn is_forbidden(source: &io::Error) -> bool {
    matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

fn describe_lost_file(lost: Option<&(PathBuf, PathBuf)>) -> String {
    match lost {
        None => "nothing was changed".to_owned(),
        Some((from, to)) => {
            format!("`{}` could not be put back and is now `{}`", from.display(), to.display())
        }
    }
}

fn join_places(folders: &[PathBuf]) -> String {
    if folders.is_empty() {
        return "no folder".to_owned();
    }
    folders.iter().map(|folder| format!("`{}`", folder.display())).collect::<Vec<_>>().join(", ")
}
