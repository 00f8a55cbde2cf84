//! A store that refuses requests: a job still ends, and its error says why.

use harness::{Job, Launch, Name, free_port, only_ours};

/// An agent of a static job of two nodes with one worker each, on one machine: workers and agents share the store.
fn node(name: Name, port: u16, node_rank: usize) -> Launch {
    let launch = Launch::new(name).args(["--nnodes", "2", "--node-rank", &node_rank.to_string()]);
    launch.args(["--master-addr", "127.0.0.1", "--master-port", &port.to_string()])
}

/// Both agents, started.
#[track_caller]
fn both_nodes(name: Name, launch: impl Fn(Launch) -> Launch) -> [Job; 2] {
    let port = free_port();
    [0, 1].map(|node_rank| launch(node(name, port, node_rank)).start())
}

#[test]
fn full_store_shared_with_agents_does_not_end_the_job() {
    if !only_ours() {
        return;
    }
    for name in Name::both() {
        let steps = ["rank0:store-fill", "rank0:store-counts=/rankrun/beat/,2", "print=finished"];
        for job in both_nodes(*name, |launch| launch.worker(steps)) {
            job.wait().exits(0).says("finished").never_says("panicked");
        }
    }
}

#[test]
fn refused_heartbeat_ends_job_with_named_key_and_value() {
    if !only_ours() {
        return;
    }
    for name in Name::both() {
        let steps = ["rank0:store-spoil=/rankrun/beat/,never a number", "forever"];
        for job in both_nodes(*name, |launch| launch.worker(steps)) {
            let outcome = job.wait();
            assert_ne!(outcome.status.code(), Some(0), "{outcome}");
            outcome.never_says("panicked");
            outcome.complains("/rankrun/beat/").complains("`never a number`").complains("hint:");
        }
    }
}

/// The workers go on for long enough that a heartbeat is refused, and end before the refusal is given up.
#[test]
fn succeeded_job_with_refused_heartbeat_exits_0() {
    if !only_ours() {
        return;
    }
    let steps = ["rank0:store-spoil=/rankrun/beat/,x", "sleep-ms=1500", "print=finished"];
    for job in both_nodes(Name::Rankrun, |launch| launch.args(["--lease", "20"]).worker(steps)) {
        job.wait().exits(0).says("finished").never_says("panicked");
    }
}
