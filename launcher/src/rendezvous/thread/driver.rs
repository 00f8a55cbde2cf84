//! The thread's loop: obey the agent, look at the store, do what follows, sleep until something happens.
//!
//! One owner of all that is known and of every connection, but that of the signs of life ([`super::pulse`]). What is
//! decided is decided by pure functions: `round::next` and [`super::watch`].
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clocks for the pure parts")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::error::LaunchError;
use crate::rendezvous::address::{self, Interface, is_confined};
use crate::rendezvous::c10d::{
    C10dBackend, Introduction, SnapshotQuery, StoreChange, StoreFailure, StoreSnapshot,
};
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::host::{self, AllowedClients};
use crate::rendezvous::round::LocalNode;
use crate::rendezvous::state::{Node, Timestamp};
use crate::rendezvous::torchrun_compat::MasterAddressCache;
use crate::rendezvous::training_store::TrainingStore;
use crate::rendezvous::{RendezvousCommand, RendezvousEnd, RendezvousEvent, Round, ShutdownKind};
use crate::store::StoreServer;

use super::Setup;
use super::book::Book;
use super::connect::Bond;
use super::fence::{Fencepost, Heard};
use super::first::Begun;
use super::hosted;
use super::inbox::{Command, Next, Outlet};
use super::joining::Joining;
use super::member::Membership;
use super::plan::Plan;
use super::pulse::Pulse;

/// Where nothing is to be done.
const NEVER: Duration = Duration::from_secs(3600);

/// What the agent wants of us at the moment.
#[derive(Debug)]
pub(super) enum Phase {
    /// Nothing.
    Idle,
    /// To be in the next round.
    Joining(Joining),
    /// To know what becomes of a round.
    Member(Box<Membership>),
}

/// Whether there is something to take part in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// There is.
    In,
    /// The job is over, and the agent knows it.
    Over,
    /// The rendezvous has failed, or goes on without us: whatever we say then closes it for nobody.
    Out,
}

/// The thread.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) plan: Plan,
    pub(super) outlet: Outlet,
    /// The rendezvous store, where it is ours.
    pub(super) store: Option<Arc<StoreServer>>,
    /// How far a job with given ranks has come.
    pub(super) begun: Begun,
    /// The training store, unless it is lent to an exchange.
    pub(super) training_store: Option<TrainingStore>,
    /// What torchrun's agents believe.
    pub(super) memory: MasterAddressCache,
    pub(super) backend: Option<C10dBackend>,
    /// The connections before, which are of no use any more.
    pub(super) worn: Option<C10dBackend>,
    pub(super) bond: Bond,
    pub(super) fencepost: Fencepost,
    pub(super) heard: Heard,
    pub(super) pulse: Option<Pulse>,
    pub(super) me: Option<LocalNode>,
    /// By which this node reaches the others.
    pub(super) interface: Option<String>,
    pub(super) book: Book,
    pub(super) phase: Phase,
    pub(super) standing: Standing,
    pub(super) ending: Option<(ShutdownKind, Instant)>,
    /// When to look at the store.
    pub(super) next_look: Instant,
    /// When to give, and to look for, signs of life.
    pub(super) next_tick: Instant,
    /// The next look is for those too.
    pub(super) counts_beats: bool,
}

impl Driver {
    /// Opens what this node hosts.
    ///
    /// # Errors
    /// The store's port cannot be had, or `--iface` is not there.
    pub(super) fn open(setup: Setup, outlet: Outlet) -> Result<Self, LaunchError> {
        let (mut plan, is_host) = Plan::of(setup);
        let may_host = host::may_host(&plan.endpoint, is_host);
        let guests = guests(&plan, may_host)?;
        let open = || host::open_store(&plan.endpoint, is_host, (guests, plan.network.ports));
        let store = if may_host { open().map_err(|error| hosted::named(error, &plan))? } else { None };
        let store = store.map(Arc::new);
        if let (Some(store), Some(limit)) = (&store, plan.network.store_limit) {
            store.limit(limit)?;
        }
        let training_store = match &mut plan.fixed {
            Some(fixed) => {
                if let Some(store) = &store {
                    fixed.master.port = store.local_addr().port();
                }
                TrainingStore::shared(store.clone(), &fixed.run_id, fixed.master.clone())
            }
            None => TrainingStore::unopened(plan.training_store_host, &plan.network),
        };
        let now = Instant::now();
        Ok(Self {
            book: Book::new(&plan.times),
            bond: Bond::new(now, plan.times.lease),
            fencepost: Fencepost::default(),
            heard: Heard::new(now),
            pulse: None,
            plan,
            outlet,
            store,
            begun: Begun::NotYet,
            training_store: Some(training_store),
            memory: MasterAddressCache::default(),
            backend: None,
            worn: None,
            me: None,
            interface: None,
            phase: Phase::Idle,
            standing: Standing::In,
            ending: None,
            next_look: now,
            next_tick: now,
            counts_beats: true,
        })
    }

