//! The connection to the store: reaching it, losing it, and reaching it again.
//!
//! It owns the client, the heartbeats and the time since the store last answered. `attempt` makes a connection; the
//! phases of the rendezvous use it and report its errors here.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clocks for its own limits")]

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use crate::rendezvous::RendezvousEvent;
use crate::rendezvous::address::{self, AddressFacts, AddressReason};
use crate::rendezvous::c10d::{C10dBackend, StoreChange, StoreFailure};
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::port_owner::PortOwner;
use crate::rendezvous::unreached::WaitingLines;
use crate::store::StoreServer;
use crate::store::client::{ClientError, ClientSettings, answer_limit};
use rankrun_core::rendezvous::descriptor::Mismatch;
use rankrun_core::rendezvous::keys::RoundKeys;
use rankrun_core::rendezvous::round::LocalNode;
use rankrun_core::rendezvous::state::Node;
use rankrun_core::rendezvous::{LossRole, LostNode, NodeName};

use super::attempt::{AddressSource, AttemptResult, AttemptSetup, ConnectAttempts};
use super::heartbeat::{HeartbeatConfig, HeartbeatSender};
use super::opening::interfaces;
use super::refusals::Refusals;
use super::rendezvous_task::{RendezvousTask, random};
use super::static_start::StaticProgress;
use super::unreached::LOST_LINE;

/// A connection on which nothing is acknowledged for so long is lost, unless the lease is longer. No call waits for
/// that.
const SILENCE: Duration = Duration::from_secs(15);
/// The pause before another attempt to connect.
const RETRY: Duration = Duration::from_millis(20);
/// An attempt has at least this time before the store is given up.
const FIRST_CHECK: Duration = Duration::from_millis(200);
/// Number of departed clients that are remembered.
const MAX_DEPARTED: usize = 4096;
/// A lease of this number of round trips leaves time to send a lost packet again.
const SAFE_ROUND_TRIPS: u32 = 4;

/// What is known of the store and of the way to it.
#[derive(Debug)]
pub(super) struct ConnectionState {
    /// Since when this node tries to connect.
    pub(super) since: Instant,
    /// Identity of the store that this node has joined.
    pub(super) identity: Option<String>,
    /// Why there is no connection.
    pub(super) failure: Option<ConnectFailure>,
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) attempts: ConnectAttempts,
    /// The user knows that the round trip is long for the lease.
    is_far_reported: bool,
    pub(super) next_line: Instant,
    /// The lines for the user while this node waits for a first connection.
    pub(super) waiting: WaitingLines,
    /// The process that listens on the endpoint's port of this machine, once it was looked for.
    pub(super) owner: Option<Option<PortOwner>>,
    /// Connections that the store has closed on a request.
    pub(super) refusals: Refusals,
    /// Earliest time of the next attempt.
    pub(super) retry_at: Instant,
    /// Time of the last connection.
    connected_at: Instant,
}

/// Why an attempt to connect failed.
#[derive(Debug)]
pub(super) enum ConnectFailure {
    /// The store was not reached.
    Store(ClientError),
    /// The name of its host was not found.
    Name(io::Error),
}

impl ConnectionState {
    pub(super) fn new(now: Instant, lease: Duration) -> Self {
        Self {
            since: now,
            identity: None,
            failure: None,
            addresses: Vec::new(),
            attempts: ConnectAttempts::new(lease),
            is_far_reported: false,
            next_line: now,
            waiting: WaitingLines::default(),
            owner: None,
            refusals: Refusals::default(),
            retry_at: now,
            connected_at: now,
        }
    }

    /// Whether the machine of the endpoint answers, and has no store.
    pub(super) fn is_refused(&self) -> bool {
        matches!(&self.failure, Some(ConnectFailure::Store(ClientError::Io(error)))
            if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset))
    }
}

impl RendezvousTask {
    /// Time limit of an answer: a missing answer must be noticed early enough to connect again before the lease
    /// deadline.
    fn answer(&self) -> Duration {
        self.plan.times.lease * 3 / 10
    }

    /// From the last acknowledged heartbeat until a store that refuses is given up: before the lease deadline, so that
    /// the user reads the reason.
    pub(super) fn refused_after(&self) -> Duration {
        self.plan.times.lease / 2
    }

