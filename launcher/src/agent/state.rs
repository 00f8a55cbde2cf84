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

mod finished;
mod grace;
mod limit;
mod rank_table;
mod rendezvous;
mod restart;
mod siblings;
mod signals;
mod start;
mod suspend;
mod window;

use std::collections::BTreeSet;
use std::time::{Instant, SystemTime};

use nix::sys::signal::Signal;

use rankrun_contract::rank::{Generation, LocalRank, RestartCount};

use crate::agent::dstate::{DStateWatch, UninterruptibleWorker};
use crate::agent::failure::{Failure, FailureKind, FollowingEnd};
use crate::agent::message::{Action, Input, JobEvent, WaitEnd, WorkerEnd};
use crate::agent::phase::{GIVE_UP_AFTER_KILL, JobPhase, StopCause, StopStage};
use crate::agent::policy::History;
use crate::agent::rules::JobRules;
use crate::process::Exit;
use crate::rendezvous::Round;

use finished::FinishedWorkers;
use limit::Timer;
use rendezvous::PeerStatus;

/// The state of one job on this node.
#[derive(Debug)]
pub struct State {
    rules: JobRules,
    generation: Generation,
    /// Restarts of this node, as the workers see them.
    restarts_used: RestartCount,
    /// Under the name rankrun restarts of all nodes, which share one budget; else of this node.
    restarts_of_job: RestartCount,
    stopped_by: Option<Signal>,
    /// The stop signals that this generation got.
    told: Vec<Signal>,
    phase: JobPhase,
    history: History,
    /// Watches the running generation for uninterruptible workers, if enabled.
    watch: Option<DStateWatch>,
    /// Start limit of the running generation, if enabled.
    join_by: Option<Instant>,
    finished: FinishedWorkers,
    /// The time limit of the job.
    timer: Timer,
    /// The end of the grace period since the user or the time limit asked for the end.
    patience: Option<Instant>,
    /// The status of the other nodes.
    others: PeerStatus,
}

impl State {
    /// The state before any start.
    #[must_use]
    pub fn new(rules: JobRules) -> Self {
        Self {
            rules,
            generation: Generation(0),
            restarts_used: RestartCount(0),
            restarts_of_job: RestartCount(0),
            stopped_by: None,
            told: Vec::new(),
            phase: JobPhase::Starting,
            history: History::new(),
            watch: None,
            join_by: None,
            finished: FinishedWorkers::default(),
            timer: Timer::default(),
            patience: None,
            others: PeerStatus::default(),
        }
    }

    /// Sets the seed of the restart policy's jitter.
    #[must_use]
    pub const fn with_seed(mut self, seed: u64) -> Self {
        self.history.seed = seed;
        self
    }

