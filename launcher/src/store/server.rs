//! The store's thread: accepts, decodes, feeds the keyspace, replies.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::TcpListener;
use std::sync::{Arc, mpsc};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::EventFd;
use nix::sys::socket::{Backlog, listen};
use rankrun_contract::store::keyspace::{ClientId, Keyspace};
use rankrun_contract::store::protocol::{Reply, Request};

use crate::process::reserve::sparingly;

use super::connection::{Closed, Connection, PIECE, is_transient};

/// What the agent asks of the thread.
#[derive(Debug)]
pub(super) enum Command {
    /// Begin with an empty keyspace and no connections.
    Reset {
        /// Told when it is done.
        done: mpsc::Sender<io::Result<()>>,
    },
    /// Say who has greeted since the last reset.
    Greeted {
        /// Told the numbers of their greetings.
        answer: mpsc::Sender<BTreeSet<u32>>,
    },
    /// End.
    Stop,
}

const WAKER: u64 = 0;
const LISTENER: u64 = 1;
const FIRST_CLIENT: u64 = 2;

/// Connections accepted before others are served.
const ACCEPT_BATCH: usize = 128;

/// Greetings remembered: more than a node has workers, and little memory whoever sends them.
const MAX_GREETED: usize = 1 << 16;

/// When to try again to accept, after few descriptors were left: others of the process may have freed some.
const ACCEPT_RETRY_MS: u16 = 100;

pub(super) struct Server {
    epoll: Epoll,
    listener: TcpListener,
    /// Too few descriptors were left for the next connection.
    accept_paused: bool,
    waker: Arc<EventFd>,
    commands: mpsc::Receiver<Command>,
    keyspace: Keyspace,
    connections: HashMap<ClientId, Connection>,
    greeted: BTreeSet<u32>,
    next_client: u64,
    piece: Box<[u8]>,
    replies: Vec<(ClientId, Reply)>,
    /// Replies for others than the client that is being served.
    woken: Vec<(ClientId, Reply)>,
}

