//! The agent's side of the rendezvous: its news become inputs of the state, what the state wants becomes wishes.
//!
//! The thread behind it exists only in the agent, and only in a job in which other nodes may take part. Nothing here
//! waits.
#![expect(clippy::disallowed_methods, reason = "the agent's shell measures how long a rendezvous takes")]

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::pipe2;

use rankrun_contract::rank::{LocalWorldSize, NodeCount};

use crate::agent::Agent;
use crate::agent::message::{Action, Input, JobOutcome, PeerNotice};
use crate::error::{LaunchError, format_chain};
use crate::process::watchdog::Watchdog;
use crate::rendezvous::descriptor::display_entrypoint;
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::task::{LeaseDeadlines, Rendezvous, Setup};
use crate::rendezvous::{
    FailureNote, MembershipChange, RendezvousCommand, RendezvousEnd, RendezvousEvent, Round, ShutdownKind,
};
use crate::reporter::nodes;
use crate::reporter::user_log::UserLog;
use crate::spec::stop::StopReason;
use crate::spec::{Entrypoint, LaunchSpec};
use crate::store::StoreServer;

/// The other nodes of the job, as the agent's shell has them.
#[derive(Debug)]
pub(super) struct Others {
    rendezvous: Rendezvous,
    /// The server of the round's training store, if it is this agent's.
    training_server: Option<Arc<StoreServer>>,
    /// When the agent last wanted to take part.
    asked: Instant,
    /// Why the rendezvous failed.
    failed: Option<RendezvousError>,
    /// Why the workers could not be started here.
    not_started: Option<String>,
    /// Until when the workers may live, as the state has been told last.
    kill_by: Option<Instant>,
    /// The guard's over this process.
    watch: Watchdog,
    /// Whether it was told that there may be workers.
    is_watched: bool,
    /// Whether there is more than one node, and so people want to know which is which.
    is_many: bool,
}

impl Others {
    /// Opens what this node has to open for the others; nothing where no other may take part.
    ///
    /// # Errors
    /// The store, or an address for this node, cannot be had.
    pub(super) fn open(spec: &LaunchSpec, watch: &Watchdog) -> Result<Option<Self>, LaunchError> {
        if !spec.rendezvous.is_shared() {
            return Ok(None);
        }
        let rendezvous = Rendezvous::open(Setup {
            spec: spec.rendezvous.clone(),
            network: spec.network.clone(),
            role: spec.role.clone(),
            workers: spec.workers,
            entrypoint: display_entrypoint(&program_name(&spec.entrypoint)),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            max_restarts: spec.max_restarts,
        })?;
        let is_many = spec.rendezvous.nodes().max > NodeCount::ONE;
        Ok(Some(Self {
            rendezvous,
            training_server: None,
            asked: Instant::now(),
            failed: None,
            not_started: None,
            kill_by: None,
            watch: watch.clone(),
            is_watched: false,
            is_many,
        }))
    }

    pub(super) fn join(&mut self, workers: LocalWorldSize) {
        self.asked = Instant::now();
        self.rendezvous.send_command(RendezvousCommand::Join { workers });
    }

    pub(super) fn wish(&self, wish: RendezvousCommand) {
        self.rendezvous.send_command(wish);
    }

    /// How long it took to get into the round.
    pub(super) fn took(&self) -> Duration {
        self.asked.elapsed()
    }

    /// Who has greeted the workers' store in this round, where that store is ours.
    pub(super) fn greeted(&self) -> Option<BTreeSet<u32>> {
        self.training_server.as_ref()?.client_ids().ok()
    }

    /// What has happened, as inputs; what is only for people is told.
    pub(super) fn news(&mut self, voice: &UserLog) -> Vec<Input> {
        let mut inputs = Vec::new();
        while let Some(news) = self.rendezvous.receive() {
            inputs.extend(self.input(news, voice));
        }
        inputs
    }

