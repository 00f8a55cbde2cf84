//! How hosts reach each other: names that do not resolve, IPv6 alone, interfaces, and walls with few open ports.

use harness::{Fleet, Job, Launch, Name, Outcome, field, only_ours};

use super::{c10d, fixed, succeed};

const STEPS: [&str; 4] = ["seat", "sum", "reduce=2", "env"];

/// The job on hosts 1 and 2: both ways to find each other.
#[track_caller]
fn both_ways(name: Name, fleet: &Fleet, master: &str, more: impl Fn(Launch) -> Launch) -> Vec<Outcome> {
    let endpoint = if master.contains(':') { format!("[{master}]:29400") } else { format!("{master}:29400") };
    let dynamic = |_| more(c10d(name, &endpoint, "2")).worker(STEPS);
    let static_ = |host| more(fixed(name, master, 2, host - 1)).worker(STEPS);
    let mut outcomes = run(fleet, dynamic);
    outcomes.extend(run(fleet, static_));
    outcomes
}

#[track_caller]
fn run(fleet: &Fleet, launch: impl Fn(usize) -> Launch) -> Vec<Outcome> {
    let jobs: Vec<Job> = [1, 2].map(|host| fleet.on(host, launch(host)).start()).into();
    let outcomes = succeed(jobs);
    for outcome in &outcomes {
        outcome.says("world=2 total=3").says("reduced rank=");
    }
    fleet.is_empty();
    outcomes
}

/// The value that the workers' environment has.
#[track_caller]
fn master(outcome: &Outcome) -> String {
    let line = outcome.lines_with("seat rank=").pop().expect("a worker sat");
    field(&line, "addr").map(str::to_owned).expect("an address")
}

#[test]
fn hosts_whose_names_do_not_resolve() {
    if !only_ours() {
        return;
    }
    let Some(fleet) = Fleet::up(2) else { return };
    fleet.hosts().for_each(|host| fleet.without_names(host));
    for name in Name::both() {
        for outcome in both_ways(*name, &fleet, &Fleet::address(1), |launch| launch) {
            assert_eq!(master(&outcome), Fleet::address(1), "{outcome}");
        }
    }
}

#[test]
fn hosts_with_ipv6_alone() {
    if !only_ours() {
        return;
    }
    let Some(fleet) = Fleet::up(2) else { return };
    fleet.only_ipv6();
    for outcome in both_ways(Name::Rankrun, &fleet, &Fleet::address_v6(1), |launch| launch) {
        assert_eq!(master(&outcome), Fleet::address_v6(1), "{outcome}");
    }
    // By its name.
    both_ways(Name::Rankrun, &fleet, "th1", |launch| launch);
}

#[test]
fn the_interface_that_is_named() {
    if !only_ours() {
        return;
    }
    let Some(fleet) = Fleet::up(2) else { return };
    for host in fleet.hosts() {
        // One that leads nowhere, and comes first in the alphabet.
        fleet.shell(
            host,
            "ip link add aside type veth peer name nowhere; ip addr add 10.77.0.9/24 dev aside; \
             ip link set aside up; ip link set nowhere up",
        );
        fleet.without_names(host);
    }
    let named = |launch: Launch| launch.args(["--iface", "eth0"]).env("NCCL_SOCKET_IFNAME", "mine");
    for outcome in both_ways(Name::Rankrun, &fleet, &Fleet::address(1), named) {
        assert_eq!(master(&outcome), Fleet::address(1), "{outcome}");
        assert_eq!(outcome.lines_with(" GLOO_SOCKET_IFNAME=eth0").len(), 1, "{outcome}");
        assert_eq!(outcome.lines_with(" NCCL_SOCKET_IFNAME=mine").len(), 1, "{outcome}");
    }
    // The other one is published when it is the one that is named.
    let launch = c10d(Name::Rankrun, "127.0.0.1:29400", "1").args(["--iface", "aside"]);
    let outcome = fleet.on(1, launch.worker(["seat"])).run();
    assert_eq!(master(outcome.exits(0)), "10.77.0.9", "{outcome}");
    let unknown = c10d(Name::Rankrun, "127.0.0.1:29400", "1").args(["--iface", "eth7"]);
    fleet.on(1, unknown.worker(["seat"])).run().exits(1).complains("`eth7`").complains("eth0");
}

#[test]
fn a_given_address_wins() {
    if !only_ours() {
        return;
    }
    let Some(fleet) = Fleet::up(2) else { return };
    for name in Name::both() {
        let own = |host| {
            let launch = c10d(*name, "th2:29400", "2").args(["--local-addr", &Fleet::address_v6(host)]);
            launch.worker(STEPS)
        };
        for outcome in run(&fleet, own) {
            assert_eq!(master(&outcome), Fleet::address_v6(1), "{outcome}");
        }
    }
}

/// Only the ports of the range are open, on both hosts: agents and stores of ours need no others.
#[test]
fn ports_behind_a_wall() {
    if !only_ours() {
        return;
    }
    let Some(fleet) = Fleet::up(2) else { return };
    fleet.hosts().for_each(|host| fleet.wall(host, 30_000, 30_009));
    let steps = ["seat", "sum"];
    let jobs = [1, 2].map(|host| {
        let launch = c10d(Name::Rankrun, "th2:30000", "2").args(["--port-range", "30000-30009"]);
        fleet.on(host, launch.worker(steps)).start()
    });
    for outcome in succeed(jobs) {
        let line = outcome.says("world=2 total=3").lines_with("seat rank=").pop().expect("a seat");
        let port: u16 = field(&line, "port").and_then(|port| port.parse().ok()).expect("a port");
        assert!((30_000..=30_009).contains(&port), "{outcome}");
    }
    // The wall stands: what is outside of it does not arrive.
    let dropped =
        fleet.shell(2, "timeout 1 bash -c 'exec 3<>/dev/tcp/th1/31000' 2>/dev/null || echo dropped");
    assert_eq!(dropped, "dropped\n");
    fleet.is_empty();
}
