//! The job as a state machine: (state, now, input) → actions. Pure: the agent's loop feeds the inputs and
//! performs the actions. Each submodule owns one concern; `restart` owns what follows the end of a
//! generation.
//!
//! Invariants, by their numbers in `ARCHITECTURE.md`, which the tests quote:
//!
//! - 1: at most one generation has living workers.
//! - 2: a worker is started only for a completed round.
//! - 4: every stop has a cause, a deadline and an end.
//! - 5: the first cause of a generation's end is never replaced; an effect of our own stop is never a cause.
//! - 6: restarts never exceed the budget, and events on other nodes use none of it.
//! - 7: no restart after a stop by the user or by the time limit, also not if one was pending.
//! - 8: the exit status is a function of the final state alone.
//! - 10: a signal is answered in every phase, and the second one kills.

pub mod control;
mod finished;
mod grace;
mod groups;
mod hang;
mod lease;
mod leftovers;
mod limit;
mod rank_table;
mod rendezvous;
mod restart;
mod shutdown;
mod siblings;
mod signals;
pub mod start;
mod suspend;
mod window;

use std::collections::BTreeSet;
use std::time::{Instant, SystemTime};

use rankrun_contract::rank::{Generation, LocalRank, RestartCount};

use crate::agent::dstate::DStateWatch;
use crate::agent::failure::{Failure, FollowingEnd};
use crate::agent::message::launcher_error::LauncherError;
use crate::agent::message::{Action, Input};
use crate::agent::phase::{GIVE_UP_AFTER_KILL, JobPhase, StartProgress, StopStage, Suspension};
use crate::agent::policy::History;
use crate::agent::rules::JobRules;
use crate::job_event::{FailureKind, JobEvent, UninterruptibleWorker, WorkerEnd};
use crate::posix::{Exit, ProcessIdentity, ProcessScanError, Signal};
use crate::rendezvous::Round;
use crate::spec::stop::StopReason;

use finished::FinishedWorkers;
use groups::EndedGroups;
use limit::Timer;
use rendezvous::PeerStatus;
use restart::PolicyAnswer;

/// The state of one job on this node.
#[derive(Debug)]
pub struct State {
    rules: JobRules,
    generation: Generation,
    /// Restarts of this node, as the workers see them.
    node_restarts: RestartCount,
    /// Under the name rankrun restarts of all nodes, which share one budget; else of this node.
    job_restarts: RestartCount,
    stopped_by: Option<Signal>,
    /// The guard has passed on a stop signal: the next one is the second.
    has_guard_stop: bool,
    /// A client has asked for a stop: the next such request is the second one.
    has_client_stop: bool,
    /// The stop signals that this generation got.
    sent_signals: Vec<Signal>,
    /// The process groups of workers that got a stop signal alone.
    groups: EndedGroups,
    phase: JobPhase,
    suspension: Option<Suspension>,
    history: History,
    /// The restart policy's answer to the failure of this generation.
    policy_answer: Option<PolicyAnswer>,
    /// Watches the running generation for uninterruptible workers, if enabled.
    dstate_watch: Option<DStateWatch>,
    start_progress: StartProgress,
    /// Start limit of the running generation, if enabled.
    join_by: Option<Instant>,
    finished: FinishedWorkers,
    /// The time limit of the job.
    time_limit_timer: Timer,
    /// The end of the grace period since the user or the time limit asked for the end.
    output_deadline: Option<Instant>,
    /// The status of the other nodes.
    peers: PeerStatus,
    /// Processes that the workers left behind and that SIGKILL did not end: they are not awaited again.
    survivors: Vec<ProcessIdentity>,
    /// The first error of the launcher itself.
    launcher_error: Option<LauncherError>,
    /// Why it is unknown whether a process of the job is left.
    scan_error: Option<ProcessScanError>,
}

