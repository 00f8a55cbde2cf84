//! `--max-restarts`: which workers start again, with which state, and when the restarts end.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use harness::{Gate, Launch, Name, Outcome, Scratch, field, is_rankrun};

/// The values of `key` in the lines that begin with the text. (A summary repeats lines, but indented.)
fn field_values(outcome: &Outcome, text: &str, key: &str) -> Vec<String> {
    let lines = outcome.lines_with(text);
    let lines = lines.iter().filter(|line| line.starts_with(text));
    let mut values: Vec<_> = lines.filter_map(|line| field(line, key)).map(str::to_owned).collect();
    values.sort();
    values
}

/// The only folder below a log folder: that of the run.
#[track_caller]
fn run_folder(logs: &str) -> PathBuf {
    let entries = std::fs::read_dir(logs).expect("the log folder exists");
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.expect("it can be listed").path()).collect();
    assert_eq!(folders.len(), 1, "{folders:?}");
    folders.remove(0)
}

/// A job of two. Rank 1 fails with code 4 in its first generations, each time after both were seen.
#[track_caller]
fn run_failing_job(name: Name, max_restarts: &str, failing_attempts: usize) -> Outcome {
    let gate = Gate::closed();
    let launch = Launch::standalone(name, 2).args(["--max-restarts", max_restarts]);
    let fails = format!("attempt<{failing_attempts}");
    let steps = [
        "alive".to_owned(),
        format!("rank1:{fails}:{}", gate.step()),
        format!("rank1:{fails}:exit=4"),
        format!("{fails}:forever"),
    ];
    let job = launch.worker(steps).start();
    for attempt in 0..failing_attempts {
        job.wait_for_lines(&format!("attempt={attempt} pid="), 2);
        gate.open(1);
    }
    job.wait()
}

#[test]
fn restart_starts_all_ranks_and_increments_count() {
    for name in Name::both() {
        let outcome = run_failing_job(*name, "3", 2);
        outcome.expect_exit_code(0);
        assert_eq!(field_values(&outcome, "alive rank=0", "attempt"), ["0", "1", "2"], "{outcome}");
        assert_eq!(field_values(&outcome, "alive rank=1", "attempt"), ["0", "1", "2"], "{outcome}");
    }
}

#[test]
fn exhausted_max_restarts_ends_with_worker_code() {
    for name in Name::both() {
        let outcome = run_failing_job(*name, "1", 2);
        outcome.expect_exit_code(name.code(4));
        assert_eq!(field_values(&outcome, "alive rank=1", "attempt"), ["0", "1"], "{outcome}");
    }
}

#[test]
fn max_restarts_zero_runs_one_attempt() {
    for name in Name::both() {
        let outcome = run_failing_job(*name, "0", 1);
        outcome.expect_exit_code(name.code(4));
        assert_eq!(field_values(&outcome, "alive rank=1", "attempt"), ["0"], "{outcome}");
    }
}

#[test]
fn each_attempt_has_own_log_folder() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let logs = scratch.at("logs");
        let launch =
            Launch::standalone(*name, 2).args(["--max-restarts", "2", "--log-dir", &logs, "-r", "3"]);
        let outcome = launch
            .worker(["print=attempt {attempt} of {rank}", "rank1:attempt<2:exit=4", "attempt<2:forever"])
            .run();
        outcome.expect_exit_code(0);
        let run = run_folder(&logs);
        for attempt in 0..3 {
            let log = run.join(format!("attempt_{attempt}/1/stdout.log"));
            let text =
                std::fs::read_to_string(&log).unwrap_or_else(|error| panic!("{}: {error}", log.display()));
            assert_eq!(text, format!("attempt {attempt} of 1\n"));
        }
        assert!(!run.join("attempt_3").exists());
    }
}

