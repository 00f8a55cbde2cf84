//! To the store, and back to it: connecting, and when a store is given up.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clocks for its own limits")]

use std::cell::OnceCell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::rendezvous::address::{self, AddressFacts, AddressReason};
use crate::rendezvous::c10d::{C10dBackend, StoreChange, StoreFailure};
use crate::rendezvous::descriptor::Mismatch;
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::host::own_addresses;
use crate::rendezvous::keys::RoundKeys;
use crate::rendezvous::port_owner::PortOwner;
use crate::rendezvous::round::LocalNode;
use crate::rendezvous::state::Node;
use crate::rendezvous::unreached::WaitingLines;
use crate::rendezvous::{LossRole, LostNode, NodeName, RendezvousEnd, RendezvousEvent};
use crate::store::client::{ClientError, ClientSettings, answer_limit};

use super::attempt::Attempts;
use super::driver::{Driver, Phase, Standing, interfaces, random};
use super::first::Begun;
use super::pulse::{Heart, Pulse};
use super::refusals::Refusals;
use super::unreached::LOST_LINE;

/// A connection on which nothing is acknowledged for so long is lost, unless the lease is longer. No call waits for that.
const SILENCE: Duration = Duration::from_secs(15);
/// How long a name server may take, and how often it is asked again.
const RESOLVE: Duration = Duration::from_secs(2);
/// Before it is tried again to connect.
const RETRY: Duration = Duration::from_millis(20);
/// A lease of so many round trips leaves time to send a lost packet again.
const SAFE_ROUND_TRIPS: u32 = 4;
/// How we stand with the store.
#[derive(Debug)]
pub(super) struct Bond {
    /// Since when we try to connect.
    pub(super) since: Instant,
    /// Which store it is that we have joined.
    pub(super) identity: Option<String>,
    /// Why there is no connection.
    pub(super) failure: Option<Failure>,
    addresses: Vec<SocketAddr>,
    attempts: Attempts,
    /// People know that the round trip is long for the lease.
    is_far_told: bool,
    resolve_at: Instant,
    pub(super) next_line: Instant,
    /// What people were told while this node waits for a first connection.
    pub(super) waiting: WaitingLines,
    /// The process that listens on the endpoint's port of this machine, once it was looked for.
    pub(super) owner: OnceCell<Option<PortOwner>>,
    /// Connections that the store has closed on a request.
    pub(super) refusals: Refusals,
    /// Not before then it is tried to connect.
    pub(super) retry_at: Instant,
    /// When the last connection was made.
    connected_at: Instant,
}

#[derive(Debug)]
pub(super) enum Failure {
    Store(ClientError),
    Name(io::Error),
}

impl Bond {
    pub(super) fn new(now: Instant, lease: Duration) -> Self {
        Self {
            since: now,
            identity: None,
            failure: None,
            addresses: Vec::new(),
            attempts: Attempts::new(lease),
            is_far_told: false,
            resolve_at: now,
            next_line: now,
            waiting: WaitingLines::default(),
            owner: OnceCell::new(),
            refusals: Refusals::default(),
            retry_at: now,
            connected_at: now,
        }
    }

    /// Where the store was found.
    pub(super) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Whether what answers at the endpoint is a machine without a store.
    pub(super) fn is_refused(&self) -> bool {
        matches!(&self.failure, Some(Failure::Store(ClientError::Io(error)))
            if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset))
    }
}

impl Driver {
    /// How long the store may take to answer, so that an answer that does not come is known early enough before the fence to
    /// connect anew.
    fn answer(&self) -> Duration {
        self.plan.times.lease * 3 / 10
    }

    /// From the last sign of life that was acknowledged until a store that is refused is given up: before the fence, so
    /// that people are told what it is.
    pub(super) fn refused_after(&self) -> Duration {
        self.plan.times.lease / 2
    }

