//! A round in which nothing happens.

use super::wall::Wall;
use super::*;
use rankrun_core::rendezvous::keys::RendezvousKeys;
use rankrun_core::rendezvous::pickle;

/// The connections of an agent in the order in which it makes them; the one between waits for notifications.
const REQUESTS: usize = 0;
const HEARTBEATS: usize = 2;

/// An agent in a round, behind a wall, once it sends its heartbeats alone.
fn quiet_agent(store: &StoreServer) -> (Wall, Agent) {
    let wall = Wall::before(store);
    let mut job = Job { port: wall.port, ..Job::at(store, 1, 2) };
    // No torchrun agent is to be told that this one lives.
    (job.times.lease, job.times.keep_alive) = (Duration::from_secs(2), PATIENCE * 2);
    let agent = job.round(1).remove(0);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let requests = wall.requests(REQUESTS);
        let heartbeats = wall.requests(HEARTBEATS);
        while wall.requests(HEARTBEATS) < heartbeats + 4 {
            assert!(Instant::now() < deadline, "there is a request for each heartbeat");
            thread::sleep(Duration::from_millis(5));
        }
        // A heartbeat may be late on a busy machine.
        if wall.requests(REQUESTS) == requests {
            return (wall, agent);
        }
    }
}

#[test]
fn unnotified_change_is_read_with_the_heartbeats() {
    let store = store();
    let (wall, agent) = quiet_agent(&store);
    wall.spares(HEARTBEATS);
    wall.closes();
    let (mut torchrun, keys) = (client(&store), RendezvousKeys::dynamic(&RunId("job".to_owned())));
    let mut state = pickle::decode(&torchrun.get(keys.state()).unwrap()).unwrap();
    state.closed = true;
    torchrun.set(keys.state(), &pickle::encode(&state)).unwrap();
    let over = agent.over();
    assert!(matches!(over, RendezvousEnd::Closed { failure: None }), "{over:?}");
}