impl State {
    /// The state before any start.
    #[must_use]
    pub fn new(rules: JobRules) -> Self {
        Self {
            rules,
            generation: Generation(0),
            node_restarts: RestartCount(0),
            job_restarts: RestartCount(0),
            stopped_by: None,
            has_guard_stop: false,
            has_client_stop: false,
            sent_signals: Vec::new(),
            groups: EndedGroups::default(),
            phase: JobPhase::Starting,
            suspension: None,
            history: History::new(),
            policy_answer: None,
            dstate_watch: None,
            start_progress: StartProgress::Done,
            join_by: None,
            finished: FinishedWorkers::default(),
            time_limit_timer: Timer::default(),
            output_deadline: None,
            peers: PeerStatus::default(),
            survivors: Vec::new(),
            launcher_error: None,
            scan_error: None,
        }
    }

    /// Sets the seed of the restart policy's jitter.
    #[must_use]
    pub const fn with_seed(mut self, seed: u64) -> Self {
        self.history.seed = seed;
        self
    }

    /// Why this node cannot go on, if its launcher is to blame.
    #[must_use]
    pub const fn launcher_error(&self) -> Option<&LauncherError> {
        self.launcher_error.as_ref()
    }

    /// Why it is unknown whether a process of the job is left.
    #[must_use]
    pub const fn scan_error(&self) -> Option<ProcessScanError> {
        self.scan_error
    }

    /// The processes that are not awaited any more: they have survived SIGKILL.
    #[must_use]
    pub fn survivors(&self) -> &[ProcessIdentity] {
        &self.survivors
    }

