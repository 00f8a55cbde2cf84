//! The only room that forks, signals and waits.
//!
//! ```text
//! guard (the pid that the user started)   forwards signals, outlives everything, reports the job's status
//! └─ agent                                forks the workers, reaps whatever the job leaves to it
//!    └─ worker 0 … n-1                    session leaders; SIGKILLed by the kernel when the agent dies
//! ```
//!
//! A worker under `--leave-out` is started by a person and is none of these. It is a child of its own wrapper
//! ([`attach`]) in the person's terminal. The wrapper reports to the agent through a socket (`attach_listener`).
//!
//! Guard and agent are both child subreapers, so no process of the job can leave their tree. When either ends
//! uncleanly the other kills what is left and reaps it. While the agent is stopped, the guard ends the workers, which
//! other nodes count as dead ([`watchdog`]).

mod agent_exit;
pub mod attach;
pub(crate) mod attach_listener;
pub(crate) mod child;
pub(crate) mod descendants;
mod elf;
pub(crate) mod exec_files;
pub mod exec_problem;
pub mod gc;
pub(crate) mod group_signal;
pub mod guard;
pub mod heap;
pub mod inherited;
mod job_control;
pub mod job_limit;
pub mod link;
pub(crate) mod listener;
pub(crate) mod oom;
pub mod probe;
pub mod proc;
pub(crate) mod program_file;
pub(crate) mod raw_signal;
pub mod replace;
pub mod reserve;
pub mod signal;
mod signal_answer;
pub(crate) mod sockets;
pub mod spawn;
#[cfg(test)]
mod test_clock;
pub(crate) mod usage;
pub mod watchdog;

use std::io;

use nix::sys::signal::SigSet;

use rankrun_core::posix::{Exit, Pid, Signal};

/// The number of a pid, for nix.
pub(crate) const fn nix_pid(pid: Pid) -> nix::unistd::Pid {
    nix::unistd::Pid::from_raw(pid.as_raw())
}

/// A pid of nix.
pub(crate) const fn pid_of_nix(pid: nix::unistd::Pid) -> Pid {
    Pid::from_raw(pid.as_raw())
}

/// A signal, for nix.
pub(crate) fn nix_signal(signal: Signal) -> nix::sys::signal::Signal {
    nix::sys::signal::Signal::try_from(signal as i32).expect("every named signal of Linux is nix's too")
}

/// This process.
#[must_use]
pub fn own_pid() -> Pid {
    pid_of_nix(nix::unistd::getpid())
}

/// The parent of this process.
#[must_use]
pub fn parent_pid() -> Pid {
    pid_of_nix(nix::unistd::getppid())
}

/// Signals one process: kill(2).
pub(crate) fn kill(pid: Pid, signal: Signal) -> nix::Result<()> {
    nix::sys::signal::kill(nix_pid(pid), nix_signal(signal))
}

/// Signals a process group: killpg(3).
pub(crate) fn kill_group(pid: Pid, signal: Signal) -> nix::Result<()> {
    nix::sys::signal::killpg(nix_pid(pid), nix_signal(signal))
}

/// A set of signals, for nix.
pub(crate) fn signal_set(signals: impl IntoIterator<Item = Signal>) -> SigSet {
    signals.into_iter().map(nix_signal).collect()
}

/// Converts a `wait` status (wait(2)) to an exit.
#[must_use]
pub(crate) const fn exit_of_wait_status(status: i32) -> Exit {
    if libc::WIFSIGNALED(status) {
        Exit::Signal { number: libc::WTERMSIG(status), core_dumped: libc::WCOREDUMP(status) }
    } else {
        Exit::Code(libc::WEXITSTATUS(status))
    }
}

/// The hint where the kernel starts no process and no thread.
#[must_use]
pub(crate) fn process_limit_hint(source: &io::Error) -> Option<&'static str> {
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
        assert_eq!(exit_of_wait_status(3 << 8), Exit::Code(3));
        assert_eq!(exit_of_wait_status(9), Exit::Signal { number: 9, core_dumped: false });
        assert_eq!(exit_of_wait_status(11 | 0x80), Exit::Signal { number: 11, core_dumped: true });
    }

    #[test]
    fn named_signals_have_the_numbers_of_this_machine() {
        for signal in Signal::ALL {
            assert_eq!(nix_signal(signal).as_str(), signal.as_str());
        }
    }
}
