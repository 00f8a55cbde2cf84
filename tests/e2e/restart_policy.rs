//! The restart policy: rules, waits, windows, progress.

use std::fs::File;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use harness::{Job, Launch, Name, Outcome, Scratch, field, is_rankrun, print_notice, python};
use nix::sys::signal::Signal;

/// The values of `key` in the lines that begin with the text, in order. (A summary repeats lines, but indented.)
fn field_values<T: FromStr>(outcome: &Outcome, text: &str, key: &str) -> Vec<T> {
    let lines = outcome.lines_with(text);
    let lines = lines.iter().filter(|line| line.starts_with(text));
    lines.filter_map(|line| field(line, key)?.parse().ok()).collect()
}

/// The restart counts that rank 0 saw.
pub(crate) fn attempts_of_rank_0(outcome: &Outcome) -> Vec<u32> {
    field_values(outcome, "alive rank=0", "attempt")
}

/// Our options under our own name, their variables under torchrun's.
fn launch_with_options(name: Name, workers: usize, max_restarts: &str, options: &[(&str, &str)]) -> Launch {
    let launch = Launch::standalone(name, workers).args(["--max-restarts", max_restarts]);
    options.iter().fold(launch, |launch, (option, value)| match name {
        Name::Rankrun => launch.args([format!("--{option}"), (*value).to_owned()]),
        Name::Torchrun | Name::Reference => {
            launch.env(&format!("RANKRUN_{}", option.replace('-', "_").to_uppercase()), *value)
        }
    })
}

/// Each action, each condition.
#[test]
fn restart_rule_decides_matching_failures() {
    let actions =
        "exit=3:fail,exit=5:succeed,exit=7:restart,signal=KILL:restart,exit=8:requeue,exit=9:no-requeue";
    let conditions =
        "exit=10-12/42:requeue,signal=9+rank=1:no-requeue,rank=1:succeed,exit=7+node=0:fail,any:requeue";
    for (rules, rank, end, status, lived, message) in [
        (actions, 0, "exit=3", 3, 1, "no restart, by the rule `exit=3:fail`"),
        (actions, 0, "exit=5", 0, 1, "the job is done, by the rule `exit=5:succeed`"),
        (actions, 0, "exit=7", 0, 2, ""),
        (actions, 0, "die=SIGKILL", 0, 2, ""),
        (actions, 0, "exit=8", 75, 1, "no restart, by the rule `exit=8:requeue`"),
        (actions, 0, "exit=9", 78, 1, "no restart, by the rule `exit=9:no-requeue`"),
        (actions, 0, "exit=4", 0, 2, ""),
        (conditions, 0, "exit=11", 75, 1, "by the rule `exit=10-12/42:requeue`"),
        (conditions, 1, "exit=42", 75, 1, "by the rule `exit=10-12/42:requeue`"),
        (conditions, 1, "die=SIGKILL", 78, 1, "by the rule `signal=KILL+rank=1:no-requeue`"),
        (conditions, 1, "exit=7", 0, 1, "by the rule `rank=1:succeed`"),
        (conditions, 0, "exit=7", 7, 1, "by the rule `exit=7+node=0:fail`"),
        (conditions, 0, "die=SIGKILL", 75, 1, "by the rule `any:requeue`"),
    ] {
        for name in Name::both().iter().filter(|_| is_rankrun()) {
            let job = launch_with_options(*name, 2, "2", &[("restart-rules", rules)]);
            let ends = format!("rank{rank}:attempt0:{end}");
            let outcome = job.worker(["alive", &ends, "attempt0:forever"]).run();
            let status = if message.ends_with("fail`") { name.code(status) } else { status };
            outcome.expect_exit_code(status).expect_stderr(message);
            let last = field_values::<u32>(&outcome, "alive rank=", "attempt").into_iter().max();
            assert_eq!(last, Some(lived - 1), "{name:?} {end}\n{outcome}");
        }
    }
}

