//! Sees to it that nobody outlives a job that succeeded, but who was told to.
#![expect(clippy::disallowed_methods, reason = "the agent's shell reads the clock for the pure wait")]

use std::time::Instant;

use nix::sys::signal::Signal;

use crate::agent::leftovers::{LeftoverLimits, LeftoverStep, LeftoverWait};
use crate::agent::{Agent, AgentAbort, error_report};
use crate::error::LaunchError;
use crate::process::descendants::{FoundProcess, KillScope, kill_descendants, leftover_processes};
use crate::process::proc::ProcessScanError;
use crate::reporter::leftovers as words;
use crate::spec::stop::LeftoverPolicy;

impl From<ProcessScanError> for AgentAbort {
    fn from(cannot: ProcessScanError) -> Self {
        Self::Blind(cannot.into())
    }
}

impl Agent<'_> {
    /// Waits for whoever is left, then stops them; the signal that cut the wait short.
    pub(super) fn sweep(&mut self) -> Option<Signal> {
        let spec = self.workers.spec();
        let LeftoverPolicy::End { grace } = spec.leftovers else { return None };
        let limits =
            LeftoverLimits { wait: grace, stop: spec.stop, time_limit: self.state.time_limit_deadline() };
        self.wait_for_leftovers(limits).unwrap_or_else(|_| {
            // Nobody is there who could still say when to stop, or nobody knows whom to wait for.
            self.kill_leftovers();
            None
        })
    }

    fn wait_for_leftovers(&mut self, limits: LeftoverLimits) -> Result<Option<Signal>, AgentAbort> {
        let mut stopped_by = None;
        let mut left = leftover_processes()?;
        let mut waiting = LeftoverWait::new(Instant::now(), limits);
        while !left.is_empty() {
            super::wait_for_inputs(&self.signal_fds(), Some(waiting.deadline()))?;
            let told = self.wish_to_stop()?;
            waiting.add_suspended_time(self.halts.take().unwrap_or_default());
            let _ = self.workers.reap();
            left = leftover_processes()?;
            if left.is_empty() {
                return Ok(stopped_by.or(told.map(|(signal, _)| signal)));
            }
            let step = match told {
                Some((signal, again)) => {
                    stopped_by.get_or_insert(signal);
                    waiting.on_signal(Instant::now(), signal, again)
                }
                None => waiting.poll(Instant::now()),
            };
            if self.take(step, limits, &left) == Next::End {
                break;
            }
        }
        Ok(stopped_by)
    }

    /// Kills whoever is left of the job. Where nobody can tell who that is, the job neither goes on nor ends well.
    pub(super) fn kill_leftovers(&mut self) {
        match kill_descendants(&KillScope::All) {
            Ok(stuck) => {
                for pid in stuck {
                    tracing::warn!(pid = pid.as_raw(), "a process of the job cannot be ended");
                }
                self.scan_error = None;
            }
            Err(source) => self.scan_error = Some(source),
        }
    }

    /// Says that somebody of the job may be left, if that is so.
    pub(super) fn confess_unswept(&mut self) -> bool {
        let Some(source) = self.scan_error else { return false };
        let error = LaunchError::Unswept { source };
        self.user_log.error(&error, error.hint().as_deref());
        self.launcher_error = Some(error_report(&error));
        true
    }

    /// One step of the wait.
    fn take(&self, step: LeftoverStep, limits: LeftoverLimits, left: &[FoundProcess]) -> Next {
        let told: Vec<_> = left.iter().map(|found| (found.pid, found.command())).collect();
        match step {
            LeftoverStep::Wait => {}
            LeftoverStep::Announce => {
                self.user_log.print_line(&words::waiting(&told, limits.wait, limits.time_limit.is_some()))
            }
            LeftoverStep::Ask(because) => {
                left.iter().for_each(|found| found.signal_and_continue(Signal::SIGTERM));
                self.user_log.print_line(&words::ending(&told, because, limits.grace(because)));
            }
            LeftoverStep::Kill(because) => {
                left.iter().for_each(|found| found.signal(Signal::SIGKILL));
                self.user_log.print_line(&words::killing(&told, because));
            }
            LeftoverStep::KillAgain => left.iter().for_each(|found| found.signal(Signal::SIGKILL)),
            LeftoverStep::GiveUp => {
                self.user_log.print_line(&words::unkillable(&told));
                return Next::End;
            }
        }
        Next::GoOn
    }

    /// A signal to stop, from whichever side, and whether it is a second one.
    fn wish_to_stop(&mut self) -> Result<Option<(Signal, bool)>, AgentAbort> {
        if let Some(stop) = self.control_stop() {
            return Ok(Some(stop));
        }
        while let Some(number) = self.own_signal()? {
            if self.handled_signals.is_stop_signal(number) {
                return Ok(Signal::try_from(number).ok().map(|signal| (signal, false)));
            }
        }
        while let Some(signal) = self.signal_from_guard()? {
            if self.handled_signals.is_stop_signal(signal as i32) {
                let again = std::mem::replace(&mut self.has_stop_signal, true);
                return Ok(Some((signal, again)));
            }
        }
        Ok(None)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    GoOn,
    End,
}
