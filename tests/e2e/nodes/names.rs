//! Messages name nodes by rank and address where several hosts have the same name, as containers may.

use harness::{Fleet, Launch, Name, only_ours};
use nix::sys::signal::Signal;

use super::{ENDPOINT, c10d, fixed};

/// Hosts that are all called `vm`.
fn hosts_of_one_name(size: usize) -> Option<Fleet> {
    let fleet = Fleet::up(size)?;
    for host in fleet.hosts() {
        fleet.shell(host, "echo vm >/proc/sys/kernel/hostname");
    }
    Some(fleet)
}

fn meetings() -> [fn(usize, usize) -> Launch; 2] {
    [
        |nodes, _| c10d(Name::Rankrun, ENDPOINT, &nodes.to_string()),
        |nodes, host| fixed(Name::Rankrun, "th1", nodes, host - 1),
    ]
}

#[test]
fn failed_worker_of_hosts_with_one_name_is_named_by_address() {
    if !only_ours() {
        return;
    }
    for meeting in meetings() {
        let Some(fleet) = hosts_of_one_name(2) else { return };
        let start = |host: usize, steps: &[&str]| fleet.on(host, meeting(2, host).worker(steps)).start();
        let first = start(1, &["seat", "sum", "forever"]);
        let line = first.line("1 of 2 is here: ");
        assert!(line.contains("vm") && line.contains("198.18.0.11"), "{line}");
        let second = start(2, &["seat", "sum", "exit=3"]);
        let whose = "rank 1 (local rank 0) on node 1 (vm, 198.18.0.12) failed first: exit code 3";
        let row = "  node      1, vm, 198.18.0.12";
        for outcome in [first.wait(), second.wait()] {
            outcome.complains(whose).complains(row).never_says("panicked");
        }
        fleet.is_empty();
    }
}

#[test]
fn lost_node_of_hosts_with_one_name_is_named_by_address() {
    if !only_ours() {
        return;
    }
    let Some(fleet) = hosts_of_one_name(3) else { return };
    let start = |host: usize| {
        let launch = c10d(Name::Rankrun, ENDPOINT, "2:3").args(["--lease", super::LEASE]);
        fleet.on(host, launch.worker(["seat", "sum", "forever"])).start()
    };
    let mut jobs: Vec<_> = fleet.hosts().map(start).collect();
    jobs.iter().for_each(|job| drop(job.line("world=3 total=6")));
    let lost = jobs.pop().expect("three jobs");
    let rank =
        lost.lines("seat rank=", 1).pop().and_then(|line| harness::field(&line, "node").map(str::to_owned));
    let rank = rank.expect("a worker says its node");
    lost.signal_to(lost.only_child_of(lost.pid()), Signal::SIGKILL);
    let name = format!("node {rank} (vm, 198.18.0.13) is lost");
    jobs.iter().for_each(|job| drop(job.line(&name)));
    let _ = lost.wait();
    jobs.iter().for_each(|job| drop(job.line("world=2 total=3")));
    for job in jobs {
        job.signal(Signal::SIGTERM);
        let _ = job.wait();
    }
    fleet.is_empty();
}

/// Rank and address of the only node say nothing.
#[test]
fn only_node_is_named_by_its_host_alone() {
    if !only_ours() {
        return;
    }
    let Some(fleet) = hosts_of_one_name(1) else { return };
    let launch = Launch::standalone(Name::Rankrun, 1).worker(["exit=3"]);
    let outcome = fleet.on(1, launch).run();
    outcome.exits(3).complains("rank 0 failed first: exit code 3").complains("  node      vm\n");
    fleet.is_empty();
}
