//! Stacks of workers without a handler: py-spy and eu-stack read them, where the kernel permits it.
#![expect(
    clippy::disallowed_methods,
    reason = "a fake tool stands before those in `PATH`, and a stop has a limit"
)]

use std::time::{Duration, Instant};

use harness::{Launch, Name, Scratch, fixture};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::stacks::{Workers, calls, expect_one_of_three, stop};

/// What eu-stack 0.188 printed of a worker; `$6` is the process id.
const RECORDED: &str = r#"#!/bin/sh
echo "PID $6 - process
TID $6:
#0  0x00007f1982792503 clock_nanosleep@GLIBC_2.2.5 - /usr/lib/x86_64-linux-gnu/libc.so.6
    ../sysdeps/unix/sysv/linux/clock_nanosleep.c:71:10
#1  0x000055b56dac54af worker::reduce::h0123456789abcdef - /home/u/worker
    /home/u/src/main.rs:17:5"
"#;

/// What it prints where the kernel refuses it.
const REFUSED: &str =
    "#!/bin/sh\necho \"eu-stack: dwfl_thread_getframes tid $6: Operation not permitted\" >&2; exit 2\n";

/// `PATH` with this program before those of the machine.
fn path_with_eu_stack(scratch: &Scratch, content: &str) -> String {
    let folder = scratch.folder("tools", 0o700);
    let _ = scratch.file("tools/eu-stack", content, 0o700);
    format!("{folder}:{}", std::env::var("PATH").expect("a machine has programs"))
}

#[track_caller]
fn absence<'a>(worker: &'a Value, field: &str) -> &'a str {
    worker[field].as_str().unwrap_or_else(|| panic!("`{field}` in {worker}"))
}

/// A launcher and tools without CAP_SYS_PTRACE.
fn without_ptrace(launch: Launch) -> Launch {
    launch.under(["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"])
}

#[test]
fn python_workers_without_hook_show_their_python_stack() {
    let Some(workers) = Workers::new() else { return };
    let job = workers.start(&["--no-hooks"], &["sleeps", "waits"]);
    let stacks = workers.stacks();
    assert_eq!(calls(&stacks[0]), ["sleeps", "<module>"], "{}", stacks[0]);
    assert_eq!(calls(&stacks[1])[2..], ["waits", "<module>"], "{}", stacks[1]);
    assert_eq!(stacks[1]["python"].as_array().map(Vec::len), Some(2));
    for worker in &stacks {
        assert_eq!((&worker["python_source"], &worker["python_absence"]), (&"py-spy".into(), &Value::Null));
    }
    let text = workers.runtime.ask(&["stacks", &workers.runtime.job_id()]).stdout();
    assert!(text.starts_with("rank 0: sleeps (program.py:6)\n"), "{text}");
    assert!(text.contains("\nrank 1: waits (program.py:29), in "), "{text}");
    stop(job);
}

#[test]
fn native_calls_of_program_without_python_are_shown_and_folded() {
    let Some(workers) = Workers::new() else { return };
    let path = path_with_eu_stack(&workers.runtime.0, RECORDED);
    let launch = workers.launch(Name::Rankrun, 2).env("PATH", path);
    let job = launch.shell("echo ready; exec sleep 1000").start();
    job.wait_for_lines("ready", 2);
    job.wait_until("the workers sleep", || {
        let outcome = workers.runtime.ask(&["stacks", &job.pid().to_string()]);
        outcome.stdout().contains("sleeps in ")
    });
    let text = workers.runtime.ask(&["stacks", &workers.runtime.job_id()]).stdout();
    assert!(
        text.starts_with("ranks 0, 1: worker::reduce (main.rs:17), in clock_nanosleep (libc.so.6), "),
        "{text}"
    );
    assert!(text.ends_with("\n    /home/u/src/main.rs:17 in worker::reduce\n"), "{text}");
    let stacks = workers.stacks();
    assert_eq!(stacks[1]["native_absence"], Value::Null);
    let call = &stacks[1]["threads"][0]["native"][1];
    assert_eq!((&call["function"], &call["line"]), (&"worker::reduce".into(), &17.into()), "{call}");
    stop(job);
}

#[test]
fn missing_eu_stack_costs_one_line() {
    let Some(workers) = Workers::new() else { return };
    let launch = workers.launch(Name::Rankrun, 1).env("PATH", "/nonexistent");
    let job = launch.args(["--no-python", "/bin/sh", "-c", "echo ready; exec /bin/sleep 1000"]).start();
    job.wait_for_line("ready");
    job.wait_until("the job has a socket", || {
        workers.runtime.ask(&["status", &job.pid().to_string()]).status.code() == Some(0)
    });
    let text = workers.runtime.ask(&["stacks", &workers.runtime.job_id()]).stdout();
    assert!(text.ends_with("\n    no native stack: eu-stack (elfutils) is not installed\n"), "{text}");
    stop(job);
}

