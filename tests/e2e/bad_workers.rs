//! Workers that behave badly: nothing of them is left, and the launcher keeps its word.

use std::time::Duration;

use harness::{Gate, Launch, Name, Process, Scratch, field, only_ours, soak};
use nix::sys::signal::Signal;

/// All processes of an ended job are gone within this time.
const LIMIT: Duration = Duration::from_secs(1);
/// Far above what anything here takes.
const PROMPT: Duration = Duration::from_secs(30);

/// The process that said so in this line.
#[track_caller]
fn process_of(line: &str) -> Process {
    let pid = field(line, "pid").and_then(|pid| pid.parse().ok()).expect("it said its pid");
    Process::open(pid).expect("it lives")
}

#[test]
fn without_streams_a_worker_still_ends_as_it_wants() {
    for name in Name::both() {
        for status in [0, 3] {
            let gate = Gate::closed();
            let steps = ["alive", "close-stdio", &gate.step(), &format!("exit={status}")];
            let job = Launch::standalone(*name, 2).worker(steps).start();
            job.lines("alive rank=", 2);
            gate.open(2);
            job.wait().exits(if status == 0 { 0 } else { name.code(status) });
        }
    }
}

#[test]
fn who_reads_no_signal_is_killed_after_the_grace() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).args(["--shutdown-timeout", "1"]);
        let job = launch.worker(["deaf", "alive", "forever"]).start();
        job.lines("alive rank=", 2);
        job.signal(Signal::SIGTERM);
        job.wait().exits(name.code(143));
    }
}

#[test]
fn a_name_that_is_made_to_be_misread_hides_nobody() {
    if !only_ours() {
        return;
    }
    let odd = ["catch", "odd-name", "helper=odd-daemon", "alive"];
    for of_the_guard in [true, false] {
        let job = Launch::standalone(Name::Rankrun, 2).worker(odd.into_iter().chain(["forever"])).start();
        job.lines("alive rank=", 4);
        let victim = if of_the_guard { job.pid() } else { job.only_child_of(job.pid()) };
        job.signal_to(victim, Signal::SIGKILL);
        job.leaves_nothing_within(LIMIT);
    }
    let launch = Launch::standalone(Name::Rankrun, 1).args(["--max-restarts", "1"]).stdin_open();
    let mut job = launch.worker(odd.into_iter().chain(["read", "exit=3"])).start();
    let first = process_of(&job.line("who=worker"));
    let daemon = process_of(&job.line("who=odd-daemon"));
    job.type_text("\n");
    job.lines("life=1", 2);
    job.outlived_by_none(&[first, daemon], Duration::ZERO);
    job.type_text("\n");
    // The second one's daemon is looked for by the harness.
    job.wait().exits(3);
}

#[test]
fn a_leftover_with_an_odd_name_is_ended() {
    if !only_ours() {
        return;
    }
    let launch = Launch::standalone(Name::Rankrun, 1).args(["--leftover-grace", "0", "--grace", "0"]);
    let outcome = launch.worker(["helper=odd-daemon"]).run();
    outcome.exits(0).complains("ending pid ");
}

#[test]
fn who_leaves_the_process_group_is_ended_with_the_generation() {
    if !only_ours() {
        return;
    }
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--max-restarts", "1"]).stdin_open();
    let steps = ["helper=group", "alive", "rank0:life<1:read", "rank0:life<1:exit=4", "life0:forever"];
    let mut job = launch.worker(steps).start();
    let helpers: Vec<_> = job.lines("who=group", 2).iter().map(|line| process_of(line)).collect();
    job.lines("who=worker", 2);
    job.type_text("\n");
    job.lines("life=1", 4);
    job.outlived_by_none(&helpers, Duration::ZERO);
    // After the success the helpers of this life are leftovers.
    job.line("for what they left behind");
    job.signal(Signal::SIGTERM);
    job.line("ending pid ");
    job.signal(Signal::SIGTERM);
    job.wait().exits(143);
}

#[test]
fn who_becomes_another_program_without_our_mark_is_still_ours() {
    if !only_ours() {
        return;
    }
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let line = "exec env -i sh -c 'trap : TERM; echo pid=$$$$; while :; do sleep 1111; done'";
        let job = Launch::standalone(Name::Rankrun, 1).args(["--grace", "0.2"]).shell(line).start();
        let worker = process_of(&job.line("pid="));
        job.signal(signal);
        job.outlived_by_none(&[worker], PROMPT);
        let outcome = job.wait();
        assert!(!outcome.status.success(), "{outcome}");
    }
}

