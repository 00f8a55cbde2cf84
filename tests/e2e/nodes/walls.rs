//! Jobs behind walls with few open ports, and stores that the worker with rank 0 opens.

use harness::{Fleet, Job, Launch, Name, Outcome, field, only_ours};

use super::{c10d, fixed, succeed};

/// The open ports, and the option that keeps to them.
const FIRST: u16 = 30_000;
const LAST: u16 = 30_009;
const RANGE: [&str; 2] = ["--port-range", "30000-30009"];

/// Two hosts that let in new connections to these ports alone.
#[track_caller]
fn walled() -> Option<Fleet> {
    let fleet = Fleet::up(2)?;
    fleet.hosts().for_each(|host| fleet.wall(host, FIRST, LAST));
    Some(fleet)
}

#[track_caller]
fn run(fleet: &Fleet, launch: impl Fn(usize) -> Launch) -> Vec<Outcome> {
    let jobs: Vec<Job> = [1, 2].map(|host| fleet.on(host, launch(host)).start()).into();
    succeed(jobs)
}

/// A packet from outside of the firewall does not arrive, though a listener is there.
#[track_caller]
fn stands(fleet: &Fleet) {
    let dropped =
        fleet.shell(2, "timeout 1 bash -c 'exec 3<>/dev/tcp/th1/31000' 2>/dev/null || echo dropped");
    assert_eq!(dropped, "dropped\n");
    fleet.is_empty();
}

#[track_caller]
fn port(outcome: &Outcome) -> u16 {
    let line = outcome.lines_with("seat rank=").pop().expect("a seat");
    field(&line, "port").and_then(|port| port.parse().ok()).expect("a port")
}

#[test]
fn a_static_job_behind_a_wall() {
    if !only_ours() {
        return;
    }
    let Some(fleet) = walled() else { return };
    let launch = |host: usize| {
        let launch = Launch::new(Name::Rankrun).args(["--nnodes", "2", "--node-rank"]);
        let launch =
            launch.args([(host - 1).to_string().as_str(), "--master-addr", "th1", "--master-port", "30004"]);
        // A second round is over the same ports.
        launch.args(RANGE).args(["--max-restarts", "1"]).worker(["seat", "sum", "rank1:life0:exit=3"])
    };
    for outcome in run(&fleet, launch) {
        assert_eq!(outcome.lines_with("world=2 total=3").len(), 2, "{outcome}");
        assert_eq!(port(&outcome), 30_004, "{outcome}");
    }
    stands(&fleet);
}

/// The port that worker rank 0 is told is in the range, and another one in the next round.
#[test]
fn the_workers_own_store_behind_a_wall() {
    if !only_ours() {
        return;
    }
    let Some(fleet) = walled() else { return };
    let launch = |_| {
        let launch = c10d(Name::Rankrun, "th1:30000", "2").args(RANGE).args(["--max-restarts", "1"]);
        launch.env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1").worker(["seat", "env", "rank1:life0:exit=3"])
    };
    let mut all = Vec::new();
    for outcome in run(&fleet, launch) {
        let lines = outcome.lines_with("seat rank=");
        let ports: Vec<u16> = lines.iter().filter_map(|line| field(line, "port")?.parse().ok()).collect();
        assert_eq!(ports.len(), 2, "{outcome}");
        assert!(ports.iter().all(|port| (FIRST + 1..=LAST).contains(port)), "{outcome}");
        assert_ne!(ports[0], ports[1], "{outcome}");
        assert_eq!(outcome.lines_with(" TORCHELASTIC_USE_AGENT_STORE=False").len(), 2, "{outcome}");
        all.push(ports);
    }
    assert_eq!(all[0], all[1]);
    stands(&fleet);
}

/// A static job has one store, torchrun's rule: the agent's, whatever that variable says.
#[test]
fn a_static_job_keeps_the_agents_store() {
    if !only_ours() {
        return;
    }
    let Some(fleet) = Fleet::up(2) else { return };
    let launch = |host: usize| {
        let launch = fixed(Name::Rankrun, "th1", 2, host - 1).env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1");
        launch.worker(["seat", "sum", "env"])
    };
    for outcome in run(&fleet, launch) {
        outcome.says("world=2 total=3").says(" TORCHELASTIC_USE_AGENT_STORE=True");
        assert_eq!(port(&outcome), 29_400, "{outcome}");
    }
    fleet.is_empty();
}
