//! What an agent says while it waits for the others.

use harness::{Fleet, Name, Scratch, is_rankrun};
use nix::sys::signal::Signal;

use super::{ENDPOINT, assert_all_succeed, c10d, static_launch};

#[test]
fn wait_message_names_joined_nodes() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(3) else { return };
    let own = |host| fleet.on(host, c10d(Name::Rankrun, ENDPOINT, "3").worker(["place"])).start();
    let jobs = [own(1), own(2)];
    for job in &jobs {
        let line = job.wait_for_line("2 of 3");
        assert!(line.contains("2 of 3 are here: th1 (198.18.0.11), th2 (198.18.0.12);"), "{line}");
    }
    let mut jobs = Vec::from(jobs);
    jobs.push(own(3));
    assert_all_succeed(jobs);
    fleet.is_empty();
}

#[test]
fn signal_during_wait_says_what_was_waited_for() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    for name in Name::both() {
        let with_host = fleet.on(1, c10d(*name, ENDPOINT, "2").worker(["place"])).start();
        with_host.wait_for_line("1 of 2");
        let without_host = fleet.on(2, c10d(*name, "th9:29400", "2").worker(["place"])).start();
        without_host.wait_for_line("waiting for the rendezvous store");
        for (job, awaited) in [(with_host, "1 of 2 nodes"), (without_host, "the rendezvous store")] {
            job.signal(Signal::SIGTERM);
            let (outcome, line) = (job.wait(), format!("SIGTERM: gave up waiting for {awaited}"));
            match name {
                Name::Rankrun => outcome.expect_exit_code(143).expect_stderr(&line),
                Name::Torchrun | Name::Reference => {
                    outcome.expect_signal(Signal::SIGTERM).expect_absent(&line)
                }
            };
        }
    }
    fleet.is_empty();
}

#[test]
fn wait_message_names_missing_node_rank() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(3) else { return };
    let own =
        |host| fleet.on(host, static_launch(Name::Rankrun, "th1", 3, host - 1).worker(["place"])).start();
    let jobs = [own(1), own(3)];
    let line = jobs[0].wait_for_line("2 of 3");
    assert!(line.contains("node 1 is missing"), "{line}");
    let mut jobs = Vec::from(jobs);
    jobs.push(own(2));
    assert_all_succeed(jobs);
    fleet.is_empty();
}

/// Two nodes stop their workers for longer than the join timeout. They are present, so no node gives up.
#[test]
fn grace_longer_than_join_timeout_does_not_end_job() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(3) else { return };
    let scratch = Scratch::new();
    let first = format!("first={},th3,9", scratch.folder("attempts", 0o777));
    let start = |host| {
        let launch = c10d(Name::Rankrun, ENDPOINT, "3").args(["--rdzv-conf", "join_timeout=5"]);
        let launch = launch.args(["--grace", "8s", "--max-restarts", "1"]);
        let ignores_sigterm = (host < 3).then_some("deaf");
        let steps = ignores_sigterm.into_iter().chain(["place", "sum", &first, "print=finished"]);
        fleet.on(host, launch.worker(steps)).start()
    };
    let jobs: Vec<_> = fleet.hosts().map(start).collect();
    let line = jobs[2].wait_for_line("to stop their workers");
    // In the order of their ranks.
    let here = "th3 (198.18.0.13)";
    let is_printed = |one: &str, two: &str| {
        line.contains(&format!("waiting for {one}, {two} to stop their workers; 1 of 3 is here: {here}"))
    };
    let nodes = [("th1, 198.18.0.11", "th2, 198.18.0.12"), ("th2, 198.18.0.12", "th1, 198.18.0.11")];
    let in_order = |(one, two)| is_printed(&format!("node 0 ({one})"), &format!("node 1 ({two})"));
    assert!(nodes.into_iter().any(in_order), "{line}");
    for outcome in assert_all_succeed(jobs) {
        outcome.expect_stdout("finished").expect_absent("nodes came");
    }
    fleet.is_empty();
}

/// Too few nodes join: one clear error names the nodes that joined and the time waited.
#[test]
fn join_timeout_error_names_joined_nodes() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(1) else { return };
    for name in Name::both() {
        let launch = c10d(*name, ENDPOINT, "2").args(["--rdzv-conf", "join_timeout=3"]);
        let outcome = fleet.on(1, launch.worker(["place"])).run();
        outcome.expect_exit_code(1).expect_stderr("1 of 2").expect_absent("panicked");
    }
    fleet.is_empty();
}
