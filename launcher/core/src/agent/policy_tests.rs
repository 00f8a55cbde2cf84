use proptest::prelude::*;

use crate::posix::{Pid, Signal};
use rankrun_contract::rank::{Generation, LocalRank};

use std::time::SystemTime;

use super::*;
use crate::agent::recurrence::CheckpointFingerprint;
use crate::exit_code::ExitStatus;
use crate::hang::verdict::{Desync, Hang, Verdict};
use crate::job_event::memory::OomEvidence;
use crate::job_event::{ForeignKill, WorkerEnd};
use crate::rendezvous::note::RuleNote;
use crate::spec::MAX_DURATION;
use crate::spec::restart::{ExitCodes, FailureCause, ProgressLimit};

fn clock() -> impl Fn(u64) -> Instant {
    #[expect(clippy::disallowed_methods, reason = "a test's clock starts somewhere")]
    let start = Instant::now();
    move |seconds| start + Duration::from_secs(seconds)
}

fn failure(local_rank: u32, exit: Exit) -> Failure {
    let first = WorkerEnd {
        local_rank: LocalRank(local_rank),
        pid: Pid::from_raw(100),
        exit,
        at: SystemTime::UNIX_EPOCH,
        error_file_info: None,
        foreign_kill: None,
    };
    Failure {
        generation: Generation(0),
        first,
        kind: FailureKind::Ended,
        following_ends: Vec::new(),
        restart_count: RestartCount(0),
        dead_devices: Vec::new(),
        early_successes: Box::default(),
        not_joined: Box::default(),
        hang: None,
    }
}

fn killed_by(signal: Signal) -> Exit {
    Exit::Signal { number: signal as i32, core_dumped: false }
}

fn rule(when: Conditions, then: RuleAction) -> RestartRule {
    RestartRule { when, then }
}

/// The decision on a generation that ran between these seconds, and the history after it.
fn decide_after_run(
    history: &mut History,
    policy: &RestartPolicy,
    most: u32,
    (from, to): (Instant, Instant),
) -> Decision {
    history.record_start(from);
    history.record_first_end(to);
    let decision = history.decide_restart((policy, RestartCount(most)), None, &failure(0, Exit::Code(1)), to);
    if let Decision::Restart { wait } = decision {
        history.record_restart(to + wait, policy);
    }
    decision
}

const RESTART: Decision = Decision::Restart { wait: Duration::ZERO };

fn backoff(delay: u64, cap: u64, jitter: f64) -> RestartPolicy {
    let (delay, cap) = (Duration::from_secs(delay), Duration::from_secs(cap));
    RestartPolicy { backoff: Some(Backoff { delay, factor: 2.0, cap, jitter }), ..RestartPolicy::default() }
}

#[test]
fn default_policy_restarts_without_delay() {
    let (at, policy) = (clock(), RestartPolicy::default());
    let mut history = History::new();
    for second in 0..3 {
        let decision = decide_after_run(&mut history, &policy, 3, (at(second), at(second)));
        assert_eq!(decision, RESTART);
    }
    assert_eq!(decide_after_run(&mut history, &policy, 3, (at(3), at(3))), Decision::Fail(NoRestart::Budget));
}

#[test]
fn rule_names_cause_of_failure() {
    let at = clock();
    let causes = FailureCause::KEYWORDS.map(|(_, cause)| cause);
    let when = |cause| Conditions { cause: Some(cause), ..Conditions::default() };
    let rules: Vec<RestartRule> = causes.map(|cause| rule(when(cause), RuleAction::Fail)).into();
    let policy = RestartPolicy { rules: rules.clone(), ..RestartPolicy::default() };
    let decide =
        |failure: &Failure| History::new().decide_restart((&policy, RestartCount(1)), None, failure, at(1));
    let by = |index: usize| Decision::Fail(NoRestart::Rule(rules[index]));
    let stopped = |verdict| Failure {
        kind: FailureKind::Hang,
        hang: Some(Box::new(verdict)),
        ..failure(0, killed_by(Signal::SIGTERM))
    };
    let desync = Desync { group: String::new(), sequence: 1, calls: Vec::new(), since: Duration::ZERO };
    let hang = Hang { waits: Vec::new(), silent: Vec::new(), has_other_nodes: false };
    assert_eq!(decide(&stopped(Verdict::Hang(hang))), by(0));
    assert_eq!(decide(&stopped(Verdict::Desync(desync))), by(1));
    let mut killed = failure(0, killed_by(Signal::SIGKILL));
    assert_eq!(decide(&killed), RESTART);
    for (oom, expected) in [
        (OomEvidence::InCgroup { limit: None, is_certain: true }, by(2)),
        (OomEvidence::OnMachine { count: 1 }, RESTART),
        (OomEvidence::NoKill, RESTART),
    ] {
        killed.first.foreign_kill = Some(ForeignKill { oom, peak: None });
        assert_eq!(decide(&killed), expected, "{oom:?}");
    }
}

