//! Restarts that wait, and failures under a rule or without progress.

use super::*;
use crate::agent::recurrence::{CheckpointFingerprint, ProgressMark};
use crate::job_event::NoRestart;
use crate::spec::restart::{Backoff, Conditions, ProgressLimit, RestartRule, RuleAction};

fn waiting_job(at: &impl Fn(u64) -> Instant) -> (LocalJob, Vec<Action>) {
    let delay = Duration::from_secs(5);
    let backoff = Backoff { delay, factor: 2.0, cap: Duration::from_secs(60), jitter: 0.0 };
    let policy = RestartPolicy { backoff: Some(backoff), ..RestartPolicy::default() };
    let mut job = new_job_with_policy(policy, 1, 3, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let actions = job.handle(at(10), exited(0, 0, Exit::Code(7)));
    (job, actions)
}

fn ruled_job(then: RuleAction) -> (LocalJob, RestartRule) {
    let rule = RestartRule { when: Conditions::default(), then };
    let policy = RestartPolicy { rules: vec![rule], ..RestartPolicy::default() };
    (new_job_with_policy(policy, 2, 3, CliFlavor::Rankrun), rule)
}

fn emits(actions: &[Action], said: &JobEvent) -> bool {
    actions.iter().any(|action| matches!(action, Action::Emit(what) if what == said))
}

#[test]
fn delayed_restart_starts_at_end_of_backoff() {
    let at = clock();
    let (mut job, actions) = waiting_job(&at);
    assert!(emits(&actions, &JobEvent::Waiting { wait: Duration::from_secs(5), used: RestartCount(1) }));
    assert!(
        actions.iter().any(|action| matches!(action, Action::KillLeftovers { .. })),
        "leftovers do not outlive the wait"
    );
    assert_eq!((started(&actions), job.deadline()), (None, Some(at(15))));
    assert_eq!(job.handle(at(14), Input::DeadlinePassed), [], "not a moment before");
    let actions = job.handle(at(15), Input::DeadlinePassed);
    assert_eq!(started(&actions), Some(1));
    assert_eq!(job.deadline(), None);
    let _ = job.handle(at(16), exited(1, 0, Exit::Code(7)));
    assert_eq!(job.deadline(), Some(at(26)), "the second wait is longer");
}

#[test]
fn signal_ends_restart_delay_at_once() {
    let at = clock();
    for (cli_flavor, status) in [
        (CliFlavor::Rankrun, ExitStatus::Code(128 + 15)),
        (CliFlavor::Torchrun, ExitStatus::Code(LAUNCHER_FAILED)),
    ] {
        let (mut job, _) = waiting_job(&at);
        job.rules.cli_flavor = cli_flavor;
        let actions = job.handle(at(11), stop(Signal::SIGTERM, false));
        let end = end(&actions).unwrap();
        assert_eq!((end.status, end.stopped_by), (status, Some(Signal::SIGTERM)), "invariant 10");
        assert_eq!(end.failure.as_ref().unwrap().first.exit, Exit::Code(7), "invariant 5");
        drain_and_exit(|input| job.handle(at(11), input));
        assert_eq!(job.handle(at(15), Input::DeadlinePassed), [], "invariant 7");
    }
}

#[test]
fn unrelated_inputs_do_not_end_restart_delay() {
    let at = clock();
    let (mut job, _) = waiting_job(&at);
    for input in [
        Input::Ready,
        Input::SignalForwarded { signal: Signal::SIGUSR1 },
        exited(0, 0, Exit::Code(0)),
        exited(1, 0, Exit::Code(1)),
        Input::ProgressProbed { generation: Generation(0), mark: None, exception: None },
    ] {
        assert_eq!(job.handle(at(11), input), []);
    }
    assert_eq!(job.deadline(), Some(at(15)));
}

#[test]
fn restart_rule_ends_job_with_restarts_left() {
    let at = clock();
    for (then, status) in [
        (RuleAction::Fail, ExitStatus::Code(7)),
        (RuleAction::Requeue, ExitStatus::Code(75)),
        (RuleAction::NoRequeue, ExitStatus::Code(78)),
    ] {
        let (mut job, rule) = ruled_job(then);
        let _ = job.handle(at(0), Input::Ready);
        let actions = job.handle(at(1), exited(0, 1, Exit::Code(7)));
        assert_eq!(signals(&actions), [(vec![0], Signal::SIGTERM)], "the others are stopped as ever");
        let actions = job.handle(at(2), exited(0, 0, killed_by(15)));
        assert!(emits(&actions, &JobEvent::RestartRefused(NoRestart::Rule(rule))));
        let end = end(&actions).unwrap();
        assert_eq!(end.status, status, "invariant 8");
        assert!(end.failure.is_some());
    }
}

#[test]
fn succeed_rule_turns_failure_into_success() {
    let at = clock();
    let (mut job, rule) = ruled_job(RuleAction::Succeed);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), exited(0, 1, Exit::Code(5)));
    let actions = job.handle(at(2), exited(0, 0, killed_by(15)));
    assert!(emits(&actions, &JobEvent::CalledSuccess { rule }));
    let end = end(&actions).unwrap();
    assert_eq!((end.status, &end.failure), (ExitStatus::SUCCESS, &None));
}

