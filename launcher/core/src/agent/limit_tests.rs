//! The time limit and its warning, in every phase.

use super::*;
use crate::agent::device_report::DeviceReport;
use crate::exit_code::TIME_LIMIT;
use crate::spec::Unhealthy;
use crate::spec::restart::{Conditions, RestartRule, RuleAction};
use crate::spec::stop::{EarlyWarning, TimeLimit};

const LIMIT: Duration = Duration::from_secs(100);

/// A job of two workers with a limit of 100 s and SIGUSR1 10 s before.
fn time_limited_job(max_restarts: u32, cli_flavor: CliFlavor) -> LocalJob {
    let mut job = new_job(2, max_restarts, cli_flavor);
    let warning = EarlyWarning { signal: Signal::SIGUSR1, before: Duration::from_secs(10) };
    job.rules.time_limit = Some(TimeLimit { limit: LIMIT, warning: Some(warning) });
    job
}

fn forwarded_signals(actions: &[Action]) -> Vec<Signal> {
    let of = |action: &Action| match action {
        Action::ForwardSignal { signal, .. } => Some(*signal),
        _ => None,
    };
    actions.iter().filter_map(of).collect()
}

#[test]
fn time_limit_warns_then_stops_then_kills_workers() {
    let at = clock();
    for (cli_flavor, status) in [(CliFlavor::Rankrun, TIME_LIMIT), (CliFlavor::Torchrun, LAUNCHER_FAILED)] {
        let mut job = time_limited_job(5, cli_flavor);
        assert_eq!(job.deadline(), None);
        let _ = job.handle(at(0), Input::Ready);
        assert_eq!(job.deadline(), Some(at(90)));
        assert_eq!(job.handle(at(89), Input::DeadlinePassed), [], "not yet");
        let actions = job.handle(at(90), Input::DeadlinePassed);
        assert_eq!((forwarded_signals(&actions), signals(&actions)), (vec![Signal::SIGUSR1], vec![]));
        assert_eq!(job.handle(at(91), Input::DeadlinePassed), [], "once");
        assert_eq!(job.deadline(), Some(at(100)));
        let actions = job.handle(at(100), Input::DeadlinePassed);
        assert_eq!(signals(&actions), [(vec![0, 1], Signal::SIGTERM)]);
        assert_eq!(job.deadline(), Some(at(100) + GRACE), "invariant 4");
        let _ = job.handle(at(101), exited(0, 0, Exit::Code(3)));
        let actions = job.handle(at(130), Input::DeadlinePassed);
        assert_eq!(signals(&actions), [(vec![1], Signal::SIGKILL)]);
        let actions = job.handle(at(131), exited(0, 1, killed_by(9)));
        assert_eq!(started(&actions), None, "invariant 7");
        let end = end(&actions).unwrap();
        assert_eq!((end.status, end.time_limit), (ExitStatus::Code(status), Some(LIMIT)));
        assert_eq!(end.failure, None, "invariant 5: our stop is not a cause");
        drain_and_exit(|input| job.handle(at(1_000), input));
        assert_eq!(job.deadline(), None);
    }
}

#[test]
fn time_limit_spans_all_generations() {
    let at = clock();
    let mut job = time_limited_job(5, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(50), exited(0, 0, Exit::Code(1)));
    assert_eq!(started(&job.handle(at(51), exited(0, 1, killed_by(15)))), Some(1));
    assert_eq!(job.deadline(), Some(at(90)));
    // Both are due: the launcher was suspended meanwhile.
    let actions = job.handle(at(200), Input::DeadlinePassed);
    assert_eq!(
        (forwarded_signals(&actions), signals(&actions)),
        (vec![], vec![(vec![0, 1], Signal::SIGTERM)])
    );
}

