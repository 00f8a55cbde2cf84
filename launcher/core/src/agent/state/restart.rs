//! What follows the last reap of a generation: a check of its devices and of the job's progress, then a
//! restart, perhaps after a wait, or the end. `policy` decides on the restart, once for each failure: a later
//! check may only forbid what it granted. Pure.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::posix::{Exit, Signal};
use rankrun_contract::rank::{Generation, LocalWorldSize, RestartCount};

use super::State;
use crate::agent::device_report::DeviceReport;
use crate::agent::failure::Failure;
use crate::agent::message::{Action, JobOutcome, PeerNotice};
use crate::agent::phase::{CheckStep, JobPhase};
use crate::agent::policy::Decision;
use crate::agent::recurrence::{FailureSignature, ProgressMark, RaisedException};
use crate::exit_code::{ExitStatus, LAUNCHER_FAILED, TIME_LIMIT};
use crate::job_event::{FailureKind, JobEvent, NoRestart, WorkerEnd};
use crate::rendezvous::note::RuleNote;
use crate::spec::stop::StopReason;
use crate::spec::{CliFlavor, Unhealthy};

/// A longer check is reported.
const CHECK_REPORT_DELAY: Duration = Duration::from_secs(2);
/// A folder that has not answered by then counts as unreadable.
const PROGRESS_PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// The policy's answer, and what it depends on: a stop ends the job, and later evidence may change the cause.
#[derive(Debug)]
pub(super) struct PolicyAnswer {
    first: WorkerEnd,
    kind: FailureKind,
    stopped_by: Option<Signal>,
    decision: Decision,
}

impl State {
    /// The last worker of a stopped generation was reaped.
    pub(super) fn on_workers_stopped(
        &mut self,
        now: Instant,
        reason: StopReason,
        failure: Option<Failure>,
    ) -> Vec<Action> {
        let (failure, settled) = self.settle_failure(failure);
        let kill = self.kill_leftovers(now, BTreeSet::new(), reason, failure);
        [kill].into_iter().chain(settled).collect()
    }

    /// No process of the generation is left.
    pub(super) fn on_generation_ended(
        &mut self,
        now: Instant,
        reason: StopReason,
        failure: Option<Failure>,
    ) -> Vec<Action> {
        match (failure, reason) {
            (Some(failure), _) => match self.resolve_peer_cause(now, &failure) {
                Some(actions) => actions,
                None => self.check_devices_or_decide(now, failure),
            },
            (None, StopReason::Membership) => self.rejoin(now),
            (None, StopReason::RestartRequest) => self.restart_by_request(now),
            (None, _) => vec![self.finish_failed(None)],
        }
    }

    pub(super) fn check_devices_or_decide(&mut self, now: Instant, failure: Failure) -> Vec<Action> {
        if !self.needs_device_check() {
            return self.probe_progress_or_decide(now, failure);
        }
        self.start_check(now, failure, CheckStep::Condition);
        vec![Action::ProbeDevices { generation: self.generation }]
    }

    /// True if devices are checked after a failure and a restart may follow.
    fn needs_device_check(&self) -> bool {
        self.rules.unhealthy.is_some() && self.stopped_by.is_none() && !self.time_limit_timer.has_expired()
    }

    /// Settles the cause of a failure, once no worker is left that could add evidence.
    pub(super) fn settle_failure(&self, failure: Option<Failure>) -> (Option<Failure>, Vec<Action>) {
        let mut actions = Vec::new();
        let Some(failure) = failure else { return (None, actions) };
        let reported_rank = failure.first.local_rank;
        let failure = failure.settle();
        if failure.first.local_rank != reported_rank {
            actions.extend(self.report_failure_to_peers(&failure));
        }
        actions.push(Action::Emit(JobEvent::GroupFailed { cause: failure.first }));
        (Some(failure), actions)
    }