#[test]
fn restart_rules_variable_works_under_torchrun_name() {
    if !is_rankrun() {
        return;
    }
    let job = Launch::standalone(Name::Torchrun, 1).args(["--max-restarts", "2"]);
    let job = job.env("RANKRUN_RESTART_RULES", "exit=8:requeue");
    let outcome = job.worker(["alive", "exit=8"]).run();
    outcome.expect_exit_code(75).expect_stderr("no restart, by the rule `exit=8:requeue`");
    assert_eq!(attempts_of_rank_0(&outcome), [0]);
}

/// From one start of the worker to the next, by its own clock.
#[test]
fn restart_delay_grows_exponentially() {
    let names = || Name::for_shared_behaviour().iter().filter(|_| is_rankrun());
    let start = |name: &Name| {
        let options = [("restart-delay", "1s")];
        launch_with_options(*name, 1, "3", &options).worker(["clock", "env", "exit=4"]).start()
    };
    let jobs: Vec<Job> = names().map(start).collect();
    for (job, name) in jobs.into_iter().zip(names()) {
        let outcome = job.wait();
        outcome.expect_exit_code(name.code(4));
        for (restart, wait) in [(1, 1), (2, 2), (3, 4)] {
            let message = format!("in {wait}.0 s (restart {restart} of 3); a signal ends the wait");
            outcome.expect_stderr(&message);
        }
        let starts: Vec<f64> = field_values(&outcome, "clock rank=0", "seconds");
        let gaps: Vec<f64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        print_notice(&format!("{name:?}: waits of 1, 2 and 4 s took {gaps:.2?} s"));
        assert_eq!(gaps.len(), 3, "{outcome}");
        for (gap, least) in gaps.iter().zip([1.0, 2.0, 4.0]) {
            // The kernel counts hundredths.
            assert!(*gap >= least - 0.02, "{gaps:?}\n{outcome}");
        }
        let counters = |variable| field_values::<u32>(&outcome, "env0 TORCHELASTIC_", variable);
        assert_eq!(counters("TORCHELASTIC_RESTART_COUNT"), [0, 1, 2, 3], "{outcome}");
        assert_eq!(counters("TORCHELASTIC_MAX_RESTARTS"), [3; 4], "{outcome}");
    }
}

#[test]
fn restart_delay_is_capped() {
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        let options = [("restart-delay", "0.1"), ("restart-factor", "10"), ("restart-max-delay", "0.3")];
        let outcome = launch_with_options(*name, 1, "3", &options).worker(["alive", "exit=4"]).run();
        outcome.expect_exit_code(name.code(4));
        for (restart, wait) in [(1, "0.1"), (2, "0.3"), (3, "0.3")] {
            outcome.expect_stderr(&format!("in {wait} s (restart {restart} of 3)"));
        }
    }
}

/// Jobs that failed together do not start together.
#[test]
fn restart_jitter_randomizes_delay() {
    let waits: Vec<f64> = Name::both()
        .iter()
        .cycle()
        .take(if is_rankrun() { 4 } else { 0 })
        .map(|name| {
            let options = [("restart-delay", "10h"), ("restart-max-delay", "10h"), ("restart-jitter", "0.5")];
            let job = launch_with_options(*name, 1, "1", &options).worker(["exit=4"]).start();
            job.wait_for_text("; a signal ends the wait");
            job.signal(Signal::SIGTERM);
            let outcome = job.wait();
            let line =
                outcome.stderr().lines().find(|line| line.contains("ends the wait")).map(str::to_owned);
            let line = line.expect("it is said");
            let wait = line.split_once(" in ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
            wait.expect("the wait is a number")
        })
        .collect();
    assert!(waits.iter().all(|wait| (18_000.0..=36_000.0).contains(wait)), "{waits:?}");
    assert!(waits.windows(2).all(|pair| pair[0].to_bits() != pair[1].to_bits()), "{waits:?}");
}

#[test]
fn signal_ends_restart_delay() {
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        let job = launch_with_options(*name, 1, "1", &[("restart-delay", "1h")])
            .worker(["alive", "exit=4"])
            .start();
        job.wait_for_text("in 3600.0 s (restart 1 of 1)");
        job.signal(Signal::SIGTERM);
        let outcome = job.wait();
        outcome.expect_exit_code(name.code(128 + 15));
        assert_eq!(attempts_of_rank_0(&outcome), [0]);
    }
}

