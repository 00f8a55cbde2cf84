//! Signals to the whole job: a scheduler signals workers and launcher alike, and not in one instant.

use std::thread::sleep;
use std::time::Duration;

use harness::{Job, Launch, Name, field, only_ours, soak};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn pids(job: &Job) -> Vec<Pid> {
    let lines = job.lines("alive rank=", 2);
    let pid = |line: &String| field(line, "pid").and_then(|pid| pid.parse().ok()).map(Pid::from_raw);
    lines.iter().map(|line| pid(line).expect("a worker says its pid")).collect()
}

fn tell(workers: &[Pid]) {
    for worker in workers {
        // The launcher may have ended it already.
        let _ = kill(*worker, Signal::SIGTERM);
    }
}

/// The launcher is told 50 ms before the workers, at once, up to 50 ms after them.
#[test]
fn a_signal_to_workers_and_launcher_is_no_failure() {
    if !only_ours() {
        return;
    }
    const ENDS: [&[&str]; 3] = [
        &["alive", "forever"],
        &["catch", "alive", "signal", "exit=143"],
        // As a Python handler does that calls `sys.exit(1)`.
        &["catch", "alive", "signal", "exit=1"],
    ];
    let runs: i64 = if soak() { 240 } else { 30 };
    for run in 0..runs {
        let name = if run % 2 == 0 { Name::Rankrun } else { Name::Torchrun };
        let steps = ENDS[(run / 2 % 3).unsigned_abs() as usize];
        let launch = Launch::standalone(name, 2).args(["--max-restarts", "3"]);
        let job = launch.worker(steps.iter().copied()).start();
        let workers = pids(&job);
        let delay = run * 100 / (runs - 1) - 50;
        // The time between the two is what is tested.
        let apart = Duration::from_millis(delay.unsigned_abs());
        if delay < 0 {
            job.signal(Signal::SIGTERM);
            sleep(apart);
            tell(&workers);
        } else {
            tell(&workers);
            sleep(apart);
            job.signal(Signal::SIGTERM);
        }
        let outcome = job.wait();
        outcome.exits(name.code(143)).never_says("life=1");
        if !steps.contains(&"exit=1") {
            outcome.never_says("failed first");
        }
    }
}

#[test]
fn a_signal_to_a_worker_alone_is_a_failure() {
    for name in Name::both() {
        for end in ["die=SIGTERM", "die=SIGHUP", "exit=143"] {
            let launch = Launch::standalone(*name, 2).args(["--max-restarts", "1"]);
            let steps = ["alive", &format!("rank0:life<1:{end}"), "rank1:life<1:forever"];
            launch.worker(steps).run().exits(0).says("alive rank=0 life=1").says("alive rank=1 life=1");
        }
    }
}

#[test]
fn the_card_tells_it_as_it_happened() {
    if only_ours() {
        let launch = Launch::standalone(Name::Rankrun, 2);
        let outcome = launch.worker(["alive", "rank1:die=SIGTERM", "forever"]).run();
        outcome.exits(143).complains("rank 1 failed first: killed by SIGTERM");
        outcome.complains("rank 0: killed by SIGTERM");
    }
}
