//! How hosts reach each other: names that do not resolve, `localhost`, IPv6 alone, interfaces, and walls with few open
//! ports.

use harness::{Fleet, Job, Launch, Name, Outcome, field, is_rankrun};

use super::{assert_all_succeed, c10d, static_launch};

const STEPS: [&str; 4] = ["place", "sum", "reduce=2", "env"];

/// The job on hosts 1 and 2: both ways to find each other.
#[track_caller]
fn run_c10d_and_static(
    name: Name,
    fleet: &Fleet,
    master: &str,
    more: impl Fn(Launch) -> Launch,
) -> Vec<Outcome> {
    let endpoint = if master.contains(':') { format!("[{master}]:29400") } else { format!("{master}:29400") };
    let dynamic = |_| more(c10d(name, &endpoint, "2")).worker(STEPS);
    let static_ = |host| more(static_launch(name, master, 2, host - 1)).worker(STEPS);
    let mut outcomes = run(fleet, dynamic);
    outcomes.extend(run(fleet, static_));
    outcomes
}

#[track_caller]
fn run(fleet: &Fleet, launch: impl Fn(usize) -> Launch) -> Vec<Outcome> {
    let jobs: Vec<Job> = [1, 2].map(|host| fleet.on(host, launch(host)).start()).into();
    let outcomes = assert_all_succeed(jobs);
    for outcome in &outcomes {
        outcome.expect_stdout("world=2 total=3").expect_stdout("reduced rank=");
    }
    fleet.is_empty();
    outcomes
}

/// The value that the workers' environment has.
#[track_caller]
fn master_addr(outcome: &Outcome) -> String {
    let line = outcome.lines_with("place rank=").pop().expect("a worker sat");
    field(&line, "addr").map(str::to_owned).expect("an address")
}

#[test]
fn hosts_with_unresolvable_names_meet_by_address() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    fleet.hosts().for_each(|host| fleet.remove_host_names(host));
    for name in Name::both() {
        for outcome in run_c10d_and_static(*name, &fleet, &Fleet::address(1), |launch| launch) {
            assert_eq!(master_addr(&outcome), Fleet::address(1), "{outcome}");
        }
    }
}

#[test]
fn ipv6_only_hosts_meet() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    fleet.disable_ipv4();
    for outcome in run_c10d_and_static(Name::Rankrun, &fleet, &Fleet::address_v6(1), |launch| launch) {
        assert_eq!(master_addr(&outcome), Fleet::address_v6(1), "{outcome}");
    }
    // By its name.
    run_c10d_and_static(Name::Rankrun, &fleet, "th1", |launch| launch);
}

#[test]
fn iface_option_sets_master_addr_and_variables() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    for host in fleet.hosts() {
        // One that leads nowhere, and comes first in the alphabet.
        fleet.shell(
            host,
            "ip link add aside type veth peer name nowhere; ip addr add 10.77.0.9/24 dev aside; \
             ip link set aside up; ip link set nowhere up",
        );
        fleet.remove_host_names(host);
    }
    let named = |launch: Launch| launch.args(["--iface", "eth0"]).env("NCCL_SOCKET_IFNAME", "mine");
    for outcome in run_c10d_and_static(Name::Rankrun, &fleet, &Fleet::address(1), named) {
        assert_eq!(master_addr(&outcome), Fleet::address(1), "{outcome}");
        assert_eq!(outcome.lines_with(" GLOO_SOCKET_IFNAME=eth0").len(), 1, "{outcome}");
        assert_eq!(outcome.lines_with(" NCCL_SOCKET_IFNAME=mine").len(), 1, "{outcome}");
    }
    // The other one is published when it is the one that is named; NCCL would take a bare name for a prefix.
    let launch = c10d(Name::Rankrun, "127.0.0.1:29400", "1:2").args(["--iface", "aside"]);
    let outcome = fleet.on(1, launch.worker(["place", "sum", "env"])).run();
    assert_eq!(master_addr(outcome.expect_exit_code(0)), "10.77.0.9", "{outcome}");
    assert_eq!(outcome.lines_with(" NCCL_SOCKET_IFNAME==aside").len(), 1, "{outcome}");
    let unknown = c10d(Name::Rankrun, "127.0.0.1:29400", "1").args(["--iface", "eth7"]);
    fleet
        .on(1, unknown.worker(["place"]))
        .run()
        .expect_exit_code(1)
        .expect_stderr("`eth7`")
        .expect_stderr("eth0");
}

#[test]
fn local_addr_overrides_master_addr() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    for name in Name::both() {
        let own = |host| {
            let launch = c10d(*name, "th2:29400", "2").args(["--local-addr", &Fleet::address_v6(host)]);
            launch.worker(STEPS)
        };
        for outcome in run(&fleet, own) {
            assert_eq!(master_addr(&outcome), Fleet::address_v6(1), "{outcome}");
        }
    }
}

/// The node that hosts may call itself `localhost` while the others call it by its name.
#[track_caller]
fn host_at_localhost(fleet: &Fleet, names: [Name; 2], store: usize, own_name: &str) -> Vec<Outcome> {
    run(fleet, |host| {
        let place = if host == store { own_name.to_owned() } else { format!("th{store}") };
        c10d(names[host - 1], &format!("{place}:29400"), "2").worker(STEPS)
    })
}

/// Rank 0 is the node with the lower address, whether it hosts or not. Under torchrun's name alone: it is torchrun's promise.
#[test]
fn localhost_endpoint_of_store_host_works_under_torchrun_name() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    for (store, own_name) in [(1, "localhost"), (2, "localhost"), (1, "127.0.0.1"), (2, "[::1]")] {
        for outcome in host_at_localhost(&fleet, [Name::Torchrun; 2], store, own_name) {
            assert_eq!(master_addr(&outcome), Fleet::address(1), "{outcome}");
        }
    }
}

