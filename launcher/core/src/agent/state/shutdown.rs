//! What follows the outcome of the job on this node. Processes that the workers left running are swept, the
//! output of the workers is drained, the outcome is reported, and the other nodes are left. Pure.
//!
//! These are phases like all others: a signal is answered in each of them at once (invariant 10).

use std::time::{Duration, Instant};

use super::State;
use crate::agent::leftovers::{LeftoverLimits, LeftoverStep, LeftoverWait};
use crate::agent::message::{Action, Input, JobOutcome, SweepResult};
use crate::agent::phase::{FLUSH_TIMEOUT, JobPhase, Shutdown, ShutdownStep, USUAL_WAIT};
use crate::exit_code::{ExitStatus, LAUNCHER_FAILED};
use crate::job_event::ShutdownNotice;
use crate::posix::Signal;
use crate::spec::CliFlavor;
use crate::spec::stop::{AfterStop, LeftoverPolicy};

/// How long the file system of the parent's error file may take to answer, unless the job was told to end.
const PARENT_FILE_TIMEOUT: Duration = Duration::from_secs(10);
/// A longer wait is reported.
pub(super) const REPORT_DELAY: Duration = Duration::from_secs(2);

impl State {
    /// The first action of the shutdown. Only a success lets processes outlive the workers.
    pub(super) fn start_shutdown(&mut self, now: Instant, outcome: &JobOutcome) -> Action {
        let leftover_wait = match self.rules.leftovers {
            LeftoverPolicy::End { grace } if outcome.status == ExitStatus::SUCCESS => Some(grace),
            LeftoverPolicy::End { .. } | LeftoverPolicy::Keep => None,
        };
        let time_limit = self.time_limit_timer.expires_at();
        let limits =
            LeftoverLimits { wait: leftover_wait.unwrap_or_default(), stop: self.rules.stop, time_limit };
        let step = ShutdownStep::Sweeping(LeftoverWait::new(now, limits));
        let mut shutdown = Shutdown {
            status: outcome.status,
            signal: None,
            reason: outcome.stop_reason(),
            peers_until: None,
            step,
        };
        let action = match leftover_wait {
            Some(_) => Action::SweepLeftovers { step: LeftoverStep::Wait },
            None => self.start_drain(now, &mut shutdown),
        };
        self.phase = JobPhase::ShuttingDown(shutdown);
        action
    }

    /// A reader of the output may have stopped reading: the wait ends with the time limit, or with the grace
    /// period if the job was told to end.
    fn start_drain(&self, now: Instant, shutdown: &mut Shutdown) -> Action {
        let earliest = now + FLUSH_TIMEOUT;
        let give_up_at = match shutdown.reason {
            Some(reason) => Some(
                self.output_deadline
                    .unwrap_or_else(|| now + self.rules.stop.grace_period(reason, AfterStop::End)),
            ),
            None => shutdown.signal.map(|_| now),
        };
        let give_up_at = give_up_at.map(|at| at.max(earliest));
        let time_limit = self.time_limit_timer.expires_at().filter(|_| give_up_at.is_none());
        shutdown.step = ShutdownStep::Draining {
            give_up_at,
            time_limit: time_limit.map(|at| at.max(earliest)),
            report_at: Some(now + REPORT_DELAY),
        };
        Action::DrainOutput
    }

    pub(super) fn on_shutdown_input(&mut self, now: Instant, input: &Input) -> Vec<Action> {
        match std::mem::replace(&mut self.phase, JobPhase::Finished) {
            JobPhase::ShuttingDown(mut shutdown) => {
                match input {
                    Input::PeersNotified { until } => shutdown.peers_until = Some(*until),
                    Input::PeersLeft => shutdown.peers_until = None,
                    _ => {}
                }
                match shutdown.step {
                    ShutdownStep::Sweeping(_) => self.on_sweep_input(now, input, shutdown),
                    ShutdownStep::Draining { .. } => self.on_drain_input(now, input, shutdown),
                    ShutdownStep::WritingParentFile { .. } => self.on_parent_file_input(now, input, shutdown),
                    ShutdownStep::Leaving { .. } => self.on_leave_input(now, input, shutdown),
                }
            }
            phase => {
                self.phase = phase;
                Vec::new()
            }
        }
    }

