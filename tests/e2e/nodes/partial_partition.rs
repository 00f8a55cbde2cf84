//! A node is cut off from the host of the store alone, while another node still reaches it. When it stops its own
//! workers, the worker of its peer fails before an agent takes the node for lost.

use harness::{Fleet, Job, Name, is_rankrun};
use nix::sys::signal::Signal;

use super::{ENDPOINT, c10d};

/// Three hosts of which two are enough, and no restart is left: host `to` does not hear host `from` any more.
#[track_caller]
fn assert_continues_without_host_3(from: usize, to: usize) {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(3) else { return };
    let start = |host| {
        let launch = c10d(Name::Rankrun, ENDPOINT, "2:3");
        let launch = launch.args(["--max-restarts", "0", "--lease", super::LEASE]);
        fleet.on(host, launch.worker(["place", "sum", "reduce=4000000000"])).start()
    };
    let jobs: Vec<Job> = fleet.hosts().map(start).collect();
    jobs.iter().for_each(|job| drop(job.wait_for_line("world=3 total=6")));
    fleet.cut_one_way(from, to);
    for job in &jobs[..2] {
        job.wait_for_line("world=2 total=3");
    }
    for host in [3, 1] {
        jobs[host - 1].signal(Signal::SIGTERM);
    }
    let outcomes: Vec<_> = jobs.into_iter().map(Job::wait).collect();
    for outcome in &outcomes {
        outcome.expect_absent("failed first").expect_absent("panicked");
    }
    // The node with the first failure among the others names the cause.
    let is_named = outcomes[..2].iter().any(|outcome| outcome.stderr().contains("th3"));
    assert!(is_named, "{}{}", outcomes[0], outcomes[1]);
    fleet.is_empty();
}

#[test]
fn node_not_receiving_from_store_host_is_the_cause() {
    assert_continues_without_host_3(1, 3);
}

#[test]
fn node_not_reaching_store_host_is_the_cause() {
    assert_continues_without_host_3(3, 1);
}
