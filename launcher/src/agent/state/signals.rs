//! What the launcher's own signals mean: the end of the job, or a signal to pass on to its workers. Pure.

use std::collections::BTreeSet;
use std::time::Instant;

use nix::sys::signal::Signal;

use rankrun_contract::rank::LocalRank;

use super::{State, with_at};
use crate::agent::message::rank_table::TableCause;
use crate::agent::message::{Action, JobEnd, JobEvent, LocalStop, PeerNotice, WaitEnd};
use crate::agent::phase::{JobPhase, StopCause, StopStage};
use crate::exit_code::ExitStatus;
use crate::spec::CliFlavor;
use crate::spec::stop::StopReason;

impl State {
    /// The launcher was told to stop; `again` is true for a second request.
    pub(super) fn stop_requested(&mut self, now: Instant, signal: Signal, again: bool) -> Vec<Action> {
        let told_before = self.stopped_by == Some(signal);
        self.stopped_by.get_or_insert(signal);
        self.limit_wait(now, StopReason::Signal);
        let ranks = self.collect_ranks(TableCause::Signal(signal));
        match std::mem::replace(&mut self.phase, JobPhase::Finished) {
            JobPhase::Starting => vec![self.stopped_before_the_start(signal)],
            JobPhase::Joining { .. } if !self.has_started() => vec![self.stopped_before_the_start(signal)],
            JobPhase::Observing { live, failure, .. } => {
                let ours = live.clone();
                let actions = self.stop_siblings_by(now, signal, (live, failure));
                let said = self.stopping(now, signal, &ours);
                with_at(actions, 1, said)
            }
            JobPhase::Running { live } | JobPhase::Undecided { live, .. } => {
                let ours = live.clone();
                let actions = self.stop(now, live, StopCause::User, self.rules.for_workers(signal));
                let said = self.stopping(now, signal, &ours);
                let told = self.tell_of_stop(LocalStop::Signal(signal));
                told.into_iter().chain(ranks).chain(with_at(actions, 1, said)).collect()
            }
            JobPhase::Stopping { live, cause, stage: StopStage::Asked { signal: before, kill_at } } => {
                if again {
                    return self.kill(now, (live, cause), WaitEnd::SecondSignal);
                }
                // The stop never extends a running grace period.
                let kill_at = kill_at.min(now + self.grace(StopReason::Signal));
                if told_before {
                    // One request that came twice: a scheduler signals guard and agent alike.
                    self.phase = JobPhase::Stopping {
                        live,
                        cause,
                        stage: StopStage::Asked { signal: before, kill_at },
                    };
                    return Vec::new();
                }
                let stage = StopStage::Asked { signal: self.rules.for_workers(signal), kill_at };
                let (told, ours) = (self.signal(&live, self.rules.for_workers(signal)), live.clone());
                self.phase = JobPhase::Stopping { live, cause, stage };
                let known = self.tell_of_stop(LocalStop::Signal(signal));
                known.into_iter().chain([told, self.stopping(now, signal, &ours)]).collect()
            }
            JobPhase::Blaming { failure, .. }
            | JobPhase::Checking { failure, .. }
            | JobPhase::Waiting { failure, .. } => {
                vec![self.stopping(now, signal, &BTreeSet::new()), self.finish_failed(Some(failure))]
            }
            JobPhase::Joining { failure, .. } => {
                vec![self.stopping(now, signal, &BTreeSet::new()), self.finish_failed(failure)]
            }
            JobPhase::Settling { .. } => {
                let said = self.stopping(now, signal, &BTreeSet::new());
                [said].into_iter().chain(self.settled_badly()).collect()
            }
            phase @ (JobPhase::Stopping { stage: StopStage::Killed { .. }, .. } | JobPhase::Finished) => {
                self.phase = phase;
                Vec::new()
            }
        }
    }

    fn stopped_before_the_start(&self, signal: Signal) -> Action {
        let status = match self.rules.persona {
            CliFlavor::Torchrun => ExitStatus::Signal(signal as i32),
            CliFlavor::Rankrun => ExitStatus::of_signal(signal as i32),
        };
        Action::Finish(JobEnd {
            status,
            failure: None,
            stopped_by: Some(signal),
            time_limit: None,
            farewell: PeerNotice::Left,
            rule: None,
            elsewhere: None,
            first_cause: None,
        })
    }

    fn stopping(&self, now: Instant, signal: Signal, live: &BTreeSet<LocalRank>) -> Action {
        let (told, grace) = (self.rules.for_workers(signal), self.left_of_the_grace(now));
        Action::Emit(JobEvent::Stopping { signal, told, live: self.ours(live), grace })
    }

    /// Passes a signal that stops nothing to the live workers, but not to their process groups: a data loader
    /// or a shell's helper that does not expect it would die of it.
    pub(super) fn pass(&self, signal: Signal) -> Vec<Action> {
        match &self.phase {
            JobPhase::Running { live }
            | JobPhase::Undecided { live, .. }
            | JobPhase::Observing { live, .. }
            | JobPhase::Stopping { live, stage: StopStage::Asked { .. }, .. } => {
                vec![Action::ForwardSignal {
                    generation: self.generation,
                    local_ranks: self.ours(live),
                    signal,
                }]
            }
            JobPhase::Stopping { stage: StopStage::Killed { .. }, .. }
            | JobPhase::Starting
            | JobPhase::Joining { .. }
            | JobPhase::Blaming { .. }
            | JobPhase::Checking { .. }
            | JobPhase::Waiting { .. }
            | JobPhase::Settling { .. }
            | JobPhase::Finished => Vec::new(),
        }
    }
}
