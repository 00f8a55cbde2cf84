//! A start that fails half-way stops what it had started.

use std::time::Duration;

use harness::{Launch, Name, Scratch, only_ours};

use super::{LIMIT, steps, witnessed};

/// A user of nobody's, so that the kernel counts the processes of this launch alone.
const USER: u32 = 23_471;
/// Threads and processes of the launcher before the first worker, at most.
const LAUNCHER: u32 = 6;

#[test]
fn without_a_free_process_nothing_is_left() {
    if !only_ours() {
        return;
    }
    let mut half_way = 0;
    for limit in 1..=LAUNCHER + 4 {
        let limit = format!("--nproc={limit}:{limit}");
        let launch = Launch::standalone(Name::Rankrun, 4).env("RANKRUN_GRACE", "0.2").user(USER);
        let outcome = launch.under(["prlimit", &limit]).shell("trap '' TERM; read line; exit 0").run();
        let failed_at = |rank: u32| !outcome.lines_with(&format!("cannot start rank {rank}")).is_empty();
        half_way += u32::from((1..4).any(failed_at));
        assert!(outcome.status.success() || outcome.err().contains("error:"), "{outcome}");
        outcome.never_says("panicked");
    }
    assert!(half_way > 0, "no limit let some of the workers start");
}

/// The folders of the logs are there, and descriptors for some of the workers.
#[test]
fn without_a_free_descriptor_nothing_is_left() {
    if !only_ours() {
        return;
    }
    for name in Name::both() {
        let scratch = Scratch::new();
        let launch = witnessed(*name, 32).under(["sh", "-c", "ulimit -n 40; exec \"$@\"", "sh"]);
        let launch = launch.args(["--log-dir", &scratch.at("logs"), "-t", "3"]).env("RANKRUN_GRACE", "0.2");
        let job = launch.worker(steps(&["alive"])).start();
        job.line("error:");
        job.ends_within(Duration::from_millis(200) + LIMIT);
        job.wait().exits(1);
    }
}

/// The first worker takes the program away from the others.
#[test]
fn a_program_that_vanishes_leaves_nothing() {
    if !only_ours() {
        return;
    }
    for name in Name::both() {
        let scratch = Scratch::new();
        let program = scratch.file("train", "#!/bin/sh\nrm -f \"$0\"\ntrap '' TERM\nsleep 1111\n", 0o755);
        let launch = witnessed(*name, 64).args(["--no-python", &program]).env("RANKRUN_GRACE", "0.2");
        let outcome = launch.run();
        assert!(!outcome.status.success(), "{outcome}");
        outcome.never_says("panicked");
    }
}
