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
}

impl SweptState {
    fn new(rules: JobRules) -> Self {
        Self { state: State::new(rules), leaves_processes: false }
    }

    fn handle(&mut self, now: Instant, input: Input) -> Vec<Action> {
        let mut actions = self.state.handle(now, input);
        let kills = |action: &Action| matches!(action, Action::KillLeftovers { .. });
        if !self.leaves_processes && actions.iter().any(kills) {
            actions.extend(self.state.handle(now, leftovers_killed(&[])));
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
                Action::Join { workers } => answers.push(Input::Joined(self.next_round(workers))),
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
fn stop_signal_option_replaces_signal_of_each_stop() {
    let at = clock();
    let options = IndependentOptions { stop_signal: "INT".parse().ok(), ..IndependentOptions::default() };
    let new_job = || LocalJob::new(JobRules { options: options.clone(), ..rules(2, 0, CliFlavor::Rankrun) });
    let ready = |mut job: LocalJob| {
        let _ = job.handle(at(0), Input::Ready);
        job
    };
    let mut failed = ready(new_job());
    assert_eq!(signals(&failed.handle(at(1), exited(0, 0, Exit::Code(3)))), [(vec![1], Signal::SIGINT)]);
    let actions = failed.handle(at(2), exited(0, 1, killed_by(2)));
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(3), "the end by our signal is no failure");

    let mut stopped = ready(new_job());
    let actions = stopped.handle(at(1), stop(Signal::SIGTERM, false));
    assert_eq!(signals(&actions), [(vec![0, 1], Signal::SIGINT)]);
    let actions = stopped.handle(at(2), stop(Signal::SIGHUP, false));
    assert_eq!(signals(&actions), [(vec![0, 1], Signal::SIGINT)]);
    let actions = stopped.handle(at(3), stop(Signal::SIGTERM, true));
    assert_eq!(signals(&actions), [(vec![0, 1], Signal::SIGKILL)]);
    let _ = stopped.handle(at(4), exited(0, 0, killed_by(9)));
    let actions = stopped.handle(at(4), exited(0, 1, killed_by(9)));
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(128 + 15), "of the launcher's own signal");
}

#[test]
fn worker_ignoring_sigterm_is_killed_after_grace_period() {
    let at = clock();
    let mut job = new_job(2, 0, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), exited(0, 0, killed_by(11)));
    assert_eq!(job.handle(at(30), Input::DeadlinePassed), [], "not yet");
    let actions = job.handle(at(31), Input::DeadlinePassed);
    assert_eq!(signals(&actions), [(vec![1], Signal::SIGKILL)]);
    let actions = job.handle(at(32), exited(0, 1, killed_by(9)));
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(128 + 11));
}

#[test]
fn job_without_its_stores_ends_before_any_start() {
    let at = clock();
    for flavor in [CliFlavor::Rankrun, CliFlavor::Torchrun] {
        let mut job = new_job(2, 3, flavor);
        let actions =
            handle_and_drain(|input| job.handle(at(0), input), Input::OpeningFailed(launcher_error()));
        assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(LAUNCHER_FAILED));
        assert_eq!((started(&actions), job.handle(at(1), Input::Ready)), (None, Vec::new()));
    }
}

#[test]
fn stop_ends_although_worker_survives_sigkill() {
    let at = clock();
    let mut job = new_job(1, 3, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), stop(Signal::SIGTERM, false));
    let _ = job.handle(at(31), Input::DeadlinePassed);
    let actions = handle_and_drain(|input| job.handle(at(36), input), Input::DeadlinePassed);
    assert!(matches!(&actions[0], Action::Emit(JobEvent::CannotEnd { .. })), "invariant 4");
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(128 + 15));
    assert_eq!(job.deadline(), None);
}

#[test]
fn user_signal_is_forwarded_and_ends_job() {
    let at = clock();
    for (cli_flavor, status) in [(CliFlavor::Rankrun, 130), (CliFlavor::Torchrun, 1)] {
        let mut job = new_job(2, 5, cli_flavor);
        let _ = job.handle(at(0), Input::Ready);
        let actions = job.handle(at(1), stop(Signal::SIGINT, false));
        assert_eq!(signals(&actions), [(vec![0, 1], Signal::SIGINT)]);
        let _ = job.handle(at(2), exited(0, 0, Exit::Code(1)));
        let actions = job.handle(at(3), exited(0, 1, Exit::Code(0)));
        assert_eq!(started(&actions), None, "invariant 7");
        assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(status));
        assert_eq!(end(&actions).unwrap().failure, None, "invariant 5: our stop is no cause");
    }
}

