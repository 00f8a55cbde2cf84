//! Clients that leave their answers unread: all together are bounded, and clients that read go on.

use super::super::server::ClientLimits;
use super::idle_connections::limited;
use super::*;
use bytesize::ByteSize;

const MIB: usize = 1024 * 1024;

/// Sends until the server reads no more, or closes the connection; whether it is open still.
fn send_without_reading(client: &mut Client, bytes: &[u8]) -> bool {
    client.stream.set_nonblocking(true).unwrap();
    let mut written = 0;
    while written < bytes.len() && is_writable(client) {
        match client.stream.write(&bytes[written..]) {
            Ok(length) => written += length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
    }
    client.stream.set_nonblocking(false).unwrap();
    true
}

fn is_writable(client: &Client) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    let mut fds = [PollFd::new(client.stream.as_fd(), PollFlags::POLLOUT)];
    poll(&mut fds, PollTimeout::from(100u16)).unwrap() > 0
}

/// Each answer holds a value that the next request replaces.
fn replaced_values(key: &str, rounds: u8) -> Vec<u8> {
    let round = |number: u8| [set(key, &char::from(number % 26 + b'a').to_string().repeat(MIB)), get(key)];
    (0..rounds).map(|number| encode(&round(number))).collect::<Vec<_>>().concat()
}

#[test]
fn unread_answers_above_limit_close_stalled_clients() {
    let server = limited(ClientLimits::default());
    server.limit(ByteSize(32 * MIB as u64)).unwrap();
    let mut reader = Client::greeted(&server, 7);
    reader.set("mine", &"v".repeat(MIB));
    let mut greedy: Vec<_> = (0..8).map(|_| Client::new(&server)).collect();
    for (number, client) in greedy.iter_mut().enumerate() {
        // It may be closed while it sends.
        send_without_reading(client, &replaced_values(&format!("greedy {number}"), 40));
        assert!(reader.ask(get("mine")) == value(&"v".repeat(MIB)), "{number}");
    }
    // Their common memory is bounded, so most of them have to wait or are closed.
    let mut last = Client::new(&server);
    last.set("small", "1");
    assert_eq!(last.ask(get("small")), value("1"));
    assert!(reader.ask(get("mine")) == value(&"v".repeat(MIB)), "the reader is served to the end");
}

#[test]
fn value_in_answers_of_many_clients_is_counted_once() {
    let server = limited(ClientLimits::default());
    server.limit(ByteSize(32 * MIB as u64)).unwrap();
    let large = "v".repeat(8 * MIB);
    let mut writer = Client::new(&server);
    writer.set("k", &large);
    writer.assert_nothing_came();
    let mut clients: Vec<_> = (0..24).map(|_| Client::new(&server)).collect();
    // 192 MiB of answers, none of which is read before all have been asked for.
    clients.iter_mut().for_each(|client| client.send(&[get("k")]));
    assert_eq!(Client::new(&server).ask(Request::Ping { nonce: 1 }), Reply::Pong(1));
    for client in &mut clients {
        assert!(client.answer_of(&get("k")) == value(&large), "the answer is the value");
    }
}

#[test]
fn stalled_client_is_closed_and_slow_reader_stays() {
    let server = limited(ClientLimits {
        tick: Duration::from_millis(50),
        unread_ticks: 40,
        ..ClientLimits::default()
    });
    let mut writer = Client::new(&server);
    writer.set("k", &"v".repeat(MIB));
    writer.assert_nothing_came();
    let requests = encode(&vec![get("k"); 60]);
    let (mut slow, mut greedy) = (Client::greeted(&server, 7), Client::greeted(&server, 8));
    for client in [&mut slow, &mut greedy] {
        assert!(send_without_reading(client, &requests));
    }
    // A little at a time, until the other one is closed for reading nothing.
    let (mut piece, mut read) = (vec![0; 4096], 0);
    while block_on(server.connected()).unwrap().contains(&8) {
        assert!(block_on(server.connected()).unwrap().contains(&7), "after {read} bytes");
        if read < 30 * MIB {
            read += slow.stream.read(&mut piece).expect("the slow client is served");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut rest = vec![0; 60 * (MIB + 8) - read];
    slow.stream.read_exact(&mut rest).expect("the slow client gets all its answers");
    assert_eq!(slow.ask(Request::Ping { nonce: 3 }), Reply::Pong(3));
}

#[test]
fn wait_above_store_limit_is_cancelled() {
    let server = limited(ClientLimits::default());
    server.limit(ByteSize(300)).unwrap();
    let mut client = Client::new(&server);
    client.set("k", &"v".repeat(100));
    assert_eq!(client.ask(wait(&["absent"])), Reply::Cancelled);
    assert_eq!(client.ask(wait(&["k"])), Reply::Arrived, "the connection goes on");
    assert_eq!(client.ask(barrier("other", 2)), Reply::Cancelled);
    assert_eq!(client.ask(Request::Check { keys: vec![b"other".to_vec()] }), Reply::AllPresent(false));
    // For what has no answer the protocol has no word.
    client.send(&[set("other", &"v".repeat(100))]);
    client.assert_closed();
}
