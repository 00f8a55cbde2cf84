//! The failure detector: which agents are alive, by this node's own monotonic clock. The clocks of other machines
//! decide nothing. Pure: the rendezvous task reads state and heartbeats from the store, and passes them in.
//!
//! - A rankrun agent is alive while its heartbeat counter in the store advances within the lease.
//! - A torchrun agent is alive while its heartbeat in the state changes within interval × attempts.
//! - A node is alive when it is first seen.
//! - Time in which this node could not read the store does not count: if the store was away, no agent could send a
//!   heartbeat.
//! - A torchrun agent in no list keeps ageing. Another agent may have removed it as dead just before, or it is about to
//!   return.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::state::{Node, RendezvousState, Timestamp};
use crate::spec::rendezvous::RoundTimes;

/// The failure detector of one node, with a record of every other node.
#[derive(Debug, Clone)]
pub struct FailureDetector {
    lease: Duration,
    torch_limit: Duration,
    peers: BTreeMap<Node, PeerRecord>,
    last_call: Option<LastCall>,
    /// Records of nodes that are in no list any more.
    unlisted: BTreeMap<Node, RemovedNode>,
}

/// Record of a node that left all lists.
#[derive(Debug, Clone)]
struct RemovedNode {
    /// The round in which the removal was noticed.
    round: u64,
    record: PeerRecord,
}

/// Liveness record of one node.
#[derive(Debug, Clone)]
struct PeerRecord {
    liveness: LivenessSource,
    /// Time of the last change of `liveness`.
    since: Instant,
    /// Time of the last read of `liveness`.
    observed_time: Instant,
    /// Whether the heartbeat counter has advanced while this node was reading it.
    has_moved: bool,
    gone: ConnectionStatus,
    /// The node's heartbeat in the state changed after the last read of its counter: another agent reports that it is
    /// alive.
    is_doubtful: bool,
    heartbeat: Option<Timestamp>,
    heartbeat_since: Instant,
}

/// The value that shows that a node is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LivenessSource {
    /// Heartbeat counter of a rankrun agent.
    Counter(i64),
    /// Heartbeat of a torchrun agent in the shared state.
    Heartbeat(Option<Timestamp>),
}

/// Whether all connections of a node are known to have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionStatus {
    No,
    /// The next read may still return a heartbeat from before the end.
    JustNow,
    Yes,
}

/// Record of a running last call.
#[derive(Debug, Clone, Copy)]
struct LastCall {
    round: u64,
    deadline: Timestamp,
    since: Instant,
}

/// A node's heartbeat is read about this many times per limit.
const MAX_READ_GAP: u32 = 5;

/// A heartbeat is late after 5/4 periods. A node that is cut off in one direction stops its workers after 7/10 of the
/// lease without an answer. Its last heartbeat may be seen up to two periods later. At least 1.5 periods have passed
/// then.
const LATE: (u32, u32) = (5, 4);

impl FailureDetector {
    /// A failure detector that has not seen any node.
    #[must_use]
    pub const fn new(times: &RoundTimes) -> Self {
        Self {
            lease: times.lease,
            torch_limit: times.keep_alive.saturating_mul(times.keep_alive_attempts),
            peers: BTreeMap::new(),
            last_call: None,
            unlisted: BTreeMap::new(),
        }
    }

    /// Records one read of the state, with the heartbeat counters that were read at the same time (empty if only the
    /// state was read). Forgets nodes that are in no list for two rounds.
    pub fn record_snapshot(&mut self, state: &RendezvousState, counters: &BTreeMap<Node, i64>, now: Instant) {
        let listed: BTreeSet<&Node> = state.listed().collect();
        self.record_unlisted(&listed, state.round, now);
        let limits = (self.lease, self.torch_limit);
        for node in listed {
            self.unlisted.remove(node);
            let heartbeat = state.last_heartbeats.get(node).copied();
            match self.peers.get_mut(node) {
                Some(record) => record.saw(counters.get(node).copied(), heartbeat, limits, now),
                None => {
                    let record = PeerRecord::first(counters.get(node).copied(), heartbeat, now);
                    self.peers.insert(node.clone(), record);
                }
            }
        }
        self.last_call = state.deadline.filter(|_| !state.complete).map(|deadline| {
            let same = |call: &LastCall| call.round == state.round && call.deadline == deadline;
            let known = self.last_call.filter(same);
            known.unwrap_or(LastCall { round: state.round, deadline, since: now })
        });
    }

