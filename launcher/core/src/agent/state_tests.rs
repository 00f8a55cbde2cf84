//! Transcripts of the state machine: inputs and the resulting actions.

use std::ops::{Deref, DerefMut};
use std::time::SystemTime;

use crate::posix::{Pid, ProcessIdentity};
use proptest::prelude::*;

use std::time::Duration;

use super::*;
use crate::agent::message::JobOutcome;
use crate::agent::rules::Interrupt;
use crate::exit_code::{ExitStatus, LAUNCHER_FAILED};
use crate::job_event::{ErrorFileInfo, LostPeer};
use crate::rendezvous::RendezvousFailure;
use crate::spec::CliFlavor;
use crate::spec::options::IndependentOptions;
use crate::spec::restart::RestartPolicy;
use crate::spec::stop::{GraceFor, LeftoverPolicy, StopPolicy};
use rankrun_contract::env::Master;
use rankrun_contract::rank::LocalWorldSize;
use rankrun_contract::report::ErrorReport;

#[path = "device_check_tests.rs"]
mod device_check;
#[path = "external_worker_tests.rs"]
mod external_worker;
#[path = "failure_origin_tests.rs"]
mod failure_origin;
#[path = "finished_tests.rs"]
mod finished_tests;
#[path = "grace_tests.rs"]
mod grace_tests;
#[path = "groups_tests.rs"]
mod groups_tests;
#[path = "hang_tests.rs"]
mod hang;
#[path = "lease_tests.rs"]
mod lease_tests;
#[path = "leftovers_tests.rs"]
mod leftovers_tests;
#[path = "limit_tests.rs"]
mod limits;
#[path = "rank_table_tests.rs"]
mod rank_tables;
#[path = "rendezvous_tests.rs"]
mod rendezvous_tests;
#[path = "several_nodes_tests.rs"]
mod several_nodes;
#[path = "shutdown_tests.rs"]
mod shutdown;
#[path = "siblings_tests.rs"]
mod siblings_tests;
#[path = "signals_tests.rs"]
mod signals_tests;
#[path = "start_tests.rs"]
mod starts;
#[path = "suspend_tests.rs"]
mod suspensions;
#[path = "waiting_tests.rs"]
mod waiting;
#[path = "window_tests.rs"]
mod windows;

const GRACE: Duration = Duration::from_secs(30);

/// A state whose workers leave no process behind, unless a test says so.
#[derive(Debug)]
struct SweptState {
    state: State,
    leaves_processes: bool,
    /// Its workers have no processes so far.
    is_start_pending: bool,
}

impl SweptState {
    fn new(rules: JobRules) -> Self {
        Self { state: State::new(rules), leaves_processes: false, is_start_pending: false }
    }

    fn handle(&mut self, now: Instant, input: Input) -> Vec<Action> {
        let mut actions = self.state.handle(now, input);
        let kills = |action: &Action| matches!(action, Action::KillLeftovers { .. });
        if !self.leaves_processes && actions.iter().any(kills) {
            actions.extend(self.state.handle(now, leftovers_killed(&[])));
        }
        let generation = self.state.generation();
        if !self.is_start_pending && started(&actions).is_some() {
            actions.extend(self.state.handle(now, Input::Started { generation }));
        }
        actions
    }
}

impl Deref for SweptState {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for SweptState {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

/// The state of a job of one node. Its rendezvous answers at once; the tests see the other actions.
#[derive(Debug)]
struct LocalJob {
    state: SweptState,
    rounds: u64,
}

impl LocalJob {
    fn new(rules: JobRules) -> Self {
        Self { state: SweptState::new(rules), rounds: 0 }
    }

    fn handle(&mut self, now: Instant, input: Input) -> Vec<Action> {
        let (mut actions, mut answers) = (Vec::new(), Vec::new());
        for action in self.state.handle(now, input) {
            match action {
                Action::Join { workers, .. } => answers.push(Input::Joined(self.next_round(workers))),
                Action::FindLostNode => answers.push(Input::LostNodeFound(None)),
                Action::TellSuccess => answers.push(Input::AllSucceeded),
                Action::TellFailure { .. } | Action::TellStop { .. } => {}
                action => actions.push(action),
            }
        }
        let answers: Vec<Action> = answers.into_iter().flat_map(|answer| self.handle(now, answer)).collect();
        actions.into_iter().chain(answers).collect()
    }

