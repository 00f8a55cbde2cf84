//! Ctrl-Z, `fg` and `bg`: the agent's side. The guard's, and why the agent itself goes on, is in `process/job_control.rs`.
#![expect(clippy::disallowed_methods, reason = "the agent's shell measures how long a halt lasted")]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::agent::device_check::DeviceCheckRun;
use crate::agent::message::Input;
use crate::agent::others::Others;
use crate::agent::{Agent, AgentAbort};
use crate::process::descendants::{continue_descendants, kill_unreaped, stop_descendants};
use crate::process::link::{LinkMessage, ToAgent, ToGuard};
use crate::process::proc::ProcessScanError;

/// What a halt leaves to be done.
#[derive(Debug, Default)]
pub(super) struct Halts {
    /// How long they have lasted, all together; `None` where there was none.
    lasted: Option<Duration>,
    /// Signals to this process that came meanwhile.
    own: VecDeque<i32>,
    /// What the guard said meanwhile.
    from_guard: VecDeque<ToAgent>,
    /// What clients of the control socket asked meanwhile.
    pub(super) from_clients: Vec<Input>,
}

impl Halts {
    /// How long the job was halted since this was asked last.
    pub(super) fn take(&mut self) -> Option<Duration> {
        self.lasted.take()
    }
}

impl Agent<'_> {
    /// Stops whoever is of the job until the guard goes on. A signal to stop ends that at once: it is answered in every
    /// phase, and who waits for its own end has to run. So does the time limit, which is a time on the clock; behind it
    /// nobody stays halted. The guard may stay stopped until our own end wakes it.
    ///
    /// This process goes on, and so do its signs of life. Where the store does not answer them, the workers are killed as
    /// they stand before the others take this node for dead, and none runs on when the job does.
    pub(super) fn halt(&mut self) -> Result<(), AgentAbort> {
        let began = Instant::now();
        // While the devices are looked at nobody is there but probes, which have a deadline.
        let has_workers = !self.device_check.as_ref().is_some_and(DeviceCheckRun::is_running);
        if has_workers {
            // Each group in one instant, then whoever has left it.
            self.workers.signal_all(Signal::SIGSTOP);
            tell_of_failure("some of the job may not be stopped", stop_descendants());
        }
        // Where nobody is left to wait for, whoever is stopped is killed as he is.
        self.link.send_to_guard(ToGuard::Suspended).map_err(|_| AgentAbort::GuardGone)?;
        self.wait_for_the_guard()?;
        if has_workers {
            tell_of_failure("some of the job may stay stopped", continue_descendants());
            self.workers.signal_all(Signal::SIGCONT);
        }
        let lasted = began.elapsed();
        tracing::info!("the job was stopped for {lasted:.1?}, and goes on");
        *self.halts.lasted.get_or_insert_default() += lasted;
        Ok(())
    }

    fn wait_for_the_guard(&mut self) -> Result<(), AgentAbort> {
        let time_limit = self.state.time_limit_deadline();
        loop {
            let kill_by = self.halted_until();
            let deadline = time_limit.into_iter().chain(kill_by).min();
            super::wait_for_inputs(&self.signal_fds(), deadline)?;
            self.kill_halted();
            while let Some(number) = self.inbox.next().map_err(AgentAbort::Blind)? {
                // A thousand deaths are one reason to look.
                if !self.halts.own.contains(&number) {
                    self.halts.own.push_back(number);
                }
            }
            self.halts.from_clients = self.answer_control_requests();
            let is_time_up = time_limit.is_some_and(|time_limit| time_limit <= Instant::now());
            let stops = |input: &Input| matches!(input, Input::StopRequested { .. });
            let mut is_over = is_time_up
                || self.halts.from_clients.iter().any(stops)
                || self.halts.own.iter().any(|number| self.handled_signals.is_stop_signal(*number));
            loop {
                match self.link.receive_from_guard() {
                    LinkMessage::Message(ToAgent::Resume) => is_over = true,
                    LinkMessage::Message(message) => {
                        is_over |= matches!(message, ToAgent::Signal(number) if self.handled_signals.is_stop_signal(number));
                        self.halts.from_guard.push_back(message);
                    }
                    LinkMessage::Empty => break,
                    LinkMessage::Closed => return Err(AgentAbort::GuardGone),
                }
            }
            if is_over {
                return Ok(());
            }
        }
    }

    fn halted_until(&self) -> Option<Instant> {
        self.rendezvous.as_ref().filter(|_| self.state.has_workers()).and_then(Others::halted_until)
    }

    /// Kills those who are halted, if the others take them for dead from now on.
    fn kill_halted(&mut self) {
        let Some(kill_by) = self.halted_until().filter(|kill_by| *kill_by <= Instant::now()) else { return };
        if let Some(others) = &mut self.rendezvous {
            others.killed_halted(kill_by);
        }
        self.workers.signal_all(Signal::SIGKILL);
        tell_of_failure("some of the job may not be killed", kill_unreaped());
    }

    /// The next signal to this process itself.
    pub(super) fn own_signal(&mut self) -> Result<Option<i32>, AgentAbort> {
        match self.halts.own.pop_front() {
            Some(number) => Ok(Some(number)),
            None => self.inbox.next().map_err(AgentAbort::Blind),
        }
    }

    /// What the guard said next.
    pub(super) fn word_of_guard(&mut self) -> LinkMessage<ToAgent> {
        let kept = self.halts.from_guard.pop_front();
        kept.map_or_else(|| self.link.receive_from_guard(), LinkMessage::Message)
    }
}

fn tell_of_failure(what: &str, done: Result<(), ProcessScanError>) {
    if let Err(error) = done {
        tracing::warn!("{what}: {error}: {}", error.0);
    }
}