    /// The store has answered a sign of life that was sent then.
    pub(super) fn acknowledged(&mut self, sent: Instant) {
        let lease = self.plan.times.lease;
        if sent >= self.bond.connected_at + self.plan.tick() {
            self.bond.refusals.clear();
        }
        if matches!(self.begun, Begun::Mixed(_)) {
            // There is no other round that anybody would go on with.
            self.fencepost.acknowledge(sent, lease);
        } else {
            self.fencepost.put_up(sent, lease);
        }
    }

    /// Gives signs of life from now on, whatever the calls wait for, where there may be somebody to see them.
    pub(super) fn start_pulse(&mut self) {
        let (Some(me), Some(identity)) = (&self.me, &self.bond.identity) else { return };
        if self.pulse.is_some() || self.plan.nodes.max.get() == 1 {
            return;
        }
        let heart = Heart {
            addresses: self.bond.addresses.clone(),
            settings: self.client_settings(),
            keys: self.plan.keys.clone(),
            identity: identity.clone(),
            node: me.node.clone(),
            tick: self.plan.tick(),
            lease: self.plan.times.lease,
            fencepost: self.fencepost.clone(),
        };
        match Pulse::start(heart) {
            Ok(pulse) => self.pulse = Some(pulse),
            // Those between the calls go on.
            Err(error) => tracing::warn!(%error, "there is no thread for signs of life of its own"),
        }
    }

    pub(super) fn client_settings(&self) -> ClientSettings {
        // Our kernel may end a connection on which all its questions were lost: then we are dead in any case.
        let silence = self.plan.times.lease.max(SILENCE);
        let answer = answer_limit(self.answer(), self.bond.attempts.round_trip());
        ClientSettings { nonce: self.plan.nonce, answer, silence }
    }

    /// The connection, or what came over it, is of no use.
    pub(super) fn stumble(&mut self, trouble: StoreFailure) -> Instant {
        let now = Instant::now();
        match trouble {
            StoreFailure::NotAState { key, source } => {
                self.over(RendezvousEnd::Failed(RendezvousError::NotAState { key, source }));
            }
            StoreFailure::Store(error) => {
                tracing::debug!(%error, "the connection to the rendezvous store is lost");
                // What has arrived before the end still counts.
                if let Some(Ok(Some(StoreChange::Success(round)))) =
                    self.backend.as_mut().map(C10dBackend::poll_change)
                {
                    self.all_succeeded(round);
                }
                self.note_lost_connection(&error, now);
                // Kept until there is another: its end would tell the host of the store that we are gone.
                self.worn = self.backend.take().or(self.worn.take());
                self.bond.since = now;
                self.bond.failure = Some(Failure::Store(error));
                self.bond.next_line = now + LOST_LINE;
                self.give_up_refused(now);
                // A first try at once: the connection alone may have been lost.
                return self.bond.retry_at.max(now);
            }
        }
        now
    }

    /// Tries to connect; when to try again.
    pub(super) fn reach(&mut self, now: Instant) -> Instant {
        if now < self.bond.retry_at {
            return self.bond.retry_at;
        }
        // Whoever fails while the store is not reached fails of that.
        let node = NodeName::of_host(self.plan.endpoint.host.clone());
        self.answer_lost_node(Some(LostNode { node, role: LossRole::CausesFailureHere }));
        let retry = match self.connect(now) {
            Ok(true) => {
                self.bond.failure = None;
                let now = Instant::now();
                (self.next_look, self.next_tick, self.bond.connected_at) = (now, now, now);
                return now;
            }
            // The try itself waits.
            Ok(false) => Duration::ZERO,
            Err(failure) => {
                self.bond.failure = Some(failure);
                RETRY
            }
        };
        let now = Instant::now();
        if let Some(error) = self.gives_up(now) {
            match &self.phase {
                // Nobody needs the store any more.
                Phase::Member(membership) if membership.is_over() => self.standing = Standing::Over,
                _ => self.over(RendezvousEnd::Failed(error)),
            }
        } else if !self.is_over() {
            self.say_unreached(now);
        }
        now + retry
    }