#[test]
fn second_stop_signal_kills_workers() {
    let at = clock();
    let mut job = new_job(1, 0, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), stop(Signal::SIGTERM, false));
    assert_eq!(job.handle(at(1), stop(Signal::SIGTERM, false)), [], "the same wish by a second way");
    let actions = job.handle(at(2), stop(Signal::SIGINT, true));
    assert_eq!(signals(&actions), [(vec![0], Signal::SIGKILL)], "invariant 10");
    let actions = job.handle(at(2), exited(0, 0, killed_by(9)));
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(128 + 15), "the first signal is the reason");
}

#[test]
fn signal_during_stop_after_failure_prevents_restart() {
    let at = clock();
    let mut job = new_job(2, 5, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), exited(0, 0, Exit::Code(3)));
    assert_eq!(signals(&job.handle(at(2), stop(Signal::SIGHUP, false))), [(vec![1], Signal::SIGHUP)]);
    let actions = job.handle(at(3), exited(0, 1, killed_by(15)));
    let end = end(&actions).unwrap();
    assert_eq!(end.status, ExitStatus::Code(129));
    assert_eq!(end.failure.as_ref().unwrap().first.exit, Exit::Code(3), "the cause is still told");
}

#[test]
fn signal_before_first_start_ends_job() {
    let at = clock();
    for (cli_flavor, status) in
        [(CliFlavor::Torchrun, ExitStatus::Signal(15)), (CliFlavor::Rankrun, ExitStatus::Code(143))]
    {
        let mut job = new_job(1, 0, cli_flavor);
        assert_eq!(end(&job.handle(at(0), stop(Signal::SIGTERM, false))).unwrap().status, status);
        assert_eq!(job.handle(at(1), Input::Ready), []);
    }
}

#[test]
fn partly_failed_start_stops_started_workers() {
    let at = clock();
    let mut job = new_job(3, 5, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let input = start_failed(2);
    assert_eq!(signals(&job.handle(at(0), input)), [(vec![0, 1], Signal::SIGTERM)]);
    let _ = job.handle(at(1), exited(0, 0, killed_by(15)));
    let actions = job.handle(at(1), exited(0, 1, killed_by(15)));
    assert_eq!(started(&actions), None);
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(LAUNCHER_FAILED));
}

#[test]
fn start_failure_during_stop_keeps_cause_and_deadline() {
    let at = clock();
    for again in [false, true] {
        let mut job = new_job(3, 5, CliFlavor::Rankrun);
        let _ = job.handle(at(0), Input::Ready);
        let _ = job.handle(at(0), stop(Signal::SIGINT, false));
        if again {
            let _ = job.handle(at(0), stop(Signal::SIGINT, true));
        }
        let deadline = job.deadline();
        let input = start_failed(1);
        assert_eq!(job.handle(at(1), input), [], "they were told; invariants 4 and 5");
        assert_eq!(job.deadline(), deadline);
        let actions = job.handle(at(2), exited(0, 0, killed_by(9)));
        assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(130), "no wait for the other workers");
    }
    let mut job = new_job(3, 5, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(0), stop(Signal::SIGINT, false));
    let none_started = start_failed(0);
    assert!(end(&job.handle(at(0), none_started)).is_some());
}