/// The kernel protects a process that is not dumpable from all without CAP_SYS_PTRACE.
#[test]
fn refusal_of_the_kernel_costs_one_line_each() {
    let Some(workers) = Workers::new() else { return };
    let path = path_with_eu_stack(&workers.runtime.0, REFUSED);
    let launch = workers.launch(Name::Rankrun, 1).args(["--no-hooks"]).env("PATH", path);
    let job = workers.start_launch(without_ptrace(launch), &["is_not_dumpable"]);
    let stacks = workers.stacks();
    let refused = "ptrace is not permitted (";
    assert!(absence(&stacks[0], "native_absence").starts_with(refused), "{}", stacks[0]);
    let python = absence(&stacks[0], "python_absence");
    assert!(
        python.contains(&format!("its program has no hook, and py-spy does not read it: {refused}")),
        "{python}"
    );
    // The kernel tells the state all the same.
    assert_eq!(stacks[0]["threads"][0]["state"], "S");
    stop(job);
}

#[test]
fn seccomp_filter_is_named_as_the_cause() {
    let Some(workers) = Workers::new() else { return };
    let path = path_with_eu_stack(&workers.runtime.0, REFUSED);
    let wrapper = fixture("seccomp-exec").into_os_string();
    let launch = workers.launch(Name::Rankrun, 1).args(["--no-hooks"]).env("PATH", path);
    let launch = launch.under([wrapper, "EPERM".into(), "ptrace,process_vm_readv".into()]);
    let job = workers.start_launch(launch, &["sleeps"]);
    let stacks = workers.stacks();
    let native = absence(&stacks[0], "native_absence");
    assert_eq!(
        native,
        "ptrace is not permitted (a seccomp filter, as a container has it, probably refuses it)"
    );
    stop(job);
}

/// With the program of the machine.
#[test]
fn eu_stack_shows_the_calls_of_a_rust_worker() {
    let Some(workers) = Workers::new() else { return };
    let job = workers.launch(Name::Rankrun, 2).worker(["alive", "forever"]).start();
    job.wait_for_lines("alive", 2);
    job.wait_until("the job has a socket", || {
        workers.runtime.ask(&["status", &job.pid().to_string()]).status.code() == Some(0)
    });
    let stacks = workers.stacks();
    for worker in &stacks {
        assert_eq!(worker["native_absence"], Value::Null, "{worker}");
        let calls = worker["threads"][0]["native"].as_array().expect("a list");
        let has_main = calls.iter().any(|call| call["function"].as_str().expect("a name").contains("main"));
        assert!(has_main, "{worker}");
    }
    stop(job);
}

/// The filter kills a worker that names its tracer, which a kernel without Yama would not show.
#[test]
fn workers_name_the_launcher_as_tracer_only_with_the_option() {
    if Workers::new().is_none() {
        return;
    }
    let run = |options: &[&str]| {
        let wrapper = fixture("seccomp-exec").into_os_string();
        let launch = Launch::standalone(Name::Rankrun, 1).args(options.iter().copied());
        launch.under([wrapper, "KILL".into(), "PR_SET_PTRACER".into()]).worker(["alive"]).run()
    };
    run(&[]).expect_exit_code(0);
    run(&["--allow-ptrace"]).expect_stderr("SIGSYS");
    let named = Launch::standalone(Name::Rankrun, 1).args(["--allow-ptrace"]).worker(["alive"]).run();
    named.expect_exit_code(0);
}

/// A tool that hangs costs neither the stack of the other tool nor the SIGKILL.
#[test]
fn tool_that_hangs_delays_no_stop() {
    const GRACE: Duration = Duration::from_secs(1);
    let Some(workers) = Workers::new() else { return };
    let path = path_with_eu_stack(&workers.runtime.0, "#!/bin/sh\nexec sleep 1000\n");
    let stop_job = || {
        let launch = workers.launch(Name::Rankrun, 1).args(["--no-hooks", "--shutdown-timeout", "1"]);
        let job = workers.start_launch(launch.env("PATH", &path), &["ignores_stop"]);
        let began = Instant::now();
        job.signal(Signal::SIGTERM);
        let outcome = job.wait();
        assert!(began.elapsed() < GRACE + Duration::from_secs(2), "{outcome}");
        outcome.expect_exit_code(143).stderr()
    };
    let stack = "SIGKILL follows; the workers that do not stop:\nrank 0: sleeps (program.py:6)\n";
    expect_one_of_three(stop_job, &[stack]);
}
