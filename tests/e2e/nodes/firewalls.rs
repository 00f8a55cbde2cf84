//! Jobs behind walls with few open ports, and stores that the worker with rank 0 opens.

use harness::{Fleet, Job, Launch, Name, Outcome, field, is_rankrun};

use super::{assert_all_succeed, c10d, static_launch};

/// The open ports, and the option that keeps to them.
const FIRST: u16 = 30_000;
const LAST: u16 = 30_009;
const RANGE: [&str; 2] = ["--port-range", "30000-30009"];

/// Two hosts that let in new connections to these ports alone.
#[track_caller]
fn firewalled_fleet() -> Option<Fleet> {
    let fleet = Fleet::start(2)?;
    fleet.hosts().for_each(|host| fleet.allow_only_ports(host, FIRST, LAST));
    Some(fleet)
}

#[track_caller]
fn run(fleet: &Fleet, launch: impl Fn(usize) -> Launch) -> Vec<Outcome> {
    let jobs: Vec<Job> = [1, 2].map(|host| fleet.on(host, launch(host)).start()).into();
    assert_all_succeed(jobs)
}

/// A packet from outside of the firewall does not arrive, though a listener is there.
#[track_caller]
fn assert_firewall_drops(fleet: &Fleet) {
    let dropped =
        fleet.shell(2, "timeout 1 bash -c 'exec 3<>/dev/tcp/th1/31000' 2>/dev/null || echo dropped");
    assert_eq!(dropped, "dropped\n");
    fleet.is_empty();
}

#[track_caller]
fn master_port(outcome: &Outcome) -> u16 {
    let line = outcome.lines_with("place rank=").pop().expect("a placement");
    field(&line, "port").and_then(|port| port.parse().ok()).expect("a port")
}

#[test]
fn static_job_runs_behind_firewall() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = firewalled_fleet() else { return };
    let launch = |host: usize| {
        let launch = Launch::new(Name::Rankrun).args(["--nnodes", "2", "--node-rank"]);
        let launch =
            launch.args([(host - 1).to_string().as_str(), "--master-addr", "th1", "--master-port", "30004"]);
        // A second round is over the same ports.
        launch.args(RANGE).args(["--max-restarts", "1"]).worker(["place", "sum", "rank1:attempt0:exit=3"])
    };
    for outcome in run(&fleet, launch) {
        assert_eq!(outcome.lines_with("place rank=").len(), 2, "{outcome}");
        // A worker of the first round may be stopped before it prints the sum.
        assert!(!outcome.lines_with("world=2 total=3").is_empty(), "{outcome}");
        assert_eq!(master_port(&outcome), 30_004, "{outcome}");
    }
    assert_firewall_drops(&fleet);
}

/// The port that worker rank 0 is told is in the range, and another one in the next round.
#[test]
fn worker_hosted_store_uses_port_range() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = firewalled_fleet() else { return };
    let launch = |_| {
        let launch = c10d(Name::Rankrun, "th1:30000", "2").args(RANGE).args(["--max-restarts", "1"]);
        launch.env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1").worker([
            "place",
            "env",
            "rank1:attempt0:exit=3",
        ])
    };
    let mut all = Vec::new();
    for outcome in run(&fleet, launch) {
        let lines = outcome.lines_with("place rank=");
        let ports: Vec<u16> = lines.iter().filter_map(|line| field(line, "port")?.parse().ok()).collect();
        assert_eq!(ports.len(), 2, "{outcome}");
        assert!(ports.iter().all(|port| (FIRST + 1..=LAST).contains(port)), "{outcome}");
        assert_ne!(ports[0], ports[1], "{outcome}");
        assert_eq!(outcome.lines_with(" TORCHELASTIC_USE_AGENT_STORE=False").len(), 2, "{outcome}");
        all.push(ports);
    }
    assert_eq!(all[0], all[1]);
    assert_firewall_drops(&fleet);
}

/// A static job has one store, torchrun's rule: the agent's, whatever that variable says.
#[test]
fn static_job_uses_agent_store() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    let launch = |host: usize| {
        let launch =
            static_launch(Name::Rankrun, "th1", 2, host - 1).env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1");
        launch.worker(["place", "sum", "env"])
    };
    for outcome in run(&fleet, launch) {
        outcome.expect_stdout("world=2 total=3").expect_stdout(" TORCHELASTIC_USE_AGENT_STORE=True");
        assert_eq!(master_port(&outcome), 29_400, "{outcome}");
    }
    fleet.is_empty();
}
