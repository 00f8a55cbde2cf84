//! The first failure of several nodes is the cause, whatever the network's delay, and costs a restart of its node.

use std::time::Duration;

use harness::{Fleet, Gate, Job, Launch, Name, Outcome, Scratch, example, field, is_rankrun, is_soak};

use super::{ENDPOINT, assert_all_succeed, c10d, static_launch};

/// How the nodes of a job meet; host 1 has the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreKind {
    Dynamic,
    Static,
}

impl StoreKind {
    fn launch(self, name: Name, hosts: usize, host: usize) -> Launch {
        match self {
            Self::Dynamic => c10d(name, ENDPOINT, &hosts.to_string()),
            Self::Static => static_launch(name, "th1", hosts, host - 1),
        }
    }
}

/// Hosts that are this far from each other, in milliseconds one way.
fn fleet_with_delay(hosts: usize, delay: u64) -> Option<Fleet> {
    let fleet = Fleet::start(hosts)?;
    fleet.hosts().for_each(|host| fleet.delay(host, Duration::from_millis(delay)));
    Some(fleet)
}

/// Each delay, each way to meet, two and three nodes: a few of the combinations, in a soak all of them three times.
fn combinations() -> Vec<(u64, StoreKind, usize)> {
    if !is_soak() {
        return vec![(2, StoreKind::Dynamic, 3), (20, StoreKind::Static, 2), (100, StoreKind::Dynamic, 2)];
    }
    let mut all = Vec::new();
    for delay in [2, 20, 100] {
        for together in [StoreKind::Dynamic, StoreKind::Static] {
            for hosts in [2, 3] {
                all.extend([(delay, together, hosts); 3]);
            }
        }
    }
    all
}

/// A training in Rust. Its last rank, which is not on the store's host, fails once before step 6.
fn training(launch: Launch, rank: usize) -> Launch {
    let launch = launch.args(["--no-python".into(), example("ddp_training").into_os_string()]);
    launch.args(["--steps", "12", "--fail-at", "6", "--fail-rank", &rank.to_string()])
}

/// The restart count that each generation of these workers saw, in their order.
fn restart_counts(outcome: &Outcome) -> Vec<String> {
    let lines = outcome.lines_with(": pid ");
    let count = |line: &String| line.rsplit_once("restart ").map(|(_, count)| count.trim().to_owned());
    lines.iter().filter_map(count).collect()
}

/// Rank 0 loses the failing rank, and its word is the first in the store, which is next to it.
#[test]
fn failure_on_far_node_charges_its_restart() {
    if !is_rankrun() {
        return;
    }
    let mut done = 0;
    for (delay, together, hosts) in combinations() {
        let Some(fleet) = fleet_with_delay(hosts, delay) else { return };
        let rank = hosts - 1;
        let start = |host| {
            let launch = together.launch(Name::Rankrun, hosts, host).args(["--max-restarts", "3"]);
            fleet.on(host, training(launch, rank)).start()
        };
        let outcomes = assert_all_succeed(fleet.hosts().map(start).collect::<Vec<_>>());
        for (host, outcome) in fleet.hosts().zip(&outcomes) {
            let expected = if host == hosts { ["0", "1"] } else { ["0", "0"] };
            assert_eq!(
                restart_counts(outcome),
                expected,
                "{delay} ms, {together:?}, {hosts} hosts: {outcomes:?}"
            );
        }
        outcomes[rank].expect_stderr("starting all workers again (restart 1 of 3)");
        fleet.is_empty();
        done += 1;
    }
    super::report_soak("restarts of the node of the failure", done);
}

/// With `--log-from first-failure` one node of many tells the whole story.
#[test]
fn report_is_printed_on_the_node_of_the_first_failure_alone() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(3) else { return };
    let start = |host| {
        let launch = c10d(Name::Rankrun, ENDPOINT, "3").args(["--log-from", "first-failure"]);
        fleet.on(host, training(launch, 2)).start()
    };
    let outcomes: Vec<_> = fleet.hosts().map(start).collect::<Vec<_>>().into_iter().map(Job::wait).collect();
    let (last_lines, first) =
        ("failed before step 6, as asked", "(th3, 198.18.0.13) failed first: exit code");
    for outcome in &outcomes[..2] {
        outcome.expect_exit_code(1).expect_stderr(first).expect_stderr("says more");
        outcome.expect_absent("last lines:").expect_absent("  worker  ");
    }
    outcomes[2].expect_exit_code(1).expect_stderr(last_lines).expect_stderr("  worker  ");
    fleet.is_empty();
}

