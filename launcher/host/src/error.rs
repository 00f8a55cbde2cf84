//! Errors of the launcher itself, one variant per room.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use rankrun_contract::rank::Rank;

use crate::logs::LogError;
use crate::process::exec_problem::ExecProblem;
use crate::process::process_limit_hint;
use crate::rendezvous::error::RendezvousError;
use crate::report_file::ReportFileError;
use rankrun_core::posix::ProcessScanError;
use rankrun_core::worker_command::NulByte;

/// An error of the launcher itself.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The agent could not be set up.
    #[error("cannot {what}")]
    Setup {
        /// The step that failed, as a verb phrase.
        what: &'static str,
        /// The kernel's error for the step.
        source: io::Error,
    },
    /// The client that starts other hosts could not be started.
    #[error("cannot start the ssh client `{program}`")]
    SshClient {
        /// The name of the client.
        program: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The nodes do not find each other.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The job ended at its time limit.
    #[error("the job was ended for its time limit of {}", humantime::format_duration(*limit))]
    TimeLimit {
        /// The value of `--time-limit`.
        limit: Duration,
        /// Whether `--warn-signal` has warned the workers.
        is_warned: bool,
    },
    /// The log tree or a stream could not be opened.
    #[error(transparent)]
    Logs(#[from] LogError),
    /// The report of the job cannot be written where the user wants it.
    #[error(transparent)]
    Report(#[from] ReportFileError),
    /// An argument or variable no program can be given.
    #[error("cannot build the command of rank {rank}")]
    Command {
        /// The rank of the worker in the job.
        rank: Rank,
        /// The text with a NUL byte.
        source: NulByte,
    },
    /// The script of the worker that is left out could not be written.
    #[error("cannot write the script `{}` of the worker that is left out", path.display())]
    Script {
        /// The path of the worker's script.
        path: PathBuf,
        /// The system's error for the file.
        source: io::Error,
    },
    /// It is not known whether the workers have left processes behind.
    #[error("cannot see whether processes of the job are left")]
    Unswept {
        /// The reason why `/proc` cannot be read.
        source: ProcessScanError,
    },
    /// A worker could not be started.
    #[error("cannot start rank {rank}: `{}`", program.display())]
    Spawn {
        /// The rank of the worker in the job.
        rank: Rank,
        /// The file that was to be executed.
        program: PathBuf,
        /// The step of the start that failed.
        source: SpawnError,
    },
}

/// Why a program was not started.
#[derive(Debug)]
pub struct SpawnError {
    refusal: io::Error,
    problem: Option<ExecProblem>,
}

impl SpawnError {
    /// The kernel's refusal, with the problem that the file shows.
    #[must_use]
    pub fn new(refusal: io::Error, program: &Path) -> Self {
        let problem = ExecProblem::find(program, &refusal);
        Self { refusal, problem }
    }

    fn hint(&self, program: &Path) -> Option<Cow<'static, str>> {
        match &self.problem {
            Some(problem) => Some(problem.hint(program).into()),
            None => spawn_hint(&self.refusal).map(Cow::Borrowed),
        }
    }
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.problem {
            // Without the number of the errno: one pair of parentheses is enough.
            Some(problem) => {
                let errno = Errno::from_raw(self.refusal.raw_os_error().unwrap_or_default());
                write!(f, "{problem} ({})", errno.desc())
            }
            None => self.refusal.fmt(f),
        }
    }
}

impl Error for SpawnError {}

impl LaunchError {
    /// One thing to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<Cow<'static, str>> {
        if let Self::Spawn { program, source, .. } = self {
            return source.hint(program);
        }
        self.fixed_hint().map(Cow::Borrowed)
    }

    fn fixed_hint(&self) -> Option<&'static str> {
        match self {
            Self::Rendezvous(error) => error.hint(),
            Self::Logs(error) => Some(error.hint()),
            Self::Report(error) => Some(error.hint()),
            Self::Script { .. } => Some("choose a folder that can be written with `--log-dir`"),
            Self::TimeLimit { is_warned: true, .. } => Some("give it more with `--time-limit`"),
            Self::TimeLimit { is_warned: false, .. } => Some(
                "give it more with `--time-limit`; with `--warn-signal USR1@60` the workers can save their work before",
            ),
            Self::SshClient { .. } => Some("install OpenSSH's client, or name another one with `--ssh`"),
            Self::Unswept { .. } => {
                Some("raise the limit of open files (`ulimit -n`); `rankrun gc` ends what is left")
            }
            Self::Setup { source, .. } => process_limit_hint(source),
            Self::Command { .. } | Self::Spawn { .. } => None,
        }
    }
}

fn spawn_hint(source: &io::Error) -> Option<&'static str> {
    Some(match source.raw_os_error()? {
        libc::ENOENT => "the file, or the interpreter named in its first line, does not exist",
        libc::EACCES => {
            "make the file executable (`chmod +x`), or leave out `--no-python` for a Python script"
        }
        libc::ENOEXEC => "a script needs a first line such as `#!/bin/sh`",
        libc::E2BIG => "the arguments and the environment together are too long for the kernel",
        libc::EAGAIN => return process_limit_hint(source),
        libc::EMFILE => "the limit on open files is reached: see `ulimit -n`",
        _ => return None,
    })
}
