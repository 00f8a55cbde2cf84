//! Machines that break one invariant each: the real machine with a fault in its inputs or in its actions.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

use rankrun_contract::rank::{Generation, LocalRank, RestartCount};

use super::faults::{Fault, faulty_state};
use super::machine;
use super::oracle::WINDOW;
use super::others::{lost_node, note_with_loss, round};
use super::setup::{MOST_WORKERS, Setup};
use crate::agent::message::{Action, Input, JobOutcome, PeerNotice};
use crate::agent::phase::{CheckStep, JobPhase, ShutdownStep, StopStage};
use crate::agent::state::State;
use crate::exit_code::{ExitStatus, LAUNCHER_FAILED, REQUEUE};
use crate::job_event::{JobEvent, WorkerEnd};
use crate::posix::{Exit, Pid, Signal};
use crate::rendezvous::{LossRole, MembershipChange};
use crate::spec::stop::StopReason;

/// What the virtual node talks to.
pub(super) trait Machine {
    fn deadline(&self) -> Option<Instant>;
    fn next_input(&self, now: Instant, queue: &mut VecDeque<Input>) -> Option<Input>;
    fn handle(&mut self, now: Instant, input: Input) -> Vec<Action>;
}

/// The real machine, and the node on which it kills what the workers leave behind.
pub(super) struct SweptState {
    state: State,
    setup: Setup,
}

impl SweptState {
    pub(super) fn new(setup: &Setup) -> Self {
        Self { state: machine(setup), setup: *setup }
    }
}

impl Machine for SweptState {
    fn deadline(&self) -> Option<Instant> {
        self.state.deadline()
    }

    fn next_input(&self, now: Instant, queue: &mut VecDeque<Input>) -> Option<Input> {
        self.state.next_input(now, queue)
    }

    fn handle(&mut self, now: Instant, input: Input) -> Vec<Action> {
        handle_with_sweep((&mut self.state, &self.setup), now, input)
    }
}

/// The actions of a turn. The processes that the workers left behind end at once, but for the one that SIGKILL does not
/// end.
fn handle_with_sweep((state, setup): (&mut State, &Setup), now: Instant, input: Input) -> Vec<Action> {
    let mut actions = state.handle(now, input);
    let killed = actions.iter().find_map(|action| match action {
        Action::KillLeftovers { generation } => Some(*generation),
        _ => None,
    });
    if let Some(generation) = killed {
        let remaining = Ok(setup.unkillable_after(generation).into_iter().collect());
        actions.extend(state.handle(now, Input::LeftoversKilled { remaining }));
    }
    // A start that fails is answered by the node.
    let started = actions.iter().find_map(|action| match action {
        Action::Start { generation, .. } if !setup.fails_to_start(*generation) => Some(*generation),
        _ => None,
    });
    if let Some(generation) = started {
        actions.extend(state.handle(now, Input::Started { generation }));
    }
    actions
}

/// The real machine with a fault.
pub(super) struct Mutant {
    real: State,
    fault: Fault,
    setup: Setup,
    generation: Generation,
    was_ready: bool,
    phase: MutantPhase,
}

/// The machine's state as seen from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MutantPhase {
    Running,
    Stopping,
    Killing,
    Checking,
    ShuttingDown,
    Nothing,
}

impl Mutant {
    pub(super) fn new(fault: Fault, setup: &Setup) -> Self {
        let (generation, phase) = (Generation(0), MutantPhase::Nothing);
        Self { real: faulty_state(fault, setup), fault, setup: *setup, generation, was_ready: false, phase }
    }

