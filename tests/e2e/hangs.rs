//! Rust jobs that make no progress, and jobs that only look so; workers that lie about their progress. Those with PyTorch are in
//! `tests/pytorch/hangs.rs`.

use std::time::Duration;

use harness::{Launch, Name, Outcome, Scratch, is_rankrun, is_soak, python};
use nix::sys::signal::Signal;

/// Jobs of 2 workers, and with the big counts of 8.
fn worlds() -> &'static [usize] {
    if is_soak() { &[2, 8] } else { &[2] }
}

fn marching(how: &str, workers: usize) -> Launch {
    let launch = Launch::standalone(Name::Rankrun, workers).args(["--hang-timeout", "1"]);
    launch.args(["--max-restarts", "1"]).worker([format!("march={how},20,5")])
}

fn waiting(workers: usize) -> &'static str {
    if workers == 2 { "rank 0 waits" } else { "ranks 0, 2-7 wait" }
}

#[track_caller]
fn assert_found_and_restarted(outcome: &Outcome, workers: usize) {
    let sentence = format!("{} in all_reduce #10; rank 1 has made no progress for ", waiting(workers));
    outcome.expect_exit_code(0).expect_stderr(&sentence).expect_stderr(": waiting up to 30 s for ");
    assert_eq!(outcome.lines_with("marched rank=").len(), workers, "{outcome}");
    assert!(outcome.lines_with("marched rank=").iter().all(|line| line.ends_with("attempt=1")), "{outcome}");
}

#[test]
fn rust_rank_that_hangs_is_named_and_job_restarts() {
    if !is_rankrun() {
        return;
    }
    let ways: &[&str] = if is_soak() { &["sleep", "spin", "lock", "stop"] } else { &["sleep", "stop"] };
    for (how, workers) in ways.iter().flat_map(|how| worlds().iter().map(move |workers| (how, *workers))) {
        let outcome = marching(how, workers).run();
        assert_found_and_restarted(&outcome, workers);
        outcome.expect_stderr(if *how == "stop" {
            " (step 9), stopped by a signal: "
        } else {
            " (step 9): "
        });
    }
}

/// It shows where it stands, as each worker whose program has no hook.
#[test]
fn rust_rank_that_ignores_stop_is_shown_before_sigkill() {
    if !is_rankrun() {
        return;
    }
    let launch = Launch::standalone(Name::Rankrun, 1).args(["--shutdown-timeout", "1"]);
    let job = launch.worker(["deaf", "alive", "forever"]).start();
    job.wait_for_line("alive rank=0");
    job.signal(Signal::SIGTERM);
    let outcome = job.wait();
    outcome.expect_stderr(
        "SIGKILL follows; the workers that do not stop:\nrank 0: worker::wait_for_signals (worker), in ",
    );
    outcome.expect_stderr(" s; its program has no hook\n");
}

#[test]
fn failure_report_has_hang_as_cause_and_where_workers_stood() {
    if !is_rankrun() {
        return;
    }
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--hang-timeout", "1"]);
    let outcome = launch.worker(["march=sleep,20,5"]).run();
    outcome.expect_exit_code(1);
    outcome.expect_stderr(
        "failed first: hang: rank 0 waits in all_reduce #10; rank 1 has made no progress for ",
    );
    outcome.expect_stderr("  where workers stood:\n    rank 0: ").expect_stderr("\n    rank 1: sleeps in ");
    outcome.expect_absent("joined the store");
}

#[test]
fn restart_rule_names_hang() {
    if !is_rankrun() {
        return;
    }
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--hang-timeout", "1", "--max-restarts", "1"]);
    let launch = launch.args(["--restart-rules", "desync:fail,hang:requeue"]);
    launch.worker(["march=sleep,20,5"]).run().expect_exit_code(75).expect_absent("attempt=1");
}

/// Each takes four times the limit.
#[test]
fn slow_section_first_step_and_silence_of_heartbeats_are_not_a_hang() {
    if !is_rankrun() {
        return;
    }
    for (how, pause) in [("section", 5), ("slow-start", 5), ("quiet", 400), ("messages", 5)] {
        let launch = Launch::standalone(Name::Rankrun, 2).args(["--hang-timeout", "1"]);
        let outcome = launch.worker([format!("march={how},20,{pause}")]).run();
        outcome.expect_exit_code(0).expect_absent("made no progress").expect_absent("no progress:");
    }
}