    /// Whether the agent knows that there is nothing to take part in any more.
    pub(super) fn is_over(&self) -> bool {
        self.standing != Standing::In
    }

    /// Where a store of ours listens.
    pub(super) fn own_store(&self) -> Option<SocketAddr> {
        self.store.as_ref().map(|store| store.local_addr())
    }

    /// Until the agent goes.
    pub(super) fn run(mut self) {
        loop {
            if self.obey().is_break() {
                return;
            }
            if let Some((parting, until)) = self.ending.take() {
                return self.part(parting, until);
            }
            let until = self.turn().unwrap_or_else(|trouble| self.stumble(trouble));
            self.sleep(until);
        }
    }

    /// Takes every command; breaks where the agent is gone.
    pub(super) fn obey(&mut self) -> std::ops::ControlFlow<()> {
        loop {
            match self.outlet.next() {
                Next::Item(Command::Wish(wish)) => self.grant(wish),
                Next::Item(Command::End { parting, until }) => self.ending = Some((parting, until)),
                Next::Nothing => return std::ops::ControlFlow::Continue(()),
                Next::Never => return std::ops::ControlFlow::Break(()),
            }
        }
    }

    fn grant(&mut self, wish: RendezvousCommand) {
        let now = Instant::now();
        self.next_look = now;
        if self.is_over() {
            return;
        }
        if matches!(wish, RendezvousCommand::Join { .. })
            && let Err(trouble) = self.tell()
        {
            // The round before is over for this node all the same.
            self.stumble(trouble);
        }
        match (wish, &mut self.phase) {
            (RendezvousCommand::Stopping { why }, _) => {
                // Otherwise it is said at the parting.
                if let Err(trouble) = self.end_with_the_store(&why) {
                    self.stumble(trouble);
                }
            }
            (RendezvousCommand::Join { workers }, phase) => {
                let before = match std::mem::replace(phase, Phase::Idle) {
                    Phase::Member(membership) => Some(membership.into_past()),
                    Phase::Joining(joining) => joining.before,
                    Phase::Idle => None,
                };
                self.phase = Phase::Joining(Joining::new(workers, before, now, &self.plan.times));
            }
            (RendezvousCommand::Failed(note), Phase::Member(membership)) => membership.fails(note),
            (RendezvousCommand::Succeeded, Phase::Member(membership)) => membership.succeeds(),
            (RendezvousCommand::FindLostNode, Phase::Member(membership)) => {
                membership.ask_for_lost_node(now);
                // Who lives shows it after this look.
                self.next_tick = now;
            }
            // There is no round, so nobody was lost from it.
            (RendezvousCommand::FindLostNode, _) => self.outlet.tell(RendezvousEvent::LostNodeFound(None)),
            (RendezvousCommand::Failed(_) | RendezvousCommand::Succeeded, _) => {}
        }
    }

