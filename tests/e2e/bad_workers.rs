//! Workers that behave badly: nothing of them is left, and the launcher keeps its word.

use std::time::Duration;

use harness::{Gate, Launch, Name, Process, Scratch, field, is_rankrun, is_soak};
use nix::sys::signal::Signal;

/// All processes of an ended job are gone within this time.
const LIMIT: Duration = Duration::from_secs(1);
/// Far above what anything here takes.
const PROMPT: Duration = Duration::from_secs(30);

/// The process that said so in this line.
#[track_caller]
fn process_from_line(line: &str) -> Process {
    let pid = field(line, "pid").and_then(|pid| pid.parse().ok()).expect("it said its pid");
    Process::open(pid).expect("it lives")
}

#[test]
fn worker_with_closed_stdio_keeps_its_exit_code() {
    for name in Name::both() {
        for status in [0, 3] {
            let gate = Gate::closed();
            let steps = ["alive", "close-stdio", &gate.step(), &format!("exit={status}")];
            let job = Launch::standalone(*name, 2).worker(steps).start();
            job.wait_for_lines("alive rank=", 2);
            gate.open(2);
            job.wait().expect_exit_code(if status == 0 { 0 } else { name.code(status) });
        }
    }
}

#[test]
fn worker_ignoring_sigterm_is_killed_after_grace() {
    for name in Name::for_shared_behaviour() {
        let launch = Launch::standalone(*name, 2).args(["--shutdown-timeout", "1"]);
        let job = launch.worker(["deaf", "alive", "forever"]).start();
        job.wait_for_lines("alive rank=", 2);
        job.signal(Signal::SIGTERM);
        job.wait().expect_exit_code(name.code(143));
    }
}

#[test]
fn odd_process_name_does_not_hide_process() {
    if !is_rankrun() {
        return;
    }
    let odd = ["catch", "odd-name", "helper=odd-daemon", "alive"];
    for of_the_guard in [true, false] {
        let job = Launch::standalone(Name::Rankrun, 2).worker(odd.into_iter().chain(["forever"])).start();
        job.wait_for_lines("alive rank=", 4);
        let victim = if of_the_guard { job.pid() } else { job.only_child_of(job.pid()) };
        job.signal_to(victim, Signal::SIGKILL);
        job.expect_no_processes_within(LIMIT);
    }
    let launch = Launch::standalone(Name::Rankrun, 1).args(["--max-restarts", "1"]).stdin_open();
    let mut job = launch.worker(odd.into_iter().chain(["read", "exit=3"])).start();
    let first = process_from_line(&job.wait_for_line("process=worker"));
    let daemon = process_from_line(&job.wait_for_line("process=odd-daemon"));
    job.type_text("\n");
    job.wait_for_lines("attempt=1", 2);
    job.expect_processes_gone(&[first, daemon], Duration::ZERO);
    job.type_text("\n");
    // The second one's daemon is looked for by the harness.
    job.wait().expect_exit_code(3);
}

#[test]
fn leftover_with_odd_process_name_is_stopped() {
    if !is_rankrun() {
        return;
    }
    let launch = Launch::standalone(Name::Rankrun, 1).args(["--leftover-grace", "0", "--grace", "0"]);
    let outcome = launch.worker(["helper=odd-daemon"]).run();
    outcome.expect_exit_code(0).expect_stderr("ending pid ");
}

#[test]
fn process_that_left_its_group_is_stopped_with_the_generation() {
    if !is_rankrun() {
        return;
    }
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--max-restarts", "1"]).stdin_open();
    let steps =
        ["helper=group", "alive", "rank0:attempt<1:read", "rank0:attempt<1:exit=4", "attempt0:forever"];
    let mut job = launch.worker(steps).start();
    let helpers: Vec<_> =
        job.wait_for_lines("process=group", 2).iter().map(|line| process_from_line(line)).collect();
    job.wait_for_lines("process=worker", 2);
    job.type_text("\n");
    job.wait_for_lines("attempt=1", 4);
    job.expect_processes_gone(&helpers, Duration::ZERO);
    // After the success the helpers of this generation are leftovers.
    job.wait_for_line("for what they left behind");
    job.signal(Signal::SIGTERM);
    job.wait_for_line("ending pid ");
    job.signal(Signal::SIGTERM);
    job.wait().expect_exit_code(143);
}

