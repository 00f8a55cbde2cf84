//! What the launcher's own signals mean: the end of the job, or a signal to pass on to its workers. Pure.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::posix::Signal;

use rankrun_contract::rank::LocalRank;

use super::{State, insert_action};
use crate::agent::message::{Action, Input, JobOutcome, PeerNotice};
use crate::agent::phase::{JobPhase, StopStage};
use crate::exit_code::ExitStatus;
use crate::job_event::JobEvent;
use crate::spec::CliFlavor;
use crate::spec::stop::{AfterStop, StopReason};

impl State {
    /// The input for a stop signal that came through the guard. The second one kills. A signal that was sent to the
    /// agent itself does not count: it may be the same one. The requests are counted as they come, so the input says all
    /// that the state needs, whichever way it came.
    #[must_use]
    pub fn stop_by_guard(&mut self, signal: Signal) -> Input {
        Input::StopRequested { signal, is_second: std::mem::replace(&mut self.has_guard_stop, true) }
    }

    /// The input for `rankrun stop`. The second one kills. A first signal and a first `rankrun stop` are one stop:
    /// Kubernetes sends SIGTERM after a `preStop` hook.
    #[must_use]
    pub fn stop_by_client(&mut self) -> Input {
        let is_second = std::mem::replace(&mut self.has_client_stop, true);
        Input::StopRequested { signal: Signal::SIGTERM, is_second }
    }

    /// The launcher was told to stop; `again` is true for a second request.
    pub(super) fn on_stop_requested(&mut self, now: Instant, signal: Signal, again: bool) -> Vec<Action> {
        let is_same_signal = self.stopped_by == Some(signal);
        self.stopped_by.get_or_insert(signal);
        self.limit_output_wait(now, StopReason::Signal(signal));
        let ranks = self.collect_ranks(StopReason::Signal(signal));
        match std::mem::replace(&mut self.phase, JobPhase::Finished) {
            JobPhase::Starting => vec![self.finish_before_start(signal)],
            JobPhase::Joining { .. } if !self.has_started() => vec![self.finish_before_start(signal)],
            JobPhase::Observing { live, failure, .. } => {
                let ours = live.clone();
                let actions = self.stop_siblings_with_signal(now, signal, (live, failure));
                let event = self.stopping_event(now, signal, &ours);
                insert_action(actions, 1, event)
            }
            JobPhase::Running { live } | JobPhase::Undecided { live, .. } => {
                let ours = live.clone();
                let actions = self.stop_workers(now, live, StopReason::Signal(signal), None);
                let event = self.stopping_event(now, signal, &ours);
                let notices = self.report_stop_to_peers(StopReason::Signal(signal));
                notices.into_iter().chain(ranks).chain(insert_action(actions, 1, event)).collect()
            }
            phase @ JobPhase::Stopping { stage: StopStage::Asked { .. }, .. } => {
                self.phase = phase;
                if again {
                    return self.kill_workers(now, None);
                }
                self.limit_kill_time(Some(
                    now + self.rules.stop.grace_period(StopReason::Signal(signal), AfterStop::End),
                ));
                // One request may come twice: a scheduler signals guard and agent alike.
                if is_same_signal { Vec::new() } else { self.change_stop_signal(now, signal) }
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
                let event = self.stopping_event(now, signal, &BTreeSet::new());
                [event]
                    .into_iter()
                    .chain(self.finish_failed_after_success(now, StopReason::Signal(signal)))
                    .collect()
            }
            phase @ JobPhase::Stopping { stage: StopStage::KillingLeftovers { .. }, .. } => {
                self.phase = phase;
                self.limit_leftover_wait(now, signal, again);
                // One request may come twice, as above.
                if again || !is_same_signal { self.report_leftovers(now) } else { Vec::new() }
            }
            phase @ (JobPhase::Stopping { stage: StopStage::Killed { .. }, .. }
            | JobPhase::ShuttingDown(_)
            | JobPhase::Finished) => {
                self.phase = phase;
                Vec::new()
            }
        }
    }

    /// Another stop signal came while the workers are being stopped.
    fn change_stop_signal(&mut self, now: Instant, signal: Signal) -> Vec<Action> {
        let worker_signal = self.rules.options.signal_of_stop(self.rules.worker_signal(signal));
        let JobPhase::Stopping { live, stage: StopStage::Asked { signal: sent, .. }, .. } = &mut self.phase
        else {
            return Vec::new();
        };
        *sent = worker_signal;
        let live = live.clone();
        let notice = self.report_stop_to_peers(StopReason::Signal(signal));
        let signal_action = (!live.is_empty()).then(|| self.signal_workers(&live, worker_signal));
        let groups = self.signal_ended_groups(worker_signal);
        let event = match self.awaits_groups() {
            true => self.awaiting_groups_event(now),
            false => Some(self.stopping_event(now, signal, &live)),
        };
        notice.into_iter().chain(signal_action).chain(groups).chain(event).collect()
    }

    fn finish_before_start(&self, signal: Signal) -> Action {
        let status = match self.rules.cli_flavor {
            CliFlavor::Torchrun => ExitStatus::Signal(signal as i32),
            CliFlavor::Rankrun => ExitStatus::of_signal(signal as i32),
        };
        let outcome = JobOutcome::new(status, PeerNotice::Left);
        Action::Finish(JobOutcome { stopped_by: Some(signal), ..outcome })
    }

    fn stopping_event(&self, now: Instant, signal: Signal, live: &BTreeSet<LocalRank>) -> Action {
        let worker_signal = self.rules.options.signal_of_stop(self.rules.worker_signal(signal));
        let grace = self.remaining_grace(now);
        Action::Emit(JobEvent::Stopping { signal, worker_signal, live: self.running_workers(live), grace })
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
            JobPhase::Stopping {
                stage: StopStage::Killed { .. } | StopStage::KillingLeftovers { .. },
                ..
            }
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
