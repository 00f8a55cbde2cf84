//! The start limit, and workers that have not joined the store by then.

use super::*;
use crate::agent::message::NotJoined;
use crate::agent::state::start::UnansweredDeadline;
use crate::job_event::JobState;

const LIMIT: Duration = Duration::from_secs(5);

fn job_with_start_timeout(max_restarts: u32) -> LocalJob {
    let mut job = new_job(4, max_restarts, CliFlavor::Rankrun);
    job.rules.start_timeout = Some(LIMIT);
    job
}

fn ranks_not_joined(generation: u32, local_ranks: &[u32]) -> Input {
    let worker = |rank: &u32| NotJoined { local_rank: LocalRank(*rank), pid: Pid::from_raw(100) };
    let missing = local_ranks.iter().map(worker).collect();
    Input::JoinedProbed { generation: Generation(generation), at: SystemTime::UNIX_EPOCH, missing }
}

fn ranks(numbers: &[u32]) -> Vec<LocalRank> {
    numbers.iter().copied().map(LocalRank).collect()
}

#[test]
fn rank_not_joined_by_start_timeout_fails_and_all_restart() {
    let at = clock();
    let mut job = job_with_start_timeout(1);
    for generation in [0, 1] {
        let began = u64::from(generation) * 20;
        if generation == 0 {
            let _ = job.handle(at(0), Input::Ready);
        }
        assert_eq!(job.deadline(), Some(at(began) + LIMIT), "anew in each generation");
        assert_eq!(job.handle(at(began + 4), Input::DeadlinePassed), [], "not yet");
        let look =
            Action::ProbeJoined { generation: Generation(generation), local_ranks: ranks(&[0, 1, 2, 3]) };
        assert_eq!(job.handle(at(began + 5), Input::DeadlinePassed), [look]);
        assert_eq!(job.deadline(), None, "once");
        let actions = job.handle(at(began + 5), ranks_not_joined(generation, &[1, 3]));
        assert_eq!(signals(&actions), [(vec![0, 1, 2, 3], Signal::SIGTERM)]);
        assert!(actions.iter().any(
            |action| matches!(action, Action::Emit(JobEvent::NotJoined { missing, .. }) if *missing == ranks(&[1, 3]))
        ));
        let mut last = Vec::new();
        for rank in 0..4 {
            last = job.handle(at(began + 20), exited(generation, rank, killed_by(15)));
        }
        if generation == 0 {
            assert_eq!(started(&last), Some(1));
        } else {
            let end = end(&last).unwrap();
            let failure = end.failure.as_ref().unwrap();
            assert_eq!((end.status, failure.not_joined.to_vec()), (ExitStatus::Code(1), ranks(&[1, 3])));
            assert_eq!(failure.first.local_rank, LocalRank(1), "invariant 5");
            assert_eq!(failure.following_ends.len(), 3);
        }
    }
}

#[test]
fn deadline_of_unanswered_workers_is_start_limit_then_sigkill() {
    let at = clock();
    let mut job = job_with_start_timeout(0);
    assert_eq!(job.unanswered_deadline(), None);
    let _ = job.handle(at(0), Input::Ready);
    assert_eq!(job.unanswered_deadline(), Some(UnansweredDeadline::Join(at(0) + LIMIT)));
    let _ = job.handle(at(5), Input::DeadlinePassed);
    assert_eq!(job.unanswered_deadline(), None, "the limit has expired");
    let _ = job.handle(at(5), ranks_not_joined(0, &[1]));
    assert_eq!(job.unanswered_deadline(), job.deadline().map(UnansweredDeadline::Kill));
    for rank in 0..4 {
        let _ = job.handle(at(6), exited(0, rank, killed_by(15)));
    }
    assert_eq!(job.unanswered_deadline(), None, "no worker is left");
}

#[test]
fn joined_ended_or_old_ranks_are_not_missing() {
    let at = clock();
    let mut job = job_with_start_timeout(1);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), exited(0, 2, Exit::Code(0)));
    let _ = job.handle(at(5), Input::DeadlinePassed);
    for seen in [ranks_not_joined(0, &[]), ranks_not_joined(0, &[2]), ranks_not_joined(7, &[0])] {
        assert_eq!(job.handle(at(5), seen), []);
    }
    let _ = job.handle(at(6), stop(Signal::SIGTERM, false));
    assert_eq!(job.handle(at(6), ranks_not_joined(0, &[0])), [], "invariant 5");
}

#[test]
fn start_timeout_generation_does_not_reset_budget() {
    let at = clock();
    let policy = RestartPolicy { reset_after: Some(LIMIT / 2), ..RestartPolicy::default() };
    let mut job = new_job_with_policy(policy, 1, 1, CliFlavor::Rankrun);
    job.rules.start_timeout = Some(LIMIT);
    let _ = job.handle(at(0), Input::Ready);
    for (generation, restart) in [(0, Some(1)), (1, None)] {
        let now = at(5 * u64::from(generation + 1));
        let _ = job.handle(now, Input::DeadlinePassed);
        let _ = job.handle(now, ranks_not_joined(generation, &[0]));
        assert_eq!(started(&job.handle(now, exited(generation, 0, killed_by(15)))), restart, "invariant 6");
    }
}

/// As where its log folders are on a file system that does not answer.
#[test]
fn stop_of_pending_start_names_no_worker_to_wait_for() {
    let at = clock();
    let live_of = |is_start_pending| {
        let mut job = new_job(2, 0, CliFlavor::Rankrun);
        job.state.is_start_pending = is_start_pending;
        let _ = job.handle(at(0), Input::Ready);
        let state = job.summary().state;
        let actions = job.handle(at(1), stop(Signal::SIGTERM, false));
        let live = actions.into_iter().find_map(|action| match action {
            Action::Emit(JobEvent::Stopping { live, .. }) => Some(live),
            _ => None,
        });
        (state, live.unwrap())
    };
    assert_eq!(live_of(true), (JobState::Starting, vec![]));
    assert_eq!(live_of(false), (JobState::Running, vec![LocalRank(0), LocalRank(1)]));
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
