//! Connections that are not clients: port scanners, garbage, and slow senders. A job does not notice them.

use super::super::server::ClientLimits;
use super::*;

const NEVER: Duration = Duration::from_secs(3600);

pub(super) fn limited(limits: ClientLimits) -> StoreServer {
    let listener = super::super::listen::listen_on(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    StoreServer::start(listener, limits).expect("a thread can be started")
}

#[test]
fn idle_connection_is_closed_and_active_client_stays() {
    let server = limited(ClientLimits {
        idle_timeout: Duration::from_millis(50),
        allowed_idle: 0,
        ..ClientLimits::default()
    });
    let mut client = Client::greeted(&server, 7);
    let (silent, mut slow, greeted) =
        (Client::silent(&server), Client::silent(&server), Client::new(&server));
    slow.write(&HANDSHAKE[..3]);
    let mut halfway = Client::new(&server);
    halfway.write(b"\x01\x08\0\0\0\0\0\0\0half");
    for idle_client in [silent, slow, greeted, halfway] {
        idle_client.assert_closed();
    }
    client.assert_nothing_came();
    assert_eq!(block_on(server.connected()).unwrap(), [7].into());
}

#[test]
fn few_idle_connections_are_not_closed() {
    let server =
        limited(ClientLimits { idle_timeout: Duration::ZERO, allowed_idle: 2, ..ClientLimits::default() });
    let mut idle_clients: Vec<_> = (0..3).map(|_| Client::silent(&server)).collect();
    idle_clients.remove(0).assert_closed();
    for idle_client in &mut idle_clients {
        idle_client.write(&HANDSHAKE);
        idle_client.assert_nothing_came();
    }
}

#[test]
fn oldest_idle_connection_is_closed_above_limit() {
    let server = limited(ClientLimits {
        idle_timeout: NEVER,
        allowed_idle: 0,
        max_idle: 3,
        ..ClientLimits::default()
    });
    let mut client = Client::greeted(&server, 7);
    let mut idle_clients: Vec<_> = (0..5).map(|_| Client::silent(&server)).collect();
    idle_clients.drain(..2).for_each(Client::assert_closed);
    client.assert_nothing_came();
    for idle_client in &mut idle_clients {
        idle_client.write(&HANDSHAKE);
        idle_client.assert_nothing_came();
    }
    let newest = Client::silent(&server);
    client.assert_nothing_came();
    drop(newest);
    idle_clients.iter_mut().for_each(Client::assert_nothing_came);
}

#[test]
fn client_with_largest_partial_request_is_closed_first() {
    let server =
        limited(ClientLimits { idle_timeout: NEVER, max_held_bytes: 1024 * 1024, ..ClientLimits::default() });
    let mut small = Client::greeted(&server, 7);
    // The beginning of a value of eight MiB: of a quarter of the limit, and of more than all of it.
    let begun = |length: usize| {
        let mut bytes = encode(&[set("k", &"v".repeat(8 * 1024 * 1024))]);
        bytes.truncate(length);
        bytes
    };
    small.write(&begun(256 * 1024));
    let mut large = Client::new(&server);
    // It may be closed while it writes.
    let _ = large.stream.write_all(&begun(2 * 1024 * 1024));
    let mut rest = Vec::new();
    let _ = large.stream.read_to_end(&mut rest);
    assert!(rest.is_empty());
    small.write(&encode(&[set("k", &"v".repeat(8 * 1024 * 1024))])[256 * 1024..256 * 1024 + 1000]);
    let mut other = Client::greeted(&server, 9);
    other.set("mine", "1");
    assert_eq!(other.ask(get("mine")), value("1"));
    assert_eq!(block_on(server.connected()).unwrap(), [7, 9].into());
}

#[test]
fn value_received_in_pieces_is_counted_once() {
    let server = limited(ClientLimits { max_held_bytes: 9 * 1024 * 1024, ..ClientLimits::default() });
    let mut client = Client::greeted(&server, 7);
    let large = "v".repeat(8 * 1024 * 1024);
    for _ in 0..4 {
        client.set("k", &large);
    }
    assert_eq!(client.ask(get("k")), value(&large));
}

/// A scanner and a thousand of every kind of garbage, while a job works: its calls are answered, and nothing of the
/// garbage is left.
#[test]
fn one_thousand_garbage_connections_do_not_disturb_job() {
    let most = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap().1;
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, most, most).unwrap();
    let server = limited(ClientLimits {
        idle_timeout: Duration::from_millis(500),
        allowed_idle: 0,
        ..ClientLimits::default()
    });
    let mut job: Vec<_> = (0..4).map(|rank| Client::greeted(&server, rank)).collect();
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut held = Vec::new();
    for index in 0..1000_u32 {
        let mut idle_client = Client::silent(&server);
        let bytes: [u8; 64] = std::array::from_fn(|_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            random.to_be_bytes()[0]
        });
        // Any of them may be closed in the middle of it.
        let _ = match index % 5 {
            0 => idle_client.stream.write_all(&bytes),
            1 => idle_client.stream.write_all(&[&HANDSHAKE[..], &bytes].concat()),
            2 => idle_client.stream.write_all(b"GET / HTTP/1.1\r\nHost: store\r\n\r\n"),
            3 => idle_client.stream.write_all(&HANDSHAKE[..2]),
            _ => Ok(()),
        };
        if index % 3 == 0 {
            held.push(idle_client);
        }
        let rank = usize::try_from(index % 4).unwrap();
        assert_eq!(job[rank].ask(add("n", 1)), Reply::Number(i64::from(index) + 1));
    }
    for mut idle_client in held {
        // Until the server closes it: by then it may have said something to garbage that is a request.
        let _ = idle_client.stream.read_to_end(&mut Vec::new());
    }
    assert_eq!(block_on(server.connected()).unwrap(), [0, 1, 2, 3].into());
    for client in &mut job {
        client.send(&[wait(&["go"])]);
        client.assert_nothing_came();
    }
    Client::greeted(&server, 9).set("go", "1");
    assert!(job.iter_mut().all(|client| client.answer_of(&wait(&[])) == Reply::Arrived));
}