/// As a freezer does that stops all processes of a container, for three times the limit.
#[test]
fn job_that_is_frozen_with_its_launcher_is_not_a_hang() {
    if !is_rankrun() {
        return;
    }
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--hang-timeout", "1"]);
    let job = launch.worker(["march=go-on,20,200"]).start();
    std::thread::sleep(Duration::from_millis(1500));
    // The agent first, which sees no worker stop.
    let agent = job.only_child_of(job.pid());
    let others = job.processes().into_iter().map(|process| process.pid);
    let others = others.filter(|pid| ![agent, job.pid()].contains(pid));
    let all: Vec<i32> = std::iter::once(agent).chain(others).collect();
    all.iter().for_each(|pid| job.signal_to(*pid, Signal::SIGSTOP));
    std::thread::sleep(Duration::from_secs(3));
    all.iter().for_each(|pid| job.signal_to(*pid, Signal::SIGCONT));
    job.wait().expect_exit_code(0).expect_absent("no progress");
}

#[test]
fn hang_timeout_without_evidence_prints_one_line() {
    if !is_rankrun() {
        return;
    }
    let launch = Launch::standalone(Name::Rankrun, 2);
    let launch = launch.args(["--hang-timeout", "0.5", "--first-step-timeout", "0.5"]);
    let outcome = launch.shell("sleep 3").run();
    outcome.expect_exit_code(0);
    assert_eq!(outcome.lines_with("`--hang-timeout` finds nothing to watch").len(), 1, "{outcome}");
}

#[test]
fn rank_that_evaluates_while_others_wait_gives_one_line() {
    if !is_rankrun() {
        return;
    }
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--hang-timeout", "1"]);
    let outcome = launch.worker(["march=evaluate,20,5"]).run();
    outcome.expect_exit_code(0);
    let line = "rankrun: rank 1 waits in barrier #10; rank 0 has worked in section evaluate at step 10 for ";
    assert_eq!(outcome.lines_with(line).len(), 1, "{outcome}");
    outcome.expect_absent("no progress");
}

/// The launcher has 16 KiB of them at most, and reads them four times a second.
#[test]
fn heartbeats_without_sense_and_without_end_delay_no_stop() {
    if !is_rankrun() {
        return;
    }
    for how in ["garbage", "lines", "flood"] {
        let launch = Launch::standalone(Name::Rankrun, 2).args(["--hang-timeout", "1"]);
        let job = launch.worker([format!("flood-heartbeats={how}")]).start();
        job.wait_for_lines("floods", 2);
        std::thread::sleep(Duration::from_millis(500));
        job.signal(Signal::SIGTERM);
        job.ends_within(Duration::from_secs(2));
        let outcome = job.wait();
        let is_bad = |rank: i32| outcome.lines_with(&format!("a heartbeat of rank {rank} is ignored")).len();
        let expected = usize::from(how == "lines");
        assert_eq!([is_bad(0), is_bad(1)], [expected, expected], "{how}: {outcome}");
    }
}

/// A program that answers on the socket of the flight recorder as its rank says: with garbage, never, without an end.
const RECORDERS: &str = r#"
import os, signal, socket, threading, time

rank, attempt = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
server = socket.socket(socket.AF_UNIX)
server.bind(os.environ["RANKRUN_FLIGHT_RECORDER"])
server.listen()

def answer():
    kept = []
    while True:
        client, _ = server.accept()
        kept.append(client)
        try:
            if rank == 0:
                client.sendall(b"\x00garbage\r\n\r\n")
                client.close()
            while rank == 2:
                client.sendall(b"x" * 65536)
        except OSError:
            pass

threading.Thread(target=answer, daemon=True).start()
with open(os.environ["RANKRUN_HEARTBEAT"], "w") as heartbeat:
    heartbeat.write("1\n")
print("serves", attempt, flush=True)
time.sleep(3600)
"#;

/// The hang is found, all restart, and the stop that follows is as fast as ever.
#[test]
fn recorders_that_lie_or_never_answer_delay_no_restart_and_no_stop() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let script = scratch.file("recorders.py", RECORDERS, 0o644);
    let launch = Launch::standalone(Name::Rankrun, 3).args(["--hang-timeout", "1", "--max-restarts", "1"]);
    // `-I` leaves the hook out, which would take the variable away. `-u` is the launcher's.
    let wrapper =
        scratch.file("python", &format!("#!/bin/sh\nshift\nexec {} -I \"$@\"\n", python().display()), 0o755);
    let job = launch.env("PYTHON_EXEC", wrapper).args([script]).start();
    job.wait_for_lines("serves 1", 3);
    job.signal(Signal::SIGTERM);
    job.ends_within(Duration::from_secs(2));
    let outcome = job.wait();
    outcome.expect_stderr("ranks 0-2 have made no progress for ").expect_stderr(" (step 1): waiting up to ");
}
