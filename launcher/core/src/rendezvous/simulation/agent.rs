//! A simulated agent. It does what rendezvous task and agent do around the round logic. Its workers take some time to
//! stop. The world delivers its messages, and decides when it acts.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::history::LEASE;
use crate::rendezvous::failure_detector::FailureDetector;
use crate::rendezvous::ranks::Ranks;
use crate::rendezvous::round::{LocalNode, RoundGoal};
use crate::rendezvous::state::{Node, RendezvousState};

/// An agent that runs or has run. All times are in milliseconds of the virtual clock.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) me: LocalNode,
    pub(super) phase: Phase,
    pub(super) failure_detector: FailureDetector,
    pub(super) known: Rc<RendezvousState>,
    pub(super) version: u64,
    pub(super) ranks: Option<Rc<Ranks>>,
    /// The last round of this agent.
    pub(super) before: Option<u64>,
    /// Number of the request that is not answered yet.
    pub(super) pending: Option<u64>,
    /// Whether another read follows the request, and whether with a heartbeat.
    pub(super) owes: Option<bool>,
    /// Send time of the unanswered heartbeat on the separate heartbeat connection.
    pub(super) heartbeat_sent_at: Option<u64>,
    /// Send time of the newest acknowledged heartbeat.
    pub(super) last_heartbeat: u64,
    /// Until this time the other agents may be about to declare it dead: it was cut off for long enough.
    pub(super) doubted_until: u64,
    /// No message of this agent was lost since this time.
    pub(super) clear_since: u64,
    /// Next wake-up time, so that only one wake-up is scheduled.
    pub(super) wake_at: u64,
    /// Fault: the agent ignores its lease.
    pub(super) outlives: bool,
    /// State that only a torchrun agent keeps.
    pub(super) torch: super::torch::Times,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    Joining { deadline: u64 },
    Running { round: u64, members: Rc<[Node]> },
    Stopping { round: u64, until: u64, then: AfterWorkers },
    Leaving { closes: bool },
    Ended(AgentEnd),
}

/// What the agent does after its workers have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterWorkers {
    Join,
    Leave,
    Close,
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AgentEnd {
    Crashed,
    TimedOut,
    Closed,
    NotNeeded,
    Taken,
    Left,
    HasClosed,
}

/// Without an acknowledged heartbeat for this long, the agent stops its workers.
const CUT_OFF: u64 = LEASE * 7 / 10;

/// After this long, the agent has killed its workers.
const KILLED: u64 = LEASE * 19 / 20;

/// After this long, the other agents may be about to declare the agent dead.
const LATE: u64 = LEASE * 3 / 5;

/// For this long after a gap, the other agents may not have seen the new heartbeats.
const DOUBT: u64 = LEASE * 2 / 5;

impl Agent {
    pub(super) fn new(me: LocalNode, now: u64, deadline: u64) -> Self {
        let failure_detector = FailureDetector::new(&me.times);
        Self {
            me,
            phase: Phase::Joining { deadline },
            failure_detector,
            known: Rc::default(),
            version: 0,
            ranks: None,
            before: None,
            pending: None,
            owes: None,
            heartbeat_sent_at: None,
            last_heartbeat: now,
            doubted_until: 0,
            clear_since: now,
            wake_at: 0,
            outlives: false,
            torch: super::torch::Times::default(),
        }
    }

    pub(super) const fn is_running(&self) -> bool {
        !matches!(self.phase, Phase::Ended(_))
    }

    /// Whether the last acknowledged heartbeat is too old.
    pub(super) const fn is_cut_off(&self, now: u64) -> bool {
        now >= self.last_heartbeat + CUT_OFF
    }

    /// Whether the agent is about to stop its workers because it is cut off.
    pub(super) const fn loses_its_workers(&self, now: u64) -> bool {
        matches!(self.phase, Phase::Running { .. }) && !self.outlives && self.is_cut_off(now)
    }

