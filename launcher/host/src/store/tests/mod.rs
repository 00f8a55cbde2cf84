//! The server on loopback, against raw bytes. A client here knows the protocol's codec and nothing else.

mod abuse;
mod conformance;
mod idle_connections;
mod life;
mod memory;
mod presence;
mod steps;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use rankrun_contract::store::protocol::{HANDSHAKE, Reply, ReplyDecoder, Request};

use super::StoreServer;
use super::client::blocking::runtime;

/// A passing test never waits so long: bytes that are missing by then never arrive.
const LIMIT: Duration = Duration::from_secs(30);

/// The result of a future, on a runtime of its own.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    runtime().block_on(future)
}

fn server() -> StoreServer {
    StoreServer::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("the loopback has a free port")
}

struct Client {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Client {
    /// A connection on which nothing was said.
    fn silent(server: &StoreServer) -> Self {
        let stream = TcpStream::connect(server.local_addr()).expect("the server listens");
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, unread: Vec::new() }
    }

    /// One that has greeted with this number.
    fn greeted(server: &StoreServer, nonce: u32) -> Self {
        let mut client = Self::new(server);
        assert_eq!(client.ask(Request::Ping { nonce }), Reply::Pong(nonce));
        client
    }

    fn new(server: &StoreServer) -> Self {
        let mut client = Self::silent(server);
        client.write(&HANDSHAKE);
        client
    }

    fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    fn send(&mut self, requests: &[Request]) {
        self.write(&encode(requests));
    }

    /// Sends one request and returns its answer.
    fn ask(&mut self, request: Request) -> Reply {
        self.send(std::slice::from_ref(&request));
        self.answer_of(&request)
    }

    fn answer_of(&mut self, request: &Request) -> Reply {
        let mut decoder = ReplyDecoder::new(request.reply_kind().expect("the request has an answer"));
        let mut piece = vec![0; 64 * 1024];
        loop {
            let (consumed, reply) = decoder.decode(&self.unread).expect("the server speaks the protocol");
            self.unread.drain(..consumed);
            if let Some(reply) = reply {
                return reply;
            }
            let length = self.stream.read(&mut piece).expect("the server answers");
            assert_ne!(length, 0, "closed before the answer of {request:?}");
            self.unread.extend_from_slice(&piece[..length]);
        }
    }

    /// Nothing was sent to the client before the answer of this ping.
    fn assert_nothing_came(&mut self) {
        assert_eq!(self.ask(Request::Ping { nonce: 77 }), Reply::Pong(77));
        assert_eq!(self.unread, b"");
    }

    /// The server has closed the connection without sending a byte.
    fn assert_closed(mut self) {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
        }
        assert_eq!((self.unread, rest), (Vec::new(), Vec::new()));
    }

    fn set(&mut self, key: &str, value: &str) {
        self.send(&[set(key, value)]);
    }
}

fn encode(requests: &[Request]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for request in requests {
        request.encode(&mut bytes).expect("the test keeps the limits");
    }
    bytes
}

fn set(key: &str, value: &str) -> Request {
    Request::Set { key: key.into(), value: value.into() }
}

fn get(key: &str) -> Request {
    Request::Get { key: key.into() }
}

fn add(key: &str, delta: i64) -> Request {
    Request::Add { key: key.into(), delta }
}

fn wait(keys: &[&str]) -> Request {
    Request::Wait { keys: keys.iter().map(|key| (*key).into()).collect() }
}

fn barrier(key: &str, world_size: i64) -> Request {
    Request::Barrier { key: key.into(), world_size }
}

fn value(text: &str) -> Reply {
    Reply::Value(std::sync::Arc::new(text.into()))
}
