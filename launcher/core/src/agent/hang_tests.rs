//! What follows from a verdict on the progress of the workers.

use super::*;
use crate::agent::message::JudgedHang;
use crate::hang::verdict::{Hang, Straggler, Verdict};

fn hang() -> Verdict {
    Verdict::Hang(Hang { waits: Vec::new(), silent: Vec::new(), has_other_nodes: false })
}

fn judged(generation: u32, verdict: Verdict) -> Input {
    Input::HangJudged(Box::new(JudgedHang {
        generation: Generation(generation),
        at: SystemTime::UNIX_EPOCH,
        verdict,
        local_rank: LocalRank(1),
        pid: Pid::from_raw(100),
    }))
}

fn job_with_hang_timeout(max_restarts: u32) -> LocalJob {
    let mut job = new_job(2, max_restarts, CliFlavor::Rankrun);
    job.rules.hang_timeout = Some(Duration::from_secs(60));
    job
}

#[test]
fn hang_with_limit_fails_and_all_restart() {
    let at = clock();
    let mut job = job_with_hang_timeout(1);
    let _ = job.handle(at(0), Input::Ready);
    for generation in [0, 1] {
        let now = 100 * (u64::from(generation) + 1);
        assert_eq!(job.handle(at(now), judged(7, hang())), [], "another generation");
        let actions = job.handle(at(now), judged(generation, hang()));
        assert_eq!(signals(&actions), [(vec![0, 1], Signal::SIGTERM)]);
        assert!(actions.iter().any(|action| matches!(action, Action::Emit(JobEvent::Hang { .. }))));
        assert_eq!(job.handle(at(now + 1), judged(generation, hang())), [], "invariant 5");
        let _ = job.handle(at(now + 1), exited(generation, 0, killed_by(15)));
        let last = job.handle(at(now + 1), exited(generation, 1, killed_by(15)));
        if generation == 0 {
            assert_eq!(started(&last), Some(1));
        } else {
            let end = end(&last).unwrap();
            let failure = end.failure.as_ref().unwrap();
            assert_eq!((failure.kind, failure.first.local_rank), (FailureKind::Hang, LocalRank(1)));
            assert_eq!((end.status, failure.hang.as_deref()), (ExitStatus::Code(1), Some(&hang())));
        }
    }
}

#[test]
fn hang_without_limit_and_straggler_only_warn() {
    let at = clock();
    let straggler = || Verdict::Straggler(Straggler { waits: Vec::new(), working: Vec::new() });
    for (limit, verdict) in [(false, hang()), (false, straggler()), (true, straggler())] {
        let mut job = job_with_hang_timeout(1);
        job.rules.hang_timeout = job.rules.hang_timeout.filter(|_| limit);
        let _ = job.handle(at(0), Input::Ready);
        let warning = Action::Emit(JobEvent::NoProgress { verdict: Box::new(verdict.clone()) });
        assert_eq!(job.handle(at(90), judged(0, verdict)), [warning]);
    }
}

#[test]
fn verdict_during_stop_changes_nothing() {
    let at = clock();
    let mut job = job_with_hang_timeout(1);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), Input::StopRequested { signal: Signal::SIGTERM, is_second: false });
    assert_eq!(job.handle(at(2), judged(0, hang())), []);
}
