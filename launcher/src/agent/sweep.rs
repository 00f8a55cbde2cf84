//! Sees to it that nobody outlives a job that succeeded, but who was told to.
#![expect(clippy::disallowed_methods, reason = "the agent's shell reads the clock for the pure wait")]

use std::os::fd::AsFd;
use std::time::Instant;

use nix::sys::signal::Signal;

use crate::agent::leftovers::{LeftoverLimits, LeftoverStep, LeftoverWait};
use crate::agent::{Agent, AgentAbort, error_report};
use crate::error::LaunchError;
use crate::process::descendants::{FoundProcess, KillScope, kill_all, leftovers};
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
        let limits = LeftoverLimits { wait: grace, stop: spec.stop, time_limit: self.state.time_is_up_at() };
        self.wait_for_leftovers(limits).unwrap_or_else(|_| {
            // Nobody is there who could still say when to stop, or nobody knows whom to wait for.
            self.kill_leftovers();
            None
        })
    }

    fn wait_for_leftovers(&mut self, limits: LeftoverLimits) -> Result<Option<Signal>, AgentAbort> {
        let mut stopped_by = None;
        let mut left = leftovers()?;
        let mut waiting = LeftoverWait::new(Instant::now(), limits);
        while !left.is_empty() {
            super::wait(&[self.link.as_fd(), self.inbox.as_fd()], Some(waiting.deadline()))?;
            let told = self.wish_to_stop()?;
            waiting.was_halted(self.halts.take().unwrap_or_default());
            let _ = self.workers.reap();
            left = leftovers()?;
            if left.is_empty() {
                return Ok(stopped_by.or(told.map(|(signal, _)| signal)));
            }
            let step = match told {
                Some((signal, again)) => {
                    stopped_by.get_or_insert(signal);
                    waiting.signalled(Instant::now(), signal, again)
                }
                None => waiting.look(Instant::now()),
            };
            if self.take(step, limits, &left) == Next::End {
                break;
            }
        }
        Ok(stopped_by)
    }

    /// Kills whoever is left of the job. Where nobody can tell who that is, the job neither goes on nor ends well.
    pub(super) fn kill_leftovers(&mut self) {
        match kill_all(&KillScope::All) {
            Ok(stuck) => {
                for pid in stuck {
                    tracing::warn!(pid = pid.as_raw(), "a process of the job cannot be ended");
                }
                self.unswept = None;
            }
            Err(source) => self.unswept = Some(source),
        }
    }

    /// Says that somebody of the job may be left, if that is so.
    pub(super) fn confess_unswept(&mut self) -> bool {
        let Some(source) = self.unswept else { return false };
        let error = LaunchError::Unswept { source };
        self.voice.error(&error, error.hint().as_deref());
        self.died_of = Some(error_report(&error));
        true
    }

    /// One step of the wait.
    fn take(&self, step: LeftoverStep, limits: LeftoverLimits, left: &[FoundProcess]) -> Next {
        let told: Vec<_> = left.iter().map(|found| (found.pid, found.command())).collect();
        match step {
            LeftoverStep::Wait => {}
            LeftoverStep::Announce => {
                self.voice.say(&words::waiting(&told, limits.wait, limits.time_limit.is_some()))
            }
            LeftoverStep::Ask(because) => {
                left.iter().for_each(|found| found.signal_and_continue(Signal::SIGTERM));
                self.voice.say(&words::ending(&told, because, limits.grace(because)));
            }
            LeftoverStep::Kill(because) => {
                left.iter().for_each(|found| found.signal(Signal::SIGKILL));
                self.voice.say(&words::killing(&told, because));
            }
            LeftoverStep::KillAgain => left.iter().for_each(|found| found.signal(Signal::SIGKILL)),
            LeftoverStep::GiveUp => {
                self.voice.say(&words::cannot_end(&told));
                return Next::End;
            }
        }
        Next::GoOn
    }

    /// A signal to stop, from whichever side, and whether it is a second one.
    fn wish_to_stop(&mut self) -> Result<Option<(Signal, bool)>, AgentAbort> {
        while let Some(number) = self.own_signal()? {
            if self.handled.stops(number) {
                return Ok(Signal::try_from(number).ok().map(|signal| (signal, false)));
            }
        }
        while let Some(signal) = self.signal_from_guard()? {
            if self.handled.stops(signal as i32) {
                let again = std::mem::replace(&mut self.signalled, true);
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
