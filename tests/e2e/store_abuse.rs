//! Strangers on the store's port: a running job does not notice them.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use harness::{Job, Launch, Name, only_ours};

/// `VALIDATE` with its magic number.
const VALIDATE: [u8; 5] = [0, 0xce, 0xf7, 0x85, 0x3c];

/// A job with one waiting worker, and the address of its store.
#[track_caller]
fn waiting(name: Name) -> (Job, String) {
    let job = Launch::standalone(name, 1).stdin_open().worker(["env", "read", "print=trained"]).start();
    let of = |line: String| line.split_once('=').map(|(_, value)| value.to_owned()).expect("a value");
    let address = format!("{}:{}", of(job.line(" MASTER_ADDR=")), of(job.line(" MASTER_PORT=")));
    (job, address)
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the store accepts");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout can be set");
    stream
}

/// The store still serves a client that behaves.
#[track_caller]
pub(super) fn serves(address: &str) {
    let mut client = connect(address);
    client.write_all(&VALIDATE).and_then(|()| client.write_all(&[13, 1, 2, 3, 4])).expect("the store reads");
    let mut answer = [0; 4];
    client.read_exact(&mut answer).expect("the store answers a PING");
    assert_eq!(answer, [1, 2, 3, 4]);
}

#[track_caller]
fn is_closed(mut stream: TcpStream) {
    match stream.read(&mut [0]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("the store kept the connection: {other:?}"),
    }
}

#[track_caller]
fn ends_well(mut job: Job) {
    job.type_text("\n");
    let outcome = job.wait();
    outcome.exits(0).says("trained").never_says("panicked");
}

/// A SET that is cut off behind a body length that no store accepts.
#[track_caller]
fn ends_only_its_connection(set: &[u8]) {
    for name in Name::both() {
        let (job, address) = waiting(*name);
        let mut client = connect(&address);
        client.write_all(&[VALIDATE.as_slice(), &[1], set].concat()).expect("the store reads");
        is_closed(client);
        serves(&address);
        ends_well(job);
    }
}

#[test]
fn a_length_of_four_gigabytes_ends_only_its_connection() {
    ends_only_its_connection(&(4_u64 << 30).to_le_bytes());
}

#[test]
fn a_value_of_four_gigabytes_ends_only_its_connection() {
    let key = [1_u64.to_le_bytes().as_slice(), b"k"].concat();
    ends_only_its_connection(&[key.as_slice(), &(4_u64 << 30).to_le_bytes()].concat());
}

#[test]
fn clients_that_say_nothing_are_no_burden() {
    for name in Name::both() {
        let (job, address) = waiting(*name);
        let silent: Vec<TcpStream> = (0..20).map(|_| connect(&address)).collect();
        serves(&address);
        ends_well(job);
        drop(silent);
    }
}

#[test]
fn a_client_that_stops_in_the_middle_is_no_burden() {
    for name in Name::both() {
        let (job, address) = waiting(*name);
        let mut half = connect(&address);
        half.write_all(&VALIDATE).and_then(|()| half.write_all(&[1, 200, 0])).expect("the store reads");
        serves(&address);
        ends_well(job);
        drop(half);
    }
}

#[test]
fn what_is_no_store_message_is_closed() {
    if !only_ours() {
        return;
    }
    for name in Name::both() {
        let (job, address) = waiting(*name);
        let mut client = connect(&address);
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("the store reads");
        is_closed(client);
        serves(&address);
        ends_well(job);
    }
}
