//! The store's client: every request, waits with timeouts, and stores that misbehave.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rankrun_worker::TcpStore;
use rankrun_worker::store::{ConnectFailure, StoreError};

use crate::server::Server;
use crate::world::AMPLE;

const SHORT: Duration = Duration::from_millis(200);

fn connect(server: &Server) -> TcpStore {
    TcpStore::connect("127.0.0.1", server.port(), AMPLE).unwrap()
}

#[test]
fn every_request_has_documented_effect() {
    let server = Server::start();
    let store = connect(&server);
    store.set("key", b"value").unwrap();
    assert_eq!(store.get("key").unwrap(), b"value");
    assert_eq!(store.add("number", 5).unwrap(), 5);
    assert_eq!(store.add("number", -7).unwrap(), -2);
    assert_eq!(store.get("number").unwrap(), b"-2");
    assert_eq!(store.compare_set("key", b"other", b"new").unwrap(), b"value");
    assert_eq!(store.compare_set("key", b"value", b"new").unwrap(), b"new");
    assert_eq!(store.compare_set("fresh", b"", b"first").unwrap(), b"first");
    store.multi_set(&[("a", b"1"), ("b", b"")]).unwrap();
    assert_eq!(store.multi_get(&["b", "a"]).unwrap(), [&b""[..], b"1"]);
    assert!(store.check(&["a", "b"]).unwrap());
    assert!(!store.check(&["a", "c"]).unwrap());
    assert!(store.delete_key("a").unwrap());
    assert!(!store.delete_key("a").unwrap());
    store.wait(&["b", "key"], Duration::ZERO).unwrap();
    assert_eq!(store.get("b").unwrap(), b"");
}

#[test]
fn keys_have_torch_names() {
    let server = Server::start();
    let store = connect(&server);
    store.set("plain", b"").unwrap();
    let inner = store.with_prefix("outer").with_prefix("inner");
    inner.set("key", b"").unwrap();
    inner.barrier("gate", 1, AMPLE).unwrap();
    store.barrier("gate", 1, AMPLE).unwrap();
    let expected = [
        "/gate",
        "/outer/inner/gate/last_member",
        "/outer/inner/gate/num_members",
        "/outer/inner/key",
        "/plain",
        "init/",
    ];
    assert_eq!(server.keys(), expected);
}

#[test]
fn wait_ends_when_key_is_set() {
    let server = Server::start();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| connect(&server).get("late").unwrap());
        connect(&server).set("late", b"here").unwrap();
        assert_eq!(waiting.join().unwrap(), b"here");
    });
}

#[test]
fn wait_timeout_names_its_keys_and_keeps_the_connection() {
    let server = Server::start();
    let store = connect(&server).with_timeout(SHORT);
    store.set("here", b"").unwrap();
    let error = store.wait(&["here", "never"], SHORT).unwrap_err();
    assert_eq!(error.to_string(), "wait timeout after 200ms, keys: /here, /never");
    let error = store.with_prefix("p").get("never").unwrap_err();
    assert_eq!(error.to_string(), "wait timeout after 200ms, keys: /p/never");
    let error = store.barrier("gate", 2, SHORT).unwrap_err();
    assert_eq!(error.to_string(), "wait timeout after 200ms, keys: /gate");
    assert_eq!(store.add("after", 1).unwrap(), 1);
}

#[test]
fn barrier_releases_all_ranks() {
    let server = Server::start();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let store = connect(&server);
                store.barrier("plain", 4, AMPLE).unwrap();
                store.with_prefix("p").barrier("composed", 4, AMPLE).unwrap();
            });
        }
    });
}

#[test]
fn oversized_request_is_refused_and_connection_stays() {
    let server = Server::start();
    let store = connect(&server);
    let error = store.set("large", &vec![0; 8 * 1024 * 1024 + 1]).unwrap_err();
    assert!(matches!(error, StoreError::Limit(_)), "{error}");
    assert!(matches!(store.get(&"k".repeat(9000)), Err(StoreError::Limit(_))));
    store.set("large", &vec![7; 8 * 1024 * 1024]).unwrap();
    assert_eq!(store.get("large").unwrap().len(), 8 * 1024 * 1024);
}

#[test]
fn late_store_is_connected() {
    let server = Server::start_at("127.0.0.1", 3);
    assert_eq!(connect(&server).add("n", 1).unwrap(), 1);
}

