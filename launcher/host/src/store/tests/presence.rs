//! Open connections, departures, and the connections that a new generation keeps.

use std::collections::BTreeSet;

use super::*;

fn departed(server: &StoreServer) -> BTreeSet<u32> {
    block_on(server.client_departed());
    block_on(server.departed()).unwrap()
}

/// No client has departed by now.
fn assert_no_client_departed(server: &StoreServer) {
    assert_eq!(block_on(server.departed()).unwrap(), BTreeSet::new());
}

#[test]
fn client_id_is_connected_until_last_connection_closes() {
    let server = server();
    assert_eq!(block_on(server.connections()).unwrap(), 0);
    let (first, second) = (Client::greeted(&server, 7), Client::greeted(&server, 7));
    let mut other = Client::greeted(&server, 9);
    let _idle_client = Client::silent(&server);
    Client::new(&server).assert_nothing_came();
    other.assert_nothing_came();
    assert!(block_on(server.connected()).unwrap().is_superset(&[7, 9].into()));
    drop(first);
    drop(other);
    let mut gone = departed(&server);
    while !gone.contains(&9) {
        gone.extend(departed(&server));
    }
    assert!(!gone.contains(&7), "a second connection is open");
    drop(second);
    while !gone.contains(&7) {
        gone.extend(departed(&server));
    }
    assert_eq!(
        (block_on(server.connected()).unwrap(), block_on(server.connections()).unwrap()),
        ([].into(), 0)
    );
    assert_no_client_departed(&server);
}

#[test]
fn second_ping_nonce_is_ignored() {
    let server = server();
    let mut client = Client::greeted(&server, 7);
    assert_eq!(client.ask(Request::Ping { nonce: 8 }), Reply::Pong(8));
    assert_eq!(block_on(server.connected()).unwrap(), [7].into());
    drop(client);
    assert_eq!(departed(&server), [7].into());
}

#[test]
fn client_reconnected_before_query_is_not_departed() {
    let server = server();
    drop(Client::greeted(&server, 7));
    block_on(server.client_departed());
    let again = Client::greeted(&server, 7);
    assert_no_client_departed(&server);
    drop(again);
    assert_eq!(departed(&server), [7].into());
}

#[test]
fn reset_keeping_keeps_named_prefixes_and_clients() {
    let server = server();
    let (mut agent, mut peer, mut worker) =
        (Client::greeted(&server, 1), Client::greeted(&server, 2), Client::greeted(&server, 3));
    let (silent, mut new) = (Client::silent(&server), Client::new(&server));
    agent.set("/default_pg/0", "old");
    peer.send(&[set("/job/torchelastic/role_info/1", "mine"), wait(&["/job/late"])]);
    peer.assert_nothing_came();
    worker.set("/default_pg/1", "old");
    // A name that only begins alike is another one.
    worker.set("/jobs/1", "old");
    worker.assert_nothing_came();
    assert_eq!(new.ask(add("init/", 1)), Reply::Number(1));

    server.reset_keeping(&["/job/"], &[1].into()).unwrap();
    worker.assert_closed();
    silent.assert_closed();
    new.assert_closed();
    assert_eq!(agent.ask(get("/default_pg/0")), value(""));
    assert_eq!(agent.ask(get("/job/torchelastic/role_info/1")), value("mine"));
    assert_eq!(agent.ask(Request::GetNumKeys), Reply::Number(1));
    // A wait that was begun before is answered after.
    agent.set("/job/late", "");
    assert_eq!(peer.answer_of(&wait(&[])), Reply::Arrived);
    assert_eq!(block_on(server.connected()).unwrap(), [1, 2].into());
    assert_eq!(server.client_ids(), [].into());
    assert_no_client_departed(&server);
    drop(agent);
    assert_eq!(departed(&server), [1].into());

    server.reset().unwrap();
    peer.assert_closed();
    assert_eq!(block_on(server.connections()).unwrap(), 0);
    assert_no_client_departed(&server);
    assert_eq!(Client::new(&server).ask(Request::GetNumKeys), Reply::Number(0));
}

/// Bytes of an old connection, read or not, never reach the new keyspace, although other connections are kept.
#[test]
fn reset_keeping_hides_all_other_earlier_keys() {
    let server = server();
    let mut agent = Client::greeted(&server, 1);
    for _ in 0..50 {
        let mut old: Vec<_> = (0..20).map(|_| Client::new(&server)).collect();
        for client in &mut old {
            client.send(&[add("n", 1), set("k", "old")]);
        }
        server.reset_keeping(&["/job/"], &[1].into()).unwrap();
        assert_eq!(agent.ask(Request::GetNumKeys), Reply::Number(0));
    }
}
