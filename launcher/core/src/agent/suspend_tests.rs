//! Ctrl-Z: the whole job is suspended for a while.

use std::collections::VecDeque;

use super::rendezvous_tests::running;
use super::*;
use crate::job_event::JobState;
use crate::rendezvous::MembershipChange;
use crate::spec::Unhealthy;
use crate::spec::stop::TimeLimit;

const HOUR: Duration = Duration::from_secs(3_600);

/// Suspends the job at `from` until `until`.
fn suspend(job: &mut State, from: Instant, until: Instant) {
    let has_processes = true;
    assert_eq!(job.handle(from, Input::SuspendRequested), [Action::Suspend { has_processes }]);
    let suspended_for = until - from;
    let resumed = job.handle(until, Input::ResumeRequested);
    assert_eq!(resumed, [Action::Resume { has_processes, suspended_for }]);
}

/// The inputs that the job handles now, without their effect.
fn handled(job: &State, now: Instant, inputs: &mut VecDeque<Input>) -> Vec<Input> {
    std::iter::from_fn(|| job.next_input(now, inputs)).take(1).collect()
}

#[test]
fn the_time_limit_is_a_time_on_the_clock() {
    let at = clock();
    let limit = TimeLimit { limit: HOUR, warning: None };
    let mut job = LocalJob::new(JobRules { time_limit: Some(limit), ..rules(1, 3, CliFlavor::Rankrun) });
    let _ = job.handle(at(0), Input::Ready);
    suspend(&mut job, at(60), at(7_200));
    assert_eq!(signals(&job.handle(at(7_200), Input::DeadlinePassed)), [(vec![0], Signal::SIGTERM)]);
}

#[test]
fn suspended_worker_is_not_healthy() {
    let at = clock();
    for (lifetime, restarts) in [(1, None), (2, Some(2))] {
        let mut rules = rules(1, 1, CliFlavor::Rankrun);
        rules.restart.reset_after = Some(Duration::from_secs(2));
        let mut job = LocalJob::new(rules);
        let _ = job.handle(at(0), Input::Ready);
        assert_eq!(started(&job.handle(at(1), exited(0, 0, Exit::Code(4)))), Some(1));
        suspend(&mut job, at(2), at(3_602));
        assert_eq!(started(&job.handle(at(3_601 + lifetime), exited(1, 0, Exit::Code(4)))), restarts);
    }
}

/// Both workers may have handled a signal that the launcher is about to get too.
#[test]
fn restart_held_for_a_signal_is_put_off_by_a_suspension() {
    let at = clock();
    let half = Duration::from_millis(500);
    for exits_before in [1, 2] {
        let mut job = LocalJob::new(rules(2, 1, CliFlavor::Rankrun));
        let _ = job.handle(at(0), Input::Ready);
        let _ = job.handle(at(1), exited(0, 0, Exit::Code(4)));
        if exits_before == 1 {
            suspend(&mut job, at(1), at(3_601));
        }
        let ended = at(if exits_before == 1 { 3_601 } else { 1 });
        assert_eq!(started(&job.handle(ended, exited(0, 1, Exit::Code(4)))), None);
        if exits_before == 2 {
            suspend(&mut job, at(1), at(3_601));
        }
        assert_eq!(job.deadline(), Some(at(3_601) + half));
        assert_eq!(started(&job.handle(at(3_601) + half, Input::DeadlinePassed)), Some(1));
    }
}

#[test]
fn inputs_of_suspended_job_wait_until_it_goes_on() {
    let at = clock();
    let limit = TimeLimit { limit: HOUR, warning: None };
    let mut job = LocalJob::new(JobRules { time_limit: Some(limit), ..rules(1, 3, CliFlavor::Rankrun) });
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), Input::SuspendRequested);
    assert_eq!((job.summary().state, job.deadline()), (JobState::Suspended, Some(at(3_600))));
    let exit = || exited(0, 0, Exit::Code(4));
    let usr1 = || Input::SignalForwarded { signal: Signal::SIGUSR1 };
    for (seconds, last, due) in [
        (2, usr1(), None),
        (2, Input::DeadlinePassed, None),
        (2, Input::ResumeRequested, Some(Input::ResumeRequested)),
        (2, stop(Signal::SIGTERM, false), Some(Input::ResumeRequested)),
        (3_600, Input::DeadlinePassed, Some(Input::ResumeRequested)),
    ] {
        let mut inputs = VecDeque::from([exit(), last.clone()]);
        assert_eq!(handled(&job, at(seconds), &mut inputs), Vec::from_iter(due), "{last:?}");
        assert_eq!(inputs, [exit(), last], "each is handled in its order once the job goes on");
    }
    let _ = job.handle(at(2), Input::ResumeRequested);
    assert_eq!(handled(&job, at(2), &mut VecDeque::from([usr1(), exit()])), [usr1()]);
}

