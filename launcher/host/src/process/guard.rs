//! The guard: the process that the user started.
//!
//! It forks the agent before any thread exists and then only waits. It takes the terminal's and the scheduler's
//! signals and passes them on, reaps the orphans of the job, and ends with the job's status. If the agent dies
//! without having reported that status, the guard kills every process of the job. Ctrl-Z is in `job_control`, a stopped
//! agent in `watchdog` and `signal_answer`, one that cannot exit in `agent_exit`.
#![expect(unsafe_code, reason = "fork")]
#![expect(
    clippy::disallowed_methods,
    reason = "the guard measures how long the agent takes to answer a signal"
)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;

use crate::process::{kill, nix_pid, nix_signal, pid_of_nix};
use nix::unistd::{ForkResult, fork, getpid, setpgid};
use rankrun_core::posix::Signal;

use rankrun_core::posix::Pid;

use rankrun_contract::rank::JobId;

use crate::process::agent_exit::AgentExit;
use crate::process::child::{Reaped, wait_for_any};
use crate::process::descendants::{KillScope, kill_descendants};
use crate::process::job_control::JobControl;
use crate::process::job_limit;
use crate::process::link::{self, GuardLink, LinkMessage, ToAgent, ToGuard};
use crate::process::signal::{HandledSignals, SignalInbox, SignalSender};
use crate::process::signal_answer::{AnswerAction, AnswerWatch};
use crate::process::watchdog::Watchdog;
use rankrun_core::exit_code::ExitStatus;
use rankrun_core::posix::Exit;
use rankrun_core::posix::ProcessScanError;

/// The same signal within this time counts as one request, unless a second key press or a second `kill` sent it.
const DUPLICATE_WINDOW: Duration = Duration::from_millis(200);

/// The agent's name. A kill by our own name (`pkill -9 rankrun`) must not end both processes in one instant.
pub(super) const AGENT_NAME: &CStr = c"rr-agent";

/// Which of the two processes this is after the fork.
#[derive(Debug)]
pub enum ForkSide {
    /// The original process, which stays the guard.
    Guard(Box<Guard>),
    /// Its child, with the link to the guard, which watches over it.
    Agent(GuardLink, Watchdog),
}

/// The guard's state: the agent, the link to it, and the signals.
#[derive(Debug)]
pub struct Guard {
    agent: Pid,
    link: GuardLink,
    inbox: SignalInbox,
    handled: HandledSignals,
    scope: KillScope,
    job_control: Option<JobControl>,
    watch: Watchdog,
    answer: AnswerWatch,
    /// The last stop signal, its sender, and its time.
    last_signal: Option<(i32, SignalSender, Instant)>,
    exit: AgentExit,
    /// Wakes this process, if it is stopped, at the agent's end.
    _lifeline: OwnedFd,
}

/// How the job ended, as the guard saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuardEnd {
    /// The agent said with which status.
    AgentFinished(ExitStatus),
    /// The agent died without having reported the job's status.
    AgentLost {
        /// How the agent ended: exit code or signal.
        exit: Exit,
        /// The user's signal, where the guard killed the agent because it did not answer that.
        killed_for: Option<i32>,
        /// The processes of the job that survived SIGKILL, if they can be listed.
        leftover: Result<Vec<Pid>, ProcessScanError>,
    },
}

/// Forks. The signals are blocked already ([`crate::process::signal::block`]) and no thread has been started.
///
/// # Errors
/// The kernel's refusal.
pub fn fork_guard(handled: &HandledSignals, job: &JobId) -> io::Result<ForkSide> {
    let inbox = SignalInbox::open(handled)?;
    // Before the fork: blocked in the agent too, which only the kernel's own SIGSTOP stops.
    let job_control = JobControl::open(handled)?;
    let (guard_end, agent_end) = link::pair()?;
    let (watched, lifeline) = link::lifeline()?;
    let watch = Watchdog::open(Instant::now())?;
    let had_children = wait_for_any() != Reaped::NoChildren;
    let scope =
        if had_children || getpid().as_raw() == 1 { KillScope::Marked(job.clone()) } else { KillScope::All };
    prctl::set_child_subreaper(true)?;
    // SAFETY: no other thread exists, so the child may go on as a normal process.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => {
            drop((agent_end, lifeline));
            Ok(ForkSide::Guard(Box::new(Guard {
                agent: pid_of_nix(child),
                link: guard_end,
                inbox,
                handled: handled.clone(),
                scope,
                job_control,
                watch,
                answer: AnswerWatch::default(),
                last_signal: None,
                exit: AgentExit::default(),
                _lifeline: watched,
            })))
        }
        ForkResult::Child => {
            drop((guard_end, inbox, job_control, watched));
            // None of this is inherited through fork. The group of its own keeps the terminal's Ctrl-C away.
            prctl::set_child_subreaper(true)?;
            setpgid(nix_pid(Pid::from_raw(0)), nix_pid(Pid::from_raw(0)))?;
            // A stopped (SIGSTOP) agent would not see the guard's death. For other processes the signal has no
            // effect.
            prctl::set_pdeathsig(nix_signal(Signal::SIGCONT))?;
            let _ = prctl::set_name(AGENT_NAME);
            job_limit::set_job_mark(job);
            Ok(ForkSide::Agent(agent_end.with(lifeline), watch))
        }
    }
}

