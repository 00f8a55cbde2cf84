//! Many agents on one machine, each with a worker: all of them have the right rank and one master.
#![expect(clippy::disallowed_methods, reason = "it measures")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use harness::{Launch, Name, field, free_port, is_rankrun, is_soak, print_notice};

use super::assert_all_succeed;

/// How long 200 agents with their workers may take on two processors that have other work too.
const BOUND: Duration = Duration::from_secs(120);

/// Since the first start.
struct Times {
    /// The last worker runs.
    begun: Duration,
    /// The last agent has ended.
    ended: Duration,
}

impl Times {
    fn tell(&self, agents: u32) {
        let Self { begun, ended } = self;
        print_notice(&format!(
            "{agents} agents: the last worker runs after {begun:?}, all have ended after {ended:?}"
        ));
    }
}

#[track_caller]
fn run_agents(agents: u32) -> Times {
    let endpoint = format!("localhost:{}", free_port());
    let launch = || {
        let launch = Launch::new(Name::Rankrun).args(["--nnodes", &agents.to_string(), "--rdzv-id", "job"]);
        let launch = launch.args(["--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint]);
        // One processor for dozens of agents may leave one without its turn for seconds.
        launch.args(["--lease", "60"]).limit(Duration::from_secs(300)).worker(["place", "sum"])
    };
    let began = Instant::now();
    let jobs: Vec<_> = (0..agents).map(|_| launch().start()).collect();
    for job in &jobs {
        job.wait_for_line("place rank=");
    }
    let begun = began.elapsed();
    let outcomes = assert_all_succeed(jobs);
    let times = Times { begun, ended: began.elapsed() };
    let total = agents * (agents + 1) / 2;
    for outcome in &outcomes {
        outcome.expect_stdout(&format!("world={agents} total={total}"));
    }
    let placements: Vec<_> = outcomes.iter().flat_map(|outcome| outcome.lines_with("place rank=")).collect();
    let of = |line: &str, key| field(line, key).unwrap_or_default().to_owned();
    let mut ranks: Vec<u32> = placements.iter().filter_map(|line| of(line, "rank").parse().ok()).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, (0..agents).collect::<Vec<_>>());
    for line in &placements {
        // One worker each: its rank is its node's.
        assert_eq!(of(line, "node"), of(line, "rank"), "{line}");
        assert_eq!(of(line, "nodes"), agents.to_string(), "{line}");
    }
    let masters: BTreeSet<_> = placements.iter().map(|line| (of(line, "addr"), of(line, "port"))).collect();
    assert_eq!(masters.len(), 1, "{masters:?}");
    times
}

#[test]
fn fifty_agents_have_distinct_ranks_and_one_master() {
    if is_rankrun() {
        let times = run_agents(50);
        if is_soak() {
            times.tell(50);
        }
    }
}

#[test]
fn two_hundred_agents_have_distinct_ranks_and_one_master() {
    if is_rankrun() && is_soak() {
        let times = run_agents(200);
        times.tell(200);
        assert!(times.ended < BOUND, "{:?}", times.ended);
    }
}
