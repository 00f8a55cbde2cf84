//! The store's thread: accepts, decodes, feeds the keyspace, replies.
//!
//! An idle connection is closed after a while, or sooner where descriptors are scarce. The memory of all connections together is
//! bounded ([`memory`]).

#![expect(clippy::disallowed_methods, reason = "how long a connection has been silent is this shell's own")]

mod memory;
mod registry;
mod warnings;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::TcpListener;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::EventFd;
use rankrun_contract::store::keyspace::{ClientId, Keyspace, KeyspaceError, MAX_BYTES};
use rankrun_contract::store::protocol::{Reply, Request};

use crate::process::reserve::open_keeping_reserve;

use super::connection::{CloseReason, Connection, READ_CHUNK, is_of_one_connection};
use memory::SlowReaders;
pub(super) use registry::RetainedClients;
use registry::{ClientIdentity, ClientRegistry};
use warnings::Warnings;

/// A request of the agent to the thread.
#[derive(Debug)]
pub(super) enum ServerCommand {
    /// Begin a generation: without the keys and connections of the last, except the kept ones.
    Reset {
        kept: RetainedClients,
        done: mpsc::Sender<io::Result<()>>,
    },
    /// Hold at most so many bytes of values, and of connections.
    Limit(u64),
    /// Keep some room for the keys that begin with one of these.
    Reserve(Vec<Vec<u8>>),
    /// Answer with the client ids seen since the last reset.
    Greeted(mpsc::Sender<BTreeSet<u32>>),
    /// Answer with the client ids of open connections.
    Connected(mpsc::Sender<BTreeSet<u32>>),
    /// Say how many connections have greeted and are open.
    Connections(mpsc::Sender<usize>),
    /// Answer with the client ids that lost their last connection since the previous question.
    Departed(mpsc::Sender<BTreeSet<u32>>),
    Stop,
}

const WAKER: u64 = 0;
const LISTENER: u64 = 1;
const FIRST_CLIENT: u64 = 2;

/// Connections accepted in a row before clients are served.
const ACCEPT_BATCH: usize = 128;

/// Where descriptors are scarce, a connection that was idle for so long is closed.
const CROWDED: Duration = Duration::from_secs(1);

/// The delay before the next accept, after few descriptors were left: other threads may have closed some.
const ACCEPT_RETRY_MS: u16 = 100;

/// Limits for connections without a request, and for incomplete requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientLimits {
    /// How long a connection may be without a whole request, where there are more than a few such.
    pub(super) idle_timeout: Duration,
    /// So many of them may take their time: a client may be stopped, or come from far away.
    pub(super) allowed_idle: usize,
    /// How many of them there may be.
    pub(super) max_idle: usize,
    /// Bytes of all connections together: requests that are not whole, and answers that are not read.
    pub(super) max_held_bytes: u64,
    /// The interval between checks for clients that do not read.
    pub(super) tick: Duration,
    /// A paused client that has read nothing for so many ticks is closed.
    pub(super) unread_ticks: u32,
}

impl Default for ClientLimits {
    /// Far above the needs of a job of thousands of workers that all connect at once; bytes as the keyspace itself.
    fn default() -> Self {
        Self {
            idle_timeout: Duration::from_secs(10),
            allowed_idle: 64,
            max_idle: 4096,
            max_held_bytes: MAX_BYTES,
            tick: Duration::from_secs(1),
            unread_ticks: 60,
        }
    }
}

/// Channels to the agent's handle: commands in, departures out.
#[derive(Debug)]
pub(super) struct ServerChannels {
    pub(super) waker: Arc<EventFd>,
    pub(super) commands: mpsc::Receiver<ServerCommand>,
    pub(super) departures: Arc<EventFd>,
}

/// A connection and the server's data about it.
struct ClientConnection {
    connection: Connection,
    identity: ClientIdentity,
    /// Its part of the memory of all.
    held: u64,
}

pub(super) struct Server {
    epoll: Epoll,
    listener: TcpListener,
    /// Too few descriptors were left for the next connection.
    accept_paused: bool,
    channels: ServerChannels,
    limits: ClientLimits,
    keyspace: Keyspace,
    clients: HashMap<ClientId, ClientConnection>,
    registry: ClientRegistry,
    /// The memory of all connections themselves, in bytes.
    held: u64,
    slow_readers: SlowReaders,
    warnings: Warnings,
    next_client: u64,
    piece: Box<[u8]>,
    replies: Vec<(ClientId, Reply)>,
    /// Replies for clients other than the one being served.
    woken: Vec<(ClientId, Reply)>,
}

