//! The rendezvous of one agent, as one task: it handles commands, reads the store, takes the next step, and waits.
//!
//! It owns everything that is known and every connection, except those of the heartbeats and of a rank exchange. Pure
//! functions decide: `round::next` and [`super::watch`].
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clocks for the pure parts")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::time::sleep_until;

use crate::io_thread::IoThread;
use crate::rendezvous::RendezvousEvent;
use crate::rendezvous::address::{self, Interface, is_confined};
use crate::rendezvous::assign_ranks::{SharedAddressCache, SharedTrainingStore};
use crate::rendezvous::c10d::{
    C10dBackend, NodeDescription, SnapshotQuery, StoreChange, StoreFailure, StoreSnapshot,
};
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::host::{self, AllowedClients};
use crate::rendezvous::training_store::TrainingStore;
use crate::store::StoreServer;
use rankrun_core::rendezvous::round::LocalNode;
use rankrun_core::rendezvous::state::{Node, Timestamp};
use rankrun_core::rendezvous::{RendezvousCommand, RendezvousEnd, ShutdownKind};

use super::Setup;
use super::assigning::{RankAssigning, RanksResult};
use super::attempt::AttemptResult;
use super::channel::{EventSender, TaskCommand};
use super::connection::ConnectionState;
use super::heartbeat::{HeartbeatSender, tick_beside_heartbeats};
use super::hosted;
use super::joining::Joining;
use super::lease::{LeaseState, StoreContact};
use super::member::Membership;
use super::peer_directory::PeerDirectory;
use super::plan::Plan;
use super::static_start::{FirstRoundJoining, FirstRoundResult, StaticProgress};

/// A deadline that never comes.
const NEVER: Duration = Duration::from_secs(3600);

/// What the agent wants at the moment.
#[derive(Debug)]
pub(super) enum Phase {
    /// Nothing.
    Idle,
    /// To be in the next round.
    Joining(Joining),
    /// To be in the first round of a static job.
    FirstRound(FirstRoundJoining),
    /// The round is complete, and its members assign the ranks.
    AssigningRanks(RankAssigning),
    /// To know what becomes of its round.
    Member(Box<Membership>),
}

/// Whether this node takes part in the rendezvous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Participation {
    /// It does.
    Active,
    /// The job is over, and the agent knows it.
    JobIsOver,
    /// The rendezvous has failed, or goes on without this node, which then cannot close it.
    Excluded,
}

/// The task.
#[derive(Debug)]
pub(super) struct RendezvousTask {
    pub(super) plan: Plan,
    pub(super) events: EventSender,
    commands: UnboundedReceiver<TaskCommand>,
    /// The rendezvous store, if this node hosts it.
    pub(super) store: Option<Arc<StoreServer>>,
    /// Clients of that store may have departed.
    pub(super) has_departures: bool,
    /// Nonces of clients that have departed, and are not known as agents so far.
    pub(super) departed: BTreeSet<u32>,
    /// How far a static job has come.
    pub(super) static_progress: StaticProgress,
    pub(super) training_store: SharedTrainingStore,
    /// The master addresses that torchrun agents have cached.
    pub(super) address_cache: SharedAddressCache,
    pub(super) backend: Option<C10dBackend>,
    /// The connections before, which cannot be used any more. Their end would tell the host that this node has gone.
    pub(super) previous_connection: Option<C10dBackend>,
    pub(super) connection: ConnectionState,
    pub(super) lease: LeaseState,
    pub(super) contact: StoreContact,
    pub(super) heartbeats: Option<HeartbeatSender>,
    /// Send time of this task's own newest acknowledged heartbeat.
    pub(super) own_heartbeat: Option<Instant>,
    pub(super) me: Option<LocalNode>,
    /// The interface by which this node reaches the others.
    pub(super) interface: Option<String>,
    pub(super) peers: PeerDirectory,
    pub(super) phase: Phase,
    pub(super) participation: Participation,
    pub(super) shutdown: Option<(ShutdownKind, Instant)>,
    /// When to read the store.
    pub(super) next_read: Instant,
    /// When to send a heartbeat, and to read those of the others.
    pub(super) next_tick: Instant,
    /// The next read includes the heartbeats.
    pub(super) reads_heartbeats: bool,
}

/// What a wait ends with.
enum WakeReason {
    Command(Option<TaskCommand>),
    ClientsDeparted,
    Attempt(Box<AttemptResult>),
    FirstRound(FirstRoundResult),
    Ranks(RanksResult),
    /// A notification, or the deadline: the next step finds out.
    StepDue,
}

