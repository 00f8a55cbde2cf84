//! Which interface the workers' libraries are told on several hosts.

use harness::{Fleet, Launch, Machine, Name, Outcome, only_ours};

use super::{ENDPOINT, c10d, fixed, succeed};

/// What the workers find of the interfaces, sorted.
#[track_caller]
fn told(outcome: &Outcome) -> Vec<String> {
    let mut lines = outcome.lines_with("_SOCKET_IFNAME=");
    lines.sort();
    lines.iter().filter_map(|line| line.split_whitespace().nth(1)).map(str::to_owned).collect()
}

#[track_caller]
fn all_told(fleet: &Fleet, launch: impl Fn(usize) -> Launch, expected: &[&str]) -> Vec<Outcome> {
    let start = |host| fleet.on(host, launch(host).worker(["seat", "sum", "reduce=2", "env"])).start();
    let outcomes = succeed([1, 2].map(start));
    for outcome in &outcomes {
        assert_eq!(told(outcome), expected, "{outcome}");
    }
    fleet.is_empty();
    outcomes
}

const ETH0: [&str; 2] = ["GLOO_SOCKET_IFNAME=eth0", "TP_SOCKET_IFNAME=eth0"];

#[test]
fn several_hosts_are_told_the_interface_of_the_store_connection() {
    if !only_ours() {
        return;
    }
    let Some(fleet) = Fleet::up(2) else { return };
    all_told(&fleet, |_| c10d(Name::Rankrun, ENDPOINT, "2"), &ETH0);
    all_told(&fleet, |host| fixed(Name::Rankrun, "th1", 2, host - 1), &ETH0);
    // As torchrun: nothing that was not asked for.
    all_told(&fleet, |_| c10d(Name::Torchrun, ENDPOINT, "2"), &[]);
    all_told(&fleet, |host| fixed(Name::Torchrun, "th1", 2, host - 1), &[]);
    // What the user says stands.
    let own = |_| c10d(Name::Rankrun, ENDPOINT, "2").env("GLOO_SOCKET_IFNAME", "lo,eth0");
    let start = |host| fleet.on(host, own(host).worker(["env"])).start();
    for outcome in succeed([1, 2].map(start)) {
        assert_eq!(told(&outcome), ["GLOO_SOCKET_IFNAME=lo,eth0", ETH0[1]], "{outcome}");
    }
    // The option names both, and NCCL's.
    let named = |_| c10d(Name::Rankrun, ENDPOINT, "2").args(["--iface", "eth0"]);
    all_told(&fleet, named, &[ETH0[0], "NCCL_SOCKET_IFNAME==eth0", ETH0[1]]);
}

#[test]
fn one_host_is_told_the_loopback_for_several_nodes_and_nothing_for_one() {
    if !only_ours() {
        return;
    }
    let Some(fleet) = Fleet::up(1) else { return };
    let start = |_| {
        let launch = c10d(Name::Rankrun, "localhost:29400", "2").worker(["seat", "sum", "reduce=2", "env"]);
        fleet.on(1, launch).start()
    };
    for outcome in succeed([1, 2].map(start)) {
        assert_eq!(told(&outcome), ["GLOO_SOCKET_IFNAME=lo", "TP_SOCKET_IFNAME=lo"], "{outcome}");
    }
    let alone = [c10d(Name::Rankrun, ENDPOINT, "1"), Launch::standalone(Name::Rankrun, 1)];
    for launch in alone {
        let outcome = fleet.on(1, launch.worker(["env"])).run();
        assert_eq!(told(outcome.exits(0)), [""; 0], "{outcome}");
    }
}

/// NCCL would be kept to the network of the rendezvous: it is left to choose, and people get a hint.
#[test]
fn nccl_is_left_to_choose_and_several_networks_are_a_hint() {
    if !only_ours() {
        return;
    }
    let Some(fleet) = Fleet::up(1) else { return };
    let machine = Machine::gpus(1);
    let run = |launch: Launch| fleet.on(1, launch.on(&machine).worker(["env"])).run();
    let one = |more: &[&str]| c10d(Name::Rankrun, ENDPOINT, "1:2").args(more);
    const HINT: &str = "this host has 2 networks, `eth0`, `fast0`: gloo uses `eth0`";
    run(one(&[])).exits(0).never_says("NCCL_SOCKET_IFNAME");
    fleet.shell(
        1,
        "ip link add fast0 link eth0 type macvlan mode bridge; ip addr add 10.77.0.1/24 dev fast0; \
         ip link set fast0 up",
    );
    let outcome = run(one(&[]));
    outcome.exits(0).complains(HINT).complains("`--iface NAME` names one for both");
    assert_eq!(told(&outcome), ETH0, "{outcome}");
    for quiet in [
        one(&["--iface", "eth0"]),
        one(&[]).env("NCCL_SOCKET_IFNAME", "=fast0"),
        one(&["--device-type", "cpu"]),
        c10d(Name::Torchrun, ENDPOINT, "1:2"),
    ] {
        let outcome = run(quiet);
        outcome.exits(0);
        assert!(!outcome.err().contains("this host has 2 networks"), "{outcome}");
    }
}
