//! Connections of a store: clients that have sent their id, and idle connections. Takes `now`; holds no socket.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rankrun_contract::store::keyspace::ClientId;
use rankrun_contract::store::protocol::Request;

/// Bound on the client ids kept: more than a node has workers, and little memory.
const MAX_CLIENT_IDS: usize = 1 << 16;
/// First parts of keys remembered of a connection: a client of a job has one or two.
const MAX_ROOTS: usize = 8;
/// The longest first part that is distinguished, in bytes.
const MAX_ROOT: usize = 64;

/// The identity that a connection has sent.
#[derive(Debug, Default)]
pub(super) struct ClientIdentity {
    /// It has sent a whole request.
    known: bool,
    /// The client id in its first PING.
    nonce: Option<u32>,
    /// The first parts of the keys that it has named.
    roots: Vec<Box<[u8]>>,
}

/// The parts of the keyspace and the connections that a new generation keeps.
#[derive(Debug, Default)]
pub(in crate::store) struct RetainedClients {
    /// Keys that begin with one of these, and the connections that have used such keys.
    pub(in crate::store) prefixes: Vec<Vec<u8>>,
    /// Connections that have sent one of these client ids.
    pub(in crate::store) nonces: BTreeSet<u32>,
}

impl RetainedClients {
    pub(super) fn connection(&self, identity: &ClientIdentity) -> bool {
        let is_retained = identity.nonce.is_some_and(|nonce| self.nonces.contains(&nonce));
        is_retained
            || self.prefixes.iter().any(|prefix| identity.roots.iter().any(|known| **known == *root(prefix)))
    }
}

/// The first part of a key: up to its first `/`, the one at the beginning left out.
fn root(key: &[u8]) -> &[u8] {
    let key = key.strip_prefix(b"/").unwrap_or(key);
    let end = key.iter().position(|byte| *byte == b'/').unwrap_or(key.len());
    &key[..end.min(MAX_ROOT)]
}

fn for_each_key<'a>(request: &'a Request, mut visit: impl FnMut(&'a [u8])) {
    match request {
        Request::Set { key, .. }
        | Request::CompareSet { key, .. }
        | Request::Get { key }
        | Request::Add { key, .. }
        | Request::DeleteKey { key }
        | Request::Append { key, .. }
        | Request::QueuePush { key, .. }
        | Request::QueuePop { key }
        | Request::QueueLen { key }
        | Request::Barrier { key, .. } => visit(key),
        Request::Check { keys } | Request::Wait { keys } | Request::MultiGet { keys } => {
            keys.iter().for_each(|key| visit(key));
        }
        Request::MultiSet { pairs } => pairs.iter().for_each(|(key, _)| visit(key)),
        Request::GetNumKeys | Request::CancelWait | Request::Ping { .. } | Request::ListKeys => {}
    }
}

/// Client ids since the last reset, also of clients that have gone. The agent reads them without waiting for the
/// server, which holds the lock for one insertion.
#[derive(Debug, Clone, Default)]
pub(in crate::store) struct ClientIds(Arc<Mutex<BTreeSet<u32>>>);

impl ClientIds {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::store) fn get(&self) -> BTreeSet<u32> {
        self.lock().clone()
    }

    fn insert(&self, id: u32) {
        let mut ids = self.lock();
        if ids.len() < MAX_CLIENT_IDS {
            ids.insert(id);
        }
    }
}

/// All connections, by the identity that they have sent.
#[derive(Debug, Default)]
pub(super) struct ClientRegistry {
    client_ids: ClientIds,
    /// The count of open connections, per client id.
    open: BTreeMap<u32, usize>,
    /// Client ids that lost their last connection since the previous question.
    departed: BTreeSet<u32>,
    /// Connections without a whole request, and since when. The oldest has the lowest number.
    idle: BTreeMap<ClientId, Instant>,
}

impl ClientRegistry {
    pub(super) fn admit(&mut self, client: ClientId, now: Instant) {
        self.idle.insert(client, now);
    }

    /// A connection has sent a request.
    pub(super) fn record_request(
        &mut self,
        client: ClientId,
        identity: &mut ClientIdentity,
        request: &Request,
    ) {
        if !std::mem::replace(&mut identity.known, true) {
            self.idle.remove(&client);
        }
        if let Request::Ping { nonce } = *request {
            self.client_ids.insert(nonce);
            if identity.nonce.is_none() {
                identity.nonce = Some(nonce);
                *self.open.entry(nonce).or_default() += 1;
                // The client is back before its departure was reported.
                self.departed.remove(&nonce);
            }
        }
        if identity.roots.len() == MAX_ROOTS {
            return;
        }
        for_each_key(request, |key| {
            let root = root(key);
            if identity.roots.len() < MAX_ROOTS && identity.roots.iter().all(|known| **known != *root) {
                identity.roots.push(root.into());
            }
        });
    }

    /// A connection has closed; whether it was the last one of its number.
    pub(super) fn remove_connection(&mut self, client: ClientId, identity: &ClientIdentity) -> bool {
        self.idle.remove(&client);
        let Some(nonce) = identity.nonce else { return false };
        let open = self.open.get_mut(&nonce).map_or(0, |open| {
            *open -= 1;
            *open
        });
        if open > 0 {
            return false;
        }
        self.open.remove(&nonce);
        self.departed.len() < MAX_CLIENT_IDS && self.departed.insert(nonce)
    }

    /// The server has closed a connection of an old generation: this does not count as a departure.
    pub(super) fn close_client(&mut self, client: ClientId, identity: &ClientIdentity) {
        if self.remove_connection(client, identity)
            && let Some(nonce) = identity.nonce
        {
            self.departed.remove(&nonce);
        }
    }

    pub(super) fn next_generation(&mut self) {
        self.client_ids.lock().clear();
    }

    pub(super) fn client_ids(&self) -> ClientIds {
        self.client_ids.clone()
    }

    pub(super) fn connected(&self) -> BTreeSet<u32> {
        self.open.keys().copied().collect()
    }

    /// How many open connections have sent a client id.
    pub(super) fn connections(&self) -> usize {
        self.open.values().sum()
    }

    pub(super) fn take_departed(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.departed)
    }

    /// How many connections have not sent a whole request.
    pub(super) fn idle_connections(&self) -> usize {
        self.idle.len()
    }

    /// The connection that has been without a whole request for the longest time, and since when.
    pub(super) fn oldest_idle_connection(&self) -> Option<(ClientId, Instant)> {
        self.idle.first_key_value().map(|(client, since)| (*client, *since))
    }
}
