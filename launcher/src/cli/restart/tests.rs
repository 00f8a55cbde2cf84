use std::ffi::OsString;

use proptest::prelude::*;
use rankrun_core::posix::Signal;

use super::*;
use crate::cli::{Command, interpret};
use rankrun_core::facts::fake::FakeWorld;
use rankrun_core::spec::restart::FailureShare;

fn policy(options: &str, environment: &[(&str, &str)]) -> Result<RestartPolicy, CliError> {
    let world = FakeWorld::default().file("/job/x.py", b"impo").program("/usr/bin/python");
    let mut environment = environment.to_vec();
    environment.push(("PATH", "/usr/bin"));
    let line = format!("rankrun --nproc-per-node 2 --device-type cpu {options} x.py");
    let argv: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
    match interpret(&argv, &world.facts(&environment))? {
        Command::Launch(launch) => Ok(launch.spec.restart),
        other => panic!("{other:?}"),
    }
}

fn refusal(options: &str) -> String {
    let error = policy(options, &[]).unwrap_err();
    assert_eq!(error.exit_code(), 1);
    assert!(error.hint().is_some());
    error.to_string()
}

#[test]
fn restart_policy_defaults_match_torchrun() {
    assert_eq!(policy("", &[]), Ok(RestartPolicy::default()));
    assert_eq!(policy("--max-restarts 3", &[]), Ok(RestartPolicy::default()));
}

#[test]
fn every_restart_option_sets_its_field() {
    let options = "--max-restarts 3 --restart-window 1h --restart-delay 1.5 --restart-factor 3 --restart-max-delay 2m \
                   --restart-jitter 0.25 --restart-reset 30m --progress-dir ckpt --progress-restarts 2 \
                   --nnodes 2:3 --rdzv-backend c10d --rdzv-endpoint node0 --exclude-node-after 2/3";
    let (delay, cap) = (Duration::from_millis(1_500), Duration::from_secs(120));
    let expected = RestartPolicy {
        window: Some(Duration::from_secs(3_600)),
        backoff: Some(Backoff { delay, factor: 3.0, cap, jitter: 0.25 }),
        reset_after: Some(Duration::from_secs(1_800)),
        rules: Vec::new(),
        progress: Some(ProgressLimit { folder: Some("ckpt".into()), restarts: 2 }),
        exclude_node_after: Some(FailureShare { failures: 2, restarts: 3 }),
    };
    assert_eq!(policy(options, &[]), Ok(expected));
    let by_variable = policy("--max-restarts 1", &[("RANKRUN_RESTART_DELAY", "10m")]).unwrap();
    let delay = Duration::from_secs(600);
    let defaults = Backoff { delay, factor: 2.0, cap: delay, jitter: 0.0 };
    assert_eq!(by_variable.backoff, Some(defaults), "a cap is never below the delay");
    let for_all = [("RANKRUN_RESTART_DELAY", "1s"), ("RANKRUN_PROGRESS_RESTARTS", "2")];
    assert!(policy("", &for_all).is_ok(), "a variable may be there for other jobs");
    assert_eq!(policy("--max-restarts 1 --restart-delay 0", &[]).unwrap().backoff, None);
    let rules = [("RANKRUN_RESTART_RULES", "signal=KILL:restart")];
    assert_eq!(policy("", &rules).unwrap().rules.len(), 1, "likewise");
    let of_another_job = [("PET_MAX_RESTARTS", "0"), ("RANKRUN_TIME_LIMIT", "1s")];
    let options = "--restart-rules signal=KILL:restart --restart-delay 2s --max-restarts 1";
    assert!(policy(options, &of_another_job).is_ok(), "the two stand in different places");
}

