//! A restart rule that ends the job on one node ends it on all nodes alike.

use harness::{Fleet, Job, Launch, Name, is_rankrun};

use super::{ENDPOINT, c10d, static_launch};

const RULES: &str = "exit=5:succeed,exit=6:requeue,exit=9:no-requeue";

/// A worker on each of three hosts; the one of rank 1 ends so, the others wait for ever.
#[track_caller]
fn assert_ends_by_rule(own: impl Fn(usize) -> Launch, code: i32, (status, what, action): (i32, &str, &str)) {
    let Some(fleet) = Fleet::start(3) else { return };
    let steps = ["place", "sum", &format!("rank1:exit={code}"), "forever"];
    let start = |host| {
        let launch = own(host).env("RANKRUN_RESTART_RULES", RULES).args(["--max-restarts", "1"]);
        fleet.on(host, launch.worker(steps)).start()
    };
    let jobs: Vec<_> = fleet.hosts().map(start).collect();
    for (host, outcome) in (1..).zip(jobs.into_iter().map(Job::wait)) {
        let rule = format!("by the rule `exit={code}:{action}`");
        outcome
            .expect_exit_code(status)
            .expect_stderr(&rule)
            .expect_absent("panicked")
            .expect_absent("restart 1 of 1");
        if host != 2 {
            let line = format!(
                "the job {what}, {rule} on node 1 (th2, 198.18.0.12): rank 1 ended with exit code {code}"
            );
            let lines = outcome.stderr().matches(&line).count();
            assert_eq!(lines, 1, "{line}\n{outcome}");
        }
        if status == 0 {
            outcome.expect_absent("failed first").expect_absent("error:");
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
fn restart_rule_ends_all_nodes_of_c10d_job() {
    for (code, end) in ENDS.into_iter().filter(|_| is_rankrun()) {
        assert_ends_by_rule(|_| c10d(Name::Rankrun, ENDPOINT, "3"), code, end);
    }
}

#[test]
fn restart_rule_ends_all_nodes_of_static_job() {
    for (code, end) in ENDS.into_iter().filter(|_| is_rankrun()) {
        assert_ends_by_rule(|host| static_launch(Name::Rankrun, "th1", 3, host - 1), code, end);
    }
}
