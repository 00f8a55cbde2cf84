//! The launcher as PID 1 of a container, where every orphan is its child.
#![expect(clippy::disallowed_methods, reason = "a process enters the container from outside")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use harness::{Fault, Job, Launch, Machine, Name, Process, can_use_namespaces, fixture, is_rankrun};
use nix::sys::signal::Signal;

/// A container needs namespaces; the test fails where they are refused, unless the switch says so.
fn is_skipped() -> bool {
    !can_use_namespaces() || !is_rankrun()
}

/// A launch with the launcher as PID 1. The job's own pid is that of `unshare`, which waits for the launcher.
#[track_caller]
fn in_container(launch: Launch) -> Launch {
    launch.under(["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"])
}

/// PID 1 of the container, as it is called outside.
#[track_caller]
fn container_init_pid(job: &Job) -> i32 {
    job.only_child_of(job.pid())
}

#[test]
fn pid_one_job_runs_and_keeps_exit_status() {
    if is_skipped() {
        return;
    }
    for name in Name::both() {
        let outcome = in_container(Launch::standalone(*name, 2)).shell("ps -o pid= -p 1; echo $$PPID").run();
        outcome.expect_exit_code(0);
        in_container(Launch::standalone(*name, 2))
            .worker(["rank1:exit=3", "forever"])
            .run()
            .expect_exit_code(name.code(3));
        in_container(Launch::standalone(*name, 1))
            .worker(["die=SIGKILL", "forever"])
            .run()
            .expect_exit_code(name.code(137));
    }
}

#[test]
fn pid_one_forwards_signals_to_workers() {
    if is_skipped() {
        return;
    }
    for name in Name::for_shared_behaviour() {
        let launch = in_container(Launch::standalone(*name, 2));
        let job = launch.worker(["catch", "alive", "signal", "exit=0"]).start();
        job.wait_for_lines("alive rank=", 2);
        job.signal_to(container_init_pid(&job), Signal::SIGTERM);
        let outcome = job.wait();
        outcome.expect_exit_code(name.code(143));
        assert_eq!(outcome.lines_with("got SIGTERM").len(), 2, "{outcome}");
    }
}

/// The kernel drops a signal to PID 1 without a handler. The launcher must handle it, even before it reads its options.
#[test]
fn signal_ends_hanging_device_probe() {
    if is_skipped() {
        return;
    }
    let machine = Machine::gpus(2).with_fault("nvmlInit_v2", Fault::Hang);
    for (name, options, signal) in [
        (Name::Rankrun, "--nproc-per-node=2", Signal::SIGTERM),
        (Name::Rankrun, "--devices=0", Signal::SIGINT),
        (Name::Torchrun, "--nproc-per-node=gpu", Signal::SIGTERM),
    ] {
        let launch = Launch::new(name).args(["--standalone", options]).env("RANKRUN_PROBE_TIMEOUT", "60");
        let launch = in_container(launch.on(&machine));
        let opening = launch.opening();
        let job = launch.worker(["alive"]).start();
        opening.wait();
        job.signal_to(container_init_pid(&job), signal);
        job.wait().expect_exit_code(128 + signal as i32).expect_absent("alive rank=");
    }
}

#[test]
fn workers_have_no_signal_blocked() {
    if is_skipped() {
        return;
    }
    for options in [&[][..], &["--signals-to-handle", "SIGUSR1"]] {
        let launch = in_container(Launch::standalone(Name::Rankrun, 1).args(options));
        let outcome = launch.shell("grep SigBlk /proc/self/status").run();
        outcome.expect_exit_code(0).expect_stdout("SigBlk:\t0000000000000000");
    }
}

#[test]
fn killed_agent_ends_the_container() {
    if is_skipped() {
        return;
    }
    let launch = in_container(Launch::standalone(Name::Rankrun, 2));
    let job = launch.worker(["catch", "helper=daemon", "alive", "forever"]).start();
    job.wait_for_lines("alive rank=", 4);
    let agent = job.only_child_of(container_init_pid(&job));
    job.signal_to(agent, Signal::SIGKILL);
    assert!(!job.wait().status.success());
}

