//! What a signal to the launcher does: forwarded, grace, kill.

use std::time::Duration;

use harness::{Job, Launch, Name, is_rankrun, is_soak, is_torchrun};
use nix::sys::signal::Signal;

/// Far above any grace that a test sets, far below torchrun's default of 30 s.
const PROMPT: Duration = Duration::from_secs(20);

/// Two workers that only SIGKILL ends, seen alive.
#[track_caller]
fn start_stubborn_workers(launch: Launch) -> Job {
    let job = launch.worker(["catch", "alive", "forever"]).start();
    job.wait_for_lines("alive rank=", 2);
    job
}

#[test]
fn signal_is_forwarded_to_every_worker() {
    for name in Name::both() {
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
            let launch = Launch::standalone(*name, 2);
            let job = launch.worker(["catch", "alive", "signal", "exit=0"]).start();
            job.wait_for_lines("alive rank=", 2);
            job.signal(signal);
            let outcome = job.wait();
            outcome.expect_exit_code(name.code(128 + signal as i32));
            assert_eq!(outcome.lines_with(&format!("got {signal} rank=")).len(), 2, "{outcome}");
        }
    }
}

/// Under our own name; torchrun handles it all the same.
#[test]
fn nohup_ignores_sighup() {
    let launch = Launch::standalone(Name::Rankrun, 2).under(["nohup"]);
    let job = launch.worker(["catch", "alive", "signal", "exit=0"]).start();
    job.wait_for_lines("alive rank=", 2);
    job.signal(Signal::SIGHUP);
    job.signal(Signal::SIGTERM);
    job.wait().expect_exit_code(143).expect_absent("got SIGHUP");
}

#[test]
fn worker_ignoring_signal_is_killed_after_grace() {
    for name in Name::for_shared_behaviour() {
        let job = start_stubborn_workers(Launch::standalone(*name, 2).args(["--shutdown-timeout", "1"]));
        let signal_time = job.elapsed();
        job.signal(Signal::SIGTERM);
        let outcome = job.wait();
        outcome.expect_exit_code(name.code(143));
        let took = outcome.took - signal_time;
        assert!(took >= Duration::from_millis(950), "the grace was only {took:?}\n{outcome}");
        assert!(took < PROMPT, "the kill came after {took:?}\n{outcome}");
    }
}

#[test]
fn zero_grace_kills_at_once() {
    for name in Name::for_shared_behaviour() {
        let job = start_stubborn_workers(Launch::standalone(*name, 2).args(["--shutdown-timeout", "0"]));
        let signal_time = job.elapsed();
        job.signal(Signal::SIGTERM);
        let outcome = job.wait();
        outcome.expect_exit_code(name.code(143));
        assert!(outcome.took - signal_time < PROMPT, "{outcome}");
    }
}

#[test]
fn grace_is_read_from_environment() {
    for name in Name::both() {
        let job =
            start_stubborn_workers(Launch::standalone(*name, 2).env("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "0"));
        let signal_time = job.elapsed();
        job.signal(Signal::SIGTERM);
        assert!(job.wait().took - signal_time < PROMPT);
    }
}

#[test]
fn second_signal_of_other_kind_kills() {
    if is_rankrun() {
        let launch = Launch::standalone(Name::Rankrun, 2).args(["--shutdown-timeout", "3600"]);
        let job = launch.worker(["catch", "alive", "signal", "forever"]).start();
        job.wait_for_lines("alive rank=", 2);
        job.signal(Signal::SIGINT);
        job.wait_for_lines("got SIGINT", 2);
        job.signal(Signal::SIGTERM);
        // The first one is why the job ended.
        job.wait().expect_exit_code(130);
    }
}

#[test]
fn job_stopped_by_signal_is_not_restarted() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).args(["--max-restarts", "3"]);
        let job = launch.worker(["catch", "alive", "signal", "exit=9"]).start();
        job.wait_for_lines("alive rank=", 2);
        job.signal(Signal::SIGTERM);
        job.wait().expect_exit_code(name.code(143)).expect_absent("attempt=1");
    }
}

