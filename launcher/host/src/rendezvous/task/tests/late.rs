//! The cause of a failure if a node is cut off from the store alone: workers of other nodes fail before it is known to be
//! lost.

use super::wall::Wall;
use super::*;

/// A job of two agents, its host and one behind a wall.
fn walled(lease: Duration) -> (Wall, Agent, Agent) {
    let mut job = hosted(1, 2);
    (job.is_host, job.times.lease) = (Some(true), lease);
    let host = job.agent();
    let wall = Wall::to(std::net::SocketAddr::from(([127, 0, 0, 1], job.port)));
    let other = Job { port: wall.port, is_host: Some(false), ..job }.agent();
    host.joined();
    other.joined();
    (wall, host, other)
}

#[test]
fn node_with_late_heartbeats_is_awaited_before_any_blame() {
    let lease = Duration::from_secs(2);
    let (wall, host, cut_off) = walled(lease);
    wall.closes();
    // Then it stops its workers, and others fail of that.
    let stop_at = loop {
        let stop_at = cut_off.rendezvous.lease_deadlines().unwrap().stop_at;
        match stop_at.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => thread::sleep(left),
            _ => break stop_at,
        }
    };
    host.fail(&note(0));
    host.rendezvous.send_command(RendezvousCommand::FindLostNode);
    let answer = host.next_event();
    assert!(matches!(&answer, RendezvousEvent::LostNodeFound(Some(_))), "{answer:?}");
    assert!(stop_at.elapsed() < lease, "it is waited for the lease and no longer: {:?}", stop_at.elapsed());
}

#[test]
fn failure_with_fresh_heartbeats_is_reported_at_once() {
    let (_wall, host, _other) = walled(Duration::from_secs(10));
    host.rendezvous.send_command(RendezvousCommand::FindLostNode);
    let asked = Instant::now();
    assert!(matches!(host.next_event(), RendezvousEvent::LostNodeFound(None)));
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
}
