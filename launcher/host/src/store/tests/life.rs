//! The server's own life: bind, generations, end.

use std::error::Error;
use std::sync::mpsc;

use super::super::{REPLY_LIMIT, StoreError, await_answer};
use super::*;

#[test]
fn port_in_use_error_has_address_and_hint() {
    let server = server();
    let error = StoreServer::bind(server.local_addr()).expect_err("one port has one listener");
    assert_eq!(error.to_string(), format!("cannot listen on `{}`", server.local_addr()));
    assert!(error.source().is_some_and(|source| source.to_string().contains("in use")), "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("choose another")), "{error:?}");
    Client::new(&server).assert_nothing_came();
}

#[test]
fn non_local_address_error_has_hint() {
    let documentation_only = SocketAddr::from(([192, 0, 2, 1], 0));
    let error = StoreServer::bind(documentation_only).expect_err("no machine has this address");
    assert!(error.hint().is_some(), "{error:?}");
}

#[test]
fn closed_server_frees_port_at_once() {
    let first = server();
    let address = first.local_addr();
    let client = Client::new(&first);
    drop(first);
    client.assert_closed();
    let second = StoreServer::bind(address).expect("closed connections do not hold the port");
    assert_eq!(second.local_addr(), address);
}

#[test]
fn reset_empties_keyspace_on_same_port() {
    let server = server();
    let address = server.local_addr();
    let mut old = Client::new(&server);
    old.send(&[set("k", "old"), barrier("b", 1)]);
    assert_eq!(old.answer_of(&barrier("b", 1)), Reply::Arrived);
    for _ in 0..3 {
        server.reset().unwrap();
        assert_eq!(server.local_addr(), address);
        let mut new = Client::new(&server);
        assert_eq!(new.ask(Request::GetNumKeys), Reply::Number(0));
        new.set("k", "new");
        new.assert_nothing_came();
    }
    old.assert_closed();
}

#[test]
fn reset_closes_waiting_and_silent_connections() {
    let server = server();
    let (mut waiting, silent) = (Client::new(&server), Client::silent(&server));
    waiting.send(&[wait(&["k"])]);
    waiting.assert_nothing_came();
    server.reset().unwrap();
    Client::new(&server).set("k", "1");
    waiting.assert_closed();
    silent.assert_closed();
}

/// Whatever an old connection has written, read or not, accepted or not, the new keyspace never has it.
#[test]
fn reset_hides_all_earlier_keys() {
    let server = server();
    for _ in 0..50 {
        let mut old: Vec<_> = (0..20).map(|_| Client::new(&server)).collect();
        for client in &mut old {
            client.send(&[add("n", 1), set("k", "old")]);
        }
        server.reset().unwrap();
        let mut new = Client::new(&server);
        assert_eq!(new.ask(Request::GetNumKeys), Reply::Number(0));
    }
}

#[test]
fn client_ids_are_kept_until_reset() {
    let server = server();
    assert!(server.client_ids().is_empty());
    for nonce in [7, 9, 7] {
        assert_eq!(Client::new(&server).ask(Request::Ping { nonce }), Reply::Pong(nonce));
    }
    assert_eq!(server.client_ids(), [7, 9].into(), "also of clients that have gone");
    server.reset().unwrap();
    assert!(server.client_ids().is_empty());
}

#[test]
fn missing_answer_of_store_is_an_error_after_a_limit() {
    let limit = Duration::from_millis(20);
    let (sender, answer) = mpsc::channel::<()>();
    let error = await_answer(&answer, limit).expect_err("the sender lives and sends nothing");
    assert!(matches!(error, StoreError::Unresponsive { limit: waited } if waited == limit), "{error:?}");
    assert!(error.hint().is_some());
    let late = StoreError::Unresponsive { limit: REPLY_LIMIT };
    assert_eq!(late.to_string(), "the store has not answered the launcher for 10 s");
    drop(sender);
    assert!(matches!(await_answer(&answer, LIMIT), Err(StoreError::Stopped)));
}
