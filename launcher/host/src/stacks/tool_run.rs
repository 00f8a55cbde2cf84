//! One child that reads the stacks of a worker: its pipes, the limit of its output, its end. Never blocks.
//!
//! The parent-death signal of a child fires when the thread that started it ends. That thread collects the stacks, and
//! has killed its children by then. The main thread of the agent may reap one first, so an exit status may be lost.
#![expect(clippy::disallowed_methods, reason = "the wait for the end of a child has a limit")]

use std::fs::File;
use std::io::{self, PipeReader, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::SigSet;
use rankrun_core::plain::plain;
use rankrun_core::posix::{Exit, Pid, Signal};
use rankrun_core::worker_command::WorkerCommand;

use crate::process::child::{Reaped, wait_for};
use crate::process::kill_group;
use crate::process::signal::{HandledSignals, reset_sigchld_action};
use crate::process::spawn::{InheritedState, Stdio, spawn};

/// More output is not an answer: 256 threads of 32 calls have less.
const MAX_OUTPUT: usize = 4 << 20;
/// So much of the end of standard error is kept.
const MAX_ERROR_TAIL: usize = 4096;
/// So much is read in one turn, however fast a child writes.
const MAX_READ_CHUNKS: usize = 16;
/// A running child.
#[derive(Debug)]
pub(super) struct ToolRun {
    pid: Pid,
    pidfd: Option<OwnedFd>,
    /// `None` once the child has closed its output, or has written too much.
    stdout: Option<PipeReader>,
    stderr: Option<PipeReader>,
    output: Vec<u8>,
    error_tail: Vec<u8>,
    exit: Option<Exit>,
    is_reaped: bool,
    /// It had not closed its output when it was told to stop. The kill closes it.
    was_late: bool,
}

/// What a child has given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ToolOutput {
    pub(super) stdout: Vec<u8>,
    /// The end of its standard error.
    pub(super) error: String,
    pub(super) end: ToolEnd,
}

/// How a child has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ToolEnd {
    /// By itself. `None` if the main thread has reaped it.
    Exited(Option<Exit>),
    /// It was killed, since it was still running.
    TooLate,
    /// It was killed, since it has written too much.
    TooLong,
}

impl ToolRun {
    /// # Errors
    /// The kernel's refusal; then no process is left.
    pub(super) fn start(command: &WorkerCommand) -> io::Result<Self> {
        reset_sigchld_action()?;
        let no_input = File::open("/dev/null")?;
        let (stdout, its_stdout) = io::pipe()?;
        let (stderr, its_stderr) = io::pipe()?;
        for fd in [stdout.as_fd(), stderr.as_fd()] {
            fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        let stdio = Stdio {
            stdin: Some(no_input.as_fd()),
            stdout: Some(its_stdout.as_fd()),
            stderr: Some(its_stderr.as_fd()),
        };
        let original =
            InheritedState { mask: SigSet::empty(), handled: HandledSignals::every(), file_limits: None };
        let spawned = spawn(command, stdio, &original)?;
        Ok(Self {
            pid: spawned.pid,
            pidfd: spawned.pidfd,
            stdout: Some(stdout),
            stderr: Some(stderr),
            output: Vec::new(),
            error_tail: Vec::new(),
            exit: None,
            is_reaped: false,
            was_late: false,
        })
    }

    /// The descriptors to poll before the next [`Self::advance`].
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [&self.stdout, &self.stderr].into_iter().flatten().map(AsFd::as_fd)
    }

    /// Reads what there is; true once nothing more comes.
    pub(super) fn advance(&mut self) -> bool {
        read_available(&mut self.stdout, &mut self.output, |output| output.len() <= MAX_OUTPUT);
        read_available(&mut self.stderr, &mut self.error_tail, |tail| {
            tail.drain(..tail.len().saturating_sub(MAX_ERROR_TAIL));
            true
        });
        self.stdout.is_none() && (self.stderr.is_none() || self.output.len() > MAX_OUTPUT)
    }

    /// What it has written so far.
    pub(super) fn output(&self) -> &[u8] {
        &self.output
    }

