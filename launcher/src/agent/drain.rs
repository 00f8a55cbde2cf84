//! The wait until what the workers wrote is out.
#![expect(clippy::disallowed_methods, reason = "the agent's shell measures how long the output is unread")]

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::agent::message::JobEnd;
use crate::agent::{Agent, AgentAbort, FLUSH_TIMEOUT};
use crate::spec::stop::StopReason;

/// A wait that is longer says what it waits for.
const SILENT_WAIT: Duration = Duration::from_secs(2);

impl Agent<'_> {
    /// Waits until what the workers wrote is out, or a further signal says that nobody wants it; that signal.
    /// Somebody may have stopped reading, and so nobody waits beyond the time limit; nor, where the job was told to end,
    /// beyond what is left of the grace.
    pub(super) fn drain(&mut self, end: &JobEnd, swept_early: Option<Signal>) -> Option<Signal> {
        let least = Instant::now() + FLUSH_TIMEOUT;
        let mut give_up = self.end_of_patience(end, swept_early).map(|at| at.max(least));
        let time_limit =
            self.state.time_limit_deadline().filter(|_| give_up.is_none()).map(|at| at.max(least));
        let mut say_at = Some(Instant::now() + SILENT_WAIT);
        let drained = match self.workers.drain() {
            Ok(drained) => drained,
            Err(error) => {
                self.user_log.error(&error, Some(error.hint()));
                return None;
            }
        };
        while !drained.is_complete() {
            let now = Instant::now();
            if give_up.into_iter().chain(time_limit).any(|at| at <= now) {
                self.user_log
                    .print_line("the time limit is over before the workers' output was read to its end");
                return None;
            }
            if say_at.take_if(|say_at| *say_at <= now).is_some() {
                self.user_log
                    .print_line("waiting for a reader of the workers' output; a signal ends the wait");
            }
            let mut inputs = self.signal_fds();
            inputs.push(drained.as_fd());
            if super::wait_for_inputs(&inputs, give_up.into_iter().chain(time_limit).chain(say_at).min())
                .is_err()
            {
                return None;
            }
            let signal = self.next_signal();
            let halted = self.halts.take().unwrap_or_default();
            give_up = give_up.map(|give_up| give_up + halted);
            match signal {
                Ok(None) => {}
                Ok(signal) => return signal,
                Err(_) => return None,
            }
        }
        None
    }

    /// The end of the grace since the user or the time limit wanted the end; nothing where neither has ended
    /// the job or the wait for what it left behind.
    fn end_of_patience(&self, end: &JobEnd, swept_early: Option<Signal>) -> Option<Instant> {
        let reason = match (end.time_limit, end.stopped_by) {
            (Some(_), _) => StopReason::TimeLimit,
            (None, Some(_)) => StopReason::Signal,
            (None, None) => return swept_early.map(|_| Instant::now()),
        };
        let grace = self.workers.spec().stop.grace_period(reason);
        Some(self.state.output_deadline().unwrap_or_else(|| Instant::now() + grace))
    }

    /// A signal from whichever side, for a time when nothing else can happen.
    pub(super) fn next_signal(&mut self) -> Result<Option<Signal>, AgentAbort> {
        if let Some((signal, _)) = self.control_stop() {
            return Ok(Some(signal));
        }
        while let Some(number) = self.own_signal()? {
            if self.handled_signals.is_stop_signal(number) {
                return Ok(Signal::try_from(number).ok());
            }
        }
        Ok(self.signal_from_guard()?.filter(|signal| self.handled_signals.is_stop_signal(*signal as i32)))
    }
}
