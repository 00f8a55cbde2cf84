//! Two nodes of torchrun 2.15 and two of ours in one job; the store is hosted once by each kind.

use harness::{Fleet, Job, Launch, Name, Scratch, soak};

use super::{TIMES, seats, succeed};

/// Hosts 1 and 3 are torchrun's, 2 and 4 ours. `failing` is a rank whose worker fails once.
#[track_caller]
fn four(host: usize, failing: usize) {
    let Some(fleet) = Fleet::up(4) else { return };
    let scratch = Scratch::new();
    let first = format!("first={},{failing},5", scratch.folder("lives", 0o777));
    let start = |at: usize| {
        let name = if at % 2 == 1 { Name::Reference } else { Name::Rankrun };
        let launch = Launch::new(name).args(["--nnodes", "4", "--rdzv-id", "job", "--rdzv-backend", "c10d"]);
        let endpoint = format!("th{host}:29400");
        let launch = launch.args(["--rdzv-endpoint", &endpoint, "--rdzv-conf", TIMES, "--max-restarts", "2"]);
        fleet.on(at, launch.worker(["seat", "sum", &first])).start()
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

/// Rank 0 is torchrun's in all: host 1 has the lowest address.
#[test]
fn torchrun_hosts_the_store_and_our_worker_fails() {
    four(1, 1);
}

#[test]
fn we_host_the_store_and_torchruns_worker_fails() {
    four(2, 2);
}

#[test]
fn either_fails_with_either_store() {
    if soak() {
        four(1, 0);
        four(1, 2);
        four(2, 0);
        four(2, 1);
        four(2, 3);
        four(3, 3);
    }
}
