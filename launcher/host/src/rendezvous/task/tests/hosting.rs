//! The node that hosts the store: what it sees first, and what its end is to the others.

use super::*;

#[test]
fn first_agent_hosts_the_store() {
    let job = hosted(2, 2);
    let agents = job.round(2);
    agents.iter().for_each(Agent::succeed);
    for agent in agents.into_iter().rev() {
        assert!(matches!(agent.next_event(), RendezvousEvent::AllSucceeded));
        agent.close(true, None);
    }
}

#[test]
fn store_host_detects_closed_peer_at_once() {
    let mut job = hosted(1, 2);
    // The lease is longer than the test.
    job.times.lease = Duration::from_secs(1000);
    let mut agents = job.round(2);
    drop(agents.remove(1));
    assert!(matches!(agents[0].changed(), MembershipChange::Lost(_)));
    agents[0].join();
    assert_eq!(agents[0].joined().nodes.get(), 1);
}

#[test]
fn leaving_store_host_ends_job_with_its_reason() {
    let mut job = hosted(1, 2);
    (job.times.lease, job.node_rank) = (Duration::from_secs(1000), Some(NodeRank(1)));
    let host = job.agent();
    // The hosting agent says so before another agent can connect.
    assert!(host.note().contains("hosts"), "the first one");
    let other = Job { node_rank: Some(NodeRank(0)), ..job }.agent();
    other.rejoined();
    host.leave("it was told to stop by SIGTERM");
    let over = std::iter::repeat_with(|| other.next_event()).find_map(|next_event| match next_event {
        RendezvousEvent::Ended(over) => Some(over),
        _ => None,
    });
    assert_eq!(why_node_ended_job(&over.unwrap()), (NodeRank(1), "it was told to stop by SIGTERM"));
}

/// While its workers are being stopped it is still there, and the others need not wait for its end to know.
#[test]
fn stopping_store_host_notifies_only_peers_at_once() {
    let mut job = hosted(2, 2);
    job.times.lease = Duration::from_secs(1000);
    let agents = job.round(2);
    agents[0]
        .rendezvous
        .send_command(RendezvousCommand::Stopping { why: "its time limit is over".to_owned() });
    assert_eq!(why_node_ended_job(&agents[1].over()).1, "its time limit is over");
    // What fails here now is the stop's doing.
    agents[0].fail(&note(0));
    let [host, other] = agents.try_into().ok().unwrap();
    other.leave("the job has ended");
    assert!(host.rendezvous.receive().is_none());
    // The lease ends when the store has acknowledged the stop, which the other node may read before.
    while host.rendezvous.lease_deadlines().is_some() {
        std::thread::sleep(Duration::from_millis(1));
    }
    host.leave("its time limit is over");
}

/// A connected node may have more to read, or its result to publish.
#[test]
fn store_host_stays_until_peers_have_read_the_end() {
    let mut job = hosted(2, 2);
    job.times.lease = Duration::from_secs(1000);
    let mut agents = job.round(2);
    let host = agents.remove(0);
    host.rendezvous.send_command(RendezvousCommand::Stopping { why: "its time limit is over".to_owned() });
    assert_eq!(why_node_ended_job(&agents[0].over()).1, "its time limit is over");
    let before = Instant::now();
    host.leave("its time limit is over");
    assert!(before.elapsed() >= Duration::from_secs(1), "a node is still connected");
}

#[test]
fn stopping_non_host_leaves_job_running() {
    let mut job = hosted(1, 2);
    job.times.lease = Duration::from_secs(1000);
    let mut agents = job.round(2);
    let stops = agents.remove(1);
    stops.rendezvous.send_command(RendezvousCommand::Stopping { why: "SIGTERM".to_owned() });
    stops.leave("SIGTERM");
    assert!(matches!(agents[0].changed(), MembershipChange::Left { why, .. } if why == "SIGTERM"));
}
