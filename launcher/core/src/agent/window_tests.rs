//! Signals that hit workers and launcher alike, in any order.

use super::window::GROUP_SIGNAL_WINDOW;
use super::*;

/// How a worker may end because of a stop signal.
const STOP_SIGNAL_EXITS: [Exit; 3] = [
    Exit::Signal { number: libc::SIGTERM, core_dumped: false },
    Exit::Signal { number: libc::SIGHUP, core_dumped: false },
    Exit::Code(128 + libc::SIGTERM),
];

#[test]
fn worker_exit_before_launcher_signal_counts_as_user_stop() {
    let at = clock();
    for exit in STOP_SIGNAL_EXITS {
        let mut job = new_job(2, 3, CliFlavor::Rankrun);
        let _ = job.handle(at(0), Input::Ready);
        assert_eq!(job.handle(at(1), exited(0, 0, exit)), [], "nothing is decided");
        assert_eq!(job.deadline(), Some(at(1) + GROUP_SIGNAL_WINDOW));
        let early = at(1) + GROUP_SIGNAL_WINDOW / 2;
        assert_eq!(job.handle(early, Input::DeadlinePassed), [], "not yet");
        let actions = job.handle(early, stop(Signal::SIGTERM, false));
        assert_eq!(signals(&actions), [(vec![1], Signal::SIGTERM)], "invariant 10");
        let actions = job.handle(at(2), exited(0, 1, killed_by(15)));
        assert_eq!(started(&actions), None, "invariant 7");
        let end = end(&actions).unwrap();
        assert_eq!((end.status, &end.failure), (ExitStatus::Code(143), &None));
    }
}

#[test]
fn all_workers_exited_before_launcher_signal_is_user_stop() {
    let at = clock();
    for (cli_flavor, status) in [(CliFlavor::Rankrun, 143), (CliFlavor::Torchrun, 1)] {
        let mut job = new_job(2, 3, cli_flavor);
        let _ = job.handle(at(0), Input::Ready);
        let _ = job.handle(at(1), exited(0, 0, killed_by(15)));
        // Its peer noticed.
        assert_eq!(job.handle(at(1), exited(0, 1, Exit::Code(1))), []);
        let actions = job.handle(at(1) + GROUP_SIGNAL_WINDOW / 2, stop(Signal::SIGTERM, false));
        assert!(actions.iter().any(|action| matches!(action, Action::KillLeftovers { .. })));
        assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(status));
    }
}

#[test]
fn worker_exit_without_launcher_signal_is_a_failure() {
    let at = clock();
    for exit in STOP_SIGNAL_EXITS {
        let mut job = new_job(3, 1, CliFlavor::Rankrun);
        let _ = job.handle(at(0), Input::Ready);
        let _ = job.handle(at(1), exited(0, 1, exit));
        let _ = job.handle(at(1), exited(0, 2, Exit::Code(1)));
        let actions = job.handle(at(1) + GROUP_SIGNAL_WINDOW, Input::DeadlinePassed);
        assert_eq!(signals(&actions), [(vec![0], Signal::SIGTERM)]);
        assert_eq!(job.deadline(), Some(at(1) + GROUP_SIGNAL_WINDOW + GRACE), "invariant 4");
        assert_eq!(started(&job.handle(at(2), exited(0, 0, killed_by(15)))), Some(1));

        let _ = job.handle(at(3), exited(1, 1, exit));
        let _ = job.handle(at(3), exited(1, 2, Exit::Code(1)));
        let _ = job.handle(at(3), exited(1, 0, Exit::Code(0)));
        let actions = job.handle(at(4), Input::DeadlinePassed);
        let failure = end(&actions).unwrap().failure.as_ref().unwrap();
        assert_eq!(failure.first.exit, exit, "invariant 5: the first cause stays");
        assert_eq!(failure.following_ends.len(), 2);
    }
}

#[test]
fn only_stop_signal_exits_delay_the_decision() {
    let at = clock();
    for exit in [killed_by(9), killed_by(10), killed_by(11), Exit::Code(1), Exit::Code(137), Exit::Code(128)]
    {
        let mut job = new_job(2, 0, CliFlavor::Rankrun);
        let _ = job.handle(at(0), Input::Ready);
        assert_eq!(signals(&job.handle(at(1), exited(0, 0, exit))).len(), 1, "{exit}");
    }
    let mut job = new_job(2, 0, CliFlavor::Rankrun);
    job.rules.stop_signals = [Signal::SIGUSR1].into_iter().collect();
    let _ = job.handle(at(0), Input::Ready);
    assert_eq!(signals(&job.handle(at(1), exited(0, 0, killed_by(15)))).len(), 1);
}