    /// Whether there is a connection; `false` where the try goes on.
    fn connect(&mut self, now: Instant) -> Result<bool, Failure> {
        if !self.bond.attempts.is_running() {
            let (addresses, settings) = (self.addresses(now)?, self.client_settings());
            let asks = self.bond.identity.is_none();
            if asks {
                let waited = now.saturating_duration_since(self.bond.since);
                self.bond.attempts.fit_first_try(self.plan.times.connect.saturating_sub(waited));
            }
            let begun = self.bond.attempts.begin(addresses, settings, self.plan.keys.clone(), asks);
            begun.map_err(Failure::Store)?;
        }
        let Some(outcome) = self.bond.attempts.wait() else { return Ok(false) };
        let mut backend = outcome.map_err(Failure::Store)?;
        let reached = backend.peer_addr().map_err(Failure::Store)?;
        self.bond.addresses.sort_by_key(|address| *address != reached);
        self.recognise(&mut backend).map_err(Failure::Store)?;
        if self.store.is_some() {
            backend.mark_watched().map_err(Failure::Store)?;
        }
        if self.is_over() {
            return Ok(true);
        }
        if self.me.is_none() {
            let ip = backend.local_ip().map_err(Failure::Store)?;
            match self.name_ourselves(ip) {
                Ok(me) => self.me = Some(me),
                Err(error) => self.over(RendezvousEnd::Failed(error)),
            }
        }
        if let (Begun::Mixed(_), Some(fixed)) = (&self.begun, &self.plan.fixed) {
            backend.set_round_keys(RoundKeys::first_of_static(&fixed.run_id));
        }
        if let Some(pulse) = &self.pulse {
            pulse.moves_to(&self.bond.addresses);
        }
        (self.backend, self.worn) = (Some(backend), None);
        self.tell_round_trip();
        Ok(true)
    }

    /// A lease of few round trips loses nodes that live: people are told once.
    fn tell_round_trip(&mut self) {
        let (round_trip, lease) = (self.bond.attempts.round_trip(), self.plan.times.lease);
        self.heard.takes(round_trip);
        if self.plan.is_alone() || round_trip * SAFE_ROUND_TRIPS <= lease || self.bond.is_far_told {
            return;
        }
        self.bond.is_far_told = true;
        let (millis, endpoint) = (round_trip.as_millis(), &self.plan.endpoint);
        self.outlet.tell(RendezvousEvent::Note(format!(
            "a round trip to the rendezvous store at `{endpoint}` takes {millis}ms, and the lease is {}: a lost packet can \
             cost this node its place; a longer `--lease`, the same on every node, prevents it",
            humantime::format_duration(lease)
        )));
    }

    /// Where the store is; a name is asked for again where it did not help.
    fn addresses(&mut self, now: Instant) -> Result<Vec<SocketAddr>, Failure> {
        if let Some(store) = self.own_store() {
            if self.bond.addresses.is_empty() {
                self.bond.addresses = own_addresses(&self.plan.endpoint, store);
            }
        } else if now >= self.bond.resolve_at {
            self.bond.resolve_at = now + RESOLVE;
            match self.plan.endpoint.resolve(RESOLVE) {
                Ok(mut addresses) => {
                    addresses.extend(self.at_named_interface(&addresses));
                    self.bond.addresses = addresses;
                }
                Err(error) if self.bond.addresses.is_empty() => return Err(Failure::Name(error)),
                // It was known a moment ago.
                Err(_) => {}
            }
        }
        if self.bond.addresses.is_empty() {
            return Err(self.bond.failure.take().unwrap_or(Failure::Name(io::ErrorKind::NotFound.into())));
        }
        Ok(self.bond.addresses.clone())
    }

    /// Where another agent of this machine hosts the store that listens on the interface alone, and the endpoint is of the
    /// loopback.
    fn at_named_interface(&self, addresses: &[SocketAddr]) -> Option<SocketAddr> {
        let first = addresses.first().filter(|_| self.plan.endpoint.is_loopback())?;
        let name = self.plan.network.iface.as_deref()?;
        let address = address::interface_address(&interfaces().ok()?, name, first.is_ipv6()).ok()?;
        Some(SocketAddr::new(address, first.port()))
    }

