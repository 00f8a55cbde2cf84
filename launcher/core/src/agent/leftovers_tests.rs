//! Processes that the workers leave behind at the end of a generation: they are killed, and awaited.

use super::rendezvous_tests::{peer_lost, round, running};
use super::*;
use crate::agent::message::{Action, PeerNotice};
use crate::posix::{Errno, ProcessScanError};

/// `ENFILE`.
const TOO_MANY_FILES: Errno = Errno(23);

const KILL: Action = Action::KillLeftovers { generation: Generation(0) };

/// A job of one node whose only worker has failed. Its leftovers are not gone yet.
fn killing(max_restarts: u32, at: &impl Fn(u64) -> Instant) -> LocalJob {
    let mut job = new_job(1, max_restarts, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    job.state.leaves_processes = true;
    let actions = job.handle(at(1), exited(0, 0, Exit::Code(7)));
    assert!(actions.contains(&KILL) && started(&actions).is_none() && end(&actions).is_none());
    job
}

#[test]
fn generation_starts_only_when_leftovers_are_gone() {
    let at = clock();
    let mut job = killing(1, &at);
    assert_eq!(job.handle(at(1), leftovers_killed(&[7, 8])), []);
    assert_eq!(job.handle(at(2), Input::DescendantReaped), [KILL]);
    assert_eq!(job.handle(at(2), leftovers_killed(&[8])), [], "invariant 1");
    assert_eq!(job.handle(at(3), Input::DescendantReaped), [KILL]);
    assert_eq!(started(&job.handle(at(3), leftovers_killed(&[]))), Some(1));
}

#[test]
fn leftover_that_survives_kill_is_reported_and_job_goes_on() {
    let at = clock();
    let mut job = killing(1, &at);
    let _ = job.handle(at(1), leftovers_killed(&[8]));
    assert_eq!(job.handle(at(6), Input::DeadlinePassed), [KILL]);
    let actions = job.handle(at(6), leftovers_killed(&[8]));
    let survives = JobEvent::LeftoversSurvive { pids: vec![Pid::from_raw(8)] };
    assert_eq!(actions[0], Action::Emit(survives));
    assert_eq!(started(&actions), Some(1));
}

#[test]
fn leftover_that_survived_kill_is_not_awaited_again() {
    let at = clock();
    let mut job = killing(2, &at);
    let _ = job.handle(at(1), leftovers_killed(&[8]));
    let _ = job.handle(at(6), Input::DeadlinePassed);
    assert_eq!(started(&job.handle(at(6), leftovers_killed(&[8]))), Some(1));
    let _ = job.handle(at(7), exited(1, 0, Exit::Code(7)));
    assert_eq!(job.handle(at(7), leftovers_killed(&[8, 9])), [], "one of them is new");
    let actions = job.handle(at(8), leftovers_killed(&[8]));
    assert_eq!(started(&actions), Some(2));
    assert!(!actions.iter().any(|action| matches!(action, Action::Emit(JobEvent::LeftoversSurvive { .. }))));
    // Another process has its pid.
    let _ = job.handle(at(9), exited(2, 0, Exit::Code(7)));
    let other = ProcessIdentity { started: 2, ..leftover(8) };
    assert_eq!(job.handle(at(9), Input::LeftoversKilled { remaining: Ok(vec![other]) }), []);
}

fn awaiting(signal: Option<Signal>, pids: &[i32], at_most: u64) -> Action {
    let pids = pids.iter().copied().map(Pid::from_raw).collect();
    Action::Emit(JobEvent::AwaitingLeftovers { signal, pids, at_most: Duration::from_secs(at_most) })
}

#[test]
fn long_wait_for_leftovers_is_reported_once() {
    let at = clock();
    let mut job = killing(1, &at);
    let _ = job.handle(at(1), leftovers_killed(&[7, 8]));
    assert_eq!(job.deadline(), Some(at(3)));
    assert_eq!(job.handle(at(3), Input::DeadlinePassed), [KILL]);
    assert_eq!(job.handle(at(3), leftovers_killed(&[8])), [awaiting(None, &[8], 3)]);
    assert_eq!(job.deadline(), Some(at(1) + GIVE_UP_AFTER_KILL));
    assert_eq!(job.handle(at(4), Input::DescendantReaped), [KILL]);
    assert_eq!(job.handle(at(4), leftovers_killed(&[8])), [], "once");
}

#[test]
fn signal_in_wait_for_leftovers_names_them_once() {
    let at = clock();
    let mut job = killing(1, &at);
    job.rules.stop.grace = Duration::from_secs(3);
    let _ = job.handle(at(1), leftovers_killed(&[8]));
    assert_eq!(job.handle(at(2), stop(Signal::SIGTERM, false)), [KILL]);
    assert_eq!(job.handle(at(2), leftovers_killed(&[8])), [awaiting(Some(Signal::SIGTERM), &[8], 3)]);
    assert_eq!(job.handle(at(2), stop(Signal::SIGTERM, false)), [], "a scheduler signals guard and agent");
    assert_eq!(job.deadline(), Some(at(5)));
}

#[test]
fn second_signal_ends_wait_for_leftovers() {
    let at = clock();
    let mut job = killing(1, &at);
    job.rules.stop.grace = Duration::from_secs(3);
    let _ = job.handle(at(1), leftovers_killed(&[8]));
    assert_eq!(job.handle(at(2), stop(Signal::SIGTERM, false)), [KILL]);
    let _ = job.handle(at(2), leftovers_killed(&[8]));
    assert_eq!(job.deadline(), Some(at(5)), "invariant 10: within the grace");
    assert_eq!(job.handle(at(3), stop(Signal::SIGTERM, true)), [KILL]);
    let actions = job.handle(at(3), leftovers_killed(&[8]));
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(143), "invariant 7");
}