impl RendezvousTask {
    /// Opens what this node hosts.
    ///
    /// # Errors
    /// The store's port cannot be bound, or `--iface` does not exist.
    pub(super) fn open(
        setup: Setup,
        commands: UnboundedReceiver<TaskCommand>,
        events: EventSender,
        io_thread: &IoThread,
    ) -> Result<Self, RendezvousError> {
        let (mut plan, is_host) = Plan::of(setup);
        let may_host = host::may_host(&plan.endpoint, is_host);
        let clients = allowed_clients(&plan, may_host)?;
        let open = || host::open_store(&plan.endpoint, is_host, (clients, plan.network.ports));
        let failed = |error| hosted::explain_port_in_use(error, &plan, io_thread);
        let store = if may_host { open().map_err(failed)?.map(Arc::new) } else { None };
        if let (Some(store), Some(limit)) = (&store, plan.network.store_limit) {
            store.limit(limit)?;
        }
        let training_store = match &mut plan.static_job {
            Some(job) => {
                if let Some(store) = &store {
                    job.master.port = store.local_addr().port();
                }
                TrainingStore::shared(store.clone(), &job.run_id, job.master.clone())
            }
            None => TrainingStore::unopened(plan.training_store_host, &plan.network),
        };
        let now = Instant::now();
        Ok(Self {
            peers: PeerDirectory::new(&plan.times),
            connection: ConnectionState::new(now, plan.times.lease),
            lease: LeaseState::default(),
            contact: StoreContact::new(now),
            heartbeats: None,
            own_heartbeat: None,
            plan,
            events,
            commands,
            store,
            has_departures: true,
            departed: BTreeSet::new(),
            static_progress: StaticProgress::NotStarted,
            training_store: Arc::new(tokio::sync::Mutex::new(training_store)),
            address_cache: SharedAddressCache::default(),
            backend: None,
            previous_connection: None,
            me: None,
            interface: None,
            phase: Phase::Idle,
            participation: Participation::Active,
            shutdown: None,
            next_read: now,
            next_tick: now,
            reads_heartbeats: true,
        })
    }

    /// Whether the agent knows that there is nothing to take part in any more.
    pub(super) fn is_over(&self) -> bool {
        self.participation != Participation::Active
    }

    /// The address of the rendezvous store, if this node hosts it.
    pub(super) fn own_store(&self) -> Option<SocketAddr> {
        self.store.as_ref().map(|store| store.local_addr())
    }

    /// Runs until the agent leaves.
    pub(super) async fn run(mut self) {
        loop {
            if self.drain_commands().await.is_break() {
                return;
            }
            if let Some((kind, until)) = self.shutdown.take() {
                return self.leave(kind, until).await;
            }
            let until = match self.step().await {
                Ok(until) => until,
                Err(error) => self.on_store_error(error).await,
            };
            let reason = self.wait(until).await;
            if self.on_wake(reason).await.is_break() {
                return;
            }
        }
    }

    /// Waits until `until`, or until something has happened.
    async fn wait(&mut self, until: Instant) -> WakeReason {
        let is_over = self.participation != Participation::Active;
        let backend = self.backend.as_ref().filter(|_| !is_over);
        let store = self.store.as_ref().filter(|_| !is_over);
        tokio::select! {
            biased;
            command = self.commands.recv() => WakeReason::Command(command),
            () = client_departed(store) => WakeReason::ClientsDeparted,
            result = self.connection.attempts.result() => WakeReason::Attempt(Box::new(result)),
            result = self.phase.exchange_result() => result,
            () = changed(backend) => WakeReason::StepDue,
            () = sleep_until(until.into()) => WakeReason::StepDue,
        }
    }

    async fn on_wake(&mut self, reason: WakeReason) -> ControlFlow<()> {
        let now = Instant::now();
        match reason {
            WakeReason::Command(None) => return ControlFlow::Break(()),
            WakeReason::Command(Some(command)) => self.take_command(command).await,
            WakeReason::ClientsDeparted => self.has_departures = true,
            WakeReason::Attempt(result) => self.on_attempt_result(*result).await,
            WakeReason::FirstRound(result) => {
                self.next_read = now;
                self.on_first_round_result(result).await;
            }
            WakeReason::Ranks(result) => {
                self.next_read = now;
                self.on_ranks_result(result).await;
            }
            WakeReason::StepDue => {}
        }
        ControlFlow::Continue(())
    }

