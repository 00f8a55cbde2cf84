//! One failure, told on every node: by its node, its rank and how it ended.

use harness::{Fleet, Job, Launch, Name, Outcome, Scratch, is_rankrun};
use nix::sys::signal::Signal;

use super::{ENDPOINT, c10d, static_launch};

/// Two workers on each of three hosts; rank 3, on host 2, ends with 7, the others wait for ever.
#[track_caller]
fn run_failing_job(name: Name, own: impl Fn(usize) -> Launch) -> Option<Vec<Outcome>> {
    let fleet = Fleet::start(3)?;
    let steps = ["place", "sum", "rank3:eprint=loss is nan at step 7", "rank3:exit=7", "forever"];
    let start = |host| {
        let launch = own(host).args(["--nproc-per-node", "2"]).worker(steps);
        fleet.on(host, launch).start()
    };
    let outcomes: Vec<_> = fleet.hosts().map(start).collect::<Vec<_>>().into_iter().map(Job::wait).collect();
    for (outcome, code) in outcomes.iter().zip([1, name.code(7), 1]) {
        outcome.expect_exit_code(code).expect_absent("panicked");
    }
    fleet.is_empty();
    Some(outcomes)
}

#[test]
fn every_node_reports_same_first_failure() {
    if !is_rankrun() {
        return;
    }
    for own in [(|_| c10d(Name::Rankrun, ENDPOINT, "3")) as fn(usize) -> Launch, |host| {
        static_launch(Name::Rankrun, "th1", 3, host - 1)
    }] {
        let Some(outcomes) = run_failing_job(Name::Rankrun, own) else { return };
        for outcome in outcomes {
            outcome.expect_stderr("rank 3").expect_stderr("th2").expect_stderr("7");
        }
    }
}

/// A worker's error file may hold any text. Every node prints it once, and no node restarts without `--max-restarts`.
#[test]
fn worker_error_message_is_shown_on_every_node() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    let written =
        r#"rank1:error-file={"message":"ValueError: bad\tcolumn \u001b[31m7","timestamp":"1700000000"}"#;
    let steps = ["place", "sum", written, "rank1:eprint=column 7 is bad", "rank1:exit=7", "forever"];
    let start = |host| fleet.on(host, c10d(Name::Rankrun, ENDPOINT, "2").worker(steps)).start();
    let jobs: Vec<_> = fleet.hosts().map(start).collect();
    for (job, code) in jobs.into_iter().zip([1, 7]) {
        let outcome = job.wait();
        outcome
            .expect_exit_code(code)
            .expect_stderr("ValueError: bad")
            .expect_stderr("    | column 7 is bad")
            .expect_stderr("th2")
            .expect_absent("panicked");
        let starts =
            outcome.stdout_lines().into_iter().filter(|line| line.starts_with("place rank=")).count();
        assert_eq!(starts, 1, "{outcome}");
    }
    fleet.is_empty();
}

#[test]
fn failure_ends_all_nodes_under_torchrun_name() {
    if is_rankrun() {
        let _ = run_failing_job(Name::Torchrun, |_| c10d(Name::Torchrun, ENDPOINT, "3"));
    }
}

/// The host of the store is stopped alone, and the workers of the others fail of that: every node names the stop.
#[test]
fn stop_of_store_host_is_the_cause_on_every_node() {
    if !is_rankrun() {
        return;
    }
    let dynamic =
        |host: usize| c10d(Name::Rankrun, ENDPOINT, "1:3").args(["--max-restarts", &host.to_string()]);
    for (own, time_limit) in [
        (dynamic as fn(usize) -> Launch, None),
        (|host| static_launch(Name::Rankrun, "th1", 3, host - 1), None),
        (dynamic, Some("4s")),
    ] {
        let Some(fleet) = Fleet::start(3) else { return };
        let start = |host: usize| {
            let limit = time_limit.filter(|_| host == 1).map(|limit| ["--time-limit", limit]);
            let launch = own(host).args(limit.into_iter().flatten());
            fleet.on(host, launch.worker(["place", "sum", "reduce=4000000000"])).start()
        };
        let jobs: Vec<_> = fleet.hosts().map(start).collect();
        jobs.iter().for_each(|job| drop(job.wait_for_line("world=3 total=6")));
        let (why, code) = match time_limit {
            Some(_) => ("its time limit is over", 124),
            None => ("it was told to stop by SIGTERM", 143),
        };
        if time_limit.is_none() {
            jobs[0].signal(Signal::SIGTERM);
        }
        for (job, code) in jobs.into_iter().zip([code, 1, 1]) {
            let outcome = job.wait();
            outcome
                .expect_exit_code(code)
                .expect_absent("panicked")
                .expect_absent("is lost")
                .expect_absent("failed first");
            if code == 1 {
                outcome.expect_stderr(&format!("(th1, 198.18.0.11) has ended the job: {why}"));
            }
        }
        fleet.is_empty();
    }
}

/// All workers of a job are started again when one fails, and only the node of the failure uses a restart.
#[test]
fn worker_failure_restarts_every_node() {
    if !is_rankrun() {
        return;
    }
    for own in [(|_| c10d(Name::Rankrun, ENDPOINT, "3")) as fn(usize) -> Launch, |host| {
        static_launch(Name::Rankrun, "th1", 3, host - 1)
    }] {
        let Some(fleet) = Fleet::start(3) else { return };
        let scratch = Scratch::new();
        let first = format!("first={},1,5", scratch.folder("attempts", 0o777));
        let steps = ["place", "sum", &first, "reduce=3", "print=finished"];
        let start = |host| fleet.on(host, own(host).args(["--max-restarts", "1"]).worker(steps)).start();
        let jobs: Vec<_> = fleet.hosts().map(start).collect();
        for outcome in super::assert_all_succeed(jobs) {
            outcome.expect_stdout("finished");
            assert_eq!(outcome.lines_with("sum rank=").len(), 2, "{outcome}");
        }
        fleet.is_empty();
    }
}
