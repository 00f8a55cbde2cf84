//! What is said about a failed job: the facts, not their layout.

use std::path::Path;

use harness::{Launch, Name, Scratch, only_ours};

/// A job with a rank 1 that announces its failure and fails.
fn failing(name: Name, scratch: &Scratch, end: &str) -> Launch {
    let launch = Launch::standalone(name, 2).args(["--log-dir", &scratch.at("logs"), "-t", "3"]);
    let steps = ["rank1:eprint=loss is nan at step 7".into(), format!("rank1:{end}"), "forever".into()];
    launch.worker(steps)
}

#[test]
fn ours_names_rank_device_code_last_lines_and_log() {
    let scratch = Scratch::new();
    let outcome = failing(Name::Rankrun, &scratch, "exit=3").run();
    outcome.exits(3).complains("rank 1").complains("cpu:1").complains("3");
    let told = outcome.err().lines().filter(|line| line.contains("loss is nan at step 7")).count();
    assert!(told >= 2, "the last lines are not in the summary\n{outcome}");
    let log =
        outcome.err().split([' ', '`', '\n']).find(|word| word.ends_with("/stderr.log")).map(str::to_owned);
    let log = log.unwrap_or_else(|| panic!("no log file is named\n{outcome}"));
    assert!(Path::new(&log).is_file(), "{log} does not exist\n{outcome}");
}

#[test]
fn ours_says_signals_in_words() {
    let scratch = Scratch::new();
    let outcome = failing(Name::Rankrun, &scratch, "die=SIGKILL").run();
    outcome.exits(137).complains("rank 1").complains("SIGKILL");
}

#[test]
fn ours_names_the_first_failure_not_its_victims() {
    let scratch = Scratch::new();
    let launch = Launch::standalone(Name::Rankrun, 3).args(["--log-dir", &scratch.at("logs")]).stdin_open();
    // The others end badly too, but only as they are stopped.
    let steps = ["rank1:read", "rank1:exit=7", "catch", "alive", "signal", "exit=5"];
    let mut job = launch.args(["--stdin", "1"]).worker(steps).start();
    job.lines("alive rank=", 2);
    job.close_stdin();
    let outcome = job.wait();
    outcome.exits(7).complains("rank 1");
}

#[test]
fn silent_python_exit_gets_no_hint_at_record() {
    if !only_ours() {
        return;
    }
    let scratch = Scratch::new();
    let script = scratch.file("quits.py", "import sys\nsys.exit(3)\n", 0o644);
    let outcome = Launch::standalone(Name::Rankrun, 1).args([script]).run();
    outcome.exits(3).never_says("errors.record");
    outcome.complains(
        "hint: it ended without a word, as `sys.exit(3)` does: print the reason to stderr before\n",
    );
}

#[test]
fn error_file_that_is_left_out_gets_no_hint_at_record() {
    if only_ours() {
        let outcome = Launch::standalone(Name::Rankrun, 1).worker(["error-file={", "exit=9"]).run();
        outcome.exits(9).complains("/0/error.json` is left out").never_says("hint: ");
    }
}

#[test]
fn start_timeout_of_a_silent_worker_names_no_last_lines() {
    if only_ours() {
        let launch = Launch::standalone(Name::Rankrun, 1).args(["--start-timeout", "0.5"]);
        let outcome = launch.worker(["forever"]).run();
        outcome.exits(1).complains("hint: it has printed nothing; slow imports").never_says("its last lines");
        outcome.complains("; a program without torch.distributed never joins\n");
    }
}

#[test]
fn a_restart_is_told_with_its_reason() {
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--max-restarts", "1"]);
    let outcome = launch.worker(["rank1:life<1:exit=4", "life<1:forever"]).run();
    outcome.exits(0).complains("rank 1").complains("restart");
}

#[test]
fn whatever_stands_in_place_of_the_error_file_holds_up_nothing() {
    let line = "rm -f \"$TORCHELASTIC_ERROR_FILE\"; mkfifo \"$TORCHELASTIC_ERROR_FILE\"; exit 3";
    for name in Name::both().iter().filter(|_| only_ours()) {
        let launch = Launch::standalone(*name, 1).args(["--no-python", "sh", "-c", line]);
        launch.run().exits(name.code(3)).complains("a FIFO (a pipe) is not a regular file");
    }
}
