//! Two nodes of torchrun 2.15 and two of ours in one job. The store is hosted once by each kind, rank 0 is once of each
//! kind and not where the store is; a worker's failure on either side starts all four again.

use harness::{Fleet, Gate, Job, Launch, Name, Scratch, is_soak};

use super::{ENDPOINT, TIMES, assert_all_succeed, assert_two_nodes_succeed, c10d, placements_of};

/// The roles of the hosts; the numbers are hosts.
struct Mix {
    torchruns: [usize; 2],
    store: usize,
    fails: usize,
}

#[track_caller]
fn run_two_rounds(mix: &Mix) {
    let Some(fleet) = Fleet::start(4) else { return };
    let scratch = Scratch::new();
    let first = format!("first={},th{},5", scratch.folder("attempts", 0o777), mix.fails);
    let start = |host: usize| {
        let name = if mix.torchruns.contains(&host) { Name::Reference } else { Name::Rankrun };
        let launch = Launch::new(name).args(["--nnodes", "4", "--rdzv-id", "job", "--rdzv-backend", "c10d"]);
        let endpoint = format!("th{}:29400", mix.store);
        let launch = launch.args(["--rdzv-endpoint", &endpoint, "--rdzv-conf", TIMES, "--max-restarts", "2"]);
        // Ranks follow the addresses as text.
        let launch = launch.args(["--local-addr", &Fleet::address(host)]);
        fleet.on(host, launch.worker(["place", "sum", &first])).start()
    };
    let jobs: Vec<Job> = fleet.hosts().map(start).collect();
    let outcomes = assert_all_succeed(jobs);
    let all = [0, 1, 2, 3].map(|rank| format!("{rank} of 4, node {rank} of 4"));
    let twice: Vec<_> = all.iter().flat_map(|placement| [placement.clone(), placement.clone()]).collect();
    assert_eq!(placements_of(&outcomes), twice);
    for outcome in &outcomes {
        assert_eq!(outcome.lines_with("world=4 total=10").len(), 2, "{outcome}");
    }
    fleet.is_empty();
}

#[test]
fn rankrun_store_with_failing_torchrun_rank_0_restarts() {
    run_two_rounds(&Mix { torchruns: [1, 3], store: 2, fails: 3 });
}

#[test]
fn torchrun_store_with_failing_rankrun_rank_0_restarts() {
    run_two_rounds(&Mix { torchruns: [2, 4], store: 2, fails: 1 });
}

/// One of each kind, the second of which comes when the first one's worker runs already: both meet in the next round, and
/// rank 0, which has the store too, stays where it was.
#[track_caller]
fn join_second_node(kinds: [Name; 2]) {
    let Some(fleet) = Fleet::start(2) else { return };
    let gate = Gate::closed();
    let start = |host: usize| {
        let launch = c10d(kinds[host - 1], ENDPOINT, "1:2").args(["--local-addr", &Fleet::address(host)]);
        fleet.on(host, launch.worker(["place", "sum", &gate.step()])).start()
    };
    let first = start(1);
    first.wait_for_line("world=1 total=1");
    let second = start(2);
    assert_two_nodes_succeed([first, second], &gate);
    fleet.is_empty();
}

#[test]
fn torchrun_node_joins_rankrun_job() {
    join_second_node([Name::Rankrun, Name::Reference]);
}

/// torchrun's own agents fail there: the one with rank 0 does not publish its address again (contract 8.2).
#[test]
fn rankrun_node_joins_torchrun_job() {
    join_second_node([Name::Reference, Name::Rankrun]);
}

#[test]
fn mixed_jobs_of_every_combination_restart() {
    if !is_soak() {
        return;
    }
    for torchruns in [[1, 3], [2, 4]] {
        for store in [1, 2] {
            for fails in 1..=4 {
                run_two_rounds(&Mix { torchruns, store, fails });
            }
        }
    }
}