    /// The health check is complete. A check without an answer forbids nothing.
    pub(super) fn on_devices_probed(
        &mut self,
        now: Instant,
        generation: Generation,
        checkup: DeviceReport,
    ) -> Vec<Action> {
        let is_asked = |step| (step == CheckStep::Condition).then_some(());
        let Some((mut failure, ())) = self.take_check(generation, is_asked) else { return Vec::new() };
        let mut actions: Vec<Action> = checkup.events().map(Action::Emit).collect();
        failure.dead_devices = checkup.dead;
        if failure.dead_devices.is_empty() {
            actions.extend(self.probe_progress_or_decide(now, failure));
            return actions;
        }
        match self.decide_restart(now, &failure) {
            Decision::Restart { wait } if self.rules.unhealthy == Some(Unhealthy::Exclude) => {
                self.start_check(now, failure, CheckStep::Devices { wait });
                actions.push(Action::ReassignDevices { generation });
            }
            Decision::Restart { .. } => {
                actions.push(Action::Emit(JobEvent::NoRestart { reason: None }));
                actions.push(self.finish_failed(Some(failure)));
            }
            decision => actions.extend(self.apply_decision(now, decision, failure)),
        }
        actions
    }

    /// The remaining devices are assigned, or cannot be.
    pub(super) fn on_devices_reassigned(
        &mut self,
        now: Instant,
        generation: Generation,
        result: Result<LocalWorldSize, String>,
    ) -> Vec<Action> {
        let granted = |step| if let CheckStep::Devices { wait } = step { Some(wait) } else { None };
        let Some((failure, wait)) = self.take_check(generation, granted) else { return Vec::new() };
        match result {
            Ok(workers) => {
                self.rules.workers = workers;
                let event = Action::Emit(JobEvent::DevicesReassigned { workers });
                [event].into_iter().chain(self.probe_progress_or_restart(now, wait, failure)).collect()
            }
            Err(why) => {
                let event = Action::Emit(JobEvent::NoRestart { reason: Some(why) });
                vec![event, self.finish_failed(Some(failure))]
            }
        }
    }

    /// The progress check is complete. A check without an answer forbids nothing.
    pub(super) fn on_progress_probed(
        &mut self,
        now: Instant,
        generation: Generation,
        (mark, exception): (Option<ProgressMark>, Option<RaisedException>),
    ) -> Vec<Action> {
        let granted = |step| if let CheckStep::Progress { wait } = step { Some(wait) } else { None };
        let Some((failure, wait)) = self.take_check(generation, granted) else { return Vec::new() };
        let event = match mark {
            Some(mark) => {
                let rank = self.history.rank_of(failure.first.local_rank);
                self.history.record_progress(mark, FailureSignature::of(&failure, rank, exception));
                self.history.unmeasured_recurrence(&self.rules.restart).map(|it| {
                    let (signature, restarts) = (Box::new(it.signature.clone()), it.restarts);
                    Action::Emit(JobEvent::CauseRecurs { signature, restarts })
                })
            }
            None => Some(Action::Emit(JobEvent::ProgressUnknown)),
        };
        let restart = Decision::Restart { wait };
        let decision =
            self.history.refuse_without_progress(&self.rules.restart).map_or(restart, Decision::Fail);
        event.into_iter().chain(self.apply_decision(now, decision, failure)).collect()
    }

    /// A check takes long, or too long.
    pub(super) fn on_check_deadline(
        &mut self,
        now: Instant,
        (failure, step, give_up_at): (Failure, CheckStep, Option<Instant>),
    ) -> Vec<Action> {
        self.phase = JobPhase::Checking { failure, step, report_at: None, give_up_at };
        if give_up_at.is_some_and(|at| at <= now) {
            return self.on_progress_probed(now, self.generation, (None, None));
        }
        vec![Action::Emit(match step {
            CheckStep::Condition | CheckStep::Devices { .. } => JobEvent::CheckingDevices,
            CheckStep::Progress { .. } => JobEvent::LookingForProgress,
        })]
    }

    fn start_check(&mut self, now: Instant, failure: Failure, step: CheckStep) {
        // A device check has its own deadlines.
        let give_up_at = matches!(step, CheckStep::Progress { .. }).then(|| now + PROGRESS_PROBE_TIMEOUT);
        self.phase =
            JobPhase::Checking { failure, step, report_at: Some(now + CHECK_REPORT_DELAY), give_up_at };
    }

