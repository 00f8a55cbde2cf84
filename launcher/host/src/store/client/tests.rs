//! The client against our own server, and against listeners that are not a store.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use proptest::prelude::*;
use rankrun_contract::store::protocol::MAX_KEY;

use super::super::StoreServer;
use super::blocking::Client;
use super::{ClientError, ClientSettings, Duration, Instant, SocketAddr, io};

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// No test waits for it: what does not come by then never comes.
const LONG: Duration = Duration::from_secs(30);

fn patience() -> ClientSettings {
    ClientSettings { nonce: 7, answer: LONG, silence: LONG }
}

/// For those whose answer never comes.
fn haste() -> ClientSettings {
    ClientSettings { nonce: 7, answer: Duration::from_millis(50), silence: LONG }
}

fn within(time: Duration) -> Instant {
    Instant::now() + time
}

fn server() -> StoreServer {
    StoreServer::bind(LOOPBACK).expect("the loopback has a free port")
}

fn client(server: &StoreServer) -> Client {
    Client::connect(&[server.local_addr()], patience(), within(Duration::from_secs(30))).expect("it answers")
}

/// A listener that does with each connection what it is told, until the first that it is told to end with.
fn listener(mut serve: impl FnMut(TcpStream) -> bool + Send + 'static) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let address = listener.local_addr().unwrap();
    let thread = thread::spawn(move || while serve(listener.accept().expect("it listens").0) {});
    (address, thread)
}

/// Greets as a store does, then answers nothing.
fn greet(stream: &mut TcpStream) {
    let mut greeting = [0; 10];
    stream.read_exact(&mut greeting).unwrap();
    stream.write_all(&greeting[6..]).unwrap();
}

#[test]
fn client_calls_return_expected_results() {
    let server = server();
    let mut client = client(&server);
    assert_eq!(client.get("/k").unwrap(), b"");
    client.set("/k", b"v").unwrap();
    assert_eq!(client.get("/k").unwrap(), b"v");
    assert_eq!(client.compare_set("/k", b"other", b"new").unwrap(), b"v");
    assert_eq!(client.compare_set("/k", b"v", b"new").unwrap(), b"new");
    assert_eq!(client.compare_set("/none", b"v", b"new").unwrap(), b"v");
    assert_eq!(client.compare_set("/c", b"", b"first").unwrap(), b"first");
    assert_eq!(client.add("/n", 5).unwrap(), 5);
    assert_eq!(client.add("/n", -7).unwrap(), -2);
    client.multi_set(&[("/a", b"1"), ("/b", b"")]).unwrap();
    assert_eq!(client.multi_get(&["/b", "/a", "/none"]).unwrap(), [&b""[..], b"1", b""]);
    assert!(client.check(&["/a", "/b"]).unwrap());
    assert!(!client.check(&["/a", "/none"]).unwrap());
    assert!(client.delete("/k").unwrap());
    assert!(!client.delete("/k").unwrap());
    let mut keys = client.list_keys().unwrap();
    keys.sort_unstable();
    assert_eq!(keys, [b"/a", b"/b", b"/c", b"/n"]);
    assert_eq!(server.client_ids(), [7].into());
    assert_eq!(client.client.local_addr().unwrap().ip(), Ipv4Addr::LOCALHOST);
}

#[test]
fn large_value_and_many_keys_round_trip() {
    let server = server();
    let mut client = client(&server);
    let large: Vec<u8> = (0..8 * 1024 * 1024).map(|index: u32| index.to_le_bytes()[1]).collect();
    client.set("/large", &large).unwrap();
    assert!(client.get("/large").unwrap() == large);
    let keys: Vec<String> = (0..5000).map(|index| format!("/key/{index}")).collect();
    let pairs: Vec<_> = keys.iter().map(|key| (key.as_str(), key.as_bytes())).collect();
    client.multi_set(&pairs).unwrap();
    assert_eq!(client.list_keys().unwrap().len(), 5001);
    let names: Vec<_> = keys.iter().map(String::as_str).collect();
    assert!(client.multi_get(&names).unwrap().iter().zip(&keys).all(|(value, key)| value == key.as_bytes()));
}

#[test]
fn wait_ends_when_last_key_is_set() {
    let server = server();
    let mut waits = client(&server);
    waits.set("/a", b"").unwrap();
    assert!(waits.wait(&["/a"], Instant::now()).unwrap());
    let mut other = client(&server);
    waits.begin_wait(&["/a", "/b", "/c"]).unwrap();
    other.multi_set(&[("/b", b""), ("/c", b"")]).unwrap();
    assert!(waits.is_readable_within(LONG) && waits.end_wait(false).unwrap());
}

