//! A launcher has an error of its own.

use super::faults::{free_port, why_node_ended_job};
use super::*;
use crate::spec::rendezvous::PortRange;

/// As the first to come, so that it hosts the store and is to have the workers' one too.
fn hosted(job: Job) -> Job {
    Job { host: "localhost".to_owned(), port: free_port(), is_host: None, ..job }
}

fn with_full_range(job: &Job) -> Setup {
    let mut setup = job.setup();
    // The endpoint's own, which is taken.
    setup.network.ports = Some(PortRange { first: job.port, last: job.port });
    setup
}

#[test]
fn a_host_of_the_store_that_fails_tells_the_others_of_what() {
    let mut job = hosted(Job::at(&store(), 2, 2));
    (job.times.lease, job.node_rank) = (Duration::from_secs(1000), Some(NodeRank(0)));
    let host = Agent::of(with_full_range(&job));
    host.join();
    let other = Job { node_rank: Some(NodeRank(1)), ..job }.agent();
    let error = host.failed().to_string();
    assert!(error.contains("is in use"), "{error}");
    let leaves = std::thread::spawn(move || host.leave(&error));
    assert!(why_node_ended_job(&other.over()).1.contains("is in use"));
    drop(other);
    leaves.join().unwrap();
}

#[test]
fn a_launcher_that_has_failed_is_told_with_its_node() {
    let mut job = hosted(Job::at(&store(), 2, 2));
    job.times.lease = Duration::from_secs(1000);
    let [host, other] = job.round(2).try_into().ok().unwrap();
    let note = FailureNote::of_failed_launcher(NodeRank(1), "th2".to_owned(), "cannot start".to_owned());
    other.close(false, Some(note));
    assert_eq!(why_node_ended_job(&host.over()), (NodeRank(1), "cannot start"));
}
