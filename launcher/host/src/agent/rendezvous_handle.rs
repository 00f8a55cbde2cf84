//! The agent's side of the rendezvous. Its events become inputs of the state, and actions of the state become commands.
//! Nothing else in the agent knows whether the job may have other nodes. Nothing here waits.
#![expect(clippy::disallowed_methods, reason = "the agent's shell measures how long a rendezvous takes")]

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rankrun_contract::rank::NodeCount;

use crate::agent::Agent;
use crate::agent::announce::Announcement;
use crate::agent::watched_call::WatchedCall;
use crate::blocking::{BlockingCall, CallProgress};
use crate::error::LaunchError;
use crate::hang::board::EvidenceBoard;
use crate::process::watchdog::Watchdog;
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::task::{NetworkRendezvous, Setup};
use crate::rendezvous::{Rendezvous, RendezvousEvent};
use crate::reporter::nodes;
use crate::store::{StoreError, StoreServer};
use rankrun_core::agent::message::{Action, Input, JobOutcome, PeerNotice};
use rankrun_core::error_chain::format_chain;
use rankrun_core::rendezvous::descriptor::display_entrypoint;
use rankrun_core::rendezvous::lease_deadlines::LeaseDeadlines;
use rankrun_core::rendezvous::{FailureNote, RendezvousCommand, RendezvousEnd, Round, ShutdownKind};
use rankrun_core::spec::stop::StopReason;
use rankrun_core::spec::{Entrypoint, LaunchSpec};

/// What the rendezvous has told.
#[derive(Debug, Default)]
pub(super) struct ReceivedEvents {
    pub(super) inputs: Vec<Input>,
    pub(super) announcements: Vec<Announcement>,
    /// This node waits, for other nodes or the store.
    pub(super) has_wait: bool,
}

/// The rendezvous of this node, from before it is open until this node has left it.
#[derive(Debug)]
pub(super) struct RendezvousHandle {
    /// `None` before it is open, and after this node has left the other nodes.
    rendezvous: Option<Rendezvous>,
    /// The server of the round's training store, if it is this agent's.
    training_server: Option<Arc<StoreServer>>,
    /// What the nodes of the round tell each other of the progress of their ranks.
    evidence_board: Option<Arc<EvidenceBoard>>,
    /// When the agent last joined.
    joined_at: Instant,
    /// The guard's watchdog over this process.
    watchdog: Watchdog,
    /// The guard was told that workers may run.
    is_watched: bool,
    /// What this node waits for, if it has told the user so.
    awaited: Option<String>,
    /// The job may have several nodes, so people want to know which is which.
    is_many: bool,
}

impl RendezvousHandle {
    /// A rendezvous that is not open yet.
    pub(super) fn new(spec: &LaunchSpec, watchdog: Watchdog) -> Self {
        Self {
            rendezvous: None,
            training_server: None,
            evidence_board: None,
            joined_at: Instant::now(),
            watchdog,
            is_watched: false,
            awaited: None,
            is_many: spec.rendezvous.nodes().max > NodeCount::ONE,
        }
    }

    pub(super) fn install(&mut self, rendezvous: Rendezvous) {
        self.rendezvous = Some(rendezvous);
    }

    fn network(&self) -> Option<&NetworkRendezvous> {
        self.rendezvous.as_ref().and_then(Rendezvous::network)
    }

    /// Returns the answer of a rendezvous that needs no other node.
    fn send(&mut self, command: RendezvousCommand) -> Option<Input> {
        if matches!(command, RendezvousCommand::Join { .. }) {
            self.joined_at = Instant::now();
        }
        let event = self.rendezvous.as_mut()?.send(command)?;
        let mut received = ReceivedEvents::default();
        self.record(event, &mut received);
        received.inputs.pop()
    }

    /// The call has to end before a job of one node joins its next round.
    fn start_reset(&self) -> Option<Result<BlockingCall<Result<(), StoreError>>, StoreError>> {
        match &self.rendezvous {
            Some(Rendezvous::Local(local)) => local.start_reset(),
            Some(Rendezvous::Network(_)) | None => None,
        }
    }