    /// The inputs that the real machine gets instead.
    fn alter_input(&mut self, input: Input) -> Vec<Input> {
        let was_ready = std::mem::replace(&mut self.was_ready, true);
        match (self.fault, self.phase, input) {
            (
                Fault::StartsBesideTheOld,
                MutantPhase::Stopping | MutantPhase::Killing,
                input @ Input::Exited { .. },
            ) => self.with_all_ended(input, Exit::Signal { number: libc::SIGTERM, core_dumped: false }),
            (Fault::DoesNotWait, MutantPhase::Running, input @ Input::Exited { .. }) => {
                self.with_all_ended(input, Exit::Code(0))
            }
            (Fault::CountsEndsTwice, _, input @ Input::Exited { .. }) => vec![input.clone(), input],
            (Fault::StartsAtOnce, _, input) if !was_ready => vec![Input::Ready, input],
            (Fault::NeverGivesUp, MutantPhase::Killing, Input::DeadlinePassed)
            | (Fault::DeafWhileChecking, MutantPhase::Checking, Input::StopRequested { .. })
            | (
                Fault::DeafWhileStopping,
                MutantPhase::Stopping,
                Input::StopRequested { is_second: false, .. },
            ) => Vec::new(),
            (fault, _, Input::StopRequested { .. }) if self.ignores_in_shutdown(fault) => Vec::new(),
            (Fault::IgnoresARestartRequest, _, Input::RestartRequested) => Vec::new(),
            (Fault::RestartsWhileSuspended, _, Input::RestartRequested) if self.real.is_suspended() => {
                vec![Input::ResumeRequested, Input::RestartRequested]
            }
            (Fault::KillsEarly, MutantPhase::Stopping, Input::StopRequested { signal, .. }) => {
                vec![Input::StopRequested { signal, is_second: true }]
            }
            (Fault::AsksOnceMore, _, Input::StopRequested { signal, .. }) => {
                vec![Input::StopRequested { signal, is_second: false }]
            }
            (Fault::KillsTheGroup, _, Input::Signalled { generation, .. }) => {
                vec![Input::Signalled { generation, alone: Vec::new(), wrappers: Vec::new() }]
            }
            (Fault::AcceptsOldAnswers, _, Input::ExternalWorkerStarted { local_rank, pid, .. }) => {
                vec![Input::ExternalWorkerStarted { generation: self.generation, local_rank, pid }]
            }
            (Fault::AcceptsOldAnswers, _, Input::DevicesProbed { report: checkup, .. }) => {
                vec![Input::DevicesProbed { generation: self.generation, report: checkup }]
            }
            (Fault::ForgivesTheMissing, _, Input::JoinedProbed { generation, at, .. }) => {
                vec![Input::JoinedProbed { generation, at, missing: Vec::new() }]
            }
            (Fault::BlamesTheWarned, MutantPhase::Running, Input::Exited { generation, mut end })
                if self.setup.is_exit_by_warning(end.exit) =>
            {
                end.exit = Exit::Code(1);
                vec![Input::Exited { generation, end }]
            }
            (Fault::BlamesTheSuspect, _, input @ Input::StopRequested { .. }) if self.is_undecided() => {
                vec![Input::DeadlinePassed, input]
            }
            (_, _, input) => self.alter_peer_input(input),
        }
    }

    /// Changes the state of the real machine around a requested restart.
    fn alter_restart_request(&mut self, now: Instant, actions: &[Action]) {
        let is_counted = actions.contains(&Action::Emit(JobEvent::RestartedByRequest));
        if self.fault == Fault::CountsARestartRequest && is_counted {
            let policy = self.real.rules.restart.clone();
            self.real.history.record_restart(now, &policy);
        }
        let is_requested =
            matches!(self.real.phase, JobPhase::Stopping { reason: StopReason::RestartRequest, .. });
        if self.fault == Fault::RestartsByRequestAfterAStop && is_requested {
            self.real.stopped_by = None;
        }
    }

    /// The same for inputs about other nodes.
    fn alter_peer_input(&self, input: Input) -> Vec<Input> {
        let lost = || Input::Changed(MembershipChange::Lost(lost_node(LossRole::EndsRound)));
        match (self.fault, self.phase, input) {
            (Fault::RunsOnAlone, MutantPhase::Running, Input::Changed(_)) => Vec::new(),
            (Fault::OutlivesTheLease, _, Input::Changed(MembershipChange::CutOff { .. })) => vec![lost()],
            (Fault::TakesTheBlame, _, Input::LostNodeFound(_)) => vec![Input::LostNodeFound(None)],
            (Fault::DeafWhileJoining, _, Input::StopRequested { .. })
                if matches!(self.real.phase, JobPhase::Joining { .. }) =>
            {
                Vec::new()
            }
            (Fault::RestartsAfterTheClose, MutantPhase::Running, Input::RendezvousEnded(_)) => vec![lost()],
            (Fault::TakesALossForTheCause, _, Input::Changed(MembershipChange::Failed(_))) => {
                vec![Input::Changed(MembershipChange::from(note_with_loss(None)))]
            }
            (Fault::CountsALostNode, _, Input::Changed(MembershipChange::Lost(lost)))
                if lost.role == LossRole::FirstFailure =>
            {
                vec![Input::Changed(MembershipChange::from(note_with_loss(None)))]
            }
            (Fault::ForgetsTheJobsRestarts, _, Input::Changed(MembershipChange::Failed(_))) => {
                vec![lost()]
            }
            (_, _, input) => vec![input],
        }
    }