#[test]
fn time_limit_during_stop_prevents_restart() {
    let at = clock();
    for (max_restarts, status, limit) in [(5, TIME_LIMIT, Some(LIMIT)), (0, 7, None)] {
        let mut job = time_limited_job(max_restarts, CliFlavor::Rankrun);
        let _ = job.handle(at(0), Input::Ready);
        let _ = job.handle(at(80), exited(0, 0, Exit::Code(7)));
        assert_eq!(
            job.handle(at(90), Input::DeadlinePassed),
            [],
            "a worker that is being stopped gets no warning"
        );
        assert_eq!(job.handle(at(100), Input::DeadlinePassed), [], "invariant 4: one stop at a time");
        assert_eq!(job.deadline(), Some(at(80) + GRACE));
        let actions = job.handle(at(101), exited(0, 1, killed_by(15)));
        assert_eq!(started(&actions), None, "invariant 7");
        let end = end(&actions).unwrap();
        assert_eq!((end.status, end.time_limit), (ExitStatus::Code(status), limit));
        assert!(end.failure.is_some(), "invariant 5: the first cause stays");
    }
}

#[test]
fn warning_for_no_worker_does_not_put_off_the_kill() {
    let at = clock();
    let mut job = time_limited_job(5, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(60), exited(0, 0, Exit::Code(7)));
    assert_eq!(job.deadline(), Some(at(60) + GRACE));
    let actions = job.handle(at(90), Input::DeadlinePassed);
    assert_eq!(signals(&actions), [(vec![1], Signal::SIGKILL)]);
}

#[test]
fn time_limit_during_device_check_ends_job() {
    let at = clock();
    let mut job = time_limited_job(5, CliFlavor::Rankrun);
    job.rules.unhealthy = Some(Unhealthy::Refuse);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(98), exited(0, 0, Exit::Code(7)));
    let _ = job.handle(at(99), exited(0, 1, killed_by(15)));
    let actions = job.handle(at(100), Input::DeadlinePassed);
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(TIME_LIMIT));
    let checked = Input::DevicesProbed { generation: Generation(0), report: DeviceReport::default() };
    assert_eq!(job.handle(at(101), checked), []);
}

#[test]
fn restart_rule_status_holds_after_time_limit() {
    let at = clock();
    for (then, status) in [(RuleAction::Requeue, 75), (RuleAction::NoRequeue, 78), (RuleAction::Succeed, 0)] {
        let mut job = time_limited_job(5, CliFlavor::Rankrun);
        job.rules.unhealthy = Some(Unhealthy::Refuse);
        job.rules.restart.rules = vec![RestartRule { when: Conditions::default(), then }];
        let _ = job.handle(at(0), Input::Ready);
        let _ = job.handle(at(98), exited(0, 0, Exit::Code(7)));
        let _ = job.handle(at(99), exited(0, 1, killed_by(15)));
        let actions = job.handle(at(100), Input::DeadlinePassed);
        let end = end(&actions).unwrap();
        assert_eq!((end.status, end.time_limit), (ExitStatus::Code(status), None), "invariant 8");
    }
}

#[test]
fn first_of_signal_and_time_limit_sets_exit_status() {
    let at = clock();
    let mut job = time_limited_job(5, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(99), stop(Signal::SIGTERM, false));
    assert_eq!(job.handle(at(100), Input::DeadlinePassed), []);
    let _ = job.handle(at(101), exited(0, 0, killed_by(15)));
    let actions = job.handle(at(101), exited(0, 1, killed_by(15)));
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(143));
    assert_eq!(end(&actions).unwrap().time_limit, None);

    let mut job = time_limited_job(5, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(100), Input::DeadlinePassed);
    let _ = job.handle(at(101), stop(Signal::SIGTERM, false));
    let actions = job.handle(at(102), stop(Signal::SIGTERM, true));
    assert_eq!(signals(&actions), [(vec![0, 1], Signal::SIGKILL)], "invariant 10");
    let _ = job.handle(at(102), exited(0, 0, killed_by(9)));
    let actions = job.handle(at(102), exited(0, 1, killed_by(9)));
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(TIME_LIMIT));
}

#[test]
fn sigint_after_time_limit_keeps_time_limit_status() {
    let at = clock();
    for (cli_flavor, status) in [(CliFlavor::Rankrun, TIME_LIMIT), (CliFlavor::Torchrun, LAUNCHER_FAILED)] {
        let mut job = time_limited_job(5, cli_flavor);
        job.rules.interrupt = Interrupt::Unlisted;
        let _ = job.handle(at(0), Input::Ready);
        let _ = job.handle(at(100), Input::DeadlinePassed);
        let _ = job.handle(at(101), stop(Signal::SIGINT, false));
        let _ = job.handle(at(102), exited(0, 0, killed_by(15)));
        let actions = job.handle(at(102), exited(0, 1, killed_by(15)));
        assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(status), "invariant 8");
    }
}