    /// When [`Input::DeadlinePassed`] is due, if nothing else happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        if self.is_suspended() {
            return self.time_limit_deadline();
        }
        let limits = self.next_time_limit_event().into_iter().chain(self.start_timeout_at());
        let reports = self.finished_report_at().into_iter().chain(self.groups_deadline());
        self.phase_deadline().into_iter().chain(limits).chain(reports).min()
    }

    fn phase_deadline(&self) -> Option<Instant> {
        match &self.phase {
            JobPhase::Stopping {
                stage:
                    StopStage::Asked { kill_at: at, .. }
                    | StopStage::Killed { give_up_at: at }
                    | StopStage::KillingLeftovers { next_try: at, .. },
                ..
            } => Some(*at),
            JobPhase::Running { .. } => self.dstate_watch.as_ref().map(DStateWatch::next_poll),
            JobPhase::Undecided { until, .. }
            | JobPhase::Observing { until, .. }
            | JobPhase::Blaming { until, .. } => Some(*until),
            JobPhase::Settling { report_at: say_at } => *say_at,
            JobPhase::Checking { report_at: say_at, give_up_at, .. } => {
                say_at.iter().chain(give_up_at).min().copied()
            }
            JobPhase::Waiting { until, .. } => Some(*until),
            JobPhase::ShuttingDown(shutdown) => shutdown.deadline(),
            JobPhase::Starting | JobPhase::Joining { .. } | JobPhase::Finished => None,
        }
    }

    /// Processes an event; returns the actions to perform, in order.
    #[must_use]
    pub fn handle(&mut self, now: Instant, input: Input) -> Vec<Action> {
        let mut actions = self.stop_siblings_on_input(now, &input);
        actions.extend(self.apply_input(now, input));
        let outcome = actions.iter().find_map(|action| match action {
            Action::Finish(outcome) => Some(outcome.clone()),
            _ => None,
        });
        actions.extend(outcome.map(|outcome| self.start_shutdown(now, &outcome)));
        actions
    }

    fn apply_input(&mut self, now: Instant, input: Input) -> Vec<Action> {
        match input {
            Input::SuspendRequested => self.suspend(now),
            Input::ResumeRequested => self.resume(now),
            Input::SuspendedTooLong => self.kill_suspended(),
            Input::RestartRequested => self.on_restart_requested(now),
            input if matches!(self.phase, JobPhase::ShuttingDown(_)) => self.on_shutdown_input(now, &input),
            Input::Ready => self.on_ready(now),
            Input::OpeningFailed(error) if self.phase == JobPhase::Starting => {
                self.launcher_error = Some(*error);
                vec![self.finish_failed(None)]
            }
            Input::Started { .. } | Input::StartFailed { .. } | Input::StartCancelled { .. } => {
                self.on_start_answer(now, input)
            }
            Input::Exited { generation, end } => self.on_worker_exit(now, generation, end),
            Input::ExternalWorkerStarted { generation, local_rank, pid } => {
                let is_current = generation == self.generation && self.is_running();
                let event = is_current.then_some(JobEvent::ExternalWorkerStarted { local_rank, pid });
                event.map(Action::Emit).into_iter().collect()
            }
            Input::StopRequested { signal, is_second: again } => self.on_stop_requested(now, signal, again),
            Input::SignalForwarded { signal } => self.forward_signal(signal),
            Input::DStateProbed { generation, at, uninterruptible } if generation == self.generation => {
                self.on_dstate_probed(now, at, &uninterruptible)
            }
            Input::DStateProbed { .. } => Vec::new(),
            Input::JoinedProbed { generation, at, missing } => {
                self.on_joined_probed(now, generation, at, &missing)
            }
            Input::HangJudged(judged) => self.on_hang_judged(now, *judged),
            Input::RanksCollected { generation, table } => self.on_ranks_collected(generation, table),
            Input::DevicesProbed { generation, report: checkup } => {
                self.on_devices_probed(now, generation, checkup)
            }
            Input::DevicesReassigned { generation, result } => {
                self.on_devices_reassigned(now, generation, result)
            }
            Input::ProgressProbed { generation, mark, exception } => {
                self.on_progress_probed(now, generation, (mark, exception))
            }
            Input::Joined(round) => self.on_round_joined(now, round),
            Input::Changed(change) => self.on_membership_change(now, change),
            Input::LostNodeFound(lost) => self.on_lost_node_answer(now, lost),
            Input::AllSucceeded => self.on_all_succeeded(),
            Input::RendezvousEnded(ending) => self.on_job_ended_elsewhere(now, ending),
            Input::OpeningFailed(_)
            | Input::LeftoversSwept { .. }
            | Input::OutputDrained
            | Input::ParentFileWritten
            | Input::PeersNotified { .. }
            | Input::PeersLeft => Vec::new(),
            Input::DescendantReaped if self.awaits_groups() => vec![self.check_groups()],
            Input::DescendantReaped => self.retry_kill_of_leftovers(),
            Input::Signalled { generation, alone, wrappers } => {
                self.on_signalled(generation, alone, wrappers)
            }
            Input::GroupsSignalled { generation, empty } => self.on_groups_signalled(now, generation, &empty),
            Input::LeftoversKilled { remaining } => self.on_leftovers_killed(now, remaining),
            Input::DeadlinePassed => self.on_deadline(now),
        }
    }

    fn on_ready(&mut self, now: Instant) -> Vec<Action> {
        if self.phase != JobPhase::Starting {
            return Vec::new();
        }
        vec![self.join_next_round(now, None)]
    }

    fn start_generation(&mut self, now: Instant, round: Box<Round>) -> Action {
        let live = (0..self.rules.workers.get()).map(LocalRank).collect();
        self.dstate_watch = self.rules.dstate_timeout.map(|limit| DStateWatch::new(limit, now));
        self.sent_signals.clear();
        self.groups = EndedGroups::default();
        self.time_limit_timer.reset_warning();
        self.join_by = self.rules.start_timeout.map(|limit| now + limit);
        self.finished = FinishedWorkers::default();
        self.phase = JobPhase::Running { live };
        self.start_progress = StartProgress::Pending;
        self.history.record_start(now);
        self.policy_answer = None;
        Action::Start { generation: self.generation, restart_count: self.node_restarts, round }
    }

    /// The workers before `failed` run, and no other worker will be started.
    fn on_start_ended(&mut self, now: Instant, failed: LocalRank) -> Vec<Action> {
        self.start_progress = StartProgress::Done;
        match std::mem::replace(&mut self.phase, JobPhase::Finished) {
            JobPhase::Running { mut live } | JobPhase::Undecided { mut live, .. } => {
                live.retain(|local_rank| *local_rank < failed);
                self.stop_workers(now, live, StopReason::NotStarted, None)
            }
            // They were told to stop during the start: the job does not wait for workers that were not
            // started.
            phase @ JobPhase::Stopping { stage: StopStage::KillingLeftovers { .. }, .. } => {
                self.phase = phase;
                Vec::new()
            }
            JobPhase::Stopping { mut live, reason, failure, stage } => {
                live.retain(|local_rank| *local_rank < failed);
                self.phase = JobPhase::Stopping { live, reason, failure, stage };
                self.end_stop_if_over(now)
            }
            phase => {
                self.phase = phase;
                Vec::new()
            }
        }
    }

    fn on_worker_exit(&mut self, now: Instant, generation: Generation, end: WorkerEnd) -> Vec<Action> {
        if generation != self.generation {
            return Vec::new();
        }
        match std::mem::replace(&mut self.phase, JobPhase::Finished) {
            JobPhase::Running { mut live } => {
                live.remove(&end.local_rank);
                if !end.exit.is_success() {
                    return self.on_failed_exit(now, live, end);
                }
                if live.is_empty() {
                    return self.on_local_success(now);
                }
                self.finished.push(now, end);
                self.phase = JobPhase::Running { live };
                Vec::new()
            }
            phase @ JobPhase::Stopping { stage: StopStage::KillingLeftovers { .. }, .. } => {
                self.phase = phase;
                Vec::new()
            }
            JobPhase::Stopping { mut live, reason, mut failure, stage } => {
                live.remove(&end.local_rank);
                let mut report = None;
                if let Some(failure) = &mut failure {
                    failure.push_exit(FollowingEnd {
                        end,
                        is_stopped_by_us: self.is_exit_by_our_signal(end.exit),
                    });
                } else if let Some(found) = self.find_failure_in_membership_stop(now, end, reason) {
                    report = self.report_failure_to_peers(&found);
                    failure = Some(found);
                }
                self.phase = JobPhase::Stopping { live, reason, failure, stage };
                let groups = self.signal_group_of(now, end.local_rank);
                report.into_iter().chain(groups).chain(self.end_stop_if_over(now)).collect()
            }
            phase => {
                self.phase = phase;
                self.record_undecided_exit(end);
                self.on_sibling_exit(now, end)
            }
        }
    }

    /// True if workers run and none was told to end.
    const fn is_running(&self) -> bool {
        matches!(
            self.phase,
            JobPhase::Running { .. } | JobPhase::Undecided { .. } | JobPhase::Observing { .. }
        )
    }

    /// True if a worker's exit may come from our stop signal, or from a signal that the launcher and the
    /// workers got alike.
    fn is_exit_by_our_signal(&self, exit: Exit) -> bool {
        let Exit::Signal { number, .. } = exit else { return false };
        let stop_signals = || self.sent_signals.iter().copied().chain(self.stopped_by);
        number == Signal::SIGTERM as i32 || stop_signals().any(|signal| signal as i32 == number)
    }

    fn report_failure_and_stop(
        &mut self,
        now: Instant,
        live: BTreeSet<LocalRank>,
        failure: Failure,
    ) -> Vec<Action> {
        let report = self.report_failure_to_peers(&failure);
        report.into_iter().chain(self.stop_after_failure(now, live, failure)).collect()
    }

    fn stop_after_failure(
        &mut self,
        now: Instant,
        live: BTreeSet<LocalRank>,
        failure: Failure,
    ) -> Vec<Action> {
        let (end, still_live) = (failure.first, self.without_external_worker(&live));
        let actions = self.stop_workers(now, live, StopReason::WorkerFailed, Some(failure));
        let grace = self.remaining_grace(now);
        let event = Action::Emit(JobEvent::WorkerFailed { end, live: still_live, grace });
        // The running workers get the stop signal before the user reads of it.
        let at = usize::from(matches!(actions.first(), Some(Action::Signal { .. })));
        insert_action(actions, at, event)
    }

    fn new_failure(&self, now: Instant, first: WorkerEnd, kind: FailureKind) -> Failure {
        Failure {
            generation: self.generation,
            first,
            kind,
            early_successes: self.finished.early_successes(now),
            following_ends: Vec::new(),
            restart_count: self.job_restarts,
            dead_devices: Vec::new(),
            not_joined: Box::default(),
            hang: None,
        }
    }

    /// A worker that is uninterruptible for too long holds a device that a new worker would need: the job
    /// ends.
    fn on_dstate_probed(
        &mut self,
        now: Instant,
        at: SystemTime,
        uninterruptible: &[UninterruptibleWorker],
    ) -> Vec<Action> {
        let JobPhase::Running { live } = &self.phase else { return Vec::new() };
        let live = live.clone();
        let uninterruptible: Vec<UninterruptibleWorker> =
            uninterruptible.iter().filter(|found| live.contains(&found.local_rank)).copied().collect();
        let found =
            self.dstate_watch.as_mut().and_then(|watch| watch.record_blocked_workers(now, &uninterruptible));
        let (Some((uninterruptible, dwell)), Some(limit)) = (found, self.rules.dstate_timeout) else {
            return Vec::new();
        };
        let end =
            WorkerEnd::new_expected(uninterruptible.local_rank, uninterruptible.pid, Signal::SIGKILL, at);
        let failure = self.new_failure(now, end, FailureKind::Uninterruptible { blocked_for: dwell });
        let report = self.report_failure_to_peers(&failure);
        let ours = self.without_external_worker(&live);
        let actions = self.stop_workers(now, live, StopReason::WorkerFailed, Some(failure));
        let grace = self.remaining_grace(now);
        let event = Action::Emit(JobEvent::Uninterruptible {
            worker: uninterruptible,
            blocked_for: dwell,
            limit,
            live: ours,
            grace,
        });
        report.into_iter().chain(insert_action(actions, 1, event)).collect()
    }

    fn on_deadline(&mut self, now: Instant) -> Vec<Action> {
        let limit_actions = self.on_time_limit_event(now).or_else(|| self.on_start_timeout(now));
        let reports = limit_actions.or_else(|| self.report_finished_workers(now));
        if let Some(actions) = reports.or_else(|| self.on_groups_deadline(now)) {
            return actions;
        }
        if self.phase_deadline().is_none_or(|deadline| now < deadline) {
            return Vec::new();
        }
        match std::mem::replace(&mut self.phase, JobPhase::Finished) {
            phase @ JobPhase::Stopping { stage: StopStage::Asked { signal, .. }, .. } => {
                self.phase = phase;
                self.kill_workers(now, Some(signal))
            }
            JobPhase::Stopping { live, reason, failure, stage: StopStage::Killed { .. } } => {
                let local_ranks = live.iter().copied().collect();
                let event = Action::Emit(JobEvent::CannotEnd { local_ranks });
                let (failure, settled) = self.settle_failure(failure);
                let kill = self.kill_leftovers(now, live, reason, failure);
                [event, kill].into_iter().chain(settled).collect()
            }
            phase @ JobPhase::Stopping { stage: StopStage::KillingLeftovers { .. }, .. } => {
                self.phase = phase;
                self.retry_kill_of_leftovers()
            }
            JobPhase::Running { live } => {
                let local_ranks = self.without_external_worker(&live);
                self.phase = JobPhase::Running { live };
                if let Some(watch) = &mut self.dstate_watch {
                    watch.schedule_next_poll(now);
                }
                vec![Action::ProbeDState { generation: self.generation, local_ranks }]
            }
            JobPhase::Undecided { live, failure, .. } => self.report_failure_and_stop(now, live, failure),
            JobPhase::Observing { live, failure, .. } => self.stop_after_failure(now, live, failure),
            JobPhase::Checking { failure, step, give_up_at, .. } => {
                self.on_check_deadline(now, (failure, step, give_up_at))
            }
            JobPhase::Waiting { failure, .. } => self.restart(now, failure),
            phase @ JobPhase::Blaming { .. } => {
                self.phase = phase;
                self.on_lost_node_answer(now, None)
            }
            JobPhase::Settling { .. } => {
                self.phase = JobPhase::Settling { report_at: None };
                vec![Action::Emit(JobEvent::Settling)]
            }
            phase @ (JobPhase::Starting
            | JobPhase::Joining { .. }
            | JobPhase::ShuttingDown(_)
            | JobPhase::Finished) => {
                self.phase = phase;
                Vec::new()
            }
        }
    }

    /// The only way to stop workers: the signal to each rank or its process group
    /// ([`signal_scope`](super::signal_scope)), and SIGKILL to all groups after the grace period of this reason.
    fn stop_workers(
        &mut self,
        now: Instant,
        live: BTreeSet<LocalRank>,
        reason: StopReason,
        failure: Option<Failure>,
    ) -> Vec<Action> {
        self.history.record_first_end(now);
        let mut live = live;
        let external_worker = self.rules.external_worker.filter(|local_rank| live.remove(local_rank));
        let failed = failure.as_ref().map(|failure| failure.first);
        let released = external_worker.map(|_| Action::ReleaseExternalWorker { reason, failed });
        if live.is_empty() {
            return released.into_iter().chain(self.on_workers_stopped(now, reason, failure)).collect();
        }
        let signal = match reason {
            StopReason::Signal(signal) => self.rules.worker_signal(signal),
            _ => Signal::SIGTERM,
        };
        let signal = self.rules.options.signal_of_stop(signal);
        let signal_action = self.signal_workers(&live, signal);
        let after = self.expected_after_stop(now, reason, failure.as_ref());
        let stage = StopStage::Asked { signal, kill_at: now + self.rules.stop.grace_period(reason, after) };
        self.phase = JobPhase::Stopping { live, reason, failure, stage };
        [signal_action].into_iter().chain(released).collect()
    }

    fn kill_workers(&mut self, now: Instant, ignored_signal: Option<Signal>) -> Vec<Action> {
        self.output_deadline = self.output_deadline.map(|until| until.min(now));
        if self.awaits_groups() {
            return self.kill_groups(now, ignored_signal);
        }
        let JobPhase::Stopping { live, stage, .. } = &mut self.phase else { return Vec::new() };
        *stage = StopStage::Killed { give_up_at: now + GIVE_UP_AFTER_KILL };
        let live = live.clone();
        let signal_action = self.signal_workers(&live, Signal::SIGKILL);
        let groups = self.signal_ended_groups(Signal::SIGKILL);
        let local_ranks = live.into_iter().collect();
        let event = Action::Emit(JobEvent::Killing { local_ranks, ignored_signal });
        [signal_action].into_iter().chain(groups).chain([event]).collect()
    }

    fn signal_workers(&mut self, live: &BTreeSet<LocalRank>, signal: Signal) -> Action {
        if !self.sent_signals.contains(&signal) {
            self.sent_signals.push(signal);
        }
        Action::Signal {
            generation: self.generation,
            local_ranks: self.without_external_worker(live),
            signal,
        }
    }

    /// The live workers without the external worker.
    fn without_external_worker(&self, live: &BTreeSet<LocalRank>) -> Vec<LocalRank> {
        live.iter().copied().filter(|local_rank| self.rules.external_worker != Some(*local_rank)).collect()
    }
}

fn insert_action(mut actions: Vec<Action>, at: usize, action: Action) -> Vec<Action> {
    actions.insert(at.min(actions.len()), action);
    actions
}

#[cfg(test)]
#[path = "simulation/mod.rs"]
mod simulation;
#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
