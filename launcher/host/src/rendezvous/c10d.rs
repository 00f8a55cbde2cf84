//! The c10d backend: reads and writes the shared state and the keys around it, over two connections to the rendezvous
//! store. One connection is for requests. The other waits for change notifications, so that a change by another rankrun
//! agent is seen at once.
//!
//! After a write that other agents need, the writer sends a notification: it increments `version` and sets the key with
//! that number. An observer reads version and everything else in one request, which the store answers atomically. Then
//! it waits for the key of the next version. So no notification between read and wait is lost.

mod messages;

pub(crate) use messages::FailureAuthor;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::store::client::{Client, ClientError, ClientSettings, UnansweredRequest};
use rankrun_core::rendezvous::FailureNote;
use rankrun_core::rendezvous::keys::{RendezvousKeys, RoundKeys};
use rankrun_core::rendezvous::note::ClosingNote;
use rankrun_core::rendezvous::pickle;
use rankrun_core::rendezvous::pickle::StateParseError;
use rankrun_core::rendezvous::state::{Node, RendezvousState};
use rankrun_core::rendezvous::text::escape_bytes_for_terminal;

pub(crate) use messages::NodeDescription;

/// torch's value for "no state yet" (contract 5.2).
const SENTINEL: &[u8] = b"Y2FuaW1hZGFt";

/// Number of notification keys that are kept for late observers.
const MAX_CHANGE_KEYS: i64 = 64;

/// Longest store identity that is accepted, in bytes.
const MAX_IDENTITY: usize = 64;

/// Why an operation on the store failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreFailure {
    /// The connection failed and cannot be used any more.
    #[error(transparent)]
    Store(#[from] ClientError),
    /// The value of the state's key is not a state.
    #[error("the value of `{key}` is not the state of a rendezvous")]
    NotAState {
        /// Key with the wrong value.
        key: String,
        /// Why the value is not a state.
        source: StateParseError,
    },
}

/// Both connections, and the state that was read last.
#[derive(Debug)]
pub(crate) struct C10dBackend {
    keys: RendezvousKeys,
    request_client: Client,
    change_notifier: Client,
    /// What the notification connection waits for.
    armed: Option<StoreChange>,
    /// torch's keys of the only round, if the job has only one.
    only: Option<RoundKeys>,
    version: i64,
    text: Vec<u8>,
    state: RendezvousState,
}

/// What the notification connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreChange {
    /// The notification of this version.
    Ring(i64),
    /// The success of all nodes in this round. It cannot be read later: a torchrun agent that hosts the store ends just
    /// after it.
    Success(u64),
}

/// What to read besides the state.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SnapshotQuery<'a> {
    /// The round of which failure and success are read.
    pub round: Option<u64>,
    /// Nodes of which the success in that round is read.
    pub done: &'a [Node],
    /// Nodes of which the heartbeat is read.
    pub heartbeats: &'a [Node],
}

/// The keys of a read over another connection to the same store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotKeys {
    pub(crate) names: Vec<String>,
    /// Start of this backend's last request: after it no values of before count.
    last_request: Instant,
}

/// The result of one read. The state itself is [`C10dBackend::state`].
#[derive(Debug, Clone, Default)]
pub(crate) struct StoreSnapshot {
    /// How the job was closed, if a closing note exists.
    pub end: Option<ClosingNote>,
    /// The first failure of the round.
    pub failure: Option<FailureNote>,
    /// Whether the workers of all nodes of the round have succeeded.
    pub all_succeeded: bool,
    /// Number of nodes that reported success with torch's counter.
    pub successes: usize,
    /// The nodes of [`SnapshotQuery::done`] with only successful workers.
    pub done: Vec<Node>,
    /// The previous round's ranks as they are stored.
    pub ranks: Vec<u8>,
    /// The heartbeat counters that exist.
    pub heartbeats: BTreeMap<Node, i64>,
}

impl C10dBackend {
    /// Connects, and creates the key of the state if it does not exist.
    ///
    /// # Errors
    /// The first connection gets no valid answer within `limit`, or the second within another `limit`.
    pub(crate) async fn connect(
        addresses: &[SocketAddr],
        settings: &ClientSettings,
        keys: RendezvousKeys,
        limit: Duration,
    ) -> Result<Self, ClientError> {
        let mut request_client = Client::connect_within(addresses, settings.clone(), limit).await?;
        let notifier = [request_client.peer_addr()?];
        let change_notifier = Client::connect_within(&notifier, settings.clone(), limit).await?;
        request_client.compare_set(keys.state(), b"", SENTINEL).await?;
        Ok(Self {
            keys,
            request_client,
            change_notifier,
            armed: None,
            only: None,
            version: 0,
            text: SENTINEL.to_vec(),
            state: RendezvousState::default(),
        })
    }

