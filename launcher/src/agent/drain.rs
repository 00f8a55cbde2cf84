//! The wait until what the workers wrote is out.
#![expect(clippy::disallowed_methods, reason = "the agent's shell measures how long nobody reads")]

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::agent::message::JobEnd;
use crate::agent::{Agent, Interrupted, LAST_WORDS};
use crate::spec::stop::StopReason;

/// A wait that is longer says what it waits for.
const SILENT_WAIT: Duration = Duration::from_secs(2);

impl Agent<'_> {
    /// Waits until what the workers wrote is out, or a further signal says that nobody wants it; that signal.
    /// Where the job is to end anyway, by the user or its time limit, the grace is the limit: somebody may have stopped reading.
    pub(super) fn drain(&mut self, end: &JobEnd) -> Option<Signal> {
        let reason = if end.time_limit.is_some() { StopReason::TimeLimit } else { StopReason::Signal };
        let grace = self.workers.spec().stop.grace_of(reason).max(LAST_WORDS);
        let is_cut_short = end.stopped_by.is_some() || end.time_limit.is_some();
        let mut give_up = is_cut_short.then(|| Instant::now() + grace);
        let mut say_at = Some(Instant::now() + SILENT_WAIT);
        let drained = match self.workers.drain() {
            Ok(drained) => drained,
            Err(error) => {
                self.voice.error(&error, Some(error.hint()));
                return None;
            }
        };
        while !drained.is_complete() {
            let now = Instant::now();
            if give_up.is_some_and(|give_up| give_up <= now) {
                return None;
            }
            if say_at.take_if(|say_at| *say_at <= now).is_some() {
                self.voice.say("waiting for somebody to read the workers' output; a signal ends the wait");
            }
            let inputs = [drained.as_fd(), self.link.as_fd(), self.inbox.as_fd()];
            if super::wait(&inputs, give_up.into_iter().chain(say_at).min()).is_err() {
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

    /// A signal from whichever side, for a time when nothing else can happen.
    fn next_signal(&mut self) -> Result<Option<Signal>, Interrupted> {
        while let Some(number) = self.own_signal()? {
            if self.handled.stops(number) {
                return Ok(Signal::try_from(number).ok());
            }
        }
        Ok(self.signal_from_guard()?.filter(|signal| self.handled.stops(*signal as i32)))
    }
}
