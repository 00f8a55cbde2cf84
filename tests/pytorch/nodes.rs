//! gloo over several hosts: each with its own network, name and loopback.

use std::time::Duration;

use harness::{Fleet, Job, Launch, Name, Outcome, Scratch, is_soak, is_torchrun};

use crate::programs::source;

/// A launcher of ours; with the oracle torchrun.
fn ours() -> Name {
    if is_torchrun() { Name::Reference } else { Name::Rankrun }
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
fn run_meet(fleet: &Fleet, launch: impl Fn(usize) -> Launch) -> Vec<Outcome> {
    let start = |host| fleet.on(host, launch(host)).start();
    let jobs: Vec<Job> = fleet.hosts().map(start).collect();
    let world = jobs.len();
    let outcomes: Vec<_> = jobs.into_iter().map(Job::wait).collect();
    let right = format!("world={world} total={}", world * (world + 1) / 2);
    for outcome in &outcomes {
        outcome
            .expect_exit_code(0)
            .expect_stdout(&right)
            .expect_stdout("finished rank=")
            .expect_absent("panicked");
    }
    fleet.is_empty();
    outcomes
}

#[test]
fn two_hosts_train_over_c10d() {
    let Some(fleet) = Fleet::start(2) else { return };
    run_meet(&fleet, |_| dynamic(ours(), 2, "th1:29400").args([source("meet.py")]));
}

#[test]
fn two_hosts_train_over_static_rendezvous() {
    let Some(fleet) = Fleet::start(2) else { return };
    run_meet(&fleet, |host| fixed(ours(), 2, host - 1, "th1").args([source("meet.py")]));
}

#[test]
fn four_hosts_train_over_c10d() {
    let Some(fleet) = Fleet::start(4) else { return };
    run_meet(&fleet, |_| dynamic(ours(), 4, "th2:29400").args([source("meet.py")]));
}

#[test]
fn four_hosts_train_over_static_rendezvous() {
    let Some(fleet) = Fleet::start(4) else { return };
    run_meet(&fleet, |host| fixed(ours(), 4, 4 - host, "th4").args([source("meet.py")]));
}

/// Each host maps its own name to the loopback, as Debian's installer writes it; other hosts know the real address.
#[track_caller]
fn hosts_named_on_the_loopback(address: &str) -> Option<Fleet> {
    let fleet = Fleet::start(2)?;
    for host in fleet.hosts() {
        let other = 3 - host;
        let names =
            format!("127.0.0.1 localhost\\n{address} th{host}\\n{} th{other}\\n", Fleet::address(other));
        fleet.shell(host, &format!("printf '{names}' | cp /dev/stdin /etc/hosts"));
    }
    Some(fleet)
}

/// gloo and TensorPipe look up the host's own name: two hosts would tell each other 127.0.0.1.
#[test]
fn loopback_named_hosts_connect_over_gloo() {
    if is_torchrun() {
        return;
    }
    for address in ["127.0.0.1", "127.0.1.1"] {
        let Some(fleet) = hosts_named_on_the_loopback(address) else { return };
        // What both addresses have in common is tried with one of them.
        let endpoints = if is_soak() || address == "127.0.1.1" { 2 } else { 1 };
        for endpoint in ["th1:29400", "198.18.0.11:29400"].into_iter().take(endpoints) {
            run_meet(&fleet, |_| dynamic(Name::Rankrun, 2, endpoint).args([source("meet.py")]));
        }
        run_meet(&fleet, |host| {
            fixed(Name::Rankrun, 2, host - 1, &Fleet::address(1)).args([source("meet.py")])
        });
    }
}

#[test]
fn loopback_named_hosts_connect_over_rpc() {
    if is_torchrun() {
        return;
    }
    let Some(fleet) = hosts_named_on_the_loopback("127.0.1.1") else { return };
    let start = |host| {
        let launch = dynamic(Name::Rankrun, 2, "th1:29400").args([source("call.py")]);
        fleet.on(host, launch).start()
    };
    let jobs: Vec<Job> = fleet.hosts().map(start).collect();
    for outcome in jobs.into_iter().map(Job::wait) {
        outcome.expect_exit_code(0).expect_stdout("called world=2 answer=").expect_stdout("interface=eth0");
    }
    fleet.is_empty();
}

/// What the user says about gloo stands, also where it is wrong.
#[test]
fn gloo_interface_set_by_user_is_kept() {
    if is_torchrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    let start = |host| {
        let launch = dynamic(Name::Rankrun, 2, "th1:29400").env("GLOO_SOCKET_IFNAME", "nope");
        fleet.on(host, launch.args([source("meet.py")])).start()
    };
    let jobs: Vec<Job> = fleet.hosts().map(start).collect();
    let outcomes: Vec<Outcome> = jobs.into_iter().map(Job::wait).collect();
    for outcome in &outcomes {
        outcome.expect_absent("finished");
    }
    // The rank that fails first may have the other one stopped before it says so too.
    assert!(outcomes.iter().any(|outcome| outcome.stderr().contains("nope")), "{outcomes:?}");
}

/// gloo finds no address by itself there: it is given the interface, that of the way to the store or the one that is named.
#[test]
fn hosts_with_unresolvable_names_train() {
    if is_torchrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    fleet.hosts().for_each(|host| fleet.remove_host_names(host));
    let endpoint = format!("{}:29400", Fleet::address(1));
    let own = || dynamic(Name::Rankrun, 2, &endpoint);
    run_meet(&fleet, |_| own().args(["--iface", "eth0"]).args([source("meet.py")]));
    run_meet(&fleet, |_| own().args([source("meet.py")]));
}

#[test]
fn hosts_with_ipv6_only_train() {
    if is_torchrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    fleet.disable_ipv4();
    let endpoint = format!("[{}]:29400", Fleet::address_v6(1));
    run_meet(&fleet, |_| dynamic(Name::Rankrun, 2, &endpoint).args([source("meet.py")]));
}

/// The script that fails on these hosts, one after the other, each time in a generation of its own.
fn failing(launch: Launch, hosts: &[&str], folder: &str) -> Launch {
    let launch = launch.args(["--max-restarts", "3"]).args([source("meet.py")]).args(["--marks", folder]);
    hosts.iter().fold(launch, |launch, host| launch.args(["--fail", host]))
}

/// Every rank has the right sum in each of so many generations.
#[track_caller]
fn assert_attempts(outcomes: &[Outcome], times: usize) {
    let world = outcomes.len();
    let right = format!("world={world} total={}", world * (world + 1) / 2);
    for outcome in outcomes {
        assert_eq!(outcome.lines_with(&right).len(), times, "{outcome}");
    }
}

/// Hosts of torchrun, and as many of ours; a worker of each kind fails: each time all start again. `torchrun` is the first
/// host of torchrun, and the last host fails before the first one.
#[track_caller]
fn run_mixed_launchers(torchrun: usize) {
    // Each host imports PyTorch in three generations.
    let hosts = if is_soak() { 4 } else { 2 };
    let Some(fleet) = Fleet::start(hosts) else { return };
    let scratch = Scratch::new();
    let folder = scratch.folder("attempts", 0o777);
    let outcomes = run_meet(&fleet, |host| {
        let name = if host % 2 == torchrun % 2 { Name::Reference } else { ours() };
        // Ranks follow the addresses as text: host 1 has rank 0.
        let launch = dynamic(name, hosts, "th2:29400").args(["--local-addr", &Fleet::address(host)]);
        failing(launch, &[&format!("th{hosts}"), &format!("th{}", hosts - 1)], &folder)
    });
    assert_attempts(&outcomes, 3);
}

#[test]
fn rankrun_store_serves_torchrun_nodes() {
    run_mixed_launchers(1);
}

#[test]
fn torchrun_store_serves_rankrun_nodes() {
    run_mixed_launchers(2);
}

/// The rank on the store's host loses the one that fails, and tells of that first.
#[test]
fn gloo_failure_on_remote_node_restarts_job() {
    if is_torchrun() {
        return;
    }
    for (delay, form) in [(2, "--record"), (20, "")] {
        let Some(fleet) = Fleet::start(2) else { return };
        fleet.hosts().for_each(|host| fleet.delay(host, Duration::from_millis(delay)));
        let start = |host| {
            let launch = dynamic(Name::Rankrun, 2, "th1:29400").args(["--max-restarts", "3"]);
            let launch = launch.args([source("lose.py")]).args(["--fail", "th2"]);
            fleet.on(host, launch.args(Some(form).filter(|form| !form.is_empty()))).start()
        };
        let jobs: Vec<Job> = fleet.hosts().map(start).collect();
        for (job, last) in jobs.into_iter().zip(["0", "1"]) {
            let outcome = job.wait();
            outcome.expect_exit_code(0).expect_stdout("finished rank=").expect_absent("panicked");
            let attempt_lines = outcome.lines_with("attempt rank=");
            let counts: Vec<_> = attempt_lines.iter().filter_map(|line| line.rsplit('=').next()).collect();
            assert_eq!(counts, ["0", last], "{outcome}");
        }
        fleet.is_empty();
    }
}

/// torchrun's switch: the worker with rank 0 hosts the workers' store, at another port in each generation; but the one of a static
/// job is always the agent's.
#[test]
fn rank_0_worker_hosts_store() {
    const SWITCH: &str = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE";
    let Some(fleet) = Fleet::start(2) else { return };
    let scratch = Scratch::new();
    let folder = scratch.folder("dynamic", 0o777);
    let own = |_| failing(dynamic(ours(), 2, "th2:29400").env(SWITCH, "1"), &["th2", "th1"], &folder);
    let outcomes = run_meet(&fleet, own);
    assert_attempts(&outcomes, 3);
    for outcome in &outcomes {
        assert_eq!(outcome.lines_with("agent_store=False").len(), 3, "{outcome}");
    }
    if is_torchrun() {
        // A restart of its static jobs is that of one node alone.
        return;
    }
    let folder = scratch.folder("static", 0o777);
    let own = |host| failing(fixed(ours(), 2, host - 1, "th1").env(SWITCH, "1"), &["th2"], &folder);
    let outcomes = run_meet(&fleet, own);
    assert_attempts(&outcomes, 2);
    for outcome in &outcomes {
        assert_eq!(outcome.lines_with("agent_store=True").len(), 2, "{outcome}");
    }
}

/// The same switch where either launcher has rank 0 once.
#[test]
fn rank_0_worker_hosts_store_for_mixed_launchers() {
    for torchrun in [1, 2] {
        if !is_soak() {
            return;
        }
        let Some(fleet) = Fleet::start(2) else { return };
        let scratch = Scratch::new();
        let folder = scratch.folder("attempts", 0o777);
        let outcomes = run_meet(&fleet, |host| {
            let name = if host == torchrun { Name::Reference } else { ours() };
            let launch = dynamic(name, 2, "th1:29400").args(["--local-addr", &Fleet::address(host)]);
            failing(launch.env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"), &["th2", "th1"], &folder)
        });
        assert_attempts(&outcomes, 3);
    }
}
