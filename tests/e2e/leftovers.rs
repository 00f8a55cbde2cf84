//! What outlives a success: it is named, waited for, and stopped, unless it says that it wants to stay.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use harness::{Gate, Job, Launch, Name, Scratch, field, fixture, is_rankrun, print_notice};
use nix::sys::signal::Signal;

const SWEEP_TIMEOUT: Duration = Duration::from_secs(1);
/// A leftover that stops for nothing but SIGKILL.
const STUBBORN: &str = "trap '' TERM; setsid --fork sleep 1111";

/// A job of one worker: a shell that runs this line and succeeds.
fn launch_shell_line(name: Name, options: &[&str], line: &str) -> Launch {
    Launch::standalone(name, 1).args(options.iter().copied()).shell(line)
}

/// A leftover that says by a file that it has outlived the launcher.
fn outliving_leftover_line(environment: &str, proof: &str) -> String {
    let waits = format!("while kill -0 $$agent 2>/dev/null; do sleep 0.02; done; : > {proof}");
    format!("{environment} agent=$$PPID setsid --fork sh -c '{waits}' < /dev/null > /dev/null 2>&1")
}

#[test]
fn leftover_is_named_and_awaited() {
    if !is_rankrun() {
        return;
    }
    let launch = Launch::standalone(Name::Rankrun, 1).stdin_open();
    let mut job = launch.shell("setsid --fork sh -c 'read line; echo uploaded'").start();
    let line = job.wait_for_line("waiting up to 30 s for what they left behind");
    assert!(line.contains(" `sh -c read line; echo uploaded`; a signal ends the wait"), "{line}");
    job.type_text("\n");
    let outcome = job.wait();
    outcome.expect_exit_code(0).expect_stdout("uploaded").expect_absent("ending pid");
}

#[test]
fn leftover_is_stopped_after_leftover_grace() {
    if !is_rankrun() {
        return;
    }
    let launch = launch_shell_line(Name::Rankrun, &["--leftover-grace", "0.3"], "setsid --fork sleep 1111");
    let outcome = launch.run();
    outcome
        .expect_exit_code(0)
        .expect_stderr("waiting up to 0.3 s")
        .expect_stderr("still there: ending pid ");
    outcome
        .expect_stderr("`sleep 1111`; SIGKILL follows in 30 s (RANKRUN_KEEP=1")
        .expect_absent("killing pid");
}

#[test]
fn leftover_ignoring_sigterm_is_killed_after_stop_grace() {
    if !is_rankrun() {
        return;
    }
    let options = ["--leftover-grace", "0", "--grace", "0.2"];
    let outcome = launch_shell_line(Name::Rankrun, &options, STUBBORN).run();
    outcome.expect_exit_code(0).expect_stderr("killing pid ").expect_stderr("still there after SIGTERM");
}

#[test]
fn time_limit_ends_leftover_wait() {
    if !is_rankrun() {
        return;
    }
    let options = ["--time-limit", "4", "--grace", "0.2"];
    let outcome = launch_shell_line(Name::Rankrun, &options, STUBBORN).run();
    outcome.expect_exit_code(0).expect_stderr("a signal or the time limit ends the wait");
    outcome.expect_stderr("the time limit is over: ending pid ").expect_stderr("killing pid ");
}

#[test]
fn leftover_with_keep_variable_survives() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let proof = scratch.at("proof");
    let launch = launch_shell_line(
        Name::Rankrun,
        &["--leftover-grace", "0"],
        &outliving_leftover_line("RANKRUN_KEEP=1", &proof),
    );
    launch.run().expect_exit_code(0).expect_absent("ending pid");
    assert!(Path::new(&proof).exists(), "it was ended");
}

#[test]
fn torchrun_name_keeps_leftovers_unless_grace_variable_is_set() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let proof = scratch.at("proof");
    launch_shell_line(Name::Torchrun, &[], &outliving_leftover_line("", &proof))
        .run()
        .expect_exit_code(0)
        .expect_absent("left behind");
    assert!(Path::new(&proof).exists(), "it was ended");
    let launch =
        launch_shell_line(Name::Torchrun, &[], "setsid --fork sleep 1111").env("RANKRUN_LEFTOVER_GRACE", "0");
    launch.run().expect_exit_code(0).expect_stderr("still there: ending pid ");
}