    /// Sees to it that this is the store that we have joined.
    fn recognise(&mut self, backend: &mut C10dBackend) -> Result<(), ClientError> {
        let Some(joined) = self.bond.identity.clone() else {
            let fresh = format!("{:016x}{:016x}", random(), random());
            self.bond.identity = Some(backend.identity(&fresh)?);
            return Ok(());
        };
        let found = backend.known_identity()?;
        if found != joined {
            let endpoint = self.plan.endpoint.to_string();
            self.over(RendezvousEnd::Failed(RendezvousError::AnotherStore { endpoint, joined, found }));
        }
        Ok(())
    }

    /// Which address the others are told, and who we are in the state.
    fn name_ourselves(&mut self, connection: std::net::IpAddr) -> Result<LocalNode, RendezvousError> {
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
        if let Some(doubt) = address::unknown_address_warning(&known) {
            self.outlet.tell(RendezvousEvent::Note(doubt));
        }
        if !self.plan.is_alone() {
            let host = match self.own_store() {
                Some(store) => format!("this node hosts the rendezvous store at `{store}`"),
                None => format!("the rendezvous store is at `{}`", self.plan.endpoint),
            };
            self.outlet.tell(RendezvousEvent::Note(format!("{host}; {chosen}")));
        }
        self.interface = address::workers_interface(&known, &chosen);
        if let Some(hint) =
            self.interface.as_deref().and_then(|own| address::several_networks_hint(&interfaces, own))
            && self.plan.network.nccl_chooses
        {
            self.outlet.tell(RendezvousEvent::Note(hint));
        }
        let addr = chosen.addr;
        if let Some(store) = &mut self.training_store {
            let is_of_interface = matches!(chosen.why, AddressReason::OfGivenInterface { .. });
            store.set_address(&addr, is_of_interface.then(|| addr.parse().ok()).flatten());
        }
        let (pid, local_id) = (i64::from(std::process::id()), COUNT.fetch_add(1, Ordering::Relaxed));
        Ok(LocalNode {
            node: Node { addr, pid, local_id },
            nodes: self.plan.nodes,
            node_rank: self.plan.node_rank,
            times: self.plan.times,
        })
    }

    /// An agent of the job is not like us: whoever came later goes.
    pub(super) fn differs(&mut self, node: &Node, mismatch: Mismatch) {
        let is_in = |me: &LocalNode| self.backend.as_ref().is_some_and(|it| it.state().lists(&me.node));
        if matches!(self.phase, Phase::Joining(_)) && !self.me.as_ref().is_some_and(is_in) {
            let node = Box::new(self.book.name(node));
            self.over(RendezvousEnd::Failed(RendezvousError::Mismatch { node, mismatch }));
        }
    }

    /// Notes whose connections to our store are gone: they are dead, whatever their lease.
    pub(super) fn take_gone(&mut self, now: Instant) -> Result<(), StoreFailure> {
        let Some(store) = &self.store else { return Ok(()) };
        if !is_readable(store.departures()) {
            return Ok(());
        }
        let departed = store.departed().unwrap_or_default();
        if departed.iter().any(|nonce| self.book.of_nonce(*nonce).is_none()) {
            // It may have come into the state since the last look: what it wrote is there before it is gone.
            self.look()?;
        }
        for nonce in &departed {
            if let Some(node) = self.book.of_nonce(*nonce).cloned() {
                self.book.sightings.mark_disconnected(&node);
                self.next_look = now;
            }
        }
        self.free_ranks(&departed)
    }

    /// Readable when connections to our store have gone.
    pub(super) fn gone_fd(&self) -> Option<BorrowedFd<'_>> {
        self.store.as_ref().map(|store| store.departures())
    }
}

/// Where a process begins to count: in a container that is started anew address and pid may be those of the life before,
/// which the others do not yet take for dead. torch reads any number that fits into 32 bits, and compares them.
const fn first_id(random: u64) -> i64 {
    /// So many rendezvous of one process still fit.
    const ROOM: i64 = 1 << 16;
    (random & 0x7fff_ffff).cast_signed() - if random & 0x7fff_0000 == 0x7fff_0000 { ROOM } else { 0 }
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
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