/// A process that came into the container from outside, without the mark of a job and without its parent.
#[track_caller]
fn start_unrelated(job: &Job) -> Process {
    let target = container_init_pid(job).to_string();
    let mut entrance = Command::new("nsenter")
        .args(["--target", &target, "--pid", "--mount", "setsid", "--fork"])
        .arg(fixture("worker"))
        .args(["catch", "alive=outsider", "forever"])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdout(Stdio::piped())
        .spawn()
        .expect("nsenter is installed");
    let mut line = String::new();
    let stdout = entrance.stdout.take().expect("stdout is a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("the outside process prints a line");
    assert!(line.contains("process=outsider"), "{line}");
    entrance.wait().expect("nsenter ends");
    let process = job.children_of(container_init_pid(job)).into_iter().filter_map(Process::open);
    let mut unrelated: Vec<_> =
        process.filter(|process| process.command.contains("alive=outsider")).collect();
    assert_eq!(unrelated.len(), 1, "{unrelated:?}");
    unrelated.remove(0)
}

#[test]
fn unrelated_process_survives_restart() {
    if is_skipped() {
        return;
    }
    let launch =
        in_container(Launch::standalone(Name::Rankrun, 2).args(["--max-restarts", "1"]).stdin_open());
    let mut job =
        launch.worker(["alive", "rank0:attempt<1:read", "rank0:attempt<1:exit=4", "forever"]).start();
    job.wait_for_lines("attempt=0", 2);
    let unrelated = start_unrelated(&job);
    job.type_text("\n");
    job.wait_for_lines("attempt=1", 2);
    assert!(!harness::is_zombie_or_gone(unrelated.pid), "the outside process was ended\n{job}");
    job.signal_to(container_init_pid(&job), Signal::SIGTERM);
    job.wait().expect_exit_code(143);
}

#[test]
fn unrelated_process_is_reaped() {
    if is_skipped() {
        return;
    }
    let job = in_container(Launch::standalone(Name::Rankrun, 1)).worker(["alive", "forever"]).start();
    job.wait_for_line("alive rank=0");
    let unrelated = start_unrelated(&job);
    job.signal_to(unrelated.pid, Signal::SIGKILL);
    assert!(unrelated.reaped_within(Duration::from_secs(30)), "a zombie is left\n{job}");
    job.signal_to(container_init_pid(&job), Signal::SIGTERM);
    job.wait().expect_exit_code(143);
}

#[test]
fn orphans_of_workers_are_reaped() {
    if is_skipped() {
        return;
    }
    // The orphan ends by itself while its worker lives.
    let line = "setsid --fork sh -c 'echo orphan; read line'; echo ready; exec sleep 1000";
    let launch = in_container(Launch::standalone(Name::Rankrun, 1).stdin_open());
    let mut job = launch.shell(line).start();
    job.wait_for_line("orphan");
    job.wait_for_line("ready");
    let orphans: Vec<_> = job
        .processes()
        .into_iter()
        .filter(|process| process.command.starts_with("sh -c echo orphan"))
        .collect();
    assert_eq!(orphans.len(), 1, "{orphans:?}\n{job}");
    job.type_text("\n");
    assert!(orphans[0].reaped_within(Duration::from_secs(30)), "a zombie is left\n{job}");
    job.signal_to(container_init_pid(&job), Signal::SIGTERM);
    job.wait().expect_exit_code(143);
}

#[test]
fn second_signal_kills_and_signal_ends_leftover_wait() {
    if is_skipped() {
        return;
    }
    let launch = in_container(Launch::standalone(Name::Rankrun, 2).args(["--grace", "3600"]));
    let job = launch.worker(["catch", "alive", "signal", "forever"]).start();
    job.wait_for_lines("alive rank=", 2);
    job.signal_to(container_init_pid(&job), Signal::SIGTERM);
    job.wait_for_lines("got SIGTERM", 2);
    job.signal_to(container_init_pid(&job), Signal::SIGINT);
    job.wait().expect_exit_code(143);
    let job = in_container(Launch::standalone(Name::Rankrun, 1)).shell("setsid --fork sleep 1111").start();
    job.wait_for_line("waiting up to 30 s");
    job.signal_to(container_init_pid(&job), Signal::SIGTERM);
    job.wait().expect_exit_code(143).expect_stderr("SIGTERM: ending pid ");
}

/// The signals that wait for a process that blocks them, as the kernel writes them.
fn pending_signals(process: &Process) -> String {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid)).expect("it lives");
    status.lines().filter(|line| line.starts_with("SigPnd") || line.starts_with("ShdPnd")).collect()
}

