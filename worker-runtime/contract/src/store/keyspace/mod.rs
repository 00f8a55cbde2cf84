//! The store as a state machine: values, queues, and the clients that wait for them.
//!
//! One request goes in, replies come out: for its client, and for clients whose wait it ended. The
//! meaning of every request is torch 2.15's, with these differences, each where torch's is a bug:
//!
//! - a `WAIT` counts a key whose queue holds something as there, so it is released by the other keys alone;
//! - a `COMPARE_SET` that stores nothing wakes no client;
//! - a key that a `BARRIER` creates counts as appeared for waiting clients, also before it opens;
//! - a push counts once for each client that waits for the queue, also when several pushes come;
//! - a connection waits for one thing at a time; a second `WAIT` or `BARRIER` that cannot be answered at once
//!   is refused (torch drops one of the two answers);
//! - a listing in steps ([`Keyspace::list_keys`]) has each key once that exists meanwhile; a key that comes or goes
//!   meanwhile may be in it;
//! - the memory is bounded, by [`MAX_BYTES`] unless the keyspace has another limit. A replaced value is charged by its
//!   net growth, and a counter that exists always counts, so heartbeats go on in a full store.
//!
//! This module owns the state. It knows neither sockets nor bytes, and never blocks: a reply that must wait is
//! returned by the call that fulfils it. Work on all keys is done in steps: [`Keyspace::list_keys`],
//! [`Keyspace::free_some`].

mod detached;
mod discarded;
mod number;
#[cfg(test)]
mod tests;
mod waiters;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use detached::Detached;
use discarded::DiscardedEntries;
pub use number::NumberError;
use waiters::Waiters;

use super::protocol::{Key, Reply, Request, Value};

/// Most bytes that one keyspace holds: keys, values, queues and registrations, each with [`OVERHEAD`].
///
/// torch has no limit and takes the machine with it. A job's keys are kilobytes; this leaves room for
/// programs that pass whole objects through the store.
pub const MAX_BYTES: u64 = 1024 * 1024 * 1024;

/// What an entry costs beside its bytes, about: table slot, reference counts, allocation.
pub const OVERHEAD: u64 = 128;

/// Bytes beyond the limit for keys with a reserved prefix ([`Keyspace::reserve`]).
pub const RESERVE: u64 = 1024 * 1024;

/// One connection of a client, for as long as it lasts. Never used again for another connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// Why a request cannot be served. The client's connection is closed, as torch does; the state is sound.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyspaceError {
    /// `ADD` or `BARRIER` on a value that is not a number.
    #[error("the value of key `{}` cannot be counted on", key.escape_ascii())]
    NotANumber {
        /// The key.
        key: Vec<u8>,
        /// What is wrong with the value.
        #[source]
        source: NumberError,
    },
    /// The client waits for something already.
    #[error("the connection waits already")]
    AlreadyWaiting,
    /// The keyspace would grow over its limit.
    #[error(
        "the store holds {used} bytes, and {more} more for key `{}` are above its limit of {limit}",
        key.escape_ascii()
    )]
    Full {
        /// The key that the request writes or waits for.
        key: Vec<u8>,
        /// What it holds.
        used: u64,
        /// What the request would add.
        more: u64,
        /// The limit.
        limit: u64,
    },
}

/// The state of one store.
#[derive(Debug)]
pub struct Keyspace {
    entries: Entries,
    waiters: Waiters,
    discarded: DiscardedEntries,
    memory: MemoryUse,
    /// Values that answers alone hold.
    detached: Detached,
}

/// What the keyspace holds and may hold, in bytes.
#[derive(Debug)]
struct MemoryUse {
    /// Bytes of entries, with overhead.
    used: u64,
    limit: u64,
    /// Prefixes of the keys that may use [`RESERVE`].
    reserved: Vec<Vec<u8>>,
}

impl MemoryUse {
    /// Refuses `more` bytes for `key` where they do not fit beside the waiting clients.
    fn admit(&self, key: &[u8], more: u64, waiters: &Waiters) -> Result<(), KeyspaceError> {
        let used = self.used + waiters.used();
        let is_reserved = || self.reserved.iter().any(|prefix| key.starts_with(prefix));
        if used.saturating_add(more) <= self.limit
            || (used.saturating_add(more) <= self.limit.saturating_add(RESERVE) && is_reserved())
        {
            return Ok(());
        }
        Err(KeyspaceError::Full { key: key.to_vec(), used, more, limit: self.limit })
    }

    /// Charges `more` bytes and an entry for `key`, if they fit.
    fn grow(&mut self, key: &[u8], more: usize, waiters: &Waiters) -> Result<(), KeyspaceError> {
        let more = more as u64 + OVERHEAD;
        self.admit(key, more, waiters)?;
        self.used += more;
        Ok(())
    }

