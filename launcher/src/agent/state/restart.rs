//! What follows the last reap of a generation: a look at its devices, a restart, or the end. Pure.

use std::time::{Duration, Instant};

use rankrun_contract::rank::{Generation, LocalWorldSize};

use super::State;
use crate::agent::checkup::Checkup;
use crate::agent::failure::Failure;
use crate::agent::message::{Action, Happening, JobEnd};
use crate::agent::phase::{Phase, Step, StopCause};
use crate::exit_code::{ExitStatus, LAUNCHER_FAILED, TIME_LIMIT};
use crate::spec::{Persona, Unhealthy};

/// A look at the devices that takes longer says so.
const SILENT_WAIT: Duration = Duration::from_secs(2);

impl State {
    /// The last worker of a stopped generation was reaped.
    pub(super) fn stopped(&mut self, now: Instant, cause: StopCause) -> Vec<Action> {
        let (cause, mut actions) = self.ended(cause);
        match cause {
            StopCause::Failure(failure) if self.is_worth_a_look() => {
                self.look(now, failure, Step::Condition);
                actions.push(Action::CheckDevices { generation: self.generation });
            }
            StopCause::Failure(failure) => actions.extend(self.restart_or_finish(now, failure)),
            StopCause::User | StopCause::TimeLimit | StopCause::NotStarted => {
                actions.push(self.finish_failed(None))
            }
        }
        actions
    }

    /// Whether somebody looks at the devices after a failure, and a restart may come of it.
    fn is_worth_a_look(&self) -> bool {
        self.rules.unhealthy.is_some() && self.stopped_by.is_none() && !self.timer.is_over()
    }

    /// The cause is known when nobody is left who could have another story.
    pub(super) fn ended(&self, cause: StopCause) -> (StopCause, Vec<Action>) {
        let mut actions = vec![Action::KillLeftovers { generation: self.generation }];
        let StopCause::Failure(failure) = cause else { return (cause, actions) };
        let failure = failure.settle();
        actions.push(Action::Say(Happening::GroupFailed { cause: failure.first }));
        (StopCause::Failure(failure), actions)
    }

    /// The devices were looked at. Where that gave no answer, it is as if nobody had asked.
    pub(super) fn checked(&mut self, now: Instant, generation: Generation, checkup: Checkup) -> Vec<Action> {
        let Some(mut failure) = self.looked_at(generation, Step::Condition) else { return Vec::new() };
        let mut actions: Vec<Action> = checkup.told().map(Action::Say).collect();
        failure.dead_devices = checkup.dead;
        if failure.dead_devices.is_empty() {
            actions.extend(self.restart_or_finish(now, failure));
        } else if !self.may_restart(&failure) {
            actions.push(self.finish_failed(Some(failure)));
        } else if self.rules.unhealthy == Some(Unhealthy::Exclude) {
            self.look(now, failure, Step::Seats);
            actions.push(Action::Reseat { generation });
        } else {
            actions.push(Action::Say(Happening::NoRestart { why: None }));
            actions.push(self.finish_failed(Some(failure)));
        }
        actions
    }

    /// There are seats on the devices that are left, or there are not.
    pub(super) fn reseated(
        &mut self,
        now: Instant,
        generation: Generation,
        seating: Result<LocalWorldSize, String>,
    ) -> Vec<Action> {
        let Some(failure) = self.looked_at(generation, Step::Seats) else { return Vec::new() };
        match seating {
            Ok(workers) => {
                self.rules.workers = workers;
                let said = Action::Say(Happening::Reseated { workers });
                [said].into_iter().chain(self.restart_or_finish(now, failure)).collect()
            }
            Err(why) => {
                let said = Action::Say(Happening::NoRestart { why: Some(why) });
                vec![said, self.finish_failed(Some(failure))]
            }
        }
    }

    fn look(&mut self, now: Instant, failure: Failure, step: Step) {
        self.phase = Phase::Checking { failure, step, say_at: Some(now + SILENT_WAIT) };
    }

    /// The failure after which this was looked at; nothing where nobody waits for it any more.
    fn looked_at(&mut self, generation: Generation, awaited: Step) -> Option<Failure> {
        match std::mem::replace(&mut self.phase, Phase::Finished) {
            Phase::Checking { failure, step, .. } if generation == self.generation && step == awaited => {
                Some(failure)
            }
            phase => {
                self.phase = phase;
                None
            }
        }
    }

    pub(super) fn may_restart(&self, failure: &Failure) -> bool {
        failure.is_restartable() && self.stopped_by.is_none() && self.restarts_used < self.rules.max_restarts
    }

    fn restart_or_finish(&mut self, now: Instant, failure: Failure) -> Vec<Action> {
        if !self.may_restart(&failure) || self.no_time_for_a_restart(now) {
            return vec![self.finish_failed(Some(failure))];
        }
        self.restarts_used.0 += 1;
        self.generation.0 += 1;
        vec![Action::Say(Happening::Restarting { used: self.restarts_used }), self.start(now)]
    }

    pub(super) fn finish_failed(&mut self, failure: Option<Failure>) -> Action {
        let status = match (self.rules.persona, self.stopped_by, &failure) {
            (Persona::Rankrun, ..) if self.timer.ended_it() => ExitStatus::Code(TIME_LIMIT),
            (Persona::Torchrun, Some(signal), _) if self.rules.for_workers(signal) != signal => {
                ExitStatus::Signal(signal as i32)
            }
            (Persona::Torchrun, ..) | (Persona::Rankrun, None, None) => ExitStatus::Code(LAUNCHER_FAILED),
            (Persona::Rankrun, Some(signal), _) => ExitStatus::of_signal(signal as i32),
            (Persona::Rankrun, None, Some(failure)) => failure.status(),
        };
        self.phase = Phase::Finished;
        let limit = self.rules.time_limit.filter(|_| self.timer.ended_it());
        let time_limit = limit.map(|limit| limit.limit);
        Action::Finish(JobEnd { status, failure, stopped_by: self.stopped_by, time_limit })
    }

    pub(super) fn succeed(&mut self) -> Action {
        self.phase = Phase::Finished;
        let status = ExitStatus::SUCCESS;
        Action::Finish(JobEnd { status, failure: None, stopped_by: None, time_limit: None })
    }
}