#[test]
fn worker_that_execs_with_empty_environment_is_stopped() {
    if !is_rankrun() {
        return;
    }
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let line = "exec env -i sh -c 'trap : TERM; echo pid=$$$$; while :; do sleep 1111; done'";
        let job = Launch::standalone(Name::Rankrun, 1).args(["--grace", "0.2"]).shell(line).start();
        let worker = process_from_line(&job.wait_for_line("pid="));
        job.signal(signal);
        job.expect_processes_gone(&[worker], PROMPT);
        let outcome = job.wait();
        assert!(!outcome.status.success(), "{outcome}");
    }
}

#[test]
fn daemonized_process_is_waited_for_as_leftover() {
    if !is_rankrun() {
        return;
    }
    let gate = Gate::closed();
    let line = format!("setsid --fork sh -c 'head -c 1 {}; echo done'", gate.path().display());
    let job = Launch::standalone(Name::Rankrun, 2).shell(&line).start();
    job.wait_for_line("for what they left behind");
    gate.open(2);
    let outcome = job.wait();
    outcome.expect_exit_code(0);
    assert_eq!(outcome.stdout().matches("done").count(), 2, "{outcome}");
}

#[test]
fn endless_line_does_not_grow_launcher_memory() {
    if !is_rankrun() {
        return;
    }
    let mib = if is_soak() { 4_096 } else { 100 };
    let line = format!("head -c {mib}M /dev/zero; grep VmHWM /proc/$$PPID/status >&2");
    let quiet = ["sh", "-c", "exec \"$@\" > /dev/null", "sh"];
    let launch = Launch::standalone(Name::Rankrun, 1).under(quiet).limit(Duration::from_secs(300));
    let outcome = launch.shell(&line).run();
    outcome.expect_exit_code(0);
    let line = outcome.lines_with("VmHWM:").remove(0);
    let peak = line.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok());
    assert!(peak.is_some_and(|kb| kb < 96 * 1024), "{line}");
}

#[test]
fn low_descriptor_limit_works_or_is_reported() {
    if !is_rankrun() {
        return;
    }
    for name in Name::for_shared_behaviour() {
        for (limit, is_enough) in [(96, true), (64, false), (24, false)] {
            let scratch = Scratch::new();
            let line = format!("ulimit -n {limit}; exec \"$@\"");
            let launch = Launch::standalone(*name, 8).under(["sh", "-c", &line, "sh"]);
            let launch = launch.args(["--log-dir", &scratch.at("logs"), "--tee", "3"]);
            let outcome = launch.worker(["print=over"]).run();
            outcome.expect_absent("panicked");
            if is_enough || outcome.status.success() {
                outcome.expect_exit_code(0);
                assert_eq!(outcome.stdout().matches(":over").count(), 8, "{outcome}");
            } else {
                outcome.expect_exit_code(1).expect_stderr("error:").expect_stderr("Too many open files");
            }
        }
    }
}

/// From the first fork to the last pipe.
#[test]
fn open_file_limit_reached_is_named_with_hint() {
    if !is_rankrun() {
        return;
    }
    for name in Name::for_shared_behaviour() {
        for limit in [5, 8, 14, 20, 28] {
            let line = format!("ulimit -n {limit}; exec \"$@\"");
            let launch = Launch::standalone(*name, 16).under(["sh", "-c", &line, "sh"]);
            let outcome = launch.args(["--tee", "3"]).worker(["print=over"]).run();
            outcome.expect_exit_code(1).expect_stderr("Too many open files");
            outcome.expect_stderr(&format!(": the limit is {limit} (`ulimit -n`)"));
            outcome.expect_stderr("hint: run `ulimit -n 1024` before the launcher");
        }
    }
}

/// The user has no other process, and the kernel counts none of the superuser's.
#[test]
fn process_limit_reached_is_named_with_hint() {
    if !is_rankrun() {
        return;
    }
    for limit in [1, 3] {
        let line = format!("ulimit -u {limit}; exec \"$@\"");
        let launch = Launch::standalone(Name::Rankrun, 2).user(47_113).under(["bash", "-c", &line, "bash"]);
        let outcome = launch.args(["--no-python", "true"]).run();
        outcome
            .expect_exit_code(1)
            .expect_stderr("error: cannot start ")
            .expect_stderr("hint: a limit on processes and threads is reached");
    }
}

#[test]
fn workers_inherit_launcher_descriptor_limits() {
    for name in Name::for_shared_behaviour() {
        let few = ["sh", "-c", "ulimit -Sn 128; ulimit -Hn 512; exec \"$@\"", "sh"];
        let outcome = Launch::standalone(*name, 1).under(few).shell("ulimit -Sn; ulimit -Hn").run();
        outcome.expect_exit_code(0);
        assert_eq!(outcome.stdout_lines(), ["128", "512"], "{outcome}");
    }
}
