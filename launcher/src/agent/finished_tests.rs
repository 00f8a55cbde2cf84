//! Workers that have exited with 0 while others run.

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

fn told(actions: &[Action]) -> Vec<(Vec<u32>, Vec<u32>, u64)> {
    let numbers = |ranks: &[LocalRank]| ranks.iter().map(|rank| rank.0).collect();
    let line = |action: &Action| match action {
        Action::Emit(JobEvent::SomeFinished { finished, live, since }) => {
            Some((numbers(finished), numbers(live), since.as_secs()))
        }
        _ => None,
    };
    actions.iter().filter_map(line).collect()
}

/// The early successes of the failure, and their time before it.
fn early(actions: &[Action]) -> Vec<(u32, Duration)> {
    let failure = end(actions).and_then(|end| end.failure.as_ref()).expect("the job has failed");
    failure.early.iter().map(|early| (early.end.local_rank.0, early.before)).collect()
}

#[test]
fn workers_that_go_on_a_minute_after_a_success_are_told_once() {
    let at = clock();
    let mut job = state(4, 0, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    assert_eq!(job.deadline(), None);
    assert_eq!(job.handle(at(5), exited(0, 1, Exit::Code(0))), []);
    assert_eq!(job.deadline(), Some(at(5) + MINUTE));
    assert_eq!(job.handle(at(30), exited(0, 3, Exit::Code(0))), []);
    assert_eq!(told(&job.handle(at(64), Input::DeadlinePassed)), []);
    assert_eq!(told(&job.handle(at(65), Input::DeadlinePassed)), [(vec![1, 3], vec![0, 2], 60)]);
    assert_eq!(job.deadline(), None, "once");
    assert_eq!(job.handle(at(300), Input::DeadlinePassed), []);
    assert_eq!(job.handle(at(301), exited(0, 0, Exit::Code(0))), []);
    assert_eq!(job.deadline(), None, "once");
    let actions = job.handle(at(302), exited(0, 2, Exit::Code(0)));
    assert_eq!(end(&actions).unwrap().status, ExitStatus::SUCCESS);
}

#[test]
fn job_whose_workers_all_finish_within_a_minute_is_not_told() {
    let at = clock();
    let mut job = state(2, 1, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), exited(0, 1, Exit::Code(0)));
    let _ = job.handle(at(40), exited(0, 0, Exit::Code(3)));
    assert_eq!(job.deadline(), None, "the life before is over");
    assert_eq!(told(&job.handle(at(61), Input::DeadlinePassed)), []);
    let _ = job.handle(at(62), exited(1, 0, Exit::Code(0)));
    assert_eq!(job.deadline(), Some(at(62) + MINUTE), "each life has its own minute");
    assert!(end(&job.handle(at(63), exited(1, 1, Exit::Code(0)))).is_some());
}

#[test]
fn halted_job_is_not_told_before_a_minute_of_its_own_time() {
    let at = clock();
    let mut job = state(2, 0, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(0), exited(0, 1, Exit::Code(0)));
    let _ = job.handle(at(50), Input::Resumed { lasted: Duration::from_secs(40) });
    assert_eq!(job.deadline(), Some(at(100)));
    assert_eq!(told(&job.handle(at(100), Input::DeadlinePassed)), [(vec![1], vec![0], 60)]);
    let actions = job.handle(at(101), exited(0, 0, Exit::Code(1)));
    assert_eq!(early(&actions), [(1, Duration::from_secs(61))]);
}

#[test]
fn failure_has_the_successes_before_it_and_of_its_own_life_alone() {
    let at = clock();
    let mut job = state(3, 1, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), exited(0, 2, Exit::Code(0)));
    let _ = job.handle(at(2), exited(0, 0, Exit::Code(1)));
    let restarted = job.handle(at(2), exited(0, 1, killed_by(15)));
    assert_eq!(started(&restarted), Some(1));
    let _ = job.handle(at(4), exited(1, 1, Exit::Code(0)));
    let _ = job.handle(at(7), exited(1, 2, Exit::Code(0)));
    let actions = job.handle(at(9), exited(1, 0, Exit::Code(1)));
    assert_eq!(early(&actions), [(1, Duration::from_secs(5)), (2, Duration::from_secs(2))]);
}
