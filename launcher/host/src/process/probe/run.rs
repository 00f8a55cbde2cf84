//! One probe that runs: its pipes, its deadline, its end. Never blocks.

use std::fmt;
use std::fs::File;
use std::io::{self, PipeReader, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::SigSet;

use crate::process::kill_group;
use rankrun_core::posix::Pid;
use rankrun_core::posix::Signal;

use crate::device_probe::Answer;
use crate::process::child::{Reaped, wait_for};
use crate::process::proc::proc_is_mounted;
use crate::process::signal::{HandledSignals, reset_sigchld_action};
use crate::process::spawn::{InheritedState, Stdio, spawn};
use rankrun_core::device::ProbeProblemKind;
use rankrun_core::plain::plain;
use rankrun_core::posix::Exit;
use rankrun_core::worker_command::WorkerCommand;

/// The full answer for a machine of 16 devices is far below it.
pub(super) const ANSWER_LIMIT: usize = 4 << 20;
/// So much of the end of standard error is kept.
const STDERR_TAIL_LEN: usize = 4096;
/// So much of its last line is quoted.
const MAX_QUOTED_LEN: usize = 200;
/// So much is read in one turn, however fast a probe writes.
const MAX_READ_CHUNKS: usize = 64;
/// After SIGKILL only a process in uninterruptible sleep is still there.
pub(super) const GIVE_UP_AFTER_KILL: Duration = Duration::from_millis(500);

/// Why a probe gave no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeFailed {
    /// It did not answer in time, and was killed.
    Hung {
        /// The time that the probe had to answer.
        limit: Duration,
    },
    /// It did not answer in time, and SIGKILL does not end it. It is our child still.
    Unkillable {
        /// The time that the probe had to answer.
        limit: Duration,
        /// The process id of the probe.
        pid: Pid,
    },
    /// The probe ended without an answer.
    Crashed {
        /// How it ended; `None` if another part of the process has reaped it.
        exit: Option<Exit>,
        /// The last that it wrote on standard error.
        last_line: Option<String>,
    },
    /// It could not be started, or its answer makes no sense.
    Failed(String),
}

impl ProbeFailed {
    pub(super) fn not_started(error: &io::Error) -> Self {
        // The probe is `/proc/self/exe`.
        if error.kind() == io::ErrorKind::NotFound && !proc_is_mounted() {
            return Self::Failed("a probe cannot be started: `/proc` is not mounted".to_owned());
        }
        Self::Failed(format!("a probe cannot be started: {error}"))
    }

    pub(super) fn unreadable_answer(why: impl fmt::Display) -> Self {
        Self::Failed(format!("the probe's answer makes no sense: {why}"))
    }

    /// Converts the failure to an entry of [`Machine::troubles`](rankrun_core::device::Machine::troubles).
    #[must_use]
    pub(crate) fn to_problem_kind(&self) -> ProbeProblemKind {
        match self {
            Self::Hung { limit } => ProbeProblemKind::Hung(limit.as_secs_f64().ceil() as u64),
            Self::Crashed { .. } => ProbeProblemKind::Crashed(self.to_string()),
            Self::Unkillable { .. } | Self::Failed(_) => ProbeProblemKind::Failed(self.to_string()),
        }
    }
}

impl fmt::Display for ProbeFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hung { limit } => write!(f, "no answer within {} s", limit.as_secs_f64()),
            Self::Unkillable { limit, pid } => write!(
                f,
                "no answer within {} s; the probe (pid {pid}) is stuck in the kernel and cannot be killed",
                limit.as_secs_f64()
            ),
            Self::Crashed { exit, last_line } => {
                match exit {
                    Some(exit) => write!(f, "{exit}")?,
                    None => write!(f, "ended without an answer")?,
                }
                match last_line {
                    Some(line) => write!(f, "; its last line: `{line}`"),
                    None => Ok(()),
                }
            }
            Self::Failed(why) => f.write_str(why),
        }
    }
}