    /// When [`Input::DeadlinePassed`] is due, if nothing else happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let limits = self.time_limit_at().into_iter().chain(self.start_limit_at());
        self.phase_deadline().into_iter().chain(limits).chain(self.finished_told_at()).min()
    }

    fn phase_deadline(&self) -> Option<Instant> {
        match &self.phase {
            JobPhase::Stopping {
                stage: StopStage::Asked { kill_at: at, .. } | StopStage::Killed { give_up_at: at },
                ..
            } => Some(*at),
            JobPhase::Running { .. } => self.watch.as_ref().map(DStateWatch::next_look),
            JobPhase::Undecided { until, .. }
            | JobPhase::Observing { until, .. }
            | JobPhase::Blaming { until, .. } => Some(*until),
            JobPhase::Settling { say_at } => *say_at,
            JobPhase::Checking { say_at, give_up_at, .. } => say_at.iter().chain(give_up_at).min().copied(),
            JobPhase::Waiting { until, .. } => Some(*until),
            JobPhase::Starting | JobPhase::Joining { .. } | JobPhase::Finished => None,
        }
    }

    /// Processes an event; returns the actions to perform, in order.
    #[must_use]
    pub fn handle(&mut self, now: Instant, input: Input) -> Vec<Action> {
        let mut actions = self.stop_siblings_before(now, &input);
        actions.extend(self.take_in(now, input));
        actions
    }

    fn take_in(&mut self, now: Instant, input: Input) -> Vec<Action> {
        match input {
            Input::Ready => self.ready(now),
            Input::StartFailed { generation, failed } => self.start_failed(now, generation, failed),
            Input::Exited { generation, end } => self.exited(now, generation, end),
            Input::ExternalWorkerStarted { generation, local_rank, pid } => {
                let is_current = generation == self.generation && self.is_running();
                let said = is_current.then_some(JobEvent::StartedByHand { local_rank, pid });
                said.map(Action::Emit).into_iter().collect()
            }
            Input::StopRequested { signal, again } => self.stop_requested(now, signal, again),
            Input::SignalForwarded { signal } => self.pass(signal),
            Input::DStateProbed { generation, at, asleep } if generation == self.generation => {
                self.looked(now, at, &asleep)
            }
            Input::DStateProbed { .. } => Vec::new(),
            Input::JoinedProbed { generation, at, missing } => self.joins_seen(now, generation, at, &missing),
            Input::RanksCollected { generation, table } => self.ranks_collected(generation, table),
            Input::DevicesProbed { generation, checkup } => self.checked(now, generation, checkup),
            Input::DevicesReassigned { generation, seating } => self.reseated(now, generation, seating),
            Input::ProgressProbed { generation, sight } => self.progress_seen(now, generation, sight),
            Input::Joined(round) => self.joined(now, round),
            Input::Changed(change) => self.changed(now, change),
            Input::LostNodeFound(lost) => self.blamed(now, lost),
            Input::AllSucceeded => self.all_succeeded(),
            Input::Over(ending) => self.over(now, ending),
            Input::Resumed { lasted } => self.was_halted(lasted),
            Input::DeadlinePassed => self.deadline_passed(now),
        }
    }

    fn ready(&mut self, now: Instant) -> Vec<Action> {
        if self.phase != JobPhase::Starting {
            return Vec::new();
        }
        if self.rules.has_rendezvous {
            return vec![self.join(now, None)];
        }
        self.timer.start(self.rules.time_limit, now);
        vec![self.start(now, None)]
    }

    fn start(&mut self, now: Instant, round: Option<Box<Round>>) -> Action {
        let live = (0..self.rules.workers.get()).map(LocalRank).collect();
        self.watch = self.rules.stuck_limit.map(|limit| DStateWatch::new(limit, now));
        self.told.clear();
        self.timer.generation_began();
        self.join_by = self.rules.start_timeout.map(|limit| now + limit);
        self.finished = FinishedWorkers::default();
        self.phase = JobPhase::Running { live };
        self.history.generation_began(now);
        Action::Start { generation: self.generation, restart_count: self.restarts_used, round }
    }

    fn start_failed(&mut self, now: Instant, generation: Generation, failed: LocalRank) -> Vec<Action> {
        if generation != self.generation {
            return Vec::new();
        }
        self.cannot_start();
        match std::mem::replace(&mut self.phase, JobPhase::Finished) {
            JobPhase::Running { mut live } | JobPhase::Undecided { mut live, .. } => {
                live.retain(|local_rank| *local_rank < failed);
                self.stop(now, live, StopCause::NotStarted, Signal::SIGTERM)
            }
            // They were told to stop during the start: the job does not wait for workers that were not
            // started.
            JobPhase::Stopping { mut live, cause, stage } => {
                live.retain(|local_rank| *local_rank < failed);
                if live.is_empty() {
                    return self.stopped(now, cause);
                }
                self.phase = JobPhase::Stopping { live, cause, stage };
                Vec::new()
            }
            phase => {
                self.phase = phase;
                Vec::new()
            }
        }
    }

    fn exited(&mut self, now: Instant, generation: Generation, end: WorkerEnd) -> Vec<Action> {
        if generation != self.generation {
            return Vec::new();
        }
        match std::mem::replace(&mut self.phase, JobPhase::Finished) {
            JobPhase::Running { mut live } => {
                live.remove(&end.local_rank);
                if !end.exit.is_success() {
                    return self.ended_badly(now, live, end);
                }
                if live.is_empty() {
                    return self.all_succeeded_here(now);
                }
                self.finished.push(now, end);
                self.phase = JobPhase::Running { live };
                Vec::new()
            }
            JobPhase::Stopping { mut live, mut cause, stage } => {
                live.remove(&end.local_rank);
                let mut told = None;
                if let StopCause::Failure(failure) = &mut cause {
                    failure.followed_by(FollowingEnd { end, stopped: self.was_stopped(end.exit) });
                } else {
                    (cause, told) = self.ended_for_others(now, end, cause);
                }
                if live.is_empty() {
                    return told.into_iter().chain(self.stopped(now, cause)).collect();
                }
                self.phase = JobPhase::Stopping { live, cause, stage };
                told.into_iter().collect()
            }
            phase => {
                self.phase = phase;
                self.ended_undecided(end);
                self.sibling_ended(now, end)
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
    fn was_stopped(&self, exit: Exit) -> bool {
        let Exit::Signal { number, .. } = exit else { return false };
        let told = || self.told.iter().copied().chain(self.stopped_by);
        number == libc::SIGTERM || told().any(|signal| signal as i32 == number)
    }

    fn failed(&mut self, now: Instant, live: BTreeSet<LocalRank>, failure: Failure) -> Vec<Action> {
        let told = self.tell_of(failure.first);
        told.into_iter().chain(self.stop_for(now, live, failure)).collect()
    }

    fn stop_for(&mut self, now: Instant, live: BTreeSet<LocalRank>, failure: Failure) -> Vec<Action> {
        let (end, others) = (failure.first, self.ours(&live));
        let actions = self.stop(now, live, StopCause::Failure(failure), Signal::SIGTERM);
        let grace = self.left_of_the_grace(now);
        let said = Action::Emit(JobEvent::WorkerFailed { end, others, grace });
        // Said at once, but not before the running workers get the stop signal.
        let at = usize::from(matches!(actions.first(), Some(Action::Signal { .. })));
        with_at(actions, at, said)
    }

    fn failure(&self, now: Instant, first: WorkerEnd, manner: FailureKind) -> Failure {
        let (generation, restart_count) = (self.generation, self.restarts_of_job);
        let (others, dead_devices, not_joined) = (Vec::new(), Vec::new(), Box::default());
        let early = self.finished.before(now);
        Failure { generation, first, manner, early, others, restart_count, dead_devices, not_joined }
    }

    /// A worker that is uninterruptible for too long holds a device that a new worker would need: the job
    /// ends.
    fn looked(&mut self, now: Instant, at: SystemTime, asleep: &[UninterruptibleWorker]) -> Vec<Action> {
        let JobPhase::Running { live } = &self.phase else { return Vec::new() };
        let live = live.clone();
        let asleep: Vec<UninterruptibleWorker> =
            asleep.iter().filter(|found| live.contains(&found.local_rank)).copied().collect();
        let found = self.watch.as_mut().and_then(|watch| watch.found(now, &asleep));
        let (Some((asleep, dwell)), Some(limit)) = (found, self.rules.stuck_limit) else { return Vec::new() };
        let end = WorkerEnd::expected(asleep.local_rank, asleep.pid, Signal::SIGKILL, at);
        let failure = self.failure(now, end, FailureKind::Stuck { dwell });
        let told = self.tell_of(failure.first);
        let ours = self.ours(&live);
        let actions = self.stop(now, live, StopCause::Failure(failure), Signal::SIGTERM);
        let grace = self.left_of_the_grace(now);
        let said = Action::Emit(JobEvent::Stuck { asleep, dwell, limit, live: ours, grace });
        told.into_iter().chain(with_at(actions, 1, said)).collect()
    }

    fn deadline_passed(&mut self, now: Instant) -> Vec<Action> {
        let struck = self.time_limit_struck(now).or_else(|| self.start_limit_struck(now));
        if let Some(actions) = struck.or_else(|| self.finished_long_ago(now)) {
            return actions;
        }
        if self.phase_deadline().is_none_or(|deadline| now < deadline) {
            return Vec::new();
        }
        match std::mem::replace(&mut self.phase, JobPhase::Finished) {
            JobPhase::Stopping { live, cause, stage: StopStage::Asked { signal, .. } } => {
                self.kill(now, (live, cause), WaitEnd::GraceOver(signal))
            }
            JobPhase::Stopping { live, cause, stage: StopStage::Killed { .. } } => {
                let local_ranks = live.into_iter().collect();
                let said = Action::Emit(JobEvent::CannotEnd { local_ranks });
                let (cause, ended) = self.ended(cause);
                let end = self.end_without_restart(now, cause.into_failure());
                [said].into_iter().chain(ended).chain(end).collect()
            }
            JobPhase::Running { live } => {
                let local_ranks = self.ours(&live);
                self.phase = JobPhase::Running { live };
                if let Some(watch) = &mut self.watch {
                    watch.look(now);
                }
                vec![Action::ProbeDState { generation: self.generation, local_ranks }]
            }
            JobPhase::Undecided { live, failure, .. } => self.failed(now, live, failure),
            JobPhase::Observing { live, failure, .. } => self.stop_for(now, live, failure),
            JobPhase::Checking { failure, step, give_up_at, .. } => {
                self.look_lasts(now, (failure, step, give_up_at))
            }
            JobPhase::Waiting { failure, .. } => self.restart(now, failure),
            phase @ JobPhase::Blaming { .. } => {
                self.phase = phase;
                self.blamed(now, None)
            }
            JobPhase::Settling { .. } => {
                self.phase = JobPhase::Settling { say_at: None };
                vec![Action::Emit(JobEvent::Settling)]
            }
            phase @ (JobPhase::Starting | JobPhase::Joining { .. } | JobPhase::Finished) => {
                self.phase = phase;
                Vec::new()
            }
        }
    }

    /// The only way to stop workers: the signal to each process group, and SIGKILL after the cause's grace
    /// period.
    fn stop(
        &mut self,
        now: Instant,
        live: BTreeSet<LocalRank>,
        cause: StopCause,
        signal: Signal,
    ) -> Vec<Action> {
        self.history.generation_ended(now);
        let mut live = live;
        let left_out = self.rules.left_out.filter(|local_rank| live.remove(local_rank));
        let released = left_out.map(|_| Action::ReleaseExternalWorker { because: cause.released() });
        if live.is_empty() {
            return released.into_iter().chain(self.stopped(now, cause)).collect();
        }
        let told = self.signal(&live, signal);
        let grace = self.grace(self.reason_of(now, &cause));
        let stage = StopStage::Asked { signal, kill_at: now + grace };
        self.phase = JobPhase::Stopping { live, cause, stage };
        [told].into_iter().chain(released).collect()
    }

    fn kill(
        &mut self,
        now: Instant,
        (live, cause): (BTreeSet<LocalRank>, StopCause),
        because: WaitEnd,
    ) -> Vec<Action> {
        self.patience = self.patience.map(|until| until.min(now));
        let local_ranks = live.iter().copied().collect();
        let said = Action::Emit(JobEvent::Killing { local_ranks, because });
        let told = self.signal(&live, Signal::SIGKILL);
        let stage = StopStage::Killed { give_up_at: now + GIVE_UP_AFTER_KILL };
        self.phase = JobPhase::Stopping { live, cause, stage };
        vec![told, said]
    }

    fn signal(&mut self, live: &BTreeSet<LocalRank>, signal: Signal) -> Action {
        if !self.told.contains(&signal) {
            self.told.push(signal);
        }
        Action::Signal { generation: self.generation, local_ranks: self.ours(live), signal }
    }

    /// The live workers without the external worker.
    fn ours(&self, live: &BTreeSet<LocalRank>) -> Vec<LocalRank> {
        live.iter().copied().filter(|local_rank| self.rules.left_out != Some(*local_rank)).collect()
    }
}

fn with_at(mut actions: Vec<Action>, at: usize, action: Action) -> Vec<Action> {
    actions.insert(at.min(actions.len()), action);
    actions
}

#[cfg(test)]
#[path = "simulation/mod.rs"]
mod simulation;
#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