    /// Handles every command that has come; breaks if the agent has gone.
    async fn drain_commands(&mut self) -> ControlFlow<()> {
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.take_command(command).await,
                Err(TryRecvError::Empty) => return ControlFlow::Continue(()),
                Err(TryRecvError::Disconnected) => return ControlFlow::Break(()),
            }
        }
    }

    async fn take_command(&mut self, command: TaskCommand) {
        match command {
            TaskCommand::Command(command) => self.handle_command(command).await,
            TaskCommand::ShutDown { kind, until } => self.shutdown = Some((kind, until)),
        }
    }

    async fn handle_command(&mut self, command: RendezvousCommand) {
        let now = Instant::now();
        self.next_read = now;
        if self.is_over() {
            return;
        }
        if matches!(command, RendezvousCommand::Join { .. })
            && let Err(error) = self.publish_results().await
        {
            // The round before is over for this node all the same.
            self.on_store_error(error).await;
        }
        match (command, &mut self.phase) {
            (RendezvousCommand::Stopping { why }, _) => {
                // Otherwise it is published when this node leaves.
                if let Err(error) = self.close_as_host(&why).await {
                    self.on_store_error(error).await;
                }
            }
            (RendezvousCommand::Join { workers }, phase) => {
                let before = match std::mem::replace(phase, Phase::Idle) {
                    Phase::Member(membership) => Some(membership.into_past_round()),
                    Phase::Joining(joining) => joining.before,
                    Phase::FirstRound(first) => first.joining.before,
                    Phase::AssigningRanks(assigning) => assigning.joining.before,
                    Phase::Idle => None,
                };
                self.phase = Phase::Joining(Joining::new(workers, before, now, &self.plan.times));
            }
            (RendezvousCommand::Failed(note), Phase::Member(membership)) => membership.fails(note),
            (RendezvousCommand::Succeeded, Phase::Member(membership)) => membership.succeeds(),
            (RendezvousCommand::FindLostNode, Phase::Member(membership)) => {
                membership.ask_for_lost_node(now);
                // The heartbeats after this time show which nodes are alive.
                self.next_tick = now;
            }
            // Without a round there is no lost node.
            (RendezvousCommand::FindLostNode, _) => self.events.send(RendezvousEvent::LostNodeFound(None)),
            (RendezvousCommand::Failed(_) | RendezvousCommand::Succeeded, _) => {}
        }
    }

    /// Does what is due; returns the time of the next step.
    async fn step(&mut self) -> Result<Instant, StoreFailure> {
        let now = Instant::now();
        if self.is_over() {
            return Ok(now + NEVER);
        }
        self.take_departed(now).await?;
        let Some(backend) = &mut self.backend else { return Ok(self.connect_step(now).await) };
        match backend.poll_change().await? {
            Some(StoreChange::Ring(_)) => self.next_read = self.next_read.min(now),
            Some(StoreChange::Success(round)) => self.all_succeeded(round),
            None => {}
        }
        self.publish_descriptor().await?;
        if matches!(self.phase, Phase::Idle) {
            return Ok(now + NEVER);
        }
        let is_tick = now >= self.next_tick;
        if is_tick {
            self.next_read = now;
        }
        // A refused heartbeat ends the connection: then everything else is read and published first.
        let heartbeat_last = is_tick && self.connection.refusals.exist();
        if is_tick && !heartbeat_last {
            self.send_heartbeat().await?;
        }
        if now >= self.next_read {
            // Each tick reads too.
            self.next_read = self.read_and_act().await?;
            let success_of = self.awaited_success();
            if let Some(backend) = &mut self.backend {
                backend.subscribe_changes(success_of).await?;
            }
        }
        if heartbeat_last && !self.is_over() {
            self.send_due_heartbeat().await?;
        }
        Ok(self.next_read.min(self.next_tick))
    }

    /// Publishes the descriptor before another node can see this one in a list, and again when it has changed.
    async fn publish_descriptor(&mut self) -> Result<(), StoreFailure> {
        let (Some(joining), Some(me), Some(backend)) = (self.phase.joining(), &self.me, &mut self.backend)
        else {
            return Ok(());
        };
        let descriptor = self.plan.descriptor(joining.workers);
        if self.peers.own() != Some(&descriptor) {
            let sent = Instant::now();
            backend.introduce(&me.node, &descriptor.to_json()).await?;
            self.peers.set_own(&me.node, descriptor);
            self.on_heartbeat_acknowledged(sent);
            self.next_tick = sent + self.plan.tick();
            self.start_heartbeats();
        }
        Ok(())
    }

    /// Sends a heartbeat if one is due, between requests that may take long.
    pub(super) async fn send_due_heartbeat(&mut self) -> Result<(), StoreFailure> {
        if Instant::now() >= self.next_tick { self.send_heartbeat().await } else { Ok(()) }
    }

    async fn send_heartbeat(&mut self) -> Result<(), StoreFailure> {
        let sent = Instant::now();
        (self.next_tick, self.reads_heartbeats) = (sent + self.plan.tick(), true);
        if let Some(next) = self.tick_beside_heartbeats(sent) {
            self.next_tick = next;
            return Ok(());
        }
        if let (Some(me), Some(backend)) = (&self.me, &mut self.backend) {
            backend.send_heartbeat(&me.node).await?;
            self.on_heartbeat_acknowledged(sent);
        }
        Ok(())
    }

    /// [`tick_beside_heartbeats`] in a quiet round. At any other time the others may wait for a heartbeat of this moment.
    fn tick_beside_heartbeats(&self, now: Instant) -> Option<Instant> {
        let is_quiet = matches!(&self.phase, Phase::Member(membership) if membership.is_quiet());
        let sends = self.heartbeats.is_some() && is_quiet && !self.connection.refusals.exist();
        let next =
            || tick_beside_heartbeats(self.lease.acknowledged(), self.own_heartbeat, now, self.plan.tick());
        sends.then(next).flatten()
    }

    async fn read_and_act(&mut self) -> Result<Instant, StoreFailure> {
        let snapshot = self.read_store().await?;
        let now = Instant::now();
        if let Some(store) = self.store.clone() {
            self.mark_departed(&store, now).await;
        }
        match &self.phase {
            Phase::Idle => Ok(now + NEVER),
            Phase::Joining(_) => match &self.static_progress {
                StaticProgress::NotStarted if self.plan.static_job.is_some() => {
                    self.begin_first_round();
                    Ok(now)
                }
                StaticProgress::Mixed(round) => {
                    let round = (**round).clone();
                    self.start_round(round, Vec::new()).await;
                    Ok(now)
                }
                StaticProgress::NotStarted | StaticProgress::RankrunOnly => self.join().await,
            },
            Phase::FirstRound(_) => self.maintain_first_round().await,
            Phase::AssigningRanks(_) => self.maintain_completed_round().await,
            Phase::Member(_) => self.check_round(&snapshot).await,
        }
    }

    /// Reads the store, and records every node that is in the state.
    pub(super) async fn read_store(&mut self) -> Result<StoreSnapshot, StoreFailure> {
        let Some(backend) = &mut self.backend else { return Ok(StoreSnapshot::default()) };
        let heartbeats =
            if self.reads_heartbeats { self.peers.rankrun_agents(backend.state()) } else { Vec::new() };
        self.reads_heartbeats = false;
        let (round, done) = match &self.phase {
            Phase::Member(membership) => (Some(membership.number), membership.nodes.as_slice()),
            _ => (None, [].as_slice()),
        };
        let query = SnapshotQuery { round, done, heartbeats: &heartbeats };
        let snapshot = backend.read_snapshot(&query).await?;
        self.contact.set_last_answer(Instant::now());
        if let Some(ranks) = rankrun_core::rendezvous::ranks_text::from_json(&snapshot.ranks) {
            self.peers.record_ranks(ranks);
        }
        self.record_state(snapshot.heartbeats.clone()).await?;
        Ok(snapshot)
    }

    /// Records the state as it is known now, with the descriptors of new nodes.
    pub(super) async fn record_state(
        &mut self,
        mut heartbeats: BTreeMap<Node, i64>,
    ) -> Result<(), StoreFailure> {
        let Some(backend) = &mut self.backend else { return Ok(()) };
        let unknown = self.peers.unknown(backend.state());
        if !unknown.is_empty() {
            let node_descriptions = backend.node_descriptions(&unknown).await?;
            for (node, NodeDescription { text, heartbeat }) in unknown.into_iter().zip(node_descriptions) {
                let added = self.peers.add(node.clone(), &text);
                if let Some(difference) = self.peers.compare_budgets(&node) {
                    self.events.send(RendezvousEvent::Note(difference));
                }
                match added {
                    Ok(()) => heartbeats
                        .extend(heartbeat.filter(|_| !text.is_empty()).map(|heartbeat| (node, heartbeat))),
                    Err(mismatch) => self.on_mismatch(&node, mismatch),
                }
            }
        }
        if let Some(backend) = &self.backend {
            self.peers.record_snapshot(backend.state(), &heartbeats, Instant::now());
        }
        Ok(())
    }

    /// Ends the rendezvous for this node, and tells the agent why.
    pub(super) fn end_with(&mut self, end: RendezvousEnd) {
        // If a node or a rule has ended the job, that is the answer to an open question.
        let is_answer = match &end {
            RendezvousEnd::Closed { failure: Some(note) } => note.why_node_ended_job().is_some(),
            RendezvousEnd::ByRule { .. } => true,
            _ => false,
        };
        if !is_answer {
            self.answer_lost_node(None);
        }
        let is_closed = matches!(end, RendezvousEnd::Closed { .. } | RendezvousEnd::ByRule { .. });
        self.participation = if is_closed { Participation::JobIsOver } else { Participation::Excluded };
        self.phase = Phase::Idle;
        self.heartbeats = None;
        // There is no other round.
        self.lease.end();
        self.events.send(RendezvousEvent::Over(end));
    }

    /// Ends the rendezvous by an error. The lease stays: until it expires the workers may live.
    pub(super) fn fail(&mut self, error: RendezvousError) {
        self.answer_lost_node(None);
        self.participation = Participation::Excluded;
        self.phase = Phase::Idle;
        self.heartbeats = None;
        self.events.send(RendezvousEvent::Failed(error));
    }
}

