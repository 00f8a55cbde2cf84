//! Hosts form one world under either launcher, statically or over c10d, with any number of workers on each.

use std::panic::resume_unwind;
use std::thread;

use harness::{Fleet, Launch, Name, field, oracle};

use super::{ENDPOINT, c10d, fixed, seats, succeed};

/// The launchers that must make the same worlds: our two names; with the oracle, torchrun.
fn launched(run: impl Fn(Name) + Sync) {
    thread::scope(|scope| {
        let ends: Vec<_> = Name::both().iter().map(|name| scope.spawn(|| run(*name))).collect();
        ends.into_iter().for_each(|end| end.join().unwrap_or_else(|why| resume_unwind(why)));
    });
}

const STEPS: [&str; 3] = ["seat", "sum", "reduce=2"];

/// Starts these launches on hosts 1, 2, …; gives the seats.
#[track_caller]
fn world(launches: impl IntoIterator<Item = Launch>) -> Option<Vec<String>> {
    let launches: Vec<_> = launches.into_iter().collect();
    let fleet = Fleet::up(launches.len())?;
    let jobs = launches.into_iter().zip(fleet.hosts()).map(|(launch, host)| fleet.on(host, launch).start());
    let outcomes = succeed(jobs.collect::<Vec<_>>());
    fleet.is_empty();
    // One master for all.
    let lines = outcomes.iter().flat_map(|outcome| outcome.lines_with("seat rank="));
    let mut masters: Vec<_> = lines
        .map(|line| (field(&line, "addr").map(str::to_owned), field(&line, "port").map(str::to_owned)))
        .collect();
    masters.dedup();
    assert_eq!(masters.len(), 1, "{masters:?}");
    Some(seats(&outcomes))
}

#[test]
fn two_hosts_over_c10d() {
    launched(|name| {
        let found = world([1, 2].map(|_| c10d(name, ENDPOINT, "2").worker(STEPS)));
        assert!(found.is_none_or(|found| found == ["0 of 2, node 0 of 2", "1 of 2, node 1 of 2"]));
    });
}

#[test]
fn four_static_hosts_have_the_ranks_that_they_are_given() {
    launched(|name| {
        let Some(fleet) = Fleet::up(4) else { return };
        // Rank 0 comes last, and is on another host than the first.
        let own = |(host, rank)| {
            let launch = fixed(name, "th3", 4, rank).worker(STEPS);
            (rank, fleet.on(host, launch).start())
        };
        let jobs = [(1, 2), (2, 3), (4, 1), (3, 0)].map(own);
        let (ranks, jobs): (Vec<_>, Vec<_>) = jobs.into_iter().unzip();
        for (rank, outcome) in ranks.into_iter().zip(succeed(jobs)) {
            outcome.says(&format!("seat rank={rank} world=4 node={rank} nodes=4 "));
            outcome.says(" addr=th3 port=29400 ").says(&format!("sum rank={rank} world=4 total=10"));
        }
        fleet.is_empty();
    });
}

#[test]
fn hosts_may_have_different_numbers_of_workers() {
    launched(|name| {
        let workers = ["2", "1", "3"];
        let launches = workers.map(|workers| c10d(name, ENDPOINT, "3").args(["--nproc-per-node", workers]));
        let Some(found) = world(launches.map(|launch| launch.worker(STEPS))) else { return };
        let of = |(rank, node)| format!("{rank} of 6, node {node} of 3");
        assert_eq!(found, [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 2)].map(of));
    });
}

/// Rank 0 is not where the store is: the addresses decide, unless node ranks are given, which torchrun ignores.
#[test]
fn the_store_and_rank_0_are_two_things() {
    launched(|name| {
        let Some(fleet) = Fleet::up(2) else { return };
        let own = |host| fleet.on(host, c10d(name, "th2:29400", "2").worker(STEPS)).start();
        let outcomes = succeed([1, 2].map(own));
        outcomes[0].says("seat rank=0 ");
        outcomes[1].says("seat rank=1 ");
        fleet.is_empty();
    });
    if !oracle() {
        let Some(fleet) = Fleet::up(3) else { return };
        let own = |(host, rank): (usize, &str)| {
            let launch = c10d(Name::Rankrun, "th2:29400", "3").args(["--node-rank", rank]);
            fleet.on(host, launch.worker(STEPS)).start()
        };
        let outcomes = succeed([(1, "2"), (2, "1"), (3, "0")].map(own));
        for (outcome, rank) in outcomes.iter().zip([2, 1, 0]) {
            outcome.says(&format!("seat rank={rank} "));
        }
        fleet.is_empty();
    }
}
