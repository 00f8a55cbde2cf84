//! A start that fails half-way stops what it had started.

use std::time::Duration;

use harness::{Gate, Launch, Name, Process, Scratch, field, is_rankrun};

use super::{SWEEP_TIMEOUT, family_steps, launch_under_subreaper};

/// A user id without a user, so that the kernel counts the processes of this launch alone.
const TEST_UID: u32 = 23_471;
/// Threads and processes of the launcher before the first worker, at most.
const LAUNCHER_MAX_TASKS: u32 = 6;

#[test]
fn process_limit_reached_during_start_leaves_nothing() {
    if !is_rankrun() {
        return;
    }
    let mut half_way = 0;
    for limit in 1..=LAUNCHER_MAX_TASKS + 4 {
        let limit = format!("--nproc={limit}:{limit}");
        let launch = Launch::standalone(Name::Rankrun, 4).env("RANKRUN_GRACE", "0.2").user(TEST_UID);
        let outcome = launch.under(["prlimit", &limit]).shell("trap '' TERM; read line; exit 0").run();
        let failed_at = |rank: u32| !outcome.lines_with(&format!("cannot start rank {rank}")).is_empty();
        half_way += u32::from((1..4).any(failed_at));
        assert!(outcome.status.success() || outcome.stderr().contains("error:"), "{outcome}");
        outcome.expect_absent("panicked");
    }
    assert!(half_way > 0, "no limit let some of the workers start");
}

/// The folders of the logs are there, and descriptors for some of the workers.
#[test]
fn descriptor_limit_reached_during_start_leaves_nothing() {
    if !is_rankrun() {
        return;
    }
    for name in Name::for_shared_behaviour() {
        let scratch = Scratch::new();
        let launch = launch_under_subreaper(*name, 32).under(["sh", "-c", "ulimit -n 40; exec \"$@\"", "sh"]);
        let launch = launch.args(["--log-dir", &scratch.at("logs"), "-t", "3"]).env("RANKRUN_GRACE", "0.2");
        let job = launch.worker(family_steps(&["alive"])).start();
        job.wait_for_line("error:");
        // The launcher itself kills the workers after their grace. The stacks before that may take two seconds more.
        job.ends_within(Duration::from_millis(200) + SWEEP_TIMEOUT + Duration::from_secs(3));
        job.wait().expect_exit_code(1);
    }
}

/// A daemon of a worker uses up the store's descriptors. The sweep that looks for the daemon needs descriptors too.
#[test]
fn daemon_holding_all_descriptors_is_ended_on_restart_and_exit() {
    if !is_rankrun() {
        return;
    }
    for (name, restarts) in Name::for_shared_behaviour().iter().flat_map(|name| [(*name, "0"), (*name, "1")])
    {
        let gate = Gate::closed();
        let launch = Launch::standalone(name, 1).under(["sh", "-c", "ulimit -n 64; exec \"$@\"", "sh"]);
        let launch = launch.args(["--max-restarts", restarts]).stdin_open();
        let last = format!("attempt1:{}", gate.step());
        let steps =
            ["attempt0:helper=clinging-daemon", "attempt0:read", "attempt0:exit=3", "print=again", &last];
        let mut job = launch.worker(steps.into_iter().chain(["exit=0"])).start();
        let line = job.wait_for_line("process=clinging-daemon");
        let pid = field(&line, "pid").and_then(|pid| pid.parse().ok()).expect("the daemon said its pid");
        let daemon = Process::open(pid).expect("the daemon lives");
        job.type_text("\n");
        if restarts == "1" {
            job.wait_for_line("again");
        }
        job.expect_processes_gone(&[daemon], SWEEP_TIMEOUT);
        if restarts == "1" {
            gate.open(1);
        }
        job.wait().expect_exit_code(if restarts == "1" { 0 } else { name.code(3) });
    }
}

/// The first worker takes the program away from the others.
#[test]
fn program_deleted_during_start_leaves_nothing() {
    if !is_rankrun() {
        return;
    }
    for name in Name::for_shared_behaviour() {
        let scratch = Scratch::new();
        let program = scratch.file("train", "#!/bin/sh\nrm -f \"$0\"\ntrap '' TERM\nsleep 1111\n", 0o755);
        let launch =
            launch_under_subreaper(*name, 64).args(["--no-python", &program]).env("RANKRUN_GRACE", "0.2");
        let outcome = launch.run();
        assert!(!outcome.status.success(), "{outcome}");
        outcome.expect_absent("panicked");
    }
}
