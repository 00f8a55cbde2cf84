//! The launcher as PID 1 of a container, where every orphan is its child.
#![expect(clippy::disallowed_methods, reason = "a stranger enters the container from outside")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use harness::{Fault, Job, Launch, Machine, Name, Process, fixture, namespaces, only_ours};
use nix::sys::signal::Signal;

/// A container needs namespaces; the test fails where they are refused, unless the switch says so.
fn skipped() -> bool {
    !namespaces() || !only_ours()
}

/// A launch with the launcher as PID 1. The job's own pid is that of `unshare`, which waits for the launcher.
#[track_caller]
fn contained(launch: Launch) -> Launch {
    launch.under(["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"])
}

/// PID 1 of the container, as it is called outside.
#[track_caller]
fn first(job: &Job) -> i32 {
    job.only_child_of(job.pid())
}

#[test]
fn the_job_runs_and_its_status_is_kept() {
    if skipped() {
        return;
    }
    for name in Name::both() {
        let outcome = contained(Launch::standalone(*name, 2)).shell("ps -o pid= -p 1; echo $$PPID").run();
        outcome.exits(0);
        contained(Launch::standalone(*name, 2)).worker(["rank1:exit=3", "forever"]).run().exits(name.code(3));
        contained(Launch::standalone(*name, 1))
            .worker(["die=SIGKILL", "forever"])
            .run()
            .exits(name.code(137));
    }
}

#[test]
fn signals_reach_the_workers() {
    if skipped() {
        return;
    }
    for name in Name::both() {
        let launch = contained(Launch::standalone(*name, 2));
        let job = launch.worker(["catch", "alive", "signal", "exit=0"]).start();
        job.lines("alive rank=", 2);
        job.signal_to(first(&job), Signal::SIGTERM);
        let outcome = job.wait();
        outcome.exits(name.code(143));
        assert_eq!(outcome.lines_with("got SIGTERM").len(), 2, "{outcome}");
    }
}

/// The kernel drops a signal to PID 1 without a handler. The launcher must handle it, even before it reads its options.
#[test]
fn a_signal_ends_the_look_at_the_devices() {
    if skipped() {
        return;
    }
    let machine = Machine::gpus(2).with_fault("nvmlInit_v2", Fault::Hang);
    for (name, options, signal) in [
        (Name::Rankrun, "--nproc-per-node=2", Signal::SIGTERM),
        (Name::Rankrun, "--devices=0", Signal::SIGINT),
        (Name::Torchrun, "--nproc-per-node=gpu", Signal::SIGTERM),
    ] {
        let launch = Launch::new(name).args(["--standalone", options]).env("RANKRUN_PROBE_TIMEOUT", "60");
        let launch = contained(launch.on(&machine));
        let opening = launch.opening();
        let job = launch.worker(["alive"]).start();
        opening.wait();
        job.signal_to(first(&job), signal);
        job.wait().exits(128 + signal as i32).never_says("alive rank=");
    }
}

#[test]
fn workers_have_no_signal_blocked() {
    if skipped() {
        return;
    }
    for options in [&[][..], &["--signals-to-handle", "SIGUSR1"]] {
        let launch = contained(Launch::standalone(Name::Rankrun, 1).args(options));
        let outcome = launch.shell("grep SigBlk /proc/self/status").run();
        outcome.exits(0).says("SigBlk:\t0000000000000000");
    }
}

#[test]
fn a_killed_agent_ends_the_container() {
    if skipped() {
        return;
    }
    let launch = contained(Launch::standalone(Name::Rankrun, 2));
    let job = launch.worker(["catch", "helper=daemon", "alive", "forever"]).start();
    job.lines("alive rank=", 4);
    let agent = job.only_child_of(first(&job));
    job.signal_to(agent, Signal::SIGKILL);
    assert!(!job.wait().status.success());
}

