//! The sockets of the store that workers join: torch's `TCPStore` server, in the agent.
//!
//! [`StoreServer`] is the agent's handle: it binds once, and has one listener for its whole life.
//! [`rankrun_contract::store::protocol`] defines the bytes, [`rankrun_contract::store::keyspace`] the effect of a
//! request; this room only moves bytes between them and sockets.
//!
//! The server is one thread with one owner of all state, waiting in one `epoll`. It is not a set of tokio tasks: these
//! took more processor time for each request (docs/dev/decisions.md). It never looks up a name, and never waits for a
//! client.

pub mod client;
mod connection;
pub(crate) mod listen;
mod server;
mod socket;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use crate::blocking::{BlockingCall, CallStep};
use bytesize::ByteSize;
use rankrun_core::spec::rendezvous::PortRange;

use listen::Interfaces;
use server::{ClientIds, ClientLimits, RetainedClients, Server, ServerChannels, ServerCommand};

/// Reasons why the store cannot be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The address cannot be listened on.
    #[error("cannot listen on `{addr}`")]
    Bind {
        /// The address that the store listens on.
        addr: SocketAddr,
        /// The system's error for the address.
        source: io::Error,
    },
    /// A process of this machine listens there.
    #[error("cannot listen on `{addr}`: {owner} listens on this port")]
    InUse {
        /// The address that the store listens on.
        addr: SocketAddr,
        /// The listening process: name and pid.
        owner: String,
        /// The system's error for the address.
        source: io::Error,
    },
    /// Another socket holds the port, and nothing can be reached there.
    #[error("cannot listen on `{addr}`: a socket holds the port and does not listen")]
    Held {
        /// The address that the store listens on.
        addr: SocketAddr,
        /// The system's error for the address.
        source: io::Error,
    },
    /// All ports that the launcher may listen on are taken.
    #[error("every port from `{first}` to `{last}` is in use")]
    PortsTaken {
        /// The lowest port of the range.
        first: u16,
        /// The highest port of the range.
        last: u16,
    },
    /// The thread, or the `epoll` that it waits on, cannot be made.
    #[error("cannot start the store's thread")]
    Start {
        /// The system's error for the call.
        source: io::Error,
    },
    /// Connections that are not accepted yet cannot be distinguished from connections of the next generation.
    #[error("cannot close the store's old connections")]
    Reset {
        /// The system's error for the call.
        source: io::Error,
    },
    /// The store's thread has ended already.
    #[error("the store has stopped")]
    Stopped,
    /// The store's thread lives and does not answer.
    #[error("the store has not answered the launcher for {} s", limit.as_secs())]
    Unresponsive {
        /// The time that it had.
        limit: Duration,
    },
}

impl StoreError {
    /// Advice for the user, if there is any.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        if let Self::PortsTaken { .. } = self {
            return Some("other programs listen on them: a larger `--port-range` has more");
        }
        if let Self::InUse { .. } = self {
            return Some(
                "end that program, or choose another port: the same on every node, or 0 for any free one where there is one node",
            );
        }
        if let Self::Held { .. } = self {
            return Some(
                "`ss -tanp` names a program with a connection on the port, `ss --tcp --bound-inactive -p` (iproute2 6.9) \
                 one that only holds it: end that program, or choose another port",
            );
        }
        if let Self::Unresponsive { .. } = self {
            return Some(
                "the machine may be short of processor time or memory: `uptime` and `free -h` show it",
            );
        }
        let (Self::Bind { source, .. } | Self::Start { source } | Self::Reset { source }) = self else {
            return None;
        };
        match nix::errno::Errno::from_raw(source.raw_os_error()?) {
            nix::errno::Errno::EADDRINUSE => {
                Some("another program listens on this port: choose another one, or 0 for any free one")
            }
            nix::errno::Errno::EACCES => Some("ports below 1024 need privileges: choose another one"),
            nix::errno::Errno::EADDRNOTAVAIL => Some("this machine does not have this address"),
            nix::errno::Errno::EMFILE => Some("too many files are open: raise the limit with `ulimit -n`"),
            nix::errno::Errno::EAGAIN => crate::process::process_limit_hint(source),
            _ => None,
        }
    }
}

