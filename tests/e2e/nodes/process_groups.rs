//! Process groups with ranks on several hosts: shared memory within a host, TCP between hosts.

use harness::{Fleet, Job, Launch, Name, field, is_rankrun};

use super::{assert_all_succeed, static_launch};

/// How long after its end the others may miss a rank, in milliseconds. A second is what is promised, and the machine may be busy.
const LATE: u64 = 5000;

/// Two workers on host 1, and as many as that on the other ones.
fn launch(fleet: &Fleet, host: usize, workers_elsewhere: usize, steps: &[&str]) -> Launch {
    let workers = if host == 1 { 2 } else { workers_elsewhere };
    let launch = static_launch(Name::Rankrun, &Fleet::address(1), fleet.hosts().count(), host - 1);
    let launch = launch.args(["--nproc-per-node", &workers.to_string()]);
    fleet.on(host, launch.worker(steps.iter().copied()))
}

#[test]
fn all_reduce_spans_hosts() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(3) else { return };
    for workers_elsewhere in [2, 3, 1] {
        let start = |host| launch(&fleet, host, workers_elsewhere, &["reduce=20"]).start();
        let outcomes = assert_all_succeed(fleet.hosts().map(start).collect::<Vec<_>>());
        let world = 2 + 2 * workers_elsewhere;
        let expected = format!("world={world} times=20 backend=mixed");
        let reduced: usize = outcomes.iter().map(|outcome| outcome.lines_with(&expected).len()).sum();
        assert_eq!(reduced, world, "{outcomes:?}");
        fleet.is_empty();
    }
}

#[test]
fn tcp_backend_uses_no_shared_memory() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    let start = |host| launch(&fleet, host, 2, &["reduce=20"]).env("RANKRUN_BACKEND", "tcp").start();
    let outcomes = assert_all_succeed(fleet.hosts().map(start).collect::<Vec<_>>());
    let expected = "world=4 times=20 backend=tcp";
    assert_eq!(
        outcomes.iter().map(|outcome| outcome.lines_with(expected).len()).sum::<usize>(),
        4,
        "{outcomes:?}"
    );
}

#[test]
fn killed_rank_is_detected_on_every_host() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    for victim in [0, 3] {
        // Their launcher's signal, which follows, would end them before they have said it.
        let steps = ["deaf", &format!("reduce-until-lost={victim}")];
        let jobs: Vec<Job> = fleet.hosts().map(|host| launch(&fleet, host, 2, &steps).start()).collect();
        let outcomes: Vec<_> = jobs.into_iter().map(Job::wait).collect();
        let missed: Vec<String> =
            outcomes.iter().flat_map(|outcome| outcome.lines_with("missed rank=")).collect();
        assert_eq!(missed.len(), 3, "{outcomes:?}");
        for line in missed {
            assert_eq!(field(&line, "lost"), Some(&*victim.to_string()), "{line}");
            let late: u64 = field(&line, "late").and_then(|late| late.parse().ok()).expect("a time");
            assert!(late < LATE, "{line}");
        }
        fleet.is_empty();
    }
}
