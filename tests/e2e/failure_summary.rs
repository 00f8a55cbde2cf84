//! What is said about a failed job: the facts, not their layout.

use std::path::Path;

use harness::{Launch, Name, Scratch, is_rankrun};

/// A job with a rank 1 that announces its failure and fails.
fn failing_launch(name: Name, scratch: &Scratch, end: &str) -> Launch {
    let launch = Launch::standalone(name, 2).args(["--log-dir", &scratch.at("logs"), "-t", "3"]);
    let steps = ["rank1:eprint=loss is nan at step 7".into(), format!("rank1:{end}"), "forever".into()];
    launch.worker(steps)
}

#[test]
fn summary_names_rank_device_code_last_lines_and_log() {
    let scratch = Scratch::new();
    let outcome = failing_launch(Name::Rankrun, &scratch, "exit=3").run();
    outcome.expect_exit_code(3).expect_stderr("rank 1").expect_stderr("cpu:1").expect_stderr("3");
    let times_shown = outcome.stderr().lines().filter(|line| line.contains("loss is nan at step 7")).count();
    assert!(times_shown >= 2, "the last lines are not in the summary\n{outcome}");
    let log = outcome
        .stderr()
        .split([' ', '`', '\n'])
        .find(|token| token.ends_with("/stderr.log"))
        .map(str::to_owned);
    let log = log.unwrap_or_else(|| panic!("no log file is named\n{outcome}"));
    assert!(Path::new(&log).is_file(), "{log} does not exist\n{outcome}");
}

#[test]
fn summary_names_signal() {
    let scratch = Scratch::new();
    let outcome = failing_launch(Name::Rankrun, &scratch, "die=SIGKILL").run();
    outcome.expect_exit_code(137).expect_stderr("rank 1").expect_stderr("SIGKILL");
}

#[test]
fn summary_names_first_failure_only() {
    let scratch = Scratch::new();
    let launch = Launch::standalone(Name::Rankrun, 3).args(["--log-dir", &scratch.at("logs")]).stdin_open();
    // The others end badly too, but only as they are stopped.
    let steps = ["rank1:read", "rank1:exit=7", "catch", "alive", "signal", "exit=5"];
    let mut job = launch.args(["--stdin", "1"]).worker(steps).start();
    job.wait_for_lines("alive rank=", 2);
    job.close_stdin();
    let outcome = job.wait();
    outcome.expect_exit_code(7).expect_stderr("rank 1");
}

#[test]
fn silent_python_exit_gets_no_record_hint() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let script = scratch.file("quits.py", "import sys\nsys.exit(3)\n", 0o644);
    let outcome = Launch::standalone(Name::Rankrun, 1).args([script]).run();
    outcome.expect_exit_code(3).expect_absent("errors.record");
    outcome.expect_stderr(
        "hint: the worker printed nothing before `sys.exit(3)`; print the reason to stderr there\n",
    );
}

#[test]
fn invalid_error_file_gets_no_record_hint() {
    if is_rankrun() {
        let outcome = Launch::standalone(Name::Rankrun, 1).worker(["error-file={", "exit=9"]).run();
        outcome.expect_exit_code(9).expect_stderr("/0/error.json` is left out").expect_absent("hint: ");
    }
}

#[test]
fn start_timeout_of_silent_worker_has_no_last_lines() {
    if is_rankrun() {
        let launch = Launch::standalone(Name::Rankrun, 1).args(["--start-timeout", "0.5"]);
        let outcome = launch.worker(["forever"]).run();
        outcome
            .expect_exit_code(1)
            .expect_stderr("hint: it has printed nothing; slow imports")
            .expect_absent("its last lines");
        outcome.expect_stderr("; a program without torch.distributed never joins\n");
    }
}

#[test]
fn restart_is_reported_with_reason() {
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--max-restarts", "1"]);
    let outcome = launch.worker(["rank1:attempt<1:exit=4", "attempt<1:forever"]).run();
    outcome.expect_exit_code(0).expect_stderr("rank 1").expect_stderr("restart");
}

#[test]
fn error_file_fifo_does_not_block_report() {
    let line = "rm -f \"$TORCHELASTIC_ERROR_FILE\"; mkfifo \"$TORCHELASTIC_ERROR_FILE\"; exit 3";
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        let launch = Launch::standalone(*name, 1).args(["--no-python", "sh", "-c", line]);
        launch.run().expect_exit_code(name.code(3)).expect_stderr("a FIFO (a pipe) is not a regular file");
    }
}
