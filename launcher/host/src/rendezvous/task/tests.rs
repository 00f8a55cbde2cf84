//! Several agents' rendezvous in one process, over one store. Nothing sleeps: every test waits for events.
#![expect(clippy::disallowed_methods, reason = "a test that hangs has to end")]

use std::time::{Duration, Instant};

use rankrun_contract::rank::{NodeCount, NodeRank, Rank, RunId, WorldSize};

use std::thread;

use super::*;
use crate::rendezvous::error::RendezvousError;
use crate::store::StoreServer;
use crate::store::client::ClientSettings;
use crate::store::client::blocking::Client;
use rankrun_core::rendezvous::{
    FailureNote, LossRole, LostNode, MembershipChange, RendezvousEnd, WaitReason,
};
use rankrun_core::spec::rendezvous::RoundTimes;

mod addresses;
mod ending;
mod errors;
mod faults;
mod foreign_clients;
mod given;
mod hosting;
mod late;
mod lost_node;
mod quiet;
mod silence;
mod team;
mod wall;

use team::{
    Agent, Job, PATIENCE, client, free_port, hosted, note, note_with_message, range, store,
    why_node_ended_job,
};

#[test]
fn two_and_four_nodes_form_a_round() {
    for count in [2, 4] {
        let store = store();
        let job = Job::at(&store, count, count);
        let mut agents: Vec<_> = (0..count).map(|_| job.open()).collect();
        for (workers, agent) in (1..).zip(&mut agents) {
            agent.workers = LocalWorldSize::new(workers).unwrap();
            agent.join();
        }
        let (rounds, stores): (Vec<_>, Vec<_>) = agents.iter().map(Agent::joined_with_store).unzip();
        let world = count * (count + 1) / 2;
        let mut by_rank: Vec<_> =
            rounds.iter().zip(1..).map(|(round, workers)| (round.node_rank, workers, round)).collect();
        by_rank.sort_by_key(|(rank, ..)| *rank);
        let mut base = 0;
        for (index, (rank, workers, round)) in by_rank.iter().enumerate() {
            assert_eq!(rank.index(), index);
            assert_eq!(
                (round.number, round.nodes.get(), round.world_size),
                (0, count, WorldSize::new(world).unwrap())
            );
            assert_eq!((round.base_rank, round.base_role_rank), (Rank(base), Rank(base)));
            assert_eq!(round.master, rounds[0].master);
            assert_eq!(round.members.len(), count as usize);
            base += workers;
        }
        let hosts: Vec<_> = rounds.iter().zip(stores).filter(|(_, has_store)| *has_store).collect();
        assert_eq!(hosts.len(), 1, "only one agent has the training store");
        assert_eq!(hosts[0].0.node_rank, NodeRank(0));
    }
}

#[test]
fn given_node_ranks_become_node_ranks() {
    let store = store();
    let job = Job::at(&store, 3, 3);
    let agents: Vec<_> = [2, 0, 1]
        .map(|rank| (rank, Job { node_rank: Some(NodeRank(rank)), ..job.clone() }.agent()))
        .into_iter()
        .collect();
    for (rank, agent) in &agents {
        assert_eq!(agent.joined().node_rank, NodeRank(*rank));
    }
}

#[test]
fn all_nodes_succeeded_reports_all_succeeded() {
    let store = store();
    let agents = Job::at(&store, 2, 2).round(2);
    agents[0].succeed();
    agents[1].succeed();
    for agent in &agents {
        assert!(matches!(agent.next_event(), RendezvousEvent::AllSucceeded));
    }
    for agent in agents {
        agent.close(true, None);
    }
}

/// A node that was done joins again, since another one was lost; that one comes back, and was done too.
#[test]
fn all_succeeded_round_ends_restarting_agents() {
    let store = store();
    let agents = Job::at(&store, 2, 2).round(2);
    agents[0].succeed();
    agents[0].join();
    agents[1].succeed();
    // The other one may have heard first that this node joins.
    let event = agents[1].event_after_changes();
    assert!(matches!(event, RendezvousEvent::AllSucceeded), "{event:?}");
    let [repeats, ends] = <[Agent; 2]>::try_from(agents).ok().unwrap();
    ends.close(true, None);
    assert!(matches!(repeats.over(), RendezvousEnd::NotNeeded));
}

/// What others read of a note is made fit for a terminal; whose it is is told by what was written.
#[test]
fn first_failure_reporter_is_not_blamed_on_lost_node() {
    let store = store();
    let agents = Job::at(&store, 2, 2).round(2);
    let message = format!("bad\tcolumn\u{1b}[1m {}", "x".repeat(5000));
    agents[1].fail(&note_with_message(1, Some(message)));
    assert!(matches!(agents[0].changed(), MembershipChange::Failed(note) if note.rank == Rank(1)));
    agents[1].rendezvous.send_command(RendezvousCommand::FindLostNode);
    assert!(matches!(agents[1].next_event(), RendezvousEvent::LostNodeFound(None)));
}

#[test]
fn worker_failure_reaches_all_agents_and_starts_next_round() {
    let store = store();
    let agents = Job::at(&store, 3, 3).round(3);
    agents[1].fail(&note(1));
    for agent in [&agents[0], &agents[2]] {
        assert_eq!(agent.changed(), MembershipChange::from(note(1)));
    }
    agents.iter().for_each(Agent::join);
    for agent in &agents {
        assert_eq!(agent.joined().number, 1);
    }
}

