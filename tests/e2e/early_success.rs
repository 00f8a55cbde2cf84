//! A rank that exits with 0 while others go on: the report lists it, and names it where another rank lost it.

use std::fs;
use std::time::Duration;

use harness::{
    Fleet, Gate, Job, Launch, Name, Outcome, Process, Scratch, field, free_port, is_rankrun, library,
};
use nix::sys::signal::Signal;

use crate::nodes::{ENDPOINT, c10d};
use crate::torchrun_reports::{assert_same_report, torchrun_report, worker_launch};

/// Rank 1 succeeds. When the launcher has seen that, rank 0 fails with this last line.
fn run_failure_after_success(launch: Launch, scratch: &Scratch, message: &str) -> Outcome {
    launch.shell(&failing_line(scratch, message)).run()
}

fn failing_line(scratch: &Scratch, message: &str) -> String {
    let pid = scratch.at("pid");
    format!(
        "if [ $$RANK = 1 ]; then echo $$$$ > {pid}.new; mv {pid}.new {pid}; exit 0; fi; \
         if [ $$RANK != 0 ]; then exec sleep 1000; fi; \
         until [ -e {pid} ]; do sleep 0.01; done; \
         while kill -0 $$(cat {pid}) 2>/dev/null; do sleep 0.01; done; \
         echo '{message}' >&2; exit 3"
    )
}

#[test]
fn early_success_of_rust_rank_is_named_as_probable_cause() {
    if !is_rankrun() {
        return;
    }
    for backend in ["shm", "tcp"] {
        let launch = Launch::standalone(Name::Rankrun, 3).env("RANKRUN_BACKEND", backend);
        let outcome = launch.worker(["reduce-until-exit=1"]).run();
        outcome
            .expect_exit_code(1)
            .expect_stderr(" failed first: exit code 1\n")
            .expect_absent("rank 1 failed first");
        outcome.expect_stderr("lost rank 1, which exited").expect_absent("killed or crashed");
        outcome.expect_stderr("\n  cause     probably an early end: rank 1 had exited with 0, ");
        outcome.expect_stderr(" s before; rank ").expect_stderr(" reports that it lost rank 1\n");
        outcome.expect_stderr(
            "hint: all ranks make the same collective calls: see why rank 1 ended before rank ",
        );
        let other_ranks = outcome.lines_with("  others    ").concat();
        let listed =
            ["rank 0", "rank 1: exit code 0", "rank 2"].iter().filter(|rank| other_ranks.contains(**rank));
        assert_eq!(listed.count(), 2, "the other two ranks\n{outcome}");
    }
}

#[test]
fn lost_peer_in_last_lines_names_early_success_as_cause() {
    if !is_rankrun() {
        return;
    }
    let message =
        "RuntimeError: [/x/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:4468.";
    let outcome = run_failure_after_success(Launch::standalone(Name::Rankrun, 4), &Scratch::new(), message);
    outcome.expect_exit_code(3).expect_stderr("error: rank 0 failed first: exit code 3\n");
    outcome.expect_stderr("\n  cause     probably an early end: rank 1 had exited with 0, ");
    outcome.expect_stderr(" s before; rank 0 reports a lost peer (`Connection closed by peer`)\n");
    outcome.expect_stderr(" s before; ranks 2, 3: killed by SIGTERM\n");
}

#[test]
fn unrelated_error_lists_early_success_without_blaming_it() {
    if !is_rankrun() {
        return;
    }
    let outcome = run_failure_after_success(
        Launch::standalone(Name::Rankrun, 2),
        &Scratch::new(),
        "ValueError: bad batch",
    );
    outcome
        .expect_exit_code(3)
        .expect_stderr("error: rank 0 failed first: exit code 3\n")
        .expect_stderr("| ValueError: bad batch");
    outcome
        .expect_stderr("\n  others    rank 1: exit code 0, ")
        .expect_absent("probably")
        .expect_absent("collective");
}

/// torchrun's report knows failures alone.
#[test]
fn torchrun_report_omits_early_success() {
    let message = "[gloo/transport/tcp/pair.cc:561] Connection closed by peer";
    let text = assert_same_report(|name| {
        run_failure_after_success(worker_launch(name, 2), &Scratch::new(), message)
    });
    assert!(text.contains("\n  <NO_OTHER_FAILURES>\n"), "{text}");
    let outcome = run_failure_after_success(worker_launch(Name::Torchrun, 2), &Scratch::new(), message);
    assert_eq!(torchrun_report(&outcome), text, "{outcome}");
    outcome.expect_absent("probably");
}