#[test]
fn unrelated_process_gets_no_signal() {
    if is_skipped() {
        return;
    }
    let launch = in_container(Launch::standalone(Name::Rankrun, 1).args(["--grace", "3600"]).stdin_open());
    let mut job = launch.shell("echo alive; read line; trap '' TERM; setsid --fork sleep 1111").start();
    job.wait_for_line("alive");
    let unrelated = start_unrelated(&job);
    let pending_before = pending_signals(&unrelated);
    assert!(
        !pending_before.is_empty() && pending_before.bytes().all(|byte| !matches!(byte, b'1'..=b'9')),
        "{pending_before}"
    );
    job.type_text("\n");
    job.wait_for_line("waiting up to 30 s");
    job.signal_to(container_init_pid(&job), Signal::SIGTERM);
    job.wait_for_line("SIGTERM: ending pid ");
    assert_eq!(pending_signals(&unrelated), pending_before, "{job}");
    job.signal_to(container_init_pid(&job), Signal::SIGTERM);
    job.wait().expect_exit_code(143);
}

#[test]
fn many_orphans_are_reaped() {
    if is_skipped() {
        return;
    }
    let count = if harness::is_soak() { 1_000 } else { 100 };
    // Each `true` loses its parent at once: those of the worker come to the agent, those from outside to PID 1.
    let many = format!("i=0; while [ $i -lt {count} ]; do setsid --fork true; i=$((i+1)); done");
    let line = format!("{}; echo ready; exec sleep 1111", many.replace('$', "$$"));
    let job = in_container(Launch::standalone(Name::Rankrun, 1)).shell(&line).start();
    job.wait_for_line("ready");
    let target = container_init_pid(&job).to_string();
    let entered = Command::new("nsenter")
        .args(["--target", &target, "--pid", "--mount", "sh", "-c", &many])
        .status()
        .expect("nsenter is installed");
    assert!(entered.success());
    let of_the_launcher = job.children_of(container_init_pid(&job));
    for parent in of_the_launcher.into_iter().chain([container_init_pid(&job)]) {
        let orphans = job.children_of(parent).into_iter().filter(|pid| harness::is_zombie_or_gone(*pid));
        for orphan in orphans.filter_map(Process::open) {
            assert!(orphan.reaped_within(Duration::from_secs(30)), "a zombie is left\n{job}");
        }
    }
    job.signal_to(container_init_pid(&job), Signal::SIGTERM);
    job.wait().expect_exit_code(143);
}

/// Beside the look at the devices, the run, the second signal and the leftovers, which have tests of their own.
#[test]
fn signal_ends_job_in_run_and_restart_wait() {
    if is_skipped() {
        return;
    }
    let again = ["--max-restarts", "3", "--restart-delay", "1h"];
    // How many workers, the options, the steps, and what to wait for before the signal.
    let phases: [(usize, &[&str], &[&str], &str); 2] = [
        (8, &[], &["alive", "forever"], "alive rank="),
        (1, &again, &["alive", "exit=3"], "starting all workers again in "),
    ];
    for (workers, options, steps, awaited_text) in phases {
        let launch = in_container(Launch::standalone(Name::Rankrun, workers).args(options.iter().copied()));
        let job = launch.worker(steps.iter().copied()).start();
        job.wait_for_line(awaited_text);
        job.signal_to(container_init_pid(&job), Signal::SIGTERM);
        job.wait().expect_exit_code(143).expect_absent("attempt=1");
    }
}

#[test]
fn signal_during_failure_stop_prevents_restart() {
    if is_skipped() {
        return;
    }
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--grace", "3600", "--max-restarts", "3"]);
    let steps = ["catch", "alive", "rank0:read", "rank0:exit=3", "signal", "signal", "exit=0"];
    let mut job = in_container(launch.stdin_open()).worker(steps).start();
    job.wait_for_lines("alive rank=", 2);
    job.type_text("\n");
    // Of the stop after the failure; the second one is the user's.
    job.wait_for_line("got SIGTERM rank=1");
    job.signal_to(container_init_pid(&job), Signal::SIGTERM);
    let outcome = job.wait();
    outcome.expect_exit_code(143).expect_absent("attempt=1");
    assert_eq!(outcome.lines_with("got SIGTERM rank=1").len(), 2, "{outcome}");
}