/// A process that came into the container from outside, without the mark of a job and without its parent.
#[track_caller]
fn stranger(job: &Job) -> Process {
    let target = first(job).to_string();
    let mut entrance = Command::new("nsenter")
        .args(["--target", &target, "--pid", "--mount", "setsid", "--fork"])
        .arg(fixture("worker"))
        .args(["catch", "alive=stranger", "forever"])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdout(Stdio::piped())
        .spawn()
        .expect("nsenter is installed");
    let mut line = String::new();
    let stdout = entrance.stdout.take().expect("stdout is a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("the stranger speaks");
    assert!(line.contains("who=stranger"), "{line}");
    entrance.wait().expect("nsenter ends");
    let process = job.children_of(first(job)).into_iter().filter_map(Process::open);
    let mut strangers: Vec<_> =
        process.filter(|process| process.command.contains("alive=stranger")).collect();
    assert_eq!(strangers.len(), 1, "{strangers:?}");
    strangers.remove(0)
}

#[test]
fn strangers_are_not_ended_with_a_generation() {
    if skipped() {
        return;
    }
    let launch = contained(Launch::standalone(Name::Rankrun, 2).args(["--max-restarts", "1"]).stdin_open());
    let mut job = launch.worker(["alive", "rank0:life<1:read", "rank0:life<1:exit=4", "forever"]).start();
    job.lines("life=0", 2);
    let stranger = stranger(&job);
    job.type_text("\n");
    job.lines("life=1", 2);
    assert!(!harness::is_zombie_or_gone(stranger.pid), "the stranger was ended\n{job}");
    job.signal_to(first(&job), Signal::SIGTERM);
    job.wait().exits(143);
}

#[test]
fn strangers_are_reaped() {
    if skipped() {
        return;
    }
    let job = contained(Launch::standalone(Name::Rankrun, 1)).worker(["alive", "forever"]).start();
    job.line("alive rank=0");
    let stranger = stranger(&job);
    job.signal_to(stranger.pid, Signal::SIGKILL);
    assert!(stranger.reaped_within(Duration::from_secs(30)), "a zombie is left\n{job}");
    job.signal_to(first(&job), Signal::SIGTERM);
    job.wait().exits(143);
}

#[test]
fn orphans_of_workers_are_reaped() {
    if skipped() {
        return;
    }
    // The orphan ends by itself while its worker lives.
    let line = "setsid --fork sh -c 'echo orphan; read line'; echo ready; exec sleep 1000";
    let launch = contained(Launch::standalone(Name::Rankrun, 1).stdin_open());
    let mut job = launch.shell(line).start();
    job.line("orphan");
    job.line("ready");
    let orphans: Vec<_> = job
        .processes()
        .into_iter()
        .filter(|process| process.command.starts_with("sh -c echo orphan"))
        .collect();
    assert_eq!(orphans.len(), 1, "{orphans:?}\n{job}");
    job.type_text("\n");
    assert!(orphans[0].reaped_within(Duration::from_secs(30)), "a zombie is left\n{job}");
    job.signal_to(first(&job), Signal::SIGTERM);
    job.wait().exits(143);
}

#[test]
fn a_second_signal_kills_and_one_ends_the_wait_for_leftovers() {
    if skipped() {
        return;
    }
    let launch = contained(Launch::standalone(Name::Rankrun, 2).args(["--grace", "3600"]));
    let job = launch.worker(["catch", "alive", "signal", "forever"]).start();
    job.lines("alive rank=", 2);
    job.signal_to(first(&job), Signal::SIGTERM);
    job.lines("got SIGTERM", 2);
    job.signal_to(first(&job), Signal::SIGINT);
    job.wait().exits(143);
    let job = contained(Launch::standalone(Name::Rankrun, 1)).shell("setsid --fork sleep 1111").start();
    job.line("waiting up to 30 s");
    job.signal_to(first(&job), Signal::SIGTERM);
    job.wait().exits(143).complains("SIGTERM: ending pid ");
}

/// The signals that wait for a process that blocks them, as the kernel writes them.
fn pending(process: &Process) -> String {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid)).expect("it lives");
    status.lines().filter(|line| line.starts_with("SigPnd") || line.starts_with("ShdPnd")).collect()
}

