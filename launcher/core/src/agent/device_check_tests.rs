//! Transcripts with a health check of the devices after a failure.

use super::*;
use crate::agent::device_report::DeviceReport;
use crate::agent::recurrence::{CheckpointFingerprint, ProgressMark};
use crate::job_event::DeadDevice;
use crate::spec::Unhealthy;
use crate::spec::restart::{Backoff, ProgressLimit, RestartPolicy};

/// A job of two workers with device checks.
fn checked_job(max_restarts: u32) -> LocalJob {
    let mut job = new_job(2, max_restarts, CliFlavor::Rankrun);
    job.rules.unhealthy = Some(Unhealthy::Refuse);
    job
}

/// Both workers of the generation fail, the first with this code.
fn fail_generation(job: &mut LocalJob, (generation, code): (u32, i32), at: Instant) -> Vec<Action> {
    let _ = job.handle(at, exited(generation, 1, Exit::Code(code)));
    job.handle(at, exited(generation, 0, killed_by(15)))
}

fn devices_probed(generation: u32, checkup: DeviceReport) -> Input {
    Input::DevicesProbed { generation: Generation(generation), report: checkup }
}

fn report_with_dead_device() -> DeviceReport {
    let dead = DeadDevice {
        local_ranks: vec![LocalRank(1)],
        device: "cuda 3 (Fast)".to_owned(),
        reason: "does not answer".to_owned(),
    };
    DeviceReport { dead: vec![dead], ..DeviceReport::default() }
}

fn probes_devices(actions: &[Action]) -> bool {
    actions.contains(&Action::ProbeDevices { generation: Generation(0) })
}

fn emits(actions: &[Action], wanted: impl Fn(&JobEvent) -> bool) -> bool {
    actions.iter().any(|action| matches!(action, Action::Emit(said) if wanted(said)))
}

#[test]
fn healthy_devices_allow_restart() {
    let at = clock();
    let mut job = checked_job(1);
    let _ = job.handle(at(0), Input::Ready);
    let actions = fail_generation(&mut job, (0, 7), at(1));
    assert!(probes_devices(&actions) && started(&actions).is_none() && end(&actions).is_none());
    let leftovers = actions.iter().position(|action| matches!(action, Action::KillLeftovers { .. }));
    assert!(leftovers < actions.iter().position(|action| matches!(action, Action::ProbeDevices { .. })));
    let actions = job.handle(at(2), devices_probed(0, DeviceReport::default()));
    assert_eq!(started(&actions), Some(1));
    assert_eq!(
        job.handle(at(3), devices_probed(0, report_with_dead_device())),
        [],
        "an old generation changes nothing"
    );
}

#[test]
fn dead_device_ends_job_with_failure_status() {
    let at = clock();
    for restarts in [0, 3] {
        let mut job = checked_job(restarts);
        let _ = job.handle(at(0), Input::Ready);
        let _ = fail_generation(&mut job, (0, 7), at(1));
        let actions = job.handle(at(2), devices_probed(0, report_with_dead_device()));
        assert_eq!(started(&actions), None);
        let end = end(&actions).unwrap();
        assert_eq!(end.status, ExitStatus::Code(7), "invariant 8");
        assert_eq!(end.failure.as_ref().unwrap().dead_devices, report_with_dead_device().dead);
        assert!(emits(&actions, |said| matches!(said, JobEvent::DeviceDead(_))));
        let no_restart = emits(&actions, |said| matches!(said, JobEvent::NoRestart { .. }));
        assert_eq!(no_restart, restarts > 0, "only where there would have been one");
    }
}

#[test]
fn unchecked_devices_allow_restart() {
    let at = clock();
    let mut job = checked_job(1);
    let _ = job.handle(at(0), Input::Ready);
    let _ = fail_generation(&mut job, (0, 7), at(1));
    let unchecked = DeviceReport { unchecked: vec!["NVML: no answer".to_owned()], ..DeviceReport::default() };
    let actions = job.handle(at(2), devices_probed(0, unchecked));
    assert!(emits(&actions, |said| matches!(said, JobEvent::DevicesUnchecked { .. })));
    assert_eq!(started(&actions), Some(1));
}

