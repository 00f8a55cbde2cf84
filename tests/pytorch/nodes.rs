//! gloo over several hosts: each with its own network, name and loopback.

use harness::{Fleet, Job, Launch, Name, Outcome, Scratch, oracle};

use crate::programs::source;

/// A launcher of ours; with the oracle torchrun.
fn ours() -> Name {
    if oracle() { Name::Reference } else { Name::Rankrun }
}

fn agent(name: Name, nodes: usize) -> Launch {
    let launch = Launch::new(name).with_torch().env("OMP_NUM_THREADS", "1");
    launch.args(["--nnodes", &nodes.to_string(), "--nproc-per-node", "1"])
}

fn dynamic(name: Name, nodes: usize, endpoint: &str) -> Launch {
    let launch = agent(name, nodes).args(["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]);
    launch.args(["--rdzv-id", "job", "--rdzv-conf", "join_timeout=120,keep_alive_interval=1"])
}

fn fixed(name: Name, nodes: usize, node_rank: usize, master: &str) -> Launch {
    let launch = agent(name, nodes).args(["--node-rank", &node_rank.to_string()]);
    launch.args(["--master-addr", master, "--master-port", "29400"])
}

/// One agent on each host; every rank must have the right sum and end.
#[track_caller]
fn meet(fleet: &Fleet, launch: impl Fn(usize) -> Launch) -> Vec<Outcome> {
    let start = |host| fleet.on(host, launch(host)).start();
    let jobs: Vec<Job> = fleet.hosts().map(start).collect();
    let world = jobs.len();
    let outcomes: Vec<_> = jobs.into_iter().map(Job::wait).collect();
    let right = format!("world={world} total={}", world * (world + 1) / 2);
    for outcome in &outcomes {
        outcome.exits(0).says(&right).says("finished rank=").never_says("panicked");
    }
    fleet.is_empty();
    outcomes
}

#[test]
fn two_hosts_over_c10d() {
    let Some(fleet) = Fleet::up(2) else { return };
    meet(&fleet, |_| dynamic(ours(), 2, "th1:29400").args([source("meet.py")]));
}

#[test]
fn two_static_hosts() {
    let Some(fleet) = Fleet::up(2) else { return };
    meet(&fleet, |host| fixed(ours(), 2, host - 1, "th1").args([source("meet.py")]));
}

#[test]
fn four_hosts_over_c10d() {
    let Some(fleet) = Fleet::up(4) else { return };
    meet(&fleet, |_| dynamic(ours(), 4, "th2:29400").args([source("meet.py")]));
}

#[test]
fn four_static_hosts() {
    let Some(fleet) = Fleet::up(4) else { return };
    meet(&fleet, |host| fixed(ours(), 4, 4 - host, "th4").args([source("meet.py")]));
}

/// gloo finds no address by itself there: the interface is named, which gives it to gloo too.
#[test]
fn hosts_whose_names_do_not_resolve() {
    if oracle() {
        return;
    }
    let Some(fleet) = Fleet::up(2) else { return };
    fleet.hosts().for_each(|host| fleet.without_names(host));
    let endpoint = format!("{}:29400", Fleet::address(1));
    let own = |_| dynamic(Name::Rankrun, 2, &endpoint).args(["--iface", "eth0"]);
    meet(&fleet, |host| own(host).args([source("meet.py")]));
}

#[test]
fn hosts_with_ipv6_alone() {
    if oracle() {
        return;
    }
    let Some(fleet) = Fleet::up(2) else { return };
    fleet.only_ipv6();
    let endpoint = format!("[{}]:29400", Fleet::address_v6(1));
    meet(&fleet, |_| dynamic(Name::Rankrun, 2, &endpoint).args([source("meet.py")]));
}

/// Hosts 1 and 3 are torchrun's, 2 and 4 ours, which host the store. A worker of ours fails: all four start again.
#[test]
fn two_nodes_of_torchrun_and_two_of_ours() {
    let Some(fleet) = Fleet::up(4) else { return };
    let scratch = Scratch::new();
    let lives = scratch.folder("lives", 0o777);
    let outcomes = meet(&fleet, |host| {
        let name = if host % 2 == 1 { Name::Reference } else { ours() };
        let launch = dynamic(name, 4, "th2:29400").args(["--max-restarts", "2"]);
        // Ranks follow the addresses as text: host 1 has rank 0.
        let launch = launch.args(["--local-addr", &Fleet::address(host)]).args([source("meet.py")]);
        launch.args(["--fail", "th4", "--lives", &lives])
    });
    for outcome in &outcomes {
        assert_eq!(outcome.lines_with("total=10").len(), 2, "{outcome}");
    }
}
