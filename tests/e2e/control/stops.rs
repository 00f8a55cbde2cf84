//! `rankrun stop`, and signals beside it.

use std::os::unix::process::ExitStatusExt;

use harness::{Job, Launch, Name, Process, Scratch, can_use_namespaces};
use nix::sys::signal::Signal;

use super::Runtime;
use crate::frozen_disk::with_frozen_folder;
use crate::hanging_calls::lacks_fuse;

#[test]
fn stop_ends_job_as_sigterm_does_without_restart() {
    let Some(runtime) = Runtime::new() else { return };
    let job = runtime.job(&["--max-restarts", "3"]);
    let stopped = runtime.ask(&["stop", &runtime.job_id(), "--wait"]);
    stopped.expect_exit_code(0).expect_stdout("has ended");
    let outcome = job.wait();
    assert!(runtime.folders().is_empty(), "{outcome}");
    outcome.expect_exit_code(143).expect_stderr("asks for a stop").expect_stderr("SIGTERM: waiting up to");
    assert_eq!(outcome.stdout(), "ready\nready\n", "{outcome}");
}

/// The agent closes its socket before its end, which a frozen disk puts off.
#[test]
fn stop_that_waits_returns_after_the_end_of_the_launcher() {
    let Some(runtime) = Runtime::new().filter(|_| !lacks_fuse()) else { return };
    let scratch = Scratch::new();
    let folder = scratch.folder("logs", 0o700);
    let launch = runtime.launch(1).args(["--log-dir", &folder]).shell("echo ready");
    let job = with_frozen_folder(launch, &folder).start();
    job.wait_until("the job has a socket", || runtime.socket().is_some());
    let launcher = Process::open(job.pid()).expect("the launcher waits");
    runtime.ask(&["stop", &runtime.job_id(), "--wait"]).expect_exit_code(0).expect_stdout("has ended");
    assert!(!launcher.is_alive(), "{job}");
    job.wait().expect_exit_code(143);
}

/// The pid that the job tells is another process here.
#[test]
fn stop_that_waits_returns_for_job_of_other_pid_namespace() {
    let Some(runtime) = Runtime::new().filter(|_| can_use_namespaces()) else { return };
    for launcher_pid in [1, 2] {
        let launch = runtime.launch(1).under(["unshare", "--pid", "--fork"]);
        let launch = match launcher_pid {
            1 => launch,
            _ => launch.under(["sh", "-c", "\"$@\"; exit $?", "sh"]),
        };
        let job = runtime.start_until_ready(launch.shell("echo ready; exec sleep 1000"), 1);
        let id = runtime.job_id();
        assert_eq!(runtime.status(&["status", &id, "--json"])["launcher_pid"], launcher_pid);
        runtime.ask(&["stop", &id, "--wait"]).expect_exit_code(0).expect_stdout("has ended");
        job.wait().expect_exit_code(143);
        runtime.expect_empty();
    }
}

/// The kernel shows the command no pid of the job.
#[test]
fn stop_that_waits_in_other_pid_namespace_returns_at_the_end() {
    let Some(runtime) = Runtime::new().filter(|_| can_use_namespaces()) else { return };
    let job = runtime.job(&[]);
    let stop = Launch::new(Name::Rankrun).env("XDG_RUNTIME_DIR", runtime.path());
    let stop = stop.under(["unshare", "--pid", "--fork"]).args(["stop", &runtime.job_id(), "--wait"]);
    stop.run().expect_exit_code(0).expect_stdout("has ended");
    job.wait().expect_exit_code(143);
    runtime.expect_empty();
}

/// Guard and agent are killed together, so no process of the job removes its folder.
#[test]
fn stop_that_waits_removes_folder_of_killed_job() {
    let Some(runtime) = Runtime::new() else { return };
    let launch = runtime.launch(1).args(["--grace", "600"]);
    let launch = launch.shell("trap 'echo told' TERM; echo ready; while :; do sleep 0.1; done");
    let job = runtime.start_until_ready(launch, 1);
    let (id, agent) = (runtime.job_id(), job.only_child_of(job.pid()));
    std::thread::scope(|scope| {
        let stopped = scope.spawn(|| runtime.ask(&["stop", &id, "--wait"]));
        job.wait_for_line("told");
        job.signal_to(agent, Signal::SIGSTOP);
        job.signal(Signal::SIGKILL);
        job.signal_to(agent, Signal::SIGKILL);
        stopped.join().expect("no panic").expect_exit_code(0).expect_stdout("has ended");
    });
    runtime.expect_empty();
    drop(job.wait());
}