#[test]
fn stop_during_device_check_ends_job_at_once() {
    let at = clock();
    for again in [false, true] {
        let mut job = checked_job(3);
        let _ = job.handle(at(0), Input::Ready);
        let _ = fail_generation(&mut job, (0, 7), at(1));
        let actions = job.handle(at(2), stop(Signal::SIGINT, again));
        let end = end(&actions).expect("invariant 10");
        assert_eq!(end.status, ExitStatus::Code(130));
        assert_eq!(end.failure.as_ref().unwrap().first.exit, Exit::Code(7), "the cause is still told");
        assert_eq!(job.handle(at(3), devices_probed(0, DeviceReport::default())), [], "invariant 7");
        drain_and_exit(|input| job.handle(at(3), input));
        assert_eq!(job.deadline(), None);
    }
}

#[test]
fn stop_request_skips_device_check() {
    let at = clock();
    let mut job = checked_job(3);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), exited(0, 1, Exit::Code(7)));
    let _ = job.handle(at(1), stop(Signal::SIGTERM, false));
    let actions = job.handle(at(2), exited(0, 0, killed_by(15)));
    assert!(!probes_devices(&actions));
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(143));
}

#[test]
fn long_device_check_is_reported_once() {
    let at = clock();
    let mut job = checked_job(1);
    let _ = job.handle(at(0), Input::Ready);
    let _ = fail_generation(&mut job, (0, 7), at(1));
    assert_eq!(job.deadline(), Some(at(3)));
    assert_eq!(job.handle(at(2), Input::DeadlinePassed), [], "not yet");
    assert_eq!(job.handle(at(3), Input::DeadlinePassed), [Action::Emit(JobEvent::CheckingDevices)]);
    assert_eq!(job.deadline(), None);
    assert_eq!(job.handle(at(4), Input::SignalForwarded { signal: Signal::SIGUSR1 }), []);
    assert_eq!(started(&job.handle(at(5), devices_probed(0, DeviceReport::default()))), Some(1));
}

fn devices_reassigned(generation: u32, result: Result<u32, &str>) -> Input {
    let result = result.map(|workers| LocalWorldSize::new(workers).unwrap()).map_err(ToOwned::to_owned);
    Input::DevicesReassigned { generation: Generation(generation), result }
}

/// A job of two workers; one device is found dead and may be excluded.
fn reassigning_job(max_restarts: u32, at: &impl Fn(u64) -> Instant) -> (LocalJob, Vec<Action>) {
    let mut job = checked_job(max_restarts);
    job.rules.unhealthy = Some(Unhealthy::Exclude);
    let _ = job.handle(at(0), Input::Ready);
    let _ = fail_generation(&mut job, (0, 7), at(1));
    let actions = job.handle(at(2), devices_probed(0, report_with_dead_device()));
    (job, actions)
}

#[test]
fn next_generation_uses_remaining_devices() {
    let at = clock();
    let (mut job, actions) = reassigning_job(1, &at);
    assert_eq!(actions.last(), Some(&Action::ReassignDevices { generation: Generation(0) }));
    assert_eq!(job.handle(at(2), devices_probed(0, DeviceReport::default())), [], "that was asked before");
    assert_eq!(job.deadline(), Some(at(4)), "what takes long is told");
    let actions = job.handle(at(3), devices_reassigned(0, Ok(1)));
    assert_eq!(started(&actions), Some(1));
    let actions = job.handle(at(4), exited(1, 0, Exit::Code(0)));
    assert_eq!(end(&actions).unwrap().status, ExitStatus::SUCCESS, "one worker is all there are");
}

#[test]
fn refused_device_reassignment_prevents_restart() {
    let at = clock();
    let (mut job, _) = reassigning_job(3, &at);
    let actions = job.handle(at(3), devices_reassigned(0, Err("2 workers need 2 devices")));
    assert!(emits(&actions, |said| matches!(said, JobEvent::NoRestart { reason: Some(_) })));
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(7));
    let (_, actions) = reassigning_job(0, &at);
    assert!(
        !actions.contains(&Action::ReassignDevices { generation: Generation(0) }),
        "no worker would get the devices"
    );
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(7));
}

