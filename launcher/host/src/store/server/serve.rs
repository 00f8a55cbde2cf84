//! Serves one client at a time: reads once, serves all complete requests, and writes their replies together.

use std::io;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use rankrun_contract::store::keyspace::{ClientId, KeyspaceError};
use rankrun_contract::store::protocol::{Reply, Request};

use super::{ClientConnection, Server};
use crate::store::connection::CloseReason;

/// Entries of the keyspace that are freed in one step.
pub(in crate::store) const FREED_ENTRIES: usize = 8192;

impl Server {
    pub(super) fn serve(&mut self, client: ClientId, ready: EpollFlags) {
        if let Err(reason) = self.exchange(client, ready) {
            self.close(client, &reason);
        }
        self.close_until_within_limit();
        self.send_to_released();
    }

    /// Everything that one client's readiness makes possible, up to one piece of input.
    fn exchange(&mut self, client: ClientId, ready: EpollFlags) -> Result<(), CloseReason> {
        let allowed = self.allowed_unsent();
        // A client that was closed by an event before this one is not there any more.
        let Some(ClientConnection { connection, identity, .. }) = self.clients.get_mut(&client) else {
            return Ok(());
        };
        connection.begin_turn(allowed);
        connection.flush()?;
        let mut is_readable = ready != EpollFlags::EPOLLOUT;
        let mut received: &[u8] = &[];
        loop {
            let mut requests = connection.requests(received);
            while let Some(request) = requests.next()? {
                self.registry.record_request(client, identity, &request);
                if matches!(request, Request::ListKeys) {
                    requests.begin_listing();
                    self.listing_clients.push_back(client);
                    continue;
                }
                let (name, waits) = (request.name(), is_wait(&request));
                let handled = self.keyspace.handle(client, request, &mut self.replies);
                // Also after a failure: a request may release other clients before the part of it that fails.
                for (to, reply) in self.replies.drain(..) {
                    if to == client {
                        requests.reply(reply);
                    } else {
                        self.released.push((to, reply));
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
            if !(is_readable && connection.takes_input()) {
                break;
            }
            received = connection.receive(&mut self.read_buffer)?;
            is_readable = false;
        }
        self.finish_turn(client)
    }

    /// Writes the replies, and waits for the events that the connection needs next.
    fn finish_turn(&mut self, client: ClientId) -> Result<(), CloseReason> {
        let Some(ClientConnection { connection, .. }) = self.clients.get_mut(&client) else { return Ok(()) };
        connection.flush()?;
        if connection.has_ended() {
            self.keyspace.disconnect(client);
            if !connection.has_output() && connection.listing().is_none() {
                return Err(CloseReason::ByClient);
            }
        }
        if let Some(interest) = connection.changed_interest() {
            let mut event = EpollEvent::new(interest, client.0);
            self.epoll.modify(&*connection, &mut event).map_err(io::Error::from)?;
        }
        self.update_client_load(client);
        Ok(())
    }

    /// Sends to the clients whose wait has ended. They wait in a call, and come before the next client.
    fn send_to_released(&mut self) {
        let mut released = std::mem::take(&mut self.released);
        for (client, reply) in released.drain(..) {
            let Some(ClientConnection { connection, .. }) = self.clients.get_mut(&client) else { continue };
            connection.reply(reply);
            if let Err(reason) = self.finish_turn(client) {
                self.close(client, &reason);
            }
        }
        self.released = released;
    }

    /// Whether work is left that takes several steps.
    pub(super) fn has_steps_left(&self) -> bool {
        !self.listing_clients.is_empty() || self.keyspace.has_discarded()
    }

    /// A step of the work that takes several. Other clients have their turn between two steps.
    pub(super) fn take_step(&mut self) {
        self.keyspace.free_some(FREED_ENTRIES);
        let Some(client) = self.listing_clients.pop_front() else { return };
        // The client may have gone.
        let Some(ClientConnection { connection, .. }) = self.clients.get_mut(&client) else { return };
        let Some(listing) = connection.listing() else { return };
        if self.keyspace.list_keys(listing, self.limits.listed_keys) {
            connection.reply_listing();
            self.serve(client, EpollFlags::EPOLLOUT);
        } else {
            self.listing_clients.push_back(client);
            self.update_client_load(client);
            self.close_until_within_limit();
        }
    }
}

/// Whether the answer ends a wait, which it also can without success.
fn is_wait(request: &Request) -> bool {
    matches!(request, Request::Wait { .. } | Request::Barrier { .. })
}
