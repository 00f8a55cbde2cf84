//! Siblings of a worker that failed for good, under the name torchrun.

use super::siblings::TORCHRUN_POLL_INTERVAL;
use super::*;

/// Three workers, of which the first has failed for good.
fn job_with_failed_worker(at: &impl Fn(u64) -> Instant, workers: u32) -> LocalJob {
    let mut job = new_job(workers, 0, CliFlavor::Torchrun);
    let _ = job.handle(at(0), Input::Ready);
    assert_eq!(job.handle(at(1), exited(0, 0, Exit::Code(3))), [], "the siblings may end by themselves");
    assert_eq!(job.deadline(), Some(at(1) + TORCHRUN_POLL_INTERVAL));
    job
}

fn ends(actions: &[Action]) -> Vec<(u32, Exit, bool)> {
    let failure = end(actions).and_then(|end| end.failure.as_ref()).expect("the job has failed");
    failure
        .following_ends
        .iter()
        .map(|other| (other.end.local_rank.0, other.end.exit, other.is_stopped_by_us))
        .collect()
}

#[test]
fn sibling_alive_at_poll_is_stopped_and_ended_ones_keep_their_exit() {
    let at = clock();
    let mut job = job_with_failed_worker(&at, 5);
    let soon = at(1) + TORCHRUN_POLL_INTERVAL / 2;
    assert_eq!(job.handle(soon, Input::DeadlinePassed), [], "not yet");
    assert_eq!(job.handle(soon, exited(0, 1, Exit::Code(0))), []);
    assert_eq!(job.handle(soon, exited(0, 2, Exit::Code(7))), []);
    assert_eq!(job.handle(soon, exited(0, 3, killed_by(9))), []);
    let actions = job.handle(at(1) + TORCHRUN_POLL_INTERVAL, Input::DeadlinePassed);
    assert_eq!(signals(&actions), [(vec![4], Signal::SIGTERM)]);
    assert_eq!(job.deadline(), Some(at(1) + TORCHRUN_POLL_INTERVAL + GRACE), "invariant 4");
    let actions = job.handle(at(2), exited(0, 4, killed_by(15)));
    let expected = [
        (1, Exit::Code(0), false),
        (2, Exit::Code(7), false),
        (3, killed_by(9), false),
        (4, killed_by(15), true),
    ];
    // A worker that was killed from outside at the same moment is the cause, as everywhere.
    assert_eq!(end(&actions).unwrap().failure.as_ref().unwrap().first.local_rank, LocalRank(3));
    assert_eq!(ends(&actions)[1..], [expected[0], expected[1], expected[3]]);
}

#[test]
fn last_sibling_exit_ends_wait_for_poll() {
    let at = clock();
    let mut job = job_with_failed_worker(&at, 3);
    assert_eq!(job.handle(at(1), exited(0, 1, Exit::Code(0))), []);
    let actions = job.handle(at(1), exited(0, 2, Exit::Code(7)));
    assert_eq!(signals(&actions), []);
    assert_eq!(ends(&actions), [(1, Exit::Code(0), false), (2, Exit::Code(7), false)]);
}

#[test]
fn siblings_are_stopped_at_once_if_no_report_follows() {
    let at = clock();
    for (cli_flavor, max_restarts) in [(CliFlavor::Torchrun, 1), (CliFlavor::Rankrun, 0)] {
        let mut job = new_job(2, max_restarts, cli_flavor);
        let _ = job.handle(at(0), Input::Ready);
        let actions = job.handle(at(1), exited(0, 0, Exit::Code(3)));
        assert_eq!(signals(&actions), [(vec![1], Signal::SIGTERM)], "{cli_flavor:?}");
    }
}

#[test]
fn signal_and_time_limit_do_not_wait_for_poll() {
    let at = clock();
    let mut job = job_with_failed_worker(&at, 2);
    let actions = job.handle(at(1) + TORCHRUN_POLL_INTERVAL / 2, stop(Signal::SIGINT, false));
    let signalled: Vec<_> = signals(&actions).into_iter().map(|(ranks, _)| ranks).collect();
    assert!(!signalled.is_empty() && signalled.iter().all(|ranks| ranks == &[1]), "invariant 10");
    let actions = job.handle(at(2), exited(0, 1, killed_by(libc::SIGINT)));
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(LAUNCHER_FAILED));

    let mut job = new_job(2, 0, CliFlavor::Torchrun);
    let limit = Duration::from_secs(1) + TORCHRUN_POLL_INTERVAL / 2;
    job.rules.time_limit = Some(crate::spec::stop::TimeLimit { limit, warning: None });
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), exited(0, 0, Exit::Code(3)));
    assert_eq!(signals(&job.handle(at(0) + limit, Input::DeadlinePassed)), [(vec![1], Signal::SIGTERM)]);
}

#[test]
fn failure_is_sent_to_other_nodes_once_and_before_poll() {
    let at = clock();
    let mut job = SweptState::new(rules(2, 0, CliFlavor::Torchrun));
    let _ = job.handle(at(0), Input::Ready);
    let mut round = Round::of_one_node(
        LocalWorldSize::new(2).unwrap(),
        rankrun_contract::env::Master { addr: "127.0.0.1".to_owned(), port: 1, uses_agent_store: true },
    );
    round.number = 1;
    let _ = job.handle(at(0), Input::Joined(Box::new(round)));
    let is_tell_failure = |action: &Action| matches!(action, Action::TellFailure { .. });
    assert!(job.handle(at(1), exited(0, 0, Exit::Code(3))).iter().all(is_tell_failure));
    let actions = job.handle(at(1) + TORCHRUN_POLL_INTERVAL, Input::DeadlinePassed);
    assert_eq!(signals(&actions), [(vec![1], Signal::SIGTERM)]);
    assert!(!actions.iter().any(is_tell_failure), "once");
}