impl Server {
    pub(super) fn new(
        listener: TcpListener,
        waker: Arc<EventFd>,
        commands: mpsc::Receiver<Command>,
    ) -> io::Result<Self> {
        // The standard library's backlog would drop connections of a large job that all come at once.
        listen(&listener, Backlog::MAXALLOWABLE)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&*waker, EpollEvent::new(EpollFlags::EPOLLIN, WAKER))?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        Ok(Self {
            epoll,
            listener,
            accept_paused: false,
            waker,
            commands,
            keyspace: Keyspace::default(),
            connections: HashMap::new(),
            greeted: BTreeSet::new(),
            next_client: FIRST_CLIENT,
            piece: vec![0; PIECE].into_boxed_slice(),
            replies: Vec::new(),
            woken: Vec::new(),
        })
    }

    /// Serves until it is told to stop.
    pub(super) fn run(mut self) {
        let mut events = [EpollEvent::empty(); 256];
        loop {
            let timeout = if self.accept_paused { ACCEPT_RETRY_MS.into() } else { EpollTimeout::NONE };
            let ready = match self.epoll.wait(&mut events, timeout) {
                Ok(ready) => ready,
                Err(Errno::EINTR) => continue,
                Err(errno) => {
                    tracing::error!(%errno, "the store cannot wait for its clients any more");
                    return;
                }
            };
            for event in &events[..ready] {
                match event.data() {
                    WAKER if self.obey().is_break() => return,
                    WAKER => {}
                    LISTENER => self.accept(),
                    client => self.serve(ClientId(client), event.events()),
                }
            }
            if self.accept_paused {
                self.accept();
            }
        }
    }

    fn obey(&mut self) -> std::ops::ControlFlow<()> {
        // Only clears the counter: what it counts is in the channel.
        let _ = self.waker.read();
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Stop => return std::ops::ControlFlow::Break(()),
                // Who asked and did not wait needs no answer.
                Command::Reset { done } => drop(done.send(self.reset())),
                Command::Greeted { answer } => drop(answer.send(self.greeted.clone())),
            }
        }
        std::ops::ControlFlow::Continue(())
    }

    /// Connections are closed first: that frees the descriptors with which the backlog is emptied.
    fn reset(&mut self) -> io::Result<()> {
        self.connections.clear();
        self.keyspace = Keyspace::default();
        self.greeted.clear();
        loop {
            match self.listener.accept() {
                Ok(old) => drop(old),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPT_BATCH {
            match sparingly(|| self.listener.accept()) {
                Ok((stream, _)) => {
                    let client = ClientId(self.next_client);
                    self.next_client += 1;
                    if let Err(error) = self.admit(client, stream) {
                        tracing::debug!(%error, "a connection to the store failed at once");
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return self.pause_accept(false),
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    if !self.accept_paused {
                        tracing::warn!(%error, "the store cannot accept connections for now");
                    }
                    return self.pause_accept(true);
                }
            }
        }
    }

    /// A listener with a backlog that cannot be accepted is always ready: not watching it keeps the thread
    /// from spinning.
    fn pause_accept(&mut self, pause: bool) {
        if self.accept_paused == pause {
            return;
        }
        self.accept_paused = pause;
        let flags = if pause { EpollFlags::empty() } else { EpollFlags::EPOLLIN };
        if let Err(errno) = self.epoll.modify(&self.listener, &mut EpollEvent::new(flags, LISTENER)) {
            tracing::error!(%errno, "the store cannot watch its listener");
        }
    }

    fn admit(&mut self, client: ClientId, stream: std::net::TcpStream) -> io::Result<()> {
        let connection = Connection::new(stream)?;
        self.epoll.add(&connection, EpollEvent::new(EpollFlags::EPOLLIN, client.0))?;
        self.connections.insert(client, connection);
        Ok(())
    }

    fn serve(&mut self, client: ClientId, ready: EpollFlags) {
        if let Err(reason) = self.exchange(client, ready) {
            self.close(client, &reason);
        }
        // Those who were woken wait in a call: they come before the next client.
        let mut woken = std::mem::take(&mut self.woken);
        for (client, reply) in woken.drain(..) {
            if let Err(reason) = self.wake(client, reply) {
                self.close(client, &reason);
            }
        }
        self.woken = woken;
    }

    /// Everything that one client's readiness makes possible, up to one piece of input.
    fn exchange(&mut self, client: ClientId, ready: EpollFlags) -> Result<(), Closed> {
        // A client that was closed by an event before this one is not there any more.
        let Some(connection) = self.connections.get_mut(&client) else { return Ok(()) };
        connection.flush()?;
        let mut readable = ready != EpollFlags::EPOLLOUT;
        loop {
            let mut requests = connection.requests();
            while let Some(request) = requests.next()? {
                if let Request::Ping { nonce } = request
                    && self.greeted.len() < MAX_GREETED
                {
                    self.greeted.insert(nonce);
                }
                let handled = self.keyspace.handle(client, request, &mut self.replies);
                // Also after a failure: a request may wake others before the part of it that fails.
                for (to, reply) in self.replies.drain(..) {
                    if to == client {
                        requests.reply(reply);
                    } else {
                        self.woken.push((to, reply));
                    }
                }
                handled?;
            }
            drop(requests);
            if !(readable && connection.takes_input()) {
                break;
            }
            connection.receive(&mut self.piece)?;
            readable = false;
        }
        connection.flush()?;
        if connection.has_ended() {
            self.keyspace.disconnect(client);
        }
        self.settle(client)
    }

    fn wake(&mut self, client: ClientId, reply: Reply) -> Result<(), Closed> {
        let Some(connection) = self.connections.get_mut(&client) else { return Ok(()) };
        connection.reply(reply);
        connection.flush()?;
        self.settle(client)
    }

    /// Waits for what the connection needs next, if anything.
    fn settle(&mut self, client: ClientId) -> Result<(), Closed> {
        let Some(connection) = self.connections.get_mut(&client) else { return Ok(()) };
        if connection.has_ended() && !connection.has_output() {
            return Err(Closed::ByClient);
        }
        if let Some(interest) = connection.changed_interest() {
            let mut event = EpollEvent::new(interest, client.0);
            self.epoll.modify(&*connection, &mut event).map_err(io::Error::from)?;
        }
        Ok(())
    }

    fn close(&mut self, client: ClientId, reason: &Closed) {
        match reason {
            Closed::ByClient => tracing::trace!(client = client.0, "a client of the store has gone"),
            reason => tracing::debug!(
                client = client.0,
                %reason,
                source = std::error::Error::source(reason).map(tracing::field::display),
                "the store closes a connection"
            ),
        }
        self.keyspace.disconnect(client);
        if let Some(mut connection) = self.connections.remove(&client) {
            // What was answered before the request that ends the connection is still the client's, if the
            // socket takes it.
            let _ = connection.flush();
            // Closing would not do: a worker between fork and exec has the descriptor too, and as long as it
            // does, the set reports it.
            let _ = self.epoll.delete(&connection);
        }
    }
}

/// Whether accepting failed for the connection, not for the listener.
fn is_of_one_connection(error: &io::Error) -> bool {
    let aborted = matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::PermissionDenied);
    // Linux hands errors of the new connection, such as an unreachable network, to `accept`.
    let network = matches!(
        error.raw_os_error().map(Errno::from_raw),
        Some(
            Errno::ENETDOWN
                | Errno::EPROTO
                | Errno::ENOPROTOOPT
                | Errno::EHOSTDOWN
                | Errno::ENONET
                | Errno::EHOSTUNREACH
                | Errno::EOPNOTSUPP
                | Errno::ENETUNREACH
        )
    );
    aborted || network || is_transient(error)
}
