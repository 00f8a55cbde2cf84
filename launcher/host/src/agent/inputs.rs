//! Collects events as inputs for the state: signals, exits of workers, answers of health checks and progress
//! checks, events of the rendezvous, deadlines. It decides nothing: the state does.
#![expect(clippy::disallowed_methods, reason = "the agent's shell gives the state its time")]

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Agent, AgentAbort};
use crate::agent::progress::ProgressProbe;
use crate::process::link::{LinkMessage, ToAgent, ToGuard};
use rankrun_core::agent::message::Input;
use rankrun_core::job_event::WorkerEnd;
use rankrun_core::posix::{Exit, Signal};
use rankrun_core::rendezvous::MembershipChange;

impl Agent<'_> {
    /// Everything that has happened since the last call, as inputs for the state.
    pub(super) fn collect_inputs(&mut self, inputs: &mut VecDeque<Input>) -> Result<(), AgentAbort> {
        inputs.extend(self.workers.external_worker_inputs(SystemTime::now()));
        self.workers.poll_oom_kills(Instant::now());
        while let Some(signal) = self.inbox.next().map_err(AgentAbort::Blind)? {
            if signal == libc::SIGCHLD {
                self.reap_workers(inputs);
            } else if let Ok(signal) = Signal::try_from(signal)
                && signal != Signal::SIGWINCH
            {
                // A signal sent to the agent itself counts, but never as the second one.
                if self.handled_signals.is_stop_signal(signal as i32) {
                    inputs.push_back(Input::StopRequested { signal, is_second: false });
                } else {
                    self.push_passed_signal(signal, inputs);
                }
            }
        }
        self.read_guard_messages(inputs)?;
        inputs.extend(self.answer_control_requests());
        // After the signals: a job that is to stop starts no worker. A suspended job starts none either.
        let is_stopping =
            |input: &Input| matches!(input, Input::StopRequested { .. } | Input::SuspendRequested);
        if !self.state.is_suspended() && !inputs.iter().any(is_stopping) {
            inputs.extend(self.advance_opening());
            self.advance_join();
            self.advance_start();
            self.report_long_calls();
        }
        // Also after them: a job that is to stop must not restart.
        let checked = self.device_check.as_mut().and_then(|check| check.advance(&mut self.workers));
        inputs.extend(checked);
        self.advance_readings();
        if let Some(seen) = self.progress_probe.as_mut().and_then(ProgressProbe::advance) {
            self.progress_probe = None;
            inputs.push_back(seen);
        }
        inputs.extend(self.progress_inputs());
        inputs.extend(self.take_drained());
        inputs.extend(self.advance_end_files());
        if self.departure.take_if(|departure| departure.is_over()).is_some() {
            inputs.push_back(Input::PeersLeft);
        }
        let received = self.rendezvous.receive();
        inputs.extend(received.inputs);
        received.announcements.iter().for_each(|line| self.announce(line.name, &line.text));
        if received.has_wait {
            self.open_control_socket();
        }
        if self.state.has_workers() {
            let killed_for = self.rendezvous.take_killed_deadline();
            let killed = killed_for.and_then(|kill_by| self.state.workers_killed_by_guard(kill_by));
            let ended = self.state.check_lease(Instant::now(), self.rendezvous.lease_deadlines());
            match killed.or(ended) {
                // Before the exits: the workers that were killed are not the first failure.
                Some(stood_still @ Input::Changed(MembershipChange::StoodStill)) => {
                    inputs.push_front(stood_still);
                }
                ended => inputs.extend(ended),
            }
        }
        if self.state.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
            inputs.push_back(Input::DeadlinePassed);
        }
        Ok(())
    }

    /// What becomes readable when the guard, the kernel or a client of the control socket has a message.
    pub(super) fn signal_fds(&self) -> Vec<BorrowedFd<'_>> {
        [self.link.as_fd(), self.inbox.as_fd()].into_iter().chain(self.control.as_fd()).collect()
    }

    fn reap_workers(&mut self, inputs: &mut VecDeque<Input>) {
        let at = SystemTime::now();
        let mut reaped = self.workers.reap();
        reaped.other_processes.retain(|(pid, exit)| !self.device_readings.on_reaped(*pid, *exit));
        // Workers reaped together ended before any stop. A success may cause a failure, but not the reverse.
        reaped.workers.sort_by_key(|end| !end.exit.is_success());
        let is_sigkill = |exit: &Exit| matches!(exit, Exit::Signal { number: libc::SIGKILL, .. });
        let orphans = reaped.other_processes.iter().filter(|(_, exit)| is_sigkill(exit)).count();
        let has_other = !reaped.other_processes.is_empty();
        for (pid, exit) in reaped.other_processes {
            if let Some(check) = &mut self.device_check {
                check.on_reaped(pid, exit);
            }
        }
        if has_other && !inputs.contains(&Input::DescendantReaped) {
            inputs.push_back(Input::DescendantReaped);
        }
        if let Some(watch) = &self.progress_watch {
            let finished = reaped.workers.iter().filter(|end| end.exit.is_success());
            finished.for_each(|end| watch.finish_worker(end.worker.local_rank));
        }
        let kills = self.workers.foreign_kills(&reaped.workers, orphans as u64);
        inputs.extend(reaped.workers.into_iter().zip(kills).map(|(exit, foreign_kill)| Input::Exited {
            generation: exit.worker.generation,
            end: WorkerEnd {
                local_rank: exit.worker.local_rank,
                pid: exit.pid,
                exit: exit.exit,
                at,
                error_file_info: self.workers.error_file_info(&exit),
                foreign_kill,
            },
        }));
    }

    /// A signal for the workers.
    fn push_passed_signal(&self, signal: Signal, inputs: &mut VecDeque<Input>) {
        let input = Input::SignalForwarded { signal };
        // As for a stopped process, many signals of a kind are one.
        if !self.state.is_suspended() || !inputs.contains(&input) {
            inputs.push_back(input);
        }
    }

    fn read_guard_messages(&mut self, inputs: &mut VecDeque<Input>) -> Result<(), AgentAbort> {
        loop {
            match self.link.receive_from_guard() {
                LinkMessage::Message(ToAgent::Signal(number)) => {
                    let is_stop = self.handled_signals.is_stop_signal(number);
                    if is_stop {
                        self.link.send_to_guard(ToGuard::Handled).map_err(|_| AgentAbort::GuardGone)?;
                    }
                    match Signal::try_from(number) {
                        Ok(signal) if is_stop => inputs.push_back(self.state.stop_by_guard(signal)),
                        Ok(signal) => self.push_passed_signal(signal, inputs),
                        Err(_) => {}
                    }
                }
                LinkMessage::Message(ToAgent::Resized) => self.workers.resize_console(),
                LinkMessage::Message(ToAgent::Suspend) => inputs.push_back(Input::SuspendRequested),
                LinkMessage::Message(ToAgent::Resume) => inputs.push_back(Input::ResumeRequested),
                LinkMessage::Empty => return Ok(()),
                LinkMessage::Closed => return Err(AgentAbort::GuardGone),
            }
        }
    }
}

/// Waits until a descriptor is readable or the deadline has come.
pub(super) fn wait_for_inputs(
    inputs: &[BorrowedFd<'_>],
    deadline: Option<Instant>,
) -> Result<(), AgentAbort> {
    let mut inputs: Vec<PollFd<'_>> =
        inputs.iter().map(|input| PollFd::new(*input, PollFlags::POLLIN)).collect();
    let timeout = deadline.map_or(PollTimeout::NONE, |deadline| {
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up: waking a millisecond early would cost an idle turn of the loop.
        PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
    });
    match poll(&mut inputs, timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(AgentAbort::Blind(errno.into())),
    }
}
