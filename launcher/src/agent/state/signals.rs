//! What the launcher's own signals mean: the end of the job, or a signal to pass on to its workers. Pure.

use std::collections::BTreeSet;
use std::time::Instant;

use nix::sys::signal::Signal;

use rankrun_contract::rank::LocalRank;

use super::{State, insert_action};
use crate::agent::message::rank_table::TableCause;
use crate::agent::message::{Action, JobEnd, JobEvent, LocalStop, PeerNotice, WaitEnd};
use crate::agent::phase::{JobPhase, StopCause, StopStage};
use crate::exit_code::ExitStatus;
use crate::spec::CliFlavor;
use crate::spec::stop::StopReason;

impl State {
    /// The launcher was told to stop; `again` is true for a second request.
    pub(super) fn on_stop_requested(&mut self, now: Instant, signal: Signal, again: bool) -> Vec<Action> {
        let is_same_signal = self.stopped_by == Some(signal);
        self.stopped_by.get_or_insert(signal);
        self.limit_output_wait(now, StopReason::Signal);
        let ranks = self.collect_ranks(TableCause::Signal(signal));
        match std::mem::replace(&mut self.phase, JobPhase::Finished) {
            JobPhase::Starting => vec![self.finish_before_start(signal)],
            JobPhase::Joining { .. } if !self.has_started() => vec![self.finish_before_start(signal)],
            JobPhase::Observing { live, failure, .. } => {
                let ours = live.clone();
                let actions = self.stop_siblings_with_signal(now, signal, (live, failure));
                let said = self.stopping_event(now, signal, &ours);
                insert_action(actions, 1, said)
            }
            JobPhase::Running { live } | JobPhase::Undecided { live, .. } => {
                let ours = live.clone();
                let actions = self.stop_workers(now, live, StopCause::User, self.rules.worker_signal(signal));
                let said = self.stopping_event(now, signal, &ours);
                let told = self.report_stop_to_peers(LocalStop::Signal(signal));
                told.into_iter().chain(ranks).chain(insert_action(actions, 1, said)).collect()
            }
            JobPhase::Stopping { live, cause, stage: StopStage::Asked { signal: before, kill_at } } => {
                if again {
                    return self.kill_workers(now, (live, cause), WaitEnd::SecondSignal);
                }
                // The stop never extends a running grace period.
                let kill_at = kill_at.min(now + self.grace_period(StopReason::Signal));
                if is_same_signal {
                    // One request that came twice: a scheduler signals guard and agent alike.
                    self.phase = JobPhase::Stopping {
                        live,
                        cause,
                        stage: StopStage::Asked { signal: before, kill_at },
                    };
                    return Vec::new();
                }
                let stage = StopStage::Asked { signal: self.rules.worker_signal(signal), kill_at };
                let (told, ours) =
                    (self.signal_workers(&live, self.rules.worker_signal(signal)), live.clone());
                self.phase = JobPhase::Stopping { live, cause, stage };
                let known = self.report_stop_to_peers(LocalStop::Signal(signal));
                known.into_iter().chain([told, self.stopping_event(now, signal, &ours)]).collect()
            }
            JobPhase::Blaming { failure, .. }
            | JobPhase::Checking { failure, .. }
            | JobPhase::Waiting { failure, .. } => {
                vec![self.stopping_event(now, signal, &BTreeSet::new()), self.finish_failed(Some(failure))]
            }
            JobPhase::Joining { failure, .. } => {
                vec![self.stopping_event(now, signal, &BTreeSet::new()), self.finish_failed(failure)]
            }
            JobPhase::Settling { .. } => {
                let said = self.stopping_event(now, signal, &BTreeSet::new());
                [said].into_iter().chain(self.finish_failed_after_success()).collect()
            }
            phase @ (JobPhase::Stopping { stage: StopStage::Killed { .. }, .. }
            | JobPhase::ShuttingDown(_)
            | JobPhase::Finished) => {
                self.phase = phase;
                Vec::new()
            }
        }
    }

    fn finish_before_start(&self, signal: Signal) -> Action {
        let status = match self.rules.cli_flavor {
            CliFlavor::Torchrun => ExitStatus::Signal(signal as i32),
            CliFlavor::Rankrun => ExitStatus::of_signal(signal as i32),
        };
        Action::Finish(JobEnd {
            status,
            failure: None,
            stopped_by: Some(signal),
            time_limit: None,
            peer_notice: PeerNotice::Left,
            rule: None,
            remote_end: None,
            first_cause: None,
        })
    }

    fn stopping_event(&self, now: Instant, signal: Signal, live: &BTreeSet<LocalRank>) -> Action {
        let (told, grace) = (self.rules.worker_signal(signal), self.remaining_grace(now));
        Action::Emit(JobEvent::Stopping {
            signal,
            worker_signal: told,
            live: self.without_external_worker(live),
            grace,
        })
    }

    /// Passes a signal that stops nothing to the live workers, but not to their process groups: a data loader
    /// or a shell's helper that does not expect it would die of it.
    pub(super) fn forward_signal(&self, signal: Signal) -> Vec<Action> {
        match &self.phase {
            JobPhase::Running { live }
            | JobPhase::Undecided { live, .. }
            | JobPhase::Observing { live, .. }
            | JobPhase::Stopping { live, stage: StopStage::Asked { .. }, .. } => {
                vec![Action::ForwardSignal {
                    generation: self.generation,
                    local_ranks: self.without_external_worker(live),
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
            | JobPhase::ShuttingDown(_)
            | JobPhase::Finished => Vec::new(),
        }
    }
}
