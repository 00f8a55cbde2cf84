//! A launcher has an error of its own.

use super::*;
use rankrun_core::rendezvous::NodeName;
use rankrun_core::spec::rendezvous::PortRange;

fn with_full_range(job: &Job) -> Setup {
    let mut setup = job.setup();
    // The endpoint's own, which is taken.
    setup.network.ports = Some(PortRange { first: job.port, last: job.port });
    setup
}

#[test]
fn failing_store_host_reports_its_error_to_peers() {
    let mut job = hosted(2, 2);
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
fn launcher_failure_is_reported_with_its_node() {
    let mut job = hosted(2, 2);
    job.times.lease = Duration::from_secs(1000);
    let [host, other] = job.round(2).try_into().ok().unwrap();
    let node = NodeName { rank: Some(NodeRank(1)), ..NodeName::of_host("th2") };
    let note = FailureNote::LauncherFailed { node, why: "cannot start".to_owned() };
    other.close(false, Some(note));
    assert_eq!(why_node_ended_job(&host.over()), (NodeRank(1), "cannot start"));
}