    /// Local address of the connection to the store.
    ///
    /// # Errors
    /// The connection is closed.
    pub(crate) fn local_ip(&self) -> Result<IpAddr, ClientError> {
        Ok(self.request_client.local_addr()?.ip())
    }

    /// The address at which the store was reached.
    ///
    /// # Errors
    /// The connection is closed.
    pub(crate) fn peer_addr(&self) -> Result<SocketAddr, ClientError> {
        self.request_client.peer_addr()
    }

    /// The kernel's smoothed round-trip time of the connection for requests.
    #[must_use]
    pub(crate) fn round_trip(&self) -> Duration {
        self.request_client.round_trip()
    }

    /// Returns the identity of the store. Writes `fresh` if it has none; only an agent's first connection may do that.
    ///
    /// # Errors
    /// See [`Client`].
    pub(crate) async fn identity(&mut self, fresh: &str) -> Result<String, ClientError> {
        let key = self.keys.store_identity();
        let found = self.request_client.compare_set(&key, b"", fresh.as_bytes()).await?;
        Ok(escape_bytes_for_terminal(&found, MAX_IDENTITY))
    }

    /// The identity of the store; empty if it has none.
    ///
    /// # Errors
    /// See [`Client`].
    pub(crate) async fn known_identity(&mut self) -> Result<String, ClientError> {
        known_identity(&mut self.request_client, &self.keys).await
    }

    /// The state as of the last read or write.
    #[must_use]
    pub(crate) const fn state(&self) -> &RendezvousState {
        &self.state
    }

    /// The keys of this job.
    #[cfg(test)]
    pub(crate) const fn keys(&self) -> &RendezvousKeys {
        &self.keys
    }

    /// Sets that the job has only one round, with these torch keys.
    pub(crate) fn set_round_keys(&mut self, only: RoundKeys) {
        self.only = Some(only);
    }

    /// The connection for requests, for direct calls.
    pub(crate) const fn request_client(&mut self) -> &mut Client {
        &mut self.request_client
    }

    /// The oldest unanswered request on either connection.
    #[must_use]
    pub(crate) fn unanswered(&self) -> Option<&UnansweredRequest> {
        self.request_client.unanswered().or_else(|| self.change_notifier.unanswered())
    }

    /// Reads the store in one request.
    ///
    /// # Errors
    /// The connection is lost, or the value is not a state.
    pub(crate) async fn read_snapshot(
        &mut self,
        wants: &SnapshotQuery<'_>,
    ) -> Result<StoreSnapshot, StoreFailure> {
        let names = self.snapshot_names(wants);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let values = self.request_client.multi_get(&names).await?;
        self.take_values(wants, values)
    }

    /// What [`Self::read_snapshot`] reads, for another connection.
    #[must_use]
    pub(crate) fn snapshot_keys(&self, wants: &SnapshotQuery<'_>) -> SnapshotKeys {
        SnapshotKeys { names: self.snapshot_names(wants), last_request: self.request_client.last_call() }
    }

    fn snapshot_names(&self, wants: &SnapshotQuery<'_>) -> Vec<String> {
        let keys = &self.keys;
        let mut names = vec![keys.version(), keys.state().to_owned(), keys.end(), keys.ranks()];
        if let Some(round) = wants.round {
            let torch = self.torch_keys(round);
            names.extend([keys.failure(round), torch.last_member(), torch.num_members()]);
            names.extend(wants.done.iter().map(|node| keys.succeeded(round, node)));
        }
        names.extend(wants.heartbeats.iter().map(|node| keys.heartbeat(node)));
        names
    }

    /// Takes the values of all keys of a read: no request may have been made since its [`Self::snapshot_keys`].
    ///
    /// # Errors
    /// The value is not a state.
    pub(crate) fn take_values(
        &mut self,
        wants: &SnapshotQuery<'_>,
        values: Vec<Vec<u8>>,
    ) -> Result<StoreSnapshot, StoreFailure> {
        let mut values = values.into_iter();
        let mut next = || values.next().unwrap_or_default();
        self.version = parse_i64(&next()).unwrap_or(0);
        let text = next();
        let mut look =
            StoreSnapshot { end: ClosingNote::from_json(&next()), ranks: next(), ..StoreSnapshot::default() };
        if wants.round.is_some() {
            look.failure = FailureNote::from_json(&next());
            look.all_succeeded = !next().is_empty();
            look.successes = parse_i64(&next()).and_then(|nodes| usize::try_from(nodes).ok()).unwrap_or(0);
            look.done = wants.done.iter().filter(|_| !next().is_empty()).cloned().collect();
        }
        look.heartbeats =
            wants.heartbeats.iter().filter_map(|node| Some((node.clone(), parse_i64(&next())?))).collect();
        self.store_state_text(text)?;
        Ok(look)
    }