    fn input(&mut self, news: RendezvousEvent, voice: &UserLog) -> Option<Input> {
        Some(match news {
            RendezvousEvent::Joined { round, training_server } => {
                tell_of(&round);
                self.training_server = training_server;
                Input::Joined(round)
            }
            RendezvousEvent::Changed(change) => Input::Changed(change),
            RendezvousEvent::LostNodeFound(lost) => Input::LostNodeFound(lost),
            RendezvousEvent::AllSucceeded => Input::AllSucceeded,
            RendezvousEvent::Waiting(waiting) => {
                voice.print_line(&nodes::waiting(&waiting));
                return None;
            }
            RendezvousEvent::Note(text) => {
                if self.is_many {
                    voice.print_line(&nodes::note(&text));
                } else {
                    tracing::info!("{text}");
                }
                return None;
            }
            RendezvousEvent::Over(end) => Input::Over(end),
            RendezvousEvent::Failed(error) => {
                self.failed.get_or_insert(error);
                self.kill_by = self.rendezvous.lease_deadlines().map(|fence| fence.kill_by);
                Input::Over(RendezvousEnd::Failed { kill_by: self.kill_by })
            }
        })
    }

    /// When the workers are to be stopped unless the store answers before, and when they are to be killed.
    fn fence(&self) -> Option<LeaseDeadlines> {
        self.rendezvous.lease_deadlines().filter(|fence| self.kill_by != Some(fence.kill_by))
    }

    /// The same as an input, where the time has come.
    pub(super) fn cut_off(&mut self, now: Instant, is_suspended: bool) -> Option<Input> {
        self.deadline(is_suspended).filter(|at| *at <= now)?;
        let kill_by = self.fence()?.kill_by;
        self.kill_by = Some(kill_by);
        Some(Input::Changed(MembershipChange::CutOff { kill_by }))
    }

    /// What the state has to hear of before it hears of any end: the workers were killed while it could not be asked.
    pub(super) fn killed(&mut self) -> Option<Input> {
        let kill_by = self.watch.take_killed_deadline().filter(|kill_by| self.kill_by != Some(*kill_by))?;
        self.kill_by = Some(kill_by);
        Some(Input::Changed(MembershipChange::StoodStill))
    }

    /// Whether there may be workers, which the guard is to end if this process cannot.
    fn may_have_workers(&mut self, may: bool) {
        let is_watched = may && self.is_many;
        if std::mem::replace(&mut self.is_watched, is_watched) != is_watched {
            self.rendezvous.set_watchdog(is_watched.then(|| self.watch.clone()));
        }
    }

    /// When that is to be asked next. Suspended workers cannot stop by themselves: they are killed at the end.
    pub(super) fn deadline(&self, is_suspended: bool) -> Option<Instant> {
        let fence = self.fence()?;
        if is_suspended { self.is_many.then_some(fence.kill_by) } else { Some(fence.stop_at) }
    }

    /// Why the rendezvous failed, if it did.
    pub(super) const fn take_failure(&mut self) -> Option<RendezvousError> {
        self.failed.take()
    }

    /// The workers cannot be started here: the others are told when this node goes.
    pub(super) fn cannot_start(&mut self, error: &LaunchError) {
        self.not_started.get_or_insert_with(|| format_chain(error));
    }

    /// Tells the others how this node goes, and keeps what they need for a while, beside whatever the agent does
    /// meanwhile.
    pub(super) fn part(self, farewell: PeerNotice, parting: ShutdownKind) -> io::Result<Departure> {
        let limit = limit_of(farewell) + self.rendezvous.round_trip() * FAREWELL_ROUND_TRIPS;
        let (over, done) = pipe2(OFlag::O_CLOEXEC)?;
        let rendezvous = self.rendezvous;
        thread::Builder::new().name("parting".to_owned()).spawn(move || {
            rendezvous.end(parting, limit);
            drop(done);
        })?;
        Ok(Departure { over, until: Instant::now() + limit })
    }
}

impl AsFd for Others {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.rendezvous.as_fd()
    }
}

