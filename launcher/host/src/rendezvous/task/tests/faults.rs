//! Nodes and stores that end without a message.

use super::*;

#[test]
fn dropped_node_is_lost_within_its_lease() {
    let store = store();
    let mut job = Job::at(&store, 1, 2);
    job.times.lease = Duration::from_secs(2);
    let mut agents = job.round(2);
    drop(agents.remove(1));
    assert!(matches!(agents[0].changed(), MembershipChange::Lost(_)));
    agents[0].join();
    assert_eq!(agents[0].joined().nodes.get(), 1);
}

#[test]
fn lost_store_error_names_the_endpoint() {
    let store = store();
    let mut job = Job::at(&store, 2, 2);
    job.times.lease = Duration::from_secs(2);
    let endpoint = format!("127.0.0.1:{}", job.port);
    let agents = job.round(2);
    drop(store);
    for agent in &agents {
        let error = agent.failed();
        assert!(
            matches!(&error, RendezvousError::StoreLost { endpoint: named, .. } if *named == endpoint),
            "{error}"
        );
    }
}

#[test]
fn lease_deadline_stays_after_store_loss_until_job_end() {
    let store = store();
    let mut job = Job::at(&store, 2, 2);
    job.times.lease = Duration::from_secs(2);
    let mut agents = job.round(2);
    agents.remove(0).close(true, None);
    assert!(matches!(agents[0].over(), RendezvousEnd::Closed { .. }));
    assert_eq!(agents[0].rendezvous.lease_deadlines(), None, "no other node goes on");

    job.run_id = RunId("other".to_owned());
    let agent = Job { nodes: range(1, 1), ..job }.round(1).remove(0);
    drop(store);
    assert!(matches!(agent.failed(), RendezvousError::StoreLost { .. }));
    assert!(agent.rendezvous.lease_deadlines().is_some(), "others may still reach it");
}

#[test]
fn new_store_at_same_endpoint_is_refused() {
    let first = store();
    let addr = first.local_addr();
    let job = Job::at(&first, 1, 1);
    let agent = job.round(1).remove(0);
    drop(first);
    let _second = StoreServer::bind(addr).unwrap();
    let error = agent.failed();
    assert!(matches!(&error, RendezvousError::AnotherStore { .. }), "{error}");
}

/// Puts a text under every key of heartbeats.
fn spoil_heartbeats(store: &StoreServer, text: &str) {
    let mut client = client(store);
    let keys = client.list_keys().unwrap().into_iter().map(|key| String::from_utf8(key).unwrap());
    let heartbeats: Vec<_> = keys.filter(|key| key.contains("/rankrun/beat/")).collect();
    assert!(!heartbeats.is_empty());
    heartbeats.iter().for_each(|key| client.set(key, text.as_bytes()).unwrap());
    client.list_keys().unwrap();
}

#[test]
fn refused_heartbeat_is_an_error_that_names_key_and_value() {
    let store = store();
    let agents = Job::at(&store, 2, 2).round(2);
    spoil_heartbeats(&store, "abc\u{1b}[1m");
    for agent in &agents {
        let error = agent.failed();
        assert!(matches!(&error, RendezvousError::Refused { is_spoiled: true, .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("refuses `ADD` of key `/torch.rendezvous.job/rankrun/beat/"), "{text}");
        assert!(text.contains("the value `abc") && !text.contains('\u{1b}'), "{text}");
        assert!(error.hint().is_some());
    }
}

#[test]
fn success_is_reported_despite_refused_heartbeat() {
    let store = store();
    let mut job = Job::at(&store, 2, 2);
    // The refusal is there for long before it is given up.
    job.times.lease = Duration::from_secs(60);
    let agents = job.round(2);
    spoil_heartbeats(&store, "abc");
    agents[0].succeed();
    agents[1].succeed();
    for agent in &agents {
        assert!(matches!(agent.next_event(), RendezvousEvent::AllSucceeded));
    }
    for agent in agents {
        agent.close(true, None);
    }
}