    /// Ends the check whose step `select` accepts: the failure that it belongs to, and what `select` returns.
    /// `None` if the job does not wait for that check.
    fn take_check<T>(
        &mut self,
        generation: Generation,
        select: impl Fn(CheckStep) -> Option<T>,
    ) -> Option<(Failure, T)> {
        let JobPhase::Checking { step, .. } = &self.phase else { return None };
        let selected = select(*step).filter(|_| generation == self.generation)?;
        match std::mem::replace(&mut self.phase, JobPhase::Finished) {
            JobPhase::Checking { failure, .. } => Some((failure, selected)),
            _ => None,
        }
    }

    /// The policy's answer to this failure. It is asked when the workers are stopped, and again only if the job is
    /// told to stop or another worker turns out to be the cause.
    pub(super) fn decide_restart(&mut self, now: Instant, failure: &Failure) -> Decision {
        let (first, kind, stopped_by) = (failure.first, failure.kind, self.stopped_by);
        let is_same = |answer: &&PolicyAnswer| {
            (answer.first, answer.kind, answer.stopped_by) == (first, kind, stopped_by)
        };
        if let Some(answer) = self.policy_answer.as_ref().filter(is_same) {
            return answer.decision;
        }
        let policy = (&self.rules.restart, self.rules.max_restarts);
        let decision = self.history.decide_restart(policy, stopped_by, failure, now);
        self.policy_answer = Some(PolicyAnswer { first, kind, stopped_by, decision });
        decision
    }

    fn probe_progress_or_decide(&mut self, now: Instant, failure: Failure) -> Vec<Action> {
        match self.decide_restart(now, &failure) {
            Decision::Restart { wait } => self.probe_progress_or_restart(now, wait, failure),
            decision => self.apply_decision(now, decision, failure),
        }
    }

    /// The policy has granted a restart after this wait; only a lack of progress may still forbid it.
    fn probe_progress_or_restart(&mut self, now: Instant, wait: Duration, failure: Failure) -> Vec<Action> {
        if self.rules.restart.progress.is_none() || self.time_limit_timer.has_expired() {
            return self.restart_at(now, now + wait, failure);
        }
        // The exit code that Python has for an exception.
        let has_raised = failure.kind == FailureKind::Ended && failure.first.exit == Exit::Code(1);
        let raised_by = has_raised.then_some(failure.first.local_rank);
        self.start_check(now, failure, CheckStep::Progress { wait });
        vec![Action::ProbeProgress { generation: self.generation, raised_by }]
    }

    pub(super) fn apply_decision(
        &mut self,
        now: Instant,
        decision: Decision,
        failure: Failure,
    ) -> Vec<Action> {
        match decision {
            Decision::Restart { wait } => self.restart_at(now, now + wait, failure),
            Decision::Succeed(rule) => {
                vec![Action::Emit(JobEvent::CalledSuccess { rule }), self.succeed(RuleNote::of(&rule))]
            }
            Decision::Fail(refusal) => {
                // The summary tells how many restarts were used, and a user that stopped the job knows.
                let is_known_to_user =
                    matches!(refusal, NoRestart::Stopped | NoRestart::Uninterruptible | NoRestart::Budget);
                let event = (!is_known_to_user).then_some(Action::Emit(JobEvent::RestartRefused(refusal)));
                let mut finish = self.finish_failed(Some(failure));
                if let (Action::Finish(end), NoRestart::Rule(rule)) = (&mut finish, refusal)
                    && let Some(rule) = RuleNote::of(&rule)
                {
                    end.status = rule.then.status();
                    end.rule = Some(rule);
                }
                event.into_iter().chain([finish]).collect()
            }
        }
    }

