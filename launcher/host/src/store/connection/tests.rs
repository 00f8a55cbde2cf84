//! The memory that a connection holds for a client that does not read.

use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rankrun_contract::store::keyspace::{ClientId, Keyspace};
use rankrun_contract::store::protocol::{HANDSHAKE, ReplyDecoder, ReplyKind};

use super::*;

const CLIENT: ClientId = ClientId(1);
const MIB: usize = 1024 * 1024;

/// A connection, its other end, and the keyspace behind it.
struct Served {
    connection: Connection,
    peer: TcpStream,
    keyspace: Keyspace,
}

impl Served {
    /// The keyspace has `value` as `k`, and the client has sent `requests`.
    fn new(value: Vec<u8>, requests: &[Request]) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("the loopback has a free port");
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let connection = Connection::new(listener.accept().unwrap().0).unwrap();
        let mut keyspace = Keyspace::default();
        keyspace.handle(CLIENT, Request::Set { key: b"k".to_vec(), value }, &mut Vec::new()).unwrap();
        let mut bytes = HANDSHAKE.to_vec();
        requests.iter().for_each(|request| request.encode(&mut bytes).unwrap());
        peer.write_all(&bytes).unwrap();
        let mut served = Self { connection, peer, keyspace };
        while served.connection.incoming.len() < bytes.len() {
            await_event(&served.connection, PollFlags::POLLIN);
            let mut buffer = [0; READ_CHUNK];
            let received = served.connection.receive(&mut buffer).unwrap();
            served.connection.incoming.extend_from_slice(received);
        }
        served
    }

    /// Serves all requests that may be served now; returns the most unsent bytes meanwhile.
    fn serve(&mut self) -> u64 {
        let (mut most, mut replies) = (0, Vec::new());
        self.connection.begin_turn(MAX_UNSENT);
        let mut requests = self.connection.requests(&[]);
        while let Some(request) = requests.next().unwrap() {
            self.keyspace.handle(CLIENT, request, &mut replies).unwrap();
            replies.drain(..).for_each(|(_, reply)| requests.reply(reply));
            most = most.max(requests.connection.unsent);
        }
        most
    }
}

#[track_caller]
fn await_event(of: &impl AsFd, flags: PollFlags) {
    let mut fds = [PollFd::new(of.as_fd(), flags)];
    assert_eq!(poll(&mut fds, PollTimeout::from(30_000u16)).unwrap(), 1, "nothing came");
}

fn get() -> Request {
    Request::Get { key: b"k".to_vec() }
}

fn append() -> Request {
    Request::Append { key: b"k".to_vec(), value: b"x".to_vec() }
}

/// Each `GET` pins a value that the `APPEND` after it must copy.
fn copies(rounds: usize) -> Vec<Request> {
    (0..rounds).flat_map(|_| [get(), append()]).collect()
}

#[test]
fn unread_answers_hold_at_most_limit_plus_one_reply() {
    let mut served = Served::new(vec![b'v'; 8 * MIB], &copies(150));
    let one = weight(&Reply::Value(vec![0; 8 * MIB + 150].into()));
    let most = served.serve();
    assert!(most > MAX_UNSENT, "the limit was never reached: {most}");
    assert!(most <= MAX_UNSENT + one, "{most}");
    let unserved = served.connection.incoming.len();
    assert!(unserved > 0 && !served.connection.takes_input());
    for _ in 0..10 {
        served.serve();
        assert!(served.connection.unsent <= MAX_UNSENT + one);
    }
    assert_eq!(served.connection.incoming.len(), unserved, "the client read nothing, and more was served");
}

#[test]
fn keys_and_small_answers_count_toward_limit() {
    let mut served = Served::new(Vec::new(), &vec![Request::Ping { nonce: 1 }; 1000]);
    assert_eq!(served.serve(), 1000 * OVERHEAD);
    let keys = Reply::Keys(vec![vec![0; 100].into(); 3]);
    assert_eq!(weight(&keys), OVERHEAD + 3 * (OVERHEAD + 100));
    assert_eq!(weight(&Reply::Values(vec![vec![0; 7].into(); 2])), OVERHEAD + 2 * (OVERHEAD + 7));
    served.connection.flush().unwrap();
    assert_eq!(served.connection.unsent, 0);
}

#[test]
fn paused_requests_are_served_after_client_reads() {
    let rounds = 40;
    let mut served = Served::new(vec![b'v'; MIB], &copies(rounds));
    served.serve();
    assert!(served.connection.is_paused);
    let mut peer = served.peer.try_clone().unwrap();
    let reader = std::thread::spawn(move || {
        for round in 0..rounds {
            let mut decoder = ReplyDecoder::new(ReplyKind::Value);
            let mut bytes = vec![0; 8 + MIB + round];
            peer.read_exact(&mut bytes).expect("the answer comes");
            let (_, reply) = decoder.decode(&bytes).unwrap();
            let Some(Reply::Value(value)) = reply else { panic!("answer {round} is {reply:?}") };
            assert_eq!(value.len(), MIB + round);
        }
    });
    // Also when all answers are sent, the connection asks to be written to: nothing comes from a client that waits.
    while served.connection.has_output() {
        await_event(&served.connection, PollFlags::POLLOUT);
        served.connection.begin_turn(MAX_UNSENT);
        served.connection.flush().unwrap();
        if !served.connection.has_output() || served.connection.unsent == 0 {
            served.serve();
        }
    }
    reader.join().unwrap();
    assert!(served.connection.incoming.is_empty() && served.connection.takes_input());
}