#[test]
fn who_puts_itself_into_the_background_is_a_leftover() {
    if !only_ours() {
        return;
    }
    let gate = Gate::closed();
    let line = format!("setsid --fork sh -c 'head -c 1 {}; echo done'", gate.path().display());
    let job = Launch::standalone(Name::Rankrun, 2).shell(&line).start();
    job.line("for what they left behind");
    gate.open(2);
    let outcome = job.wait();
    outcome.exits(0);
    assert_eq!(outcome.out().matches("done").count(), 2, "{outcome}");
}

#[test]
fn a_line_without_an_end_takes_no_memory() {
    if !only_ours() {
        return;
    }
    let mib = if soak() { 4_096 } else { 100 };
    let line = format!("head -c {mib}M /dev/zero; grep VmHWM /proc/$$PPID/status >&2");
    let quiet = ["sh", "-c", "exec \"$@\" > /dev/null", "sh"];
    let launch = Launch::standalone(Name::Rankrun, 1).under(quiet).limit(Duration::from_secs(300));
    let outcome = launch.shell(&line).run();
    outcome.exits(0);
    let line = outcome.lines_with("VmHWM:").remove(0);
    let peak = line.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok());
    assert!(peak.is_some_and(|kb| kb < 96 * 1024), "{line}");
}

#[test]
fn few_descriptors_are_enough_or_an_error() {
    if !only_ours() {
        return;
    }
    for name in Name::both() {
        for (limit, is_enough) in [(96, true), (64, false), (24, false)] {
            let scratch = Scratch::new();
            let line = format!("ulimit -n {limit}; exec \"$@\"");
            let launch = Launch::standalone(*name, 8).under(["sh", "-c", &line, "sh"]);
            let launch = launch.args(["--log-dir", &scratch.at("logs"), "--tee", "3"]);
            let outcome = launch.worker(["print=over"]).run();
            outcome.never_says("panicked");
            if is_enough || outcome.status.success() {
                outcome.exits(0);
                assert_eq!(outcome.out().matches(":over").count(), 8, "{outcome}");
            } else {
                outcome.exits(1).complains("error:").complains("Too many open files");
            }
        }
    }
}

/// From the first fork to the last pipe.
#[test]
fn limit_on_open_files_is_named_with_the_way_out() {
    if !only_ours() {
        return;
    }
    for name in Name::both() {
        for limit in [5, 8, 14, 20, 28] {
            let line = format!("ulimit -n {limit}; exec \"$@\"");
            let launch = Launch::standalone(*name, 16).under(["sh", "-c", &line, "sh"]);
            let outcome = launch.args(["--tee", "3"]).worker(["print=over"]).run();
            outcome.exits(1).complains("Too many open files");
            outcome.complains(&format!(": the limit is {limit} (`ulimit -n`)"));
            outcome.complains("hint: run `ulimit -n 1024` before the launcher");
        }
    }
}

/// The user has no other process, and the kernel counts none of the superuser's.
#[test]
fn limit_on_processes_is_named_with_the_way_out() {
    if !only_ours() {
        return;
    }
    for limit in [1, 3] {
        let line = format!("ulimit -u {limit}; exec \"$@\"");
        let launch = Launch::standalone(Name::Rankrun, 2).user(47_113).under(["bash", "-c", &line, "bash"]);
        let outcome = launch.args(["--no-python", "true"]).run();
        outcome
            .exits(1)
            .complains("error: cannot start ")
            .complains("hint: a limit on processes and threads is reached");
    }
}

#[test]
fn workers_get_the_limits_that_the_launcher_was_started_with() {
    for name in Name::both() {
        let few = ["sh", "-c", "ulimit -Sn 128; ulimit -Hn 512; exec \"$@\"", "sh"];
        let outcome = Launch::standalone(*name, 1).under(few).shell("ulimit -Sn; ulimit -Hn").run();
        outcome.exits(0);
        assert_eq!(outcome.out_lines(), ["128", "512"], "{outcome}");
    }
}