#[test]
fn first_matching_rule_decides() {
    let at = clock();
    let exit =
        |codes: &[u8]| Conditions { exit: Some(codes.iter().copied().collect()), ..Conditions::default() };
    let special = rule(Conditions { rank: Some(Rank(1)), ..exit(&[7]) }, RuleAction::Fail);
    let killed = Conditions { signal: Some(Signal::SIGKILL), ..Conditions::default() };
    let killed = rule(killed, RuleAction::Restart);
    let rules = vec![
        special,
        rule(exit(&[3, 4]), RuleAction::Fail),
        rule(exit(&[5]), RuleAction::Succeed),
        rule(exit(&[7]), RuleAction::Restart),
        killed,
        rule(exit(&[75]), RuleAction::Requeue),
        rule(exit(&[78]), RuleAction::NoRequeue),
        rule(Conditions { node: Some(NodeRank(1)), ..Conditions::default() }, RuleAction::Succeed),
        rule(Conditions { node: Some(NodeRank(0)), ..Conditions::default() }, RuleAction::Fail),
    ];
    let policy = RestartPolicy { rules: rules.clone(), ..RestartPolicy::default() };
    let decide =
        |failure: &Failure| History::new().decide_restart((&policy, RestartCount(1)), None, failure, at(1));
    let restart = RESTART;
    let by = |index: usize| Decision::Fail(NoRestart::Rule(rules[index]));
    for (rank, exit, expected) in [
        (0, Exit::Code(3), by(1)),
        (0, Exit::Code(4), by(1)),
        (0, Exit::Code(5), Decision::Succeed(rules[2])),
        (0, Exit::Code(7), restart),
        (1, Exit::Code(7), by(0)),
        (0, killed_by(Signal::SIGKILL), restart),
        (0, killed_by(Signal::SIGSEGV), by(8)),
        (0, Exit::Code(75), by(5)),
        (0, Exit::Code(78), by(6)),
        (0, Exit::Code(9), by(8)),
    ] {
        assert_eq!(decide(&failure(rank, exit)), expected, "rank {rank}: {exit}");
    }
    let status_by = |rule: usize| RuleNote::of(&rules[rule]).map(|rule| rule.then.status());
    assert_eq!(status_by(5), Some(ExitStatus::Code(75)));
    assert_eq!(status_by(6), Some(ExitStatus::Code(78)));
    assert_eq!(status_by(1), None, "the worker's own");
    let stopped_by_us = Failure { kind: FailureKind::EndedByStop, ..failure(0, killed_by(Signal::SIGKILL)) };
    assert_eq!(decide(&stopped_by_us), by(8), "our own stop says nothing about a worker");
    let blocked = Failure {
        kind: FailureKind::Uninterruptible { blocked_for: Duration::ZERO },
        ..failure(0, Exit::Code(5))
    };
    assert_eq!(decide(&blocked), Decision::Fail(NoRestart::Uninterruptible));
    let decision = History::new().decide_restart(
        (&policy, RestartCount(1)),
        Some(Signal::SIGTERM),
        &failure(0, Exit::Code(5)),
        at(1),
    );
    assert_eq!(decision, Decision::Fail(NoRestart::Stopped), "invariant 7");
}

#[test]
fn restart_rule_does_not_exceed_budget() {
    let rules = vec![rule(Conditions::default(), RuleAction::Restart)];
    let policy = RestartPolicy { rules, ..RestartPolicy::default() };
    let at = clock();
    assert_eq!(
        decide_after_run(&mut History::new(), &policy, 0, (at(0), at(0))),
        Decision::Fail(NoRestart::Budget)
    );
}

#[test]
fn backoff_doubles_up_to_cap() {
    let at = clock();
    let mut history = History::new();
    let mut waits = Vec::new();
    for _ in 0..6 {
        let Decision::Restart { wait } =
            decide_after_run(&mut history, &backoff(1, 10, 0.0), 9, (at(0), at(100)))
        else {
            panic!("there is a restart left")
        };
        waits.push(wait.as_secs());
    }
    assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
    let endless = Backoff { delay: Duration::MAX, factor: f64::MAX, cap: Duration::MAX, jitter: 0.0 };
    assert_eq!(history.backoff_delay(&endless, u32::MAX), MAX_DURATION, "no number is too big");
}

