//! One failure, told on every node: by its node, its rank and how it ended.

use harness::{Fleet, Job, Launch, Name, Outcome, Scratch, only_ours};
use nix::sys::signal::Signal;

use super::{ENDPOINT, c10d, fixed};

/// Two workers on each of three hosts; rank 3, on host 2, ends with 7, the others wait for ever.
#[track_caller]
fn fails(name: Name, own: impl Fn(usize) -> Launch) -> Option<Vec<Outcome>> {
    let fleet = Fleet::up(3)?;
    let steps = ["seat", "sum", "rank3:eprint=loss is nan at step 7", "rank3:exit=7", "forever"];
    let start = |host| {
        let launch = own(host).args(["--nproc-per-node", "2"]).worker(steps);
        fleet.on(host, launch).start()
    };
    let outcomes: Vec<_> = fleet.hosts().map(start).collect::<Vec<_>>().into_iter().map(Job::wait).collect();
    for (outcome, code) in outcomes.iter().zip([1, name.code(7), 1]) {
        outcome.exits(code).never_says("panicked");
    }
    fleet.is_empty();
    Some(outcomes)
}

#[test]
fn every_node_prints_the_same_first_cause() {
    if !only_ours() {
        return;
    }
    for own in [(|_| c10d(Name::Rankrun, ENDPOINT, "3")) as fn(usize) -> Launch, |host| {
        fixed(Name::Rankrun, "th1", 3, host - 1)
    }] {
        let Some(outcomes) = fails(Name::Rankrun, own) else { return };
        for outcome in outcomes {
            outcome.complains("rank 3").complains("th2").complains("7");
        }
    }
}

/// A worker's error file may hold any text. Every node prints it once, and no node restarts without `--max-restarts`.
#[test]
fn what_a_worker_wrote_is_told_on_every_node() {
    if !only_ours() {
        return;
    }
    let Some(fleet) = Fleet::up(2) else { return };
    let written =
        r#"rank1:error-file={"message":"ValueError: bad\tcolumn \u001b[31m7","timestamp":"1700000000"}"#;
    let steps = ["seat", "sum", written, "rank1:exit=7", "forever"];
    let start = |host| fleet.on(host, c10d(Name::Rankrun, ENDPOINT, "2").worker(steps)).start();
    let jobs: Vec<_> = fleet.hosts().map(start).collect();
    for (job, code) in jobs.into_iter().zip([1, 7]) {
        let outcome = job.wait();
        outcome.exits(code).complains("ValueError: bad").complains("th2").never_says("panicked");
        let starts = outcome.out_lines().into_iter().filter(|line| line.starts_with("seat rank=")).count();
        assert_eq!(starts, 1, "{outcome}");
    }
    fleet.is_empty();
}

#[test]
fn under_torchruns_name_the_others_end_too() {
    if only_ours() {
        let _ = fails(Name::Torchrun, |_| c10d(Name::Torchrun, ENDPOINT, "3"));
    }
}

/// The host of the store is stopped alone, and the workers of the others fail of that: every node names the stop.
#[test]
fn the_stop_of_the_stores_host_is_the_cause_on_every_node() {
    if !only_ours() {
        return;
    }
    let dynamic =
        |host: usize| c10d(Name::Rankrun, ENDPOINT, "1:3").args(["--max-restarts", &host.to_string()]);
    for (own, time_limit) in [
        (dynamic as fn(usize) -> Launch, None),
        (|host| fixed(Name::Rankrun, "th1", 3, host - 1), None),
        (dynamic, Some("4s")),
    ] {
        let Some(fleet) = Fleet::up(3) else { return };
        let start = |host: usize| {
            let limit = time_limit.filter(|_| host == 1).map(|limit| ["--time-limit", limit]);
            let launch = own(host).args(limit.into_iter().flatten());
            fleet.on(host, launch.worker(["seat", "sum", "reduce=4000000000"])).start()
        };
        let jobs: Vec<_> = fleet.hosts().map(start).collect();
        jobs.iter().for_each(|job| drop(job.line("world=3 total=6")));
        let (why, code) = match time_limit {
            Some(_) => ("its time limit is over", 124),
            None => ("it was told to stop by SIGTERM", 143),
        };
        if time_limit.is_none() {
            jobs[0].signal(Signal::SIGTERM);
        }
        for (job, code) in jobs.into_iter().zip([code, 1, 1]) {
            let outcome = job.wait();
            outcome.exits(code).never_says("panicked").never_says("is lost").never_says("failed first");
            if code == 1 {
                outcome.complains(&format!("(th1, 198.18.0.11) has ended the job: {why}"));
            }
        }
        fleet.is_empty();
    }
}

/// All workers of a job are started again when one fails, and only the node of the failure uses a restart.
#[test]
fn a_failure_restarts_every_node() {
    if !only_ours() {
        return;
    }
    for own in [(|_| c10d(Name::Rankrun, ENDPOINT, "3")) as fn(usize) -> Launch, |host| {
        fixed(Name::Rankrun, "th1", 3, host - 1)
    }] {
        let Some(fleet) = Fleet::up(3) else { return };
        let scratch = Scratch::new();
        let first = format!("first={},1,5", scratch.folder("lives", 0o777));
        let steps = ["seat", "sum", &first, "reduce=3", "print=finished"];
        let start = |host| fleet.on(host, own(host).args(["--max-restarts", "1"]).worker(steps)).start();
        let jobs: Vec<_> = fleet.hosts().map(start).collect();
        for outcome in super::succeed(jobs) {
            outcome.says("finished");
            assert_eq!(outcome.lines_with("sum rank=").len(), 2, "{outcome}");
        }
        fleet.is_empty();
    }
}