#[test]
fn two_failures_report_the_first_as_cause() {
    let store = store();
    let agents = Job::at(&store, 2, 2).round(2);
    agents[0].fail(&note(0));
    assert_eq!(agents[1].changed(), MembershipChange::from(note(0)));
    agents[1].fail(&note(1));
    assert_eq!(agents[1].changed(), MembershipChange::from(note(0)), "the first one stands");
    for agent in agents {
        agent.close(false, Some(note(1)));
    }
    let closed = Job::at(&store, 2, 2).agent().over();
    assert!(
        matches!(&closed, RendezvousEnd::Closed { failure: Some(first) } if *first == note(0)),
        "{closed:?}"
    );
}

#[test]
fn final_failure_ends_agents_in_every_phase() {
    let store = store();
    let job = Job::at(&store, 2, 2);
    let mut agents = job.round(2);
    let spare = job.agent();
    let running = agents.remove(0);
    agents.remove(0).close(false, Some(note(1)));
    for agent in [&running, &spare] {
        let over = agent.over();
        assert!(
            matches!(&over, RendezvousEnd::Closed { failure: Some(first) } if *first == note(1)),
            "{over:?}"
        );
    }
    let late = job.agent();
    assert!(matches!(late.over(), RendezvousEnd::Closed { failure: Some(_) }));
}

#[test]
fn node_ranks_stay_the_same_over_restarts() {
    let store = store();
    let agents: Vec<_> = (0..4).map(|_| Job::at(&store, 4, 4).agent()).collect();
    let ranks = |agents: &[Agent]| agents.iter().map(|agent| agent.rejoined().node_rank).collect::<Vec<_>>();
    let first = ranks(&agents);
    for _ in 0..3 {
        agents.iter().rev().for_each(Agent::join);
        assert_eq!(ranks(&agents), first);
    }
}

#[test]
fn agents_below_min_nodes_wait_then_fail_with_count() {
    let store = store();
    let mut job = Job::at(&store, 2, 2);
    job.times.join = Duration::from_secs(4);
    let mut agents = job.round(2);
    drop(agents.remove(1));
    assert!(matches!(agents[0].changed(), MembershipChange::Lost(_) | MembershipChange::NodeWaits { .. }));
    agents[0].join();
    let waiting = agents[0].waiting();
    assert_eq!((waiting.here.len(), waiting.missing.len(), waiting.awaited), (1, 1, WaitReason::Enough));
    let error = agents[0].failed();
    assert!(matches!(&error, RendezvousError::TooFew { here: 1, needed: 2, .. }), "{error}");
}

/// There are enough, and more may come: it is said when it begins.
#[test]
fn wait_status_in_last_call_has_remaining_time() {
    let store = store();
    let mut job = Job::at(&store, 1, 2);
    job.times.last_call = Duration::from_secs(100);
    let waiting = job.agent().waiting();
    let WaitReason::More { starts_in } = waiting.awaited else { panic!("{waiting:?}") };
    assert!(starts_in <= job.times.last_call && !starts_in.is_zero(), "{waiting:?}");
    assert_eq!((waiting.here.len(), waiting.missing.len()), (1, 0));
}

#[test]
fn second_node_joins_in_next_round() {
    let store = store();
    let job = Job::at(&store, 1, 2);
    let first = job.round(1).remove(0);
    let second = job.agent();
    assert!(matches!(first.changed(), MembershipChange::NodeWaits { .. }));
    first.join();
    let (one, two) = (first.joined(), second.joined());
    assert_eq!((one.number, one.nodes.get(), one.node_rank), (1, 2, NodeRank(0)));
    assert_eq!((two.number, two.master), (1, one.master));
}

#[test]
fn spare_waits_and_replaces_node_that_left() {
    let store = store();
    let job = Job::at(&store, 1, 1);
    let first = job.round(1).remove(0);
    let spare = job.agent();
    assert_eq!(spare.waiting().awaited, WaitReason::Place);
    first.leave("SIGTERM");
    assert_eq!(spare.joined().nodes.get(), 1);
    spare.close(true, None);
}

#[test]
fn spare_ends_as_not_needed_after_job_success() {
    let store = store();
    let job = Job::at(&store, 1, 1);
    let first = job.round(1).remove(0);
    let spare = job.agent();
    assert_eq!(spare.waiting().awaited, WaitReason::Place);
    first.succeed();
    assert!(matches!(first.next_event(), RendezvousEvent::AllSucceeded));
    first.close(true, None);
    assert!(matches!(spare.over(), RendezvousEnd::NotNeeded));
}

#[test]
fn leaving_node_reports_its_reason() {
    let store = store();
    let job = Job::at(&store, 1, 2);
    let mut agents = job.round(2);
    agents.remove(0).leave("SIGTERM");
    let change = agents[0].changed();
    assert!(matches!(&change, MembershipChange::Left { why, .. } if why == "SIGTERM"), "{change:?}");
    agents[0].join();
    assert_eq!(agents[0].joined().nodes.get(), 1);
}