/// The launcher's steady clock leaps 61 s ahead while rank 0 waits at a gate.
#[test]
fn ranks_running_a_minute_after_a_success_are_reported_once() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let (gate, leap) = (Gate::new(&scratch, "gate"), scratch.at("leap"));
    let launch = Launch::standalone(Name::Rankrun, 3).env("LD_PRELOAD", library("fake_clock"));
    let launch = launch.env("FAKE_CLOCK_SHIFT", "0").env("FAKE_CLOCK_LEAP", leap.as_str());
    let steps =
        ["rank0:catch=SIGUSR1", "rank0:alive", "rank0:signal=SIGUSR1", &format!("rank0:{}", gate.step())];
    let job = launch.worker(steps).start();
    job.wait_for_line("alive rank=0");
    let agent = job.only_child_of(job.pid());
    while job.children_of(agent).len() > 1 {
        std::thread::yield_now();
    }
    // When rank 0 has this signal, the launcher has taken in the ends that it reaped before.
    job.signal(Signal::SIGUSR1);
    job.wait_for_line("got SIGUSR1 rank=0");
    fs::write(&leap, "").expect("the scratch folder takes a file");
    // It wakes the agent, which looks at its clock.
    job.signal_to(agent, Signal::SIGCHLD);
    let line = job.wait_for_line("still runs");
    let text = "rankrun: ranks 1, 2 have exited with 0, and rank 0 still runs 6";
    assert!(line.starts_with(text) && line.ends_with(" s after the first of them"), "{line}");
    job.signal_to(agent, Signal::SIGCHLD);
    gate.open(1);
    let outcome = job.wait();
    assert_eq!(outcome.expect_exit_code(0).lines_with("still run").len(), 1, "{outcome}");
}

/// Each node knows its own ranks.
#[test]
fn early_success_on_node_is_listed_with_global_rank() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    let gate = Gate::closed();
    let steps = ["place", "rank3:exit=0", &format!("rank2:{}", gate.step()), "rank2:exit=7", "forever"];
    let start = |host| {
        let launch = c10d(Name::Rankrun, ENDPOINT, "2").args(["--nproc-per-node", "2"]).worker(steps);
        fleet.on(host, launch).start()
    };
    let jobs: Vec<Job> = fleet.hosts().map(start).collect();
    let lines = jobs.iter().flat_map(|job| job.wait_for_lines("place rank=", 2)).collect::<Vec<_>>();
    let pid = lines.iter().find(|line| field(line, "rank") == Some("3")).and_then(|line| field(line, "pid"));
    let pid = pid.and_then(|pid| pid.parse().ok()).expect("rank 3 says its pid");
    // Rank 2 fails once rank 3 is reaped.
    assert!(Process::open(pid).is_none_or(|process| process.reaped_within(Duration::from_secs(30))));
    gate.open(1);
    let outcomes: Vec<_> = jobs.into_iter().map(Job::wait).collect();
    let failed =
        outcomes.iter().find(|outcome| outcome.status.code() == Some(7)).expect("one node has the failure");
    failed
        .expect_stderr("error: rank 2 (local rank 0) on node 1 (")
        .expect_stderr("\n  others    rank 3: exit code 0, ");
    fleet.is_empty();
}

#[test]
fn lost_peer_on_other_node_finished_node_reports_early_success() {
    if !is_rankrun() {
        return;
    }
    let (scratch, port) = (Scratch::new(), free_port().to_string());
    let line = failing_line(&scratch, "[/x/gloo/transport/tcp/pair.cc:561] Connection closed by peer");
    let start = |node_rank: &str| {
        let launch = Launch::new(Name::Rankrun).args(["--nnodes", "2", "--node-rank", node_rank]);
        launch.args(["--master-addr", "127.0.0.1", "--master-port", &port]).shell(&line).start()
    };
    let [failed, early] = ["0", "1"].map(start).map(Job::wait);
    failed.expect_exit_code(3).expect_absent("probably an early end: all workers");
    early.expect_exit_code(1).expect_stderr(
        "probably an early end: all workers of this node had exited with 0, and rank 0 (local rank 0) on node 0 (",
    );
}
