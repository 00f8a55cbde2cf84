//! The wrapper of a worker that a person starts by hand. It runs the worker in the person's terminal, reports its end
//! to the agent, and prints the agent's messages. The shell gets the worker's own exit status.
#![expect(
    unsafe_code,
    reason = "the worker's signal mask and parent-death signal are set between fork and exec"
)]
#![expect(clippy::disallowed_methods, reason = "this room starts programs")]

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};

use crate::process::{kill, nix_signal};
use nix::unistd::{getpid, getppid};
use rankrun_core::posix::Signal;

use rankrun_core::posix::Pid;

use crate::process::attach_listener::{AttachMessage, connect_to_agent, receive, send_exit, send_record};
use crate::process::child::{Reaped, wait_for_any};
use crate::process::signal::{HandledSignals, SignalInbox, block};
use rankrun_core::exit_code::ExitStatus;
use rankrun_core::posix::Exit;
use rankrun_core::spec::{CliFlavor, SignalSpec};

/// Stands first on the command line of a script that `--leave-out` made, glued to the name of the launcher's socket.
/// Only scripts use it, so it is valid under every name and in no help: neither grammar has such an option.
pub const ATTACH: &str = "--rankrun-attach=";

/// The process name of a wrapper after the end of its launcher.
pub(super) const ABANDONED_WRAPPER_NAME: &str = "rankrun-alone";

/// Why the worker was not run, or its end was not seen.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// No agent listens at the socket.
    #[error("no launcher waits for this worker")]
    NoAttachListener {
        /// The kernel's error for the connection.
        source: io::Error,
    },
    /// The launcher refuses the wrapper, with a reason.
    #[error("the launcher does not wait for this worker: {reason}")]
    Refused {
        /// The agent's reason, in its words.
        reason: String,
    },
    /// The command line names no program to run.
    #[error("there is no command to run")]
    NoCommand,
    /// The command could not be started.
    #[error("cannot start `{program}`")]
    Spawn {
        /// The program that cannot be executed.
        program: String,
        /// The error of `execve`, from the kernel.
        source: io::Error,
    },
    /// The kernel refuses to wait for the worker.
    #[error("cannot wait for the worker")]
    Wait {
        /// The error of the failed system call.
        #[from]
        source: io::Error,
    },
}

impl AttachError {
    /// One thing to do about it.
    #[must_use]
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoAttachListener { .. } | Self::Refused { .. } => {
                Some("each launch with `--leave-out`, and each restart, names a script of its own: run that")
            }
            Self::NoCommand => Some("run the script that the launcher named; this is a part of it"),
            Self::Spawn { .. } => Some("the worker may still be started: run the script again"),
            Self::Wait { .. } => None,
        }
    }
}

/// Runs the worker until its end; `say` prints the launcher's messages.
///
/// # Errors
/// The worker did not run.
pub fn run_attached(
    socket: &str,
    command: &[OsString],
    print: impl Fn(&str),
) -> Result<ExitStatus, AttachError> {
    let (program, args) = command.split_first().ok_or(AttachError::NoCommand)?;
    let agent = connect_to_agent(socket).map_err(|source| AttachError::NoAttachListener { source })?;
    match receive(agent.as_fd()) {
        AttachMessage::Record(b'w', _) => {}
        AttachMessage::Record(_, reason) => return Err(AttachError::Refused { reason }),
        AttachMessage::Empty | AttachMessage::Closed => {
            return Err(AttachError::Refused { reason: "it has just ended".to_owned() });
        }
    }
    let handled = HandledSignals::of(&SignalSpec::torchrun(), CliFlavor::Rankrun);
    let mask = block(&handled)?;
    let inbox = SignalInbox::open(&handled)?;
    send_record(&agent, b'b', "");
    let child = spawn_worker(program, args, mask).map_err(|source| {
        send_record(&agent, b'n', "");
        let program = program.to_string_lossy().into_owned();
        AttachError::Spawn { program, source }
    })?;
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap_or_default());
    send_record(&agent, b's', &pid.to_string());
    let exit = wait_for_worker(pid, &agent, &inbox, print)?;
    Ok(match exit {
        Exit::Code(code) => ExitStatus::Code(u8::try_from(code).unwrap_or(1)),
        Exit::Signal { number, .. } => ExitStatus::of_signal(number),
    })
}

/// Starts the worker in the person's own session and process group. So the terminal's keys reach it and a debugger
/// can take the terminal. The worker dies with the wrapper: without a wrapper no process would report its end.
fn spawn_worker(program: &OsStr, args: &[OsString], mask: SigSet) -> io::Result<Child> {
    let wrapper = getpid();
    let become_worker = move || {
        prctl::set_pdeathsig(nix_signal(Signal::SIGKILL))?;
        if getppid() != wrapper {
            return Err(Errno::ESRCH.into());
        }
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
        Ok(())
    };
    let mut command = Command::new(program);
    // SAFETY: only system calls that are async-signal-safe.
    unsafe { command.args(args).pre_exec(become_worker) }.spawn()
}

fn wait_for_worker(pid: Pid, agent: &OwnedFd, inbox: &SignalInbox, print: impl Fn(&str)) -> io::Result<Exit> {
    let (mut agent_speaks, mut has_printed) = (true, false);
    loop {
        while let Some(number) = inbox.next()? {
            // The terminal has sent its own keys' signals to the worker too.
            if let Ok(signal @ (Signal::SIGTERM | Signal::SIGHUP)) = Signal::try_from(number) {
                let _ = kill(pid, signal);
            }
        }
        while let Reaped::Child { pid: ended, exit, .. } = wait_for_any() {
            if ended == pid {
                send_exit(agent, exit);
                return Ok(exit);
            }
        }
        let mut inputs = vec![PollFd::new(inbox.as_fd(), PollFlags::POLLIN)];
        if agent_speaks {
            inputs.push(PollFd::new(agent.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut inputs, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if inputs.get(1).and_then(PollFd::any) == Some(true) {
            match receive(agent.as_fd()) {
                AttachMessage::Record(_, text) => {
                    print(&text);
                    has_printed = true;
                }
                AttachMessage::Empty => {}
                AttachMessage::Closed => {
                    // `rankrun gc` takes it for a launcher no more.
                    let _ = prctl::set_name(&CString::new(ABANDONED_WRAPPER_NAME).unwrap_or_default());
                    if !has_printed {
                        print("the launcher is gone; this worker is left alone");
                    }
                    agent_speaks = false;
                }
            }
        }
    }
}
