//! Nodes that take longer to stop their workers than others wait for nodes.

use super::*;

/// The first line about a wait comes later than this.
const JOIN: Duration = Duration::from_millis(1_900);

/// Waits for a line that says how many nodes are waited for to stop their workers, and returns how many are here then.
#[track_caller]
fn waits_for_stops(agent: &Agent, count: usize) -> usize {
    let waiting = agent.waiting();
    let WaitReason::Stops { nodes } = &waiting.awaited else { panic!("{waiting:?}") };
    assert_eq!((nodes.len(), waiting.missing.len()), (count, 0), "{waiting:?}");
    waiting.here.len()
}

#[test]
fn node_stopping_its_workers_is_not_missing() {
    let store = store();
    let mut job = Job::at(&store, 3, 3);
    job.times.join = JOIN;
    let agents = job.round(3);
    agents[0].fail(&note(0));
    agents[0].join();
    for slow in &agents[1..] {
        assert_eq!(slow.changed(), MembershipChange::from(note(0)));
    }
    assert_eq!(waits_for_stops(&agents[0], 2), 1);
    agents[1].join();
    assert_eq!(waits_for_stops(&agents[1], 1), 2);
    agents[2].join();
    assert!(agents.iter().all(|agent| agent.joined().number == 1));
}

#[test]
fn new_node_waits_for_members_to_stop_workers() {
    let store = store();
    let mut job = Job::at(&store, 2, 3);
    job.times.join = JOIN;
    let agents = job.round(2);
    let newcomer = job.agent();
    for slow in &agents {
        assert!(matches!(slow.changed(), MembershipChange::NodeWaits { .. }));
    }
    assert_eq!(waits_for_stops(&newcomer, 2), 1);
    agents.iter().for_each(Agent::join);
    assert!(agents.iter().chain([&newcomer]).all(|agent| agent.joined().nodes.get() == 3));
}

#[test]
fn leaving_node_disarms_watchdog() {
    let store = store();
    let mut agents = Job::at(&store, 2, 2).round(2);
    let watchdog = Watchdog::open(Instant::now()).unwrap();
    let agent = agents.remove(0).rendezvous;
    agent.set_watchdog(Some(watchdog.clone()));
    assert!(watchdog.kill_by().is_some());
    agent.end(ShutdownKind::Leave { why: "the test".to_owned() }, PATIENCE);
    assert_eq!(watchdog.kill_by(), None);
}
