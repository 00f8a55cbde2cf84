//! Faults of hosts and networks. Each ends in a finished job with the right result, or in one clear error on every node,
//! and nothing is left running anywhere.

use std::time::Duration;

use harness::{Process, Refusal, only_ours, soak};
use nix::sys::signal::Signal;

use super::{Team, told};

/// How often each fault happens.
fn times() -> usize {
    if soak() { 10 } else { 1 }
}

/// Lets the fault happen to a job of three hosts as often as is asked for.
#[track_caller]
fn each(what: &str, nodes: &str, options: &[&str], fault: impl Fn(Team)) {
    if !only_ours() {
        return;
    }
    for _ in 0..times() {
        match Team::start(3, nodes, options) {
            Some(team) => fault(team),
            None => return,
        }
    }
    told(what, times());
}

#[test]
fn an_agent_is_killed() {
    each("agent killed", "1:3", &[], |mut team| {
        team.job(3).signal_to(team.agent(3), Signal::SIGKILL);
        team.meets(2, &[(1, 1), (2, 1)]);
        let _ = team.take(3).wait();
        team.finishes(&[1, 2]);
    });
}

#[test]
fn a_host_crashes() {
    each("host crashed", "1:3", &[], |mut team| {
        team.fleet.crash(3);
        let _ = team.take(3).wait();
        team.meets(2, &[(1, 1), (2, 1)]);
        team.fleet.heal(3);
        team.begin(3);
        team.meets(3, &[(1, 2), (2, 2), (3, 1)]);
        team.finishes(&[1, 2, 3]);
    });
}

#[test]
fn a_host_is_cut_off_and_healed() {
    each("host cut off and healed", "1:3", &[], |team| {
        let worker = Process::open(team.worker(3)).expect("the worker lives");
        team.fleet.cut(3);
        // The cut one ends its own workers, while nobody tells it to.
        team.job(3).outlived_by_none(&[worker], Duration::from_secs(30));
        team.meets(2, &[(1, 1), (2, 1)]);
        team.fleet.heal(3);
        team.meets(3, &[(1, 2), (2, 2), (3, 2)]);
        team.finishes(&[1, 2, 3]);
    });
}

/// The others see its connection break, and it learns that nobody takes its packets: its agent ends with an error that
/// names the store, long before one that hears nothing gives up (after 30 s). A new one is let in.
#[test]
fn a_host_is_cut_off_by_resets() {
    each("host cut off by resets", "1:3", &[], |mut team| {
        let worker = Process::open(team.worker(3)).expect("the worker lives");
        team.fleet.reject(3, Refusal::Reset);
        team.job(3).outlived_by_none(&[worker], Duration::from_secs(30));
        let _ = team.job(3).ends_within(Duration::from_secs(20));
        team.take(3).wait().exits(1).complains("th1:29400").never_says("panicked");
        team.meets(2, &[(1, 1), (2, 1)]);
        team.fleet.heal(3);
        team.begin(3);
        team.meets(3, &[(1, 2), (2, 2), (3, 1)]);
        team.finishes(&[1, 2, 3]);
    });
}

/// To open connections it is as if nobody answered: it waits for the way to be mended, and joins again.
#[test]
fn a_host_is_cut_off_by_icmp() {
    each("host cut off by ICMP", "1:3", &[], |team| {
        let worker = Process::open(team.worker(3)).expect("the worker lives");
        team.fleet.reject(3, Refusal::Icmp);
        team.job(3).outlived_by_none(&[worker], Duration::from_secs(30));
        team.meets(2, &[(1, 1), (2, 1)]);
        team.fleet.heal(3);
        team.meets(3, &[(1, 2), (2, 2), (3, 2)]);
        team.finishes(&[1, 2, 3]);
    });
}

/// The others look for it until the join timeout is over: nobody tells them that it will not come back.
#[test]
fn the_store_loses_its_host() {
    let times = ["--rdzv-conf", "join_timeout=8,read_timeout=8"];
    each("store's host lost", "1:3", &times, |mut team| {
        team.fleet.crash(1);
        let _ = team.take(1).wait();
        for host in [2, 3] {
            let outcome = team.take(host).wait();
            outcome.exits(1).complains("th1:29400").never_says("panicked");
        }
        team.ends();
    });
}

#[test]
fn a_worker_dies_on_each_node_at_the_same_moment() {
    each("a worker killed on each node", "3", &["--max-restarts", "3"], |team| {
        let workers = [1, 2, 3].map(|host| Process::open(team.worker(host)).expect("the worker lives"));
        for worker in &workers {
            worker.signal(Signal::SIGKILL);
        }
        team.meets(3, &[(1, 2), (2, 2), (3, 2)]);
        team.finishes(&[1, 2, 3]);
    });
}

/// A lease of some seconds covers what TCP needs to send a packet again and again; where it does not, the nodes part and
/// meet once more.
#[test]
fn packets_are_lost() {
    each("5 % of the packets lost", "3", &["--max-restarts", "3", "--lease", "5"], |team| {
        team.fleet.hosts().for_each(|host| team.fleet.lose(host, 5));
        let worker = Process::open(team.worker(2)).expect("the worker lives");
        worker.signal(Signal::SIGKILL);
        team.meets(3, &[(1, 2), (2, 2), (3, 2)]);
        team.finishes_in_the_end(&[1, 2, 3]);
    });
}

#[test]
fn packets_are_late() {
    each("50 ms of delay", "3", &["--max-restarts", "3", "--lease", "5"], |team| {
        team.fleet.hosts().for_each(|host| team.fleet.delay(host, Duration::from_millis(50)));
        let worker = Process::open(team.worker(2)).expect("the worker lives");
        worker.signal(Signal::SIGKILL);
        team.meets(3, &[(1, 2), (2, 2), (3, 2)]);
        team.finishes_in_the_end(&[1, 2, 3]);
    });
}
