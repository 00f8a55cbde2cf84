//! The memory of all connections together: requests that are not whole, answers that are not read, and the values that
//! these answers alone hold. Above half of the limit, a client gets its next answer when it has read the one before.
//! Above the limit, connections are closed: of clients that do not read before others, the largest first.

#![expect(clippy::disallowed_methods, reason = "how long a client has not read is this shell's own")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rankrun_contract::store::keyspace::ClientId;

use super::{ClientConnection, Server};
use crate::store::connection::{CloseReason, MAX_UNSENT};

/// A client that has read nothing for this number of ticks is closed before clients that read.
const STALLED_TICKS: u32 = 2;

/// Connections with answers that are not sent yet, and when to look next whether their clients read.
///
/// Time is counted in ticks: where this process was stopped, its clients were not slow.
#[derive(Debug, Default)]
pub(super) struct SlowReaders {
    clients: BTreeSet<ClientId>,
    next_tick: Option<Instant>,
}

impl SlowReaders {
    /// Whether the client has answers that are not sent; true where the last such client has none any more.
    fn set(&mut self, client: ClientId, is_behind: bool, tick: Duration) -> bool {
        if is_behind {
            self.clients.insert(client);
            self.next_tick.get_or_insert_with(|| Instant::now() + tick);
            return false;
        }
        self.remove(client)
    }

    /// The client has no answers any more; true where it was the last one that had.
    pub(super) fn remove(&mut self, client: ClientId) -> bool {
        let was_last = self.clients.remove(&client) && self.clients.is_empty();
        if was_last {
            self.next_tick = None;
        }
        was_last
    }

    pub(super) fn next_tick(&self) -> Option<Instant> {
        self.next_tick
    }
}

/// The facts that decide which connection is closed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConnectionLoad {
    pub(super) client: ClientId,
    /// Bytes that closing it may free.
    pub(super) bytes: u64,
    /// For how many ticks its client has read nothing.
    pub(super) unread_ticks: u32,
}

/// The connection that is closed first where all hold too much. Pure.
pub(super) fn first_to_close(loads: impl Iterator<Item = ConnectionLoad>) -> Option<ClientId> {
    let held = loads.filter(|load| load.bytes > 0);
    held.max_by_key(|load| (load.unread_ticks >= STALLED_TICKS, load.bytes)).map(|load| load.client)
}

impl Server {
    pub(super) fn set_limit(&mut self, bytes: u64) {
        self.limits.max_held_bytes = bytes;
        self.keyspace.set_limit(bytes);
    }

    fn memory(&self) -> u64 {
        self.held + self.keyspace.detached_bytes()
    }

    /// How many bytes of answers a client may leave unread before its requests have to wait.
    pub(super) fn allowed_unsent(&self) -> u64 {
        if self.memory() > self.limits.max_held_bytes / 2 { 0 } else { MAX_UNSENT }
    }

    /// Records the memory that a connection holds now.
    pub(super) fn update_client_load(&mut self, client: ClientId) {
        let Some(ClientConnection { connection, held, .. }) = self.clients.get_mut(&client) else { return };
        let before = std::mem::replace(held, connection.held());
        self.held = self.held - before + *held;
        let is_behind = connection.has_output();
        if self.slow_readers.set(client, is_behind, self.limits.tick) && self.keyspace.detached_bytes() > 0 {
            self.keyspace.sweep_detached();
        }
    }

    /// Closes connections until all together hold less than the limit.
    pub(super) fn close_until_within_limit(&mut self) {
        if self.memory() <= self.limits.max_held_bytes {
            return;
        }
        self.keyspace.sweep_detached();
        if self.memory() <= self.limits.max_held_bytes {
            return;
        }
        // Some room is made at once, so that the next request is not the next to come here.
        while self.memory() > self.limits.max_held_bytes / 8 * 7 {
            let load = |(client, closed): (&ClientId, &ClientConnection)| ConnectionLoad {
                client: *client,
                bytes: closed.connection.load(),
                unread_ticks: closed.connection.unread_ticks(),
            };
            let Some(client) = first_to_close(self.clients.iter().map(load)) else { return };
            self.close(client, &CloseReason::TooMuch);
            self.keyspace.sweep_detached();
        }
    }

    /// Finds the clients that read nothing, and closes each that is paused for too long.
    pub(super) fn tick_if_due(&mut self) {
        let now = Instant::now();
        if self.slow_readers.next_tick.is_none_or(|next| now < next) {
            return;
        }
        self.slow_readers.next_tick = Some(now + self.limits.tick);
        self.keyspace.sweep_detached();
        let mut unread = Vec::new();
        for client in &self.slow_readers.clients {
            let Some(ClientConnection { connection, .. }) = self.clients.get_mut(client) else { continue };
            if connection.tick() >= self.limits.unread_ticks && connection.is_paused() {
                unread.push(*client);
            }
        }
        for client in unread {
            self.close(client, &CloseReason::Unread);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(client: u64, bytes: u64, unread_ticks: u32) -> ConnectionLoad {
        ConnectionLoad { client: ClientId(client), bytes, unread_ticks }
    }

    #[test]
    fn stalled_client_is_closed_before_larger_reading_client() {
        let close = |loads: &[ConnectionLoad]| first_to_close(loads.iter().copied()).map(|client| client.0);
        assert_eq!(close(&[load(1, 900, 0), load(2, 10, 2), load(3, 20, 9)]), Some(3));
        assert_eq!(close(&[load(1, 900, 1), load(2, 10, 0)]), Some(1));
        assert_eq!(close(&[load(1, 0, 99)]), None);
        assert_eq!(close(&[]), None);
    }

    #[test]
    fn ticks_run_only_while_a_client_reads_slowly() {
        let (mut behind, tick) = (SlowReaders::default(), Duration::from_secs(1));
        assert!(!behind.set(ClientId(1), false, tick) && behind.next_tick().is_none());
        assert!(!behind.set(ClientId(1), true, tick) && behind.next_tick().is_some());
        assert!(!behind.set(ClientId(2), true, tick));
        assert!(!behind.set(ClientId(1), false, tick) && behind.next_tick().is_some());
        assert!(behind.set(ClientId(2), false, tick) && behind.next_tick().is_none());
    }
}