/// The time that the store's thread has for an answer. Its longest step takes a fraction of a second.
const REPLY_LIMIT: Duration = Duration::from_secs(10);

/// The time that the thread has to close everything. A signal to the launcher waits meanwhile.
const STOP_LIMIT: Duration = Duration::from_secs(1);

/// Intervals of [`REPLY_LIMIT`]: a process that was stopped meanwhile keeps waiting.
const REPLY_TICKS: u32 = 100;

/// A running store. Dropping it closes its listener and all its connections, and ends its thread.
#[derive(Debug)]
pub struct StoreServer {
    local_addr: SocketAddr,
    commands: mpsc::Sender<ServerCommand>,
    waker: Arc<EventFd>,
    departures: Arc<Notify>,
    client_ids: ClientIds,
}

impl StoreServer {
    /// Listens on `addr` (port 0: any free one) and serves an empty keyspace from then on. The unspecified address of
    /// IPv6 is that of IPv4 too.
    ///
    /// The thread inherits the caller's signal mask.
    ///
    /// # Errors
    /// The address cannot be listened on, or the thread cannot be started.
    pub fn bind(addr: SocketAddr) -> Result<Self, StoreError> {
        Self::start(listen::listen_on(addr)?, ClientLimits::default())
    }

    /// As [`bind`](Self::bind), on all interfaces or one; port 0 is any free one, of `ports` where these are given.
    ///
    /// # Errors
    /// No such port can be listened on, or the thread cannot be started.
    pub(crate) fn bind_in(at: Interfaces, port: u16, ports: Option<PortRange>) -> Result<Self, StoreError> {
        Self::start(listen::listener(at, port, ports)?, ClientLimits::default())
    }

    fn start(listener: TcpListener, limits: ClientLimits) -> Result<Self, StoreError> {
        let error = |source| StoreError::Start { source };
        let waker = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let waker = waker.map(Arc::new).map_err(|errno| error(errno.into()))?;
        let departures = Arc::new(Notify::new());
        let local_addr = listener.local_addr().map_err(error)?;
        let (sender, commands) = mpsc::channel();
        let ends =
            ServerChannels { waker: Arc::clone(&waker), commands, departures: Arc::clone(&departures) };
        let server = Server::new(listener, ends, limits).map_err(error)?;
        let client_ids = server.client_ids();
        thread::Builder::new().name("rankrun-store".to_owned()).spawn(move || server.run()).map_err(error)?;
        Ok(Self { local_addr, commands: sender, waker, departures, client_ids })
    }

    /// Where it listens, with the port that was found.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Begins a generation: an empty keyspace, and no earlier connection.
    ///
    /// When this returns, every earlier connection is closed, also if the server had not accepted it yet. Later
    /// connections reach the new keyspace.
    ///
    /// # Errors
    /// The old connections cannot be told apart (no descriptor is left to accept them), or the thread has ended.
    pub fn reset(&self) -> Result<(), StoreError> {
        self.reset_keeping(&[], &BTreeSet::new())
    }

    /// As [`reset`](Self::reset), but for what outlives a generation: keys that begin with one of the prefixes, and the
    /// connections that have greeted with one of the numbers, or have used a key with the same first part (up to its
    /// first `/` after the one that it begins with) as one of the prefixes.
    ///
    /// # Errors
    /// As [`reset`](Self::reset).
    pub(crate) fn reset_keeping(&self, prefixes: &[&str], nonces: &BTreeSet<u32>) -> Result<(), StoreError> {
        let prefixes = prefixes.iter().map(|prefix| prefix.as_bytes().to_vec()).collect();
        let call = self.begin_reset(RetainedClients { prefixes, nonces: nonces.clone() })?;
        let answer = (0..REPLY_TICKS).find_map(|_| call.wait(REPLY_LIMIT / REPLY_TICKS));
        answer.unwrap_or(Err(StoreError::Unresponsive { limit: REPLY_LIMIT }))
    }

