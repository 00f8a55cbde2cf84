//! Several agents on one machine, and what they make of it.

use harness::{Job, Launch, Name, Outcome, Store, field};

/// An agent with one worker.
pub(super) fn agent_launch(name: Name, endpoint: &str, nodes: &str, conf: &str) -> Launch {
    let launch = Launch::new(name).args(["--nnodes", nodes, "--nproc-per-node", "1", "--rdzv-id", "row"]);
    launch.args(["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-conf", conf])
}

/// An agent of the job on a store that no agent hosts.
pub(super) fn hostless_agent_launch(name: Name, store: &Store, nodes: &str, conf: &str) -> Launch {
    agent_launch(name, &store.endpoint(), nodes, &format!("is_host=0,{conf}"))
}

/// Starts all of them, and waits for all ends.
#[track_caller]
pub(super) fn run_together(launches: impl IntoIterator<Item = Launch>) -> Vec<Outcome> {
    let jobs: Vec<Job> = launches.into_iter().map(Launch::start).collect();
    jobs.into_iter().map(Job::wait).collect()
}

/// `rank of world, node of nodes` of each worker, as its line tells it.
pub(super) fn parse_placement(line: &str) -> String {
    let of = |key| field(line, key).unwrap_or("?");
    format!("{} of {}, node {} of {}", of("rank"), of("world"), of("node"), of("nodes"))
}

/// The placements of all workers of all agents, sorted.
pub(super) fn sorted_placements(outcomes: &[Outcome]) -> Vec<String> {
    let lines = outcomes.iter().flat_map(|outcome| outcome.lines_with("place rank="));
    let mut placements: Vec<_> = lines.map(|line| parse_placement(&line)).collect();
    placements.sort();
    placements
}

/// The exit statuses.
pub(super) fn exit_codes(outcomes: &[Outcome]) -> Vec<Option<i32>> {
    outcomes.iter().map(|outcome| outcome.status.code()).collect()
}

/// Two workers in one world.
pub(super) const WORLD_OF_TWO: [&str; 2] = ["0 of 2, node 0 of 2", "1 of 2, node 1 of 2"];

/// One worker alone.
pub(super) const ALONE: [&str; 1] = ["0 of 1, node 0 of 1"];
