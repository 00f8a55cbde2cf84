//! A virtual agent: it does what the rendezvous thread and the agent do around the round logic, with workers that take their
//! time to stop.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::history::LEASE;
use crate::rendezvous::ranks::Ranks;
use crate::rendezvous::round::{Goal, Me};
use crate::rendezvous::sightings::Sightings;
use crate::rendezvous::state::{Node, State};

/// An agent that runs or has run.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) me: Me,
    pub(super) phase: Phase,
    pub(super) sightings: Sightings,
    pub(super) known: Rc<State>,
    pub(super) version: u64,
    pub(super) ranks: Option<Rc<Ranks>>,
    /// The round that it was in last.
    pub(super) before: Option<u64>,
    /// The request without an answer.
    pub(super) pending: Option<u64>,
    /// It is to look again after that, and whether with a beat.
    pub(super) owes: Option<bool>,
    /// When the sign of life was sent that is not answered yet, on the connection for those alone.
    pub(super) pulse: Option<u64>,
    /// When the newest beat was sent that was acknowledged.
    pub(super) beaten: u64,
    /// It was cut off for long enough that others may be about to find it dead, until then.
    pub(super) doubted_until: u64,
    /// No message of it was lost since.
    pub(super) clear_since: u64,
    /// The next moment at which it wakes by itself, so that only one is under way.
    pub(super) wakes: u64,
    /// Its lease means nothing to it.
    pub(super) outlives: bool,
    /// A torchrun agent's own times.
    pub(super) torch: super::torch::Times,
}

/// What it is at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    Joining { deadline: u64 },
    Running { round: u64, members: Rc<[Node]> },
    Stopping { round: u64, until: u64, then: Then },
    Parting { closes: bool },
    Ended(Why),
}

/// What comes when the workers are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    Join,
    Leave,
    Close,
    End,
}

/// Why it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    Crashed,
    TimedOut,
    Closed,
    NotNeeded,
    Taken,
    Left,
    HasClosed,
}

/// After this without an acknowledged beat it stops its workers.
const CUT_OFF: u64 = LEASE * 7 / 10;

/// After this it has killed them.
const KILLED: u64 = LEASE * 19 / 20;

/// After this without an acknowledged beat others may be about to take it for dead.
const LATE: u64 = LEASE * 3 / 5;

/// So long after a time without beats others may not have seen the new ones.
const DOUBT: u64 = LEASE * 2 / 5;

impl Agent {
    pub(super) fn new(me: Me, now: u64, deadline: u64) -> Self {
        let sightings = Sightings::new(&me.times);
        Self {
            me,
            phase: Phase::Joining { deadline },
            sightings,
            known: Rc::default(),
            version: 0,
            ranks: None,
            before: None,
            pending: None,
            owes: None,
            pulse: None,
            beaten: now,
            doubted_until: 0,
            clear_since: now,
            wakes: 0,
            outlives: false,
            torch: super::torch::Times::default(),
        }
    }

    pub(super) const fn lives(&self) -> bool {
        !matches!(self.phase, Phase::Ended(_))
    }

    /// Whether its last beat was too long ago.
    pub(super) const fn is_cut_off(&self, now: u64) -> bool {
        now >= self.beaten + CUT_OFF
    }

    /// Whether it is about to stop its workers for that.
    pub(super) const fn loses_its_workers(&self, now: u64) -> bool {
        matches!(self.phase, Phase::Running { .. }) && !self.outlives && self.is_cut_off(now)
    }

    /// A beat that was sent then is acknowledged.
    pub(super) fn has_beaten(&mut self, sent: u64) {
        // A newer one may have been faster on the other connection.
        if sent >= self.beaten + LATE {
            self.doubted_until = sent + DOUBT;
        }
        self.beaten = self.beaten.max(sent);
    }

    /// Of which round its workers are, and until when they live at most if it hears nothing more.
    pub(super) fn workers(&self, stop: u64) -> Option<(u64, u64)> {
        let limit = if self.outlives { u64::MAX } else { self.beaten + KILLED };
        match self.phase {
            Phase::Running { round, .. } if self.outlives => Some((round, limit)),
            Phase::Running { round, .. } => Some((round, (self.beaten + CUT_OFF + stop).min(limit))),
            Phase::Stopping { round, until, .. } => Some((round, until.min(limit))),
            Phase::Joining { .. } | Phase::Parting { .. } | Phase::Ended(_) => None,
        }
    }

    /// Stops its workers where it has been cut off for too long; the lease is the limit, whatever comes later.
    pub(super) fn mind_the_lease(&mut self, now: u64, stop: u64) {
        let limit = self.beaten + KILLED;
        if self.outlives {
            return;
        }
        match &mut self.phase {
            Phase::Running { round, .. } if now >= self.beaten + CUT_OFF => {
                let until = (self.beaten + CUT_OFF + stop).min(limit);
                self.phase = Phase::Stopping { round: *round, until, then: Then::Join };
            }
            Phase::Stopping { until, .. } if now >= self.beaten + CUT_OFF => *until = (*until).min(limit),
            _ => {}
        }
    }

    pub(super) fn stop(&mut self, now: u64, stop: u64, then: Then) {
        match &mut self.phase {
            Phase::Running { round, .. } => {
                self.phase = Phase::Stopping { round: *round, until: now + stop, then };
            }
            Phase::Stopping { then: old, .. } if then != Then::Join && *old != Then::Close => *old = then,
            Phase::Joining { .. } => match then {
                Then::Leave => self.phase = Phase::Parting { closes: false },
                Then::Close => self.phase = Phase::Parting { closes: true },
                Then::Join | Then::End => {}
            },
            Phase::Stopping { .. } | Phase::Parting { .. } | Phase::Ended(_) => {}
        }
    }

    /// What it wants now.
    pub(super) fn goal(&self, at: impl Fn(u64) -> std::time::Instant) -> Option<Goal<'_>> {
        match &self.phase {
            Phase::Joining { deadline } => Some(Goal::Join { deadline: at(*deadline), before: self.before }),
            Phase::Running { round, members } => Some(Goal::Stay { round: *round, members }),
            Phase::Stopping { .. } => Some(Goal::Hold),
            Phase::Parting { closes: true } => Some(Goal::Close),
            Phase::Parting { closes: false } => Some(Goal::Leave),
            Phase::Ended(_) => None,
        }
    }

    /// Takes the newest ranks that anybody knows.
    pub(super) fn learn(&mut self, ranks: Option<Rc<Ranks>>) {
        let is_newer = |new: &Rc<Ranks>| self.ranks.as_ref().is_none_or(|old| old.round <= new.round);
        if let Some(new) = ranks.filter(is_newer) {
            self.ranks = Some(new);
        }
    }

    pub(super) fn see(&mut self, beats: Option<&BTreeMap<Node, i64>>, now: std::time::Instant) {
        static NONE: BTreeMap<Node, i64> = BTreeMap::new();
        self.sightings.saw(&self.known, beats.unwrap_or(&NONE), now);
    }
}
