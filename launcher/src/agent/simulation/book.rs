//! What has happened so far, told apart from the machine: what went in and what came out, in the order in which it did.

use std::time::Instant;

use nix::sys::signal::Signal;

use rankrun_contract::rank::{Generation, LocalRank};

use super::history::Setup;
use super::node::Node;
use crate::agent::message::{Action, Happening, Input, Released, WorkerEnd};

/// The record of one history.
#[derive(Debug)]
pub(super) struct Book {
    pub(super) ready: bool,
    pub(super) starts: u32,
    pub(super) generation: Generation,
    /// How many workers the next start has.
    pub(super) seats: u32,
    pub(super) open: Option<Question>,
    /// The first signal by which the launcher was told to stop.
    pub(super) wish: Option<Signal>,
    pub(super) finished: bool,
    pub(super) life: Life,
}

/// What the machine waits for when nobody runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    Devices,
    Seats,
    Progress,
}

/// The record of one generation.
#[derive(Debug, Default)]
pub(super) struct Life {
    /// That its start has failed is on its way to the machine.
    pub(super) start_pending: bool,
    /// The ends that the machine was told of.
    pub(super) ends: Vec<WorkerEnd>,
    /// Why it ends: what the machine was told first.
    pub(super) cause: Option<Cause>,
    /// How many ends came before that.
    pub(super) ends_before: usize,
    pub(super) asked_at: Option<Instant>,
    pub(super) killed_at: Option<Instant>,
    /// Said to be there for good.
    pub(super) given_up: Vec<LocalRank>,
    pub(super) released: Option<Released>,
    pub(super) group_failed: Option<WorkerEnd>,
    pub(super) swept: bool,
}

/// Why a generation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    Failed(LocalRank),
    Stuck(LocalRank),
    User,
    NotStarted,
}

impl Book {
    pub(super) fn new(setup: &Setup) -> Self {
        Self {
            ready: false,
            starts: 0,
            generation: Generation(0),
            seats: setup.workers,
            open: None,
            wish: None,
            finished: false,
            life: Life::default(),
        }
    }

    /// Whether this is about a generation that is over.
    pub(super) fn is_stale(&self, input: &Input) -> bool {
        let about = match input {
            Input::StartFailed { generation, .. }
            | Input::Exited { generation, .. }
            | Input::StartedByHand { generation, .. }
            | Input::Looked { generation, .. }
            | Input::JoinsSeen { generation, .. }
            | Input::DevicesChecked { generation, .. }
            | Input::Reseated { generation, .. }
            | Input::ProgressSeen { generation, .. } => *generation,
            Input::Ready
            | Input::StopRequested { .. }
            | Input::SignalPassed { .. }
            | Input::Halted { .. }
            | Input::DeadlinePassed => return false,
        };
        about != self.generation
    }

    /// The machine is about to be told this.
    pub(super) fn enter(&mut self, input: &Input, node: &mut Node) {
        if self.is_stale(input) {
            return;
        }
        match input {
            Input::Ready => self.ready = true,
            Input::StartFailed { .. } => {
                self.life.start_pending = false;
                self.life.because(Cause::NotStarted);
            }
            Input::Exited { end, .. } => {
                node.entered(end.pid);
                if self.life.swept {
                    // The end of a person's worker comes too late for the story.
                    return;
                }
                if !end.exit.is_success() {
                    self.life.because(Cause::Failed(end.local_rank));
                }
                self.life.ends.push(*end);
            }
            Input::StopRequested { signal, .. } => {
                self.wish.get_or_insert(*signal);
                if self.starts > 0 {
                    self.life.because(Cause::User);
                }
            }
            Input::DevicesChecked { .. } | Input::Reseated { .. } | Input::ProgressSeen { .. } => {
                self.open = None;
            }
            Input::SignalPassed { .. }
            | Input::Looked { .. }
            | Input::JoinsSeen { .. }
            | Input::StartedByHand { .. }
            | Input::Halted { .. }
            | Input::DeadlinePassed => {}
        }
    }

    /// The machine wants this.
    pub(super) fn note(&mut self, action: &Action, now: Instant) {
        match action {
            Action::Start { generation, .. } => {
                self.starts += 1;
                self.generation = *generation;
                self.life = Life::default();
            }
            Action::Signal { signal, .. } => {
                self.life.asked_at.get_or_insert(now);
                if *signal == Signal::SIGKILL {
                    self.life.killed_at.get_or_insert(now);
                }
            }
            Action::Release { because } => self.life.released = Some(*because),
            Action::KillLeftovers { .. } => self.life.swept = true,
            Action::CheckDevices { .. } => self.open = Some(Question::Devices),
            Action::Reseat { .. } => self.open = Some(Question::Seats),
            Action::LookForProgress { .. } => self.open = Some(Question::Progress),
            Action::Say(Happening::Stuck { asleep, .. }) => {
                self.life.because(Cause::Stuck(asleep.local_rank))
            }
            Action::Say(Happening::GroupFailed { cause }) => self.life.group_failed = Some(*cause),
            Action::Say(Happening::CannotEnd { local_ranks }) => self.life.given_up.clone_from(local_ranks),
            Action::Say(Happening::Reseated { workers }) => self.seats = workers.get(),
            Action::Finish(_) => self.finished = true,
            Action::Say(_) | Action::Pass { .. } | Action::Look { .. } | Action::LookWhoJoined { .. } => {}
        }
    }
}

impl Life {
    fn because(&mut self, cause: Cause) {
        if self.cause.is_none() {
            self.cause = Some(cause);
            self.ends_before = self.ends.len();
        }
    }

    /// The ends since the cause, that one included.
    pub(super) fn ends_since(&self) -> &[WorkerEnd] {
        &self.ends[self.ends_before..]
    }
}
