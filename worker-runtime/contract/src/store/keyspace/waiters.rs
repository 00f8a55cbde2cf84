//! Waiting clients and their keys, indexed both ways, so that a write costs what it wakes and a disconnect what the
//! client waited for.

use std::collections::{BTreeMap, HashMap};

use super::{ClientId, Key, OVERHEAD};

/// When a wait began, in order: the longest waiting has the lowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Ticket(u64);

/// Key → waiting clients, the longest waiting first. A tree, since a large hash table grows in one long step.
type Index = BTreeMap<Key, Vec<(Ticket, ClientId)>>;

/// What one client waits for.
#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    at: At,
    cost: u64,
}

#[derive(Debug)]
enum At {
    /// For `missing` of `keys` to appear.
    Keys {
        keys: Vec<Key>,
        missing: usize,
    },
    Barrier {
        key: Key,
    },
}

/// All clients that wait. A client waits for one thing at a time.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    clients: HashMap<ClientId, Waiting>,
    for_key: Index,
    at_barrier: Index,
    next: Ticket,
    used: u64,
}

/// What waiting for `keys` costs, in bytes.
pub(super) fn cost(keys: &[&[u8]]) -> u64 {
    keys.iter().map(|key| key.len() as u64 + OVERHEAD).sum()
}

impl Waiters {
    /// Bytes held by waiting clients.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn is_waiting(&self, client: ClientId) -> bool {
        self.clients.contains_key(&client)
    }

    /// Registers a client, which waits for nothing yet, for keys that are absent.
    pub(super) fn wait(&mut self, client: ClientId, absent: &[&[u8]]) {
        let ticket = self.take_ticket();
        let mut keys = Vec::with_capacity(absent.len());
        for key in absent {
            let key = Key::from(*key);
            let waiting = self.for_key.entry(Key::clone(&key)).or_default();
            // A key that is named twice is satisfied by one appearance.
            if waiting.last() != Some(&(ticket, client)) {
                waiting.push((ticket, client));
                keys.push(key);
            }
        }
        let missing = keys.len();
        self.insert(client, Waiting { ticket, at: At::Keys { keys, missing }, cost: cost(absent) });
    }

    /// Registers a client, which waits for nothing yet, at a barrier that is not open.
    pub(super) fn wait_at_barrier(&mut self, client: ClientId, key: &[u8]) {
        let (ticket, shared) = (self.take_ticket(), Key::from(key));
        self.at_barrier.entry(Key::clone(&shared)).or_default().push((ticket, client));
        self.insert(client, Waiting { ticket, at: At::Barrier { key: shared }, cost: cost(&[key]) });
    }

    /// A key appeared: every client that waited for it has one key less to wait for. Returns the clients without a key left.
    pub(super) fn appeared(&mut self, key: &[u8]) -> Vec<ClientId> {
        let waiting = self.for_key.remove(key).unwrap_or_default();
        waiting.into_iter().map(|(_, client)| client).filter(|client| self.count_off(*client)).collect()
    }

    /// A queue got one value: as [`appeared`](Self::appeared), but only up to the first released client,
    /// since there is one value to take.
    pub(super) fn pushed(&mut self, key: &[u8]) -> Vec<ClientId> {
        let Some((key, mut waiting)) = self.for_key.remove_entry(key) else { return Vec::new() };
        let first = waiting.iter().position(|(_, client)| self.count_off(*client));
        let counted = first.map_or(waiting.len(), |first| first + 1);
        let released = first.map(|first| waiting[first].1);
        waiting.drain(..counted);
        if !waiting.is_empty() {
            self.for_key.insert(key, waiting);
        }
        released.into_iter().collect()
    }

    /// A barrier opened: returns the clients that waited at it.
    pub(super) fn opened(&mut self, key: &[u8]) -> Vec<ClientId> {
        let waiting = self.at_barrier.remove(key).unwrap_or_default();
        let released: Vec<ClientId> = waiting.into_iter().map(|(_, client)| client).collect();
        for client in &released {
            self.remove(*client);
        }
        released
    }

    /// Drops all registrations of a client.
    pub(super) fn forget(&mut self, client: ClientId) {
        match self.remove(client) {
            None => {}
            Some(Waiting { ticket, at: At::Barrier { key }, .. }) => {
                unregister(&mut self.at_barrier, &key, ticket);
            }
            Some(Waiting { ticket, at: At::Keys { keys, .. }, .. }) => {
                for key in keys {
                    unregister(&mut self.for_key, &key, ticket);
                }
            }
        }
    }

    fn take_ticket(&mut self) -> Ticket {
        let ticket = self.next;
        self.next = Ticket(ticket.0 + 1);
        ticket
    }

    fn insert(&mut self, client: ClientId, waiting: Waiting) {
        self.used += waiting.cost;
        let before = self.clients.insert(client, waiting);
        debug_assert!(before.is_none(), "a client waits for one thing at a time");
    }

    fn remove(&mut self, client: ClientId) -> Option<Waiting> {
        let waiting = self.clients.remove(&client)?;
        self.used -= waiting.cost;
        Some(waiting)
    }

    /// One of the client's keys appeared; whether it was the last.
    fn count_off(&mut self, client: ClientId) -> bool {
        let Some(Waiting { at: At::Keys { missing, .. }, .. }) = self.clients.get_mut(&client) else {
            return false;
        };
        *missing -= 1;
        *missing == 0 && self.remove(client).is_some()
    }
}

/// Takes one registration out of an index; it may be gone, since a key that appeared has none.
fn unregister(index: &mut Index, key: &[u8], ticket: Ticket) {
    let Some(waiting) = index.get_mut(key) else { return };
    if let Ok(position) = waiting.binary_search_by_key(&ticket, |(ticket, _)| *ticket) {
        waiting.remove(position);
    }
    if waiting.is_empty() {
        index.remove(key);
    }
}
