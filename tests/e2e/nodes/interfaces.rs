//! Which interface the workers' libraries are told on several hosts.

use harness::{Fleet, Launch, Machine, Name, Outcome, is_rankrun};

use super::{ENDPOINT, assert_all_succeed, c10d, static_launch};

/// What the workers find of the interfaces, sorted.
#[track_caller]
fn interface_variables(outcome: &Outcome) -> Vec<String> {
    let mut lines = outcome.lines_with("_SOCKET_IFNAME=");
    lines.sort();
    lines.iter().filter_map(|line| line.split_whitespace().nth(1)).map(str::to_owned).collect()
}

#[track_caller]
fn assert_interface_variables(
    fleet: &Fleet,
    launch: impl Fn(usize) -> Launch,
    expected: &[&str],
) -> Vec<Outcome> {
    let start = |host| fleet.on(host, launch(host).worker(["place", "sum", "reduce=2", "env"])).start();
    let outcomes = assert_all_succeed([1, 2].map(start));
    for outcome in &outcomes {
        assert_eq!(interface_variables(outcome), expected, "{outcome}");
    }
    fleet.is_empty();
    outcomes
}

const ETH0: [&str; 2] = ["GLOO_SOCKET_IFNAME=eth0", "TP_SOCKET_IFNAME=eth0"];

#[test]
fn workers_of_several_hosts_use_interface_of_store() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    assert_interface_variables(&fleet, |_| c10d(Name::Rankrun, ENDPOINT, "2"), &ETH0);
    assert_interface_variables(&fleet, |host| static_launch(Name::Rankrun, "th1", 2, host - 1), &ETH0);
    // As torchrun: nothing that was not asked for.
    assert_interface_variables(&fleet, |_| c10d(Name::Torchrun, ENDPOINT, "2"), &[]);
    assert_interface_variables(&fleet, |host| static_launch(Name::Torchrun, "th1", 2, host - 1), &[]);
    // What the user says stands.
    let own = |_| c10d(Name::Rankrun, ENDPOINT, "2").env("GLOO_SOCKET_IFNAME", "lo,eth0");
    let start = |host| fleet.on(host, own(host).worker(["env"])).start();
    for outcome in assert_all_succeed([1, 2].map(start)) {
        assert_eq!(interface_variables(&outcome), ["GLOO_SOCKET_IFNAME=lo,eth0", ETH0[1]], "{outcome}");
    }
    // The option names both, and NCCL's.
    let named = |_| c10d(Name::Rankrun, ENDPOINT, "2").args(["--iface", "eth0"]);
    assert_interface_variables(&fleet, named, &[ETH0[0], "NCCL_SOCKET_IFNAME==eth0", ETH0[1]]);
}

#[test]
fn single_host_nodes_use_loopback_interface() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(1) else { return };
    let start = |_| {
        let launch = c10d(Name::Rankrun, "localhost:29400", "2").worker(["place", "sum", "reduce=2", "env"]);
        fleet.on(1, launch).start()
    };
    for outcome in assert_all_succeed([1, 2].map(start)) {
        assert_eq!(
            interface_variables(&outcome),
            ["GLOO_SOCKET_IFNAME=lo", "TP_SOCKET_IFNAME=lo"],
            "{outcome}"
        );
    }
    let alone = [c10d(Name::Rankrun, ENDPOINT, "1"), Launch::standalone(Name::Rankrun, 1)];
    for launch in alone {
        let outcome = fleet.on(1, launch.worker(["env"])).run();
        assert_eq!(interface_variables(outcome.expect_exit_code(0)), [""; 0], "{outcome}");
    }
}

/// NCCL would be kept to the network of the rendezvous: it is left to choose, and people get a hint.
#[test]
fn several_networks_print_hint_and_leave_nccl_unset() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(1) else { return };
    let machine = Machine::gpus(1);
    let run = |launch: Launch| fleet.on(1, launch.on(&machine).worker(["env"])).run();
    let one = |more: &[&str]| c10d(Name::Rankrun, ENDPOINT, "1:2").args(more);
    const HINT: &str = "this host has 2 networks, `eth0`, `fast0`: gloo uses `eth0`";
    run(one(&[])).expect_exit_code(0).expect_absent("NCCL_SOCKET_IFNAME");
    fleet.shell(
        1,
        "ip link add fast0 link eth0 type macvlan mode bridge; ip addr add 10.77.0.1/24 dev fast0; \
         ip link set fast0 up",
    );
    let outcome = run(one(&[]));
    outcome.expect_exit_code(0).expect_stderr(HINT).expect_stderr("`--iface NAME` names one for both");
    assert_eq!(interface_variables(&outcome), ETH0, "{outcome}");
    for quiet in [
        one(&["--iface", "eth0"]),
        one(&[]).env("NCCL_SOCKET_IFNAME", "=fast0"),
        one(&["--device-type", "cpu"]),
        c10d(Name::Torchrun, ENDPOINT, "1:2"),
    ] {
        let outcome = run(quiet);
        outcome.expect_exit_code(0);
        assert!(!outcome.stderr().contains("this host has 2 networks"), "{outcome}");
    }
}
