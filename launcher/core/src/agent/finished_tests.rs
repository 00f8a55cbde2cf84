//! Workers that have exited with 0 while others run.

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

fn finished_reports(actions: &[Action]) -> Vec<(Vec<u32>, Vec<u32>, u64)> {
    let numbers = |ranks: &[LocalRank]| ranks.iter().map(|rank| rank.0).collect();
    let line = |action: &Action| match action {
        Action::Emit(JobEvent::SomeFinished { finished, live, waited: since }) => {
            Some((numbers(finished), numbers(live), since.as_secs()))
        }
        _ => None,
    };
    actions.iter().filter_map(line).collect()
}

/// The early successes of the failure, and their time before it.
fn early_successes(actions: &[Action]) -> Vec<(u32, Duration)> {
    let failure = end(actions).and_then(|end| end.failure.as_ref()).expect("the job has failed");
    failure.early_successes.iter().map(|early| (early.end.local_rank.0, early.before)).collect()
}

#[test]
fn workers_running_a_minute_after_peer_success_are_reported_once() {
    let at = clock();
    let mut job = new_job(4, 0, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    assert_eq!(job.deadline(), None);
    assert_eq!(job.handle(at(5), exited(0, 1, Exit::Code(0))), []);
    assert_eq!(job.deadline(), Some(at(5) + MINUTE));
    assert_eq!(job.handle(at(30), exited(0, 3, Exit::Code(0))), []);
    assert_eq!(finished_reports(&job.handle(at(64), Input::DeadlinePassed)), []);
    assert_eq!(finished_reports(&job.handle(at(65), Input::DeadlinePassed)), [(vec![1, 3], vec![0, 2], 60)]);
    assert_eq!(job.deadline(), None, "once");
    assert_eq!(job.handle(at(300), Input::DeadlinePassed), []);
    assert_eq!(job.handle(at(301), exited(0, 0, Exit::Code(0))), []);
    assert_eq!(job.deadline(), None, "once");
    let actions = job.handle(at(302), exited(0, 2, Exit::Code(0)));
    assert_eq!(end(&actions).unwrap().status, ExitStatus::SUCCESS);
}

#[test]
fn workers_finishing_within_a_minute_are_not_reported() {
    let at = clock();
    let mut job = new_job(2, 1, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), exited(0, 1, Exit::Code(0)));
    let _ = job.handle(at(40), exited(0, 0, Exit::Code(3)));
    assert_eq!(job.deadline(), None, "the generation before is over");
    assert_eq!(finished_reports(&job.handle(at(61), Input::DeadlinePassed)), []);
    let _ = job.handle(at(62), exited(1, 0, Exit::Code(0)));
    assert_eq!(job.deadline(), Some(at(62) + MINUTE), "each generation has its own minute");
    assert!(end(&job.handle(at(63), exited(1, 1, Exit::Code(0)))).is_some());
}

#[test]
fn suspended_time_does_not_count_towards_finished_report() {
    let at = clock();
    let mut job = new_job(2, 0, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(0), exited(0, 1, Exit::Code(0)));
    let _ = job.handle(at(10), Input::SuspendRequested);
    let _ = job.handle(at(50), Input::ResumeRequested);
    assert_eq!(job.deadline(), Some(at(100)));
    assert_eq!(finished_reports(&job.handle(at(100), Input::DeadlinePassed)), [(vec![1], vec![0], 60)]);
    let actions = job.handle(at(101), exited(0, 0, Exit::Code(1)));
    assert_eq!(early_successes(&actions), [(1, Duration::from_secs(61))]);
}

#[test]
fn failure_lists_earlier_successes_of_its_generation_only() {
    let at = clock();
    let mut job = new_job(3, 1, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), exited(0, 2, Exit::Code(0)));
    let _ = job.handle(at(2), exited(0, 0, Exit::Code(1)));
    let restarted = job.handle(at(2), exited(0, 1, killed_by(15)));
    assert_eq!(started(&restarted), Some(1));
    let _ = job.handle(at(4), exited(1, 1, Exit::Code(0)));
    let _ = job.handle(at(7), exited(1, 2, Exit::Code(0)));
    let actions = job.handle(at(9), exited(1, 0, Exit::Code(1)));
    assert_eq!(early_successes(&actions), [(1, Duration::from_secs(5)), (2, Duration::from_secs(2))]);
}