impl Phase {
    /// The common part of all phases on the way into a round.
    pub(super) const fn joining(&self) -> Option<&Joining> {
        match self {
            Self::Joining(joining) => Some(joining),
            Self::FirstRound(first) => Some(&first.joining),
            Self::AssigningRanks(assigning) => Some(&assigning.joining),
            Self::Idle | Self::Member(_) => None,
        }
    }

    /// The same, to change it.
    pub(super) const fn joining_mut(&mut self) -> Option<&mut Joining> {
        match self {
            Self::Joining(joining) => Some(joining),
            Self::FirstRound(first) => Some(&mut first.joining),
            Self::AssigningRanks(assigning) => Some(&mut assigning.joining),
            Self::Idle | Self::Member(_) => None,
        }
    }

    /// Drops an exchange that runs: the node still wants to join.
    pub(super) fn drop_exchange(&mut self) {
        *self = match std::mem::replace(self, Self::Idle) {
            Self::FirstRound(first) => Self::Joining(first.joining),
            Self::AssigningRanks(assigning) => Self::Joining(assigning.joining),
            phase => phase,
        };
    }

    /// The result of the exchange that runs; pending if none runs.
    async fn exchange_result(&mut self) -> WakeReason {
        match self {
            Self::FirstRound(first) => WakeReason::FirstRound(first.exchange.result().await),
            Self::AssigningRanks(assigning) => WakeReason::Ranks(assigning.exchange.result().await),
            Self::Idle | Self::Joining(_) | Self::Member(_) => std::future::pending().await,
        }
    }
}