#[test]
fn restart_rule_sets_status_even_if_worker_survives_sigkill() {
    let at = clock();
    for (then, status) in [
        (RuleAction::Restart, ExitStatus::Code(7)),
        (RuleAction::Requeue, ExitStatus::Code(75)),
        (RuleAction::NoRequeue, ExitStatus::Code(78)),
        (RuleAction::Succeed, ExitStatus::SUCCESS),
    ] {
        let (mut job, _) = ruled_job(then);
        let _ = job.handle(at(0), Input::Ready);
        let _ = job.handle(at(1), exited(0, 1, Exit::Code(7)));
        let _ = job.handle(at(31), Input::DeadlinePassed);
        let actions = job.handle(at(36), Input::DeadlinePassed);
        assert!(emits(&actions, &JobEvent::CannotEnd { local_ranks: vec![LocalRank(0)] }));
        assert_eq!(started(&actions), None, "invariant 1");
        assert_eq!(end(&actions).unwrap().status, status, "invariant 8");
    }
}

#[test]
fn user_signal_takes_precedence_over_restart_rules() {
    let at = clock();
    let (mut job, _) = ruled_job(RuleAction::Succeed);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), exited(0, 1, Exit::Code(5)));
    let _ = job.handle(at(1), stop(Signal::SIGINT, false));
    let actions = job.handle(at(2), exited(0, 0, killed_by(15)));
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(128 + 2));
}

#[test]
fn restarts_without_checkpoint_progress_end_job() {
    let at = clock();
    let limit = ProgressLimit { folder: Some("/checkpoints".into()), restarts: 1 };
    let policy = RestartPolicy { progress: Some(limit), ..RestartPolicy::default() };
    let mut job = new_job_with_policy(policy, 1, 9, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let actions = job.handle(at(1), exited(0, 0, Exit::Code(7)));
    assert_eq!(actions.last(), Some(&Action::ProbeProgress { generation: Generation(0), raised_by: None }));
    assert_eq!(job.deadline(), Some(at(3)), "a long look is told");
    assert_eq!(job.handle(at(3), Input::DeadlinePassed), [Action::Emit(JobEvent::LookingForProgress)]);
    let seen = |generation, fingerprint| Input::ProgressProbed {
        generation: Generation(generation),
        mark: Some(ProgressMark::Files(CheckpointFingerprint(fingerprint))),
        exception: None,
    };
    assert_eq!(job.handle(at(4), seen(7, 1)), [], "an answer to another question");
    assert_eq!(started(&job.handle(at(4), seen(0, 1))), Some(1));
    let _ = job.handle(at(5), exited(1, 0, Exit::Code(7)));
    assert_eq!(started(&job.handle(at(5), seen(1, 2))), Some(2), "another file");
    let _ = job.handle(at(6), exited(2, 0, Exit::Code(7)));
    let actions = job.handle(at(6), seen(2, 2));
    assert!(emits(&actions, &JobEvent::RestartRefused(NoRestart::NoProgress { restarts: 1, step: None })));
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(7));
}

#[test]
fn signal_ends_progress_probe() {
    let at = clock();
    let limit = ProgressLimit { folder: Some("/checkpoints".into()), restarts: 1 };
    let policy = RestartPolicy { progress: Some(limit), ..RestartPolicy::default() };
    let mut job = new_job_with_policy(policy, 1, 9, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let _ = job.handle(at(1), exited(0, 0, Exit::Code(7)));
    let actions = job.handle(at(2), stop(Signal::SIGTERM, false));
    assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(128 + 15));
    assert_eq!(
        job.handle(at(3), Input::ProgressProbed { generation: Generation(0), mark: None, exception: None }),
        []
    );
}

