//! Clients that are broken, hostile or many: each harms itself at most.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

#[test]
fn wrong_handshake_closes_connection_at_first_wrong_byte() {
    let server = server();
    for bytes in [&b"\x0D"[..], b"G", b"\x00\xCE\xF7\x85\x00"] {
        let mut client = Client::silent(&server);
        client.write(bytes);
        client.assert_closed();
    }
}

#[test]
fn length_of_4_gib_closes_only_that_connection() {
    let server = server();
    let mut neighbour = Client::new(&server);
    for length in [1u64 << 32, u64::MAX] {
        for head in [&b"\x03"[..], b"\x01", b"\x01\0\0\0\0\0\0\0\0", b"\x06", b"\x0B"] {
            let mut client = Client::new(&server);
            client.write(&[head, &length.to_le_bytes()].concat());
            client.assert_closed();
        }
    }
    neighbour.assert_nothing_came();
}

#[test]
fn silent_and_half_sent_requests_do_not_block_other_clients() {
    let server = server();
    let silent = Client::silent(&server);
    let mut halfway = Client::new(&server);
    halfway.write(b"\x01\x08\0\0\0\0\0\0\0half");
    let mut neighbour = Client::new(&server);
    neighbour.set("k", "v");
    assert_eq!(neighbour.ask(get("k")), value("v"));
    drop(silent);
    halfway.write(b"long\x01\0\0\0\0\0\0\0v");
    assert_eq!(halfway.ask(get("halflong")), value("v"));
}

#[test]
fn client_closed_during_wait_is_removed_from_waiters() {
    let server = server();
    let (mut gone, mut stays, mut other) = (Client::new(&server), Client::new(&server), Client::new(&server));
    gone.send(&[wait(&["q"])]);
    gone.assert_nothing_came();
    stays.send(&[wait(&["q"])]);
    stays.assert_nothing_came();
    gone.stream.shutdown(std::net::Shutdown::Write).unwrap();
    gone.assert_closed();
    other.send(&[Request::QueuePush { key: b"q".to_vec(), value: b"v".to_vec() }]);
    assert_eq!(stays.answer_of(&wait(&[])), Reply::Arrived);
}

#[test]
fn slow_client_gets_all_answers() {
    let server = server();
    let mut client = Client::new(&server);
    let long = "v".repeat(1024 * 1024);
    client.set("k", &long);
    client.send(&vec![get("k"); 30]);
    client.send(&[Request::MultiGet { keys: vec![b"k".to_vec(); 10] }]);
    for _ in 0..30 {
        assert_eq!(client.answer_of(&get("k")), value(&long));
    }
    let Reply::Values(values) = client.answer_of(&Request::MultiGet { keys: vec![Vec::new(); 10] }) else {
        panic!("the answer of a MULTI_GET is values");
    };
    assert!(values.iter().all(|value| value.as_slice() == long.as_bytes()));
}