    /// Records that the store has answered a heartbeat.
    pub(super) fn on_heartbeat_acknowledged(&mut self, sent: Instant) {
        let lease = self.plan.times.lease;
        self.own_heartbeat = Some(sent);
        if sent >= self.connection.connected_at + self.plan.tick() {
            self.connection.refusals.clear();
        }
        if matches!(self.static_progress, StaticProgress::Mixed(_)) {
            // There is no other round with which the others could go on.
            self.lease.acknowledge(sent, lease);
        } else {
            self.lease.begin(sent, lease);
        }
    }

    /// Starts the heartbeat task, if other nodes can read the heartbeats.
    pub(super) fn start_heartbeats(&mut self) {
        let (Some(me), Some(identity)) = (&self.me, &self.connection.identity) else { return };
        if self.heartbeats.is_some() || self.plan.nodes.max.get() == 1 {
            return;
        }
        let config = HeartbeatConfig {
            settings: self.client_settings(),
            keys: self.plan.keys.clone(),
            identity: identity.clone(),
            node: me.node.clone(),
            period: self.plan.tick(),
            lease: self.plan.times.lease,
            lease_state: self.lease.clone(),
        };
        self.heartbeats = Some(HeartbeatSender::start(config, self.connection.addresses.clone()));
    }

    pub(super) fn client_settings(&self) -> ClientSettings {
        // This machine's kernel may end a connection on which all its packets were lost: this node is dead by then.
        let silence = self.plan.times.lease.max(SILENCE);
        let answer = answer_limit(self.answer(), self.connection.attempts.round_trip());
        ClientSettings { nonce: self.plan.nonce, answer, silence }
    }

    /// Gives up the connection after an error; returns the time of the next step.
    pub(super) async fn on_store_error(&mut self, error: StoreFailure) -> Instant {
        let now = Instant::now();
        let error = match error {
            StoreFailure::NotAState { key, source } => {
                self.fail(RendezvousError::NotAState { key, source });
                return now;
            }
            StoreFailure::Store(error) => error,
        };
        tracing::debug!(%error, "the connection to the rendezvous store is lost");
        // A success that has arrived before the end of the connection still counts.
        if let Some(backend) = &mut self.backend
            && let Ok(Some(StoreChange::Success(round))) = backend.poll_change().await
        {
            self.all_succeeded(round);
        }
        self.record_lost_connection(&error, now);
        self.phase.drop_exchange();
        // Kept until there is another: its end would tell the host of the store that this node has gone.
        self.previous_connection = self.backend.take().or(self.previous_connection.take());
        self.connection.since = now;
        self.connection.failure = Some(ConnectFailure::Store(error));
        self.connection.next_line = now + LOST_LINE;
        self.give_up_refused(now).await;
        // At once: the store itself may be there.
        self.connection.retry_at.max(now)
    }

    /// Without a connection: begins an attempt if none runs, tells the user, or gives up. Returns the time of the next
    /// step.
    pub(super) async fn connect_step(&mut self, now: Instant) -> Instant {
        if now < self.connection.retry_at {
            return self.connection.retry_at;
        }
        // A failure while the store is out of reach is caused by that.
        let node = NodeName::of_host(self.plan.endpoint.host.clone());
        self.answer_lost_node(Some(LostNode { node, role: LossRole::CausesFailureHere }));
        if self.connection.attempts.is_running() {
            return self.check_unreached(now).await;
        }
        let Some(addresses) = self.address_source(now) else {
            let next_check = self.check_unreached(now).await;
            return self.connection.attempts.resolve_at().map_or(next_check, |at| at.min(next_check));
        };
        let asks_program = self.connection.identity.is_none();
        if asks_program {
            let waited = now.saturating_duration_since(self.connection.since);
            let left = self.plan.times.connect.saturating_sub(waited);
            self.connection.attempts.fit_first_attempt(left);
        }
        let (settings, keys) = (self.client_settings(), self.plan.keys.clone());
        self.connection.attempts.begin(AttemptSetup { addresses, settings, keys, asks_program });
        now + FIRST_CHECK
    }

    /// How the next attempt finds the store; `None` if a name server that has not answered is to be asked later.
    fn address_source(&mut self, now: Instant) -> Option<AddressSource> {
        let known = self.connection.addresses.clone();
        let endpoint = self.plan.endpoint.clone();
        match self.own_store() {
            Some(store) if known.is_empty() => Some(AddressSource::Own(endpoint, store)),
            None if self.connection.attempts.asks_name_server(now) => Some(AddressSource::Name {
                endpoint,
                iface: self.plan.network.iface.clone(),
                known,
                pending: self.connection.attempts.pending_lookup(),
            }),
            _ => (!known.is_empty()).then_some(AddressSource::Known(known)),
        }
    }