/// Under our own name a loopback endpoint keeps other machines out, and the line about the address says so. The address
/// or the interface by which they come lets them in.
#[test]
fn localhost_endpoint_admits_peers_only_with_local_addr_or_iface() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    let agent = |host: usize, more: &[&str]| {
        let place = ["localhost", "th1"][host - 1];
        let conf = "join_timeout=5,read_timeout=5";
        let launch = c10d(Name::Rankrun, &format!("{place}:29400"), "2").args(["--rdzv-conf", conf]);
        fleet.on(host, launch.args(more).worker(STEPS)).start()
    };
    let [hosting, other] = [agent(1, &[]), agent(2, &[])].map(Job::wait);
    hosting.expect_exit_code(1).expect_stderr("the rendezvous store at `127.0.0.1:29400`");
    hosting.expect_stderr(
        "since the endpoint is this machine alone; `--local-addr` or `--iface` lets other machines in",
    );
    other
        .expect_exit_code(1)
        .expect_stderr("cannot reach the rendezvous store at `th1:29400`")
        .expect_stderr("nothing listens there");
    let address = Fleet::address(1);
    for more in [["--local-addr", &address], ["--iface", "eth0"]] {
        for outcome in assert_all_succeed([agent(1, &more), agent(2, &[])]) {
            assert_eq!(master_addr(outcome.expect_stdout("world=2 total=3")), address, "{outcome}");
        }
    }
    fleet.is_empty();
}

/// With torchrun on either side.
#[test]
fn localhost_endpoint_works_with_torchrun_peer() {
    let Some(fleet) = Fleet::start(2) else { return };
    for names in [[Name::Torchrun, Name::Reference], [Name::Reference, Name::Rankrun]] {
        host_at_localhost(&fleet, names, 1, "localhost");
    }
}

/// Also where its endpoint has a name that others know.
#[test]
fn single_node_workers_use_listening_address() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(1) else { return };
    let address = Fleet::address(1);
    let cases: [(&[&str], &str); 4] = [
        (&[], "127.0.0.1"),
        (&["--local-addr", &address], &address),
        (&["--local-addr", "th1"], "th1"),
        (&["--iface", "eth0"], "127.0.0.1"),
    ];
    for (more, addr) in cases {
        let launch = c10d(Name::Rankrun, "th1:29400", "1").args(more).worker(["place", "sum"]);
        let outcome = fleet.on(1, launch).run();
        assert_eq!(
            master_addr(outcome.expect_exit_code(0).expect_stdout("world=1 total=1")),
            addr,
            "{outcome}"
        );
    }
    fleet.is_empty();
}

/// As with torchrun: a node that hosts reaches itself there.
#[test]
fn any_local_address_makes_node_store_host() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    let meet = |launch: &dyn Fn(usize) -> Launch| {
        let jobs = [1, 2].map(|host| fleet.on(host, launch(host).worker(STEPS)).start());
        for outcome in assert_all_succeed(jobs) {
            outcome.expect_stdout("world=2 total=3").expect_stdout("reduced rank=");
        }
    };
    for name in Name::both() {
        let hosting = |_| c10d(*name, "0.0.0.0:29400", "2").args(["--rdzv-conf", "is_host=1"]);
        meet(&|host| if host == 1 { hosting(host) } else { c10d(*name, "th1:29400", "2") });
        for own_name in ["::", "localhost", "0.0.0.0"] {
            if (*name, own_name) == (Name::Rankrun, "localhost") {
                // This machine alone.
                continue;
            }
            meet(&|host| static_launch(*name, [own_name, "th1"][host - 1], 2, host - 1));
        }
    }
    fleet.is_empty();
}

#[test]
fn local_addr_without_interface_is_reported() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    for name in Name::both() {
        let outcomes = run(&fleet, |host| {
            // The address of the node with rank 1, to which no worker connects.
            let addr = [&Fleet::address(1), "203.0.113.7"][host - 1].to_owned();
            c10d(*name, "th1:29400", "2").args(["--local-addr", &addr]).worker(STEPS)
        });
        outcomes[1].expect_stderr("`--local-addr` is `203.0.113.7`, which no interface of this machine has");
        assert!(!outcomes[0].stderr().contains("no interface"), "{}", outcomes[0]);
    }
}

/// Only the ports of the range are open, on both hosts: agents and stores of ours need no others.
#[test]
fn port_range_is_kept_behind_firewall() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    fleet.hosts().for_each(|host| fleet.allow_only_ports(host, 30_000, 30_009));
    let steps = ["place", "sum"];
    let jobs = [1, 2].map(|host| {
        let launch = c10d(Name::Rankrun, "th2:30000", "2").args(["--port-range", "30000-30009"]);
        fleet.on(host, launch.worker(steps)).start()
    });
    for outcome in assert_all_succeed(jobs) {
        let line =
            outcome.expect_stdout("world=2 total=3").lines_with("place rank=").pop().expect("a placement");
        let port: u16 = field(&line, "port").and_then(|port| port.parse().ok()).expect("a port");
        assert!((30_000..=30_009).contains(&port), "{outcome}");
    }
    // The wall stands: what is outside of it does not arrive.
    let dropped =
        fleet.shell(2, "timeout 1 bash -c 'exec 3<>/dev/tcp/th1/31000' 2>/dev/null || echo dropped");
    assert_eq!(dropped, "dropped\n");
    fleet.is_empty();
}