#[test]
fn progress_probe_without_answer_does_not_count() {
    let at = clock();
    let limit = ProgressLimit { folder: Some("/checkpoints".into()), restarts: 1 };
    let policy = RestartPolicy { progress: Some(limit), ..RestartPolicy::default() };
    let mut job = new_job_with_policy(policy, 1, 9, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    let seen = |generation, fingerprint: Option<u64>| Input::ProgressProbed {
        generation: Generation(generation),
        mark: fingerprint.map(|it| ProgressMark::Files(CheckpointFingerprint(it))),
        exception: None,
    };
    for (generation, fingerprint) in [(0, Some(1)), (1, None), (2, None)] {
        let _ = job.handle(at(1), exited(generation, 0, Exit::Code(7)));
        let actions = job.handle(at(1), seen(generation, fingerprint));
        assert_eq!(emits(&actions, &JobEvent::ProgressUnknown), fingerprint.is_none());
        assert_eq!(started(&actions), Some(generation + 1));
    }
    let _ = job.handle(at(2), exited(3, 0, Exit::Code(7)));
    let _ = job.handle(at(4), Input::DeadlinePassed);
    assert_eq!(job.deadline(), Some(at(12)), "the wait for a folder has a limit");
    let actions = job.handle(at(12), Input::DeadlinePassed);
    assert!(emits(&actions, &JobEvent::ProgressUnknown));
    assert_eq!(started(&actions), Some(4));
    assert_eq!(job.handle(at(12), seen(3, Some(1))), [], "too late");
    let _ = job.handle(at(13), exited(4, 0, Exit::Code(7)));
    let actions = job.handle(at(13), seen(4, Some(1)));
    assert!(emits(&actions, &JobEvent::RestartRefused(NoRestart::NoProgress { restarts: 1, step: None })));
}

/// The waits of a worker that exits with code 7 each of these seconds after its start.
fn restart_delays(
    policy: RestartPolicy,
    max_restarts: u32,
    lifetimes: &[u64],
) -> (Vec<u64>, Vec<RestartCount>, LocalJob) {
    let at = clock();
    let mut job = new_job_with_policy(policy, 1, max_restarts, CliFlavor::Rankrun);
    let (mut waits, mut counts, mut now) = (Vec::new(), Vec::new(), at(0));
    let mut actions = job.handle(now, Input::Ready);
    for lifetime in lifetimes {
        let Some((generation, count)) = actions.iter().find_map(|action| match action {
            Action::Start { generation, restart_count, .. } => Some((generation.0, *restart_count)),
            _ => None,
        }) else {
            break;
        };
        counts.push(count);
        now += Duration::from_secs(*lifetime);
        actions = handle_and_drain(|input| job.handle(now, input), exited(generation, 0, Exit::Code(7)));
        if let Some(until) = job.deadline() {
            waits.push((until - now).as_secs());
            assert_eq!(
                job.handle(until - Duration::from_millis(1), Input::DeadlinePassed),
                [],
                "invariant 6"
            );
            now = until;
            actions = job.handle(now, Input::DeadlinePassed);
        }
    }
    (waits, counts, job)
}

#[test]
fn backoff_doubles_up_to_cap_and_resets_after_long_run() {
    let backoff =
        Backoff { delay: Duration::from_secs(1), factor: 2.0, cap: Duration::from_secs(5), jitter: 0.0 };
    let policy = RestartPolicy { backoff: Some(backoff), ..RestartPolicy::default() };
    let (waits, _, job) = restart_delays(policy.clone(), 5, &[0; 9]);
    assert_eq!((waits, job.state.state.phase), (vec![1, 2, 4, 5, 5], JobPhase::Finished), "invariant 6");
    let policy = RestartPolicy { reset_after: Some(Duration::from_secs(60)), ..policy };
    let (waits, _, job) = restart_delays(policy, 5, &[0, 0, 59, 60, 0, 61, 0]);
    assert_eq!(waits, [1, 2, 4, 1, 2, 1, 2], "a long run resets the backoff");
    assert!(job.is_running());
}

#[test]
fn restart_window_counts_only_restarts_within_it() {
    let window = Some(Duration::from_secs(3_600));
    let policy = RestartPolicy { window, ..RestartPolicy::default() };
    let (_, counts, job) = restart_delays(policy.clone(), 2, &[0, 1_000, 2_600, 1_000, 2_600]);
    assert!(job.is_running(), "the restarts of an hour ago are over");
    assert_eq!(counts, [0, 1, 2, 3, 4].map(RestartCount), "the workers' counter counts all, as torch's");
    let (_, counts, job) = restart_delays(policy, 2, &[0, 1_000, 2_599]);
    assert_eq!((counts.len(), job.state.state.phase), (3, JobPhase::Finished), "invariant 6");
}

#[test]
fn restart_delay_does_not_count_towards_window() {
    let backoff = Backoff { delay: Duration::from_secs(10), factor: 1.0, cap: Duration::MAX, jitter: 0.0 };
    let window = Some(Duration::from_secs(100));
    let policy = RestartPolicy { window, backoff: Some(backoff), ..RestartPolicy::default() };
    let (waits, _, job) = restart_delays(policy.clone(), 1, &[0, 100]);
    assert_eq!((waits, job.is_running()), (vec![10, 10], true));
    let (waits, _, job) = restart_delays(policy, 1, &[0, 99]);
    assert_eq!((waits, job.state.state.phase), (vec![10], JobPhase::Finished), "invariant 6");
}

#[test]
fn healthy_generation_restores_restart_budget() {
    let policy = RestartPolicy { reset_after: Some(Duration::from_secs(60)), ..RestartPolicy::default() };
    let (_, counts, job) = restart_delays(policy, 1, &[60, 60, 60, 59, 1_000]);
    assert_eq!(counts, [0, 1, 2, 3].map(RestartCount));
    assert_eq!(job.phase, JobPhase::Finished, "invariant 6");
}

#[test]
fn restart_rule_matches_exit_code_signal_rank_or_node() {
    let any = Conditions::default();
    let segv = killed_by(libc::SIGSEGV);
    let at = clock();
    for (when, rank, exit, fits) in [
        (Conditions { exit: Some([7, 9].into_iter().collect()), ..any }, 0, Exit::Code(9), true),
        (Conditions { exit: Some([7, 9].into_iter().collect()), ..any }, 0, Exit::Code(8), false),
        (Conditions { signal: Some(Signal::SIGSEGV), ..any }, 1, segv, true),
        (Conditions { signal: Some(Signal::SIGKILL), ..any }, 1, segv, false),
        (Conditions { rank: Some(rankrun_contract::rank::Rank(1)), ..any }, 1, segv, true),
        (Conditions { rank: Some(rankrun_contract::rank::Rank(1)), ..any }, 0, segv, false),
        (Conditions { node: Some(rankrun_contract::rank::NodeRank(0)), ..any }, 0, segv, true),
        (Conditions { node: Some(rankrun_contract::rank::NodeRank(1)), ..any }, 0, segv, false),
        (any, 1, Exit::Code(1), true),
    ] {
        let fail = RestartRule { when, then: RuleAction::Fail };
        let later = RestartRule { when: any, then: RuleAction::Restart };
        let policy = RestartPolicy { rules: vec![fail, later], ..RestartPolicy::default() };
        let mut job = new_job_with_policy(policy, 2, 1, CliFlavor::Rankrun);
        let _ = job.handle(at(0), Input::Ready);
        let _ = job.handle(at(1), exited(0, rank, exit));
        let actions = job.handle(at(2), exited(0, 1 - rank, killed_by(15)));
        assert_eq!(started(&actions), (!fits).then_some(1), "{fail} on {exit} of rank {rank}");
        assert_eq!(end(&actions).is_some(), fits);
    }
}

#[test]
fn time_limit_ends_restart_delay_or_prevents_it() {
    let at = clock();
    for (limit, reported_at) in [(12, None), (15, None), (16, Some(15))] {
        let delay = Duration::from_secs(5);
        let backoff = Backoff { delay, factor: 2.0, cap: Duration::from_secs(60), jitter: 0.0 };
        let policy = RestartPolicy { backoff: Some(backoff), ..RestartPolicy::default() };
        let mut job = new_job_with_policy(policy, 1, 3, CliFlavor::Rankrun);
        let limit = Duration::from_secs(limit);
        job.rules.time_limit = Some(crate::spec::stop::TimeLimit { limit, warning: None });
        let _ = job.handle(at(0), Input::Ready);
        let actions = job.handle(at(10), exited(0, 0, Exit::Code(7)));
        let Some(reported_at) = reported_at else {
            let end = end(&actions).unwrap();
            assert_eq!((end.status, end.time_limit), (ExitStatus::Code(124), Some(limit)), "invariant 7");
            continue;
        };
        assert_eq!(job.deadline(), Some(at(reported_at)));
        // The launcher was suspended meanwhile, and both are due.
        let actions = job.handle(at(20), Input::DeadlinePassed);
        assert_eq!(started(&actions), None, "invariant 7");
        assert_eq!(end(&actions).unwrap().status, ExitStatus::Code(124));
    }
}

/// The grace is that of the decision: the policy is asked once, when the workers are stopped.
#[test]
fn time_of_a_stop_does_not_count_towards_window() {
    let at = clock();
    let policy = RestartPolicy { window: Some(Duration::from_secs(60)), ..RestartPolicy::default() };
    let mut job = new_job_with_policy(policy, 2, 1, CliFlavor::Rankrun);
    let _ = job.handle(at(0), Input::Ready);
    for (generation, failed, reaped, restarts) in [(0, 30, 35, true), (1, 85, 105, false)] {
        let _ = job.handle(at(failed), exited(generation, 0, Exit::Code(1)));
        let actions = job.handle(at(reaped), exited(generation, 1, killed_by(15)));
        assert_eq!(started(&actions).is_some(), restarts, "generation {generation}");
    }
}
