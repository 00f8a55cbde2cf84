//! Signals to the whole job: a scheduler signals workers and launcher alike, and not in one instant.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use harness::{Job, Launch, Name, Scratch, field, is_rankrun, is_soak};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn worker_pids(job: &Job) -> Vec<Pid> {
    let lines = job.wait_for_lines("alive rank=", 2);
    let pid = |line: &String| field(line, "pid").and_then(|pid| pid.parse().ok()).map(Pid::from_raw);
    lines.iter().map(|line| pid(line).expect("a worker says its pid")).collect()
}

fn send_sigterm(workers: &[Pid]) {
    for worker in workers {
        // The launcher may have ended it already.
        let _ = kill(*worker, Signal::SIGTERM);
    }
}

/// The child is asked to end by the rank, or by the launcher's signal to the group.
#[test]
fn stop_signal_reaches_rank_alone_or_its_group() {
    if !is_rankrun() {
        return;
    }
    let worker = |ask: &str| {
        format!(
            "trap '{ask} wait $child; exit 0' TERM
             sh -c 'trap \"echo stopped by group; ended=1\" TERM; trap \"echo stopped by rank; ended=1\" USR1
                    echo ready; while [ -z $ended ]; do sleep 0.1; done' &
             child=$!
             wait"
        )
    };
    for (target, ask, line, other) in [
        (Some("rank"), "kill -USR1 $child;", "stopped by rank", "stopped by group"),
        (Some("group"), "", "stopped by group", "stopped by rank"),
        (None, "", "stopped by group", "stopped by rank"),
    ] {
        let launch = Launch::standalone(Name::Rankrun, 1);
        let options = target.map(|target| format!("--stop-signal-to={target}"));
        let job = launch.args(options).shell(&worker(ask)).start();
        job.wait_for_lines("ready", 1);
        job.signal(Signal::SIGTERM);
        let outcome = job.wait();
        outcome.expect_exit_code(143).expect_stdout(line).expect_absent(other);
    }
}

/// Both signals end a shell that traps neither. The worker starts nothing that lasts: a shell that has forked and not yet
/// executed the command loses a signal of the group.
#[test]
fn stop_signal_option_reaches_workers_in_each_stop() {
    if !is_rankrun() {
        return;
    }
    let worker = "trap 'echo saved; exit 0' INT; trap 'exit 9' TERM; echo ready
                  until [ -e \"$FAIL\" ] && [ $LOCAL_RANK = 0 ]; do sleep 0.05; done
                  exit 3";
    for name in Name::both() {
        let scratch = Scratch::new();
        let fail = scratch.path().join("fail");
        let start = || {
            let launch = Launch::standalone(*name, 2).env("RANKRUN_STOP_SIGNAL", "INT");
            let job = launch.env("FAIL", &fail).shell(worker).start();
            job.wait_for_lines("ready", 2);
            job
        };
        let stopped = start();
        stopped.signal(Signal::SIGTERM);
        let stopped = stopped.wait();
        assert_eq!(stopped.lines_with("saved").len(), 2, "{stopped}");

        let failed = start();
        fs::write(&fail, "").expect("the folder is ours");
        let failed = failed.wait();
        failed.expect_stdout("saved");
        if *name == Name::Rankrun {
            stopped.expect_exit_code(143);
            failed.expect_exit_code(3);
        } else {
            stopped.expect_stderr("Received 15 death signal").expect_stderr("closing signal SIGINT");
            failed.expect_exit_code(1).expect_stderr("closing signal SIGINT");
            failed.expect_absent("closing signal SIGTERM");
        }
    }
}

/// The launcher is told 50 ms before the workers, at once, up to 50 ms after them.
#[test]
fn sigterm_to_launcher_and_workers_is_not_a_failure() {
    if !is_rankrun() {
        return;
    }
    const ENDS: [&[&str]; 3] = [
        &["alive", "forever"],
        &["catch", "alive", "signal", "exit=143"],
        // As a Python handler does that calls `sys.exit(1)`.
        &["catch", "alive", "signal", "exit=1"],
    ];
    let runs: i64 = if is_soak() { 240 } else { 30 };
    for run in 0..runs {
        let name = if run % 2 == 0 { Name::Rankrun } else { Name::Torchrun };
        let steps = ENDS[(run / 2 % 3).unsigned_abs() as usize];
        let launch = Launch::standalone(name, 2).args(["--max-restarts", "3"]);
        let job = launch.worker(steps.iter().copied()).start();
        let workers = worker_pids(&job);
        let delay = run * 100 / (runs - 1) - 50;
        // The time between the two is what is tested.
        let apart = Duration::from_millis(delay.unsigned_abs());
        if delay < 0 {
            job.signal(Signal::SIGTERM);
            sleep(apart);
            send_sigterm(&workers);
        } else {
            send_sigterm(&workers);
            sleep(apart);
            job.signal(Signal::SIGTERM);
        }
        let outcome = job.wait();
        outcome.expect_exit_code(name.code(143)).expect_absent("attempt=1");
        if !steps.contains(&"exit=1") {
            outcome.expect_absent("failed first");
        }
    }
}

#[test]
fn signal_to_one_worker_is_a_failure() {
    for name in Name::for_shared_behaviour() {
        for end in ["die=SIGTERM", "die=SIGHUP", "exit=143"] {
            let launch = Launch::standalone(*name, 2).args(["--max-restarts", "1"]);
            let steps = ["alive", &format!("rank0:attempt<1:{end}"), "rank1:attempt<1:forever"];
            launch
                .worker(steps)
                .run()
                .expect_exit_code(0)
                .expect_stdout("alive rank=0 attempt=1")
                .expect_stdout("alive rank=1 attempt=1");
        }
    }
}

#[test]
fn failure_report_names_rank_killed_first() {
    if is_rankrun() {
        let launch = Launch::standalone(Name::Rankrun, 2);
        let outcome = launch.worker(["alive", "rank1:die=SIGTERM", "forever"]).run();
        outcome.expect_exit_code(143).expect_stderr("rank 1 failed first: killed by SIGTERM");
        outcome.expect_stderr("rank 0: killed by SIGTERM");
    }
}