#[test]
fn final_failure_on_far_node_is_named_on_every_node() {
    if !is_rankrun() {
        return;
    }
    for (delay, together, hosts) in combinations() {
        let Some(fleet) = fleet_with_delay(hosts, delay) else { return };
        let rank = hosts - 1;
        let start =
            |host| fleet.on(host, training(together.launch(Name::Rankrun, hosts, host), rank)).start();
        let outcomes: Vec<_> =
            fleet.hosts().map(start).collect::<Vec<_>>().into_iter().map(Job::wait).collect();
        for outcome in &outcomes {
            let first = format!(
                "rank {rank} (local rank 0) on node {rank} (th{hosts}, 198.18.0.1{hosts}) failed first"
            );
            outcome.expect_exit_code(1).expect_stderr(&first).expect_stderr("failed before step 6, as asked");
        }
        fleet.is_empty();
    }
}

/// The generations of a host, by their restart counts.
fn attempts(outcome: &Outcome) -> Vec<String> {
    let placements = outcome.lines_with("place rank=");
    placements.iter().filter_map(|line| field(line, "attempt").map(str::to_owned)).collect()
}

/// Each is charged, as under torchrun, and for the job it is one restart. The hosts are so far from each other that no node
/// hears of the other's failure before its own.
#[test]
fn simultaneous_failures_charge_both_nodes() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let Some(fleet) = fleet_with_delay(2, 100) else { return };
        let gate = Gate::closed();
        let gated = format!("attempt0:{}", gate.step());
        let start = |host| {
            let launch = c10d(*name, ENDPOINT, "2").args(["--max-restarts", "1"]);
            fleet.on(host, launch.worker(["place", "sum", &gated, "attempt0:exit=3"])).start()
        };
        let jobs: Vec<_> = fleet.hosts().map(start).collect();
        jobs.iter().for_each(|job| drop(job.wait_for_line("world=2 total=3")));
        gate.open(2);
        for outcome in assert_all_succeed(jobs) {
            assert_eq!(attempts(&outcome), ["0", "1"], "{outcome}");
        }
        fleet.is_empty();
    }
}

/// One node fails in the first generation, the other in the second.
#[test]
fn restart_budget_is_per_job_or_per_node_under_torchrun_name() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let Some(fleet) = fleet_with_delay(2, 2) else { return };
        let scratch = Scratch::new();
        let steps = [("one", "th2,5"), ("two", "th1,6")]
            .map(|(attempt, failing)| format!("first={},{failing}", scratch.folder(attempt, 0o777)));
        let start = |host| {
            let launch = c10d(*name, ENDPOINT, "2").args(["--max-restarts", "1"]);
            fleet.on(host, launch.worker(["place", "sum", &steps[0], &steps[1]])).start()
        };
        let jobs: Vec<_> = fleet.hosts().map(start).collect();
        let outcomes: Vec<_> = jobs.into_iter().map(Job::wait).collect();
        match name {
            Name::Rankrun => {
                outcomes[0].expect_exit_code(6).expect_stderr("restarts  1 of 1 used");
                outcomes[1]
                    .expect_exit_code(1)
                    .expect_stderr("on node 0 (th1, 198.18.0.11) failed first: exit code 6");
            }
            Name::Torchrun | Name::Reference => outcomes.iter().for_each(|outcome| {
                outcome.expect_exit_code(0);
            }),
        }
        fleet.is_empty();
    }
}

/// What the Rust runtime writes of a lost rank.
const LOST_RANK_1: &str = r#"rank0:error-file={"message":{"message":"lost rank 1","extraInfo":{"py_callstack":"","timestamp":"1700000000","lost_rank":"1"}}}"#;

