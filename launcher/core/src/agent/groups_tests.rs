//! Process groups that a stop awaits beside its workers.

use super::*;

const TERM: Signal = Signal::SIGTERM;

/// A job of so many workers that all got SIGTERM alone, at 1 s.
fn stopped_job(at: &impl Fn(u64) -> Instant, workers: u32) -> LocalJob {
    let mut job = new_job(workers, 3, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), stop(TERM, false));
    assert_eq!(job.handle(at(1), signalled_alone(0..workers)), []);
    job
}

fn signalled_alone(local_ranks: impl IntoIterator<Item = u32>) -> Input {
    let alone = local_ranks.into_iter().map(LocalRank).collect();
    Input::Signalled { generation: Generation(0), alone, wrappers: Vec::new() }
}

fn empty_groups(local_ranks: &[u32]) -> Input {
    let empty = local_ranks.iter().copied().map(LocalRank).collect();
    Input::GroupsSignalled { generation: Generation(0), empty }
}

/// The groups that are signalled, or checked.
fn groups(actions: &[Action]) -> Vec<(Vec<u32>, Option<Signal>)> {
    let group = |action: &Action| match action {
        Action::SignalGroups { local_ranks, signal, .. } => {
            Some((local_ranks.iter().map(|rank| rank.0).collect(), *signal))
        }
        _ => None,
    };
    actions.iter().filter_map(group).collect()
}

#[test]
fn group_gets_signal_at_exit_of_worker_and_rest_of_grace() {
    let at = clock();
    let mut job = stopped_job(&at, 2);
    let actions = job.handle(at(5), exited(0, 0, Exit::Code(0)));
    assert_eq!(groups(&actions), [(vec![0], Some(TERM))]);
    assert_eq!(job.handle(at(5), empty_groups(&[])), [], "a loader of rank 0 is left");
    let actions = job.handle(at(10), exited(0, 1, Exit::Code(0)));
    assert_eq!(groups(&actions), [(vec![1], Some(TERM)), (vec![0], None)]);
    assert_eq!(job.handle(at(10), empty_groups(&[1])), [], "rank 0's loader has the rest of the grace");
    assert_eq!(job.handle(at(10), empty_groups(&[])), []);

    let actions = job.handle(at(12), Input::DeadlinePassed);
    let report = JobEvent::AwaitingGroups {
        local_ranks: vec![LocalRank(0)],
        signal: TERM,
        grace: Duration::from_secs(19),
    };
    assert_eq!(actions[0], Action::Emit(report));
    assert_eq!(groups(&actions), [(vec![0], None)]);
    let actions = job.handle(at(20), Input::DescendantReaped);
    assert_eq!(groups(&actions), [(vec![0], None)]);
    let actions = job.handle(at(20), empty_groups(&[0]));
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(128 + 15));
}

#[test]
fn group_of_ended_wrapper_has_rest_of_grace_without_second_signal() {
    let at = clock();
    let mut job = new_job(1, 0, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), stop(TERM, false));
    let wrappers = vec![LocalRank(0)];
    let _ = job.handle(at(1), Input::Signalled { generation: Generation(0), alone: Vec::new(), wrappers });
    let actions = job.handle(at(1), exited(0, 0, killed_by(15)));
    assert_eq!(groups(&actions), [(vec![0], None)], "the program got the signal with its wrapper");
    assert_eq!(job.handle(at(1), empty_groups(&[])), [], "the program saves");
    let actions = job.handle(at(9), Input::DescendantReaped);
    assert_eq!(groups(&actions), [(vec![0], None)]);
    assert_eq!(end(&job.handle(at(9), empty_groups(&[0]))).unwrap().status, ExitStatus::Code(128 + 15));
}

#[test]
fn group_that_ignores_signal_is_killed_after_grace() {
    let at = clock();
    let mut job = stopped_job(&at, 1);
    let _ = job.handle(at(5), exited(0, 0, Exit::Code(0)));
    let _ = job.handle(at(5), empty_groups(&[]));
    assert!(job.deadline().unwrap() <= at(31));
    let actions = job.handle(at(31), Input::DeadlinePassed);
    assert!(matches!(actions[0], Action::KillLeftovers { .. }), "{actions:?}");
    let event = JobEvent::KillingGroups { local_ranks: vec![LocalRank(0)], ignored_signal: Some(TERM) };
    assert!(actions.contains(&Action::Emit(event)), "{actions:?}");
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(128 + 15));
}

#[test]
fn groups_are_killed_with_workers_that_ignore_signal() {
    let at = clock();
    let mut job = stopped_job(&at, 2);
    let _ = job.handle(at(5), exited(0, 0, Exit::Code(0)));
    let _ = job.handle(at(5), empty_groups(&[]));
    let actions = job.handle(at(31), Input::DeadlinePassed);
    assert_eq!(signals(&actions), [(vec![1], Signal::SIGKILL)]);
    assert_eq!(groups(&actions), [(vec![0], Some(Signal::SIGKILL))]);
    let actions = job.handle(at(31), exited(0, 1, killed_by(9)));
    assert!(end(&actions).is_some(), "{actions:?}");
}

#[test]
fn further_signals_reach_groups_and_second_one_kills_them() {
    let at = clock();
    let mut job = stopped_job(&at, 1);
    let _ = job.handle(at(5), exited(0, 0, Exit::Code(0)));
    let _ = job.handle(at(5), empty_groups(&[]));
    let actions = job.handle(at(6), stop(Signal::SIGHUP, false));
    assert_eq!(groups(&actions), [(vec![0], Some(Signal::SIGHUP))]);
    assert_eq!(signals(&actions), [], "no worker is left");
    let awaits = |action: &Action| matches!(action, Action::Emit(JobEvent::AwaitingGroups { .. }));
    assert!(actions.iter().any(awaits), "{actions:?}");
    let actions = job.handle(at(7), stop(TERM, true));
    assert!(end(&actions).is_some(), "{actions:?}");
}

#[test]
fn worker_signalled_with_its_group_leaves_no_wait() {
    let at = clock();
    let mut job = new_job(2, 0, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), stop(TERM, false));
    let _ = job.handle(at(1), signalled_alone([1]));
    let actions = job.handle(at(2), exited(0, 0, Exit::Code(0)));
    assert_eq!(groups(&actions), []);
    let _ = job.handle(at(3), exited(0, 1, Exit::Code(0)));
    let actions = job.handle(at(3), empty_groups(&[1]));
    assert!(end(&actions).is_some(), "{actions:?}");
}

#[test]
fn suspended_time_does_not_count_towards_wait_for_groups() {
    let at = clock();
    let mut job = stopped_job(&at, 1);
    let _ = job.handle(at(5), exited(0, 0, Exit::Code(0)));
    let _ = job.handle(at(5), empty_groups(&[]));
    let _ = job.handle(at(6), Input::SuspendRequested);
    let _ = job.handle(at(106), Input::ResumeRequested);
    let actions = job.handle(at(130), Input::DeadlinePassed);
    assert_eq!(groups(&actions), [(vec![0], None)], "the grace is not over");
    let actions = job.handle(at(131), Input::DeadlinePassed);
    assert!(end(&actions).is_some(), "{actions:?}");
}
