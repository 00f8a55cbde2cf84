//! What outlives a success: it is named, waited for, and stopped, unless it says that it wants to stay.

use std::path::Path;
use std::time::Duration;

use harness::{Job, Launch, Name, Scratch, only_ours};
use nix::sys::signal::Signal;

const LIMIT: Duration = Duration::from_secs(1);
/// A leftover that stops for nothing but SIGKILL.
const STUBBORN: &str = "trap '' TERM; setsid --fork sleep 1111";

/// A job of one worker: a shell that runs this line and succeeds.
fn leaving(name: Name, options: &[&str], line: &str) -> Launch {
    Launch::standalone(name, 1).args(options.iter().copied()).shell(line)
}

/// A leftover that says by a file that it has outlived the launcher.
fn outliving(environment: &str, proof: &str) -> String {
    let waits = format!("while kill -0 $$agent 2>/dev/null; do sleep 0.02; done; : > {proof}");
    format!("{environment} agent=$$PPID setsid --fork sh -c '{waits}' < /dev/null > /dev/null 2>&1")
}

#[test]
fn an_uploader_is_named_and_waited_for() {
    if !only_ours() {
        return;
    }
    let launch = Launch::standalone(Name::Rankrun, 1).stdin_open();
    let mut job = launch.shell("setsid --fork sh -c 'read line; echo uploaded'").start();
    let line = job.line("waiting up to 30 s for what they left behind");
    assert!(line.contains(" `sh -c read line; echo uploaded`; a signal ends the wait"), "{line}");
    job.type_text("\n");
    let outcome = job.wait();
    outcome.exits(0).says("uploaded").never_says("ending pid");
}

#[test]
fn after_the_grace_it_is_stopped() {
    if !only_ours() {
        return;
    }
    let launch = leaving(Name::Rankrun, &["--leftover-grace", "0.3"], "setsid --fork sleep 1111");
    let outcome = launch.run();
    outcome.exits(0).complains("waiting up to 0.3 s").complains("still there: ending pid ");
    outcome.complains("`sleep 1111`; SIGKILL follows in 30 s (RANKRUN_KEEP=1").never_says("killing pid");
}

#[test]
fn after_the_stop_grace_it_is_killed() {
    if !only_ours() {
        return;
    }
    let options = ["--leftover-grace", "0", "--grace", "0.2"];
    let outcome = leaving(Name::Rankrun, &options, STUBBORN).run();
    outcome.exits(0).complains("killing pid ").complains("still there after SIGTERM");
}

#[test]
fn the_time_limit_is_theirs_too() {
    if !only_ours() {
        return;
    }
    let options = ["--time-limit", "4", "--grace", "0.2"];
    let outcome = leaving(Name::Rankrun, &options, STUBBORN).run();
    outcome.exits(0).complains("a signal or the time limit ends the wait");
    outcome.complains("the time limit is over: ending pid ").complains("killing pid ");
}

#[test]
fn what_wants_to_stay_stays() {
    if !only_ours() {
        return;
    }
    let scratch = Scratch::new();
    let proof = scratch.at("proof");
    let launch = leaving(Name::Rankrun, &["--leftover-grace", "0"], &outliving("RANKRUN_KEEP=1", &proof));
    launch.run().exits(0).never_says("ending pid");
    assert!(Path::new(&proof).exists(), "it was ended");
}

#[test]
fn under_torchruns_name_it_stays_unless_our_variable_says_how_long() {
    if !only_ours() {
        return;
    }
    let scratch = Scratch::new();
    let proof = scratch.at("proof");
    leaving(Name::Torchrun, &[], &outliving("", &proof)).run().exits(0).never_says("left behind");
    assert!(Path::new(&proof).exists(), "it was ended");
    let launch = leaving(Name::Torchrun, &[], "setsid --fork sleep 1111").env("RANKRUN_LEFTOVER_GRACE", "0");
    launch.run().exits(0).complains("still there: ending pid ");
}

#[test]
fn a_failure_spares_nobody() {
    if !only_ours() {
        return;
    }
    let line = "RANKRUN_KEEP=1 setsid --fork sleep 1111; exit 3";
    for name in Name::both() {
        leaving(*name, &[], line).run().exits(name.code(3)).never_says("left behind");
    }
}

#[test]
fn what_a_worker_left_that_succeeded_goes_with_the_one_that_fails() {
    if !only_ours() {
        return;
    }
    let steps = ["rank0:helper=daemon", "rank0:print=left", "rank0:exit=0", "rank1:read", "exit=3"];
    let mut job = Launch::standalone(Name::Rankrun, 2).stdin_open().worker(steps).start();
    job.line("alive rank=0");
    job.line("left");
    job.type_text("\n");
    job.wait().exits(3).never_says("left behind");
}

/// A job that waits for a stubborn leftover.
#[track_caller]
fn waiting(options: &[&str]) -> Job {
    let job = leaving(Name::Rankrun, options, STUBBORN).start();
    job.line("waiting up to 30 s");
    job
}

#[test]
fn a_signal_ends_the_wait_and_a_second_one_kills() {
    if !only_ours() {
        return;
    }
    let job = waiting(&["--grace", "3600"]);
    job.signal(Signal::SIGTERM);
    job.line("SIGTERM: ending pid ");
    job.signal(Signal::SIGTERM);
    job.wait().exits(143).complains("told a second time");
}

#[test]
fn a_launcher_that_is_killed_while_it_waits_leaves_nothing() {
    if !only_ours() {
        return;
    }
    for kill_agent in [false, true] {
        let job = waiting(&[]);
        let pid = if kill_agent { job.only_child_of(job.pid()) } else { job.pid() };
        job.signal_to(pid, Signal::SIGKILL);
        job.leaves_nothing_within(LIMIT);
    }
}
