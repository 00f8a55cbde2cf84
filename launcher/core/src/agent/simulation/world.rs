//! A virtual node around the machine. It runs a history, performs the machine's actions as the agent's loop
//! does, and checks the invariants after every turn. Its clock advances only where the history says so.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use rankrun_contract::rank::{Generation, LocalRank, LocalWorldSize, Rank};

use super::super::tests::launcher_error;
use super::actions::missing_rank;
use super::history::{ErrorFileContent, Event, EventKind, History, LateInput, SignalPath};
use super::invariants::{Broken, Turn, check_invariants};
use super::mutants::Machine;
use super::node::{EndedWorker, Node, ProcessState};
use super::oracle::{Oracle, Question};
use super::others::{ELSEWHERE, PeerEvent, Rendezvous, lost_node};
use super::setup::{MOST_WORKERS, Setup, checkup, millis};
use super::suspension::check_waiting_inputs;
use crate::agent::message::{Action, Input, NotJoined};
use crate::agent::recurrence::{CheckpointFingerprint, ProgressMark, RaisedException};
use crate::job_event::UninterruptibleWorker;
use crate::job_event::rank_table::RankTable;
use crate::job_event::{ErrorFileInfo, LostPeer, WorkerEnd};
use crate::posix::{Exit, Pid, Signal};
use crate::rendezvous::LossRole;
use crate::spec::stop::StopReason;

/// More turns than this within one wait are a busy loop.
const MAX_TURNS: u32 = 2_000;

/// A node on which one history happens.
pub(super) struct World<'a, M> {
    pub(super) setup: &'a Setup,
    machine: M,
    pub(super) oracle: Oracle,
    pub(super) node: Node,
    pub(super) rendezvous: Rendezvous,
    pub(super) queue: VecDeque<Input>,
    pub(super) now: Instant,
    /// A stop signal came through the guard.
    has_stop_signal: bool,
    /// The open question without an answer on its way.
    pub(super) unanswered: Option<Question>,
    transcript: Option<&'a mut Vec<String>>,
}

/// Runs a history; returns what the first failing turn breaks.
pub(super) fn run_history(
    history: &History,
    machine: impl Machine,
    transcript: Option<&mut Vec<String>>,
) -> Result<(), Vec<Broken>> {
    let setup = &history.setup;
    let mut world = World {
        setup,
        machine,
        oracle: Oracle::new(setup),
        node: Node::default(),
        rendezvous: Rendezvous::default(),
        queue: VecDeque::new(),
        now: origin(),
        has_stop_signal: false,
        unanswered: None,
        transcript,
    };
    let early = if setup.early { history.events.len().min(1) } else { 0 };
    let (before, after) = history.events.split_at(early);
    world.run_events(before)?;
    // The agent's loop first collects earlier events.
    world.queue.push_back(Input::Ready);
    world.run_turn()?;
    world.run_events(after)?;
    world.run_turn()?;
    world.finish_history()
}

fn origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    #[expect(clippy::disallowed_methods, reason = "a test's clock starts somewhere")]
    *ORIGIN.get_or_init(Instant::now)
}

