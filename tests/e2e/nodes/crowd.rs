//! Many agents on one machine, each with a worker: all of them have the right rank and one master.
#![expect(clippy::disallowed_methods, reason = "it measures")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use harness::{Launch, Name, field, free_port, only_ours, soak, tell};

use super::succeed;

/// How long 200 agents with their workers may take on two processors.
const BOUND: Duration = Duration::from_secs(60);

/// From the first start until the last worker has the right sum over all.
#[track_caller]
fn meet(agents: u32) -> Duration {
    let endpoint = format!("localhost:{}", free_port());
    let launch = || {
        let launch = Launch::new(Name::Rankrun).args(["--nnodes", &agents.to_string(), "--rdzv-id", "job"]);
        let launch = launch.args(["--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint]);
        // One processor for dozens of agents may leave one without its turn for seconds.
        launch.args(["--lease", "60"]).limit(Duration::from_secs(300)).worker(["seat", "sum"])
    };
    let began = Instant::now();
    let jobs: Vec<_> = (0..agents).map(|_| launch().start()).collect();
    let total = agents * (agents + 1) / 2;
    for job in &jobs {
        job.line(&format!("world={agents} total={total}"));
    }
    let took = began.elapsed();
    let outcomes = succeed(jobs);
    let seats = outcomes.iter().flat_map(|outcome| outcome.lines_with("seat rank="));
    let seats: Vec<_> = seats.collect();
    let of = |line: &str, key| field(line, key).unwrap_or_default().to_owned();
    let mut ranks: Vec<u32> = seats.iter().filter_map(|line| of(line, "rank").parse().ok()).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, (0..agents).collect::<Vec<_>>());
    for line in &seats {
        // One worker each: its rank is its node's.
        assert_eq!(of(line, "node"), of(line, "rank"), "{line}");
        assert_eq!(of(line, "nodes"), agents.to_string(), "{line}");
    }
    let masters: BTreeSet<_> = seats.iter().map(|line| (of(line, "addr"), of(line, "port"))).collect();
    assert_eq!(masters.len(), 1, "{masters:?}");
    took
}

#[test]
fn fifty_agents_have_the_right_ranks_and_one_master() {
    if only_ours() {
        let _ = meet(50);
    }
}

#[test]
fn two_hundred_agents_have_the_right_ranks_and_one_master() {
    if only_ours() && soak() {
        let took = meet(200);
        tell(&format!("200 agents with a worker each: {took:?} from the first start to the last sum"));
        assert!(took < BOUND, "{took:?}");
    }
}
