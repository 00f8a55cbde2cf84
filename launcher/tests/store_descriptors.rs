//! The store when the process has no descriptor left. Alone in its process, whose limit it lowers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rankrun_contract::store::protocol::HANDSHAKE;
use rankrun_host::store::StoreServer;

/// The server looks ten times a second whether it can accept.
const TWO_POLLS: Duration = Duration::from_millis(250);

/// A connection that was greeted, but not answered yet.
fn connect(server: &StoreServer) -> TcpStream {
    let mut stream = TcpStream::connect(server.local_addr()).expect("the kernel accepts for the server");
    stream.write_all(&HANDSHAKE).expect("the socket's buffer is empty");
    ping(&mut stream);
    stream
}

fn ping(stream: &mut TcpStream) {
    stream.write_all(b"\x0DPING").expect("the socket's buffer is empty");
}

fn answered(stream: &mut TcpStream) {
    let mut nonce = [0; 4];
    stream.read_exact(&mut nonce).expect("the server answers");
    assert_eq!(&nonce, b"PING");
}

/// All descriptors that the process may still have.
fn spare() -> Vec<OwnedFd> {
    let stdin = std::io::stdin();
    std::iter::from_fn(|| nix::unistd::dup(&stdin).ok()).collect()
}

#[test]
fn client_without_free_descriptor_is_served_later() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 64, hard).unwrap();
    let server = StoreServer::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let mut first = connect(&server);
    answered(&mut first);

    // Only the client's own end still fits: accepting it fails.
    let mut rest = spare();
    drop(rest.pop());
    let mut second = connect(&server);
    ping(&mut first);
    answered(&mut first);

    // Another part of the process frees one: it is left to that part.
    drop(rest.pop());
    ping(&mut first);
    answered(&mut first);
    second.set_read_timeout(Some(TWO_POLLS)).expect("it is a socket");
    second.read_exact(&mut [0]).expect_err("few are left, and no client is let in");
    second.set_read_timeout(None).expect("it is a socket");

    // It frees some more.
    rest.truncate(rest.len() - 16);
    answered(&mut second);

    // A client goes: its end and the server's are free.
    drop(first);
    let mut third = connect(&server);
    answered(&mut third);
    ping(&mut second);
    answered(&mut second);
}