#[test]
fn healthy_generation_resets_backoff() {
    let at = clock();
    let policy = RestartPolicy { reset_after: Some(Duration::from_secs(60)), ..backoff(1, 10, 0.0) };
    let mut history = History::new();
    let waits =
        [(0, 1), (10, 11), (100, 159), (200, 260), (300, 301)].map(|(from, to)| {
            match decide_after_run(&mut history, &policy, 3, (at(from), at(to))) {
                Decision::Restart { wait } => wait.as_secs(),
                decision => panic!("{decision:?}"),
            }
        });
    assert_eq!(waits, [1, 2, 4, 1, 2], "60 s are enough, 59 s are not");
}

#[test]
fn window_slides_with_each_restart() {
    let at = clock();
    let window = Duration::from_secs(3_600);
    let policy = RestartPolicy { window: Some(window), ..RestartPolicy::default() };
    let full = Decision::Fail(NoRestart::Window { restarts: RestartCount(2), window });
    let mut history = History::new();
    for (second, restarts) in
        [(0, true), (1_000, true), (3_599, false), (3_600, true), (4_599, false), (4_600, true)]
    {
        let decision = decide_after_run(&mut history, &policy, 2, (at(second), at(second)));
        assert_eq!(decision, if restarts { RESTART } else { full }, "{second}");
    }
}

#[test]
fn restart_delay_does_not_count_towards_window() {
    let (at, window) = (clock(), Duration::from_secs(60));
    // Each wait alone, or a few together, would be longer than the window.
    for (delay, cap) in [(1, 300), (60, 60), (1, 59)] {
        let policy = RestartPolicy { window: Some(window), ..backoff(delay, cap, 0.0) };
        let (mut history, mut now) = (History::new(), at(0));
        for _ in 0..10 {
            let ended = now + Duration::from_secs(5);
            let Decision::Restart { wait } = decide_after_run(&mut history, &policy, 10, (now, ended)) else {
                panic!("ten are allowed")
            };
            now = ended + wait;
        }
        let ended = now + Duration::from_secs(5);
        let refused = Decision::Fail(NoRestart::Window { restarts: RestartCount(10), window });
        assert_eq!(decide_after_run(&mut history, &policy, 10, (now, ended)), refused, "ten within 55 s");
        let healthy = now + Duration::from_secs(15);
        let decision = decide_after_run(&mut history, &policy, 10, (now, healthy));
        assert!(matches!(decision, Decision::Restart { .. }), "{decision:?}");
    }
}

/// A failure of this rank with exit code 1.
fn record(history: &mut History, mark: ProgressMark, rank: u32) {
    let exit = Exit::Code(1);
    history.record_progress(mark, FailureSignature::Exit { rank: Rank(rank), exit, cause: None });
}

#[test]
fn unchanged_checkpoints_for_n_restarts_end_job() {
    let limit = ProgressLimit { folder: Some("/checkpoints".into()), restarts: 2 };
    let policy = RestartPolicy { progress: Some(limit), ..RestartPolicy::default() };
    let mut history = History::new();
    for (fingerprint, restarts) in [(5, true), (5, true), (4, true), (4, true), (4, false), (5, true)] {
        record(&mut history, ProgressMark::Files(CheckpointFingerprint(fingerprint)), 0);
        let given_up = NoRestart::NoProgress { restarts: 2, step: None };
        assert_eq!(
            history.refuse_without_progress(&policy),
            (!restarts).then_some(given_up),
            "{fingerprint}"
        );
        assert_eq!(history.refuse_without_progress(&RestartPolicy::default()), None);
    }
}

#[test]
fn steps_that_do_not_grow_for_n_restarts_end_job() {
    let policy = RestartPolicy {
        progress: Some(ProgressLimit { folder: None, restarts: 2 }),
        ..RestartPolicy::default()
    };
    let mut history = History::new();
    for (step, is_refused) in [
        (Some(50), false),
        (Some(60), false),
        // From the checkpoint of step 40 on.
        (Some(55), false),
        (None, true),
        (Some(61), false),
    ] {
        record(&mut history, ProgressMark::Step(step), 0);
        let refusal = NoRestart::NoProgress { restarts: 2, step: Some(60) };
        assert_eq!(history.refuse_without_progress(&policy), is_refused.then_some(refusal), "{step:?}");
        assert_eq!(history.unmeasured_recurrence(&policy), None);
    }
}

#[test]
fn cause_that_recurs_without_any_measure_is_said_once_and_refuses_nothing() {
    let policy = RestartPolicy {
        progress: Some(ProgressLimit { folder: None, restarts: 2 }),
        ..RestartPolicy::default()
    };
    let mut history = History::new();
    for (rank, is_said) in [(0, false), (0, false), (0, true), (0, false), (1, false), (1, false), (1, true)]
    {
        record(&mut history, ProgressMark::Step(None), rank);
        assert_eq!(history.refuse_without_progress(&policy), None);
        assert_eq!(history.unmeasured_recurrence(&policy).is_some(), is_said, "rank {rank}");
    }
}