impl<M: Machine> World<'_, M> {
    fn run_events(&mut self, events: &[Event]) -> Result<(), Vec<Broken>> {
        for event in events {
            if self.oracle.has_exited {
                return Ok(());
            }
            self.apply_choice(event.what)?;
            if !event.held {
                self.run_turn()?;
            }
        }
        Ok(())
    }

    fn apply_choice(&mut self, what: EventKind) -> Result<(), Vec<Broken>> {
        match what {
            EventKind::Wait(time) => {
                self.run_turn()?;
                return self.wait_until(self.now + millis(time));
            }
            EventKind::NextMoment => {
                self.run_turn()?;
                return self.next_moment().map_or(Ok(()), |moment| self.wait_until(moment));
            }
            EventKind::Ends { worker, exit, wrote } => {
                let ended = self.node.end(worker, exit, wrote);
                self.push_exits(ended);
            }
            EventKind::SuspendsFor(lasted) => {
                self.run_turn()?;
                self.queue.push_back(Input::SuspendRequested);
                self.run_turn()?;
                self.wait_until(self.now + millis(lasted))?;
                self.queue.push_back(Input::ResumeRequested);
            }
            EventKind::Suspends => self.queue.push_back(Input::SuspendRequested),
            EventKind::Resumes => self.queue.push_back(Input::ResumeRequested),
            EventKind::HitsAll { signal, code, launcher } => {
                return self.signal_all((signal, code), launcher);
            }
            EventKind::Stop { signal, by } => {
                let again = by == SignalPath::Guard && self.has_stop_signal;
                self.has_stop_signal |= by == SignalPath::Guard;
                self.queue.push_back(Input::StopRequested { signal, is_second: again });
            }
            EventKind::RequestRestart => self.queue.push_back(Input::RestartRequested),
            EventKind::Pass(signal) => self.queue.push_back(Input::SignalForwarded { signal }),
            EventKind::BecomesUninterruptible(worker) => {
                if let Some(process) = self.node.living(worker, |process| !process.is_uninterruptible()) {
                    process.state = ProcessState::Uninterruptible;
                }
            }
            EventKind::WakesUp(worker) => {
                if let Some(process) = self.node.living(worker, |process| process.is_uninterruptible()) {
                    process.state = ProcessState::Running;
                }
            }
            EventKind::Answer { dead, new_devices } => self.answer_question(dead, new_devices),
            EventKind::StartsExternalWorker => self.start_external_worker(),
            EventKind::PeerEvent(what) => self.apply_remote_event(what),
            EventKind::LateInput(kind) => self.send_stale_input(kind),
        }
        Ok(())
    }

    fn signal_all(
        &mut self,
        (signal, code): (Signal, Option<i32>),
        launcher: i32,
    ) -> Result<(), Vec<Broken>> {
        let stop = EventKind::Stop { signal, by: SignalPath::Direct };
        let between = millis(launcher.unsigned_abs());
        let by_signal = Exit::Signal { number: signal as i32, core_dumped: false };
        let exit = code.map_or(by_signal, Exit::Code);
        if launcher < 0 {
            self.apply_choice(stop)?;
            self.run_turn()?;
            self.wait_until(self.now + between)?;
        }
        let ended = self.node.end_all(exit);
        self.push_exits(ended);
        if launcher > 0 {
            self.run_turn()?;
            self.wait_until(self.now + between)?;
        }
        if launcher >= 0 && !self.oracle.has_exited { self.apply_choice(stop) } else { Ok(()) }
    }

    pub(super) fn answer_question(&mut self, dead: bool, new_devices: Option<u32>) {
        let generation = self.oracle.generation;
        let input = match self.unanswered.take() {
            Some(Question::Devices) => Input::DevicesProbed { generation, report: checkup(dead) },
            Some(Question::NewDevices) => {
                let assignment =
                    new_devices.and_then(LocalWorldSize::new).ok_or_else(|| "no devices".to_owned());
                Input::DevicesReassigned { generation, result: assignment }
            }
            Some(Question::Progress) => {
                let files = self.setup.files_after(generation);
                let mark = files.map(|files| ProgressMark::Files(CheckpointFingerprint(files.into())));
                // One cause for all failures, so that the files alone decide.
                let exception = Some(RaisedException { kind: "ValueError".to_owned(), frame: None });
                Input::ProgressProbed { generation, mark, exception }
            }
            Some(Question::LostNode) => {
                Input::LostNodeFound(dead.then(|| lost_node(LossRole::CausesFailureHere)))
            }
            None => return,
        };
        self.queue.push_back(input);
    }

    pub(super) fn apply_remote_event(&mut self, what: PeerEvent) {
        let input = self.rendezvous.happen(what, self.now);
        self.queue.extend(input);
    }

    /// The user can start the external worker from the start of its generation until the sweep.
    fn start_external_worker(&mut self) {
        let Some(local_rank) = self.setup.external_worker.map(LocalRank) else { return };
        let (generation, current) = (self.oracle.generation, &self.oracle.current);
        let is_there =
            self.node.processes.iter().any(|process| process.is_external && process.generation == generation);
        let is_prepared = self.oracle.starts > 0 && local_rank < self.first_missing(generation);
        if is_prepared && !is_there && current.swept_at.is_none() && current.released.is_none() {
            let pid = self.node.spawn(generation, local_rank, true);
            self.queue.push_back(Input::ExternalWorkerStarted { generation, local_rank, pid });
        }
    }

    /// The first local rank that a start of this generation does not provide.
    pub(super) fn first_missing(&self, generation: Generation) -> LocalRank {
        let failed = self.setup.start_fails.filter(|(at, _)| *at == generation.0).map(|(_, rank)| rank);
        LocalRank(failed.unwrap_or(self.oracle.next_workers).min(self.oracle.next_workers))
    }

    fn send_stale_input(&mut self, kind: LateInput) {
        let Some(before) = self.oracle.generation.0.checked_sub(1) else { return };
        let (generation, local_rank, pid) = (Generation(before), LocalRank(0), Pid::from_raw(100));
        let at = self.wall_clock();
        self.queue.push_back(match kind {
            LateInput::Exited => {
                let end = WorkerEnd {
                    local_rank,
                    pid,
                    exit: Exit::Code(1),
                    at,
                    error_file_info: None,
                    foreign_kill: None,
                };
                Input::Exited { generation, end }
            }
            LateInput::JoinedProbed => {
                Input::JoinedProbed { generation, at, missing: vec![NotJoined { local_rank, pid }] }
            }
            LateInput::RanksCollected => {
                let rows = vec![missing_rank((local_rank, pid))];
                let table = RankTable { reason: StopReason::Signal(Signal::SIGTERM), rows };
                Input::RanksCollected { generation, table }
            }
            LateInput::ProgressProbed => Input::ProgressProbed { generation, mark: None, exception: None },
            LateInput::DStateProbed => Input::DStateProbed {
                generation,
                at,
                uninterruptible: vec![UninterruptibleWorker { local_rank, pid }],
            },
            LateInput::ExternalWorkerStarted => Input::ExternalWorkerStarted { generation, local_rank, pid },
            LateInput::StartFailed => {
                Input::StartFailed { generation, failed: LocalRank(1), error: launcher_error() }
            }
            LateInput::DevicesChecked => Input::DevicesProbed { generation, report: checkup(false) },
            LateInput::DevicesReassigned => {
                Input::DevicesReassigned { generation, result: Err("late".to_owned()) }
            }
        });
    }

    pub(super) fn wall_clock(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + (self.now - origin())
    }

    pub(super) fn push_exits(&mut self, ended: impl IntoIterator<Item = EndedWorker>) {
        let at = self.wall_clock();
        for EndedWorker { generation, local_rank, pid, exit, wrote } in ended {
            let is_external = self.node.by_pid(pid).is_some_and(|process| process.is_external);
            if is_external && (self.oracle.current.swept_at.is_some() || generation != self.oracle.generation)
            {
                // The external worker's exit is no longer awaited.
                continue;
            }
            let lost = match wrote {
                ErrorFileContent::Nothing => None,
                ErrorFileContent::Own => Some(None),
                ErrorFileContent::Lost(rank) => Some(Some(LostPeer::Here(LocalRank(rank)))),
                ErrorFileContent::LostElsewhere => Some(Some(LostPeer::Elsewhere(Rank(ELSEWHERE)))),
            };
            let error_file_info = lost
                .filter(|_| !exit.is_success())
                .map(|lost| ErrorFileInfo { written: at, lost_peer: lost });
            let end = WorkerEnd { local_rank, pid, exit, at, error_file_info, foreign_kill: None };
            self.queue.push_back(Input::Exited { generation, end });
        }
    }

    fn next_moment(&self) -> Option<Instant> {
        let wake = self.machine.deadline().map(|deadline| deadline + millis(self.setup.late));
        let ends = self.node.next_end().filter(|_| self.oracle.suspended_at.is_none());
        wake.into_iter().chain(ends).min()
    }

    /// Time passes, and everything that is due on the way happens.
    fn wait_until(&mut self, target: Instant) -> Result<(), Vec<Broken>> {
        for _ in 0..MAX_TURNS {
            let Some(moment) =
                self.next_moment().filter(|moment| *moment <= target && !self.oracle.has_exited)
            else {
                self.now = self.now.max(target);
                return self.check_invariants(None, &[]);
            };
            self.now = self.now.max(moment);
            self.check_invariants(None, &[])?;
            self.run_turn()?;
        }
        Err(vec![Broken::by_the_deadline("it has come, and stays where it was".to_owned())])
    }

    /// One turn of the agent's loop.
    fn run_turn(&mut self) -> Result<(), Vec<Broken>> {
        if self.oracle.suspended_at.is_none() {
            let ended = self.node.end_due_processes(self.now);
            self.push_exits(ended);
            let is_leftover_gone = self.node.end_due_leftover(self.now);
            if self.node.end_due_group_members(self.now) || is_leftover_gone {
                self.queue.push_back(Input::DescendantReaped);
            }
        }
        if self.machine.deadline().is_some_and(|deadline| deadline + millis(self.setup.late) <= self.now) {
            self.queue.push_back(Input::DeadlinePassed);
        }
        while let Some(input) = self.machine.next_input(self.now, &mut self.queue) {
            if let (Input::ResumeRequested, Some(since)) = (&input, self.oracle.suspended_at) {
                self.node.add_suspended_time(self.now - since);
            }
            self.oracle.record_input(&input, &mut self.node, self.now);
            let shown = self.transcript.is_some().then(|| format!("{input:?}"));
            let is_stale = self.oracle.is_stale(&input);
            let before = self.machine.deadline();
            let actions = self.machine.handle(self.now, input.clone());
            self.append_transcript(shown, &actions);
            self.check_invariants(Some((&input, is_stale, before)), &actions)?;
            let costs = self.turn_of(Some((&input, is_stale, before)), &actions).costs();
            for action in actions {
                if matches!(action, Action::Join { .. }) {
                    self.oracle.record_join(costs, self.now);
                }
                self.oracle.record_action(&action, self.now);
                self.perform(&action);
            }
            self.oracle.close_turn();
            if self.oracle.has_exited {
                self.queue.clear();
            }
        }
        check_waiting_inputs(&self.queue, &self.turn_of(None, &[]))
    }

    fn append_transcript(&mut self, input: Option<String>, actions: &[Action]) {
        let at = (self.now - origin()).as_millis();
        if let (Some(transcript), Some(input)) = (&mut self.transcript, input) {
            transcript.push(format!("{at:>6} ms  {input}"));
            transcript.extend(actions.iter().map(|action| format!("           -> {action:?}")));
        }
    }

    fn check_invariants(
        &self,
        input: Option<(&Input, bool, Option<Instant>)>,
        actions: &[Action],
    ) -> Result<(), Vec<Broken>> {
        check_invariants(&self.turn_of(input, actions))
    }

    fn turn_of<'b>(
        &'b self,
        input: Option<(&'b Input, bool, Option<Instant>)>,
        actions: &'b [Action],
    ) -> Turn<'b> {
        Turn {
            setup: self.setup,
            oracle: &self.oracle,
            node: &self.node,
            now: self.now,
            input: input.map(|(input, ..)| input),
            is_stale: input.is_some_and(|(_, is_stale, _)| is_stale),
            deadline_before: input.and_then(|(.., before)| before),
            deadline: self.machine.deadline(),
            actions,
        }
    }

    /// Every history ends with a stop by the user, and nothing follows the end.
    fn finish_history(&mut self) -> Result<(), Vec<Broken>> {
        let signal = Signal::SIGTERM;
        if !self.oracle.has_exited {
            self.apply_choice(EventKind::Stop { signal, by: SignalPath::Guard })?;
            self.run_turn()?;
            self.wait_until(self.now + self.setup.longest_grace() + Duration::from_secs(6))?;
        }
        if !self.oracle.has_exited {
            self.apply_choice(EventKind::Stop { signal, by: SignalPath::Guard })?;
            self.run_turn()?;
            self.wait_until(self.now + Duration::from_secs(6))?;
        }
        if !self.oracle.has_exited {
            return Err(vec![Broken::by_the_deadline("it never comes".to_owned())]);
        }
        let (generation, at) = (self.oracle.generation, self.wall_clock());
        let (local_rank, pid) = (LocalRank(0), Pid::from_raw(100));
        let end =
            WorkerEnd { local_rank, pid, exit: Exit::Code(1), at, error_file_info: None, foreign_kill: None };
        self.queue.extend([
            Input::Ready,
            Input::Exited { generation, end },
            Input::StartFailed { generation, failed: LocalRank(MOST_WORKERS), error: launcher_error() },
            Input::StopRequested { signal, is_second: true },
            Input::DeadlinePassed,
        ]);
        self.run_turn()
    }
}