#[test]
fn max_restarts_is_budget_of_whole_job() {
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        let outcome = launch_with_options(*name, 1, "2", &[]).worker(["alive", "exit=4"]).run();
        outcome.expect_exit_code(name.code(4));
        assert_eq!(attempts_of_rank_0(&outcome), [0, 1, 2], "{outcome}");
    }
}

#[test]
fn restart_window_limits_restarts() {
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        let outcome =
            launch_with_options(*name, 1, "1", &[("restart-window", "1h")]).worker(["alive", "exit=4"]).run();
        outcome.expect_exit_code(name.code(4)).expect_stderr("no restart: 1 within 1h are used up");
        assert_eq!(attempts_of_rank_0(&outcome), [0, 1]);
    }
}

/// Each generation is longer than the window.
#[test]
fn restarts_outside_window_do_not_count() {
    for name in Name::for_shared_behaviour().iter().filter(|_| is_rankrun()) {
        let steps = ["alive", "sleep-ms=200", "attempt<3:exit=4"];
        let outcome = launch_with_options(*name, 1, "1", &[("restart-window", "0.2")]).worker(steps).run();
        outcome.expect_exit_code(0);
        assert_eq!(attempts_of_rank_0(&outcome), [0, 1, 2, 3], "{outcome}");
    }
}

/// The waits alone are longer than the window.
#[test]
fn restart_delay_does_not_count_in_window() {
    for name in Name::for_shared_behaviour().iter().filter(|_| is_rankrun()) {
        let options = [("restart-window", "2"), ("restart-delay", "1.1"), ("restart-factor", "1")];
        let outcome =
            launch_with_options(*name, 1, "2", &options).worker(["alive", "attempt<4:exit=4"]).run();
        outcome.expect_exit_code(name.code(4)).expect_stderr("no restart: 2 within 2s are used up");
        assert_eq!(attempts_of_rank_0(&outcome), [0, 1, 2], "{outcome}");
    }
}

#[test]
fn restart_reset_renews_budget_and_keeps_restart_count() {
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        let steps = ["alive", "env", "sleep-ms=150", "attempt<3:exit=4"];
        let outcome = launch_with_options(*name, 1, "1", &[("restart-reset", "0.1")]).worker(steps).run();
        outcome.expect_exit_code(0);
        assert_eq!(attempts_of_rank_0(&outcome), [0, 1, 2, 3], "{outcome}");
        outcome
            .expect_stdout("env0 TORCHELASTIC_RESTART_COUNT=3")
            .expect_stdout("env0 TORCHELASTIC_MAX_RESTARTS=1");
    }
}

#[test]
fn restarts_without_progress_end_the_job() {
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        let scratch = Scratch::new();
        let folder = scratch.folder("checkpoints", 0o777);
        let options = [("progress-dir", folder.as_str()), ("progress-restarts", "2")];
        let outcome = launch_with_options(*name, 1, "9", &options).worker(["alive", "exit=4"]).run();
        outcome.expect_exit_code(name.code(4)).expect_stderr(
            "no restart: 2 restarts led to the same failure, with no change in the files of `",
        );
        assert_eq!(attempts_of_rank_0(&outcome), [0, 1, 2], "{outcome}");

        // A file from the future hides nothing.
        let future = SystemTime::UNIX_EPOCH + Duration::from_secs(9_000_000_000);
        File::create(format!("{folder}/odd")).and_then(|file| file.set_modified(future)).expect("a file");
        let writes = format!("touch={folder}/step-{{attempt}}");
        let outcome =
            launch_with_options(*name, 1, "9", &options).worker(["alive", &writes, "attempt<4:exit=4"]).run();
        outcome.expect_exit_code(0);
        assert_eq!(attempts_of_rank_0(&outcome), [0, 1, 2, 3, 4], "{outcome}");
        outcome.expect_absent("does not exist yet");
    }
}