#[test]
fn exit_codes_are_displayed_in_option_syntax() {
    let codes: ExitCodes = [3, 10, 11, 12, 254, 255].into_iter().collect();
    assert_eq!(codes.to_string(), "3/10-12/254-255");
    let when = Conditions { exit: Some(codes), rank: Some(Rank(2)), ..Conditions::default() };
    assert_eq!(rule(when, RuleAction::NoRequeue).to_string(), "exit=3/10-12/254-255+rank=2:no-requeue");
    assert_eq!(rule(Conditions::default(), RuleAction::Fail).to_string(), "any:fail");
}

proptest! {
    #[test]
    fn jitter_shortens_backoff_by_at_most_its_share(seed: u64, streak in 0_u32..100, jitter in 0.0..=1.0) {
        let mut history = History::new();
        history.seed = seed;
        let policy = backoff(2, 60, jitter).backoff.unwrap();
        let whole = history.backoff_delay(&Backoff { jitter: 0.0, ..policy }, streak);
        let wait = history.backoff_delay(&policy, streak);
        prop_assert!(wait <= whole && wait.as_secs_f64() >= whole.as_secs_f64() * (1.0 - jitter) - 1e-6);
    }

    /// Invariant 6, for any lifetimes and waits.
    #[test]
    fn restarts_never_exceed_the_budget(
        lifetimes in proptest::collection::vec(0_u64..200, 0..60),
        most in 0_u32..5,
        window in proptest::option::of(1_u64..500),
        reset in proptest::option::of(1_u64..200),
        delay in 0_u64..20,
    ) {
        let at = clock();
        let policy = RestartPolicy {
            window: window.map(Duration::from_secs),
            reset_after: reset.map(Duration::from_secs),
            ..backoff(delay, 100, 0.5)
        };
        let mut history = History::new();
        let (mut now, mut in_a_row, mut restarts, mut idle) = (at(0), 0, Vec::new(), Duration::ZERO);
        for lifetime in lifetimes {
            let ended = now + Duration::from_secs(lifetime);
            if reset.is_some_and(|reset| lifetime >= reset) {
                in_a_row = 0;
            }
            let Decision::Restart { wait } = decide_after_run(&mut history, &policy, most, (now, ended)) else { break };
            let then = ended + wait;
            idle += wait;
            (now, in_a_row) = (then, in_a_row + 1);
            restarts.push(then - idle);
        }
        match policy.window {
            None => prop_assert!(in_a_row <= most),
            Some(window) => for first in &restarts {
                let within = restarts.iter().filter(|then| *then >= first && **then - *first < window).count();
                prop_assert!(within <= most as usize, "{within} of {most}");
            },
        }
        prop_assert!(history.recent_restarts.len() <= most as usize, "memory does not grow");
    }
}

#[test]
fn rule_rank_and_node_are_global() {
    let at = clock();
    let conditions = Conditions { rank: Some(Rank(5)), node: Some(NodeRank(1)), ..Conditions::default() };
    let policy =
        RestartPolicy { rules: vec![rule(conditions, RuleAction::Requeue)], ..RestartPolicy::default() };
    let decide = |node, base, local_rank| {
        let mut history = History::new();
        history.record_joined(NodeSlot { node: NodeRank(node), base: Rank(base) }, Duration::ZERO);
        let failure = failure(local_rank, Exit::Code(1));
        history.decide_restart((&policy, RestartCount(1)), None, &failure, at(1))
    };
    assert!(matches!(decide(1, 4, 1), Decision::Fail(NoRestart::Rule(_))));
    for (node, base, local_rank) in [(1, 4, 0), (0, 4, 1), (1, 3, 1), (0, 0, 5)] {
        assert_eq!(decide(node, base, local_rank), RESTART);
    }
}

#[test]
fn generation_ended_by_peers_uses_no_budget_and_may_restore_it() {
    let at = clock();
    let enough = Duration::from_secs(60);
    let policy = RestartPolicy { reset_after: Some(enough), ..RestartPolicy::default() };
    for (healthy, expected) in [(59, false), (60, true)] {
        let mut history = History::new();
        assert!(matches!(
            decide_after_run(&mut history, &policy, 1, (at(0), at(1))),
            Decision::Restart { .. }
        ));
        history.record_start(at(1));
        history.record_first_end(at(1 + healthy));
        history.record_rejoin(at(1 + healthy), &policy);
        history.record_joined(NodeSlot::default(), Duration::from_secs(30));
        let decision = decide_after_run(&mut history, &policy, 1, (at(100), at(101)));
        assert_eq!(matches!(decision, Decision::Restart { .. }), expected, "{healthy} s");
    }
}