#[test]
fn workers_of_previous_attempt_end_before_restart() {
    for name in Name::for_shared_behaviour() {
        let scratch = Scratch::new();
        let folder = scratch.folder("census", 0o777);
        let launch = Launch::standalone(*name, 3).args(["--max-restarts", "2"]);
        // Rank 0 takes its time to go: it ends a while after the signal.
        let steps = [
            "catch",
            &format!("census={folder}"),
            "rank2:attempt<2:exit=4",
            "attempt<2:signal",
            "rank0:sleep-ms=300",
        ];
        let outcome = launch.worker(steps).run();
        outcome.expect_exit_code(0);
        let lines = outcome.lines_with("census rank=");
        assert!(lines.len() >= 7, "{outcome}");
        assert!(
            lines.iter().all(|line| line.contains("living=<>")),
            "an earlier worker still lived\n{outcome}"
        );
    }
}

#[test]
fn children_of_previous_attempt_are_killed_before_restart() {
    if !is_rankrun() {
        return;
    }
    for name in Name::for_shared_behaviour() {
        let launch = Launch::standalone(*name, 1).args(["--max-restarts", "1"]).stdin_open();
        let steps = [
            "attempt0:helper=daemon",
            "attempt0:helper=plain",
            "attempt0:read",
            "attempt0:exit=4",
            "alive",
            "read",
        ];
        let mut job = launch.worker(steps).start();
        let helpers: Vec<_> = ["daemon", "plain"]
            .iter()
            .map(|process| job.wait_for_line(&format!("process={process}")))
            .map(|line| field(&line, "pid").and_then(|pid| pid.parse().ok()).expect("a pid"))
            .collect();
        job.type_text("go\n");
        job.wait_for_line("alive rank=0 attempt=1");
        for pid in helpers {
            assert!(harness::is_zombie_or_gone(pid), "{pid} of the earlier attempt is alive\n{job}");
        }
        job.close_stdin();
        job.wait().expect_exit_code(0);
    }
}

#[test]
fn restart_keeps_run_id_and_master_port() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).args(["--max-restarts", "1"]);
        let outcome = launch.worker(["rank0:env", "rank1:attempt<1:exit=4", "attempt<1:forever"]).run();
        outcome.expect_exit_code(0);
        for variable in ["TORCHELASTIC_RUN_ID", "MASTER_PORT", "RANKRUN_JOB"] {
            let lines = outcome.lines_with(&format!(" {variable}="));
            let different: BTreeSet<&String> = lines.iter().collect();
            assert!(different.len() <= 1, "{different:?}\n{outcome}");
        }
        // The first generation may have been stopped before it could speak.
        let restart_counts =
            field_values(&outcome, "env0 TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT");
        assert_eq!(restart_counts.last().map(String::as_str), Some("1"), "{outcome}");
    }
}

#[test]
fn generation_variable_counts_attempts() {
    if is_rankrun() {
        let launch = Launch::standalone(Name::Rankrun, 1).args(["--max-restarts", "2"]);
        let outcome = launch.worker(["env", "attempt<2:exit=4"]).run();
        outcome.expect_exit_code(0);
        let generations = field_values(&outcome, "env0 RANKRUN_GENERATION", "RANKRUN_GENERATION");
        assert_eq!(generations, ["0", "1", "2"], "{outcome}");
    }
}

#[test]
fn worker_killed_by_signal_is_restarted() {
    for name in Name::for_shared_behaviour() {
        let launch = Launch::standalone(*name, 2).args(["--max-restarts", "1"]);
        let outcome = launch.worker(["alive", "rank0:attempt<1:die=SIGUSR1", "attempt<1:forever"]).run();
        outcome.expect_exit_code(0);
        assert_eq!(field_values(&outcome, "alive rank=0", "attempt"), ["0", "1"], "{outcome}");
    }
}

#[test]
fn temporary_folder_is_empty_after_success() {
    if !is_rankrun() {
        return;
    }
    // torchrun leaves a tree in the temporary folder at every start; ours would be empty.
    let launch = Launch::standalone(Name::Rankrun, 2);
    let temporary = launch.temporary();
    let outcome = launch.worker(["alive"]).run();
    outcome.expect_exit_code(0);
    let entries: Vec<_> = list_folder(&temporary);
    assert!(entries.is_empty(), "{entries:?}\n{outcome}");
}

fn list_folder(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the folder exists");
    entries.map(|entry| entry.expect("it can be listed").path()).collect()
}