    /// Does what is due; until when nothing else is.
    fn turn(&mut self) -> Result<Instant, StoreFailure> {
        let now = Instant::now();
        if self.is_over() {
            return Ok(now + NEVER);
        }
        self.take_gone(now)?;
        if self.backend.is_none() {
            return Ok(self.reach(now));
        }
        match self.backend.as_mut().map(C10dBackend::poll_change).transpose()?.flatten() {
            Some(StoreChange::Ring(_)) => self.next_look = self.next_look.min(now),
            Some(StoreChange::Success(round)) => self.all_succeeded(round),
            None => {}
        }
        self.introduce()?;
        if matches!(self.phase, Phase::Idle) {
            return Ok(now + NEVER);
        }
        let is_tick = now >= self.next_tick;
        if is_tick {
            self.next_look = now;
        }
        // A refused heartbeat ends the connection: then what else there is to hear and to tell comes first.
        let beats_last = is_tick && self.bond.refusals.are_there();
        if is_tick && !beats_last {
            self.beat()?;
        }
        if now >= self.next_look {
            let until = self.look_and_act()?;
            let now = Instant::now();
            // What the agent has wished for meanwhile is not put off.
            self.next_look = until.min(now + self.plan.tick());
            let success_of = self.awaited_success();
            if let Some(backend) = &mut self.backend {
                backend.subscribe_changes(success_of)?;
            }
        }
        if beats_last && !self.is_over() {
            self.beat_if_due()?;
        }
        Ok(self.next_look.min(self.next_tick))
    }

    /// Says who we are before anybody can see us in a list, and again when it has changed.
    fn introduce(&mut self) -> Result<(), StoreFailure> {
        let (Phase::Joining(joining), Some(me), Some(backend)) = (&self.phase, &self.me, &mut self.backend)
        else {
            return Ok(());
        };
        let descriptor = self.plan.descriptor(joining.workers);
        if self.book.own() != Some(&descriptor) {
            let sent = Instant::now();
            backend.introduce(&me.node, &descriptor.to_json())?;
            self.book.introduce(&me.node, descriptor);
            self.acknowledged(sent);
            self.next_tick = sent + self.plan.tick();
            self.start_pulse();
        }
        Ok(())
    }

    /// A sign of life, in the midst of what may take long.
    pub(super) fn beat_if_due(&mut self) -> Result<(), StoreFailure> {
        if Instant::now() >= self.next_tick { self.beat() } else { Ok(()) }
    }

    /// One sign of life.
    pub(super) fn beat(&mut self) -> Result<(), StoreFailure> {
        let sent = Instant::now();
        (self.next_tick, self.counts_beats) = (sent + self.plan.tick(), true);
        if let (Some(me), Some(backend)) = (&self.me, &mut self.backend) {
            backend.send_heartbeat(&me.node)?;
            self.acknowledged(sent);
        }
        Ok(())
    }

    fn look_and_act(&mut self) -> Result<Instant, StoreFailure> {
        let look = self.look()?;
        let now = Instant::now();
        match &self.phase {
            Phase::Idle => Ok(now + NEVER),
            Phase::Joining(_) => match &self.begun {
                Begun::NotYet if self.plan.fixed.is_some() => self.begin(),
                Begun::Mixed(round) => {
                    let round = Round::clone(round);
                    self.starts(round, Vec::new());
                    Ok(now)
                }
                Begun::NotYet | Begun::Alone => self.join(),
            },
            Phase::Member(_) => self.watch(&look),
        }
    }

    /// Looks at the store, and takes note of everybody who is there.
    pub(super) fn look(&mut self) -> Result<StoreSnapshot, StoreFailure> {
        let Some(backend) = &mut self.backend else { return Ok(StoreSnapshot::default()) };
        let beats = if self.counts_beats { self.book.rankrun(backend.state()) } else { Vec::new() };
        self.counts_beats = false;
        let (round, done) = match &self.phase {
            Phase::Member(membership) => (Some(membership.number), membership.nodes.as_slice()),
            Phase::Idle | Phase::Joining(_) => (None, [].as_slice()),
        };
        let look = backend.read_snapshot(&SnapshotQuery { round, done, heartbeats: &beats })?;
        self.heard.now(Instant::now());
        if let Some(ranks) = crate::rendezvous::ranks_text::from_json(&look.ranks) {
            self.book.ranked(ranks);
        }
        self.meet(look.heartbeats.clone())?;
        Ok(look)
    }

