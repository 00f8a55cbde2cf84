//! Stores that cannot be reached, and say nothing of it.

use super::wall::Wall;
use super::*;

#[test]
fn silent_store_nears_lease_deadline_and_answer_extends_it() {
    let store = store();
    let wall = Wall::before(&store);
    let mut job = Job { port: wall.port, ..Job::at(&store, 1, 1) };
    job.times.lease = Duration::from_secs(2);
    let agent = job.round(1).remove(0);
    let first = agent.rendezvous.lease_deadlines().unwrap();
    assert_eq!(first.kill_by - first.stop_at, Duration::from_millis(500));
    wall.closes();
    let deadlines = loop {
        let deadlines = agent.rendezvous.lease_deadlines().unwrap();
        match deadlines.stop_at.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => thread::sleep(left),
            _ => break deadlines,
        }
    };
    wall.opens();
    let deadline = Instant::now() + PATIENCE;
    while agent.rendezvous.lease_deadlines().unwrap() == deadlines {
        assert!(Instant::now() < deadline, "no heartbeat");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The first two connections carry calls and change notifications; no further connection is let through.
#[test]
fn blocking_call_does_not_delay_heartbeats() {
    let store = store();
    let wall = Wall::before(&store);
    let mut job = Job { port: wall.port, ..Job::at(&store, 1, 2) };
    job.times.lease = Duration::from_secs(2);
    let agent = job.round(1).remove(0);
    wall.spares(2);
    wall.closes();
    let first = agent.rendezvous.lease_deadlines().unwrap();
    loop {
        let deadlines = agent.rendezvous.lease_deadlines().unwrap();
        if deadlines.stop_at > first.kill_by + job.times.lease {
            return;
        }
        let left = deadlines.stop_at.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "the fence has come");
        thread::sleep(left.min(Duration::from_millis(20)));
    }
}

#[test]
fn silent_store_is_lost_after_limit() {
    let store = store();
    let wall = Wall::before(&store);
    let mut job = Job { port: wall.port, ..Job::at(&store, 1, 1) };
    job.times = RoundTimes { lease: Duration::from_secs(1), join: Duration::from_secs(2), ..job.times };
    let agent = job.round(1).remove(0);
    wall.closes();
    assert!(matches!(agent.failed(), RendezvousError::StoreLost { .. }));
}

/// The task waits for an answer that does not come, and the handle does not wait for the task.
#[test]
fn leaving_a_silent_store_returns_at_once() {
    let store = store();
    let wall = Wall::before(&store);
    let mut job = Job { port: wall.port, ..Job::at(&store, 1, 1) };
    job.times.lease = PATIENCE;
    let agent = job.round(1).remove(0);
    wall.closes();
    let began = Instant::now();
    agent.leave("Ctrl-C was pressed");
    assert!(began.elapsed() < PATIENCE / 10, "{:?}", began.elapsed());
}

#[test]
fn agent_taken_for_dead_does_not_end_peers() {
    let store = store();
    let wall = Wall::before(&store);
    let mut job = Job::at(&store, 1, 2);
    job.times.lease = Duration::from_secs(2);
    let behind = Job { port: wall.port, ..job.clone() };
    let (one, other) = (job.agent(), behind.agent());
    assert_eq!((one.joined().nodes.get(), other.joined().nodes.get()), (2, 2));
    wall.closes();
    assert!(matches!(one.changed(), MembershipChange::Lost(_)));
    one.join();
    assert_eq!(one.joined().nodes.get(), 1);
    // Its way to the store is mended in the moment in which it goes.
    wall.opens();
    other.close(false, Some(note(1)));
    one.succeed();
    assert!(matches!(one.next_event(), RendezvousEvent::AllSucceeded));
}

#[test]
fn job_end_is_sent_over_new_connection_after_loss() {
    let store = store();
    let wall = Wall::before(&store);
    let job = Job::at(&store, 2, 2);
    let behind = Job { port: wall.port, ..job.clone() };
    let (one, other) = (job.agent(), behind.agent());
    assert_eq!((one.joined().nodes.get(), other.joined().nodes.get()), (2, 2));
    wall.breaks();
    other.close(false, Some(note(1)));
    let over = one.over();
    assert!(matches!(&over, RendezvousEnd::Closed { failure: Some(first) } if *first == note(1)), "{over:?}");
}
