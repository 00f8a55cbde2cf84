//! A small store server: the contract's codec and keyspace, a thread for each connection.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use rankrun_contract::store::keyspace::{ClientId, Keyspace, KeyspaceError};
use rankrun_contract::store::protocol::{Reply, Request, RequestDecoder};

/// A store that lives as long as the test process.
#[derive(Clone)]
pub(crate) struct Server {
    port: u16,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    keyspace: Keyspace,
    clients: HashMap<ClientId, TcpStream>,
}

impl Server {
    /// A store that serves from the first connection on.
    pub(crate) fn start() -> Self {
        Self::start_at("127.0.0.1", 0)
    }

    /// A store at this address of ours that closes the first `refused` connections without an answer.
    pub(crate) fn start_at(address: &str, refused: u64) -> Self {
        let listener = TcpListener::bind((address, 0)).expect("the address has a free port");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let state = Arc::new(Mutex::new(State::default()));
        let server = Self { port, state: Arc::clone(&state) };
        thread::spawn(move || {
            for (number, stream) in (0..).zip(listener.incoming().flatten()) {
                let state = Arc::clone(&state);
                if number >= refused {
                    thread::spawn(move || serve(ClientId(number), stream, &state));
                }
            }
        });
        server
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// All keys as they are on the wire.
    pub(crate) fn keys(&self) -> Vec<String> {
        match self.ask(Request::ListKeys) {
            Reply::Keys(keys) => {
                let mut keys: Vec<_> =
                    keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
                keys.sort();
                keys
            }
            reply => panic!("the keyspace answered {reply:?}"),
        }
    }

    /// Closes the connections of all clients.
    pub(crate) fn hang_up(&self) {
        for stream in self.state.lock().unwrap().clients.values() {
            stream.shutdown(std::net::Shutdown::Both).unwrap();
        }
    }

    fn ask(&self, request: Request) -> Reply {
        let mut replies = Vec::new();
        self.state.lock().unwrap().keyspace.handle(ClientId(u64::MAX), request, &mut replies).unwrap();
        replies.pop().expect("the request is answered").1
    }
}

fn serve(client: ClientId, mut stream: TcpStream, state: &Mutex<State>) {
    let writer = stream.try_clone().expect("a socket can be cloned");
    state.lock().unwrap().clients.insert(client, writer);
    converse(client, &mut stream, state);
    let mut state = state.lock().unwrap();
    state.clients.remove(&client);
    state.keyspace.disconnect(client);
}

/// Ends with the connection: closed by the client, or garbage.
fn converse(client: ClientId, stream: &mut TcpStream, state: &Mutex<State>) {
    let mut decoder = RequestDecoder::new();
    let (mut input, mut piece) = (Vec::new(), vec![0; 64 * 1024]);
    loop {
        let Ok((consumed, request)) = decoder.decode(&input) else { return };
        input.drain(..consumed);
        if let Some(request) = request {
            if state.lock().unwrap().answer(client, request).is_err() {
                return;
            }
            continue;
        }
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => return,
            Ok(read) => input.extend_from_slice(&piece[..read]),
        }
    }
}

impl State {
    fn answer(&mut self, client: ClientId, request: Request) -> Result<(), KeyspaceError> {
        let mut replies = Vec::new();
        self.keyspace.handle(client, request, &mut replies)?;
        for (client, reply) in replies {
            let mut bytes = Vec::new();
            reply.encode(&mut bytes);
            if let Some(mut stream) = self.clients.get(&client) {
                // A client that is gone needs no answer.
                drop(stream.write_all(&bytes));
            }
        }
        Ok(())
    }
}