#[test]
fn wait_timeout_is_cancelled_and_connection_stays_usable() {
    let server = server();
    let mut client = client(&server);
    assert!(!client.wait(&["/never"], within(Duration::from_millis(5))).unwrap());
    assert!(!client.wait(&["/never"], Instant::now()).unwrap());
    client.set("/never", b"now").unwrap();
    assert!(client.wait(&["/never"], Instant::now()).unwrap());
    assert_eq!(client.get("/never").unwrap(), b"now");
}

#[test]
fn begun_wait_can_be_polled() {
    let server = server();
    let (mut waits, mut other) = (client(&server), client(&server));
    assert!(!waits.end_wait(true).unwrap(), "none was begun");
    waits.begin_wait(&["/k"]).unwrap();
    assert!(!waits.is_readable_within(Duration::from_millis(20)));
    assert!(!waits.end_wait(false).unwrap());
    let refused = waits.get("/k").unwrap_err();
    assert!(
        matches!(&refused, ClientError::Io(error) if error.kind() == io::ErrorKind::ResourceBusy),
        "{refused:?}"
    );
    other.set("/k", b"").unwrap();
    assert!(waits.is_readable_within(LONG));
    assert!(waits.end_wait(false).unwrap());
    assert!(!waits.end_wait(false).unwrap(), "it has ended");

    waits.begin_wait(&["/other"]).unwrap();
    assert!(!waits.end_wait(true).unwrap());
    other.set("/other", b"").unwrap();
    assert_eq!(waits.get("/other").unwrap().len(), 0);
}

/// The answer of a wait and its cancellation cross in every order, and the connection stays in step.
#[test]
fn answer_crossing_cancel_keeps_connection_in_sync() {
    let server = server();
    let (mut waits, mut other) = (client(&server), client(&server));
    for round in 0..500 {
        let key = format!("/{round}");
        waits.begin_wait(&[&key]).unwrap();
        other.set(&key, b"v").unwrap();
        if waits.end_wait(true).unwrap() {
            assert!(waits.check(&[&key]).unwrap());
        }
        assert_eq!(waits.get("/none").unwrap(), b"");
    }
}

/// What the test above meets by chance: the wait's answer is sent before the cancellation is read.
#[test]
fn answer_crossing_cancel_completes_wait() {
    let (address, thread) = listener(|mut stream| {
        greet(&mut stream);
        // A WAIT for one key of two bytes, then CANCEL_WAIT.
        stream.read_exact(&mut [0; 1 + 8 + 8 + 2 + 1]).unwrap();
        stream.write_all(&[0, 1]).unwrap();
        stream.read_exact(&mut [0; 1 + 8 + 2]).unwrap();
        stream.write_all(&1_u64.to_le_bytes()).unwrap();
        stream.write_all(b"v").unwrap();
        false
    });
    let mut client = Client::connect(&[address], patience(), within(Duration::from_secs(30))).unwrap();
    assert!(client.wait(&["/k"], Instant::now()).unwrap());
    assert_eq!(client.get("/k").unwrap(), b"v");
    thread.join().unwrap();
}

#[test]
fn silent_listener_is_reported_as_silent() {
    let (held, silent) = std::sync::mpsc::channel();
    let (address, _thread) = listener(move |stream| held.send(stream).is_ok());
    let error = Client::connect(&[address], haste(), within(Duration::from_millis(200))).unwrap_err();
    assert!(matches!(error, ClientError::Silent { .. }), "{error:?}");
    drop(silent);
}

#[test]
fn listener_that_does_not_accept_times_out() {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let address = listener.local_addr().unwrap();
    let error = Client::connect(&[address], haste(), within(Duration::from_millis(100))).unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
}

#[test]
fn listener_with_foreign_protocol_is_rejected() {
    for garbage in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], &[0; 64], b"\x08\0\0\0"] {
        let (address, _thread) = listener(move |mut stream| stream.write_all(garbage).is_ok());
        let error = Client::connect(&[address], patience(), within(Duration::from_millis(300))).unwrap_err();
        assert!(matches!(error, ClientError::AnotherProgram { .. } | ClientError::Io(_)), "{error:?}");
    }
}

#[test]
fn refused_connection_error_is_preferred() {
    let gone = TcpListener::bind(LOOPBACK).unwrap().local_addr().unwrap();
    let error = Client::connect(&[gone], patience(), within(Duration::from_millis(60))).unwrap_err();
    assert!(
        matches!(&error, ClientError::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused),
        "{error:?}"
    );
    // The addresses of a name may be of a family that the network does not have: the telling error is the other one.
    let nowhere: SocketAddr = "[2001:db8::1]:9".parse().unwrap();
    for addresses in [[gone, nowhere], [nowhere, gone]] {
        let error = Client::connect(&addresses, haste(), within(Duration::from_millis(200))).unwrap_err();
        assert!(
            matches!(&error, ClientError::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused),
            "{error:?}"
        );
    }
    let error = Client::connect(&[], patience(), within(Duration::from_secs(3600))).unwrap_err();
    assert!(matches!(&error, ClientError::Io(error) if error.kind() == io::ErrorKind::NotFound), "{error:?}");
}