    /// Charges `more` bytes for an entry that exists, if they fit.
    fn extend(&mut self, key: &[u8], more: usize, waiters: &Waiters) -> Result<(), KeyspaceError> {
        self.admit(key, more as u64, waiters)?;
        self.used += more as u64;
        Ok(())
    }

    fn shrink(&mut self, less: usize) {
        self.used -= less as u64 + OVERHEAD;
    }
}

/// Values and queues. Trees, since a large hash table grows in one long step, and has no place to go on from.
#[derive(Debug, Default)]
struct Entries {
    values: BTreeMap<Key, Value>,
    queues: BTreeMap<Key, Queue>,
}

/// The values of a queue.
#[derive(Debug, Default)]
struct Queue {
    values: VecDeque<Value>,
    /// Bytes of keys and values, with overhead.
    used: u64,
}

/// The keys found so far for a `LIST_KEYS`, in their order.
#[derive(Debug, Default)]
pub struct KeyListing {
    /// The keys.
    pub keys: Vec<Key>,
    /// Their bytes, without overhead.
    pub bytes: u64,
}

impl Default for Keyspace {
    fn default() -> Self {
        Self::new(MAX_BYTES)
    }
}

/// Where the replies of one request go: to its client, and to clients whose wait it ended.
struct Answers<'a> {
    client: ClientId,
    replies: &'a mut Vec<(ClientId, Reply)>,
}

impl Answers<'_> {
    fn answer(&mut self, reply: Reply) {
        self.replies.push((self.client, reply));
    }

    fn release(&mut self, released: Vec<ClientId>) {
        self.replies.extend(released.into_iter().map(|client| (client, Reply::Arrived)));
    }
}