    /// Takes the result of an attempt.
    pub(super) async fn on_attempt_result(&mut self, result: AttemptResult) {
        let AttemptResult { addresses, outcome } = result;
        if !addresses.is_empty() {
            self.connection.addresses = addresses;
        }
        let connected = match outcome {
            Ok(backend) => self.on_connected(backend).await.map_err(ConnectFailure::Store),
            Err(failure) => Err(failure),
        };
        let now = Instant::now();
        match connected {
            Ok(()) => {
                self.connection.failure = None;
                (self.next_read, self.next_tick, self.connection.connected_at) = (now, now, now);
            }
            Err(failure) => {
                self.connection.failure = Some(failure);
                self.connection.retry_at = self.connection.retry_at.max(now + RETRY);
                if !self.is_over() {
                    self.check_unreached(now).await;
                }
            }
        }
    }

    async fn on_connected(&mut self, mut backend: C10dBackend) -> Result<(), ClientError> {
        let reached = backend.peer_addr()?;
        self.connection.addresses.sort_by_key(|address| *address != reached);
        self.check_identity(&mut backend).await?;
        if self.store.is_some() {
            backend.mark_watched().await?;
        }
        if self.is_over() {
            return Ok(());
        }
        if self.me.is_none() {
            let ip = backend.local_ip()?;
            match self.local_node(ip).await {
                Ok(me) => self.me = Some(me),
                Err(error) => self.fail(error),
            }
        }
        if let (StaticProgress::Mixed(_), Some(job)) = (&self.static_progress, &self.plan.static_job) {
            backend.set_round_keys(RoundKeys::first_of_static(&job.run_id));
        }
        if let Some(heartbeats) = &self.heartbeats {
            heartbeats.set_addresses(&self.connection.addresses);
        }
        (self.backend, self.previous_connection) = (Some(backend), None);
        self.report_round_trip();
        Ok(())
    }

    /// Tells the user once if the lease is only a few round trips long: it then loses nodes that live.
    fn report_round_trip(&mut self) {
        let (round_trip, lease) = (self.connection.attempts.round_trip(), self.plan.times.lease);
        self.contact.set_round_trip(round_trip);
        if self.plan.is_alone() || round_trip * SAFE_ROUND_TRIPS <= lease || self.connection.is_far_reported {
            return;
        }
        self.connection.is_far_reported = true;
        let (millis, endpoint) = (round_trip.as_millis(), &self.plan.endpoint);
        self.events.send(RendezvousEvent::Note(format!(
            "a round trip to the rendezvous store at `{endpoint}` takes {millis}ms, and the lease is {}: a lost packet can \
             cost this node its place; a longer `--lease`, the same on every node, prevents it",
            humantime::format_duration(lease)
        )));
    }

    /// Ends the rendezvous if this is not the store that this node has joined.
    async fn check_identity(&mut self, backend: &mut C10dBackend) -> Result<(), ClientError> {
        let Some(joined) = self.connection.identity.clone() else {
            let fresh = format!("{:016x}{:016x}", random(), random());
            self.connection.identity = Some(backend.identity(&fresh).await?);
            return Ok(());
        };
        let found = backend.known_identity().await?;
        if found != joined {
            let endpoint = self.plan.endpoint.to_string();
            self.fail(RendezvousError::AnotherStore { endpoint, joined, found });
        }
        Ok(())
    }