#[test]
fn client_that_never_reads_is_not_served_further() {
    let server = server();
    let (mut greedy, mut neighbour) = (Client::new(&server), Client::new(&server));
    let requests = encode(&vec![get("k"); 10_000]);
    greedy.set("k", &"v".repeat(1024 * 1024));
    greedy.stream.set_nonblocking(true).unwrap();
    let mut written = 0;
    // Until the sockets' own buffers are full, and stay so: the server has stopped reading.
    while is_writable(&greedy) {
        match greedy.stream.write(&requests) {
            Ok(length) => written += length,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        assert!(written < 256 * 1024 * 1024, "the server reads on although its answers are not read");
    }
    neighbour.set("other", "1");
    assert_eq!(neighbour.ask(get("other")), value("1"));
}

#[test]
fn replaced_values_in_unread_answers_are_limited() {
    let server = server();
    let mut greedy = Client::new(&server);
    let round = |number: u8| vec![number; 8 * 1024 * 1024];
    let requests = |number| [Request::Set { key: b"k".to_vec(), value: round(number) }, get("k")];
    // Every answer holds a value that the next request replaces: the server holds all the bytes that it takes.
    let bytes: Vec<u8> = (0..24).map(|number| encode(&requests(number))).collect::<Vec<_>>().concat();
    greedy.stream.set_nonblocking(true).unwrap();
    let mut written = 0;
    while is_writable(&greedy) {
        match greedy.stream.write(&bytes[written..]) {
            Ok(length) => written += length,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        assert!(written < bytes.len() / 2, "the server reads on although its answers are not read");
    }
    greedy.stream.set_nonblocking(false).unwrap();
    let mut writes = greedy.stream.try_clone().unwrap();
    let rest = std::thread::spawn(move || writes.write_all(&bytes[written..]));
    for number in 0..24 {
        let Reply::Value(value) = greedy.answer_of(&get("k")) else { panic!("the answer of GET is a value") };
        assert!(*value == round(number), "answer {number} is that of {:?}", value.first());
    }
    rest.join().unwrap().expect("the server reads on once its answers are read");
}

/// Whether the client's socket takes more, now or soon.
fn is_writable(client: &Client) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    let mut fds = [PollFd::new(client.stream.as_fd(), PollFlags::POLLOUT)];
    poll(&mut fds, PollTimeout::from(200u16)).unwrap() > 0
}

#[test]
fn many_list_keys_requests_are_answered_one_by_one() {
    let server = server();
    let mut client = Client::new(&server);
    let keys: Vec<_> = (0..500).map(|number| set(&format!("key {number}"), "v")).collect();
    client.send(&keys);
    client.send(&vec![Request::ListKeys; 200]);
    for _ in 0..200 {
        let Reply::Keys(keys) = client.answer_of(&Request::ListKeys) else {
            panic!("the answer of LIST_KEYS is keys");
        };
        assert_eq!(keys.len(), 500);
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test is about time")]
fn one_thousand_clients_are_answered_within_two_seconds() {
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, limit.1, limit.1).unwrap();
    let server = server();
    let start = std::time::Instant::now();
    let mut clients: Vec<_> = (0..1000).map(|_| Client::new(&server)).collect();
    for client in &mut clients {
        client.send(&[Request::Ping { nonce: 9 }, add("init/", 1)]);
    }
    let mut sums = Vec::new();
    for client in &mut clients {
        assert_eq!(client.answer_of(&Request::Ping { nonce: 9 }), Reply::Pong(9));
        let Reply::Number(sum) = client.answer_of(&add("init/", 1)) else {
            panic!("the answer of ADD is a number");
        };
        sums.push(sum);
    }
    let served = start.elapsed();
    sums.sort_unstable();
    assert!(sums.into_iter().eq(1..=1000));
    assert!(served < Duration::from_secs(2), "{served:?}");

    for client in &mut clients {
        client.send(&[wait(&["go"])]);
        client.assert_nothing_came();
    }
    Client::new(&server).set("go", "1");
    for client in &mut clients {
        assert_eq!(client.answer_of(&wait(&[])), Reply::Arrived);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever one connection sends, another is served as before.
    #[test]
    fn garbage_closes_only_its_own_connection(
        garbage in vec(prop_oneof![4 => 0u8..20, 1 => any::<u8>()], 0..400),
        greeted in any::<bool>(),
    ) {
        let server = server();
        let mut neighbour = Client::new(&server);
        neighbour.set("mine", "1");
        let mut client = if greeted { Client::new(&server) } else { Client::silent(&server) };
        // The server may have closed it in the middle.
        let _ = client.stream.write_all(&garbage);
        let _ = client.stream.shutdown(std::net::Shutdown::Write);
        let _ = client.stream.read_to_end(&mut Vec::new());
        prop_assert_eq!(neighbour.ask(get("mine")), value("1"));
    }
}
