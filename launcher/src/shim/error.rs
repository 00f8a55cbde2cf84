//! Why the shim could not do what was asked. Unless an error says otherwise, nothing was changed.

use std::io;
use std::path::PathBuf;

use crate::cli::error::EntrypointProblem;
use crate::exit_code;

/// Why the shim could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    /// No verb.
    #[error("`rankrun shim` needs one of on, off or status")]
    VerbMissing,
    /// A word that means nothing there.
    #[error("`rankrun shim` does not understand `{word}`")]
    UnknownWord {
        /// The word.
        word: String,
    },
    /// `--python` without its value.
    #[error("`--python` needs the path of a Python")]
    PythonMissing,
    /// `--python` names nothing that can be run.
    #[error("the Python `{named}` {problem}")]
    NoSuchPython {
        /// As it was typed.
        named: String,
        /// What is wrong with it.
        problem: EntrypointProblem,
    },
    /// Neither is there a Python beside rankrun nor an active environment.
    #[error("no Python environment is found; looked in {}", places(looked))]
    NoEnvironment {
        /// Where.
        looked: Vec<PathBuf>,
    },
    /// The Python cannot be started.
    #[error("cannot start `{}`", python.display())]
    CannotAsk {
        /// Which.
        python: PathBuf,
        /// The kernel's refusal.
        source: io::Error,
    },
    /// The Python did not say where its packages are.
    #[error("`{}` does not say where its packages are: {said}", python.display())]
    PythonSilent {
        /// Which.
        python: PathBuf,
        /// What it said instead.
        said: String,
    },
    /// A Python that PyTorch and we do not know.
    #[error("`{}` is Python {version}; the shim needs 3.8 or later", python.display())]
    PythonTooOld {
        /// Which.
        python: PathBuf,
        /// Its version.
        version: String,
    },
    /// A path that cannot stand in a script.
    #[error("the path `{}` has a quote, a backslash or a control character", path.display())]
    Unquotable {
        /// Which.
        path: PathBuf,
    },
    /// No PyTorch, so that there is no torchrun to replace.
    #[error("the environment `{}` has no PyTorch", prefix.display())]
    NoTorch {
        /// The environment.
        prefix: PathBuf,
    },
    /// Somebody's own program stands where PyTorch's torchrun should.
    #[error("`{}` is not the script that comes with PyTorch", path.display())]
    Foreign {
        /// Which.
        path: PathBuf,
    },
    /// A file of the environment cannot be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// The kernel's refusal.
        source: io::Error,
    },
    /// A file of the environment cannot be changed.
    #[error("cannot change `{}`; {}", path.display(), left(lost.as_ref()))]
    Change {
        /// Which.
        path: PathBuf,
        /// The kernel's refusal.
        source: io::Error,
        /// What could not be put back afterwards, and where it is now.
        lost: Option<(PathBuf, PathBuf)>,
    },
}

impl ShimError {
    /// 2 where the words were not understood, 1 for the rest.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::VerbMissing | Self::UnknownWord { .. } | Self::PythonMissing => exit_code::USAGE,
            _ => exit_code::LAUNCHER_FAILED,
        }
    }

    /// The one thing to do.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::VerbMissing | Self::UnknownWord { .. } => {
                "`rankrun shim on` makes `torchrun` rankrun's, `off` gives PyTorch's own back, `status` says which it is"
            }
            Self::PythonMissing | Self::NoSuchPython { .. } => "as in `--python /path/to/venv/bin/python`",
            Self::NoEnvironment { .. } => {
                "activate the environment, or name its Python with `--python /path/to/venv/bin/python`"
            }
            Self::CannotAsk { .. } | Self::PythonSilent { .. } => "name another Python with `--python`",
            Self::PythonTooOld { .. } => "use the environment that has PyTorch",
            Self::Unquotable { .. } => "an environment in a folder with a plain name works",
            Self::NoTorch { .. } => {
                "install PyTorch first, or name the Python of the environment that has it with `--python`"
            }
            Self::Foreign { .. } => "move it away; `rankrun shim on` then makes one of its own",
            Self::Change { source, .. } if is_forbidden(source) => {
                "the environment is somebody else's or read-only: run this as its owner, or name your own with \
                 `--python`"
            }
            Self::Read { .. } | Self::Change { .. } => return None,
        })
    }
}

fn is_forbidden(source: &io::Error) -> bool {
    matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

fn left(lost: Option<&(PathBuf, PathBuf)>) -> String {
    match lost {
        None => "nothing was changed".to_owned(),
        Some((from, to)) => {
            format!("`{}` could not be put back and is now `{}`", from.display(), to.display())
        }
    }
}

fn places(looked: &[PathBuf]) -> String {
    if looked.is_empty() {
        return "no folder".to_owned();
    }
    looked.iter().map(|folder| format!("`{}`", folder.display())).collect::<Vec<_>>().join(", ")
}