    /// What the user was told that this node waits for, before it has joined a round.
    pub(super) fn awaited(&self) -> Option<&str> {
        self.awaited.as_deref()
    }

    /// How long the rendezvous of this round took.
    pub(super) fn duration(&self) -> Duration {
        self.joined_at.elapsed()
    }

    pub(super) fn evidence_board(&self) -> Option<Arc<EvidenceBoard>> {
        self.evidence_board.clone()
    }

    /// Pids of the clients that have connected to the training store in this round, if this agent has it.
    pub(super) fn client_pids(&self) -> Option<BTreeSet<u32>> {
        Some(self.training_server.as_ref()?.client_ids())
    }

    /// What has happened since the last call.
    pub(super) fn receive(&mut self) -> ReceivedEvents {
        let mut received = ReceivedEvents::default();
        while let Some(event) = self.network().and_then(NetworkRendezvous::receive) {
            self.record(event, &mut received);
        }
        received
    }

    /// Each event is an input of the state, or a line that is only for people and programs.
    fn record(&mut self, event: RendezvousEvent, received: &mut ReceivedEvents) {
        let input = match event {
            RendezvousEvent::Waiting(waiting) => {
                received.has_wait = true;
                self.awaited = Some(nodes::awaited(&waiting));
                let text = nodes::waiting(&waiting);
                return received.announcements.push(Announcement { name: "waiting_for_nodes", text });
            }
            RendezvousEvent::StoreUnreached(text) => {
                received.has_wait = true;
                self.awaited = Some("the rendezvous store".to_owned());
                return received.announcements.extend(self.note(&text));
            }
            RendezvousEvent::Note(text) => return received.announcements.extend(self.note(&text)),
            RendezvousEvent::Joined { round, training_server, evidence_board } => {
                if self.network().is_some() {
                    trace_round(&round);
                }
                self.training_server = training_server;
                self.evidence_board = evidence_board;
                self.awaited = None;
                Input::Joined(round)
            }
            RendezvousEvent::Changed(change) => Input::Changed(change),
            RendezvousEvent::LostNodeFound(lost) => Input::LostNodeFound(lost),
            RendezvousEvent::AllSucceeded => Input::AllSucceeded,
            RendezvousEvent::Ended(end) => Input::RendezvousEnded(end),
            RendezvousEvent::Failed(error) => {
                let kill_by = self.lease_deadlines().map(|lease| lease.kill_by);
                Input::RendezvousEnded(RendezvousEnd::Failed { kill_by, error: error.into() })
            }
        };
        received.inputs.push(input);
    }

    /// The line of a note. In a job of one node it is only logged.
    fn note(&self, text: &str) -> Option<Announcement> {
        if self.is_many {
            return Some(Announcement { name: "rendezvous_note", text: nodes::note(text) });
        }
        tracing::info!("{text}");
        None
    }

    /// When the workers are to be stopped unless the store answers before, and when they are to be killed.
    pub(super) fn lease_deadlines(&self) -> Option<LeaseDeadlines> {
        self.network()?.lease_deadlines()
    }

    /// The end of the lease for which the guard has killed the workers, as this process could not.
    pub(super) fn take_killed_deadline(&self) -> Option<Instant> {
        self.watchdog.take_killed_deadline()
    }

    /// Whether there may be workers, which the guard is to end if this process cannot.
    fn set_watched(&mut self, has_workers: bool) {
        let is_watched = has_workers && self.is_many;
        if let Some(network) = self.rendezvous.as_ref().and_then(Rendezvous::network)
            && std::mem::replace(&mut self.is_watched, is_watched) != is_watched
        {
            network.set_watchdog(is_watched.then(|| self.watchdog.clone()));
        }
    }

    /// Readable when the rendezvous has an event.
    pub(super) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.network().map(AsFd::as_fd)
    }

    /// Takes the connection to other nodes. A local rendezvous stays: processes that outlive the workers may use its
    /// training store.
    fn take_network(&mut self) -> Option<NetworkRendezvous> {
        match self.rendezvous.take() {
            Some(Rendezvous::Network(network)) => Some(network),
            local => {
                self.rendezvous = local;
                None
            }
        }
    }
}

