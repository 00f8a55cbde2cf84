//! Accepts connections, unless too few descriptors are left.

#![expect(clippy::disallowed_methods, reason = "how long a connection has been silent is this shell's own")]

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use nix::sys::epoll::{EpollEvent, EpollFlags};
use rankrun_contract::store::keyspace::ClientId;

use super::{ClientConnection, ClientIdentity, LISTENER, Server};
use crate::process::reserve::open_keeping_reserve;
use crate::store::connection::{CloseReason, Connection, is_of_one_connection};

/// Connections accepted in a row before clients are served.
const ACCEPT_BATCH: usize = 128;

/// Where descriptors are scarce, a connection that was idle for so long is closed.
const IDLE_LIMIT_WHEN_SCARCE: Duration = Duration::from_secs(1);

/// The delay before the next accept, after few descriptors were left: other threads may have closed some.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

impl Server {
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPT_BATCH {
            match open_keeping_reserve(|| self.listener.accept()) {
                Ok((stream, _)) => {
                    let client = ClientId(self.next_client);
                    self.next_client += 1;
                    if let Err(error) = self.admit(client, stream) {
                        tracing::debug!(%error, "a connection to the store failed at once");
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return self.pause_accept(None),
                Err(error) if is_of_one_connection(&error) => {}
                Err(_) if self.close_oldest_idle() => {}
                Err(error) => {
                    if self.accept_retry.is_none() {
                        tracing::warn!(%error, "the store cannot accept connections for now");
                    }
                    return self.pause_accept(Some(Instant::now() + ACCEPT_RETRY));
                }
            }
        }
    }

    /// Accepts again once a pause is over.
    pub(super) fn accept_after_pause(&mut self) {
        if self.accept_retry.is_some_and(|retry| Instant::now() >= retry) {
            self.accept();
        }
    }

    /// Does not watch the listener meanwhile: it stays ready while connections wait.
    fn pause_accept(&mut self, retry: Option<Instant>) {
        let is_changed = self.accept_retry.is_some() != retry.is_some();
        self.accept_retry = retry;
        if !is_changed {
            return;
        }
        let flags = if retry.is_some() { EpollFlags::empty() } else { EpollFlags::EPOLLIN };
        if let Err(errno) = self.epoll.modify(&self.listener, &mut EpollEvent::new(flags, LISTENER)) {
            tracing::error!(%errno, "the store cannot watch its listener");
        }
    }

    fn admit(&mut self, client: ClientId, stream: TcpStream) -> io::Result<()> {
        let connection = Connection::new(stream)?;
        self.epoll.add(&connection, EpollEvent::new(EpollFlags::EPOLLIN, client.0))?;
        self.registry.admit(client, Instant::now());
        self.clients
            .insert(client, ClientConnection { connection, identity: ClientIdentity::default(), held: 0 });
        Ok(())
    }

    /// Closes one idle connection that had time for a request. Returns whether there was one.
    fn close_oldest_idle(&mut self) -> bool {
        let Some((client, since)) = self.registry.oldest_idle_connection() else { return false };
        let is_old = since.elapsed() >= IDLE_LIMIT_WHEN_SCARCE;
        if is_old {
            self.close(client, &CloseReason::Silent);
        }
        is_old
    }
}