impl Keyspace {
    /// An empty keyspace that holds at most about `limit` bytes.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self {
            entries: Entries::default(),
            waiters: Waiters::default(),
            discarded: DiscardedEntries::default(),
            memory: MemoryUse { used: 0, limit, reserved: Vec::new() },
            detached: Detached::default(),
        }
    }

    /// Has it hold at most about `limit` bytes from now on; what it holds stays.
    pub fn set_limit(&mut self, limit: u64) {
        self.memory.limit = limit;
    }

    /// Bytes of values that were replaced, removed or popped, and that answers still hold; perhaps more, until
    /// [`sweep_detached`](Self::sweep_detached).
    #[must_use]
    pub fn detached_bytes(&self) -> u64 {
        self.detached.bytes()
    }

    /// Looks which of these values still are held.
    pub fn sweep_detached(&mut self) {
        self.detached.sweep();
    }

    /// Keeps [`RESERVE`] for keys that begin with one of these: agents still meet in a store that workers have filled.
    pub fn reserve(&mut self, prefixes: Vec<Vec<u8>>) {
        self.memory.reserved = prefixes;
    }

    /// Serves one request of `client` and appends the replies to send now, with their clients, to `replies`.
    ///
    /// # Errors
    /// The request cannot be served: the caller closes the client's connection and calls
    /// [`disconnect`](Self::disconnect).
    pub fn handle(
        &mut self,
        client: ClientId,
        request: Request,
        replies: &mut Vec<(ClientId, Reply)>,
    ) -> Result<(), KeyspaceError> {
        let mut answers = Answers { client, replies };
        let reply = match request {
            Request::Set { key, value } => return self.set(&key, value, &mut answers),
            Request::MultiSet { pairs } => {
                return pairs.into_iter().try_for_each(|(key, value)| self.set(&key, value, &mut answers));
            }
            Request::Append { key, value } => return self.append(&key, value, &mut answers),
            Request::QueuePush { key, value } => return self.push(key, value, &mut answers),
            Request::Wait { keys } => return self.wait(&keys, &mut answers),
            Request::Barrier { key, world_size } => return self.barrier(&key, world_size, &mut answers),
            Request::CompareSet { key, expected, desired } => {
                Reply::Value(self.compare_set(&key, expected, desired, &mut answers)?)
            }
            Request::Add { key, delta } => {
                let sum = self.count(&key, delta)?;
                self.written(&key, &mut answers);
                Reply::Number(sum)
            }
            Request::Get { key } => Reply::Value(self.get(&key)),
            Request::MultiGet { keys } => Reply::Values(keys.iter().map(|key| self.get(key)).collect()),
            Request::Check { keys } => Reply::AllPresent(keys.iter().all(|key| self.is_present(key))),
            Request::GetNumKeys => number(self.entries.values.len()),
            Request::ListKeys => Reply::Keys(self.entries.values.keys().cloned().collect()),
            Request::DeleteKey { key } => number(usize::from(self.delete(&key))),
            Request::QueuePop { key } => Reply::Popped(self.pop(&key)),
            Request::QueueLen { key } => {
                number(self.entries.queues.get(&key[..]).map_or(0, |queue| queue.values.len()))
            }
            Request::Ping { nonce } => Reply::Pong(nonce),
            Request::CancelWait => {
                self.waiters.forget(client);
                Reply::Cancelled
            }
        };
        answers.answer(reply);
        Ok(())
    }

    /// Forgets what `client` waits for; what it counted at barriers stays counted.
    pub fn disconnect(&mut self, client: ClientId) {
        self.waiters.forget(client);
    }

    /// Lists up to `most` further keys. Returns whether the listing is complete.
    ///
    /// Requests may come between two calls. A key that exists meanwhile is listed once; a key that comes or goes may be listed.
    pub fn list_keys(&self, listing: &mut KeyListing, most: usize) -> bool {
        let after = listing.keys.last().map_or(Bound::Unbounded, |key| Bound::Excluded(Key::clone(key)));
        let mut rest = self.entries.values.range((after, Bound::Unbounded)).map(|(key, _)| key);
        for key in rest.by_ref().take(most) {
            listing.bytes += key.len() as u64;
            listing.keys.push(Key::clone(key));
        }
        rest.next().is_none()
    }

    /// Begins a generation with the keys and queues that have one of the prefixes. No client is woken; waiting clients keep
    /// waiting. The other keys are gone at once; their memory is for [`free_some`](Self::free_some).
    pub fn begin_generation(&mut self, kept: &[Vec<u8>]) {
        let mut previous = std::mem::take(&mut self.entries);
        self.memory.used = 0;
        for prefix in kept {
            while let Some((key, value)) = take_first(&mut previous.values, prefix) {
                self.memory.used += (key.len() + value.len()) as u64 + OVERHEAD;
                self.entries.values.insert(key, value);
            }
            while let Some((key, queue)) = take_first(&mut previous.queues, prefix) {
                self.memory.used += queue.used;
                self.entries.queues.insert(key, queue);
            }
        }
        self.discarded.add_entries(previous);
    }

    /// Whether entries wait to be freed.
    #[must_use]
    pub fn has_discarded(&self) -> bool {
        !self.discarded.is_empty()
    }

    /// Frees some of what was discarded: about `most` entries, or as many pages.
    pub fn free_some(&mut self, most: usize) {
        self.discarded.free_some(most, &mut self.detached);
    }

    /// Leaves keys of a listing to [`free_some`](Self::free_some).
    pub fn discard_keys(&mut self, keys: std::vec::IntoIter<Key>) {
        self.discarded.add_keys(keys);
    }

    fn get(&self, key: &[u8]) -> Value {
        self.entries.values.get(key).cloned().unwrap_or_default()
    }

    fn is_present(&self, key: &[u8]) -> bool {
        self.entries.values.contains_key(key) || self.entries.queues.contains_key(key)
    }

    /// Stores a value and wakes no waiting client. A value that takes another one's place is charged by what it is longer.
    fn store(&mut self, key: &[u8], value: Vec<u8>) -> Result<(), KeyspaceError> {
        let Some(present) = self.entries.values.get_mut(key) else { return self.insert(key, value) };
        let (before, after) = (present.len(), value.len());
        if after > before {
            self.memory.extend(key, after - before, &self.waiters)?;
        } else {
            self.memory.used -= (before - after) as u64;
        }
        self.detached.replace(present, value);
        Ok(())
    }

    /// Stores a value for a key that is absent.
    fn insert(&mut self, key: &[u8], value: Vec<u8>) -> Result<(), KeyspaceError> {
        self.memory.grow(key, key.len() + value.len(), &self.waiters)?;
        self.entries.values.insert(Key::from(key), Value::new(value));
        Ok(())
    }

    /// Wakes every client that waits for a key that was just written, at a barrier too.
    fn written(&mut self, key: &[u8], answers: &mut Answers<'_>) {
        answers.release(self.waiters.appeared(key));
        answers.release(self.waiters.opened(key));
    }

    fn set(&mut self, key: &[u8], value: Vec<u8>, answers: &mut Answers<'_>) -> Result<(), KeyspaceError> {
        self.store(key, value)?;
        self.written(key, answers);
        Ok(())
    }

    fn compare_set(
        &mut self,
        key: &[u8],
        expected: Vec<u8>,
        desired: Vec<u8>,
        answers: &mut Answers<'_>,
    ) -> Result<Value, KeyspaceError> {
        match self.entries.values.get(key) {
            Some(present) if **present != expected => return Ok(Arc::clone(present)),
            None if !expected.is_empty() => return Ok(Arc::new(expected)),
            _ => {}
        }
        self.store(key, desired)?;
        self.written(key, answers);
        Ok(self.get(key))
    }

    fn append(&mut self, key: &[u8], value: Vec<u8>, answers: &mut Answers<'_>) -> Result<(), KeyspaceError> {
        let Some(present) = self.entries.values.get_mut(key) else { return self.set(key, value, answers) };
        self.memory.extend(key, value.len(), &self.waiters)?;
        self.detached.let_go(present);
        Arc::make_mut(present).extend_from_slice(&value);
        self.written(key, answers);
        Ok(())
    }

    /// Adds to the number of a key and wakes no client.
    fn count(&mut self, key: &[u8], delta: i64) -> Result<i64, KeyspaceError> {
        let Some(present) = self.entries.values.get_mut(key) else {
            self.insert(key, delta.to_string().into_bytes())?;
            return Ok(delta);
        };
        let number = number::parse(present)
            .map_err(|source| KeyspaceError::NotANumber { key: key.to_vec(), source })?;
        let sum = number.wrapping_add(delta);
        let text = sum.to_string().into_bytes();
        // A counter grows by 19 bytes at most, far less than its entry: it is not refused where nothing else fits.
        self.memory.used = self.memory.used - present.len() as u64 + text.len() as u64;
        self.detached.replace(present, text);
        Ok(sum)
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        let removed = self.entries.values.remove(key);
        if let Some(value) = &removed {
            self.detached.let_go(value);
            self.memory.shrink(key.len() + value.len());
        }
        removed.is_some()
    }

    fn push(&mut self, key: Vec<u8>, value: Vec<u8>, answers: &mut Answers<'_>) -> Result<(), KeyspaceError> {
        let length = key.len() + value.len();
        self.memory.grow(&key, length, &self.waiters)?;
        let released = self.waiters.pushed(&key);
        let queue = self.entries.queues.entry(Key::from(key)).or_default();
        queue.used += length as u64 + OVERHEAD;
        queue.values.push_back(Arc::new(value));
        answers.release(released);
        Ok(())
    }

    /// The length before the pop, and the value; a queue that becomes empty is forgotten.
    fn pop(&mut self, key: &[u8]) -> Option<(i64, Value)> {
        let Entry::Occupied(mut queue) = self.entries.queues.entry(Key::from(key)) else { return None };
        let length = i64::try_from(queue.get().values.len()).unwrap_or(i64::MAX);
        let value = queue.get_mut().values.pop_front()?;
        queue.get_mut().used -= (key.len() + value.len()) as u64 + OVERHEAD;
        if queue.get().values.is_empty() {
            queue.remove();
        }
        self.memory.shrink(key.len() + value.len());
        self.detached.hand_over(&value);
        Some((length, value))
    }

    fn wait(&mut self, keys: &[Vec<u8>], answers: &mut Answers<'_>) -> Result<(), KeyspaceError> {
        let absent: Vec<&[u8]> = keys.iter().map(Vec::as_slice).filter(|key| !self.is_present(key)).collect();
        if absent.is_empty() {
            answers.answer(Reply::Arrived);
            return Ok(());
        }
        self.admit_waiter(answers.client, &absent)?;
        self.waiters.wait(answers.client, &absent);
        Ok(())
    }

    fn barrier(
        &mut self,
        key: &[u8],
        world_size: i64,
        answers: &mut Answers<'_>,
    ) -> Result<(), KeyspaceError> {
        let sum = self.count(key, 1)?;
        answers.release(self.waiters.appeared(key));
        if sum >= world_size {
            answers.release(self.waiters.opened(key));
            answers.answer(Reply::Arrived);
            return Ok(());
        }
        self.admit_waiter(answers.client, &[key])?;
        self.waiters.wait_at_barrier(answers.client, key);
        Ok(())
    }

    fn admit_waiter(&self, client: ClientId, keys: &[&[u8]]) -> Result<(), KeyspaceError> {
        if self.waiters.is_waiting(client) {
            return Err(KeyspaceError::AlreadyWaiting);
        }
        // All keys of one request are of the same client: the first one says whose reserve it may use.
        let first = keys.first().copied().unwrap_or_default();
        self.memory.admit(first, waiters::cost(keys), &self.waiters)
    }
}

/// Takes the first entry whose key begins with `prefix`.
fn take_first<T>(entries: &mut BTreeMap<Key, T>, prefix: &[u8]) -> Option<(Key, T)> {
    let (key, _) = entries.range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded)).next()?;
    if !key.starts_with(prefix) {
        return None;
    }
    let key = Key::clone(key);
    entries.remove_entry(&key)
}

fn number(count: usize) -> Reply {
    Reply::Number(i64::try_from(count).unwrap_or(i64::MAX))
}