#[test]
fn connect_retries_until_store_or_second_address_answers() {
    let gone = TcpListener::bind(LOOPBACK).unwrap().local_addr().unwrap();
    let server = server();
    let addresses = [gone, server.local_addr()];
    Client::connect(&addresses, patience(), within(Duration::from_secs(30))).unwrap().set("/k", b"").unwrap();

    // Closes the first three connections at once, and is a store from then on.
    let mut tries = 0;
    let (address, thread) = listener(move |mut stream| {
        tries += 1;
        if tries > 3 {
            greet(&mut stream);
        }
        tries <= 3
    });
    Client::connect(&[address], patience(), within(Duration::from_secs(30))).unwrap();
    thread.join().unwrap();
}

/// The PING that a client sends again while an answer is late, with its client id.
fn nudge(stream: &mut TcpStream) -> [u8; 4] {
    let mut ping = [0; 5];
    stream.read_exact(&mut ping).unwrap();
    assert_eq!(ping[0], 13, "a PING");
    ping[1..].try_into().unwrap()
}

/// As where the kernel learns only from a later packet that one was lost.
#[test]
fn client_pings_while_waiting_for_answer() {
    let (address, thread) = listener(|mut stream| {
        greet(&mut stream);
        for value in [b"v", b"w"] {
            // A GET of a key of two bytes.
            stream.read_exact(&mut [0; 1 + 8 + 2]).unwrap();
            let pong = nudge(&mut stream);
            stream.write_all(&1_u64.to_le_bytes()).unwrap();
            stream.write_all(value).unwrap();
            stream.write_all(&pong).unwrap();
        }
        false
    });
    let mut client = Client::connect(&[address], patience(), within(LONG)).unwrap();
    assert_eq!(client.get("/k").unwrap(), b"v");
    assert_eq!(client.get("/k").unwrap(), b"w");
    thread.join().unwrap();
}

#[test]
fn sum_does_not_wait_for_values_and_late_values_are_skipped() {
    let (late, is_late) = std::sync::mpsc::channel();
    let (address, thread) = listener(move |mut stream| {
        greet(&mut stream);
        // An ADD and a MULTI_GET of a key of two bytes.
        stream.read_exact(&mut [0; (1 + 8 + 2 + 8) + (1 + 8 + 8 + 2)]).unwrap();
        stream.write_all(&5_u64.to_le_bytes()).unwrap();
        is_late.recv().unwrap();
        stream.read_exact(&mut [0; (1 + 8 + 2 + 8) + (1 + 8 + 8 + 2)]).unwrap();
        let value = |value: &[u8]| [&1_u64.to_le_bytes(), value].concat();
        stream.write_all(&[value(b"v"), 6_u64.to_le_bytes().to_vec(), value(b"w")].concat()).unwrap();
        false
    });
    let mut client = Client::connect(&[address], patience(), within(LONG)).unwrap();
    let keys = ["/k".to_owned()];
    let (runtime, client) = (&client.runtime, &mut client.client);
    assert_eq!(runtime.block_on(client.add_and_request("/n", 1, &keys)).unwrap(), 5);
    assert_eq!(runtime.block_on(client.requested_values(Instant::now())).unwrap(), None);
    late.send(()).unwrap();
    assert_eq!(runtime.block_on(client.add_and_request("/n", 1, &keys)).unwrap(), 6);
    assert_eq!(runtime.block_on(client.requested_values(within(LONG))).unwrap().unwrap(), [b"w"]);
    assert_eq!(runtime.block_on(client.requested_values(within(LONG))).unwrap(), None);
    thread.join().unwrap();
}

#[test]
fn ping_during_wait_cancel_keeps_connection_in_sync() {
    let (address, thread) = listener(|mut stream| {
        greet(&mut stream);
        // A WAIT for one key of two bytes, then CANCEL_WAIT.
        stream.read_exact(&mut [0; 1 + 8 + 8 + 2 + 1]).unwrap();
        let pong = nudge(&mut stream);
        stream.write_all(&[0, 1]).unwrap();
        stream.write_all(&pong).unwrap();
        stream.read_exact(&mut [0; 1 + 8 + 8 + 2]).unwrap();
        stream.write_all(&[0]).unwrap();
        false
    });
    let mut client = Client::connect(&[address], patience(), within(LONG)).unwrap();
    assert!(client.wait(&["/k"], Instant::now()).unwrap());
    assert!(client.wait(&["/k"], within(LONG)).unwrap());
    thread.join().unwrap();
}

