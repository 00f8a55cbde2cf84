//! A rank that exits with 0 while others go on: the report lists it, and names it where another rank lost it.

use std::fs;

use harness::{Fleet, Gate, Job, Launch, Name, Outcome, Scratch, free_port, library, only_ours};
use nix::sys::signal::Signal;

use crate::nodes::{ENDPOINT, c10d};
use crate::reports::{report, same_report, workers};

/// Rank 1 succeeds. When the launcher has seen that, rank 0 fails with these last words.
fn fails_after(launch: Launch, scratch: &Scratch, words: &str) -> Outcome {
    launch.shell(&failing_line(scratch, words)).run()
}

fn failing_line(scratch: &Scratch, words: &str) -> String {
    let pid = scratch.at("pid");
    format!(
        "if [ $$RANK = 1 ]; then echo $$$$ > {pid}.new; mv {pid}.new {pid}; exit 0; fi; \
         if [ $$RANK != 0 ]; then exec sleep 1000; fi; \
         until [ -e {pid} ]; do sleep 0.01; done; \
         while kill -0 $$(cat {pid}) 2>/dev/null; do sleep 0.01; done; \
         echo '{words}' >&2; exit 3"
    )
}

#[test]
fn early_success_of_a_rust_rank_is_named_as_the_probable_cause() {
    if !only_ours() {
        return;
    }
    for backend in ["shm", "tcp"] {
        let launch = Launch::standalone(Name::Rankrun, 3).env("RANKRUN_BACKEND", backend);
        let outcome = launch.worker(["reduce-until-exit=1"]).run();
        outcome.exits(1).complains(" failed first: exit code 1\n").never_says("rank 1 failed first");
        outcome.complains("lost rank 1, which exited").never_says("killed or crashed");
        outcome.complains("\n  cause     probably an early end: rank 1 had exited with 0, ");
        outcome.complains(" s before; rank ").complains(" reports that it lost rank 1\n");
        outcome
            .complains("hint: all ranks make the same collective calls: see why rank 1 ended before rank ");
        let others = outcome.lines_with("  others    ").concat();
        let listed =
            ["rank 0", "rank 1: exit code 0", "rank 2"].iter().filter(|rank| others.contains(**rank));
        assert_eq!(listed.count(), 2, "the other two ranks\n{outcome}");
    }
}

#[test]
fn early_success_is_named_where_the_last_lines_report_a_lost_peer() {
    if !only_ours() {
        return;
    }
    let words =
        "RuntimeError: [/x/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:4468.";
    let outcome = fails_after(Launch::standalone(Name::Rankrun, 4), &Scratch::new(), words);
    outcome.exits(3).complains("error: rank 0 failed first: exit code 3\n");
    outcome.complains("\n  cause     probably an early end: rank 1 had exited with 0, ");
    outcome.complains(" s before; rank 0 reports a lost peer (`Connection closed by peer`)\n");
    outcome.complains(" s before; ranks 2, 3: killed by SIGTERM\n");
}

#[test]
fn early_success_is_listed_and_not_blamed_for_an_error_of_another_kind() {
    if !only_ours() {
        return;
    }
    let outcome = fails_after(Launch::standalone(Name::Rankrun, 2), &Scratch::new(), "ValueError: bad batch");
    outcome
        .exits(3)
        .complains("error: rank 0 failed first: exit code 3\n")
        .complains("| ValueError: bad batch");
    outcome.complains("\n  others    rank 1: exit code 0, ").never_says("probably").never_says("collective");
}

/// torchrun's report knows failures alone.
#[test]
fn early_success_is_not_in_torchruns_report() {
    let words = "[gloo/transport/tcp/pair.cc:561] Connection closed by peer";
    let text = same_report(|name| fails_after(workers(name, 2), &Scratch::new(), words));
    assert!(text.contains("\n  <NO_OTHER_FAILURES>\n"), "{text}");
    let outcome = fails_after(workers(Name::Torchrun, 2), &Scratch::new(), words);
    assert_eq!(report(&outcome), text, "{outcome}");
    outcome.never_says("probably");
}

/// The launcher's steady clock leaps 61 s ahead while rank 0 waits at a gate.
#[test]
fn ranks_that_go_on_for_a_minute_after_a_success_are_told_once() {
    if !only_ours() {
        return;
    }
    let scratch = Scratch::new();
    let (gate, leap) = (Gate::new(&scratch, "gate"), scratch.at("leap"));
    let launch = Launch::standalone(Name::Rankrun, 3).env("LD_PRELOAD", library("fake_clock"));
    let launch = launch.env("FAKE_CLOCK_SHIFT", "0").env("FAKE_CLOCK_LEAP", leap.as_str());
    let steps =
        ["rank0:catch=SIGUSR1", "rank0:alive", "rank0:signal=SIGUSR1", &format!("rank0:{}", gate.step())];
    let job = launch.worker(steps).start();
    job.line("alive rank=0");
    let agent = job.only_child_of(job.pid());
    while job.children_of(agent).len() > 1 {
        std::thread::yield_now();
    }
    // When rank 0 has this signal, the launcher has taken in the ends that it reaped before.
    job.signal(Signal::SIGUSR1);
    job.line("got SIGUSR1 rank=0");
    fs::write(&leap, "").expect("the scratch folder takes a file");
    // It wakes the agent, which looks at its clock.
    job.signal_to(agent, Signal::SIGCHLD);
    let line = job.line("still runs");
    let text = "rankrun: ranks 1, 2 have exited with 0, and rank 0 still runs 6";
    assert!(line.starts_with(text) && line.ends_with(" s after the first of them"), "{line}");
    job.signal_to(agent, Signal::SIGCHLD);
    gate.open(1);
    let outcome = job.wait();
    assert_eq!(outcome.exits(0).lines_with("still run").len(), 1, "{outcome}");
}

/// Each node knows its own ranks.
#[test]
fn early_success_is_listed_by_its_node_with_its_global_rank() {
    if !only_ours() {
        return;
    }
    let Some(fleet) = Fleet::up(2) else { return };
    let steps = ["seat", "rank3:exit=0", "rank2:sleep-ms=300", "rank2:exit=7", "forever"];
    let start = |host| {
        let launch = c10d(Name::Rankrun, ENDPOINT, "2").args(["--nproc-per-node", "2"]).worker(steps);
        fleet.on(host, launch).start()
    };
    let outcomes: Vec<_> = fleet.hosts().map(start).collect::<Vec<_>>().into_iter().map(Job::wait).collect();
    let failed =
        outcomes.iter().find(|outcome| outcome.status.code() == Some(7)).expect("one node has the failure");
    failed
        .complains("error: rank 2 (local rank 0) on node 1 (")
        .complains("\n  others    rank 3: exit code 0, ");
    fleet.is_empty();
}

#[test]
fn node_whose_ranks_had_finished_says_so_when_another_lost_a_peer() {
    if !only_ours() {
        return;
    }
    let (scratch, port) = (Scratch::new(), free_port().to_string());
    let line = failing_line(&scratch, "[/x/gloo/transport/tcp/pair.cc:561] Connection closed by peer");
    let start = |node_rank: &str| {
        let launch = Launch::new(Name::Rankrun).args(["--nnodes", "2", "--node-rank", node_rank]);
        launch.args(["--master-addr", "127.0.0.1", "--master-port", &port]).shell(&line).start()
    };
    let [failed, early] = ["0", "1"].map(start).map(Job::wait);
    failed.exits(3).never_says("probably an early end: all workers");
    early.exits(1).complains(
        "probably an early end: all workers of this node had exited with 0, and rank 0 (local rank 0) on node 0 (",
    );
}