    const fn ignores_in_shutdown(&self, fault: Fault) -> bool {
        let JobPhase::ShuttingDown(shutdown) = &self.real.phase else { return false };
        match shutdown.step {
            ShutdownStep::Sweeping(_) => matches!(fault, Fault::IgnoresSignalsInSweep),
            ShutdownStep::Draining { .. } => matches!(fault, Fault::IgnoresSignalsInDrain),
            ShutdownStep::WritingParentFile { .. } => matches!(fault, Fault::IgnoresSignalsInParentFile),
            ShutdownStep::Leaving { .. } => matches!(fault, Fault::IgnoresSignalsAfterReport),
        }
    }

    const fn is_killing_leftovers(&self) -> bool {
        matches!(self.real.phase, JobPhase::Stopping { stage: StopStage::KillingLeftovers { .. }, .. })
    }

    const fn is_undecided(&self) -> bool {
        matches!(self.real.phase, JobPhase::Undecided { .. })
    }

    /// The machine waits for the checkpoint folder and has said so.
    const fn is_probing(&self) -> bool {
        matches!(
            self.real.phase,
            JobPhase::Checking { step: CheckStep::Progress { .. }, report_at: None, .. }
        )
    }

    /// True if it waits without an event: the wait comes from the window, not from the back-off.
    fn is_held(&self, actions: &[Action]) -> bool {
        let is_said = |action: &Action| matches!(action, Action::Emit(JobEvent::Waiting { .. }));
        matches!(self.real.phase, JobPhase::Waiting { .. })
            && !actions.is_empty()
            && !actions.iter().any(is_said)
    }

    /// The time that the real machine is given.
    fn alter_time(&self, now: Instant) -> Instant {
        match self.fault {
            Fault::ClosesTheWindowEarly | Fault::BlamesTheSuspect if self.is_undecided() => now + WINDOW,
            _ => now,
        }
    }

    fn with_all_ended(&self, input: Input, exit: Exit) -> Vec<Input> {
        let (pid, at) = (Pid::from_raw(1), SystemTime::UNIX_EPOCH);
        let end =
            |local_rank| WorkerEnd { local_rank, pid, exit, at, error_file_info: None, foreign_kill: None };
        let ended = |rank| Input::Exited { generation: self.generation, end: end(LocalRank(rank)) };
        [input].into_iter().chain((0..MOST_WORKERS).map(ended)).collect()
    }

    /// The actions instead of those that the real machine returned for `input`.
    fn alter_actions(&self, input: &Input, mut actions: Vec<Action>) -> Vec<Action> {
        let begins = |action: &Action| matches!(action, Action::Start { .. } | Action::Join { .. });
        let goes_on = actions.iter().any(begins);
        let is_warning = |action: &Action| matches!(action, Action::Emit(JobEvent::TimeIsShort { .. }));
        let is_leftovers = |action: &Action| matches!(action, Action::KillLeftovers { .. });
        match self.fault {
            Fault::LeavesLeftovers if goes_on => actions.retain(|action| !is_leftovers(action)),
            Fault::LeavesLeftoversAtTheEnd if !goes_on => actions.retain(|action| !is_leftovers(action)),
            Fault::StartsTwice => {
                let start = actions.iter().find(|action| matches!(action, Action::Start { .. })).cloned();
                actions.extend(start);
            }
            Fault::SwallowsTheKill if *input == Input::DeadlinePassed => {
                actions.retain(|action| !matches!(action, Action::Signal { signal: Signal::SIGKILL, .. }));
            }
            Fault::StopsForNothing if matches!(input, Input::SignalForwarded { .. }) => {
                actions.push(self.stop_of_all());
            }
            Fault::CollectsRanksLate => {
                actions.sort_by_key(|action| matches!(action, Action::CollectRanks { .. }));
            }
            Fault::WarningStops if actions.iter().any(is_warning) => actions.push(self.stop_of_all()),
            Fault::SpeaksAfterTheEnd
                if self.phase == MutantPhase::Nothing && self.was_ready && actions.is_empty() =>
            {
                actions.push(Action::Emit(JobEvent::CheckingDevices));
            }
            Fault::LeavesThemSuspended => actions.retain(|action| !matches!(action, Action::Resume { .. })),
            Fault::SignalsThePerson => self.signal_external_worker(&mut actions),
            Fault::SparesTheGroup => {
                actions.retain(|action| !matches!(action, Action::SignalGroups { signal: Some(_), .. }));
            }
            _ => {}
        }
        self.restart_anyway(input, &mut actions);
        self.alter_peer_actions(&mut actions);
        actions.iter_mut().for_each(|action| match action {
            Action::Start { restart_count, .. } if self.fault == Fault::ForgetsItsRestarts => {
                *restart_count = RestartCount(0);
            }
            Action::Finish(end) => self.alter_outcome(end),
            _ => {}
        });
        let blamed = actions.iter().find_map(|action| match action {
            Action::Finish(end) => end.failure.as_ref().map(|failure| failure.first),
            _ => None,
        });
        for action in &mut actions {
            if let (Action::Emit(JobEvent::GroupFailed { cause }), Some(blamed)) = (action, blamed) {
                *cause = blamed;
            }
        }
        actions
    }