/// The next round, for which the training store is being emptied.
pub(super) struct PendingJoin {
    command: RendezvousCommand,
    pub(super) call: WatchedCall<Result<(), StoreError>>,
}

fn rendezvous_failed(error: RendezvousError) -> Input {
    Input::RendezvousEnded(RendezvousEnd::Failed { kill_by: None, error: error.into() })
}

/// What the rendezvous needs to know of the launch.
pub(super) fn rendezvous_setup(spec: &LaunchSpec) -> Setup {
    Setup {
        spec: spec.rendezvous.clone(),
        network: spec.network.clone(),
        role: spec.role.clone(),
        workers: spec.workers,
        entrypoint: display_entrypoint(&program_name(&spec.entrypoint)),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        max_restarts: spec.max_restarts,
    }
}

/// A notice to the other nodes that is on its way.
#[derive(Debug)]
pub(super) struct PendingShutdown {
    delivery: BlockingCall<()>,
    /// After this time it is not awaited.
    pub(super) until: Instant,
}

impl PendingShutdown {
    /// Tells the other nodes how this node leaves, and keeps the stores that they need for a while, on a thread of its
    /// own.
    fn start(network: NetworkRendezvous, notice: PeerNotice, shutdown: ShutdownKind) -> io::Result<Self> {
        let limit = limit_of(notice) + network.round_trip() * SHUTDOWN_ROUND_TRIPS;
        let delivery = BlockingCall::start("rendezvous-end", move |_| network.end(shutdown, limit))?;
        Ok(Self { delivery, until: Instant::now() + limit })
    }

    /// True once the notice is delivered.
    pub(super) fn is_over(&self) -> bool {
        self.delivery.progress() != CallProgress::Running
    }
}

impl AsFd for PendingShutdown {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.delivery.as_fd()
    }
}

impl Agent<'_> {
    /// Before the actions of an input, workers that are about to start count. After them, swept workers do not.
    pub(super) fn tell_guard_of_workers(&mut self, is_before: bool) {
        let has_workers = self.state.has_workers();
        if has_workers == is_before {
            self.rendezvous.set_watched(has_workers);
        }
    }

    /// Passes an action about the rendezvous on.
    pub(super) fn send_to_rendezvous(&mut self, action: &Action) {
        let command = match action {
            Action::Join { workers, leaves_if_possible } => {
                let (workers, leaves_if_possible) = (*workers, *leaves_if_possible);
                let command = RendezvousCommand::Join { workers, leaves_if_possible };
                return match self.rendezvous.start_reset() {
                    Some(Ok(call)) => {
                        self.pending_join = Some(PendingJoin { command, call: WatchedCall::new(call) });
                    }
                    Some(Err(error)) => self.answers.push_back(rendezvous_failed(error.into())),
                    None => self.join(command),
                };
            }
            Action::TellFailure { end, hang } => {
                // The note may have to wait for output: it is made for other nodes only.
                let note = || self.workers.failure_note(end, hang.as_deref());
                let note = self.rendezvous.network().and_then(|_| note());
                let Some(note) = note else { return };
                RendezvousCommand::Failed(note)
            }
            Action::FindLostNode => RendezvousCommand::FindLostNode,
            Action::TellSuccess => RendezvousCommand::Succeeded,
            Action::TellStop { reason } => RendezvousCommand::Stopping { why: stop_text(*reason) },
            _ => return,
        };
        let answer = self.rendezvous.send(command);
        self.answers.extend(answer);
    }

    fn join(&mut self, command: RendezvousCommand) {
        let answer = self.rendezvous.send(command);
        self.answers.extend(answer);
    }

    /// Joins the next round once the store is empty.
    pub(super) fn advance_join(&mut self) {
        let Some(pending) = &self.pending_join else { return };
        let failed = match pending.call.progress() {
            CallProgress::Running => return,
            CallProgress::Returned(Ok(())) => None,
            CallProgress::Returned(Err(error)) => Some(error),
            CallProgress::Lost => Some(StoreError::Stopped),
        };
        let Some(PendingJoin { command, .. }) = self.pending_join.take() else { return };
        match failed {
            None => self.join(command),
            Some(error) => self.answers.push_back(rendezvous_failed(error.into())),
        }
    }

    /// Tells the other nodes of the end while the last output is written.
    pub(super) fn leave(&mut self, end: &JobOutcome) -> Option<PendingShutdown> {
        let network = self.rendezvous.take_network()?;
        let unswept = |source| format_chain(&LaunchError::Unswept { source });
        let start_error = self.state.launcher_error().map(|error| error.why.clone());
        let own_error = start_error.or_else(|| self.state.scan_error().map(unswept));
        let own = || self.workers.launcher_failure_note(own_error?);
        let shutdown = match end.peer_notice {
            PeerNotice::Succeeded => {
                ShutdownKind::Close { succeeded: true, failure: None, rule: end.rule.clone() }
            }
            PeerNotice::Failed => {
                let failure = self.own_failure(end).or_else(own);
                ShutdownKind::Close { succeeded: false, failure, rule: end.rule.clone() }
            }
            PeerNotice::Left => ShutdownKind::Leave { why: why(end) },
        };
        let pending = PendingShutdown::start(network, end.peer_notice, shutdown);
        pending.map_err(|error| tracing::warn!("the other nodes are not told of the end: {error}")).ok()
    }

    fn own_failure(&self, end: &JobOutcome) -> Option<FailureNote> {
        end.failure
            .as_ref()
            .and_then(|failure| self.workers.failure_note(&failure.first, failure.hang.as_deref()))
    }
}

