//! How the launcher's end follows from the workers' ends.

use std::time::Duration;

use harness::{Gate, Launch, Name, field};
use nix::sys::signal::Signal;

#[test]
fn success_is_zero() {
    for name in Name::both() {
        Launch::standalone(*name, 2).shell("true").run().exits(0);
    }
}

#[test]
fn a_workers_own_code_is_ours() {
    for name in Name::both() {
        Launch::standalone(*name, 1).worker(["exit=3"]).run().exits(name.code(3));
    }
}

#[test]
fn a_workers_signal_is_ours_as_a_shell_says_it() {
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 1).worker(["die=SIGKILL", "forever"]).run();
        outcome.exits(name.code(137)).complains("SIGKILL");
    }
}

#[test]
fn the_first_failure_decides() {
    for name in Name::both() {
        let gate = Gate::closed();
        // Rank 0 ends with another code, and only because it is stopped.
        let steps = ["rank0:catch", "rank0:alive", &format!("rank1:{}", gate.step()), "rank1:exit=7"];
        let launch = Launch::standalone(*name, 2);
        let job = launch.worker(steps.into_iter().chain(["rank0:signal", "exit=5"])).start();
        job.line("alive rank=0");
        gate.open(1);
        job.wait().exits(name.code(7)).says("got SIGTERM rank=0");
    }
}

#[test]
fn an_early_success_does_not_end_the_job() {
    for name in Name::both() {
        let gate = Gate::closed();
        let launch = Launch::standalone(*name, 2);
        let job = launch.worker(["alive", &format!("rank1:{}", gate.step()), "rank1:print=late"]).start();
        let worker = job.lines("alive rank=", 2).into_iter().find(|line| line.contains("rank=0"));
        let pid = worker.and_then(|line| field(&line, "pid")?.parse().ok()).expect("rank 0 said its pid");
        if let Some(first) = harness::Process::open(pid) {
            job.outlived_by_none(&[first], Duration::from_secs(30));
        }
        gate.open(1);
        job.wait().exits(0).says("late");
    }
}

#[test]
fn a_stop_is_no_failure_of_its_own() {
    let job = Launch::standalone(Name::Rankrun, 2).worker(["alive", "forever"]).start();
    job.lines("alive rank=", 2);
    job.signal(Signal::SIGTERM);
    job.wait().exits(143);
}
