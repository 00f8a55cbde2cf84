//! The only room that forks, signals and waits.
//!
//! ```text
//! guard (the pid that the user started)   forwards signals, outlives everything, reports the job's status
//! └─ agent                                forks the workers, reaps whatever the job leaves to it
//!    └─ worker 0 … n-1                    session leaders; SIGKILLed by the kernel when the agent dies
//! ```
//!
//! A worker under `--leave-out` is started by a person and is none of these. It is a child of its own wrapper
//! ([`attach`]) in the person's terminal. The wrapper reports to the agent through a socket ([`attach_listener`]).
//!
//! Guard and agent are both child subreapers, so no process of the job can leave their tree. When either ends
//! uncleanly the other kills what is left and reaps it. While the agent is stopped, the guard ends the workers, which
//! other nodes count as dead ([`watchdog`]).

pub mod attach;
pub mod attach_listener;
pub mod child;
pub mod command;
pub mod descendants;
pub mod exec_problem;
pub mod gc;
pub mod guard;
pub mod heap;
pub mod inherited;
mod job_control;
pub mod job_limit;
pub mod link;
pub mod listener;
pub mod oom;
pub mod probe;
pub mod proc;
pub mod reserve;
pub mod signal;
pub mod sockets;
pub mod spawn;
pub mod usage;
pub mod watchdog;

use std::fmt;
use std::io;

use nix::sys::signal::Signal;

/// How a process ended, as `wait` reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The process exited with this code.
    Code(i32),
    /// A signal killed the process.
    Signal {
        /// The signal's number; real-time signals have no name.
        number: i32,
        /// Whether a core file was written.
        core_dumped: bool,
    },
}

impl Exit {
    /// Converts a `wait` status (wait(2)) to an exit.
    #[must_use]
    pub const fn from_wait_status(status: i32) -> Self {
        if libc::WIFSIGNALED(status) {
            Self::Signal { number: libc::WTERMSIG(status), core_dumped: libc::WCOREDUMP(status) }
        } else {
            Self::Code(libc::WEXITSTATUS(status))
        }
    }

    /// Whether the process did its task: exit code 0.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Code(0))
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal { number, core_dumped } => {
                write!(f, "killed by {}", signal_name(number))?;
                if core_dumped { write!(f, ", core dumped") } else { Ok(()) }
            }
        }
    }
}

/// `SIGTERM` for 15; `signal 42` for one without a name.
#[must_use]
pub fn signal_name(number: i32) -> String {
    Signal::try_from(number).map_or_else(|_| format!("signal {number}"), |signal| signal.as_str().to_owned())
}

/// The hint where the kernel starts no process and no thread.
#[must_use]
pub fn process_limit_hint(source: &io::Error) -> Option<&'static str> {
    (source.raw_os_error() == Some(libc::EAGAIN)).then_some(
        "a limit on processes and threads is reached: raise it (`ulimit -u` of this user, `--pids-limit` of a container), or \
         end some of them",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_status_is_decoded() {
        assert_eq!(Exit::from_wait_status(3 << 8), Exit::Code(3));
        assert_eq!(Exit::from_wait_status(9), Exit::Signal { number: 9, core_dumped: false });
        assert_eq!(Exit::from_wait_status(11 | 0x80), Exit::Signal { number: 11, core_dumped: true });
    }

    #[test]
    fn exit_is_displayed_in_words() {
        assert_eq!(Exit::Code(3).to_string(), "exit code 3");
        assert_eq!(Exit::Signal { number: 9, core_dumped: false }.to_string(), "killed by SIGKILL");
        assert_eq!(
            Exit::Signal { number: 40, core_dumped: true }.to_string(),
            "killed by signal 40, core dumped"
        );
    }
}
