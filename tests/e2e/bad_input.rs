//! What cannot be done is said, with the value and a hint, before any worker starts.

use std::net::TcpListener;
use std::path::Path;

use harness::{Launch, Name, Outcome, Scratch, oracle};

/// A refusal: this status, the value in an `error:` line, and no worker.
#[track_caller]
fn refused(launch: impl Fn(Name) -> Launch, code: i32, value: &str) {
    for name in Name::both() {
        let scratch = Scratch::new();
        let trace = scratch.at("started");
        let outcome = launch(*name).worker([format!("touch={trace}")]).run();
        complained(&outcome, code, value);
        assert!(!Path::new(&trace).exists(), "a worker started\n{outcome}");
    }
}

#[track_caller]
fn complained(outcome: &Outcome, code: i32, value: &str) {
    outcome.exits(code);
    if oracle() {
        // torchrun prints a traceback where we print a line.
        return;
    }
    let line = outcome.err().lines().find(|line| line.contains("error:")).map(str::to_owned);
    let line = line.unwrap_or_else(|| panic!("no `error:` line\n{outcome}"));
    assert!(line.contains(value), "the error does not name `{value}`: {line}\n{outcome}");
    outcome.never_says("panicked").never_says("Traceback");
    if !line.starts_with("torchrun: error:") {
        // torchrun's parser has no hints, and its text is kept.
        outcome.complains("hint:");
    }
    assert_eq!(outcome.out(), "", "an error belongs on stderr");
}

#[test]
fn an_unknown_option() {
    refused(|name| Launch::standalone(name, 1).args(["--unknown"]), 2, "--unknown");
}

#[test]
fn unknown_options_are_called_what_torchrun_calls_them() {
    let outcome = Launch::new(Name::Torchrun).args(["--unknown", "x.py"]).run();
    outcome.exits(2).complains("unrecognized arguments: --unknown");
}

#[test]
fn no_workers_at_all() {
    refused(|name| Launch::new(name).args(["--standalone", "--nproc-per-node", "0"]), 1, "0");
}

#[test]
fn fewer_than_no_workers() {
    refused(|name| Launch::new(name).args(["--standalone", "--nproc-per-node=-1"]), 1, "-1");
}

#[test]
fn a_number_of_workers_that_is_none() {
    refused(|name| Launch::new(name).args(["--standalone", "--nproc-per-node", "abc"]), 1, "abc");
}

#[test]
fn fewer_than_no_restarts() {
    refused(|name| Launch::standalone(name, 1).args(["--max-restarts=-1"]), 1, "-1");
}

#[test]
fn a_program_that_does_not_exist() {
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 2).args(["--no-python", "/nonexistent/train"]).run();
        complained(&outcome, 1, "/nonexistent/train");
    }
}

#[test]
fn a_program_that_is_not_in_the_path() {
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 2).args(["--no-python", "no-such-program"]).run();
        complained(&outcome, 1, "no-such-program");
    }
}

#[test]
fn a_script_that_does_not_exist() {
    let outcome = Launch::standalone(Name::Rankrun, 2).args(["/nonexistent/train.py"]).run();
    complained(&outcome, 1, "/nonexistent/train.py");
}

#[test]
fn a_program_without_run_permission() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let script = scratch.file("train", "#!/bin/sh\necho started\n", 0o644);
        let outcome = Launch::standalone(*name, 2).args(["--no-python", &script]).run();
        complained(&outcome, 1, &script);
        outcome.never_says("started");
    }
}

#[test]
fn a_port_in_use() {
    let taken = TcpListener::bind(("0.0.0.0", 0)).expect("the machine has a free port");
    let port = taken.local_addr().expect("a bound socket has an address").port().to_string();
    refused(|name| Launch::new(name).args(["--master-port", &port]), 1, &port);
}

#[test]
fn a_log_folder_below_a_file() {
    let scratch = Scratch::new();
    let folder = format!("{}/logs", scratch.file("file", "", 0o644));
    refused(|name| Launch::standalone(name, 1).args(["--log-dir", &folder]), 1, &folder);
}

#[test]
fn a_log_folder_that_cannot_be_written() {
    // Root may write any folder of a plain file system, but nobody makes one here.
    refused(|name| Launch::standalone(name, 1).args(["--log-dir", "/proc/logs"]), 1, "/proc/logs");
}