    /// Chooses the address that this node publishes, and its name in the state.
    async fn local_node(&mut self, connection: std::net::IpAddr) -> Result<LocalNode, RendezvousError> {
        /// torch counts the rendezvous of a process.
        static COUNT: LazyLock<AtomicI64> = LazyLock::new(|| AtomicI64::new(first_id(random())));
        let interfaces = interfaces()?;
        let known = AddressFacts {
            local_addr: self.plan.local_addr.as_deref(),
            iface: self.plan.network.iface.as_deref(),
            interfaces: &interfaces,
            connection,
            is_alone: self.plan.is_alone(),
            is_on_this_machine: self.plan.is_on_this_machine(),
        };
        let chosen = address::choose_published_host(&known)?;
        if let Some(warning) = address::unknown_address_warning(&known) {
            self.events.send(RendezvousEvent::Note(warning));
        }
        if !self.plan.is_alone() {
            let host = match self.own_store() {
                Some(store) => format!("this node hosts the rendezvous store at `{store}`"),
                None => format!("the rendezvous store is at `{}`", self.plan.endpoint),
            };
            self.events.send(RendezvousEvent::Note(format!("{host}; {chosen}")));
        }
        self.interface = address::workers_interface(&known, &chosen);
        if let Some(hint) =
            self.interface.as_deref().and_then(|own| address::several_networks_hint(&interfaces, own))
            && self.plan.network.nccl_chooses
        {
            self.events.send(RendezvousEvent::Note(hint));
        }
        let addr = chosen.addr;
        let is_of_interface = matches!(chosen.why, AddressReason::OfGivenInterface { .. });
        let only = is_of_interface.then(|| addr.parse().ok()).flatten();
        self.training_store.lock().await.set_address(&addr, only);
        let (pid, local_id) = (i64::from(std::process::id()), COUNT.fetch_add(1, Ordering::Relaxed));
        Ok(LocalNode {
            node: Node { addr, pid, local_id },
            nodes: self.plan.nodes,
            node_rank: self.plan.node_rank,
            times: self.plan.times,
        })
    }

    /// An agent in the state does not belong to this job. The agent that came later ends.
    pub(super) fn on_mismatch(&mut self, node: &Node, mismatch: Mismatch) {
        let is_listed = |me: &LocalNode| self.backend.as_ref().is_some_and(|it| it.state().lists(&me.node));
        if self.phase.joining().is_some() && !self.me.as_ref().is_some_and(is_listed) {
            let node = Box::new(self.peers.name(node));
            self.fail(RendezvousError::Mismatch { node, mismatch });
        }
    }

    /// As the host of the store: declares the nodes dead whose connections have closed, whatever their lease.
    pub(super) async fn take_departed(&mut self, now: Instant) -> Result<(), StoreFailure> {
        // Departures are taken once: before this node's own connection it could not free a rank.
        let Some(store) = self.store.clone().filter(|_| self.backend.is_some()) else { return Ok(()) };
        if !std::mem::take(&mut self.has_departures) {
            return Ok(());
        }
        // A store that does not answer is this node's own, and about to end.
        let departed = store.departed().await.unwrap_or_default();
        if departed.is_empty() {
            return Ok(());
        }
        self.departed.extend(&departed);
        while self.departed.len() > MAX_DEPARTED {
            self.departed.pop_first();
        }
        if departed.iter().any(|nonce| self.peers.agent_of_nonce(*nonce).is_none()) {
            // It may be in the state since the last read: it wrote that before it departed.
            self.read_store().await?;
        }
        self.mark_departed(&store, now).await;
        self.free_ranks(&departed).await
    }

    /// Declares departed nodes dead. A node that was not known when it departed may come into the state later: the host
    /// of a static job writes the first state for all nodes.
    pub(super) async fn mark_departed(&mut self, store: &Arc<StoreServer>, now: Instant) {
        let is_known = |nonce: &&u32| self.peers.agent_of_nonce(**nonce).is_some();
        let known: Vec<u32> = self.departed.iter().filter(is_known).copied().collect();
        if known.is_empty() {
            return;
        }
        let connected = store.connected().await.unwrap_or_default();
        for nonce in known {
            self.departed.remove(&nonce);
            let node = self.peers.agent_of_nonce(nonce).filter(|_| !connected.contains(&nonce)).cloned();
            if let Some(node) = node {
                self.peers.failure_detector.mark_disconnected(&node);
                self.next_read = now;
            }
        }
    }
}

/// The first counter of a process. A container that is started again may have the same address and pid as before, and
/// the others have not yet declared that agent dead. torch compares the numbers, which must fit into 32 bits.
const fn first_id(random: u64) -> i64 {
    /// So many rendezvous of one process still fit.
    const ROOM: i64 = 1 << 16;
    (random & 0x7fff_ffff).cast_signed() - if random & 0x7fff_0000 == 0x7fff_0000 { ROOM } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarted_process_has_another_node_id() {
        assert_ne!(first_id(random()) >> 8, first_id(random()) >> 8, "one in eight million");
        for random in [0, 1, 0x7fff_ffff, u64::MAX, 0x8000_0000, 0x7ffe_ffff] {
            let first = first_id(random);
            assert!((0..=i64::from(i32::MAX) - (1 << 16)).contains(&first), "{first}");
        }
    }
}