#[test]
fn job_failure_ends_leftover_with_keep_variable() {
    if !is_rankrun() {
        return;
    }
    let line = "RANKRUN_KEEP=1 setsid --fork sleep 1111; exit 3";
    for name in Name::both() {
        launch_shell_line(*name, &[], line).run().expect_exit_code(name.code(3)).expect_absent("left behind");
    }
}

#[test]
fn leftover_of_succeeded_worker_ends_with_failed_job() {
    if !is_rankrun() {
        return;
    }
    let steps = ["rank0:helper=daemon", "rank0:print=left", "rank0:exit=0", "rank1:read", "exit=3"];
    let mut job = Launch::standalone(Name::Rankrun, 2).stdin_open().worker(steps).start();
    job.wait_for_line("alive rank=0");
    job.wait_for_line("left");
    job.type_text("\n");
    job.wait().expect_exit_code(3).expect_absent("left behind");
}

/// A job that waits for a stubborn leftover.
#[track_caller]
fn start_job_awaiting_leftover(options: &[&str]) -> Job {
    let job = launch_shell_line(Name::Rankrun, options, STUBBORN).start();
    job.wait_for_line("waiting up to 30 s");
    job
}

#[test]
fn signal_ends_leftover_wait_and_second_signal_kills() {
    if !is_rankrun() {
        return;
    }
    let job = start_job_awaiting_leftover(&["--grace", "3600"]);
    job.signal(Signal::SIGTERM);
    job.wait_for_line("SIGTERM: ending pid ");
    job.signal(Signal::SIGTERM);
    job.wait().expect_exit_code(143).expect_stderr("second signal received");
}

#[test]
fn launcher_killed_during_leftover_wait_leaves_nothing() {
    if !is_rankrun() {
        return;
    }
    for kill_agent in [false, true] {
        let job = start_job_awaiting_leftover(&[]);
        let pid = if kill_agent { job.only_child_of(job.pid()) } else { job.pid() };
        job.signal_to(pid, Signal::SIGKILL);
        job.expect_no_processes_within(SWEEP_TIMEOUT);
    }
}

/// Keeps a process after its death, until the tracer ends. `None` where the kernel forbids it.
#[expect(clippy::disallowed_methods, reason = "a process outside of the job")]
fn trace(pid: &str) -> Option<Child> {
    let tracer =
        Command::new(fixture("tracer")).arg(pid).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut tracer = tracer.expect("the fixture is built");
    let mut line = String::new();
    let output = tracer.stdout.as_mut().expect("it is a pipe");
    BufReader::new(output).read_line(&mut line).expect("a line or the end");
    if line.is_empty() {
        print_notice("skipped: a process cannot be traced here");
    }
    (!line.is_empty()).then_some(tracer)
}

#[test]
fn leftover_that_survives_sigkill_is_awaited_once() {
    if !is_rankrun() {
        return;
    }
    let gate = Gate::closed();
    let steps = ["attempt0:helper=daemon".to_owned(), gate.step(), "attempt<2:exit=3".to_owned()];
    let job = Launch::standalone(Name::Rankrun, 1).args(["--max-restarts", "2"]).worker(steps).start();
    let line = job.wait_for_line("process=daemon");
    let Some(mut tracer) = trace(field(&line, "pid").expect("a pid")) else { return };
    gate.open(3);
    job.wait_for_line("survived SIGKILL");
    // The last generation succeeds, and the launcher does not wait for the leftover either.
    let outcome = job.wait();
    outcome.expect_exit_code(0).expect_absent("waiting up to 30 s");
    assert_eq!(outcome.lines_with("to end after SIGKILL").len(), 1, "{outcome}");
    assert_eq!(outcome.lines_with("survived SIGKILL").len(), 1, "{outcome}");
    drop(tracer.stdin.take());
    tracer.wait().expect("the tracer ends with its input");
}
