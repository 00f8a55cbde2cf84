//! The sockets of the store that workers join: torch's `TCPStore` server, in the agent.
//!
//! [`StoreServer`] is the agent's handle: it binds once, and has one listener for its whole life. What the
//! bytes mean is [`rankrun_contract::store::protocol`], what a request does is
//! [`rankrun_contract::store::keyspace`]; this room only moves bytes between them and sockets.
//!
//! The server is one thread with one owner of all state, waiting in one `epoll`. No async runtime: with one
//! task per connection the keyspace would be shared or a channel away from every request, and the loop that
//! replaces the tasks is shorter than either. It never looks up a name, and never waits for a client.

pub mod client;
mod connection;
mod server;
mod socket;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use nix::sys::eventfd::{EfdFlags, EventFd};

use server::{Command, Server};

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The address cannot be listened on.
    #[error("cannot listen on `{addr}`")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// The thread or what it waits on cannot be made.
    #[error("cannot start the store's thread")]
    Start {
        /// The system's reason.
        source: io::Error,
    },
    /// Connections that nobody has accepted yet cannot be told from those of the next generation.
    #[error("cannot close the store's old connections")]
    Reset {
        /// The system's reason.
        source: io::Error,
    },
    /// The store's thread has ended.
    #[error("the store has stopped")]
    Stopped,
}

impl StoreError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
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
            _ => None,
        }
    }
}

/// A running store. Dropping it ends its thread and closes all its connections.
#[derive(Debug)]
pub struct StoreServer {
    local_addr: SocketAddr,
    commands: mpsc::Sender<Command>,
    waker: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl StoreServer {
    /// Listens on `addr` (port 0: any free one) and serves an empty keyspace from then on.
    ///
    /// The thread inherits the caller's signal mask.
    ///
    /// # Errors
    /// The address cannot be listened on, or the thread cannot be started.
    pub fn bind(addr: SocketAddr) -> Result<Self, StoreError> {
        let bind_error = |source| StoreError::Bind { addr, source };
        let start_error = |source| StoreError::Start { source };
        let listener = TcpListener::bind(addr).map_err(bind_error)?;
        listener.set_nonblocking(true).map_err(bind_error)?;
        let local_addr = listener.local_addr().map_err(bind_error)?;

        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let waker = Arc::new(EventFd::from_flags(flags).map_err(|errno| start_error(errno.into()))?);
        let (commands, inbox) = mpsc::channel();
        let server = Server::new(listener, Arc::clone(&waker), inbox).map_err(start_error)?;
        let thread = thread::Builder::new()
            .name("rankrun-store".to_owned())
            .spawn(move || server.run())
            .map_err(start_error)?;
        Ok(Self { local_addr, commands, waker, thread: Some(thread) })
    }

    /// Where it listens, with the port that was found.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Begins a generation: an empty keyspace, and no connection of those before it.
    ///
    /// When this returns, whoever connected before is disconnected, also those whom the server had not
    /// accepted yet, and whoever connects after reaches the new keyspace.
    ///
    /// # Errors
    /// The old connections cannot be told apart (no descriptor is left to accept them), or the thread has
    /// ended.
    pub fn reset(&self) -> Result<(), StoreError> {
        let (done, answer) = mpsc::channel();
        self.send(Command::Reset { done })?;
        answer
            .recv()
            .map_err(|mpsc::RecvError| StoreError::Stopped)?
            .map_err(|source| StoreError::Reset { source })
    }

    /// The numbers by which clients have greeted (the store's PING) since the last reset. torch's clients and ours send
    /// their pid.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn greeted(&self) -> Result<BTreeSet<u32>, StoreError> {
        let (answer, greeted) = mpsc::channel();
        self.send(Command::Greeted { answer })?;
        greeted.recv().map_err(|mpsc::RecvError| StoreError::Stopped)
    }

    fn send(&self, command: Command) -> Result<(), StoreError> {
        self.commands.send(command).map_err(|mpsc::SendError(_)| StoreError::Stopped)?;
        // The only failure is a counter at its maximum, and then the thread is awake already.
        let _ = self.waker.write(1);
        Ok(())
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        if self.send(Command::Stop).is_ok()
            && let Some(thread) = self.thread.take()
        {
            // A panic of the thread was printed when it happened, and its connections are closed.
            let _ = thread.join();
        }
    }
}
