//! Hosts form one world under either launcher, statically or over c10d, with any number of workers on each.

use std::panic::resume_unwind;
use std::thread;

use harness::{Fleet, Launch, Name, field, is_torchrun};

use super::{ENDPOINT, assert_all_succeed, c10d, placements_of, static_launch};

/// The launchers that must make the same worlds: our two names; with the oracle, torchrun.
fn run_for_each_launcher(run: impl Fn(Name) + Sync) {
    thread::scope(|scope| {
        let ends: Vec<_> = Name::both().iter().map(|name| scope.spawn(|| run(*name))).collect();
        ends.into_iter().for_each(|end| end.join().unwrap_or_else(|why| resume_unwind(why)));
    });
}

const STEPS: [&str; 3] = ["place", "sum", "reduce=2"];

/// Starts these launches on hosts 1, 2, …; returns the placements.
#[track_caller]
fn run_world(launches: impl IntoIterator<Item = Launch>) -> Option<Vec<String>> {
    let launches: Vec<_> = launches.into_iter().collect();
    let fleet = Fleet::start(launches.len())?;
    let jobs = launches.into_iter().zip(fleet.hosts()).map(|(launch, host)| fleet.on(host, launch).start());
    let outcomes = assert_all_succeed(jobs.collect::<Vec<_>>());
    fleet.is_empty();
    // One master for all.
    let lines = outcomes.iter().flat_map(|outcome| outcome.lines_with("place rank="));
    let mut masters: Vec<_> = lines
        .map(|line| (field(&line, "addr").map(str::to_owned), field(&line, "port").map(str::to_owned)))
        .collect();
    masters.dedup();
    assert_eq!(masters.len(), 1, "{masters:?}");
    Some(placements_of(&outcomes))
}

#[test]
fn two_hosts_form_world_over_c10d() {
    run_for_each_launcher(|name| {
        let found = run_world([1, 2].map(|_| c10d(name, ENDPOINT, "2").worker(STEPS)));
        assert!(found.is_none_or(|found| found == ["0 of 2, node 0 of 2", "1 of 2, node 1 of 2"]));
    });
}

#[test]
fn static_hosts_have_given_node_ranks() {
    run_for_each_launcher(|name| {
        let Some(fleet) = Fleet::start(4) else { return };
        // Rank 0 comes last, and is on another host than the first.
        let own = |(host, rank)| {
            let launch = static_launch(name, "th3", 4, rank).worker(STEPS);
            (rank, fleet.on(host, launch).start())
        };
        let jobs = [(1, 2), (2, 3), (4, 1), (3, 0)].map(own);
        let (ranks, jobs): (Vec<_>, Vec<_>) = jobs.into_iter().unzip();
        for (rank, outcome) in ranks.into_iter().zip(assert_all_succeed(jobs)) {
            outcome.expect_stdout(&format!("place rank={rank} world=4 node={rank} nodes=4 "));
            outcome
                .expect_stdout(" addr=th3 port=29400 ")
                .expect_stdout(&format!("sum rank={rank} world=4 total=10"));
        }
        fleet.is_empty();
    });
}

#[test]
fn hosts_with_different_worker_counts_form_one_world() {
    run_for_each_launcher(|name| {
        let workers = ["2", "1", "3"];
        let launches = workers.map(|workers| c10d(name, ENDPOINT, "3").args(["--nproc-per-node", workers]));
        let Some(found) = run_world(launches.map(|launch| launch.worker(STEPS))) else { return };
        let of = |(rank, node)| format!("{rank} of 6, node {node} of 3");
        assert_eq!(found, [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 2)].map(of));
    });
}

#[test]
fn total_workers_are_shared_with_remainder_on_first_node() {
    if is_torchrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    for is_static in [true, false] {
        let own = |host: usize| {
            let rank = host - 1;
            let launch = match is_static {
                true => static_launch(Name::Rankrun, "th1", 2, rank),
                false => c10d(Name::Rankrun, ENDPOINT, "2").args(["--node-rank", &rank.to_string()]),
            };
            fleet.on(host, launch.args(["--total-workers", "5"]).worker(STEPS)).start()
        };
        let outcomes = assert_all_succeed([1, 2].map(own));
        let of = |(rank, node)| format!("{rank} of 5, node {node} of 2");
        assert_eq!(placements_of(&outcomes), [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1)].map(of));
        fleet.is_empty();
    }
}

/// Rank 0 is not where the store is: the addresses decide, unless node ranks are given, which torchrun ignores.
#[test]
fn store_host_may_differ_from_rank_0() {
    run_for_each_launcher(|name| {
        let Some(fleet) = Fleet::start(2) else { return };
        let own = |host| fleet.on(host, c10d(name, "th2:29400", "2").worker(STEPS)).start();
        let outcomes = assert_all_succeed([1, 2].map(own));
        outcomes[0].expect_stdout("place rank=0 ");
        outcomes[1].expect_stdout("place rank=1 ");
        fleet.is_empty();
    });
    if !is_torchrun() {
        let Some(fleet) = Fleet::start(3) else { return };
        let own = |(host, rank): (usize, &str)| {
            let launch = c10d(Name::Rankrun, "th2:29400", "3").args(["--node-rank", rank]);
            fleet.on(host, launch.worker(STEPS)).start()
        };
        let outcomes = assert_all_succeed([(1, "2"), (2, "1"), (3, "0")].map(own));
        for (outcome, rank) in outcomes.iter().zip([2, 1, 0]) {
            outcome.expect_stdout(&format!("place rank={rank} "));
        }
        fleet.is_empty();
    }
}