    pub(super) fn restart_at(&mut self, now: Instant, at: Instant, failure: Failure) -> Vec<Action> {
        let until = self.restart_held_until(&failure).map_or(at, |held| held.max(at));
        if self.expires_before(until) {
            let refusal = NoRestart::TooLate { wait: until.saturating_duration_since(now) };
            let event = (until > now).then_some(Action::Emit(JobEvent::RestartRefused(refusal)));
            return event.into_iter().chain([self.finish_failed(Some(failure))]).collect();
        }
        if until <= now {
            return self.restart(now, failure);
        }
        self.phase = JobPhase::Waiting { failure, until };
        let used = RestartCount(self.job_restarts.0 + 1);
        // Without a back-off the user is not told: the wait is over in half a second.
        let event = (at > now).then_some(Action::Emit(JobEvent::Waiting { wait: until - now, used }));
        event.into_iter().collect()
    }

    /// A process remains that should be gone: there is no restart, but a rule may still decide the result.
    pub(super) fn end_without_restart(&mut self, now: Instant, failure: Option<Failure>) -> Vec<Action> {
        let Some(failure) = failure else { return vec![self.finish_failed(None)] };
        if let Some(end) = self.finish_if_caused_by_peer(&failure) {
            return vec![end];
        }
        match self.decide_restart(now, &failure) {
            Decision::Restart { .. } => vec![self.finish_failed(Some(failure))],
            decision => self.apply_decision(now, decision, failure),
        }
    }

    /// Carries out a restart that the policy allows.
    pub(super) fn restart(&mut self, now: Instant, failure: Failure) -> Vec<Action> {
        self.history.record_restart(now, &self.rules.restart);
        self.history.record_first_failure(!failure.first.has_lost_remote_peer());
        self.node_restarts.0 += 1;
        self.job_restarts.0 += 1;
        self.generation.0 += 1;
        let event = Action::Emit(JobEvent::Restarting { used: self.job_restarts });
        vec![event, self.join_next_round(now, Some(failure))]
    }

    pub(super) fn finish_failed(&mut self, failure: Option<Failure>) -> Action {
        let elsewhere = self.remote_exit_status().filter(|_| self.stopped_by.is_none());
        // A job that has succeeded shows no failure.
        let failure = failure.filter(|_| elsewhere != Some(ExitStatus::SUCCESS));
        let status = match (self.rules.cli_flavor, self.stopped_by, &failure) {
            (CliFlavor::Rankrun, ..) if self.time_limit_timer.has_ended_job() => ExitStatus::Code(TIME_LIMIT),
            (CliFlavor::Torchrun, ..) if self.time_limit_timer.has_ended_job() => {
                ExitStatus::Code(LAUNCHER_FAILED)
            }
            _ if elsewhere.is_some() => elsewhere.unwrap_or(ExitStatus::Code(LAUNCHER_FAILED)),
            (CliFlavor::Torchrun, Some(signal), _) if self.rules.worker_signal(signal) != signal => {
                ExitStatus::Signal(signal as i32)
            }
            (CliFlavor::Torchrun, ..) | (CliFlavor::Rankrun, None, None) => ExitStatus::Code(LAUNCHER_FAILED),
            (CliFlavor::Rankrun, Some(signal), _) => ExitStatus::of_signal(signal as i32),
            (CliFlavor::Rankrun, None, Some(failure)) => failure.exit_status(),
        };
        self.phase = JobPhase::Finished;
        let limit = self.rules.time_limit.filter(|_| self.time_limit_timer.has_ended_job());
        let time_limit = limit.map(|limit| limit.limit);
        let peer_notice = self.peer_notice(failure.as_ref());
        let (elsewhere, first_cause) = self.remote_end_and_cause();
        let first_cause = first_cause.map(Box::new);
        let stopped_by = self.stopped_by;
        Action::Finish(JobOutcome {
            status,
            failure,
            stopped_by,
            time_limit,
            peer_notice,
            rule: None,
            remote_end: elsewhere,
            first_cause,
        })
    }

    /// The success of the job, by this rule if not all workers have succeeded.
    pub(super) fn succeed(&mut self, rule: Option<RuleNote>) -> Action {
        self.phase = JobPhase::Finished;
        let outcome = JobOutcome::new(ExitStatus::SUCCESS, PeerNotice::Succeeded);
        Action::Finish(JobOutcome { rule, ..outcome })
    }
}