impl Server {
    /// Takes a `listener` in non-blocking mode.
    pub(super) fn new(listener: TcpListener, ends: ServerChannels, limits: ClientLimits) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&*ends.waker, EpollEvent::new(EpollFlags::EPOLLIN, WAKER))?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        Ok(Self {
            epoll,
            listener,
            accept_paused: false,
            channels: ends,
            limits,
            keyspace: Keyspace::default(),
            clients: HashMap::new(),
            registry: ClientRegistry::default(),
            held: 0,
            slow_readers: SlowReaders::default(),
            warnings: Warnings::default(),
            next_client: FIRST_CLIENT,
            piece: vec![0; READ_CHUNK].into_boxed_slice(),
            replies: Vec::new(),
            woken: Vec::new(),
        })
    }

    /// Serves until the agent sends `Stop`.
    pub(super) fn run(mut self) {
        let mut events = [EpollEvent::empty(); 256];
        loop {
            let ready = match self.epoll.wait(&mut events, self.timeout()) {
                Ok(ready) => ready,
                Err(Errno::EINTR) => continue,
                Err(errno) => {
                    tracing::error!(%errno, "the store cannot wait for its clients any more");
                    return;
                }
            };
            for event in &events[..ready] {
                match event.data() {
                    WAKER if self.drain_commands().is_break() => return,
                    WAKER => {}
                    LISTENER => self.accept(),
                    client => self.serve(ClientId(client), event.events()),
                }
            }
            if self.accept_paused {
                self.accept();
            }
            self.close_idle_connections();
            self.tick_if_due();
        }
    }

    /// How long nothing has to be done of our own accord.
    fn timeout(&self) -> EpollTimeout {
        if self.accept_paused {
            return ACCEPT_RETRY_MS.into();
        }
        let oldest = self
            .registry
            .oldest_idle_connection()
            .filter(|_| self.registry.idle_connections() > self.limits.allowed_idle);
        let dismissal = oldest.map(|(_, since)| since + self.limits.idle_timeout);
        let Some(next) = dismissal.into_iter().chain(self.slow_readers.next_tick()).min() else {
            return EpollTimeout::NONE;
        };
        let left = next.saturating_duration_since(Instant::now());
        // Rounded up: a millisecond too late is better than a spin.
        u16::try_from(left.as_millis() + 1).unwrap_or(u16::MAX).into()
    }

    fn close_idle_connections(&mut self) {
        while self.registry.idle_connections() > self.limits.allowed_idle
            && let Some((client, since)) = self.registry.oldest_idle_connection()
            && (self.registry.idle_connections() > self.limits.max_idle
                || since.elapsed() >= self.limits.idle_timeout)
        {
            self.close(client, &CloseReason::Silent);
        }
    }

    /// Closes one idle connection that had time for a request. Returns whether there was one.
    fn close_oldest_idle(&mut self) -> bool {
        let Some((client, since)) = self.registry.oldest_idle_connection() else { return false };
        let is_old = since.elapsed() >= CROWDED;
        if is_old {
            self.close(client, &CloseReason::Silent);
        }
        is_old
    }

    fn drain_commands(&mut self) -> std::ops::ControlFlow<()> {
        // Only clears the counter: the commands are in the channel.
        let _ = self.channels.waker.read();
        while let Ok(command) = self.channels.commands.try_recv() {
            // A caller that did not wait needs no answer.
            match command {
                ServerCommand::Stop => return std::ops::ControlFlow::Break(()),
                ServerCommand::Reset { kept, done } => drop(done.send(self.reset(&kept))),
                ServerCommand::Limit(bytes) => self.set_limit(bytes),
                ServerCommand::Reserve(prefixes) => self.keyspace.reserve(prefixes),
                ServerCommand::Greeted(answer) => drop(answer.send(self.registry.client_ids())),
                ServerCommand::Connected(answer) => drop(answer.send(self.registry.connected())),
                ServerCommand::Connections(answer) => drop(answer.send(self.registry.connections())),
                ServerCommand::Departed(answer) => drop(answer.send(self.registry.take_departed())),
            }
        }
        std::ops::ControlFlow::Continue(())
    }

    /// Connections are closed first: that frees the descriptors with which the backlog is emptied.
    fn reset(&mut self, kept: &RetainedClients) -> io::Result<()> {
        let old = self.clients.iter().filter(|(_, guest)| !kept.connection(&guest.identity));
        for client in old.map(|(client, _)| *client).collect::<Vec<_>>() {
            if let Some(guest) = self.remove(client) {
                self.registry.close_client(client, &guest.identity);
            }
        }
        self.keyspace.retain(|key| kept.key(key));
        self.registry.next_generation();
        self.warnings = Warnings::default();
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
            match open_keeping_reserve(|| self.listener.accept()) {
                Ok((stream, _)) => {
                    let client = ClientId(self.next_client);
                    self.next_client += 1;
                    if let Err(error) = self.admit(client, stream) {
                        tracing::debug!(%error, "a connection to the store failed at once");
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return self.pause_accept(false),
                Err(error) if is_of_one_connection(&error) => {}
                Err(_) if self.close_oldest_idle() => {}
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
        self.registry.admit(client, Instant::now());
        self.clients
            .insert(client, ClientConnection { connection, identity: ClientIdentity::default(), held: 0 });
        Ok(())
    }

    fn serve(&mut self, client: ClientId, ready: EpollFlags) {
        if let Err(reason) = self.exchange(client, ready) {
            self.close(client, &reason);
        }
        self.close_until_within_limit();
        // Woken clients wait in a call: they come before the next client.
        let mut woken = std::mem::take(&mut self.woken);
        for (client, reply) in woken.drain(..) {
            if let Err(reason) = self.wake(client, reply) {
                self.close(client, &reason);
            }
        }
        self.woken = woken;
    }

    /// Everything that one client's readiness makes possible, up to one piece of input.
    fn exchange(&mut self, client: ClientId, ready: EpollFlags) -> Result<(), CloseReason> {
        let allowed = self.allowed_unsent();
        // A client that was closed by an event before this one is not there any more.
        let Some(ClientConnection { connection, identity, .. }) = self.clients.get_mut(&client) else {
            return Ok(());
        };
        connection.allow(allowed);
        connection.flush()?;
        let mut readable = ready != EpollFlags::EPOLLOUT;
        loop {
            let mut requests = connection.requests();
            while let Some(request) = requests.next()? {
                self.registry.record_request(client, identity, &request);
                let (name, waits) = (request.name(), is_wait(&request));
                let handled = self.keyspace.handle(client, request, &mut self.replies);
                // Also after a failure: a request may wake other clients before the part of it that fails.
                for (to, reply) in self.replies.drain(..) {
                    if to == client {
                        requests.reply(reply);
                    } else {
                        self.woken.push((to, reply));
                    }
                }
                match handled {
                    Ok(()) => {}
                    Err(error) => {
                        if let Some(text) = self.warnings.of_full(&error, name) {
                            tracing::warn!("{text}");
                        }
                        if !(waits && matches!(error, KeyspaceError::Full { .. })) {
                            return Err(error.into());
                        }
                        // The only refusal that the protocol has a word for.
                        requests.reply(Reply::Cancelled);
                    }
                }
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
        self.update_client_load(client);
        self.update_interest(client)
    }

    fn wake(&mut self, client: ClientId, reply: Reply) -> Result<(), CloseReason> {
        let Some(ClientConnection { connection, .. }) = self.clients.get_mut(&client) else { return Ok(()) };
        connection.reply(reply);
        connection.flush()?;
        self.update_client_load(client);
        self.update_interest(client)
    }

    /// Waits for the events that the connection needs next, if any.
    fn update_interest(&mut self, client: ClientId) -> Result<(), CloseReason> {
        let Some(ClientConnection { connection, .. }) = self.clients.get_mut(&client) else { return Ok(()) };
        if connection.has_ended() && !connection.has_output() {
            return Err(CloseReason::ByClient);
        }
        if let Some(interest) = connection.changed_interest() {
            let mut event = EpollEvent::new(interest, client.0);
            self.epoll.modify(&*connection, &mut event).map_err(io::Error::from)?;
        }
        Ok(())
    }

    fn close(&mut self, client: ClientId, reason: &CloseReason) {
        if let Some(text) = self.warnings.of_close(reason, self.limits.max_held_bytes) {
            tracing::warn!("{text}");
        }
        match reason {
            CloseReason::ByClient => tracing::trace!(client = client.0, "a client of the store has gone"),
            reason => tracing::debug!(
                client = client.0,
                %reason,
                source = std::error::Error::source(reason).map(tracing::field::display),
                "the store closes a connection"
            ),
        }
        let Some(mut guest) = self.remove(client) else { return };
        // Answers before the request that ends the connection still belong to the client, if the socket takes them.
        let _ = guest.connection.flush();
        if !reason.is_by_peer() {
            self.registry.close_client(client, &guest.identity);
        } else if self.registry.remove_connection(client, &guest.identity) {
            // The only failure is a counter at its maximum, and then the reader is awake already.
            let _ = self.channels.departures.write(1);
        }
    }

    fn remove(&mut self, client: ClientId) -> Option<ClientConnection> {
        self.keyspace.disconnect(client);
        let guest = self.clients.remove(&client)?;
        self.held -= guest.held;
        self.slow_readers.remove(client);
        // Closing would not do: a worker between fork and exec has the descriptor too, and as long as it does, the set
        // reports it.
        let _ = self.epoll.delete(&guest.connection);
        Some(guest)
    }
}

/// Whether the answer ends a wait, which it also can without success.
fn is_wait(request: &Request) -> bool {
    matches!(request, Request::Wait { .. } | Request::Barrier { .. })
}
