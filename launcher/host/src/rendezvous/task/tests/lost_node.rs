//! Whether a failure has its cause in a node that was lost.

use super::*;

#[test]
fn lost_node_is_blamed_for_failure() {
    let mut job = hosted(1, 2);
    job.times.lease = Duration::from_secs(1000);
    let mut agents = job.round(2);
    agents[0].rendezvous.send_command(RendezvousCommand::FindLostNode);
    assert!(matches!(agents[0].next_event(), RendezvousEvent::LostNodeFound(None)));
    drop(agents.remove(1));
    assert!(matches!(agents[0].changed(), MembershipChange::Lost(_)));
    agents[0].rendezvous.send_command(RendezvousCommand::FindLostNode);
    assert!(matches!(agents[0].next_event(), RendezvousEvent::LostNodeFound(Some(_))));
}

/// The store is another program's, as torchrun's, and says nothing of closed connections.
#[test]
fn blame_without_closed_connections_waits_for_the_silent_lease() {
    let store = store();
    let mut job = Job::at(&store, 1, 2);
    job.times.lease = Duration::from_secs(2);
    let mut agents = job.round(2);
    agents[0].rendezvous.send_command(RendezvousCommand::FindLostNode);
    assert!(matches!(agents[0].next_event(), RendezvousEvent::LostNodeFound(None)), "the other lives");
    drop(agents.remove(1));
    agents[0].rendezvous.send_command(RendezvousCommand::FindLostNode);
    let answer = agents[0].next_event();
    assert!(matches!(&answer, RendezvousEvent::LostNodeFound(Some(_))), "{answer:?}");
}

#[test]
fn failure_reported_before_node_loss_is_blamed_on_lost_node() {
    let mut job = hosted(1, 2);
    job.times.lease = Duration::from_secs(1000);
    let mut agents = job.round(2);
    let first = agents.remove(0);
    first.fail(&note(0));
    assert_eq!(agents[0].changed(), MembershipChange::from(note(0)));
    drop(agents);
    let blamed = std::iter::repeat_with(|| {
        first.rendezvous.send_command(RendezvousCommand::FindLostNode);
        first.next_event()
    });
    // The end of the other's connections may come after the first question.
    let answer = blamed.into_iter().find(|answer| !matches!(answer, RendezvousEvent::LostNodeFound(None)));
    assert!(matches!(&answer, Some(RendezvousEvent::LostNodeFound(Some(_)))), "{answer:?}");
}

#[test]
fn peers_learn_later_that_lost_node_caused_failure() {
    let mut job = hosted(1, 3);
    (job.times.lease, job.times.last_call) = (Duration::from_secs(1000), PATIENCE);
    let mut agents = job.round(3);
    let (first, second, lost) = (agents.remove(0), agents.remove(0), agents.remove(0));
    first.fail(&note(0));
    assert_eq!(second.changed(), MembershipChange::from(note(0)));
    assert_eq!(lost.changed(), MembershipChange::from(note(0)));
    drop(lost);
    let mut blamed = std::iter::repeat_with(|| {
        first.rendezvous.send_command(RendezvousCommand::FindLostNode);
        first.next_event()
    });
    let answer = blamed.find(|answer| !matches!(answer, RendezvousEvent::LostNodeFound(None)));
    assert!(matches!(&answer, Some(RendezvousEvent::LostNodeFound(Some(_)))), "{answer:?}");
    assert!(matches!(
        second.changed(),
        MembershipChange::Lost(LostNode { role: LossRole::FirstFailure, .. })
    ));
    first.leave("the test is over");
}

#[test]
fn note_just_before_next_round_is_delivered() {
    let store = store();
    let agents = Job::at(&store, 2, 2).round(2);
    agents[0].fail(&note(0));
    agents[0].join();
    assert_eq!(agents[1].changed(), MembershipChange::from(note(0)));
    agents[1].join();
    assert!(agents.iter().all(|agent| agent.joined().number == 1));
}

/// `--exclude-node-after`: the host of the store stays, and so does a node without which the others are too few.
#[test]
fn failing_node_leaves_if_the_other_nodes_are_enough() {
    for (min, at, leaves) in [(2, 1, true), (2, 0, false), (3, 1, false)] {
        let mut job = hosted(min, 3);
        job.times.last_call = Duration::from_millis(50);
        let agents = job.round(3);
        let workers = LocalWorldSize::ONE;
        for (of, agent) in agents.iter().enumerate() {
            let command = RendezvousCommand::Join { workers, leaves_if_possible: of == at };
            agent.rendezvous.send_command(command);
        }
        let answer = std::iter::repeat_with(|| agents[at].next_event())
            .find(|event| !matches!(event, RendezvousEvent::Changed(_)));
        let is_excluded =
            matches!(answer, Some(RendezvousEvent::Ended(RendezvousEnd::Excluded { others: 2 })));
        assert_eq!(is_excluded, leaves, "node {at} of a job from {min} nodes: {answer:?}");
    }
}