#[test]
fn worker_ended_by_second_user_signal_is_not_first_cause() {
    let at = clock();
    let mut job = new_job(2, 0, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let Input::Exited { generation, end: mut first } = exited(0, 0, Exit::Code(1)) else { unreachable!() };
    first.error_file_info = Some(ErrorFileInfo {
        written: SystemTime::UNIX_EPOCH,
        lost_peer: Some(LostPeer::Here(LocalRank(1))),
    });
    let _ = job.handle(at(0), Input::Exited { generation, end: first });
    let _ = job.handle(at(1), stop(Signal::SIGTERM, false));
    let _ = job.handle(at(2), stop(Signal::SIGINT, false));
    let actions = job.handle(at(3), exited(0, 1, killed_by(libc::SIGINT)));
    let failure = end(&actions).unwrap().failure.as_ref().unwrap();
    assert_eq!(failure.first.local_rank, LocalRank(0), "invariant 5");
    assert!(failure.following_ends[0].is_stopped_by_us);
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

#[test]
fn forwarded_signal_does_not_change_phase() {
    let at = clock();
    let mut job = new_job(2, 0, CliFlavor::Rankrun);
    let passed = Input::SignalForwarded { signal: Signal::SIGUSR1 };
    assert_eq!(job.handle(at(0), passed.clone()), []);
    let _ = job.handle(at(0), Input::Ready);
    let forwarded = Action::ForwardSignal {
        generation: Generation(0),
        local_ranks: vec![LocalRank(0), LocalRank(1)],
        signal: Signal::SIGUSR1,
    };
    assert_eq!(job.handle(at(1), passed.clone()), std::slice::from_ref(&forwarded));
    assert_eq!(job.deadline(), None);
    let _ = job.handle(at(2), stop(Signal::SIGTERM, false));
    assert_eq!(job.handle(at(2), passed.clone()), [forwarded]);
    let _ = job.handle(at(3), stop(Signal::SIGTERM, true));
    assert_eq!(job.handle(at(3), passed), []);
}

#[test]
fn unlisted_sigint_stops_workers_by_sigterm() {
    let at = clock();
    for (cli_flavor, status) in
        [(CliFlavor::Rankrun, ExitStatus::Code(130)), (CliFlavor::Torchrun, ExitStatus::Signal(2))]
    {
        let mut job = new_job(1, 0, cli_flavor);
        job.rules.interrupt = Interrupt::Unlisted;
        let _ = job.handle(at(0), Input::Ready);
        let actions = job.handle(at(1), stop(Signal::SIGINT, false));
        assert_eq!(signals(&actions), [(vec![0], Signal::SIGTERM)]);
        let actions = job.handle(at(2), exited(0, 0, killed_by(15)));
        assert_eq!(end(&actions).unwrap().status, status);
    }
}

#[test]
fn worker_stuck_in_dstate_ends_job_without_restart() {
    let at = clock();
    for cli_flavor in [CliFlavor::Rankrun, CliFlavor::Torchrun] {
        let mut job = new_job(2, 5, cli_flavor);
        job.rules.dstate_timeout = Some(Duration::from_secs(2));
        let _ = job.handle(at(0), Input::Ready);
        let uninterruptible =
            vec![UninterruptibleWorker { local_rank: LocalRank(1), pid: Pid::from_raw(101) }];
        let looked = || Input::DStateProbed {
            generation: Generation(0),
            at: SystemTime::UNIX_EPOCH,
            uninterruptible: uninterruptible.clone(),
        };
        assert_eq!(job.deadline(), Some(at(0)), "the first look is due");
        let actions = job.handle(at(0), Input::DeadlinePassed);
        let looks =
            Action::ProbeDState { generation: Generation(0), local_ranks: vec![LocalRank(0), LocalRank(1)] };
        assert_eq!(actions, [looks]);
        assert!(job.deadline() > Some(at(0)));
        assert_eq!(job.handle(at(1), looked()), []);
        let actions = job.handle(at(3), looked());
        assert_eq!(signals(&actions), [(vec![0, 1], Signal::SIGTERM)]);
        let _ = job.handle(at(4), exited(0, 0, killed_by(15)));
        let _ = job.handle(at(34), Input::DeadlinePassed);
        let actions = job.handle(at(40), Input::DeadlinePassed);
        let end = end(&actions).unwrap();
        assert_eq!(started(&actions), None, "invariant 6");
        assert_eq!(end.status, ExitStatus::Code(LAUNCHER_FAILED));
        let failure = end.failure.as_ref().unwrap();
        assert_eq!(failure.first.local_rank, LocalRank(1));
        assert_eq!(failure.kind, FailureKind::Stuck { stuck_for: Duration::from_secs(2) });
        assert_eq!(failure.following_ends.len(), 1);
    }
}