    /// The heartbeat with this send time was acknowledged.
    pub(super) fn record_heartbeat_sent(&mut self, sent: u64) {
        // A newer heartbeat may have been faster on the other connection.
        if sent >= self.last_heartbeat + LATE {
            self.doubted_until = sent + DOUBT;
        }
        self.last_heartbeat = self.last_heartbeat.max(sent);
    }

    /// Round of the workers, and the latest time at which they end if no message arrives any more.
    pub(super) fn workers(&self, stop: u64) -> Option<(u64, u64)> {
        let limit = if self.outlives { u64::MAX } else { self.last_heartbeat + KILLED };
        match self.phase {
            Phase::Running { round, .. } if self.outlives => Some((round, limit)),
            Phase::Running { round, .. } => Some((round, (self.last_heartbeat + CUT_OFF + stop).min(limit))),
            Phase::Stopping { round, until, .. } => Some((round, until.min(limit))),
            Phase::Joining { .. } | Phase::Leaving { .. } | Phase::Ended(_) => None,
        }
    }

    /// Stops the workers of an agent that was cut off for too long. A later message does not extend the lease.
    pub(super) fn schedule_lease_stop(&mut self, now: u64, stop: u64) {
        let limit = self.last_heartbeat + KILLED;
        if self.outlives {
            return;
        }
        match &mut self.phase {
            Phase::Running { round, .. } if now >= self.last_heartbeat + CUT_OFF => {
                let until = (self.last_heartbeat + CUT_OFF + stop).min(limit);
                self.phase = Phase::Stopping { round: *round, until, then: AfterWorkers::Join };
            }
            Phase::Stopping { until, .. } if now >= self.last_heartbeat + CUT_OFF => {
                *until = (*until).min(limit)
            }
            _ => {}
        }
    }

    pub(super) fn stop(&mut self, now: u64, stop: u64, then: AfterWorkers) {
        match &mut self.phase {
            Phase::Running { round, .. } => {
                self.phase = Phase::Stopping { round: *round, until: now + stop, then };
            }
            Phase::Stopping { then: old, .. }
                if then != AfterWorkers::Join && *old != AfterWorkers::Close =>
            {
                *old = then
            }
            Phase::Joining { .. } => match then {
                AfterWorkers::Leave => self.phase = Phase::Leaving { closes: false },
                AfterWorkers::Close => self.phase = Phase::Leaving { closes: true },
                AfterWorkers::Join | AfterWorkers::End => {}
            },
            Phase::Stopping { .. } | Phase::Leaving { .. } | Phase::Ended(_) => {}
        }
    }

    pub(super) fn goal(&self, at: impl Fn(u64) -> std::time::Instant) -> Option<RoundGoal<'_>> {
        match &self.phase {
            Phase::Joining { deadline } => {
                Some(RoundGoal::Join { deadline: at(*deadline), before: self.before })
            }
            Phase::Running { round, members } => Some(RoundGoal::Stay { round: *round, members }),
            Phase::Stopping { .. } => Some(RoundGoal::Hold),
            Phase::Leaving { closes: true } => Some(RoundGoal::Close),
            Phase::Leaving { closes: false } => Some(RoundGoal::Leave),
            Phase::Ended(_) => None,
        }
    }

    /// Takes these ranks if they are newer than the known ones.
    pub(super) fn record_ranks(&mut self, ranks: Option<Rc<Ranks>>) {
        let is_newer = |new: &Rc<Ranks>| self.ranks.as_ref().is_none_or(|old| old.round <= new.round);
        if let Some(new) = ranks.filter(is_newer) {
            self.ranks = Some(new);
        }
    }

    pub(super) fn record_heartbeats(
        &mut self,
        heartbeats: Option<&BTreeMap<Node, i64>>,
        now: std::time::Instant,
    ) {
        static NONE: BTreeMap<Node, i64> = BTreeMap::new();
        self.failure_detector.record_snapshot(&self.known, heartbeats.unwrap_or(&NONE), now);
    }
}