#[test]
fn second_stop_over_socket_kills_at_once() {
    let Some(runtime) = Runtime::new() else { return };
    let launch = runtime.launch(1).args(["--grace", "600"]);
    let launch = launch.shell("trap 'echo told' TERM; echo ready; while :; do sleep 0.1; done");
    let job = runtime.start_until_ready(launch, 1);
    let id = runtime.job_id();
    runtime.ask(&["stop", &id]).expect_exit_code(0);
    job.wait_for_line("told");
    runtime.ask(&["status", &id, "--check"]).expect_exit_code(1);
    let refused = runtime.ask(&["restart", &id]);
    refused.expect_exit_code(1).expect_stderr("the job is being stopped");
    runtime.stop(job, &id);
}

/// The workers have succeeded, and the agent waits for what they have left.
#[test]
fn stop_ends_wait_for_leftovers() {
    let Some(runtime) = Runtime::new() else { return };
    let launch = runtime.launch(1).env("RANKRUN_LEFTOVER_GRACE", "600");
    let job = launch.shell("setsid sleep 1000 > /dev/null 2>&1 & echo ready").start();
    job.wait_for_line("waiting up to 600 s");
    let id = runtime.job_id();
    assert_eq!(runtime.status(&["status", &id, "--json"])["state"], "ending");
    runtime.ask(&["stop", &id, "--wait"]).expect_exit_code(0);
    job.wait().expect_exit_code(143);
    runtime.expect_empty();
}

/// A worker that says `told` and goes on, in a job that shows each input of its state.
fn start_stubborn_job(runtime: &Runtime) -> Job {
    let launch = runtime.launch(1).args(["--grace", "600", "-vv"]);
    // `-vv` shows the command, in which no word of the worker may be found.
    let launch = launch.shell(r#"trap 'echo to""ld' TERM; echo re""ady; while :; do sleep 0.1; done"#);
    runtime.start_until_ready(launch, 1)
}

/// Kubernetes runs a `preStop` hook, and then sends SIGTERM to the container.
#[test]
fn stop_and_first_signal_are_one_stop() {
    let Some(runtime) = Runtime::new() else { return };
    let job = start_stubborn_job(&runtime);
    let id = runtime.job_id();
    runtime.ask(&["stop", &id]).expect_exit_code(0);
    job.wait_for_line("told");
    job.signal(Signal::SIGTERM);
    job.wait_for_lines("input StopRequested { signal: SIGTERM, is_second: false }", 2);
    runtime.stop(job, &id).expect_stderr("is_second: true");
}

#[test]
fn signal_and_first_stop_are_one_stop() {
    let Some(runtime) = Runtime::new() else { return };
    let job = start_stubborn_job(&runtime);
    job.signal(Signal::SIGTERM);
    job.wait_for_line("told");
    runtime.ask(&["stop", &runtime.job_id()]).expect_exit_code(0);
    job.wait_for_lines("input StopRequested { signal: SIGTERM, is_second: false }", 2);
    job.signal(Signal::SIGINT);
    job.wait().expect_exit_code(143).expect_stderr("is_second: true");
    runtime.expect_empty();
}

#[test]
fn interrupted_command_says_what_it_waits_for() {
    let Some(runtime) = Runtime::new() else { return };
    let launch = runtime.launch(1).args(["--grace", "600"]);
    let launch = launch.shell("trap 'echo told' TERM; echo ready; while :; do sleep 0.1; done");
    let job = runtime.start_until_ready(launch, 1);
    let id = runtime.job_id();
    let command = Launch::new(Name::Rankrun).env("XDG_RUNTIME_DIR", runtime.path());
    let stop = command.args(["stop", &id, "--wait"]).start();
    job.wait_for_line("told");
    stop.signal(Signal::SIGINT);
    let interrupted = stop.wait();
    assert_eq!(interrupted.status.signal(), Some(libc::SIGINT), "{interrupted}");
    interrupted.expect_stderr("rankrun: SIGINT: gave up waiting for");
    runtime.stop(job, &id);
}

#[test]
fn answer_that_cannot_be_written_is_a_failure() {
    let Some(runtime) = Runtime::new() else { return };
    let full = ["sh", "-c", "exec \"$@\" > /dev/full", "sh"];
    let launch = Launch::new(Name::Rankrun).env("XDG_RUNTIME_DIR", runtime.path()).under(full);
    launch.args(["ls"]).run().expect_exit_code(1).expect_stderr("cannot write the answer");
}