#[test]
fn store_that_stops_answering_closes_connection() {
    let (held, silent) = std::sync::mpsc::channel();
    let (address, _thread) = listener(move |mut stream| {
        greet(&mut stream);
        held.send(stream).is_ok()
    });
    let connect = || {
        let mut client = Client::connect(&[address], patience(), within(Duration::from_secs(30))).unwrap();
        client.client.settings = haste();
        client
    };
    let mut client = connect();
    let error = client.get("/k").unwrap_err();
    assert!(matches!(error, ClientError::Silent { .. }), "{error:?}");
    let error = client.get("/k").unwrap_err();
    assert!(
        matches!(&error, ClientError::Io(error) if error.kind() == io::ErrorKind::NotConnected),
        "{error:?}"
    );
    // Also where it does not even confirm that a wait is taken back, or takes no more bytes.
    let error = connect().wait(&["/k"], Instant::now()).unwrap_err();
    assert!(matches!(error, ClientError::Silent { .. }), "{error:?}");
    let mut client = connect();
    let full =
        (0..64).find_map(|_| client.set("/k", &vec![0; 8 * 1024 * 1024]).err()).expect("a buffer has an end");
    assert!(matches!(full, ClientError::Silent { .. }), "{full:?}");
    drop(silent);
}

#[test]
fn endless_answer_is_an_error() {
    let (address, _thread) = listener(|mut stream| {
        greet(&mut stream);
        // The length of a value that is within the limits, and then more of it than comes in time.
        let _ = stream.write_all(&(1_u64 << 30).to_le_bytes());
        while stream.write_all(&[0; 1024]).is_ok() {}
        false
    });
    let mut client = Client::connect(&[address], patience(), within(Duration::from_secs(30))).unwrap();
    client.client.settings = haste();
    assert!(matches!(client.get("/k").unwrap_err(), ClientError::Silent { .. }));
}

#[test]
fn answer_above_size_limit_is_an_error() {
    let server = server();
    let mut client = client(&server);
    let large = vec![0; 8 * 1024 * 1024];
    let keys = ["/0", "/1", "/2", "/3", "/4"];
    keys.iter().for_each(|key| client.set(key, &large).unwrap());
    assert_eq!(client.multi_get(&keys[..3]).unwrap().len(), 3);
    let error = client.multi_get(&keys).unwrap_err();
    assert!(
        matches!(&error, ClientError::Io(error) if error.kind() == io::ErrorKind::InvalidData),
        "{error:?}"
    );
}

#[test]
fn store_closed_fails_pending_and_next_calls() {
    let server = server();
    let (mut asks, mut waits) = (client(&server), client(&server));
    waits.begin_wait(&["/k"]).unwrap();
    drop(server);
    assert!(waits.is_readable_within(LONG));
    assert!(matches!(waits.end_wait(false).unwrap_err(), ClientError::Io(_)));
    assert!(matches!(asks.get("/k").unwrap_err(), ClientError::Io(_)));
}

#[test]
fn request_above_limit_is_not_sent() {
    let server = server();
    let mut client = client(&server);
    let key = "k".repeat(usize::try_from(MAX_KEY).unwrap() + 1);
    assert!(matches!(client.get(&key).unwrap_err(), ClientError::Limit));
    assert!(matches!(client.begin_wait(&[&key]).unwrap_err(), ClientError::Limit));
    assert_eq!(client.add("/n", 1).unwrap(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever the other side says after the greeting, a call ends, and without a panic.
    #[test]
    fn arbitrary_answer_ends_call(bytes in proptest::collection::vec(any::<u8>(), 0..64), call in 0..5) {
        let (address, thread) = listener(move |mut stream| {
            greet(&mut stream);
            let _ = stream.write_all(&bytes);
            // Until the client has gone.
            let _ = stream.read_to_end(&mut Vec::new());
            false
        });
        let mut client = Client::connect(&[address], patience(), within(Duration::from_secs(30))).unwrap();
        client.client.settings = haste();
        let _ = match call {
            0 => client.get("/k").map(drop),
            1 => client.list_keys().map(drop),
            2 => client.multi_get(&["/a", "/b"]).map(drop),
            3 => client.wait(&["/a"], Instant::now()).map(drop),
            _ => client.check(&["/a"]).map(drop),
        };
        drop(client);
        thread.join().unwrap();
    }
}