/// Rank 1 lives, and its node has nothing to tell: the failure is rank 0's, and the restart is its node's.
#[test]
fn lost_peer_that_is_alive_does_not_take_blame() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = fleet_with_delay(2, 20) else { return };
    let scratch = Scratch::new();
    let first = format!("first={},0,4", scratch.folder("attempts", 0o777));
    let start = |host| {
        let launch = c10d(Name::Rankrun, ENDPOINT, "2").args(["--max-restarts", "1"]);
        let steps = ["place", "sum", LOST_RANK_1, &first, "print=finished"];
        fleet.on(host, launch.worker(steps)).start()
    };
    let outcomes = assert_all_succeed(fleet.hosts().map(start).collect::<Vec<_>>());
    assert_eq!([attempts(&outcomes[0]), attempts(&outcomes[1])], [["0", "1"], ["0", "0"]], "{outcomes:?}");
    outcomes[1].expect_stderr(
        "rank 0 (local rank 0) on node 0 (th1, 198.18.0.11) failed: exit code 4 (it lost rank 1)",
    );
    fleet.is_empty();
}

/// Rank 1 ignores its stop for longer than a lease: rank 0's node does not wait for what it may have to tell.
#[test]
fn lost_peer_that_does_not_exit_delays_report_by_lease() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    let start = |host| {
        let launch = c10d(Name::Rankrun, ENDPOINT, "2").args(["--lease", "2", "--grace", "600"]);
        let steps = ["place", "rank1:deaf", "sum", LOST_RANK_1, "rank0:exit=4", "forever"];
        fleet.on(host, launch.worker(steps)).start()
    };
    let jobs: Vec<_> = fleet.hosts().map(start).collect();
    let [one, two] = <[Job; 2]>::try_from(jobs).expect("two jobs");
    one.wait()
        .expect_exit_code(4)
        .expect_stderr("rank 0 (local rank 0) on node 0 (th1, 198.18.0.11) failed first: exit code 4");
    let line = two.wait_for_line("place rank=1");
    let pid = field(&line, "pid").and_then(|pid| pid.parse().ok()).expect("a worker says its pid");
    two.signal_to(pid, nix::sys::signal::Signal::SIGKILL);
    two.wait()
        .expect_exit_code(1)
        .expect_stderr("rank 0 (local rank 0) on node 0 (th1, 198.18.0.11) failed first: exit code 4");
    fleet.is_empty();
}

/// Rank 1 has written its failure and is slow to go: our stop ends it, when rank 0's node has told that it lost it.
#[test]
fn lost_peer_that_exits_slowly_is_the_cause() {
    if !is_rankrun() {
        return;
    }
    let own = r#"rank1:error-file={"message":"ValueError: bad column 7","timestamp":"1700000000"}"#;
    let Some(fleet) = fleet_with_delay(2, 2) else { return };
    let start = |host| {
        let launch = c10d(Name::Rankrun, ENDPOINT, "2");
        fleet.on(host, launch.worker(["place", own, "sum", LOST_RANK_1, "rank0:exit=4", "forever"])).start()
    };
    let jobs: Vec<_> = fleet.hosts().map(start).collect();
    for outcome in jobs.into_iter().map(Job::wait) {
        outcome
            .expect_exit_code(1)
            .expect_stderr("rank 1 (local rank 0) on node 1 (th2, 198.18.0.12) failed first");
        outcome.expect_stderr("ValueError: bad column 7");
    }
    fleet.is_empty();
}

/// A library that only prints that a peer is gone, as gloo does without torch's `@record`.
#[test]
fn worker_with_closed_connection_blames_failed_peer() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = fleet_with_delay(2, 100) else { return };
    let gate = Gate::closed();
    let message =
        "rank0:eprint=RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:1";
    let start = |host| {
        let launch = c10d(Name::Rankrun, ENDPOINT, "2");
        let gated = format!("rank0:{}", gate.step());
        let steps = ["place", "sum", "rank1:print=gone", "rank1:exit=5", &gated, message, "exit=1"];
        fleet.on(host, launch.worker(steps)).start()
    };
    let jobs: Vec<_> = fleet.hosts().map(start).collect();
    // What rank 1's node tells of this takes longer to arrive.
    jobs[1].wait_for_line("gone");
    gate.open(1);
    for (job, code) in jobs.into_iter().zip([1, 5]) {
        job.wait()
            .expect_exit_code(code)
            .expect_stderr("rank 1 (local rank 0) on node 1 (th2, 198.18.0.12) failed first: exit code 5");
    }
    fleet.is_empty();
}
