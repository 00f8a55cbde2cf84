//! A node is cut off from the host of the store alone, while another node still reaches it. When it stops its own
//! workers, the worker of its peer fails before an agent takes the node for lost.

use harness::{Fleet, Job, Name, only_ours};
use nix::sys::signal::Signal;

use super::{ENDPOINT, c10d};

/// Three hosts of which two are enough, and no restart is left: host `to` does not hear host `from` any more.
#[track_caller]
fn goes_on_without_host_3(from: usize, to: usize) {
    if !only_ours() {
        return;
    }
    let Some(fleet) = Fleet::up(3) else { return };
    let start = |host| {
        let launch = c10d(Name::Rankrun, ENDPOINT, "2:3");
        let launch = launch.args(["--max-restarts", "0", "--lease", super::LEASE]);
        fleet.on(host, launch.worker(["seat", "sum", "reduce=4000000000"])).start()
    };
    let jobs: Vec<Job> = fleet.hosts().map(start).collect();
    jobs.iter().for_each(|job| drop(job.line("world=3 total=6")));
    fleet.cut_one_way(from, to);
    for job in &jobs[..2] {
        job.line("world=2 total=3");
    }
    for host in [3, 1] {
        jobs[host - 1].signal(Signal::SIGTERM);
    }
    let outcomes: Vec<_> = jobs.into_iter().map(Job::wait).collect();
    for outcome in &outcomes {
        outcome.never_says("failed first").never_says("panicked");
    }
    // The node with the first failure among the others names the cause.
    let is_named = outcomes[..2].iter().any(|outcome| outcome.err().contains("th3"));
    assert!(is_named, "{}{}", outcomes[0], outcomes[1]);
    fleet.is_empty();
}

#[test]
fn node_deaf_to_the_store_host_is_the_cause_for_its_peers() {
    goes_on_without_host_3(1, 3);
}

#[test]
fn node_unheard_by_the_store_host_is_the_cause_for_its_peers() {
    goes_on_without_host_3(3, 1);
}