/// The requests of a shutdown, which are sent one after the other.
const SHUTDOWN_ROUND_TRIPS: u32 = 10;

/// After a success others may still use the stores that are hosted here; after a failure they only have to hear of it.
const fn limit_of(notice: PeerNotice) -> Duration {
    match notice {
        PeerNotice::Succeeded => Duration::from_secs(7),
        PeerNotice::Failed => Duration::from_secs(4),
        PeerNotice::Left => Duration::from_secs(2),
    }
}

fn why(end: &JobOutcome) -> String {
    match (end.stopped_by, end.time_limit, &end.remote_end) {
        (Some(signal), ..) => stop_text(StopReason::Signal(signal)),
        (None, Some(_), _) => stop_text(StopReason::TimeLimit),
        (None, None, Some(RendezvousEnd::Failed { error, .. })) => format_chain(error.error()),
        (None, None, Some(RendezvousEnd::Excluded { .. })) => {
            "its workers failed first too often (`--exclude-node-after`)".to_owned()
        }
        (None, None, Some(_)) => stop_text(StopReason::EndedElsewhere),
        (None, None, None) => stop_text(StopReason::Membership),
    }
}

/// Why this node leaves, as the other nodes show it. A node leaves after another stop only if a worker survives it.
fn stop_text(reason: StopReason) -> String {
    match reason {
        StopReason::Signal(signal) => format!("it was told to stop by {signal}"),
        StopReason::TimeLimit => "its time limit is over".to_owned(),
        StopReason::EndedElsewhere => "the job has ended".to_owned(),
        StopReason::WorkerFailed
        | StopReason::StartTimeout
        | StopReason::NotStarted
        | StopReason::RestartRequest
        | StopReason::Membership
        | StopReason::LeftoverTimeout => "its workers cannot be ended".to_owned(),
    }
}

fn trace_round(round: &Round) {
    tracing::info!(
        "round {}: node {} of {}, {} workers from rank {}, the store is {}:{}",
        round.number,
        round.node_rank,
        round.nodes,
        round.world_size,
        round.base_rank,
        round.master.addr,
        round.master.port
    );
}

/// What is run, without the folder that it is in and without its arguments: both may be others on each node.
pub(super) fn program_name(entrypoint: &Entrypoint) -> OsString {
    let file_name = |word: &OsStr| Path::new(word).file_name().unwrap_or(word).to_owned();
    match entrypoint {
        Entrypoint::Script { script, .. } | Entrypoint::RunPath { script, .. } => file_name(script),
        Entrypoint::Module { module, .. } => module.clone(),
        Entrypoint::Program { name, .. } => file_name(name),
    }
}