/// A running probe: its pid, its pipes and its deadline.
#[derive(Debug)]
pub struct ProbeRun {
    pid: Pid,
    pidfd: Option<OwnedFd>,
    limit: Duration,
    stage: ProbeStage,
    process: ProbeProcess,
    /// `None` once the probe has closed its output.
    stdout: Option<PipeReader>,
    stderr: Option<PipeReader>,
    answer: Vec<u8>,
    stderr_tail: Vec<u8>,
}

#[derive(Debug)]
enum ProbeStage {
    Running {
        deadline: Instant,
    },
    /// Killed after its verdict; waits for its end.
    Killed {
        verdict: Result<Answer, ProbeFailed>,
        give_up_at: Instant,
    },
    Finished,
}

/// Whether its process is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProbeProcess {
    Running,
    Reaped(Exit),
    ReapedElsewhere,
}

impl ProbeRun {
    /// Starts `command`, in a session of its own and with default signals, so that the launcher's state does not reach
    /// it. Main thread only, see [`spawn`].
    ///
    /// # Errors
    /// The kernel's refusal; then no process is left.
    pub fn start(command: &WorkerCommand, limit: Duration, now: Instant) -> io::Result<Self> {
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
            limit,
            stage: ProbeStage::Running { deadline: now + limit },
            process: ProbeProcess::Running,
            stdout: Some(stdout),
            stderr: Some(stderr),
            answer: Vec::new(),
            stderr_tail: Vec::new(),
        })
    }

    /// The descriptors to poll before the next [`Self::advance`].
    pub fn as_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let pipes = [&self.stdout, &self.stderr].into_iter().flatten().map(AsFd::as_fd);
        pipes.chain(self.exit_fd())
    }

    /// Readable when the process of the probe has ended.
    pub(super) fn exit_fd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().filter(|_| self.process == ProbeProcess::Running).map(AsFd::as_fd)
    }

    /// When [`Self::advance`] has something to do, if nothing becomes readable before.
    #[must_use]
    pub const fn deadline(&self) -> Option<Instant> {
        match self.stage {
            ProbeStage::Running { deadline: at } | ProbeStage::Killed { give_up_at: at, .. } => Some(at),
            ProbeStage::Finished => None,
        }
    }

    /// Whether no descriptor tells of its end; only SIGCHLD does.
    #[must_use]
    pub(crate) const fn has_no_pidfd(&self) -> bool {
        self.pidfd.is_none()
    }

    /// Records that another part of the process has reaped this child; true if it was the probe.
    pub(crate) fn on_reaped(&mut self, pid: Pid, exit: Exit) -> bool {
        let is_probe = pid == self.pid && self.process == ProbeProcess::Running;
        if is_probe {
            self.process = ProbeProcess::Reaped(exit);
        }
        is_probe
    }

    /// Handles the events so far; returns the answer, once.
    pub fn advance(&mut self, now: Instant) -> Option<Result<Answer, ProbeFailed>> {
        // In this order: all output of a dead process can be read.
        self.reap();
        self.read();
        match std::mem::replace(&mut self.stage, ProbeStage::Finished) {
            ProbeStage::Running { deadline } => match self.verdict(now >= deadline) {
                Some(verdict) if self.process != ProbeProcess::Running => return Some(verdict),
                Some(verdict) => {
                    self.kill();
                    self.stage = ProbeStage::Killed { verdict, give_up_at: now + GIVE_UP_AFTER_KILL };
                    // Mostly it was ending by itself.
                    self.reap();
                }
                None => self.stage = ProbeStage::Running { deadline },
            },
            stage => self.stage = stage,
        }
        match std::mem::replace(&mut self.stage, ProbeStage::Finished) {
            ProbeStage::Killed { verdict, .. } if self.process != ProbeProcess::Running => Some(verdict),
            ProbeStage::Killed { verdict, give_up_at } if give_up_at <= now => {
                Some(self.unkillable_result(verdict))
            }
            stage => {
                self.stage = stage;
                None
            }
        }
    }

    /// The result of the probe, as soon as it is known.
    fn verdict(&mut self, is_late: bool) -> Option<Result<Answer, ProbeFailed>> {
        if self.answer.len() > ANSWER_LIMIT {
            return Some(Err(ProbeFailed::unreadable_answer(format_args!(
                "it is longer than {ANSWER_LIMIT} bytes"
            ))));
        }
        let exit = match self.process {
            ProbeProcess::Running if self.stdout.is_none() => return self.read_early(is_late),
            ProbeProcess::Running => return is_late.then_some(Err(ProbeFailed::Hung { limit: self.limit })),
            ProbeProcess::Reaped(exit) => Some(exit),
            ProbeProcess::ReapedElsewhere => None,
        };
        let answer = serde_json::from_slice(&self.answer);
        Some(answer.map_err(|error| match exit {
            Some(exit) if exit.is_success() => ProbeFailed::unreadable_answer(error),
            _ => ProbeFailed::Crashed { exit, last_line: self.last_line() },
        }))
    }

    /// The answer of a process that has closed its standard output and is not reaped: mostly it is about to end.
    fn read_early(&self, is_late: bool) -> Option<Result<Answer, ProbeFailed>> {
        match serde_json::from_slice(&self.answer) {
            Ok(answer) => Some(Ok(answer)),
            Err(_) => is_late.then_some(Err(ProbeFailed::Hung { limit: self.limit })),
        }
    }

    /// The probe survived SIGKILL. An answer counts all the same.
    fn unkillable_result(&self, verdict: Result<Answer, ProbeFailed>) -> Result<Answer, ProbeFailed> {
        verdict.map_err(|failed| match failed {
            ProbeFailed::Hung { limit } => ProbeFailed::Unkillable { limit, pid: self.pid },
            failed => failed,
        })
    }

    /// Looks for its end, without waiting; `true` where nothing more can be hoped for.
    pub(super) fn reap(&mut self) -> bool {
        if self.process == ProbeProcess::Running {
            match wait_for(self.pid) {
                Reaped::Child { exit, .. } => self.process = ProbeProcess::Reaped(exit),
                Reaped::NoChildren => self.process = ProbeProcess::ReapedElsewhere,
                Reaped::AllAlive => {}
            }
        }
        self.process != ProbeProcess::Running || matches!(self.stage, ProbeStage::Finished)
    }

    fn read(&mut self) {
        read_all(&mut self.stdout, &mut self.answer, |answer| answer.len() <= ANSWER_LIMIT);
        read_all(&mut self.stderr, &mut self.stderr_tail, |tail| {
            let too_many = tail.len().saturating_sub(STDERR_TAIL_LEN);
            tail.drain(..too_many);
            true
        });
    }

    /// The last line on standard error with text, without control characters.
    fn last_line(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.stderr_tail);
        let line = text.lines().map(plain).rfind(|line| !line.trim().is_empty())?;
        Some(line.trim().chars().take(MAX_QUOTED_LEN).collect())
    }

    #[cfg(test)]
    pub(super) const fn pid(&self) -> Pid {
        self.pid
    }

    /// Its end, taken from it as a reaper of all children would.
    #[cfg(test)]
    pub(super) fn reaped_elsewhere(&self) -> (Pid, Exit) {
        match wait_for(self.pid) {
            Reaped::Child { pid, exit, .. } => (pid, exit),
            other => panic!("{other:?}"),
        }
    }

    /// Kills the probe's group; the probe is unreaped, so no other group can have its number.
    pub(super) fn kill(&self) {
        if self.process == ProbeProcess::Running {
            let _ = kill_group(self.pid, Signal::SIGKILL);
        }
    }
}

impl Drop for ProbeRun {
    /// The answer is not needed any more. Does not wait for the end: [`Probes`](super::Probes) has done that for all
    /// of its own at once.
    fn drop(&mut self) {
        if !self.reap() {
            self.kill();
            self.reap();
        }
    }
}

/// Reads the available bytes, as long as `keep` wants more; a pipe that has ended is closed.
fn read_all(pipe: &mut Option<PipeReader>, into: &mut Vec<u8>, keep: impl Fn(&mut Vec<u8>) -> bool) {
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
