//! A restart rule that ends the job on one node ends it on all nodes alike.

use harness::{Fleet, Job, Launch, Name, only_ours};

use super::{ENDPOINT, c10d, fixed};

const RULES: &str = "exit=5:succeed,exit=6:requeue,exit=9:no-requeue";

/// A worker on each of three hosts; the one of rank 1 ends so, the others wait for ever.
#[track_caller]
fn ends_by_rule(own: impl Fn(usize) -> Launch, code: i32, (status, what, action): (i32, &str, &str)) {
    let Some(fleet) = Fleet::up(3) else { return };
    let steps = ["seat", "sum", &format!("rank1:exit={code}"), "forever"];
    let start = |host| {
        let launch = own(host).env("RANKRUN_RESTART_RULES", RULES).args(["--max-restarts", "1"]);
        fleet.on(host, launch.worker(steps)).start()
    };
    let jobs: Vec<_> = fleet.hosts().map(start).collect();
    for (host, outcome) in (1..).zip(jobs.into_iter().map(Job::wait)) {
        let rule = format!("by the rule `exit={code}:{action}`");
        outcome.exits(status).complains(&rule).never_says("panicked").never_says("restart 1 of 1");
        if host != 2 {
            let line = format!(
                "the job {what}, {rule} on node 1 (th2, 198.18.0.12): rank 1 ended with exit code {code}"
            );
            let lines = outcome.err().matches(&line).count();
            assert_eq!(lines, 1, "{line}\n{outcome}");
        }
        if status == 0 {
            outcome.never_says("failed first").never_says("error:");
        }
    }
    fleet.is_empty();
}

const ENDS: [(i32, (i32, &str, &str)); 3] = [
    (5, (0, "is done", "succeed")),
    (6, (75, "has failed", "requeue")),
    (9, (78, "has failed", "no-requeue")),
];

#[test]
fn in_an_elastic_job_all_nodes_end_alike() {
    for (code, end) in ENDS.into_iter().filter(|_| only_ours()) {
        ends_by_rule(|_| c10d(Name::Rankrun, ENDPOINT, "3"), code, end);
    }
}

#[test]
fn in_a_static_job_all_nodes_end_alike() {
    for (code, end) in ENDS.into_iter().filter(|_| only_ours()) {
        ends_by_rule(|host| fixed(Name::Rankrun, "th1", 3, host - 1), code, end);
    }
}