/// Requests come at any rate, and must not pile up.
#[test]
fn restart_request_of_suspended_job_is_refused_at_once() {
    let at = clock();
    let mut job = new_job(1, 3, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    assert_eq!(job.check_restart_request(), Ok(()));
    let _ = job.handle(at(1), Input::SuspendRequested);
    let exit = || exited(0, 0, Exit::Code(4));
    let mut inputs = VecDeque::from([exit(), Input::RestartRequested, Input::RestartRequested]);
    for waiting in [2, 1] {
        assert_eq!(job.next_input(at(2), &mut inputs), Some(Input::RestartRequested));
        assert!(job.check_restart_request().unwrap_err().contains("suspended"));
        assert_eq!((job.handle(at(2), Input::RestartRequested), inputs.len()), (vec![], waiting));
    }
    assert_eq!((job.next_input(at(2), &mut inputs), &inputs), (None, &VecDeque::from([exit()])));
    let _ = job.handle(at(3), Input::ResumeRequested);
    assert_eq!(job.check_restart_request(), Ok(()));
}

#[test]
fn suspended_workers_are_killed_once_if_lease_is_over() {
    let at = clock();
    let mut job = running(0, &at);
    let _ = job.handle(at(1), Input::SuspendRequested);
    let cut_off = Input::Changed(MembershipChange::CutOff { kill_by: at(2) });
    let mut inputs = VecDeque::from([cut_off, exited(0, 0, killed_by(9))]);
    assert_eq!(handled(&job, at(2), &mut inputs), [Input::SuspendedTooLong]);
    assert_eq!(job.handle(at(2), Input::SuspendedTooLong), [Action::KillSuspended]);
    assert_eq!(handled(&job, at(2), &mut inputs), []);
    assert_eq!(inputs.len(), 2, "the cause, and then the exit");
}

#[test]
fn probes_of_devices_run_on_while_job_is_suspended() {
    let at = clock();
    let mut job =
        LocalJob::new(JobRules { unhealthy: Some(Unhealthy::Refuse), ..rules(1, 3, CliFlavor::Rankrun) });
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), exited(0, 0, Exit::Code(4)));
    let has_processes = false;
    assert_eq!(job.handle(at(2), Input::SuspendRequested), [Action::Suspend { has_processes }]);
    let suspended_for = Duration::from_secs(1);
    assert_eq!(job.handle(at(3), Input::ResumeRequested), [Action::Resume { has_processes, suspended_for }]);
}

/// An input, and its time after the input before.
fn input() -> impl Strategy<Value = (u64, Input)> {
    let exit = prop_oneof![Just(Exit::Code(0)), Just(Exit::Code(3)), Just(killed_by(15)), Just(killed_by(9))];
    let uninterruptible = prop_oneof![
        Just(Vec::new()),
        Just(vec![UninterruptibleWorker { local_rank: LocalRank(0), pid: Pid::from_raw(100) }])
    ];
    let what = prop_oneof![
        3 => (0..3_u32, 0..3_u32, exit).prop_map(|(generation, rank, exit)| exited(generation, rank, exit)),
        1 => any::<bool>().prop_map(|again| stop(Signal::SIGTERM, again)),
        1 => (0..3_u32, uninterruptible).prop_map(|(generation, uninterruptible)| Input::DStateProbed {
            generation: Generation(generation),
            at: SystemTime::UNIX_EPOCH,
            uninterruptible,
        }),
        4 => Just(Input::DeadlinePassed),
    ];
    (prop_oneof![Just(0), 0..100_u64, 0..700_u64, 0..40_000_u64], what)
}

proptest! {
    /// Except for the time limit, the machine's actions do not depend on a suspension.
    #[test]
    fn actions_after_a_suspension_are_those_without_it(
        inputs in prop::collection::vec(input(), 1..25),
        suspended_before in 0..25_usize,
        lasted in prop_oneof![Just(HOUR), (0..2_000_u64).prop_map(Duration::from_millis)],
    ) {
        let at = clock();
        let mut rules = JobRules {
            dstate_timeout: Some(Duration::from_millis(300)),
            start_timeout: Some(Duration::from_secs(2)),
            ..rules(3, 2, CliFlavor::Rankrun)
        };
        rules.restart.reset_after = Some(Duration::from_millis(500));
        let (mut plain, mut interrupted) = (LocalJob::new(rules.clone()), LocalJob::new(rules));
        let (mut now, mut behind) = (at(0), Duration::ZERO);
        prop_assert_eq!(plain.handle(now, Input::Ready), interrupted.handle(now, Input::Ready));
        for (index, (later, input)) in inputs.into_iter().enumerate() {
            if index == suspended_before && plain.phase != JobPhase::Finished {
                behind = lasted;
                suspend(&mut interrupted, now, now + behind);
            }
            now += Duration::from_millis(later);
            let actions = (plain.handle(now, input.clone()), interrupted.handle(now + behind, input));
            prop_assert_eq!(actions.0, actions.1);
            prop_assert_eq!(plain.deadline().map(|deadline| deadline + behind), interrupted.deadline());
        }
    }
}