#[test]
fn address_without_listener_is_named() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let error = TcpStore::connect("127.0.0.1", port, SHORT).unwrap_err();
    assert_eq!(error.to_string(), format!("the store at `127.0.0.1:{port}` cannot be reached within 200ms"));
}

#[test]
fn silent_listener_is_error() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let error = TcpStore::connect("127.0.0.1", port, SHORT).unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { source: ConnectFailure::Silent, .. }), "{error:?}");
}

#[test]
fn foreign_listener_is_error() {
    let error = TcpStore::connect(
        "127.0.0.1",
        scripted(|mut stream| {
            drop(stream.write_all(b"SSH-2.0-OpenSSH_9.6\r\n"));
            stream
        }),
        SHORT,
    )
    .unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { source: ConnectFailure::NoStore, .. }), "{error:?}");
}

/// A listener that closes so many connections at their ping, and answers the number of keys and what follows.
fn closing_at_pings(count: usize) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let pings = Arc::new(AtomicUsize::new(0));
    let serve = move |mut stream: TcpStream, pings: &AtomicUsize| {
        expect(&mut stream, &[0x00, 0xCE, 0xF7, 0x85, 0x3C]);
        if take(&mut stream) == [13] {
            if pings.fetch_add(1, Ordering::Relaxed) < count {
                return;
            }
            let nonce = take::<4>(&mut stream);
            stream.write_all(&nonce).unwrap();
        } else {
            stream.write_all(&1i64.to_le_bytes()).unwrap();
        }
        let mut init = [0; 22];
        // A connection that the client gives up sends nothing.
        if stream.read_exact(&mut init).is_ok() {
            stream.write_all(&1i64.to_le_bytes()).unwrap();
            expect(&mut stream, b"\x05\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k");
            let has_ping = u8::from(pings.load(Ordering::Relaxed) > count);
            stream.write_all(&[has_ping]).unwrap();
        }
    };
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let pings = Arc::clone(&pings);
            thread::spawn(move || serve(stream, &pings));
        }
    });
    port
}

/// The server of PyTorch 2.4 closes at each ping.
#[test]
fn store_that_closes_at_each_ping_is_used_without() {
    let store = TcpStore::connect("127.0.0.1", closing_at_pings(usize::MAX), AMPLE).unwrap();
    // The answer says whether a ping was answered: 0 is so here.
    assert!(store.check(&["k"]).unwrap());
}

#[test]
fn store_that_closed_once_is_pinged_again() {
    let store = TcpStore::connect("127.0.0.1", closing_at_pings(1), AMPLE).unwrap();
    assert!(!store.check(&["k"]).unwrap());
}

#[test]
fn dead_store_is_permanent_error() {
    let server = Server::start();
    let store = connect(&server);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| store.get("never"));
        // The connection of the waiting client exists: it is the one above.
        server.hang_up();
        assert!(matches!(waiting.join().unwrap(), Err(StoreError::Io(_))));
    });
    assert!(matches!(store.set("key", b""), Err(StoreError::Broken)));
    assert_eq!(connect(&server).add("key", 1).unwrap(), 1);
}

#[test]
fn answer_during_cancellation_counts() {
    let port = scripted(|mut stream| {
        expect(&mut stream, &[0x00, 0xCE, 0xF7, 0x85, 0x3C, 13]);
        let nonce = take::<4>(&mut stream);
        stream.write_all(&nonce).unwrap();
        expect(&mut stream, b"\x04\x05\0\0\0\0\0\0\0init/\x01\0\0\0\0\0\0\0");
        stream.write_all(&1i64.to_le_bytes()).unwrap();
        expect(&mut stream, b"\x06\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k");
        // The client ceases to wait; the answer was under way already.
        expect(&mut stream, &[12]);
        stream.write_all(&[0, 1]).unwrap();
        expect(&mut stream, b"\x05\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k");
        stream.write_all(&[0]).unwrap();
        stream
    });
    let store = TcpStore::connect("127.0.0.1", port, AMPLE).unwrap();
    store.wait(&["k"], SHORT).unwrap();
    assert!(store.check(&["k"]).unwrap());
}

/// A listener whose every connection is served by `script` and then kept open.
fn scripted(script: impl Fn(TcpStream) -> TcpStream + Send + 'static) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || listener.incoming().flatten().map(script).collect::<Vec<_>>());
    port
}

fn take<const N: usize>(stream: &mut TcpStream) -> [u8; N] {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

fn expect(stream: &mut TcpStream, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, expected);
}