    fn alter_peer_actions(&self, actions: &mut Vec<Action>) {
        match self.fault {
            // Told failures have an invariant of their own.
            Fault::KeepsItsFailureToItself | Fault::BlamesTheSuspect => {
                actions.retain(|action| !matches!(action, Action::TellFailure { .. }));
            }
            Fault::StartsWithoutARound => {
                let (generation, restart_count) = (self.generation, RestartCount(0));
                let start = || Action::Start { generation, restart_count, round: Box::new(round(0)) };
                let joins = actions.iter_mut().filter(|action| matches!(action, Action::Join { .. }));
                joins.for_each(|join| *join = start());
            }
            _ => {}
        }
        for action in actions {
            match (self.fault, action) {
                (Fault::StartsInTheOldRound, Action::Start { round, .. }) => round.number -= 1,
                (Fault::CountsWhatOthersDo, Action::Start { generation, restart_count, .. }) => {
                    restart_count.0 = generation.0;
                }
                (Fault::ClosesWhenItLeaves, Action::Finish(end)) => end.peer_notice = PeerNotice::Failed,
                _ => {}
            }
        }
    }

    fn stop_of_all(&self) -> Action {
        let local_ranks = (0..self.setup.workers).map(LocalRank).collect();
        Action::Signal { generation: self.generation, local_ranks, signal: Signal::SIGTERM }
    }

    fn signal_external_worker(&self, actions: &mut [Action]) {
        for action in actions {
            if let Action::Signal { local_ranks, .. } = action {
                local_ranks.extend(self.setup.external_worker.map(LocalRank));
            }
        }
    }

    fn restart_anyway(&self, input: &Input, actions: &mut Vec<Action>) {
        let budget_left = self.generation.0 < self.setup.max_restarts;
        let Some((at, end)) = actions.iter().enumerate().find_map(|(at, action)| match action {
            Action::Finish(end) => Some((at, end)),
            _ => None,
        }) else {
            return;
        };
        let is_last_input = matches!(input, Input::Exited { .. } | Input::LostNodeFound(None));
        let was_ended = is_last_input && end.failure.is_some();
        let restarts = match self.fault {
            Fault::RestartsOnceTooOften => was_ended && !budget_left && end.stopped_by.is_none(),
            Fault::RestartsAfterTheTimeLimit => end.time_limit.is_some(),
            Fault::RestartsAfterAStop => was_ended && budget_left && end.stopped_by.is_some(),
            _ => false,
        };
        if restarts {
            actions.truncate(at);
            actions.push(Action::Join { workers: self.real.rules.workers, leaves_if_possible: false });
        }
    }

    fn alter_outcome(&self, end: &mut JobOutcome) {
        match (self.fault, &mut end.failure) {
            (Fault::HidesTheTimeLimit, _) if end.time_limit.is_some() => {
                end.status = ExitStatus::Code(LAUNCHER_FAILED);
            }
            (Fault::ForgetsToRequeue, _) if end.status == ExitStatus::Code(REQUEUE) => {
                end.status = ExitStatus::Code(LAUNCHER_FAILED);
            }
            (Fault::PraisesAFailure, _) => end.status = ExitStatus::SUCCESS,
            (Fault::RemembersThePast, Some(_)) if self.generation != Generation(0) => {
                end.status = ExitStatus::Code(LAUNCHER_FAILED);
            }
            (Fault::ForgetsAnEnd, Some(failure)) => {
                failure.following_ends.pop();
            }
            (Fault::BlamesTheLast, Some(failure)) => {
                if let Some(last) = failure.following_ends.last_mut() {
                    std::mem::swap(&mut last.end, &mut failure.first);
                }
            }
            (Fault::BlamesItsVictim, Some(failure)) => {
                if let Some(victim) = failure.following_ends.iter_mut().find(|other| other.is_stopped_by_us) {
                    std::mem::swap(&mut victim.end, &mut failure.first);
                }
            }
            (Fault::ForgetsTheCause, failure) if end.stopped_by.is_some() => *failure = None,
            _ => {}
        }
    }