/// A notice to the other nodes that is on its way.
#[derive(Debug)]
pub(super) struct Departure {
    /// The other end is closed when the notice is delivered.
    over: OwnedFd,
    /// After this time it is not awaited.
    pub(super) until: Instant,
}

impl Departure {
    /// True once the notice is delivered: nothing is ever written to the pipe, so it is readable at its end.
    pub(super) fn is_over(&self) -> bool {
        let mut fds = [PollFd::new(self.over.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }
}

impl AsFd for Departure {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.over.as_fd()
    }
}

impl Agent<'_> {
    /// Before what the state wants is done, who is about to be started counts; afterwards, nobody who has been swept.
    pub(super) fn tell_guard_of_workers(&mut self, is_before: bool) {
        let may = self.state.has_workers();
        if let Some(others) = &mut self.rendezvous
            && may == is_before
        {
            others.may_have_workers(may);
        }
    }

    /// Passes on what the state wants of the other nodes.
    pub(super) fn speak_to_others(&mut self, action: &Action) {
        let Some(others) = &mut self.rendezvous else { return };
        match action {
            Action::Join { workers } => others.join(*workers),
            Action::TellFailure { end } => {
                self.workers
                    .failure_note(end)
                    .into_iter()
                    .for_each(|note| others.wish(RendezvousCommand::Failed(note)));
            }
            Action::FindLostNode => others.wish(RendezvousCommand::FindLostNode),
            Action::TellSuccess => others.wish(RendezvousCommand::Succeeded),
            Action::TellStop { reason } => {
                others.wish(RendezvousCommand::Stopping { why: stop_text(*reason) })
            }
            _ => {}
        }
    }

    /// The other nodes hear of the end while the last output and the last words go out.
    pub(super) fn part(
        &mut self,
        outcome: &JobOutcome,
        failed: Option<&RendezvousError>,
    ) -> Option<Departure> {
        let mut others = self.rendezvous.take()?;
        if let Some(source) = self.scan_error {
            others.cannot_start(&LaunchError::Unswept { source });
        }
        let own = || self.workers.launcher_failure_note(others.not_started.take()?);
        let parting = match outcome.peer_notice {
            PeerNotice::Succeeded => {
                ShutdownKind::Close { succeeded: true, failure: None, rule: outcome.rule.clone() }
            }
            PeerNotice::Failed => {
                let failure = self.own_failure(outcome).or_else(own);
                ShutdownKind::Close { succeeded: false, failure, rule: outcome.rule.clone() }
            }
            PeerNotice::Left => ShutdownKind::Leave { why: why(outcome, failed) },
        };
        let departure = others.part(outcome.peer_notice, parting);
        departure.map_err(|error| tracing::warn!("the other nodes are not told of the end: {error}")).ok()
    }

    fn own_failure(&self, outcome: &JobOutcome) -> Option<FailureNote> {
        outcome.failure.as_ref().and_then(|failure| self.workers.failure_note(&failure.first))
    }
}

/// A farewell is so many requests, one after the other.
const FAREWELL_ROUND_TRIPS: u32 = 10;

/// After a success others may still use the stores that are hosted here; after a failure they only have to hear of it.
const fn limit_of(farewell: PeerNotice) -> Duration {
    match farewell {
        PeerNotice::Succeeded => Duration::from_secs(7),
        PeerNotice::Failed => Duration::from_secs(4),
        PeerNotice::Left => Duration::from_secs(2),
    }
}

fn why(outcome: &JobOutcome, failed: Option<&RendezvousError>) -> String {
    match (outcome.stopped_by, outcome.time_limit, failed, &outcome.remote_end) {
        (Some(signal), ..) => stop_text(StopReason::Signal(signal)),
        (None, Some(_), ..) => stop_text(StopReason::TimeLimit),
        (None, None, Some(error), _) => format_chain(error),
        (None, None, None, Some(_)) => stop_text(StopReason::EndedElsewhere),
        (None, None, None, None) => stop_text(StopReason::Membership),
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

fn tell_of(round: &Round) {
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