#[test]
fn no_signal_reaches_a_stranger() {
    if skipped() {
        return;
    }
    let launch = contained(Launch::standalone(Name::Rankrun, 1).args(["--grace", "3600"]).stdin_open());
    let mut job = launch.shell("echo alive; read line; trap '' TERM; setsid --fork sleep 1111").start();
    job.line("alive");
    let stranger = stranger(&job);
    let nothing = pending(&stranger);
    assert!(!nothing.is_empty() && nothing.bytes().all(|byte| !matches!(byte, b'1'..=b'9')), "{nothing}");
    job.type_text("\n");
    job.line("waiting up to 30 s");
    job.signal_to(first(&job), Signal::SIGTERM);
    job.line("SIGTERM: ending pid ");
    assert_eq!(pending(&stranger), nothing, "{job}");
    job.signal_to(first(&job), Signal::SIGTERM);
    job.wait().exits(143);
}

#[test]
fn many_orphans_are_reaped() {
    if skipped() {
        return;
    }
    let count = if harness::soak() { 1_000 } else { 100 };
    // Each `true` loses its parent at once: those of the worker come to the agent, those from outside to PID 1.
    let many = format!("i=0; while [ $i -lt {count} ]; do setsid --fork true; i=$((i+1)); done");
    let line = format!("{}; echo ready; exec sleep 1111", many.replace('$', "$$"));
    let job = contained(Launch::standalone(Name::Rankrun, 1)).shell(&line).start();
    job.line("ready");
    let target = first(&job).to_string();
    let entered = Command::new("nsenter")
        .args(["--target", &target, "--pid", "--mount", "sh", "-c", &many])
        .status()
        .expect("nsenter is installed");
    assert!(entered.success());
    let of_the_launcher = job.children_of(first(&job));
    for parent in of_the_launcher.into_iter().chain([first(&job)]) {
        let orphans = job.children_of(parent).into_iter().filter(|pid| harness::is_zombie_or_gone(*pid));
        for orphan in orphans.filter_map(Process::open) {
            assert!(orphan.reaped_within(Duration::from_secs(30)), "a zombie is left\n{job}");
        }
    }
    job.signal_to(first(&job), Signal::SIGTERM);
    job.wait().exits(143);
}

/// Beside the look at the devices, the run, the second signal and the leftovers, which have tests of their own.
#[test]
fn a_signal_is_answered_in_every_phase() {
    if skipped() {
        return;
    }
    let again = ["--max-restarts", "3", "--restart-delay", "1h"];
    // How many workers, the options, the steps, and what to wait for before the signal.
    let phases: [(usize, &[&str], &[&str], &str); 2] = [
        (8, &[], &["alive", "forever"], "alive rank="),
        (1, &again, &["alive", "exit=3"], "starting all workers again in "),
    ];
    for (workers, options, steps, seen) in phases {
        let launch = contained(Launch::standalone(Name::Rankrun, workers).args(options.iter().copied()));
        let job = launch.worker(steps.iter().copied()).start();
        job.line(seen);
        job.signal_to(first(&job), Signal::SIGTERM);
        job.wait().exits(143).never_says("life=1");
    }
}

#[test]
fn a_signal_ends_a_stop_and_no_restart_follows() {
    if skipped() {
        return;
    }
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--grace", "3600", "--max-restarts", "3"]);
    let steps = ["catch", "alive", "rank0:read", "rank0:exit=3", "signal", "signal", "exit=0"];
    let mut job = contained(launch.stdin_open()).worker(steps).start();
    job.lines("alive rank=", 2);
    job.type_text("\n");
    // Of the stop after the failure; the second one is the user's.
    job.line("got SIGTERM rank=1");
    job.signal_to(first(&job), Signal::SIGTERM);
    let outcome = job.wait();
    outcome.exits(143).never_says("life=1");
    assert_eq!(outcome.lines_with("got SIGTERM rank=1").len(), 2, "{outcome}");
}
