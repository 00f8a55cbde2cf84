//! The rendezvous of one agent, as one task: it handles commands, reads the store, takes the next step, and waits.
//!
//! It owns everything that is known and every connection, except those of the heartbeats and of a rank exchange. Pure
//! functions decide: `round::next` and [`super::watch`].
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clocks for the pure parts")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::time::sleep_until;

use crate::rendezvous::RendezvousEvent;
use crate::rendezvous::assign_ranks::{SharedAddressCache, SharedTrainingStore};
use crate::rendezvous::c10d::{C10dBackend, StoreChange, StoreFailure, StoreSnapshot};
use crate::rendezvous::error::RendezvousError;
use crate::store::StoreServer;
use rankrun_core::rendezvous::round::LocalNode;
use rankrun_core::rendezvous::state::Timestamp;
use rankrun_core::rendezvous::{RendezvousCommand, RendezvousEnd, ShutdownKind};

use super::assigning::RanksResult;
use super::attempt::AttemptResult;
use super::channel::{EventSender, TaskCommand};
use super::connection::ConnectionState;
use super::heartbeat::{HeartbeatRead, HeartbeatSender};
use super::joining::Joining;
use super::lease::{LeaseState, StoreContact};
use super::peer_directory::PeerDirectory;
use super::phase::Phase;
use super::plan::Plan;
use super::quiet::next_heartbeat_read;
use super::static_start::{FirstRoundResult, StaticProgress};

/// A deadline that never comes.
const NEVER: Duration = Duration::from_secs(3600);

/// Whether this node takes part in the rendezvous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Participation {
    /// It does.
    Active,
    /// The job is over, and the agent knows it.
    JobIsOver,
    /// The rendezvous has failed, or continues without this node, which then cannot close it.
    Excluded,
}

/// The task.
#[derive(Debug)]
pub(super) struct RendezvousTask {
    pub(super) plan: Plan,
    pub(super) events: EventSender,
    pub(super) commands: UnboundedReceiver<TaskCommand>,
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
pub(super) enum WakeReason {
    Command(Option<TaskCommand>),
    ClientsDeparted,
    Attempt(Box<AttemptResult>),
    FirstRound(FirstRoundResult),
    Ranks(RanksResult),
    HeartbeatRead(HeartbeatRead),
    /// A notification, or the deadline: the next step finds out.
    StepDue,
}

impl RendezvousTask {
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
            read = next_heartbeat_read(self.heartbeats.as_mut()) => WakeReason::HeartbeatRead(read),
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
            WakeReason::HeartbeatRead(read) => {
                if let Err(error) = self.on_heartbeat_read(read).await {
                    self.on_store_error(error).await;
                }
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
            (RendezvousCommand::Join { workers, leaves_if_possible }, phase) => {
                let before = match std::mem::replace(phase, Phase::Idle) {
                    Phase::Member(membership) => Some(membership.into_past_round()),
                    Phase::Joining(joining) => joining.before,
                    Phase::FirstRound(first) => first.joining.before,
                    Phase::AssigningRanks(assigning) => assigning.joining.before,
                    Phase::Idle => None,
                };
                self.phase = Phase::Joining(Joining::new(
                    (workers, leaves_if_possible),
                    before,
                    now,
                    &self.plan.times,
                ));
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
        // Without this question each step would wait for the runtime's next millisecond.
        let is_changed = tokio::select! {
            biased;
            () = backend.changed() => true,
            () = std::future::ready(()) => false,
        };
        let change = if is_changed { backend.poll_change().await? } else { None };
        match change {
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
            let snapshot = self.read_store().await?;
            self.act_on(&snapshot).await?;
        }
        if heartbeat_last && !self.is_over() {
            self.send_due_heartbeat().await?;
        }
        self.set_heartbeat_keys();
        Ok(self.next_read.min(self.next_tick))
    }

    /// Takes the step that a read of the store asks for, and waits for the next change.
    pub(super) async fn act_on(&mut self, snapshot: &StoreSnapshot) -> Result<(), StoreFailure> {
        self.next_read = self.step_after(snapshot).await?;
        let success_of = self.awaited_success();
        if let Some(backend) = &mut self.backend {
            backend.subscribe_changes(success_of).await?;
        }
        Ok(())
    }

    /// Returns the time of the next read.
    async fn step_after(&mut self, snapshot: &StoreSnapshot) -> Result<Instant, StoreFailure> {
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
            Phase::Member(_) => self.check_round(snapshot).await,
        }
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
        self.events.send(RendezvousEvent::Ended(end));
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

/// The local time of day, for agents that read no other clock.
pub(super) fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// A number that differs in every agent.
pub(super) fn random() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().1
}
