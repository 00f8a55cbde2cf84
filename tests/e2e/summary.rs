//! What is said about a failed job: the facts, under our own name; the layout, under torchrun's.

use std::path::Path;

use harness::{Launch, Name, Scratch, only_ours};

/// A job whose rank 1 fails after it said that it is about to.
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
fn a_restart_is_told_with_its_reason() {
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--max-restarts", "1"]);
    let outcome = launch.worker(["rank1:life<1:exit=4", "life<1:forever"]).run();
    outcome.exits(0).complains("rank 1").complains("restart");
}

#[test]
fn torchruns_has_its_layout() {
    let outcome = Launch::standalone(Name::Torchrun, 1).worker(["exit=3"]).run();
    let title = format!("{} FAILED", harness::fixture("worker").display());
    outcome.exits(1).complains(&title).complains("Failures:\n  <NO_OTHER_FAILURES>\n");
    outcome.complains("Root Cause (first observed failure):\n[0]:\n  time      : ");
    outcome.complains("\n  rank      : 0 (local_rank: 0)\n  exitcode  : 3 (pid: ");
    outcome.complains("\n  error_file: <N/A>\n  traceback : To enable traceback see: ");
}

#[test]
fn torchruns_names_signals_and_victims() {
    let outcome = Launch::standalone(Name::Torchrun, 2)
        .worker(["rank0:alive", "rank1:sleep-ms=300", "rank1:die=SIGKILL", "forever"])
        .run();
    outcome.exits(1).complains("exitcode  : -9 (pid: ").complains(")  (SIGKILL)\n");
    outcome.complains("traceback : Signal 9 (SIGKILL) received by PID ");
    outcome.complains("Failures:\n[1]:\n").complains("exitcode  : -15 (pid: ").complains(")  (SIGTERM)\n");
}

#[test]
fn torchruns_reads_the_workers_error_file() {
    let text = r#"{"message":{"message":"ValueError: nan","extraInfo":{"py_callstack":"Traceback\n  line 7\n","timestamp":"1700000000"}}}"#;
    let launch = Launch::standalone(Name::Torchrun, 1);
    let outcome = launch.worker([format!("error-file={text}"), "exit=9".into()]).run();
    outcome.exits(1).complains("traceback : Traceback\n    line 7\n").complains("/attempt_0/0/error.json");
    // The time is that of the error, not of its discovery.
    let line = outcome.lines_with("  time      : ").remove(0);
    assert!(line.contains("2023-11-1"), "{line}");
}

#[test]
fn torchruns_takes_a_text_as_message() {
    let launch = Launch::standalone(Name::Torchrun, 1);
    let steps = [r#"error-file={"message":"disk full","timestamp":"1700000000"}"#, "exit=9"];
    launch.worker(steps).run().exits(1).complains("traceback : disk full\n");
}

#[test]
fn the_error_goes_on_to_whoever_started_us() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let parent = scratch.at("parent.json");
        let launch = Launch::standalone(*name, 1).env("TORCHELASTIC_ERROR_FILE", parent.clone());
        let text = r#"error-file={"message":{"message":"ValueError: nan","extraInfo":{"py_callstack":"","timestamp":"1700000000"}}}"#;
        launch.worker([text, "exit=9"]).run().exits(name.code(9));
        let copied = std::fs::read_to_string(&parent).expect("the error was passed on");
        assert!(copied.contains("ValueError: nan") && copied.contains("\"errorCode\""), "{copied}");
    }
}

#[test]
fn a_broken_error_file_is_no_reason_to_fail() {
    if only_ours() {
        for name in Name::both() {
            let outcome = Launch::standalone(*name, 1).worker(["error-file={", "exit=9"]).run();
            outcome.exits(name.code(9)).never_says("panicked");
            if *name == Name::Torchrun {
                outcome.complains("Root Cause (first observed failure)");
            }
        }
    }
}

#[test]
fn the_first_failure_by_the_errors_own_clock_is_the_cause() {
    let stamp = |seconds: &str| {
        format!(
            r#"error-file={{"message":{{"message":"E","extraInfo":{{"py_callstack":"at {seconds}","timestamp":"{seconds}"}}}}}}"#
        )
    };
    // Rank 0 is stopped, and its error is older.
    let steps = [
        format!("rank1:{}", stamp("1700000500")),
        "rank1:sleep-ms=300".into(),
        "rank1:exit=9".into(),
        "catch".into(),
        stamp("1700000000"),
        "signal".into(),
        "exit=8".into(),
    ];
    let outcome = Launch::standalone(Name::Torchrun, 2).worker(steps).run();
    let err = outcome.err();
    let cause = err.split("Root Cause").nth(1).unwrap_or_default();
    assert!(cause.contains("at 1700000000"), "{outcome}");
}
