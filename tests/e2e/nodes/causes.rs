//! One failure, told on every node: by its node, its rank and how it ended.

use harness::{Fleet, Job, Launch, Name, Outcome, Scratch, only_ours};

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

/// What a worker writes about its failure may hold anything: it is told once, on every node, and costs no restart that
/// nobody asked for.
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