#[test]
fn unlisted_sigint_after_worker_exit_ends_job() {
    let at = clock();
    let mut job = new_job(1, 3, CliFlavor::Rankrun);
    job.rules.stop_signals = [Signal::SIGTERM].into_iter().collect();
    job.rules.interrupt = Interrupt::Unlisted;
    let _ = job.handle(at(0), Input::Ready);
    assert_eq!(job.handle(at(1), exited(0, 0, killed_by(libc::SIGINT))), [], "nothing is decided");
    let actions = job.handle(at(1), stop(Signal::SIGINT, false));
    assert_eq!(started(&actions), None, "invariant 7");
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(130));
}

#[test]
fn undecided_exit_keeps_forwarding_signals_and_time_limit() {
    let at = clock();
    let mut job = new_job(2, 3, CliFlavor::Rankrun);
    let limit = Duration::from_millis(1_200);
    job.rules.time_limit = Some(crate::spec::stop::TimeLimit { limit, warning: None });
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), exited(0, 0, killed_by(15)));
    let passed = job.handle(at(1), Input::SignalForwarded { signal: Signal::SIGUSR1 });
    assert!(
        matches!(&passed[..], [Action::ForwardSignal { local_ranks, .. }] if *local_ranks == [LocalRank(1)])
    );
    assert_eq!(job.deadline(), Some(at(0) + limit));
    let actions = job.handle(at(0) + limit, Input::DeadlinePassed);
    assert_eq!(signals(&actions), [(vec![1], Signal::SIGTERM)]);
    let actions = job.handle(at(2), exited(0, 1, killed_by(15)));
    assert_eq!(started(&actions), None, "invariant 7");
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(crate::exit_code::TIME_LIMIT));
}

/// Time from the first exit to the start of the second generation, if the launcher is not told to stop.
fn restart_delay(ends: [Exit; 2]) -> Duration {
    let at = clock();
    let mut job = new_job(2, 3, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    assert_eq!(signals(&job.handle(at(1), exited(0, 0, ends[0]))), [(vec![1], Signal::SIGTERM)], "at once");
    let actions = job.handle(at(1), exited(0, 1, ends[1]));
    if started(&actions).is_some() {
        return Duration::ZERO;
    }
    assert!(!actions.iter().any(|action| matches!(action, Action::Emit(JobEvent::Waiting { .. }))));
    let until = job.deadline().unwrap();
    assert_eq!(started(&job.handle(until, Input::DeadlinePassed)), Some(1));
    until - at(1)
}

#[test]
fn several_exit_codes_delay_restart_until_launcher_signal() {
    for ends in [[1, 1], [1, 3], [1, 143]] {
        assert_eq!(restart_delay(ends.map(Exit::Code)), GROUP_SIGNAL_WINDOW, "{ends:?}");
    }
    for ends in [
        [Exit::Code(1), killed_by(15)],
        [Exit::Code(1), Exit::Code(0)],
        [killed_by(11), Exit::Code(1)],
        [Exit::Code(1), killed_by(9)],
    ] {
        assert_eq!(restart_delay(ends), Duration::ZERO, "{ends:?}");
    }
}

#[test]
fn exit_codes_before_launcher_signal_prevent_restart() {
    let at = clock();
    for (cli_flavor, status) in [(CliFlavor::Rankrun, 143), (CliFlavor::Torchrun, 1)] {
        let mut job = new_job(2, 3, cli_flavor);
        let _ = job.handle(at(0), Input::Ready);
        let _ = job.handle(at(1), exited(0, 0, Exit::Code(1)));
        let _ = job.handle(at(1), exited(0, 1, Exit::Code(1)));
        let actions = job.handle(at(1) + GROUP_SIGNAL_WINDOW / 2, stop(Signal::SIGTERM, false));
        assert_eq!(started(&actions), None, "invariant 7");
        assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(status));
        assert_eq!(job.handle(at(2), Input::DeadlinePassed), [], "invariant 7");
    }
}
