//! The time limit and its warning, in every phase.

use super::*;
use crate::agent::device_report::DeviceReport;
use crate::exit_code::TIME_LIMIT;
use crate::spec::Unhealthy;
use crate::spec::restart::{Conditions, RestartRule, RuleAction};
use crate::spec::stop::{EarlyWarning, TimeLimit};

const LIMIT: Duration = Duration::from_secs(100);

/// A job of two workers with a limit of 100 s and SIGUSR1 10 s before.
fn limited(max_restarts: u32, persona: CliFlavor) -> State {
    let mut job = state(2, max_restarts, persona);
    let warning = EarlyWarning { signal: Signal::SIGUSR1, before: Duration::from_secs(10) };
    job.rules.time_limit = Some(TimeLimit { limit: LIMIT, warning: Some(warning) });
    job
}

fn passed(actions: &[Action]) -> Vec<Signal> {
    let of = |action: &Action| match action {
        Action::ForwardSignal { signal, .. } => Some(*signal),
        _ => None,
    };
    actions.iter().filter_map(of).collect()
}

#[test]
fn the_workers_are_warned_then_stopped_then_killed() {
    let at = clock();
    for (persona, status) in [(CliFlavor::Rankrun, TIME_LIMIT), (CliFlavor::Torchrun, LAUNCHER_FAILED)] {
        let mut job = limited(5, persona);
        assert_eq!(job.deadline(), None);
        let _ = job.handle(at(0), Input::Ready);
        assert_eq!(job.deadline(), Some(at(90)));
        assert_eq!(job.handle(at(89), Input::DeadlinePassed), [], "not yet");
        let actions = job.handle(at(90), Input::DeadlinePassed);
        assert_eq!((passed(&actions), signals(&actions)), (vec![Signal::SIGUSR1], vec![]));
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
        assert_eq!(end.failure, None, "invariant 5: our stop is no cause");
        assert_eq!(job.deadline(), None);
    }
}

#[test]
fn the_limit_is_over_all_generations() {
    let at = clock();
    let mut job = limited(5, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(50), exited(0, 0, Exit::Code(1)));
    assert_eq!(started(&job.handle(at(51), exited(0, 1, killed_by(15)))), Some(1));
    assert_eq!(job.deadline(), Some(at(90)));
    // Both are due: the launcher was suspended meanwhile.
    let actions = job.handle(at(200), Input::DeadlinePassed);
    assert_eq!((passed(&actions), signals(&actions)), (vec![], vec![(vec![0, 1], Signal::SIGTERM)]));
}

#[test]
fn a_limit_that_strikes_during_a_stop_forbids_the_restart() {
    let at = clock();
    for (max_restarts, status, limit) in [(5, TIME_LIMIT, Some(LIMIT)), (0, 7, None)] {
        let mut job = limited(max_restarts, CliFlavor::Rankrun);
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
fn a_limit_that_strikes_while_devices_are_checked_ends_the_job() {
    let at = clock();
    let mut job = limited(5, CliFlavor::Rankrun);
    job.rules.unhealthy = Some(Unhealthy::Refuse);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(98), exited(0, 0, Exit::Code(7)));
    let _ = job.handle(at(99), exited(0, 1, killed_by(15)));
    let actions = job.handle(at(100), Input::DeadlinePassed);
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(TIME_LIMIT));
    let checked = Input::DevicesProbed { generation: Generation(0), checkup: DeviceReport::default() };
    assert_eq!(job.handle(at(101), checked), []);
}

#[test]
fn what_a_rule_makes_of_a_failure_holds_also_when_the_time_is_up() {
    let at = clock();
    for (then, status) in [(RuleAction::Requeue, 75), (RuleAction::NoRequeue, 78), (RuleAction::Succeed, 0)] {
        let mut job = limited(5, CliFlavor::Rankrun);
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
fn whichever_came_first_is_why_the_job_ended() {
    let at = clock();
    let mut job = limited(5, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(99), stop(Signal::SIGTERM, false));
    assert_eq!(job.handle(at(100), Input::DeadlinePassed), []);
    let _ = job.handle(at(101), exited(0, 0, killed_by(15)));
    let actions = job.handle(at(101), exited(0, 1, killed_by(15)));
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(143));
    assert_eq!(end(&actions).unwrap().time_limit, None);

    let mut job = limited(5, CliFlavor::Rankrun);
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
fn an_interrupt_after_the_time_limit_is_not_why_the_job_ended() {
    let at = clock();
    for (persona, status) in [(CliFlavor::Rankrun, TIME_LIMIT), (CliFlavor::Torchrun, LAUNCHER_FAILED)] {
        let mut job = limited(5, persona);
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
fn who_ends_by_the_warning_has_not_failed() {
    let at = clock();
    for (signal, exit) in [
        (Signal::SIGTERM, killed_by(15)),
        (Signal::SIGTERM, Exit::Code(143)),
        (Signal::SIGUSR1, killed_by(10)),
    ] {
        let mut job = limited(5, CliFlavor::Rankrun);
        let warning = EarlyWarning { signal, before: Duration::from_secs(10) };
        job.rules.time_limit = Some(TimeLimit { limit: LIMIT, warning: Some(warning) });
        let _ = job.handle(at(0), Input::Ready);
        assert_eq!(passed(&job.handle(at(90), Input::DeadlinePassed)), [signal]);
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
        assert_eq!(job.deadline(), None);
    }
}

#[test]
fn before_the_warning_its_signal_is_like_any_other() {
    let at = clock();
    let mut job = limited(5, CliFlavor::Rankrun);
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
fn a_warning_longer_than_the_limit_comes_at_the_start() {
    let at = clock();
    let mut job = limited(0, CliFlavor::Rankrun);
    let warning = EarlyWarning { signal: Signal::SIGUSR1, before: Duration::from_secs(200) };
    job.rules.time_limit = Some(TimeLimit { limit: LIMIT, warning: Some(warning) });
    let _ = job.handle(at(0), Input::Ready);
    assert_eq!(passed(&job.handle(at(0), Input::DeadlinePassed)), [Signal::SIGUSR1]);
    assert_eq!(job.deadline(), Some(at(100)));
}

proptest! {
    /// Any inputs: past the limit no worker starts, and the job ends within the grace period and 5 s.
    #[test]
    fn behind_the_limit_nothing_is_started(inputs in prop::collection::vec(any_input(), 0..40)) {
        let at = clock();
        let mut job = limited(9, CliFlavor::Rankrun);
        let _ = job.handle(at(0), Input::Ready);
        let mut second = 0;
        for input in inputs {
            second += 7;
            let actions = job.handle(at(second), input);
            prop_assert!(started(&actions).is_none() || second < 100, "started at {second} s");
        }
        let mut over = job.phase == JobPhase::Finished;
        for later in 1..=8 {
            over |= end(&job.handle(at(second.max(100) + later * 20), Input::DeadlinePassed)).is_some();
        }
        prop_assert!(over);
    }
}