#[test]
fn group_signal_reaches_worker_children() {
    for name in Name::for_shared_behaviour() {
        let launch = Launch::standalone(*name, 1).env("RANKRUN_STOP_SIGNAL_TO", "group");
        let job = launch.worker(["catch", "helper=listener", "signal", "forever"]).start();
        job.wait_for_line("process=listener");
        job.signal(Signal::SIGTERM);
        // The worker says it, and its child, which is in its process group.
        job.wait_for_lines("got SIGTERM", 2);
        job.signal(Signal::SIGTERM);
        job.wait().expect_exit_code(name.code(143));
    }
}

#[test]
fn workers_are_session_leaders() {
    for name in Name::for_shared_behaviour() {
        let outcome = Launch::standalone(*name, 2).worker(["ids"]).run();
        outcome.expect_exit_code(0);
        for line in outcome.lines_with("ids rank=") {
            let of = |key| harness::field(&line, key).map(str::to_owned);
            assert_eq!(of("pid"), of("group"), "{outcome}");
            assert_eq!(of("pid"), of("session"), "{outcome}");
        }
    }
}

#[test]
fn workers_inherit_only_standard_streams() {
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 2).worker(["fds"]).run();
        outcome.expect_exit_code(0);
        for line in outcome.lines_with("fds rank=") {
            let open = harness::field(&line, "open").expect("the worker lists descriptors");
            let mut open: Vec<&str> = open.split(',').collect();
            open.sort_unstable();
            assert_eq!(open, ["0", "1", "2"], "{outcome}");
        }
    }
}

#[test]
fn workers_start_with_default_signal_mask() {
    for name in Name::both() {
        let outcome =
            Launch::standalone(*name, 1).args(["--no-python", "grep", "^Sig", "/proc/self/status"]).run();
        outcome.expect_exit_code(0);
        let of = |key: &str| {
            let line = outcome.lines_with(key).remove(0);
            u64::from_str_radix(line.split_whitespace().nth(1).expect("a mask"), 16).expect("a mask")
        };
        assert_eq!(of("SigBlk:"), 0, "{outcome}");
        // Bit n-1 is signal n. SIGPIPE, SIGXFSZ and those that the launcher handles are at their defaults.
        for signal in [Signal::SIGPIPE, Signal::SIGXFSZ, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
            assert_eq!(of("SigIgn:") >> (signal as i32 - 1) & 1, 0, "{signal} is ignored\n{outcome}");
        }
    }
}

#[test]
fn stopped_worker_is_killed_after_grace() {
    if is_torchrun() {
        return;
    }
    // A frozen (SIGSTOP) worker cannot act on SIGTERM; SIGKILL ends it all the same.
    let job = start_stubborn_workers(Launch::standalone(Name::Rankrun, 2).args(["--shutdown-timeout", "1"]));
    for line in job.wait_for_lines("alive rank=", 2) {
        let pid = harness::field(&line, "pid").and_then(|pid| pid.parse().ok()).expect("a pid");
        job.signal_to(pid, Signal::SIGSTOP);
    }
    job.signal(Signal::SIGTERM);
    job.wait().expect_exit_code(143);
}

/// A shell's `trap '' CHLD`, or a daemon that wants no zombies: the kernel would reap our workers for us.
#[test]
fn ignored_sigchld_is_reset() {
    for name in Name::for_shared_behaviour() {
        let ignoring = ["sh", "-c", "trap '' CHLD; exec \"$@\"", "sh"];
        Launch::standalone(*name, 2)
            .under(ignoring)
            .worker(["rank1:exit=4", "forever"])
            .run()
            .expect_exit_code(name.code(4));
    }
}

/// timeout(1) signals its child and then its whole process group, which its child is in.
#[test]
fn double_signal_of_timeout_keeps_grace() {
    if !is_rankrun() {
        return;
    }
    let rounds = if is_soak() { 20 } else { 1 };
    let ends_well = |name| {
        let launch = Launch::standalone(name, 1).under(["timeout", "2"]);
        let outcome = launch.worker(["catch", "alive", "signal", "sleep-ms=300", "print=saved"]).run();
        outcome.expect_stdout("got SIGTERM").expect_stdout("saved");
    };
    for _ in 0..rounds {
        // All at once, so that the two signals are not always of one moment.
        std::thread::scope(|scope| {
            let runs: Vec<_> =
                (0..8).map(|run| scope.spawn(move || ends_well(Name::both()[run % 2]))).collect();
            runs.into_iter().for_each(|run| run.join().expect("the worker has saved"));
        });
    }
}
