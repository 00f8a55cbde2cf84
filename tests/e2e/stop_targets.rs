//! Which processes of a worker get the signal that stops it.

use std::ffi::OsString;

use harness::{Launch, Name, Outcome, Scratch, fixture, is_rankrun};
use nix::sys::signal::Signal;

/// A rank whose child serves it while it saves. The child says whether it got SIGTERM before that.
const RANK: &str = r#"
import os, signal, subprocess, sys
child = None
# One write for a line, which the child's cannot divide. The handler of a signal may call it at any time.
def say(line):
    os.write(1, (line + "\n").encode())
def save(_signal, _frame):
    child.stdin.close()
    child.wait()
    say("rank saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
line = "trap 'echo child got SIGTERM' TERM; echo ready; read line; echo child served"
child = subprocess.Popen(["sh", "-c", line], stdin=subprocess.PIPE)
say("ready")
while True:
    signal.pause()
"#;

/// Starts one worker, waits until so many lines say that they are ready, and stops the job by SIGTERM.
fn stop(args: &[OsString], ready: usize, change: impl FnOnce(Launch) -> Launch) -> Outcome {
    let launch = Launch::standalone(Name::Rankrun, 1);
    let job = change(launch).args(args.iter().cloned()).start();
    job.wait_for_lines("ready", ready);
    job.signal(Signal::SIGTERM);
    let outcome = job.wait();
    outcome.expect_exit_code(143);
    outcome
}

fn words<const N: usize>(words: [&str; N]) -> Vec<OsString> {
    words.map(OsString::from).to_vec()
}

#[test]
fn training_program_is_stopped_alone_and_wrapper_with_its_group() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let rank = scratch.file("rank.py", RANK, 0o644);
    let file = |name: &str, text: String| scratch.file(name, &text, 0o755);
    let exec = file("exec.sh", format!("#!/bin/sh\nexec python3 {rank}\n"));
    let run = file("run.sh", format!("#!/bin/sh\npython3 {rank}\n"));
    // As `conda run`: a command in Python that starts the program and waits for it.
    let wait = "import signal, subprocess, sys\nsignal.signal(signal.SIGTERM, lambda *_: None)";
    let conda =
        format!("#!/usr/bin/env python3\n{wait}\nsys.exit(subprocess.run(sys.argv[1:]).returncode)\n");
    let conda = file("conda", conda);
    for (args, is_alone) in [
        (words([&rank]), true),
        (words(["--no-python", "python3", &rank]), true),
        (words([&exec]), true),
        (words([&run]), false),
        (words(["sh", "-c", &format!("python3 {rank}; true")]), false),
        (words([&conda, "python3", &rank]), false),
    ] {
        let outcome = stop(&args, 2, |launch| launch);
        outcome.expect_stdout("rank saved");
        let is_signalled = outcome.stdout().contains("child got SIGTERM");
        assert_eq!(is_signalled, !is_alone, "{args:?}\n{outcome}");
    }
    let as_torchrun = Launch::standalone(Name::Torchrun, 1).args([&rank]).start();
    as_torchrun.wait_for_lines("ready", 2);
    as_torchrun.signal(Signal::SIGTERM);
    as_torchrun.wait().expect_exit_code(1).expect_stdout("child got SIGTERM");
}

/// `env` becomes the program, so its image is Python's.
#[test]
fn rank_with_wrapper_is_stopped_with_its_group() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let rank = scratch.file("rank.py", RANK, 0o644);
    let outcome = stop(&words([&rank]), 6, |launch| launch.args(["-n", "3", "--wrap", "1-2:env"]));
    assert_eq!(outcome.lines_with("child got SIGTERM").len(), 2, "{outcome}");
    assert_eq!(outcome.lines_with("rank saved").len(), 3, "{outcome}");
}

/// The worker is linked with the worker runtime. Its helper ignores the signal that it gets at the worker's exit.
#[test]
fn processes_left_by_rust_rank_get_signal_and_are_killed_after_grace() {
    if !is_rankrun() {
        return;
    }
    let worker = fixture("worker").into_os_string();
    let steps = ["catch", "helper=listener", "print=ready", "signal", "exit=0"].map(OsString::from);
    let args: Vec<OsString> = [OsString::from("--grace=3"), worker].into_iter().chain(steps).collect();
    let outcome = stop(&args, 1, |launch| launch);
    assert_eq!(outcome.lines_with("got SIGTERM rank=0").len(), 2, "rank and helper\n{outcome}");
    outcome
        .expect_stderr("s for processes that local rank 0 left running to stop after SIGTERM")
        .expect_stderr("killing processes that local rank 0 left running: still alive after the grace");
    let group = stop(&args, 1, |launch| launch.args(["--stop-signal-to", "group"]));
    group.expect_absent("left running");
}

/// The rank does not handle the signal; its child needs half a second after it.
#[test]
fn process_left_by_python_rank_has_rest_of_grace() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let child = "trap 'sleep 0.5; echo child saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let rank = format!("import subprocess\nsubprocess.run(['sh', '-c', {child:?}])\n");
    let rank = scratch.file("rank.py", &rank, 0o644);
    let outcome = stop(&words([&rank]), 1, |launch| launch);
    outcome.expect_stdout("child saved").expect_absent("killing");
}
