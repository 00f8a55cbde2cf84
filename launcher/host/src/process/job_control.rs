//! Ctrl-Z, `fg` and `bg`: the guard's side. The agent's is in `agent/suspend.rs` and `agent/state/suspend.rs`.
//!
//! The shell sees one process, the guard, and the terminal's SIGTSTP reaches it alone: workers lead sessions of their
//! own. So the guard asks the agent to stop the processes of the job, and stops itself once that is done. The agent
//! is not stopped: if the guard is killed meanwhile, the agent must sweep. If the agent ends, the kernel wakes the
//! guard ([`lifeline`]), which sweeps then; a late answer of the agent does not wake the guard.
//!
//! The signal is never read, only seen to be pending, and unblocked when the job is stopped. So the kernel decides
//! whether and by which signal the guard stops, as for any command. A SIGCONT that came meanwhile has taken the
//! signal back. Without a shell that could continue the guard (an orphaned process group: `ssh -t host rankrun …`)
//! the job stops only for an instant.
//!
//! [`lifeline`]: super::link::lifeline

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigmaskHow, sigprocmask};

use crate::process::signal_set;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::getpid;
use rankrun_core::posix::Signal;

use crate::blocking::is_readable;
use crate::process::link::{GuardLink, ToAgent};
use crate::process::signal::{HandledSignals, is_ignored};

/// The terminal's signals that stop: Ctrl-Z, and a read or a write (`stty tostop`) by a background process. Each goes
/// to the whole process group, and the guard is a member.
const STOPPING: [Signal; 3] = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];

/// An agent that takes longer is itself stopped or stuck: the shell is to have its prompt all the same.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// The signals that stop the guard, blocked.
#[derive(Debug)]
pub(super) struct JobControl {
    signals: Vec<Signal>,
    /// Readable while one of them is pending; never read.
    pending: SignalFd,
    stage: SuspendStage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SuspendStage {
    Running,
    /// The agent was asked to stop the job then.
    Requested {
        at: Instant,
    },
    Acknowledged,
}

impl JobControl {
    /// Blocks the signals, except those with another meaning in this launch, and those that were ignored at the start
    /// (a shell without job control). `None` for PID 1 of a container, which the kernel does not stop.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(super) fn open(handled: &HandledSignals) -> io::Result<Option<Self>> {
        let stops = |signal: &Signal| !is_ignored(*signal) && !handled.contains(*signal as i32);
        let signals: Vec<Signal> = STOPPING.into_iter().filter(stops).collect();
        if getpid().as_raw() == 1 || signals.is_empty() {
            return Ok(None);
        }
        let set = signal_set(signals.iter().copied());
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), None)?;
        let pending = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Some(Self { signals, pending, stage: SuspendStage::Running }))
    }

    /// Readable while a stop signal for the guard is pending.
    pub(super) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        (self.stage == SuspendStage::Running).then(|| self.pending.as_fd())
    }

    /// Until when an answer is waited for.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let SuspendStage::Requested { at } = self.stage else { return None };
        Some(at + ANSWER_LIMIT)
    }

    /// The agent has stopped the job.
    pub(super) fn on_acknowledged(&mut self) {
        if matches!(self.stage, SuspendStage::Requested { .. }) {
            self.stage = SuspendStage::Acknowledged;
        }
    }

    /// Asks the agent, or stops this process and returns when it is continued.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(super) fn advance(&mut self, link: &GuardLink) -> io::Result<()> {
        #[expect(clippy::disallowed_methods, reason = "the guard waits for an answer")]
        let now = Instant::now();
        match self.stage {
            SuspendStage::Running if is_readable(self.pending.as_fd()) => {
                // An agent that is gone is noticed by its exit.
                let _ = link.send_to_agent(ToAgent::Suspend);
                self.stage = SuspendStage::Requested { at: now };
            }
            SuspendStage::Running => {}
            SuspendStage::Requested { at } if now.saturating_duration_since(at) < ANSWER_LIMIT => {}
            SuspendStage::Requested { .. } | SuspendStage::Acknowledged => {
                self.stop()?;
                self.stage = SuspendStage::Running;
                let _ = link.send_to_agent(ToAgent::Resume);
            }
        }
        Ok(())
    }

    fn stop(&self) -> io::Result<()> {
        let signals = signal_set(self.signals.iter().copied());
        // Here we are stopped, if one of them is still pending: the end of the agent takes it back, too.
        sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&signals), None)?;
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&signals), None)?;
        Ok(())
    }
}