#[test]
fn worker_ended_by_warning_signal_is_not_a_failure() {
    let at = clock();
    for (signal, exit) in [
        (Signal::SIGTERM, killed_by(15)),
        (Signal::SIGTERM, Exit::Code(143)),
        (Signal::SIGUSR1, killed_by(10)),
    ] {
        let mut job = time_limited_job(5, CliFlavor::Rankrun);
        let warning = EarlyWarning { signal, before: Duration::from_secs(10) };
        job.rules.time_limit = Some(TimeLimit { limit: LIMIT, warning: Some(warning) });
        let _ = job.handle(at(0), Input::Ready);
        assert_eq!(forwarded_signals(&job.handle(at(90), Input::DeadlinePassed)), [signal]);
        let actions = job.handle(at(91), exited(0, 0, exit));
        assert_eq!(
            signals(&actions),
            [(vec![1], Signal::SIGTERM)],
            "no wait for a signal to the whole group"
        );
        let actions = job.handle(at(92), exited(0, 1, killed_by(15)));
        assert_eq!(started(&actions), None);
        let end = end(&actions).unwrap();
        assert_eq!((end.status, end.failure.as_ref()), (ExitStatus::Code(TIME_LIMIT), None));
        drain_and_exit(|input| job.handle(at(1_000), input));
        assert_eq!(job.deadline(), None);
    }
}

#[test]
fn exit_by_warning_signal_before_warning_restarts_workers() {
    let at = clock();
    let mut job = time_limited_job(5, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(80), exited(0, 0, killed_by(10)));
    assert_eq!(started(&job.handle(at(81), exited(0, 1, killed_by(15)))), Some(1));
    // The new workers are warned, or start too late for that.
    let _ = job.handle(at(90), Input::DeadlinePassed);
    let _ = job.handle(at(91), exited(1, 0, Exit::Code(3)));
    assert_eq!(started(&job.handle(at(92), exited(1, 1, killed_by(15)))), Some(2));
    let _ = job.handle(at(93), exited(2, 0, killed_by(10)));
    assert_eq!(started(&job.handle(at(94), exited(2, 1, killed_by(15)))), Some(3));
}

#[test]
fn warning_longer_than_time_limit_is_sent_at_start() {
    let at = clock();
    let mut job = time_limited_job(0, CliFlavor::Rankrun);
    let warning = EarlyWarning { signal: Signal::SIGUSR1, before: Duration::from_secs(200) };
    job.rules.time_limit = Some(TimeLimit { limit: LIMIT, warning: Some(warning) });
    let _ = job.handle(at(0), Input::Ready);
    assert_eq!(forwarded_signals(&job.handle(at(0), Input::DeadlinePassed)), [Signal::SIGUSR1]);
    assert_eq!(job.deadline(), Some(at(100)));
}

proptest! {
    /// Any inputs: past the limit no worker starts, and the job ends within the grace period and 5 s.
    #[test]
    fn random_inputs_after_time_limit_start_no_worker_and_end_job(inputs in prop::collection::vec(any_input(), 0..40)) {
        let at = clock();
        let mut job = time_limited_job(9, CliFlavor::Rankrun);
        let _ = job.handle(at(0), Input::Ready);
        let mut second = 0;
        for input in inputs {
            second += 7;
            let actions = job.handle(at(second), input);
            prop_assert!(started(&actions).is_none() || second < 100, "started at {second} s");
        }
        let mut over = matches!(job.phase, JobPhase::ShuttingDown(_) | JobPhase::Finished);
        for later in 1..=8 {
            over |= end(&job.handle(at(second.max(100) + later * 20), Input::DeadlinePassed)).is_some();
        }
        prop_assert!(over);
    }
}

#[test]
fn worker_in_dstate_ends_job_without_restart() {
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
        assert_eq!(failure.kind, FailureKind::Uninterruptible { blocked_for: Duration::from_secs(2) });
        assert_eq!(failure.following_ends.len(), 1);
    }
}