    fn record_unlisted(&mut self, listed: &BTreeSet<&Node>, round: u64, now: Instant) {
        let limits = (self.lease, self.torch_limit);
        let unlisted = self.peers.extract_if(.., |node, _| !listed.contains(node));
        self.unlisted.extend(unlisted.map(|(node, record)| (node, RemovedNode { round, record })));
        self.unlisted.retain(|_, unlisted| unlisted.round + 2 > round);
        for RemovedNode { record, .. } in self.unlisted.values_mut() {
            record.saw(None, record.heartbeat, limits, now);
        }
    }

    /// Whether a listed node's heartbeat was older than its limit at the last read. False for nodes that were never
    /// seen.
    #[must_use]
    pub fn is_dead(&self, node: &Node) -> bool {
        self.peers.get(node).is_some_and(|record| record.is_dead((self.lease, self.torch_limit)))
    }

    /// Whether a node in no list is dead, or has been away for longer than its limit. Such a node is not just changing
    /// lists.
    #[must_use]
    pub(crate) fn has_died(&self, node: &Node) -> bool {
        let limits = (self.lease, self.torch_limit);
        self.unlisted.get(node).is_some_and(|unlisted| unlisted.record.is_dead(limits))
    }

    /// Whether a rankrun agent's heartbeat has advanced since the agent was first seen.
    #[must_use]
    pub fn has_moved(&self, node: &Node) -> bool {
        self.peers.get(node).is_some_and(|record| record.has_moved)
    }

    /// Whether a rankrun agent's heartbeat was seen to advance after `then`.
    #[must_use]
    pub fn is_alive_since(&self, node: &Node, then: Instant) -> bool {
        self.peers.get(node).is_some_and(|record| {
            record.since > then && matches!(record.liveness, LivenessSource::Counter(_))
        })
    }

    /// When a rankrun agent with late heartbeats will be dead. Heartbeats are late if the last read was clearly later
    /// than one `period` after the last change. `None` if they are fresh.
    #[must_use]
    pub fn heartbeat_late_until(&self, node: &Node, period: Duration) -> Option<Instant> {
        let record =
            self.peers.get(node).filter(|record| matches!(record.liveness, LivenessSource::Counter(_)))?;
        let is_late = record.observed_time.saturating_duration_since(record.since) > period * LATE.0 / LATE.1;
        record.since.checked_add(self.lease).filter(|_| is_late)
    }

    /// The earliest time at which a read may find another node dead.
    #[must_use]
    pub(crate) fn next_death(&self, now: Instant) -> Option<Instant> {
        let limits = (self.lease, self.torch_limit);
        let away = self.unlisted.values().map(|unlisted| &unlisted.record);
        // A rankrun agent in no list changes nothing when it dies.
        let away = away.filter(|record| matches!(record.liveness, LivenessSource::Heartbeat(_)));
        let living = self.peers.values().chain(away).filter(|record| record.gone == ConnectionStatus::No);
        living
            .filter_map(|record| record.since.checked_add(record.limit(limits)))
            .filter(|dies| *dies > now)
            .min()
    }

    /// Records that a node or its kernel has closed all its connections. The node is dead at once, until its heartbeat
    /// advances.
    pub fn mark_disconnected(&mut self, node: &Node) {
        if let Some(record) = self.peers.get_mut(node) {
            record.gone = ConnectionStatus::JustNow;
        }
    }