#[test]
fn unknown_leftovers_are_listed_again_until_the_job_fails() {
    let at = clock();
    let unknown = || Input::LeftoversKilled { remaining: Err(ProcessScanError(TOO_MANY_FILES)) };
    let mut job = killing(1, &at);
    assert_eq!(job.handle(at(1), unknown()), []);
    assert!(job.deadline().is_some_and(|deadline| deadline < at(2)), "soon");
    assert_eq!(job.handle(at(2), Input::DeadlinePassed), [KILL]);
    assert_eq!(started(&job.handle(at(2), leftovers_killed(&[]))), Some(1), "others have freed something");

    let mut job = killing(1, &at);
    let actions = job.handle(at(6), unknown());
    assert_eq!(started(&actions), None, "invariant 1");
    assert_eq!(end(&actions).unwrap().peer_notice, PeerNotice::Failed);
    assert_eq!(job.scan_error(), Some(ProcessScanError(TOO_MANY_FILES)));
    let _ = job.handle(at(6), Input::OutputDrained);
    assert_eq!(job.expected_exit(), Some((ExitStatus::Code(LAUNCHER_FAILED), None)));
    let exits = job.handle(at(6), Input::ParentFileWritten);
    let failed = Action::Exit { status: ExitStatus::Code(LAUNCHER_FAILED) };
    assert_eq!(exits.last(), Some(&failed), "invariant 8");
}

#[test]
fn unknown_leftovers_of_a_success_fail_the_job() {
    let at = clock();
    let mut job = new_job(1, 0, CliFlavor::Rankrun);
    job.rules.leftovers = LeftoverPolicy::End { grace: GRACE };
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), exited(0, 0, Exit::Code(0)));
    job.state.leaves_processes = true;
    let unknown = Input::LeftoversSwept { result: crate::agent::message::SweepResult::Unknown };
    assert_eq!(job.handle(at(1), unknown), [KILL]);
    let error = ProcessScanError(TOO_MANY_FILES);
    let drains = job.handle(at(1), Input::LeftoversKilled { remaining: Err(error) });
    assert_eq!((drains, job.scan_error()), (vec![Action::DrainOutput], Some(error)));
    let _ = job.handle(at(1), Input::OutputDrained);
    assert_eq!(job.expected_exit(), Some((ExitStatus::Code(LAUNCHER_FAILED), None)));
    let exits = job.handle(at(1), Input::ParentFileWritten);
    assert_eq!(exits.last(), Some(&Action::Exit { status: ExitStatus::Code(LAUNCHER_FAILED) }));
}

#[test]
fn signal_that_cuts_a_success_short_is_in_the_expected_exit() {
    let at = clock();
    let mut job = new_job(1, 0, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    assert_eq!(job.expected_exit(), None);
    let _ = job.handle(at(1), exited(0, 0, Exit::Code(0)));
    assert_eq!(job.expected_exit(), Some((ExitStatus::SUCCESS, None)));
    assert_eq!(job.handle(at(2), stop(Signal::SIGTERM, false)), [Action::WriteParentFile]);
    assert_eq!(job.expected_exit(), Some((ExitStatus::Code(143), Some(Signal::SIGTERM))));
    let exits = job.handle(at(2), Input::ParentFileWritten);
    assert_eq!(exits.last(), Some(&Action::Exit { status: ExitStatus::Code(143) }));
}

/// A start that the stop of the workers cancels is not a failed one.
#[test]
fn cancelled_start_does_not_close_job_of_other_nodes() {
    let at = clock();
    let mut job = running(3, &at);
    let _ = job.handle(at(1), peer_lost());
    let actions = job.handle(at(1), Input::StartCancelled { generation: Generation(0) });
    assert!(actions.iter().any(|action| matches!(action, Action::Join { .. })));
    let _ = job.handle(at(2), Input::Joined(round(1)));
    let _ = job.handle(at(3), peer_lost());
    let _ = job.handle(at(33), Input::DeadlinePassed);
    let actions = job.handle(at(38), Input::DeadlinePassed);
    assert_eq!(
        end(&actions).unwrap().peer_notice,
        PeerNotice::Left,
        "a worker cannot be ended, and they may go on"
    );
}