    fn on_sweep_input(&mut self, now: Instant, input: &Input, mut shutdown: Shutdown) -> Vec<Action> {
        let ShutdownStep::Sweeping(wait) = &mut shutdown.step else { return Vec::new() };
        let mut actions = Vec::new();
        let is_over = match input {
            Input::StopRequested { signal, is_second } => {
                shutdown.signal.get_or_insert(*signal);
                let step = wait.on_signal(now, *signal, *is_second);
                actions.push(Action::SweepLeftovers { step });
                false
            }
            Input::DescendantReaped | Input::DeadlinePassed => {
                let step = wait.poll(now);
                actions.push(Action::SweepLeftovers { step });
                step == LeftoverStep::GiveUp
            }
            Input::LeftoversSwept { result: SweepResult::Empty } => true,
            Input::LeftoversSwept { result: SweepResult::Unknown } => {
                // Without a list there is nothing to wait for.
                shutdown.signal = None;
                actions.push(Action::KillLeftovers { generation: self.generation });
                false
            }
            Input::LeftoversKilled { remaining } => {
                self.scan_error = remaining.as_ref().err().copied();
                true
            }
            _ => false,
        };
        actions.extend(is_over.then(|| self.start_drain(now, &mut shutdown)));
        self.phase = JobPhase::ShuttingDown(shutdown);
        actions
    }

    fn on_drain_input(&mut self, now: Instant, input: &Input, mut shutdown: Shutdown) -> Vec<Action> {
        let ShutdownStep::Draining { give_up_at, time_limit, report_at } = &mut shutdown.step else {
            return Vec::new();
        };
        match input {
            Input::OutputDrained => vec![self.write_parent_file(now, shutdown)],
            Input::StopRequested { signal, .. } if self.is_new_stop_request(input) => {
                shutdown.signal = Some(*signal);
                vec![self.write_parent_file(now, shutdown)]
            }
            Input::DeadlinePassed if give_up_at.iter().chain(&*time_limit).any(|at| *at <= now) => {
                let notice = Action::Notify(ShutdownNotice::OutputAbandoned);
                vec![notice, self.write_parent_file(now, shutdown)]
            }
            Input::DeadlinePassed if report_at.take_if(|at| *at <= now).is_some() => {
                self.phase = JobPhase::ShuttingDown(shutdown);
                vec![Action::Notify(ShutdownNotice::OutputPending)]
            }
            _ => {
                self.phase = JobPhase::ShuttingDown(shutdown);
                Vec::new()
            }
        }
    }

    fn write_parent_file(&mut self, now: Instant, mut shutdown: Shutdown) -> Action {
        let timeout = if shutdown.reason.is_some() { FLUSH_TIMEOUT } else { PARENT_FILE_TIMEOUT };
        let (give_up_at, usual_until) = (now + timeout, now + USUAL_WAIT);
        shutdown.step = ShutdownStep::WritingParentFile { give_up_at, usual_until };
        self.phase = JobPhase::ShuttingDown(shutdown);
        Action::WriteParentFile
    }

    fn on_parent_file_input(&mut self, now: Instant, input: &Input, mut shutdown: Shutdown) -> Vec<Action> {
        let ShutdownStep::WritingParentFile { give_up_at, usual_until } = &mut shutdown.step else {
            return Vec::new();
        };
        if self.is_new_stop_request(input) {
            *give_up_at = (*give_up_at).min(*usual_until);
            shutdown.peers_until = None;
        }
        if *input == Input::ParentFileWritten || *give_up_at <= now {
            return self.report_and_leave(now, shutdown);
        }
        self.phase = JobPhase::ShuttingDown(shutdown);
        Vec::new()
    }

