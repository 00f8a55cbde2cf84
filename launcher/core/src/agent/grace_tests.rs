//! A grace period for each cause of a stop.

use super::*;
use crate::agent::message::NotJoined;
use crate::spec::stop::{GraceCause, TimeLimit};

/// All differ, also from the grace period of the launch.
const GRACES: [(GraceCause, u64); 5] = [
    (GraceCause::Signal, 60),
    (GraceCause::Failure, 5),
    (GraceCause::Restart, 2),
    (GraceCause::TimeLimit, 90),
    (GraceCause::StartTimeout, 7),
];

/// A job with two running workers.
fn running(causes: &[GraceCause], max_restarts: u32, at: &impl Fn(u64) -> Instant) -> LocalJob {
    let mut job = new_job(2, max_restarts, CliFlavor::Rankrun);
    for (cause, seconds) in GRACES.iter().filter(|(cause, _)| causes.contains(cause)) {
        job.rules.stop.grace_for.set(*cause, Duration::from_secs(*seconds));
    }
    let limit = Duration::from_secs(100);
    job.rules.time_limit = Some(TimeLimit { limit, warning: None });
    job.rules.start_timeout = Some(Duration::from_secs(3));
    let _ = job.handle(at(0), Input::Ready);
    job
}

fn rank_not_joined() -> Input {
    let missing = vec![NotJoined { local_rank: LocalRank(0), pid: Pid::from_raw(100) }];
    Input::JoinedProbed { generation: Generation(0), at: SystemTime::UNIX_EPOCH, missing }
}

/// The grace period that the user is told, in seconds.
fn reported_grace(actions: &[Action]) -> Option<u64> {
    actions.iter().find_map(|action| match action {
        Action::Emit(
            JobEvent::WorkerFailed { grace, .. }
            | JobEvent::Stopping { grace, .. }
            | JobEvent::NotJoined { grace, .. }
            | JobEvent::TimeIsUp { grace, .. },
        ) => Some(grace.as_secs()),
        _ => None,
    })
}

#[test]
fn each_stop_cause_has_its_own_grace_period() {
    let at = clock();
    let all = GRACES.map(|(cause, _)| cause);
    for (max_restarts, begins, input, grace) in [
        (3, 10, stop(Signal::SIGTERM, false), 60),
        (0, 10, exited(0, 0, Exit::Code(3)), 5),
        (3, 10, exited(0, 0, Exit::Code(3)), 2),
        (3, 100, Input::DeadlinePassed, 90),
        (3, 10, rank_not_joined(), 7),
        (0, 10, rank_not_joined(), 7),
    ] {
        let mut job = running(&all, max_restarts, &at);
        if begins < 100 {
            let _ = job.handle(at(3), Input::DeadlinePassed);
        }
        let actions = job.handle(at(begins), input);
        assert_eq!(reported_grace(&actions), Some(grace), "{actions:?}");
        // The time limit may come before the end of the grace period.
        let kill_at = at(begins + grace);
        assert!(job.deadline().is_some_and(|deadline| deadline <= kill_at), "invariant 4");
        let early = job.handle(kill_at - Duration::from_millis(1), Input::DeadlinePassed);
        assert_eq!(signals(&early), [], "{grace}");
        let actions = job.handle(kill_at, Input::DeadlinePassed);
        assert!(matches!(&signals(&actions)[..], [(_, Signal::SIGKILL)]), "invariant 4: {actions:?}");
    }
}

#[test]
fn unset_grace_period_defaults_to_failure_or_launch_value() {
    let at = clock();
    let missed = || (rank_not_joined(), 30);
    let failed = || (exited(0, 0, Exit::Code(3)), 30);
    for (causes, (input, grace)) in [
        (&[][..], failed()),
        (&[], missed()),
        (&[GraceCause::Signal, GraceCause::TimeLimit], missed()),
        (&[GraceCause::Failure], (failed().0, 5)),
        (&[GraceCause::Failure], (missed().0, 5)),
        (&[GraceCause::Failure, GraceCause::Restart], (missed().0, 2)),
        (&[GraceCause::StartTimeout], failed()),
        (&[GraceCause::Failure], (stop(Signal::SIGINT, false), 30)),
    ] {
        let mut job = running(causes, 3, &at);
        let _ = job.handle(at(3), Input::DeadlinePassed);
        assert_eq!(reported_grace(&job.handle(at(10), input)), Some(grace), "{causes:?}");
    }
}

/// A restart must be possible: not past the time limit, and not against a rule.
#[test]
fn failure_without_restart_uses_final_grace_period() {
    let at = clock();
    let causes = [GraceCause::Failure, GraceCause::Restart];
    let mut job = running(&causes, 3, &at);
    job.rules.restart.backoff = Some(crate::spec::restart::Backoff {
        delay: Duration::from_secs(40),
        factor: 1.0,
        cap: Duration::from_secs(40),
        jitter: 0.0,
    });
    assert_eq!(reported_grace(&job.handle(at(59), exited(0, 0, Exit::Code(3)))), Some(2));
    let mut late = running(&causes, 3, &at);
    late.rules.restart = job.rules.restart.clone();
    assert_eq!(reported_grace(&late.handle(at(60), exited(0, 0, Exit::Code(3)))), Some(5));
    let mut barred = running(&causes, 3, &at);
    let when = crate::spec::restart::Conditions::default();
    let then = crate::spec::restart::RuleAction::Fail;
    barred.rules.restart.rules = vec![crate::spec::restart::RestartRule { when, then }];
    assert_eq!(reported_grace(&barred.handle(at(10), exited(0, 0, Exit::Code(3)))), Some(5));
}

#[test]
fn signal_shortens_running_grace_period_and_never_extends_it() {
    let at = clock();
    for (graces, kill_at, left) in [((60, 5), 15, 3), ((2, 60), 14, 2)] {
        let mut job = running(&[], 0, &at);
        job.rules.stop.grace_for.set(GraceCause::Signal, Duration::from_secs(graces.0));
        job.rules.stop.grace_for.set(GraceCause::Failure, Duration::from_secs(graces.1));
        let _ = job.handle(at(10), exited(0, 0, Exit::Code(3)));
        let actions = job.handle(at(12), stop(Signal::SIGINT, false));
        assert_eq!(reported_grace(&actions), Some(left), "what is left is told");
        let deadline = job.phase_deadline();
        assert_eq!(deadline, Some(at(kill_at)));
        let _ = job.handle(at(13), stop(Signal::SIGINT, false));
        assert_eq!(job.phase_deadline(), deadline, "the second request is part of the same stop");
    }
}