    /// [`Self::reset`] for a loop, which polls the call.
    ///
    /// # Errors
    /// The thread has ended, or no descriptor is left.
    pub(crate) fn start_reset(&self) -> Result<BlockingCall<Result<(), StoreError>>, StoreError> {
        self.begin_reset(RetainedClients::default())
    }

    fn begin_reset(&self, kept: RetainedClients) -> Result<BlockingCall<Result<(), StoreError>>, StoreError> {
        let step = CallStep::only("the training store");
        let (call, done) = BlockingCall::open(step).map_err(|source| StoreError::Reset { source })?;
        self.send(ServerCommand::Reset { kept, done })?;
        Ok(call)
    }

    /// Limits the bytes of values from now on, and those of requests and answers that are under way.
    ///
    /// # Errors
    /// The thread has ended, or does not answer.
    pub fn limit(&self, size: ByteSize) -> Result<(), StoreError> {
        self.send(ServerCommand::SetLimit(size.0))
    }

    /// Keeps some room, beyond the limit, for keys that begin with one of the prefixes.
    ///
    /// # Errors
    /// The thread has ended, or does not answer.
    pub fn reserve(&self, prefixes: &[String]) -> Result<(), StoreError> {
        let prefixes = prefixes.iter().map(|prefix| prefix.clone().into_bytes()).collect();
        self.send(ServerCommand::SetReserved(prefixes))
    }

    /// The numbers by which clients have greeted (the store's PING) since the last reset. torch's clients and ours send
    /// their pid. Does not wait for the thread.
    #[must_use]
    pub(crate) fn client_ids(&self) -> BTreeSet<u32> {
        self.client_ids.get()
    }

    /// Client ids of the connections that are open now.
    ///
    /// # Errors
    /// The thread has ended, or does not answer.
    pub async fn connected(&self) -> Result<BTreeSet<u32>, StoreError> {
        self.request(ServerCommand::Connected).await
    }

    /// Number of open connections of clients that have sent their id.
    ///
    /// # Errors
    /// The thread has ended, or does not answer.
    pub async fn connections(&self) -> Result<usize, StoreError> {
        self.request(ServerCommand::Connections).await
    }

    /// Returns when there may be something for [`departed`](Self::departed). May be dropped at any time.
    pub(crate) async fn client_departed(&self) {
        self.departures.notified().await;
    }

    /// Client ids that lost their last connection since the previous call. A client that has connected again is left
    /// out, and so are connections that a reset closed.
    ///
    /// # Errors
    /// The thread has ended, or does not answer.
    pub(crate) async fn departed(&self) -> Result<BTreeSet<u32>, StoreError> {
        self.request(ServerCommand::Departed).await
    }

    async fn request<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> ServerCommand,
    ) -> Result<T, StoreError> {
        let (answer, mut answered) = oneshot::channel();
        self.send(command(answer))?;
        for _ in 0..REPLY_TICKS {
            if let Ok(answer) = timeout(REPLY_LIMIT / REPLY_TICKS, &mut answered).await {
                return answer.map_err(|_| StoreError::Stopped);
            }
        }
        Err(StoreError::Unresponsive { limit: REPLY_LIMIT })
    }

    fn send(&self, command: ServerCommand) -> Result<(), StoreError> {
        self.commands.send(command).map_err(|mpsc::SendError(_)| StoreError::Stopped)?;
        // The only failure is a counter at its maximum, and then the thread is awake already.
        let _ = self.waker.write(1);
        Ok(())
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        let (answer, stopped) = mpsc::channel();
        // A store that has ended already has closed everything, and one that hangs ends with the process.
        if self.send(ServerCommand::Stop(answer)).is_ok() {
            let _ = await_answer(&stopped, STOP_LIMIT);
        }
    }
}

/// Waits for the thread's answer in ticks.
fn await_answer<T>(answer: &mpsc::Receiver<T>, limit: Duration) -> Result<T, StoreError> {
    for _ in 0..REPLY_TICKS {
        match answer.recv_timeout(limit / REPLY_TICKS) {
            Ok(answer) => return Ok(answer),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return Err(StoreError::Stopped),
        }
    }
    Err(StoreError::Unresponsive { limit })
}
