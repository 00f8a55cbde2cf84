//! Foreign clients of the store's port do not disturb a running job.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use harness::{Job, Launch, Name, is_rankrun};

/// `VALIDATE` with its magic number.
const VALIDATE: [u8; 5] = [0, 0xce, 0xf7, 0x85, 0x3c];

/// A job with one waiting worker, and the address of its store.
#[track_caller]
fn start_waiting_job(name: Name) -> (Job, String) {
    let job = Launch::standalone(name, 1).stdin_open().worker(["env", "read", "print=trained"]).start();
    let of = |line: String| line.split_once('=').map(|(_, value)| value.to_owned()).expect("a value");
    let address =
        format!("{}:{}", of(job.wait_for_line(" MASTER_ADDR=")), of(job.wait_for_line(" MASTER_PORT=")));
    (job, address)
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the store accepts");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout can be set");
    stream
}

/// The store still serves a client that behaves.
#[track_caller]
pub(super) fn assert_store_serves(address: &str) {
    let mut client = connect(address);
    client.write_all(&VALIDATE).and_then(|()| client.write_all(&[13, 1, 2, 3, 4])).expect("the store reads");
    let mut answer = [0; 4];
    client.read_exact(&mut answer).expect("the store answers a PING");
    assert_eq!(answer, [1, 2, 3, 4]);
}

#[track_caller]
fn assert_closed(mut stream: TcpStream) {
    match stream.read(&mut [0]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("the store kept the connection: {other:?}"),
    }
}

#[track_caller]
fn assert_succeeds(mut job: Job) {
    job.type_text("\n");
    let outcome = job.wait();
    outcome.expect_exit_code(0).expect_stdout("trained").expect_absent("panicked");
}

/// A SET that is cut off behind a body length that no store accepts.
#[track_caller]
fn assert_closes_only_client(set: &[u8]) {
    for name in Name::for_shared_behaviour() {
        let (job, address) = start_waiting_job(*name);
        let mut client = connect(&address);
        client.write_all(&[VALIDATE.as_slice(), &[1], set].concat()).expect("the store reads");
        assert_closed(client);
        assert_store_serves(&address);
        assert_succeeds(job);
    }
}

#[test]
fn key_length_of_4_gib_closes_only_its_connection() {
    assert_closes_only_client(&(4_u64 << 30).to_le_bytes());
}

#[test]
fn value_length_of_4_gib_closes_only_its_connection() {
    let key = [1_u64.to_le_bytes().as_slice(), b"k"].concat();
    assert_closes_only_client(&[key.as_slice(), &(4_u64 << 30).to_le_bytes()].concat());
}

#[test]
fn idle_clients_do_not_disturb_job() {
    for name in Name::both() {
        let (job, address) = start_waiting_job(*name);
        let silent: Vec<TcpStream> = (0..20).map(|_| connect(&address)).collect();
        assert_store_serves(&address);
        assert_succeeds(job);
        drop(silent);
    }
}

#[test]
fn client_with_partial_request_does_not_disturb_job() {
    for name in Name::for_shared_behaviour() {
        let (job, address) = start_waiting_job(*name);
        let mut half = connect(&address);
        half.write_all(&VALIDATE).and_then(|()| half.write_all(&[1, 200, 0])).expect("the store reads");
        assert_store_serves(&address);
        assert_succeeds(job);
        drop(half);
    }
}

#[test]
fn invalid_store_message_closes_connection() {
    if !is_rankrun() {
        return;
    }
    for name in Name::for_shared_behaviour() {
        let (job, address) = start_waiting_job(*name);
        let mut client = connect(&address);
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("the store reads");
        assert_closed(client);
        assert_store_serves(&address);
        assert_succeeds(job);
    }
}