    fn next_round(&mut self, workers: LocalWorldSize) -> Box<Round> {
        let master = Master { addr: "127.0.0.1".to_owned(), port: 1, uses_agent_store: true };
        let number = self.rounds;
        self.rounds += 1;
        Box::new(Round { number, ..Round::of_one_node(workers, master) })
    }
}

impl Deref for LocalJob {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for LocalJob {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

fn new_job(workers: u32, max_restarts: u32, cli_flavor: CliFlavor) -> LocalJob {
    LocalJob::new(rules(workers, max_restarts, cli_flavor))
}

fn new_job_with_policy(
    restart: RestartPolicy,
    workers: u32,
    max_restarts: u32,
    cli_flavor: CliFlavor,
) -> LocalJob {
    LocalJob::new(JobRules { restart, ..rules(workers, max_restarts, cli_flavor) })
}

/// The rules of a launch without further options.
pub(super) fn rules(workers: u32, max_restarts: u32, cli_flavor: CliFlavor) -> JobRules {
    JobRules {
        cli_flavor,
        workers: LocalWorldSize::new(workers).unwrap(),
        max_restarts: RestartCount(max_restarts),
        restart: RestartPolicy::default(),
        stop: StopPolicy { grace: GRACE, grace_for: GraceFor::default() },
        leftovers: LeftoverPolicy::Keep,
        start_timeout: None,
        time_limit: None,
        hang_timeout: None,
        dstate_timeout: None,
        stop_signals: crate::spec::SignalSpec::torchrun().stop.into_iter().collect(),
        interrupt: Interrupt::Listed,
        unhealthy: None,
        options: IndependentOptions::default(),
        external_worker: None,
        may_have_peers: false,
    }
}

/// One clock for a whole test.
fn clock() -> impl Fn(u64) -> Instant {
    #[expect(clippy::disallowed_methods, reason = "a test's clock starts somewhere")]
    let start = Instant::now();
    move |seconds| start + Duration::from_secs(seconds)
}

fn exited(generation: u32, local_rank: u32, exit: Exit) -> Input {
    let end = WorkerEnd {
        local_rank: LocalRank(local_rank),
        pid: Pid::from_raw(100 + i32::try_from(local_rank).unwrap()),
        exit,
        at: SystemTime::UNIX_EPOCH,
        error_file_info: None,
        foreign_kill: None,
    };
    Input::Exited { generation: Generation(generation), end }
}

fn leftover(pid: i32) -> ProcessIdentity {
    ProcessIdentity { pid: Pid::from_raw(pid), started: 1 }
}

fn leftovers_killed(pids: &[i32]) -> Input {
    Input::LeftoversKilled { remaining: Ok(pids.iter().copied().map(leftover).collect()) }
}

/// The launcher's own error.
pub(super) fn launcher_error() -> Box<LauncherError> {
    let why = "cannot see whether processes of the job are left".to_owned();
    let report =
        ErrorReport { message: why.clone(), callstack: None, unix_seconds: Some(0), lost_rank: None };
    Box::new(LauncherError { why, report })
}

/// The error of a failed rendezvous.
pub(super) fn rendezvous_failure() -> RendezvousFailure {
    RendezvousFailure::new(std::io::Error::from(std::io::ErrorKind::AddrInUse), None)
}

/// The workers before `failed` run, and the others could not be started.
fn start_failed(failed: u32) -> Input {
    Input::StartFailed { generation: Generation(0), failed: LocalRank(failed), error: launcher_error() }
}

fn stop(signal: Signal, again: bool) -> Input {
    Input::StopRequested { signal, is_second: again }
}

/// Handles an input; if the job has its outcome then, the shutdown ends at once.
fn handle_and_drain(mut handle: impl FnMut(Input) -> Vec<Action>, input: Input) -> Vec<Action> {
    let actions = handle(input);
    if end(&actions).is_some() {
        drain_and_exit(handle);
    }
    actions
}

fn drain_and_exit(mut handle: impl FnMut(Input) -> Vec<Action>) {
    assert_eq!(handle(Input::OutputDrained), [Action::WriteParentFile]);
    let exits = handle(Input::ParentFileWritten);
    assert!(matches!(&exits[..], [Action::ReportOutcome, Action::Exit { .. }]));
}

fn killed_by(number: i32) -> Exit {
    Exit::Signal { number, core_dumped: false }
}

fn signals(actions: &[Action]) -> Vec<(Vec<u32>, Signal)> {
    actions
        .iter()
        .filter_map(|action| match action {
            Action::Signal { local_ranks, signal, .. } => {
                Some((local_ranks.iter().map(|rank| rank.0).collect(), *signal))
            }
            _ => None,
        })
        .collect()
}

fn end(actions: &[Action]) -> Option<&JobOutcome> {
    actions.iter().find_map(|action| match action {
        Action::Finish(end) => Some(end),
        _ => None,
    })
}

fn started(actions: &[Action]) -> Option<u32> {
    actions.iter().find_map(|action| match action {
        Action::Start { generation, .. } => Some(generation.0),
        _ => None,
    })
}

#[test]
fn job_succeeds_only_after_all_workers_succeed() {
    let at = clock();
    let mut job = new_job(2, 0, CliFlavor::Rankrun);
    assert_eq!(started(&job.handle(at(0), Input::Ready)), Some(0));
    assert_eq!(job.handle(at(1), exited(0, 1, Exit::Code(0))), []);
    let actions = job.handle(at(2), exited(0, 0, Exit::Code(0)));
    assert_eq!(end(&actions).unwrap().status, ExitStatus::SUCCESS);
    assert!(
        !actions.iter().any(|action| matches!(action, Action::KillLeftovers { .. })),
        "what outlives a success is the user's"
    );
}

#[test]
fn worker_failure_stops_peers_then_restarts_all_until_budget_ends() {
    let at = clock();
    let mut job = new_job(3, 1, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let actions = job.handle(at(1), exited(0, 1, Exit::Code(7)));
    assert_eq!(signals(&actions), [(vec![0, 2], Signal::SIGTERM)]);
    assert_eq!(job.deadline(), Some(at(1) + GRACE));
    assert_eq!(started(&job.handle(at(2), exited(0, 0, killed_by(15)))), None);
    let actions = job.handle(at(3), exited(0, 2, killed_by(15)));
    assert_eq!(started(&actions), Some(1));
    let leftovers = actions.iter().position(|action| matches!(action, Action::KillLeftovers { .. })).unwrap();
    let start = actions.iter().position(|action| matches!(action, Action::Start { .. })).unwrap();
    assert!(leftovers < start, "invariant 1: the old generation is gone before the new one starts");

    let _ = job.handle(at(4), exited(1, 2, Exit::Code(9)));
    let _ = job.handle(at(5), exited(1, 0, Exit::Code(1)));
    let actions = job.handle(at(6), exited(1, 1, killed_by(15)));
    let end = end(&actions).unwrap();
    assert_eq!(end.status, ExitStatus::Code(9));
    let failure = end.failure.as_ref().unwrap();
    assert_eq!(failure.first.local_rank, LocalRank(2), "invariant 5: the first cause stays");
    assert_eq!(failure.following_ends.len(), 2);
}

#[test]
fn exit_status_is_of_first_cause_even_if_victim_was_reaped_first() {
    let at = clock();
    let mut job = new_job(3, 0, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), exited(0, 0, Exit::Code(1)));
    let _ = job.handle(at(1), exited(0, 1, killed_by(9)));
    let actions = job.handle(at(1), exited(0, 2, killed_by(15)));
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(128 + 9));
    assert_eq!(end(&actions).unwrap().failure.as_ref().unwrap().first.local_rank, LocalRank(1));
}

#[test]
fn exit_of_old_generation_is_ignored() {
    let at = clock();
    let mut job = new_job(1, 1, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    assert_eq!(started(&job.handle(at(1), exited(0, 0, Exit::Code(1)))), Some(1));
    assert_eq!(job.handle(at(2), exited(0, 0, Exit::Code(1))), []);
}

fn any_input() -> impl Strategy<Value = Input> {
    let exit = prop_oneof![Just(Exit::Code(0)), Just(Exit::Code(1)), Just(killed_by(9))];
    prop_oneof![
        8 => (0u32..4, 0u32..3, exit).prop_map(|(generation, rank, exit)| exited(generation, rank, exit)),
        1 => any::<bool>().prop_map(|again| stop(Signal::SIGTERM, again)),
        2 => Just(Input::DeadlinePassed),
        1 => Just(Input::Ready),
    ]
}

proptest! {
    /// Any inputs in any order: invariants 6, 7 and 1, and nothing follows the end.
    #[test]
    fn random_inputs_keep_restart_budget_and_job_end_is_final(inputs in prop::collection::vec(any_input(), 0..60)) {
        let at = clock();
        let mut job = new_job(3, 2, CliFlavor::Rankrun);
        let (mut starts, mut ended, mut is_stop_requested) = (0, false, false);
        for (second, input) in (0..).map(|step| step * 10).zip(inputs) {
            is_stop_requested |= matches!(input, Input::StopRequested { .. });
            let actions = handle_and_drain(|input| job.handle(at(second), input), input);
            prop_assert!(!ended || actions.is_empty());
            if let Some(generation) = started(&actions) {
                prop_assert_eq!(generation, starts);
                prop_assert!(!is_stop_requested);
                starts += 1;
            }
            ended |= end(&actions).is_some();
        }
        prop_assert!(starts <= 3);
    }
}