#[test]
fn stop_during_device_reassignment_prevents_restart() {
    let at = clock();
    let (mut job, _) = reassigning_job(3, &at);
    let actions = job.handle(at(2), stop(Signal::SIGTERM, false));
    let end = end(&actions).expect("invariant 10");
    assert_eq!(end.status, ExitStatus::Code(143));
    assert_eq!(end.failure.as_ref().unwrap().dead_devices, report_with_dead_device().dead);
    assert_eq!(job.handle(at(3), devices_reassigned(0, Ok(1))), [], "invariant 7");
}

proptest! {
    /// Any inputs in any order, with device checks between: invariants 6, 7 and 10.
    #[test]
    fn random_inputs_with_device_checks_keep_budget_and_stop_is_final(
        refuses: bool,
        inputs in prop::collection::vec(any_input_of_a_check(), 0..60),
    ) {
        let at = clock();
        let mut job = checked_job(2);
        job.rules.unhealthy = Some(if refuses { Unhealthy::Refuse } else { Unhealthy::Exclude });
        let (mut starts, mut ended, mut is_stop_requested) = (0, false, false);
        for (second, input) in (0..).map(|step| step * 10).zip(inputs) {
            let was_checking = matches!(job.phase, JobPhase::Checking { .. });
            let is_stop = matches!(input, Input::StopRequested { .. });
            is_stop_requested |= is_stop;
            let actions = handle_and_drain(|input| job.handle(at(second), input), input);
            prop_assert!(!ended || actions.is_empty());
            prop_assert!(!(was_checking && is_stop) || end(&actions).is_some());
            if started(&actions).is_some() {
                prop_assert!(!is_stop_requested);
                starts += 1;
            }
            ended |= end(&actions).is_some();
        }
        prop_assert!(starts <= 3);
    }
}

fn any_input_of_a_check() -> impl Strategy<Value = Input> {
    prop_oneof![
        6 => any_input(),
        2 => (0u32..3).prop_map(|generation| devices_probed(generation, DeviceReport::default())),
        1 => (0u32..3).prop_map(|generation| devices_probed(generation, report_with_dead_device())),
        1 => (0u32..3).prop_map(|generation| devices_reassigned(generation, Ok(2))),
        1 => (0u32..3).prop_map(|generation| devices_reassigned(generation, Err("no"))),
    ]
}

/// Each check may only forbid the restart that the policy has granted: the second and third answers do not ask it again.
#[test]
fn restart_policy_is_asked_once_per_failure() {
    let at = clock();
    let (mut job, actions) = reassigning_job(1, &at);
    assert_eq!(actions.last(), Some(&Action::ReassignDevices { generation: Generation(0) }));
    job.rules.max_restarts = RestartCount(0);
    job.rules.restart.progress = Some(ProgressLimit { folder: Some("/checkpoints".into()), restarts: 1 });
    let actions = job.handle(at(3), devices_reassigned(0, Ok(1)));
    assert!(matches!(actions.last(), Some(Action::ProbeProgress { generation: Generation(0), .. })));
    let mark = Some(ProgressMark::Files(CheckpointFingerprint(7)));
    let probed = Input::ProgressProbed { generation: Generation(0), mark, exception: None };
    let actions = job.handle(at(4), probed);
    assert_eq!(started(&actions), Some(1));
}

/// The wait before the restart begins with the last answer.
#[test]
fn backoff_follows_the_last_check() {
    let at = clock();
    let mut job = checked_job(1);
    job.rules.restart = RestartPolicy {
        progress: Some(ProgressLimit { folder: Some("/checkpoints".into()), restarts: 1 }),
        backoff: Some(Backoff {
            delay: Duration::from_secs(5),
            factor: 1.0,
            cap: Duration::from_secs(5),
            jitter: 0.0,
        }),
        ..RestartPolicy::default()
    };
    let _ = job.handle(at(0), Input::Ready);
    let _ = fail_generation(&mut job, (0, 7), at(1));
    let _ = job.handle(at(2), devices_probed(0, DeviceReport::default()));
    let _ =
        job.handle(at(4), Input::ProgressProbed { generation: Generation(0), mark: None, exception: None });
    assert_eq!(job.deadline(), Some(at(9)));
}
