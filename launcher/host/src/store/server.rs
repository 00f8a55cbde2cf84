//! The store's thread: accepts, decodes, feeds the keyspace, replies.
//!
//! It owns all connections and the keyspace; nothing else changes them. An idle connection is closed after a while, or
//! sooner where descriptors are scarce. The memory of all connections together is bounded ([`memory`]).

#![expect(clippy::disallowed_methods, reason = "how long a connection has been silent is this shell's own")]

mod accept;
mod command;
mod memory;
mod registry;
mod serve;
mod warnings;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::TcpListener;
use std::ops::ControlFlow;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::EventFd;
use rankrun_contract::store::keyspace::{ClientId, Keyspace, MAX_BYTES};
use rankrun_contract::store::protocol::Reply;
use tokio::sync::Notify;

use super::connection::{CloseReason, Connection, READ_CHUNK};
pub(super) use command::ServerCommand;
use memory::SlowReaders;
use registry::{ClientIdentity, ClientRegistry};
pub(super) use registry::{ClientIds, RetainedClients};
#[cfg(test)]
pub(super) use serve::FREED_ENTRIES;
use warnings::Warnings;

const WAKER: u64 = 0;
const LISTENER: u64 = 1;
const FIRST_CLIENT: u64 = 2;

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
    /// A paused client that has read nothing for this number of ticks is closed.
    pub(super) unread_ticks: u32,
    /// Keys that are listed for one client before other clients have their turn.
    pub(super) listed_keys: usize,
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
            listed_keys: 8192,
        }
    }
}

/// Channels to the agent's handle: commands in, departures out.
#[derive(Debug)]
pub(super) struct ServerChannels {
    pub(super) waker: Arc<EventFd>,
    pub(super) commands: mpsc::Receiver<ServerCommand>,
    pub(super) departures: Arc<Notify>,
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
    /// When to accept again, after too few descriptors were left.
    accept_retry: Option<Instant>,
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
    read_buffer: Box<[u8]>,
    /// The replies of one request.
    replies: Vec<(ClientId, Reply)>,
    /// Replies to clients whose wait another client's request has ended.
    released: Vec<(ClientId, Reply)>,
    /// Clients whose `LIST_KEYS` is not answered yet. Some of them may have gone.
    listing_clients: VecDeque<ClientId>,
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
            accept_retry: None,
            channels: ends,
            limits,
            keyspace: Keyspace::default(),
            clients: HashMap::new(),
            registry: ClientRegistry::default(),
            held: 0,
            slow_readers: SlowReaders::default(),
            warnings: Warnings::default(),
            next_client: FIRST_CLIENT,
            read_buffer: vec![0; READ_CHUNK].into_boxed_slice(),
            replies: Vec::new(),
            released: Vec::new(),
            listing_clients: VecDeque::new(),
        })
    }

    /// What the agent reads without asking.
    pub(super) fn client_ids(&self) -> ClientIds {
        self.registry.client_ids()
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
                    WAKER => {
                        if let ControlFlow::Break(stopped) = self.drain_commands() {
                            return self.stop(&stopped);
                        }
                    }
                    LISTENER => self.accept(),
                    client => self.serve(ClientId(client), event.events()),
                }
            }
            self.accept_after_pause();
            self.take_step();
            self.close_idle_connections();
            self.tick_if_due();
        }
    }

    /// Closes everything, and answers before the memory is freed: the agent does not wait for that.
    fn stop(self, stopped: &mpsc::Sender<()>) {
        drop((self.listener, self.clients));
        let _ = stopped.send(());
    }

    /// How long to wait for clients: until the next deadline.
    fn timeout(&self) -> EpollTimeout {
        if self.has_steps_left() {
            return EpollTimeout::ZERO;
        }
        let oldest = self
            .registry
            .oldest_idle_connection()
            .filter(|_| self.registry.idle_connections() > self.limits.allowed_idle);
        let dismissal = oldest.map(|(_, since)| since + self.limits.idle_timeout);
        let Some(next) =
            dismissal.into_iter().chain(self.slow_readers.next_tick()).chain(self.accept_retry).min()
        else {
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
        // Answers before the request that ends the connection still belong to the client, if the socket takes them.
        let _ = self.clients.get_mut(&client).map(|closed| closed.connection.flush());
        let Some(closed) = self.remove(client) else { return };
        if !reason.is_by_peer() {
            self.registry.close_client(client, &closed.identity);
        } else if self.registry.remove_connection(client, &closed.identity) {
            // The only failure is a counter at its maximum, and then the reader is awake already.
            self.channels.departures.notify_one();
        }
    }

    fn remove(&mut self, client: ClientId) -> Option<ClientConnection> {
        self.keyspace.disconnect(client);
        let mut removed = self.clients.remove(&client)?;
        self.held -= removed.held;
        self.slow_readers.remove(client);
        // Closing would not do: a worker between fork and exec has the descriptor too, and as long as it does, the set
        // reports it.
        let _ = self.epoll.delete(&removed.connection);
        removed.connection.take_listed_keys().for_each(|keys| self.keyspace.discard_keys(keys));
        Some(removed)
    }
}