    /// Takes note of the state as it is known now.
    pub(super) fn meet(&mut self, mut beats: BTreeMap<Node, i64>) -> Result<(), StoreFailure> {
        let Some(backend) = &mut self.backend else { return Ok(()) };
        let unknown = self.book.unknown(backend.state());
        if !unknown.is_empty() {
            let introductions = backend.introductions(&unknown)?;
            for (node, Introduction { text, beat }) in unknown.into_iter().zip(introductions) {
                let introduced = self.book.introduced(node.clone(), &text);
                if let Some(difference) = self.book.compare_budgets(&node) {
                    self.outlet.tell(RendezvousEvent::Note(difference));
                }
                match introduced {
                    Ok(()) => beats.extend(beat.filter(|_| !text.is_empty()).map(|beat| (node, beat))),
                    Err(mismatch) => self.differs(&node, mismatch),
                }
            }
        }
        if let Some(backend) = &self.backend {
            self.book.saw(backend.state(), &beats, Instant::now());
        }
        Ok(())
    }

    /// Tells that there is nothing to take part in any more.
    pub(super) fn over(&mut self, over: RendezvousEnd) {
        // Where a node or a rule has ended the job, that is the answer.
        let says_it = match &over {
            RendezvousEnd::Closed { failure: Some(note) } => note.why_node_ended_job().is_some(),
            RendezvousEnd::ByRule { .. } => true,
            RendezvousEnd::Closed { failure: None } | RendezvousEnd::NotNeeded | RendezvousEnd::Failed(_) => {
                false
            }
        };
        if !says_it {
            self.answer_lost_node(None);
        }
        let is_closed = matches!(over, RendezvousEnd::Closed { .. } | RendezvousEnd::ByRule { .. });
        self.standing = if is_closed { Standing::Over } else { Standing::Out };
        self.phase = Phase::Idle;
        self.pulse = None;
        if !matches!(over, RendezvousEnd::Failed(_)) {
            // There is no other round.
            self.fencepost.take_down();
        }
        self.outlet.tell(RendezvousEvent::Over(over));
    }

    /// Until then, or something happens.
    pub(super) fn sleep(&self, until: Instant) {
        let bell = self.backend.as_ref().and_then(C10dBackend::notifier_fd).filter(|_| !self.is_over());
        let gone = self.gone_fd().filter(|_| !self.is_over());
        let inputs = [Some(self.outlet.as_fd()), bell, gone];
        let mut inputs: Vec<PollFd<'_>> = inputs
            .into_iter()
            .flatten()
            .map(|input: BorrowedFd<'_>| PollFd::new(input, PollFlags::POLLIN))
            .collect();
        let left = until.saturating_duration_since(Instant::now());
        // Rounded up: a millisecond too early would be a turn for nothing.
        let left = if left.is_zero() { left } else { left + Duration::from_millis(1) };
        // Whatever it gives: the next turn sees what has happened.
        let _ = poll(&mut inputs, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
    }
}

/// The addresses that reach the rendezvous store, if it is ours. Agents of this machine alone: where the job has one node, or the
/// endpoint and what the user says about this node's address are of the loopback. By one address alone: with `--iface`.
fn guests(plan: &Plan, may_host: bool) -> Result<AllowedClients, RendezvousError> {
    let iface = plan.network.iface.as_deref();
    let known = if iface.is_some() { interfaces()? } else { Vec::new() };
    let is_confined = is_confined(plan.local_addr.as_deref(), iface, &known)?;
    let stays_here =
        plan.is_alone() || plan.is_on_this_machine() || (is_confined && plan.endpoint.is_loopback());
    if stays_here {
        return Ok(AllowedClients::ThisMachine);
    }
    // Where another node hosts, no name is looked up.
    let Some(name) = iface.filter(|_| may_host) else { return Ok(AllowedClients::Others) };
    let meant = host::endpoint_addresses(&plan.endpoint);
    // The workers of a static job on this machine look for the store at the endpoint.
    let needs_endpoint = plan.fixed.is_some();
    Ok(address::listen_addresses(&known, name, &meant, needs_endpoint)
        .map_or(AllowedClients::Others, AllowedClients::At))
}

/// This machine's.
pub(super) fn interfaces() -> Result<Vec<Interface>, RendezvousError> {
    let failed = |source| RendezvousError::System { what: "list the network interfaces", source };
    address::interfaces().map_err(failed)
}

/// Our time of day, for agents that read no other clock.
pub(super) fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// A number that nobody else has.
pub(super) fn random() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().1
}