    /// Parses a text that was read, and stores it as the last state.
    fn store_state_text(&mut self, text: Vec<u8>) -> Result<(), StoreFailure> {
        if text == self.text {
            return Ok(());
        }
        self.state = match &text[..] {
            // The key is missing if the keyspace belongs to another store. Its identity reveals that.
            b"" | SENTINEL => RendezvousState::default(),
            text => pickle::decode(text)
                .map_err(|source| StoreFailure::NotAState { key: self.keys.state().to_owned(), source })?,
        };
        self.text = text;
        Ok(())
    }

    /// Writes the state if it has not changed since the last read, and returns whether it did. In both cases the last
    /// state is then the store's.
    ///
    /// # Errors
    /// The connection is lost, or the value is not a state.
    pub(crate) async fn write(
        &mut self,
        state: &RendezvousState,
        notifies: bool,
    ) -> Result<bool, StoreFailure> {
        let text = pickle::encode(state);
        let found = self.request_client.compare_set(self.keys.state(), &self.text, &text).await?;
        if found != text {
            self.store_state_text(found)?;
            return Ok(false);
        }
        self.text = text;
        self.state.clone_from(state);
        if notifies {
            self.notify_change().await?;
        }
        Ok(true)
    }

    /// Notifies the other rankrun agents of a change.
    ///
    /// # Errors
    /// See [`Client`].
    pub(crate) async fn notify_change(&mut self) -> Result<(), ClientError> {
        let version = self.request_client.add(&self.keys.version(), 1).await?;
        // Our own notification is skipped, unless another agent sent one before it.
        if version == self.version.wrapping_add(1) {
            self.version = version;
        }
        self.request_client.set(&self.keys.change_key(version), b"1").await?;
        if version > MAX_CHANGE_KEYS {
            self.request_client.delete(&self.keys.change_key(version - MAX_CHANGE_KEYS)).await?;
        }
        Ok(())
    }

    /// Waits for the first notification after the last read, or for the success of the given round.
    ///
    /// # Errors
    /// See [`Client`].
    pub(crate) async fn subscribe_changes(&mut self, success_of: Option<u64>) -> Result<(), ClientError> {
        let next = success_of.map_or(StoreChange::Ring(self.version.wrapping_add(1)), StoreChange::Success);
        if self.armed != Some(next) {
            if self.armed.take().is_some() {
                self.change_notifier.end_wait(true).await?;
            }
            let key = match next {
                StoreChange::Ring(version) => self.keys.change_key(version),
                StoreChange::Success(round) => self.torch_keys(round).last_member(),
            };
            self.change_notifier.begin_wait(&[&key]).await?;
            self.armed = Some(next);
        }
        Ok(())
    }

    /// Returns what has arrived since [`Self::subscribe_changes`], if anything.
    ///
    /// # Errors
    /// See [`Client`].
    pub(crate) async fn poll_change(&mut self) -> Result<Option<StoreChange>, ClientError> {
        let Some(awaited) = self.armed else { return Ok(None) };
        if !self.change_notifier.end_wait(false).await? {
            return Ok(None);
        }
        self.armed = None;
        Ok(Some(awaited))
    }

    /// Returns when [`Self::poll_change`] has something to do. May be dropped at any time.
    pub(crate) async fn changed(&self) {
        match self.armed {
            Some(_) => self.change_notifier.readable().await,
            None => std::future::pending().await,
        }
    }

    fn torch_keys(&self, round: u64) -> RoundKeys {
        self.only.clone().unwrap_or_else(|| self.keys.round(round))
    }
}

/// The identity of the store; empty if it has none.
///
/// # Errors
/// See [`Client`].
pub(crate) async fn known_identity(
    client: &mut Client,
    keys: &RendezvousKeys,
) -> Result<String, ClientError> {
    Ok(escape_bytes_for_terminal(&client.get(&keys.store_identity()).await?, MAX_IDENTITY))
}

/// Parses a counter as the store keeps it.
fn parse_i64(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}