#[test]
fn restart_rules_keep_their_order() {
    let text =
        "exit=3:fail,exit=10-12/42+rank=1:succeed,signal=9:restart,signal=SIGTERM:requeue,node=0:no-requeue";
    let rules = policy(&format!("--max-restarts 1 --restart-rules {text}"), &[]).unwrap().rules;
    let shown: Vec<String> = rules.iter().map(ToString::to_string).collect();
    let expected = [
        "exit=3:fail",
        "exit=10-12/42+rank=1:succeed",
        "signal=KILL:restart",
        "signal=TERM:requeue",
        "node=0:no-requeue",
    ];
    assert_eq!(shown, expected);
    assert_eq!(policy("--restart-rules any:fail", &[]).unwrap().rules[0].when, Conditions::default());
}

#[test]
fn invalid_restart_settings_are_refused() {
    for (options, text) in [
        ("--max-restarts 1 --restart-window 0", "`--restart-window` is `0`, which is not a time above 0"),
        ("--max-restarts 1 --restart-window 1x", "`--restart-window` is `1x`, which is not a time above 0"),
        ("--max-restarts 1 --restart-delay=-1", "`--restart-delay` is `-1`, which is not a time"),
        ("--max-restarts 1 --restart-delay nan", "`--restart-delay` is `nan`, which is not a time"),
        ("--restart-window 1h", "`--restart-window` is given, but `--max-restarts` is not"),
        ("--progress-dir x", "`--progress-dir` is given, but `--max-restarts` is not"),
        ("--restart-factor 2", "`--restart-factor` is given, but `--restart-delay` is not"),
        ("--progress-restarts 2", "`--progress-restarts` is given, but `--max-restarts` is not"),
        (
            "--progress-dir x --progress-restarts 0",
            "`--progress-restarts` is `0`, which is not a number from 1",
        ),
        (
            "--restart-delay 1 --restart-factor 0.5",
            "`--restart-factor` is `0.5`, which is not a number from 1 up",
        ),
        (
            "--restart-delay 1 --restart-factor inf",
            "`--restart-factor` is `inf`, which is not a number from 1 up",
        ),
        (
            "--restart-delay 1 --restart-jitter 1.1",
            "`--restart-jitter` is `1.1`, which is not a number from 0 to 1",
        ),
        (
            "--max-restarts 1 --restart-delay 0 --restart-jitter 1",
            "`--restart-jitter` is given, but `--restart-delay` is `0`",
        ),
        (
            "--restart-delay 5s --restart-max-delay 1s",
            "`--restart-max-delay` is `1s`, which is not as long as",
        ),
    ] {
        let refusal = refusal(options);
        assert!(refusal.starts_with(text), "{refusal}");
    }
}

#[test]
fn contradicting_restart_limits_are_refused() {
    for (options, text) in [
        (
            "--max-restarts 1 --restart-delay 2m --time-limit 90",
            "`--restart-delay` is `2m`, and `--time-limit` is `1m 30s`: the job would be over before the first restart",
        ),
        (
            "--max-restarts 1 --restart-reset 1h --time-limit 1h",
            "`--restart-reset` is `1h`, and `--time-limit` is `1h`: no worker can run for so long",
        ),
        (
            "--max-restarts 1 --restart-window 1d --time-limit 1h",
            "`--restart-window` is `1day`, and `--time-limit` is `1h`: the window would be the whole job",
        ),
        (
            "--max-restarts 2 --progress-dir x --progress-restarts 3",
            "`--progress-restarts` is `3`, and `--max-restarts` is `2`: all restarts would be used up before",
        ),
        (
            "--start-timeout 60 --time-limit 60",
            "`--start-timeout` is `1m`, and `--time-limit` is `1m`: the job would be over before",
        ),
    ] {
        let refusal = refusal(options);
        assert!(refusal.starts_with(text), "{refusal}");
    }
}