    fn watch(&mut self, actions: &[Action]) {
        for action in actions {
            self.phase = match action {
                Action::Start { generation, .. } => {
                    self.generation = *generation;
                    MutantPhase::Running
                }
                Action::Signal { signal: Signal::SIGKILL, .. } => MutantPhase::Killing,
                Action::Signal { .. } => MutantPhase::Stopping,
                Action::ProbeDevices { .. }
                | Action::ReassignDevices { .. }
                | Action::ProbeProgress { .. } => MutantPhase::Checking,
                Action::Exit { .. } => MutantPhase::Nothing,
                Action::Finish(_) => MutantPhase::ShuttingDown,
                _ => self.phase,
            };
        }
    }
}

impl Machine for Mutant {
    fn deadline(&self) -> Option<Instant> {
        let deadline = self.real.deadline();
        match (self.fault, self.phase) {
            (Fault::KillsLate, MutantPhase::Stopping) => deadline.map(|at| at + Duration::from_millis(200)),
            (Fault::HasNoDeadline, MutantPhase::Stopping) => None,
            (Fault::ClosesTheWindowLate, _) if self.is_undecided() => {
                deadline.map(|at| at + Duration::from_millis(200))
            }
            (Fault::WaitsForTheFolder, _) if self.is_probing() => None,
            (Fault::SuspendsPastTheLimit, _) if self.real.is_suspended() => None,
            (Fault::AwaitsASurvivor, _) if self.is_killing_leftovers() => None,
            (Fault::AwaitsTheGroup, _) if self.real.awaits_groups() => None,
            (Fault::OversleepsTheWait, _) if matches!(self.real.phase, JobPhase::Waiting { .. }) => None,
            _ => deadline,
        }
    }

    fn next_input(&self, now: Instant, queue: &mut VecDeque<Input>) -> Option<Input> {
        let input = self.real.next_input(now, queue);
        let is_wanted = queue.contains(&Input::ResumeRequested);
        let is_stop = |input: &Input| matches!(input, Input::StopRequested { .. });
        match (self.fault, &input) {
            _ if !self.real.is_suspended() => input,
            (Fault::ActsWhileSuspended, None) => queue.pop_front(),
            (Fault::SparesTheSuspended, Some(Input::SuspendedTooLong)) => None,
            (Fault::StaysSuspended, Some(Input::ResumeRequested)) if !is_wanted => None,
            (Fault::SuspendsPastTheLimit, _) if !is_wanted && !queue.iter().any(is_stop) => None,
            _ => input,
        }
    }

    fn handle(&mut self, now: Instant, input: Input) -> Vec<Action> {
        if let (Fault::ForgetsSuspension, Input::ResumeRequested, Some(suspension)) =
            (self.fault, &input, &mut self.real.suspension)
        {
            suspension.since = now;
        }
        if self.fault == Fault::ForgetsItsSurvivors {
            self.real.survivors.clear();
        }
        let (now, heard) = (self.alter_time(now), self.alter_input(input.clone()));
        let mut actions: Vec<Action> = heard
            .into_iter()
            .flat_map(|heard| handle_with_sweep((&mut self.real, &self.setup), now, heard))
            .collect();
        if self.fault == Fault::RestartsOverTheSignal && self.is_held(&actions) {
            actions.extend(self.real.handle(now + WINDOW, Input::DeadlinePassed));
        }
        if self.fault == Fault::PraisesAlone && actions.contains(&Action::TellSuccess) {
            actions.extend(handle_with_sweep((&mut self.real, &self.setup), now, Input::AllSucceeded));
        }
        self.alter_restart_request(now, &actions);
        let actions = self.alter_actions(&input, actions);
        self.watch(&actions);
        actions
    }
}
