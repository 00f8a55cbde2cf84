//! How the launcher's end follows from the workers' ends.

use std::time::Duration;

use harness::{Gate, Launch, Name, field};
use nix::sys::signal::Signal;

#[test]
fn success_exits_with_zero() {
    for name in Name::both() {
        Launch::standalone(*name, 2).shell("true").run().expect_exit_code(0);
    }
}

#[test]
fn worker_exit_code_becomes_launcher_exit_code() {
    for name in Name::both() {
        Launch::standalone(*name, 1).worker(["exit=3"]).run().expect_exit_code(name.code(3));
    }
}

#[test]
fn worker_killed_by_signal_exits_with_128_plus_signal() {
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 1).worker(["die=SIGKILL", "forever"]).run();
        outcome.expect_exit_code(name.code(137)).expect_stderr("SIGKILL");
    }
}

#[test]
fn first_failure_decides_exit_code() {
    for name in Name::both() {
        let gate = Gate::closed();
        // Rank 0 ends with another code, and only because it is stopped.
        let steps = ["rank0:catch", "rank0:alive", &format!("rank1:{}", gate.step()), "rank1:exit=7"];
        let launch = Launch::standalone(*name, 2);
        let job = launch.worker(steps.into_iter().chain(["rank0:signal", "exit=5"])).start();
        job.wait_for_line("alive rank=0");
        gate.open(1);
        job.wait().expect_exit_code(name.code(7)).expect_stdout("got SIGTERM rank=0");
    }
}

#[test]
fn early_success_does_not_end_job() {
    for name in Name::for_shared_behaviour() {
        let gate = Gate::closed();
        let launch = Launch::standalone(*name, 2);
        let job = launch.worker(["alive", &format!("rank1:{}", gate.step()), "rank1:print=late"]).start();
        let worker = job.wait_for_lines("alive rank=", 2).into_iter().find(|line| line.contains("rank=0"));
        let pid = worker.and_then(|line| field(&line, "pid")?.parse().ok()).expect("rank 0 said its pid");
        if let Some(first) = harness::Process::open(pid) {
            job.expect_processes_gone(&[first], Duration::from_secs(30));
        }
        gate.open(1);
        job.wait().expect_exit_code(0).expect_stdout("late");
    }
}

#[test]
fn sigterm_to_launcher_exits_with_143() {
    let job = Launch::standalone(Name::Rankrun, 2).worker(["alive", "forever"]).start();
    job.wait_for_lines("alive rank=", 2);
    job.signal(Signal::SIGTERM);
    job.wait().expect_exit_code(143);
}