/// The heartbeats of this attempt, then its end.
fn launch_with_heartbeats(script: &str) -> Outcome {
    let launch = Launch::standalone(Name::Rankrun, 1);
    launch.args(["--max-restarts", "4", "--progress-restarts", "2"]).shell(script).run()
}

#[test]
fn restarts_without_higher_step_end_the_job() {
    if !is_rankrun() {
        return;
    }
    let outcome = launch_with_heartbeats("echo 57 >$RANKRUN_HEARTBEAT; exit 4");
    outcome
        .expect_exit_code(4)
        .expect_stderr("no restart: 2 restarts led to the same failure, with no step after 57");
    let outcome = launch_with_heartbeats(
        "echo $((TORCHELASTIC_RESTART_COUNT * 10)) >$RANKRUN_HEARTBEAT; test $TORCHELASTIC_RESTART_COUNT = 4 || exit 4",
    );
    outcome.expect_exit_code(0).expect_absent("the same failure");
    // Processes that a worker leaves behind, as loaders of data that outlive a crash, hide no step.
    let outcome = launch_with_heartbeats(
        "echo $((TORCHELASTIC_RESTART_COUNT * 10)) >$RANKRUN_HEARTBEAT; test $TORCHELASTIC_RESTART_COUNT = 4 && exit 0; \
         sleep 1000 & exit 4",
    );
    outcome.expect_exit_code(0).expect_absent("the same failure");
    // Another exit code each time.
    let outcome = launch_with_heartbeats(
        "echo 57 >$RANKRUN_HEARTBEAT; test $TORCHELASTIC_RESTART_COUNT = 4 || exit $((TORCHELASTIC_RESTART_COUNT + 3))",
    );
    outcome.expect_exit_code(0).expect_absent("the same failure");
}

#[test]
fn failure_that_recurs_without_sign_of_progress_is_said_once() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let script = scratch.file(
        "data.py",
        "import os\ndef load():\n    raise ValueError(os.environ['TORCHELASTIC_RESTART_COUNT'])\n\nload()\n",
        0o644,
    );
    let launch = Launch::standalone(Name::Rankrun, 2);
    let options = ["--max-restarts", "4", "--progress-restarts", "2"];
    let outcome = launch.args(options).env("PYTHON_EXEC", python()).args([script]).run();
    outcome.expect_exit_code(1);
    let line = "the same failure for the 3rd time in a row: ValueError in load (data.py:3); nothing shows whether the job \
                makes progress";
    assert_eq!(outcome.lines_with(line).len(), 1, "{outcome}");
    assert_eq!(outcome.lines_with("the same failure").len(), 1, "{outcome}");
}

#[test]
fn unreadable_progress_dir_is_ignored_and_missing_one_reported() {
    for name in Name::for_shared_behaviour().iter().filter(|_| is_rankrun()) {
        let scratch = Scratch::new();
        let missing = format!("{}/later", scratch.folder("job", 0o777));
        let steps = ["alive", "attempt<4:exit=4"];
        let options = |folder| [("progress-dir", folder), ("progress-restarts", "1")];
        let outcome = launch_with_options(*name, 1, "9", &options(&missing)).worker(steps).run();
        outcome
            .expect_exit_code(name.code(4))
            .expect_stderr("where progress is to be seen, does not exist yet");
        assert_eq!(attempts_of_rank_0(&outcome), [0, 1], "{outcome}");

        // Even root cannot read a file as a folder.
        File::create(&missing).expect("a file");
        let outcome = launch_with_options(*name, 1, "9", &options(&missing)).worker(steps).run();
        outcome.expect_exit_code(0).expect_stderr("could not be looked at");
        assert_eq!(attempts_of_rank_0(&outcome), [0, 1, 2, 3, 4], "{outcome}");
    }
}
