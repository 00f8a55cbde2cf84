//! Stops by signals, signals that are passed on, and SIGKILL after the grace period.

use super::*;

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
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(3), "the end by our signal is not a failure");

    let mut stopped = ready(new_job());
    let actions = stopped.handle(at(1), stop(Signal::SIGTERM, false));
    assert_eq!(signals(&actions), [(vec![0, 1], Signal::SIGINT)]);
    let is_named = |action: &Action| {
        matches!(action, Action::Emit(JobEvent::Stopping { worker_signal: Signal::SIGINT, .. }))
    };
    assert!(actions.iter().any(is_named), "{actions:?}");
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
        assert_eq!(end(&actions).unwrap().failure, None, "invariant 5: our stop is not a cause");
    }
}

#[test]
fn second_stop_signal_kills_workers() {
    let at = clock();
    let mut job = new_job(1, 0, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), stop(Signal::SIGTERM, false));
    assert_eq!(
        job.handle(at(1), stop(Signal::SIGTERM, false)),
        [],
        "the second request is part of the same stop"
    );
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