    /// Kills it if it has not closed its output.
    pub(super) fn stop(&mut self) {
        self.was_late |= !self.advance();
        if self.was_late || self.output.len() > MAX_OUTPUT {
            self.kill();
        }
    }

    /// What it has given. [`Self::stop`] was called; waits until then for its end.
    pub(super) fn finish(mut self, until: Instant) -> ToolOutput {
        self.advance();
        if !self.is_reaped && !self.has_ended(until.saturating_duration_since(Instant::now())) {
            // It has closed its output and goes on.
            self.kill();
        }
        self.reap();
        let end = match self.was_late {
            _ if self.output.len() > MAX_OUTPUT => ToolEnd::TooLong,
            true => ToolEnd::TooLate,
            false => ToolEnd::Exited(self.exit),
        };
        let error = String::from_utf8_lossy(&self.error_tail).into_owned();
        ToolOutput { stdout: std::mem::take(&mut self.output), error, end }
    }

    /// Kills the child's group while the child lives, so that no other group can have its number.
    fn kill(&mut self) {
        self.reap();
        if !self.is_reaped && !self.has_ended(Duration::ZERO) {
            let _ = kill_group(self.pid, Signal::SIGKILL);
        }
    }

    /// Without a pidfd nothing tells.
    fn has_ended(&self, within: Duration) -> bool {
        let Some(pidfd) = &self.pidfd else { return false };
        let mut fds = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::try_from(within).unwrap_or(PollTimeout::ZERO))
            .is_ok_and(|ready| ready > 0)
    }

    fn reap(&mut self) {
        if self.is_reaped {
            return;
        }
        match wait_for(self.pid) {
            Reaped::Child { exit, .. } => (self.exit, self.is_reaped) = (Some(exit), true),
            Reaped::NoChildren => self.is_reaped = true,
            Reaped::AllAlive => {}
        }
    }
}

impl Drop for ToolRun {
    fn drop(&mut self) {
        self.kill();
        self.reap();
    }
}

impl ToolOutput {
    /// Why it has given nothing: its last line on standard error with text, or how it ended.
    pub(super) fn problem(&self) -> String {
        const MAX_LINE: usize = 200;
        let line = self.error.lines().map(plain).rfind(|line| !line.trim().is_empty());
        match (self.end, line) {
            (ToolEnd::TooLate, _) => "it did not end in time".to_owned(),
            (ToolEnd::TooLong, _) => "its output is too long".to_owned(),
            (ToolEnd::Exited(Some(exit @ Exit::Signal { .. })), _) => format!("it was {exit}"),
            (ToolEnd::Exited(_), Some(line)) => line.trim().chars().take(MAX_LINE).collect(),
            (ToolEnd::Exited(Some(exit)), None) => format!("it has written no stack ({exit})"),
            (ToolEnd::Exited(None), None) => "it has written no stack".to_owned(),
        }
    }
}

/// Reads the available bytes, as long as `keep` wants more; a pipe that has ended is closed.
fn read_available(
    pipe: &mut Option<PipeReader>,
    into: &mut Vec<u8>,
    mut keep: impl FnMut(&mut Vec<u8>) -> bool,
) {
    let mut chunk = [0; 16 << 10];
    for _ in 0..MAX_READ_CHUNKS {
        let Some(open) = pipe else { return };
        match open.read(&mut chunk) {
            Ok(count @ 1..) => {
                into.extend_from_slice(&chunk[..count]);
                if !keep(into) {
                    *pipe = None;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => *pipe = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn killed_child_was_late_also_when_its_output_is_closed() {
        let argv = [c"sleep", c"1000"].map(ToOwned::to_owned).to_vec();
        let envp = vec![c"PATH=/usr/bin:/bin".to_owned()];
        let path = c"/bin/sleep".to_owned();
        let command = WorkerCommand { path, argv, envp, cpus: None, names_tracer: false };
        let mut run = ToolRun::start(&command).unwrap();
        run.stop();
        assert!(run.has_ended(Duration::from_secs(60)));
        assert_eq!(run.finish(Instant::now()).end, ToolEnd::TooLate);
    }
}