#[test]
fn invalid_restart_rule_is_refused() {
    for (rule, problem) in [
        ("exit=3", "which does not say what follows"),
        ("exit=3:stop", "in which `stop` is not an action"),
        ("code=3:fail", "in which `code` is not a condition"),
        ("exit:fail", "in which `exit` is not a condition"),
        (":fail", "in which `` is not a condition"),
        ("exit=256:fail", "in which `exit=256` cannot be read"),
        ("exit=9-3:fail", "in which `exit=9-3` cannot be read"),
        ("signal=65:fail", "in which `signal=65` cannot be read"),
        ("signal=SIGNONE:fail", "in which `signal=SIGNONE` cannot be read"),
        ("rank=x:fail", "in which `rank=x` cannot be read"),
        ("exit=3+exit=4:fail", "which names `exit` twice"),
        ("exit=0-3:fail", "which can never match: exit code 0 is not a failure"),
        ("exit=3+signal=9:fail", "which can never match: a worker that a signal ends has no exit code"),
        ("signal=STOP:fail", "which can never match: SIGSTOP ends no process"),
        ("signal=17:fail", "which can never match: SIGCHLD ends no process"),
        ("rank=2:fail", "which can never match: the ranks are 0 to 1"),
        ("exit=3:restart", "but without `--max-restarts` above 0 nothing restarts"),
        ("hang:fail", "but without `--hang-timeout` a job that makes no progress does not fail"),
        ("oom+oom:fail", "which names `cause` twice"),
        ("exit=3+oom:fail", "which can never match: a worker that fails by `oom` has no exit code"),
        (
            "signal=TERM+oom:fail",
            "which can never match: a worker that fails by `oom` is not ended by that signal",
        ),
        ("node=1:fail", "which can never match: a job of one node has node rank 0 only"),
    ] {
        assert_eq!(
            refusal(&format!("--restart-rules {rule}")),
            format!("`--restart-rules` has the rule `{rule}`, {problem}")
        );
    }
    let covered = refusal("--restart-rules exit=3-5:fail,exit=4+rank=0:requeue");
    let text = "`--restart-rules` has the rule `exit=4+rank=0:requeue`, which can never match: `exit=3-5:fail` before it";
    assert!(covered.starts_with(text), "{covered}");
}

#[test]
fn unreachable_restart_rule_is_refused() {
    for (rules, by) in [
        ("rank=0:fail,rank=1:fail,exit=3:requeue", "`rank=0:fail` and `rank=1:fail`"),
        ("exit=1-10:fail,exit=11-20:requeue,exit=5-15:succeed", "`exit=1-10:fail` and `exit=11-20:requeue`"),
        ("rank=0+exit=3:fail,rank=1:requeue,exit=3:succeed", "`exit=3+rank=0:fail` and `rank=1:requeue`"),
        ("any:fail,signal=KILL:requeue", "`any:fail`"),
        ("signal=KILL:fail,oom:requeue", "`signal=KILL:fail`"),
    ] {
        let refusal = refusal(&format!("--restart-rules {rules}"));
        let end = format!("which can never match: {by} before it takes all it would");
        assert!(refusal.ends_with(&end), "{refusal}");
    }
    for rules in [
        "rank=0:fail,exit=3:requeue",
        "exit=1-10:fail,exit=12-20:requeue,exit=5-15:succeed",
        "exit=1-255:fail,any:requeue",
        "oom:fail,signal=KILL:requeue,any:fail",
        "rank=0+exit=3:fail,rank=1:requeue,exit=3-4:succeed",
    ] {
        assert!(policy(&format!("--restart-rules {rules}"), &[]).is_ok(), "{rules}");
    }
}

proptest! {
    #[test]
    fn any_restart_rule_does_not_panic(text: String) {
        let _ = parse_rule(&text);
    }

    #[test]
    fn restart_rule_round_trips(
        codes in proptest::option::of(proptest::collection::btree_set(1_u8.., 1..20)),
        signal in proptest::option::of(1_i32..32),
        cause in proptest::option::of(0_usize..3),
        rank in proptest::option::of(0_u32..100),
        action in 0_usize..5,
    ) {
        let when = Conditions {
            exit: codes.map(ExitCodes::from_iter),
            signal: signal.and_then(|signal| Signal::try_from(signal).ok()),
            cause: cause.map(|cause| FailureCause::KEYWORDS[cause].1),
            rank: rank.map(Rank),
            node: None,
        };
        let rule = RestartRule { when, then: RuleAction::KEYWORDS[action].1 };
        prop_assert_eq!(parse_rule(&rule.to_string()), Ok(rule));
    }
}
