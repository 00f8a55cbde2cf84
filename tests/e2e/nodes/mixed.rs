//! Two nodes of torchrun 2.15 and two of ours in one job. The store is hosted once by each kind, rank 0 is once of each
//! kind and not where the store is; a worker's failure on either side starts all four again.

use harness::{Fleet, Gate, Job, Launch, Name, Scratch, soak};

use super::{ENDPOINT, TIMES, c10d, seats, succeed};

/// The roles of the hosts; the numbers are hosts.
struct Mix {
    torchruns: [usize; 2],
    store: usize,
    fails: usize,
}

#[track_caller]
fn meet_twice(mix: &Mix) {
    let Some(fleet) = Fleet::up(4) else { return };
    let scratch = Scratch::new();
    let first = format!("first={},th{},5", scratch.folder("lives", 0o777), mix.fails);
    let start = |host: usize| {
        let name = if mix.torchruns.contains(&host) { Name::Reference } else { Name::Rankrun };
        let launch = Launch::new(name).args(["--nnodes", "4", "--rdzv-id", "job", "--rdzv-backend", "c10d"]);
        let endpoint = format!("th{}:29400", mix.store);
        let launch = launch.args(["--rdzv-endpoint", &endpoint, "--rdzv-conf", TIMES, "--max-restarts", "2"]);
        // Ranks follow the addresses as text.
        let launch = launch.args(["--local-addr", &Fleet::address(host)]);
        fleet.on(host, launch.worker(["seat", "sum", &first])).start()
    };
    let jobs: Vec<Job> = fleet.hosts().map(start).collect();
    let outcomes = succeed(jobs);
    let all = [0, 1, 2, 3].map(|rank| format!("{rank} of 4, node {rank} of 4"));
    let twice: Vec<_> = all.iter().flat_map(|seat| [seat.clone(), seat.clone()]).collect();
    assert_eq!(seats(&outcomes), twice);
    for outcome in &outcomes {
        assert_eq!(outcome.lines_with("world=4 total=10").len(), 2, "{outcome}");
    }
    fleet.is_empty();
}

#[test]
fn we_host_the_store_torchrun_has_rank_0_and_fails() {
    meet_twice(&Mix { torchruns: [1, 3], store: 2, fails: 3 });
}

#[test]
fn torchrun_hosts_the_store_we_have_rank_0_and_fail() {
    meet_twice(&Mix { torchruns: [2, 4], store: 2, fails: 1 });
}

/// One of each kind, the second of which comes when the first one's worker runs already: both meet in the next round, and
/// rank 0, which has the store too, stays where it was.
#[track_caller]
fn a_second_one_comes(kinds: [Name; 2]) {
    let Some(fleet) = Fleet::up(2) else { return };
    let gate = Gate::closed();
    let start = |host: usize| {
        let launch = c10d(kinds[host - 1], ENDPOINT, "1:2").args(["--local-addr", &Fleet::address(host)]);
        fleet.on(host, launch.worker(["seat", "sum", &gate.step()])).start()
    };
    let first = start(1);
    first.line("world=1 total=1");
    let second = start(2);
    let jobs = [first, second];
    for job in &jobs {
        job.line("world=2 total=3");
    }
    gate.open(2);
    succeed(jobs);
    fleet.is_empty();
}

#[test]
fn torchrun_is_let_into_a_job_of_ours() {
    a_second_one_comes([Name::Rankrun, Name::Reference]);
}

/// torchrun's own agents fail there: the one with rank 0 does not publish its address again (contract 8.2).
#[test]
fn we_are_let_into_a_job_of_torchrun() {
    a_second_one_comes([Name::Reference, Name::Rankrun]);
}

#[test]
fn every_other_mix() {
    if !soak() {
        return;
    }
    for torchruns in [[1, 3], [2, 4]] {
        for store in [1, 2] {
            for fails in 1..=4 {
                meet_twice(&Mix { torchruns, store, fails });
            }
        }
    }
}