    /// When this node first saw the last call of this state.
    #[must_use]
    pub fn last_call_observed_at(&self, state: &RendezvousState) -> Option<Instant> {
        let same = |call: &LastCall| call.round == state.round && Some(call.deadline) == state.deadline;
        self.last_call.filter(same).map(|call| call.since)
    }

    /// Since when a node's heartbeat in the state has not changed.
    #[must_use]
    pub(crate) fn heartbeat_since(&self, node: &Node) -> Option<Instant> {
        self.peers.get(node).filter(|record| record.heartbeat.is_some()).map(|record| record.heartbeat_since)
    }

    /// The fastest torchrun agent's clock shows at least this time. torchrun agents compare our heartbeats with their
    /// clocks.
    #[must_use]
    pub(crate) fn torch_clock(&self, now: Instant) -> Option<Timestamp> {
        let clock = |record: &PeerRecord| match record.liveness {
            LivenessSource::Heartbeat(Some(Timestamp(shown))) => {
                let since = now.saturating_duration_since(record.heartbeat_since).as_micros();
                Some(Timestamp(shown.saturating_add(i64::try_from(since).unwrap_or(i64::MAX))))
            }
            LivenessSource::Heartbeat(None) | LivenessSource::Counter(_) => None,
        };
        self.peers.values().filter_map(clock).max()
    }
}

impl PeerRecord {
    fn first(counter: Option<i64>, heartbeat: Option<Timestamp>, now: Instant) -> Self {
        let liveness = counter.map_or(LivenessSource::Heartbeat(heartbeat), LivenessSource::Counter);
        Self {
            liveness,
            since: now,
            observed_time: now,
            has_moved: false,
            gone: ConnectionStatus::No,
            is_doubtful: false,
            heartbeat,
            heartbeat_since: now,
        }
    }

    /// Silence counts only up to the last read: a later heartbeat may exist.
    fn is_dead(&self, limits: (Duration, Duration)) -> bool {
        let is_silent = self.observed_time.saturating_duration_since(self.since) >= self.limit(limits);
        !self.is_doubtful && (self.gone != ConnectionStatus::No || is_silent)
    }

    const fn limit(&self, (lease, torch_limit): (Duration, Duration)) -> Duration {
        match self.liveness {
            LivenessSource::Counter(_) => lease,
            LivenessSource::Heartbeat(_) => torch_limit,
        }
    }

    fn saw(
        &mut self,
        counter: Option<i64>,
        heartbeat: Option<Timestamp>,
        limits: (Duration, Duration),
        now: Instant,
    ) {
        if self.heartbeat != heartbeat {
            (self.heartbeat, self.heartbeat_since) = (heartbeat, now);
            self.is_doubtful = true;
        }
        let liveness = match (self.liveness, counter) {
            (_, Some(counter)) => LivenessSource::Counter(counter),
            // The counter was not read.
            (LivenessSource::Counter(_), None) => return,
            (LivenessSource::Heartbeat(_), None) => LivenessSource::Heartbeat(heartbeat),
        };
        self.is_doubtful = false;
        let unseen = now.saturating_duration_since(self.observed_time);
        let interval = self.limit(limits) / MAX_READ_GAP;
        self.observed_time = now;
        if liveness != self.liveness {
            let may_be_late = self.gone == ConnectionStatus::JustNow;
            let is_counter =
                matches!((self.liveness, liveness), (LivenessSource::Counter(_), LivenessSource::Counter(_)));
            // A change may be old if the last read was long ago.
            let is_fresh = unseen <= interval * 2;
            self.has_moved = is_counter && !may_be_late && (self.has_moved || is_fresh);
            (self.liveness, self.since) = (liveness, now);
            self.gone = if may_be_late { ConnectionStatus::Yes } else { ConnectionStatus::No };
        } else if unseen > interval * 2 {
            self.since = (self.since + unseen).checked_sub(interval).unwrap_or(now);
        }
        if self.gone == ConnectionStatus::JustNow {
            self.gone = ConnectionStatus::Yes;
        }
    }
}

#[cfg(test)]
mod tests;
