//! Transcripts of jobs with an external worker, here always local rank 1.

use super::*;
use crate::spec::stop::StopReason;

fn state(workers: u32, max_restarts: u32) -> LocalJob {
    let mut job = super::new_job(workers, max_restarts, CliFlavor::Rankrun);
    job.rules.external_worker = Some(LocalRank(1));
    job
}

fn external_worker_started(generation: u32) -> Input {
    let (local_rank, pid) = (LocalRank(1), Pid::from_raw(7));
    Input::ExternalWorkerStarted { generation: Generation(generation), local_rank, pid }
}

fn released(actions: &[Action]) -> Option<(StopReason, Option<LocalRank>)> {
    actions.iter().find_map(|action| match action {
        Action::ReleaseExternalWorker { reason, failed } => Some((*reason, failed.map(|end| end.local_rank))),
        _ => None,
    })
}

#[test]
fn external_worker_is_awaited_without_limit() {
    let at = clock();
    let mut job = state(2, 0);
    assert_eq!(started(&job.handle(at(0), Input::Ready)), Some(0));
    assert_eq!(job.handle(at(1), exited(0, 0, Exit::Code(0))), []);
    assert_eq!(job.deadline(), None);
    let said = job.handle(at(90_000), external_worker_started(0));
    assert!(matches!(said[..], [Action::Emit(JobEvent::ExternalWorkerStarted { .. })]), "{said:?}");
    let actions = job.handle(at(100_000), exited(0, 1, Exit::Code(0)));
    assert_eq!(end(&actions).unwrap().status, ExitStatus::SUCCESS);
}

#[test]
fn external_worker_failure_stops_other_workers() {
    let at = clock();
    let mut job = state(3, 0);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), external_worker_started(0));
    let actions = job.handle(at(2), exited(0, 1, Exit::Code(7)));
    assert_eq!(signals(&actions), [(vec![0, 2], Signal::SIGTERM)]);
    assert_eq!(released(&actions), None, "it has ended");
    let _ = job.handle(at(3), exited(0, 0, killed_by(15)));
    let actions = job.handle(at(3), exited(0, 2, killed_by(15)));
    let end = end(&actions).unwrap();
    assert_eq!(end.status, ExitStatus::Code(7));
    assert_eq!(end.failure.as_ref().unwrap().first.local_rank, LocalRank(1));
}

#[test]
fn worker_failure_releases_external_worker_without_wait() {
    let at = clock();
    let mut job = state(3, 1);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), external_worker_started(0));
    let actions = job.handle(at(2), exited(0, 0, Exit::Code(5)));
    assert_eq!(signals(&actions), [(vec![2], Signal::SIGTERM)], "it is the person's");
    let Action::Emit(JobEvent::WorkerFailed { live: others, .. }) = &actions[1] else {
        panic!("{actions:?}")
    };
    assert_eq!(others, &[LocalRank(2)]);
    assert_eq!(released(&actions), Some((StopReason::WorkerFailed, Some(LocalRank(0)))));
    let actions = job.handle(at(3), exited(0, 2, killed_by(15)));
    assert_eq!(started(&actions), Some(1), "it may still run");
    assert_eq!(job.handle(at(4), external_worker_started(0)), [], "of the old generation");
    assert_eq!(job.handle(at(4), exited(0, 1, Exit::Code(1))), [], "of the old generation");
}

#[test]
fn external_worker_exit_during_stop_can_be_first_cause() {
    let at = clock();
    let mut job = state(3, 0);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), external_worker_started(0));
    let _ = job.handle(at(2), exited(0, 0, Exit::Code(1)));
    let _ = job.handle(at(2), exited(0, 1, killed_by(11)));
    let actions = job.handle(at(3), exited(0, 2, killed_by(15)));
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(128 + 11), "it crashed, and rank 0 lost it");
}

#[test]
fn signal_stops_other_workers_and_releases_external_worker() {
    let at = clock();
    let mut job = state(2, 5);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), external_worker_started(0));
    let passed = Input::SignalForwarded { signal: Signal::SIGUSR1 };
    let forwarded = Action::ForwardSignal {
        generation: Generation(0),
        local_ranks: vec![LocalRank(0)],
        signal: Signal::SIGUSR1,
    };
    assert_eq!(job.handle(at(1), passed), [forwarded]);
    let actions = job.handle(at(2), stop(Signal::SIGINT, false));
    assert_eq!(signals(&actions), [(vec![0], Signal::SIGINT)]);
    let (signal, live) = (Signal::SIGINT, vec![LocalRank(0)]);
    assert!(actions.contains(&Action::Emit(JobEvent::Stopping {
        signal,
        worker_signal: signal,
        live,
        grace: GRACE
    })));
    assert_eq!(released(&actions), Some((StopReason::Signal(signal), None)));
    let actions = job.handle(at(3), exited(0, 0, killed_by(2)));
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(130));
}

#[test]
fn signal_ends_job_at_once_if_only_external_worker_runs() {
    let at = clock();
    let mut job = state(2, 0);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), exited(0, 0, Exit::Code(0)));
    let actions = job.handle(at(2), stop(Signal::SIGTERM, false));
    assert_eq!(released(&actions), Some((StopReason::Signal(Signal::SIGTERM), None)));
    assert_eq!(signals(&actions), []);
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(143));
}

#[test]
fn failed_start_releases_external_worker() {
    let at = clock();
    let mut job = state(3, 0);
    let _ = job.handle(at(0), Input::Ready);
    let input = start_failed(2);
    let actions = job.handle(at(0), input);
    assert_eq!(signals(&actions), [(vec![0], Signal::SIGTERM)]);
    assert_eq!(released(&actions), Some((StopReason::NotStarted, None)));
}

proptest! {
    /// Any inputs: no signal names the external worker, and a stopped job ends with its last other worker.
    #[test]
    fn external_worker_is_never_signalled(inputs in prop::collection::vec(any_input(), 0..60)) {
        let at = clock();
        let mut job = state(3, 2);
        for (second, input) in (0..).map(|step| step * 10).zip(inputs) {
            let actions = job.handle(at(second), input);
            let named = signals(&actions).iter().any(|(ranks, _)| ranks.contains(&1) || ranks.is_empty());
            prop_assert!(!named, "{actions:?}");
        }
    }
}