    /// The request that ended the job may come twice: a scheduler signals guard and agent alike.
    fn is_new_stop_request(&self, input: &Input) -> bool {
        matches!(input, Input::StopRequested { signal, is_second }
            if *is_second || self.stopped_by != Some(*signal))
    }

    fn report_and_leave(&mut self, now: Instant, mut shutdown: Shutdown) -> Vec<Action> {
        let Some(until) = shutdown.peers_until.filter(|until| now < *until) else {
            return vec![Action::ReportOutcome, self.exit(&shutdown)];
        };
        shutdown.step = ShutdownStep::Leaving { until, report_at: Some(now + REPORT_DELAY) };
        self.phase = JobPhase::ShuttingDown(shutdown);
        vec![Action::ReportOutcome]
    }

    fn on_leave_input(&mut self, now: Instant, input: &Input, mut shutdown: Shutdown) -> Vec<Action> {
        let ShutdownStep::Leaving { until, report_at } = &mut shutdown.step else { return Vec::new() };
        let is_over = match input {
            Input::StopRequested { .. } | Input::PeersLeft => true,
            Input::DeadlinePassed => *until <= now,
            _ => false,
        };
        if is_over {
            return vec![self.exit(&shutdown)];
        }
        let is_due = *input == Input::DeadlinePassed && report_at.take_if(|at| *at <= now).is_some();
        self.phase = JobPhase::ShuttingDown(shutdown);
        is_due.then_some(Action::Notify(ShutdownNotice::PeersPending)).into_iter().collect()
    }

    fn exit(&mut self, shutdown: &Shutdown) -> Action {
        self.phase = JobPhase::Finished;
        Action::Exit { status: self.shutdown_status(shutdown) }
    }

    fn shutdown_status(&self, shutdown: &Shutdown) -> ExitStatus {
        match (shutdown.signal, self.rules.cli_flavor) {
            _ if self.scan_error.is_some() => ExitStatus::Code(LAUNCHER_FAILED),
            (Some(signal), CliFlavor::Rankrun) if shutdown.status == ExitStatus::SUCCESS => {
                ExitStatus::of_signal(signal as i32)
            }
            (Some(_), CliFlavor::Torchrun) if shutdown.status == ExitStatus::SUCCESS => {
                ExitStatus::Code(LAUNCHER_FAILED)
            }
            _ => shutdown.status,
        }
    }

    /// The status of the [`Action::Exit`] that follows, and the signal that cut the shutdown short. Both are settled from
    /// [`Action::WriteParentFile`] on.
    #[must_use]
    pub fn expected_exit(&self) -> Option<(ExitStatus, Option<Signal>)> {
        match &self.phase {
            JobPhase::ShuttingDown(shutdown) => Some((self.shutdown_status(shutdown), shutdown.signal)),
            _ => None,
        }
    }
}

impl Shutdown {
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.step {
            ShutdownStep::Sweeping(wait) => Some(wait.deadline()),
            ShutdownStep::Draining { give_up_at, time_limit, report_at } => {
                give_up_at.iter().chain(time_limit).chain(report_at).min().copied()
            }
            ShutdownStep::WritingParentFile { give_up_at, .. } => Some(*give_up_at),
            ShutdownStep::Leaving { until, report_at } => Some(report_at.map_or(*until, |at| at.min(*until))),
        }
    }

    /// The time limit and the wait of the other nodes are times on the clock.
    pub(super) fn add_suspended_time(&mut self, lasted: Duration) {
        match &mut self.step {
            ShutdownStep::Sweeping(wait) => wait.add_suspended_time(lasted),
            ShutdownStep::Draining { give_up_at, report_at, .. } => {
                give_up_at.iter_mut().chain(report_at).for_each(|at| *at += lasted);
            }
            ShutdownStep::WritingParentFile { give_up_at, usual_until } => {
                *give_up_at += lasted;
                *usual_until += lasted;
            }
            ShutdownStep::Leaving { .. } => {}
        }
    }
}
