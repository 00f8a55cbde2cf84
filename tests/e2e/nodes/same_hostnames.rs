//! Messages name nodes by rank and address where several hosts have the same name, as containers may.

use harness::{Fleet, Launch, Name, is_rankrun};
use nix::sys::signal::Signal;

use super::{ENDPOINT, c10d, static_launch};

/// Hosts that are all called `vm`.
fn hosts_of_one_name(size: usize) -> Option<Fleet> {
    let fleet = Fleet::start(size)?;
    for host in fleet.hosts() {
        fleet.shell(host, "echo vm >/proc/sys/kernel/hostname");
    }
    Some(fleet)
}

fn rendezvous_launches() -> [fn(usize, usize) -> Launch; 2] {
    [
        |nodes, _| c10d(Name::Rankrun, ENDPOINT, &nodes.to_string()),
        |nodes, host| static_launch(Name::Rankrun, "th1", nodes, host - 1),
    ]
}

#[test]
fn failed_worker_on_same_named_hosts_is_named_by_address() {
    if !is_rankrun() {
        return;
    }
    for together in rendezvous_launches() {
        let Some(fleet) = hosts_of_one_name(2) else { return };
        let start = |host: usize, steps: &[&str]| fleet.on(host, together(2, host).worker(steps)).start();
        let first = start(1, &["place", "sum", "forever"]);
        let line = first.wait_for_line("1 of 2 is here: ");
        assert!(line.contains("vm") && line.contains("198.18.0.11"), "{line}");
        let second = start(2, &["place", "sum", "exit=3"]);
        let first_failure = "rank 1 (local rank 0) on node 1 (vm, 198.18.0.12) failed first: exit code 3";
        let row = "  node      1, vm, 198.18.0.12";
        for outcome in [first.wait(), second.wait()] {
            outcome.expect_stderr(first_failure).expect_stderr(row).expect_absent("panicked");
        }
        fleet.is_empty();
    }
}

#[test]
fn lost_node_on_same_named_hosts_is_named_by_address() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = hosts_of_one_name(3) else { return };
    let start = |host: usize| {
        let launch = c10d(Name::Rankrun, ENDPOINT, "2:3").args(["--lease", super::LEASE]);
        fleet.on(host, launch.worker(["place", "sum", "forever"])).start()
    };
    let mut jobs: Vec<_> = fleet.hosts().map(start).collect();
    jobs.iter().for_each(|job| drop(job.wait_for_line("world=3 total=6")));
    let lost = jobs.pop().expect("three jobs");
    let rank = lost
        .wait_for_lines("place rank=", 1)
        .pop()
        .and_then(|line| harness::field(&line, "node").map(str::to_owned));
    let rank = rank.expect("a worker says its node");
    lost.signal_to(lost.only_child_of(lost.pid()), Signal::SIGKILL);
    let name = format!("node {rank} (vm, 198.18.0.13) is lost");
    jobs.iter().for_each(|job| drop(job.wait_for_line(&name)));
    let _ = lost.wait();
    jobs.iter().for_each(|job| drop(job.wait_for_line("world=2 total=3")));
    for job in jobs {
        job.signal(Signal::SIGTERM);
        let _ = job.wait();
    }
    fleet.is_empty();
}

/// Rank and address of the only node say nothing.
#[test]
fn single_node_is_named_by_hostname_only() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = hosts_of_one_name(1) else { return };
    let launch = Launch::standalone(Name::Rankrun, 1).worker(["exit=3"]);
    let outcome = fleet.on(1, launch).run();
    outcome
        .expect_exit_code(3)
        .expect_stderr("rank 0 failed first: exit code 3")
        .expect_stderr("  node      vm\n");
    fleet.is_empty();
}