/// Returns when clients of this node's store may have departed.
async fn client_departed(store: Option<&Arc<StoreServer>>) {
    match store {
        Some(store) => store.client_departed().await,
        None => std::future::pending().await,
    }
}

/// Returns when the store has sent a notification, or has closed its connection.
async fn changed(backend: Option<&C10dBackend>) {
    match backend {
        Some(backend) => backend.changed().await,
        None => std::future::pending().await,
    }
}

/// The clients that may reach the rendezvous store, if this node hosts it. Agents of this machine alone, if the job has
/// one node, or if the endpoint and the options for this node's address are loopback addresses. One address, with
/// `--iface`.
fn allowed_clients(plan: &Plan, may_host: bool) -> Result<AllowedClients, RendezvousError> {
    let iface = plan.network.iface.as_deref();
    let known = if iface.is_some() { interfaces()? } else { Vec::new() };
    let is_confined = is_confined(plan.local_addr.as_deref(), iface, &known)?;
    let stays_here =
        plan.is_alone() || plan.is_on_this_machine() || (is_confined && plan.endpoint.is_loopback());
    if stays_here {
        return Ok(AllowedClients::ThisMachine);
    }
    // If another node hosts, no name is looked up.
    let Some(name) = iface.filter(|_| may_host) else { return Ok(AllowedClients::Others) };
    let meant = host::endpoint_addresses(&plan.endpoint);
    // The workers of a static job on this machine look for the store at the endpoint.
    let needs_endpoint = plan.static_job.is_some();
    Ok(address::listen_addresses(&known, name, &meant, needs_endpoint)
        .map_or(AllowedClients::Others, AllowedClients::At))
}

/// The network interfaces of this machine.
pub(super) fn interfaces() -> Result<Vec<Interface>, RendezvousError> {
    let failed = |source| RendezvousError::System { what: "list the network interfaces", source };
    address::interfaces().map_err(failed)
}

/// The local time of day, for agents that read no other clock.
pub(super) fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// A number that differs in every agent.
pub(super) fn random() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().1
}
