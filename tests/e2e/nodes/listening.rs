//! Where the stores of nodes listen: everywhere, on the loopback alone, or on one interface alone.

use harness::{Fleet, Gate, Launch, Name, field, is_rankrun};

use super::{assert_all_succeed, c10d, static_launch};

/// Addresses and ports on which a host listens.
fn listening_addresses(fleet: &Fleet, host: usize) -> Vec<String> {
    let lines = fleet.run(host, &["ss", "-Hltn"]);
    lines.lines().filter_map(|line| line.split_whitespace().nth(3)).map(str::to_owned).collect()
}

/// Two agents on one machine, at `localhost`: where they listen, and what the workers are told.
#[track_caller]
fn two_on_one_host(fleet: &Fleet, name: Name, more: &[&str]) -> (Vec<String>, String) {
    two_on_one_host_at(fleet, "localhost", |endpoint, _| c10d(name, endpoint, "2").args(more))
}

/// The same at another endpoint.
#[track_caller]
fn two_on_one_host_at(
    fleet: &Fleet,
    host: &str,
    launch: impl Fn(&str, usize) -> Launch,
) -> (Vec<String>, String) {
    let gate = Gate::closed();
    let jobs = [0, 1].map(|node_rank| {
        let launch = launch(&format!("{host}:29400"), node_rank);
        fleet.on(1, launch.worker(["place", "sum", &gate.step(), "reduce=2"])).start()
    });
    for job in &jobs {
        job.wait_for_line("world=2 total=3");
    }
    let listening = listening_addresses(fleet, 1);
    gate.open(2);
    let outcomes = assert_all_succeed(jobs);
    fleet.is_empty();
    let line = outcomes[0].lines_with("place rank=").pop().expect("a worker sat");
    let master = field(&line, "addr").map(str::to_owned).expect("an address");
    (listening, master)
}

/// As torchrun does: the host of the store may be the only node that calls itself `localhost`.
#[test]
fn localhost_endpoint_listens_everywhere_under_torchrun_name() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(1) else { return };
    let (listening, master) = two_on_one_host(&fleet, Name::Torchrun, &[]);
    // The store of the agents, and that of the workers.
    assert_eq!(listening.len(), 2, "{listening:?}");
    assert!(listening.iter().all(|place| place.starts_with("*:")), "{listening:?}");
    assert_eq!(master, Fleet::address(1));
}

#[test]
fn loopback_endpoint_stores_listen_on_loopback_only() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(1) else { return };
    for (host, store, workers) in [
        ("localhost", "127.0.0.1:", "127.0.0.1:"),
        ("127.0.0.1", "127.0.0.1:", "127.0.0.1:"),
        ("127.3.2.1", "127.3.2.1:", "127.0.0.1:"),
        ("[::1]", "[::1]:", "[::1]:"),
    ] {
        let (listening, _) =
            two_on_one_host_at(&fleet, host, |endpoint, _| c10d(Name::Rankrun, endpoint, "2"));
        assert_eq!(listening.len(), 2, "{host}: {listening:?}");
        let of_the_agents = format!("{store}29400");
        for place in &listening {
            assert!(*place == of_the_agents || place.starts_with(workers), "{host}: {listening:?}");
        }
        assert!(listening.contains(&of_the_agents), "{host}: {listening:?}");
    }
    // The one store of a static job.
    let fixed = |_: &str, node_rank| static_launch(Name::Rankrun, "localhost", 2, node_rank);
    let (listening, _) = two_on_one_host_at(&fleet, "localhost", fixed);
    assert_eq!(listening, ["127.0.0.1:29400"]);
}

/// Both stores of the node that hosts them, where two hosts run.
#[track_caller]
fn listening_of_two(fleet: &Fleet, launch: impl Fn(usize) -> Launch) -> Vec<String> {
    let gate = Gate::closed();
    let jobs = [1, 2].map(|host| {
        let launch = launch(host).worker(["place", "sum", &gate.step(), "reduce=2"]);
        fleet.on(host, launch).start()
    });
    jobs.iter().for_each(|job| drop(job.wait_for_line("world=2 total=3")));
    let listening = listening_addresses(fleet, 1);
    gate.open(2);
    assert_all_succeed(jobs);
    fleet.is_empty();
    listening
}

#[test]
fn iface_option_stores_listen_on_interface_only() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    let own = format!("{}:", Fleet::address(1));
    let named = |launch: Launch| launch.args(["--iface", "eth0"]);
    for endpoint in ["th1:29400", "198.18.0.11:29400"] {
        let listening = listening_of_two(&fleet, |_| named(c10d(Name::Rankrun, endpoint, "2")));
        assert_eq!(listening.len(), 2, "{endpoint}: {listening:?}");
        assert!(listening.iter().all(|place| place.starts_with(&own)), "{endpoint}: {listening:?}");
    }
    let listening = listening_of_two(&fleet, |host| named(static_launch(Name::Rankrun, "th1", 2, host - 1)));
    assert_eq!(listening, [format!("{own}29400")]);
    // By its variable under the other name.
    let by_variable = |_| c10d(Name::Torchrun, "th1:29400", "2").env("RANKRUN_IFACE", "eth0");
    let listening = listening_of_two(&fleet, by_variable);
    assert!(listening.iter().all(|place| place.starts_with(&own)), "{listening:?}");
}

/// The endpoint may be on another network than the interface that the workers use.
#[test]
fn endpoint_on_other_network_than_iface_is_listened_on() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    for host in fleet.hosts() {
        // A second network between the hosts, over the same cable.
        fleet.shell(
            host,
            &format!(
                "ip link add second link eth0 type macvlan mode bridge; \
                 ip addr add 10.77.0.{host}/24 dev second; ip link set second up"
            ),
        );
    }
    let named = |_| c10d(Name::Rankrun, "th1:29400", "2").args(["--iface", "second"]);
    let mut listening = listening_of_two(&fleet, named);
    listening.sort();
    assert_eq!(listening.len(), 2, "{listening:?}");
    assert!(listening[0].starts_with("10.77.0.1:") && listening[1] == "198.18.0.11:29400", "{listening:?}");
}

/// Debian gives a machine's own name the address 127.0.1.1, and the other nodes know its real one.
#[test]
fn hostname_on_loopback_is_reached_by_iface_option() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    fleet.shell(1, "printf '127.0.0.1 localhost\\n127.0.1.1 th1\\n' | cp /dev/stdin /etc/hosts");
    let named = |launch: Launch| launch.args(["--iface", "eth0"]);
    let listening = listening_of_two(&fleet, |_| named(c10d(Name::Rankrun, "th1:29400", "2")));
    assert!(listening.iter().all(|place| place.starts_with("198.18.0.11:")), "{listening:?}");
    // The workers of a static job on that machine look for the store at 127.0.1.1.
    listening_of_two(&fleet, |host| named(static_launch(Name::Rankrun, "th1", 2, host - 1)));
}

#[test]
fn iface_loopback_stores_listen_on_loopback_only() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(1) else { return };
    for more in [["--iface", "lo"], ["--local-addr", "127.0.0.1"]] {
        let (listening, master) = two_on_one_host(&fleet, Name::Rankrun, &more);
        assert_eq!(listening.len(), 2, "{listening:?}");
        assert!(listening.iter().all(|place| place.starts_with("127.0.0.1:")), "{more:?}: {listening:?}");
        assert_eq!(master, "127.0.0.1");
    }
}