impl Guard {
    /// Waits for the agent's end, answering signals meanwhile. Calls `report_unanswered` for a signal that the agent does
    /// not answer, after the agent was continued.
    ///
    /// # Errors
    /// The kernel refuses to wait or to read signals; the agent then ends the job when we end.
    pub fn supervise(mut self, report_unanswered: &dyn Fn(i32)) -> io::Result<GuardEnd> {
        loop {
            let agent_speaks = self.read_messages();
            while let Some((signal, sender)) = self.inbox.next_from()? {
                match signal {
                    libc::SIGCHLD => {}
                    libc::SIGWINCH => {
                        // An agent that is gone is noticed by its exit.
                        let _ = self.link.send_to_agent(ToAgent::Resized);
                    }
                    signal => self.forward_signal(signal, sender),
                }
            }
            while let Reaped::Child { pid, exit, .. } = wait_for_any() {
                if pid == self.agent {
                    return Ok(self.end(exit));
                }
            }
            let now = Instant::now();
            self.check_answer(now, report_unanswered);
            if self.exit.is_overdue(now) {
                return Ok(self.leave_agent());
            }
            if let Some(job_control) = &mut self.job_control
                && agent_speaks
            {
                job_control.advance(&self.link)?;
            }
            let job_control = self.job_control.as_ref().filter(|_| agent_speaks);
            let watched_until = self.watch.kill_if_overdue(self.agent, Instant::now());
            let deadlines = [
                job_control.and_then(JobControl::deadline),
                watched_until,
                self.exit.deadline,
                self.answer.deadline(),
            ];
            let mut inputs = vec![
                PollFd::new(self.inbox.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.watch.as_fd(), PollFlags::POLLIN),
            ];
            // A closed link would stay readable; the agent's end comes as SIGCHLD.
            if agent_speaks {
                inputs.push(PollFd::new(self.link.as_fd(), PollFlags::POLLIN));
            }
            inputs
                .extend(job_control.and_then(JobControl::as_fd).map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
            match poll(&mut inputs, timeout_until(deadlines.into_iter().flatten().min())) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads the agent's messages; `false` once the agent has closed the link.
    fn read_messages(&mut self) -> bool {
        loop {
            match self.link.receive_from_agent() {
                LinkMessage::Message(ToGuard::Handled) => self.answer.on_answered(),
                LinkMessage::Message(ToGuard::Finish(status)) => {
                    self.exit.on_finished(Instant::now(), status);
                }
                LinkMessage::Message(ToGuard::Suspended) => {
                    if let Some(job_control) = &mut self.job_control {
                        job_control.on_acknowledged();
                    }
                }
                LinkMessage::Empty => return true,
                LinkMessage::Closed => return false,
            }
        }
    }

    /// A second signal counts only after the first was handled: a scheduler that signals a whole process group, or a
    /// Ctrl-C that arrives in two ways, is one request and not two.
    fn forward_signal(&mut self, signal: i32, sender: SignalSender) {
        // The agent's earlier answers come before this signal, however late both are read.
        self.read_messages();
        if !self.handled.is_stop_signal(signal) {
            // For the workers: it is neither answered nor counted, and must not hide a stop request behind it.
            let _ = self.link.send_to_agent(ToAgent::Signal(signal));
            return;
        }
        let now = Instant::now();
        let is_echo = self.last_signal.is_some_and(|(last, first, at)| {
            last == signal && now.duration_since(at) < DUPLICATE_WINDOW && sender.is_duplicate_of(first)
        });
        if is_echo {
            return;
        }
        self.last_signal = Some((signal, sender, now));
        match self.answer.on_signal(now, signal) {
            AnswerAction::Forward => {
                // An agent that is gone is noticed by its exit.
                let _ = self.link.send_to_agent(ToAgent::Signal(signal));
            }
            AnswerAction::Kill(signal) => self.kill_agent(now, signal),
            AnswerAction::Wait | AnswerAction::Continue(_) => {}
        }
    }

    fn check_answer(&mut self, now: Instant, report_unanswered: &dyn Fn(i32)) {
        match self.answer.on_time(now) {
            // An agent that exits answers no more.
            AnswerAction::Continue(signal) if self.exit.deadline.is_none() => {
                let _ = kill(self.agent, Signal::SIGCONT);
                report_unanswered(signal);
            }
            AnswerAction::Kill(signal) => self.kill_agent(now, signal),
            AnswerAction::Wait | AnswerAction::Forward | AnswerAction::Continue(_) => {}
        }
    }

    fn kill_agent(&mut self, now: Instant, signal: i32) {
        self.exit.on_killed(now, signal);
        let _ = kill(self.agent, Signal::SIGKILL);
    }

    /// The end without the agent's exit, which comes when the kernel has ended its threads.
    fn leave_agent(self) -> GuardEnd {
        let _ = kill(self.agent, Signal::SIGKILL);
        self.end(Exit::Signal { number: libc::SIGKILL, core_dumped: false })
    }

    fn end(mut self, exit: Exit) -> GuardEnd {
        self.read_messages();
        match self.exit.status {
            Some(status) => GuardEnd::AgentFinished(status),
            None => GuardEnd::AgentLost {
                exit,
                killed_for: self.exit.killed_for,
                leftover: kill_descendants(&self.scope),
            },
        }
    }
}

fn timeout_until(deadline: Option<Instant>) -> PollTimeout {
    deadline.map_or(PollTimeout::NONE, |deadline| {
        let remaining = deadline.saturating_duration_since(Instant::now());
        // Rounded up, as in any wait.
        PollTimeout::try_from(remaining + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankrun_core::spec::{CliFlavor, SignalSpec};

    /// A guard of this launch, and the agent's end of the link.
    fn guard_of(signals: &SignalSpec) -> (Guard, GuardLink) {
        let (link, agent_end) = link::pair().unwrap();
        let handled = HandledSignals::of(signals, CliFlavor::Torchrun);
        let inbox = SignalInbox::open(&handled).unwrap();
        let (agent, scope) = (Pid::from_raw(i32::MAX), KillScope::All);
        let guard = Guard {
            agent,
            link,
            inbox,
            handled,
            scope,
            job_control: None,
            watch: Watchdog::open(Instant::now()).unwrap(),
            answer: AnswerWatch::default(),
            last_signal: None,
            exit: AgentExit::default(),
            _lifeline: link::lifeline().unwrap().0,
        };
        (guard, agent_end)
    }

    fn received_messages(agent_end: &GuardLink, count: usize) -> Vec<LinkMessage<ToAgent>> {
        std::iter::repeat_with(|| agent_end.receive_from_guard()).take(count).collect()
    }

    const fn signal(number: i32) -> LinkMessage<ToAgent> {
        LinkMessage::Message(ToAgent::Signal(number))
    }

    const SENDER: SignalSender = SignalSender::Process(1_000);

    #[test]
    fn signal_repeated_by_group_or_wrapper_is_forwarded_once() {
        let (mut guard, agent_end) = guard_of(&SignalSpec::torchrun());
        guard.forward_signal(libc::SIGTERM, SENDER);
        agent_end.send_to_guard(ToGuard::Handled).unwrap();
        // `timeout` signals its child and then its group; a wrapper passes on a signal that the terminal sent to all.
        guard.forward_signal(libc::SIGTERM, SENDER);
        guard.forward_signal(libc::SIGTERM, SignalSender::Other);
        assert_eq!(received_messages(&agent_end, 2), [signal(libc::SIGTERM), LinkMessage::Empty]);
        guard.forward_signal(libc::SIGTERM, SignalSender::Process(1_001));
        assert_eq!(received_messages(&agent_end, 1), [signal(libc::SIGTERM)]);
    }

    #[test]
    fn sigint_pressed_twice_is_forwarded_twice() {
        let (mut guard, agent_end) = guard_of(&SignalSpec::torchrun());
        for _ in 0..2 {
            guard.forward_signal(libc::SIGINT, SignalSender::Other);
            agent_end.send_to_guard(ToGuard::Handled).unwrap();
        }
        assert_eq!(received_messages(&agent_end, 2), [signal(libc::SIGINT), signal(libc::SIGINT)]);
    }

    #[test]
    fn signal_after_unread_answer_is_forwarded() {
        let (mut guard, agent_end) = guard_of(&SignalSpec::torchrun());
        guard.forward_signal(libc::SIGTERM, SENDER);
        // The request is not answered yet: this is the same one by another way.
        guard.forward_signal(libc::SIGTERM, SENDER);
        agent_end.send_to_guard(ToGuard::Handled).unwrap();
        guard.forward_signal(libc::SIGINT, SENDER);
        assert_eq!(
            received_messages(&agent_end, 3),
            [signal(libc::SIGTERM), signal(libc::SIGINT), LinkMessage::Empty]
        );
    }

    #[test]
    fn forwarded_worker_signal_does_not_hide_stop_signal() {
        let (mut guard, agent_end) =
            guard_of(&SignalSpec { forward: vec![Signal::SIGUSR1], ..SignalSpec::torchrun() });
        for number in [libc::SIGUSR1, libc::SIGTERM, libc::SIGUSR1, libc::SIGTERM] {
            guard.forward_signal(number, SENDER);
        }
        let sent = [libc::SIGUSR1, libc::SIGTERM, libc::SIGUSR1].map(signal);
        assert_eq!(received_messages(&agent_end, 3), sent);
        assert_eq!(received_messages(&agent_end, 1), [LinkMessage::Empty]);
    }
}
