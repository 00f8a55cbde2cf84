//! Who was seen when, by this node's own monotonic clock: the clocks of other machines decide nothing. Pure.
//!
//! A rankrun agent lives as long as its beat, a counter in the store, goes on within the lease; a torchrun agent as long as
//! its heartbeat in the state changes within interval × attempts. Whoever is seen for the first time lives. Time in which this
//! node could not look ages nobody: when the store itself was away, nobody could beat. A torchrun agent that is in no list any
//! more goes on ageing: others may have taken it out as dead a moment before we would have, or it is about to come back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::state::{Node, State, Timestamp};
use crate::spec::rendezvous::RoundTimes;

/// What this node has seen of the others.
#[derive(Debug, Clone)]
pub struct Sightings {
    lease: Duration,
    torch_limit: Duration,
    signs: BTreeMap<Node, Sign>,
    last_call: Option<LastCall>,
    /// In no list any more.
    unlisted: BTreeMap<Node, Unlisted>,
}

/// A node that was in a list.
#[derive(Debug, Clone)]
struct Unlisted {
    /// The round when that was noticed.
    round: u64,
    sign: Sign,
}

/// The signs of life of one node.
#[derive(Debug, Clone)]
struct Sign {
    life: Life,
    /// Since when nothing of that has changed.
    since: Instant,
    /// When it was looked for last.
    looked: Instant,
    /// Its beat has gone on while it was looked for.
    has_moved: bool,
    gone: Gone,
    /// Its heartbeat in the state has changed since its beat was looked for: somebody thinks that it lives.
    is_doubtful: bool,
    heartbeat: Option<Timestamp>,
    heartbeat_since: Instant,
}

/// What a node shows that it lives by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// A rankrun agent's counter.
    Beat(i64),
    /// A torchrun agent's heartbeat.
    Heartbeat(Option<Timestamp>),
}

/// Whether all connections of a node are known to have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gone {
    No,
    /// The next look may still show a beat from before.
    JustNow,
    Yes,
}

/// A last call that is under way.
#[derive(Debug, Clone, Copy)]
struct LastCall {
    round: u64,
    deadline: Timestamp,
    since: Instant,
}

/// A node's signs are looked for about as often as this part of its limit.
const LOOKS: u32 = 5;

/// A sign of life is late after so many periods. A node that is cut off in one direction stops its workers after seven tenths
/// of the lease without an answer, and what it sent last may have been seen up to two periods later: then one and a half
/// have gone by at least.
const LATE: (u32, u32) = (5, 4);

impl Sightings {
    /// Of nobody yet.
    #[must_use]
    pub const fn new(times: &RoundTimes) -> Self {
        Self {
            lease: times.lease,
            torch_limit: times.keep_alive.saturating_mul(times.keep_alive_attempts),
            signs: BTreeMap::new(),
            last_call: None,
            unlisted: BTreeMap::new(),
        }
    }

    /// One look: the state, and the beats of rankrun agents that were read just now (none where only the state was).
    /// Nodes that are in no list for two rounds are forgotten.
    pub fn saw(&mut self, state: &State, beats: &BTreeMap<Node, i64>, now: Instant) {
        let listed: BTreeSet<&Node> = state.listed().collect();
        self.miss_all_but(&listed, state.round, now);
        let limits = (self.lease, self.torch_limit);
        for node in listed {
            self.unlisted.remove(node);
            let heartbeat = state.last_heartbeats.get(node).copied();
            match self.signs.get_mut(node) {
                Some(sign) => sign.saw(beats.get(node).copied(), heartbeat, limits, now),
                None => {
                    let sign = Sign::first(beats.get(node).copied(), heartbeat, now);
                    self.signs.insert(node.clone(), sign);
                }
            }
        }
        self.last_call = state.deadline.filter(|_| !state.complete).map(|deadline| {
            let same = |call: &LastCall| call.round == state.round && call.deadline == deadline;
            let known = self.last_call.filter(same);
            known.unwrap_or(LastCall { round: state.round, deadline, since: now })
        });
    }

    fn miss_all_but(&mut self, listed: &BTreeSet<&Node>, round: u64, now: Instant) {
        let limits = (self.lease, self.torch_limit);
        let unlisted = self.signs.extract_if(.., |node, _| !listed.contains(node));
        self.unlisted.extend(unlisted.map(|(node, sign)| (node, Unlisted { round, sign })));
        self.unlisted.retain(|_, unlisted| unlisted.round + 2 > round);
        for Unlisted { sign, .. } in self.unlisted.values_mut() {
            sign.saw(None, sign.heartbeat, limits, now);
        }
    }

    /// Whether a node that is in a list had given no sign of life for too long when it was looked for last. False of nodes
    /// never seen.
    #[must_use]
    pub fn is_dead(&self, node: &Node) -> bool {
        self.signs.get(node).is_some_and(|sign| sign.is_dead((self.lease, self.torch_limit)))
    }

    /// Whether a node is in no list any more, and was dead already, or has been away until its limit was over: then it is not
    /// on its way from one list to another.
    #[must_use]
    pub fn has_died(&self, node: &Node) -> bool {
        let limits = (self.lease, self.torch_limit);
        self.unlisted.get(node).is_some_and(|unlisted| unlisted.sign.is_dead(limits))
    }

    /// Whether a rankrun agent has shown since it was first seen that it lives.
    #[must_use]
    pub fn has_moved(&self, node: &Node) -> bool {
        self.signs.get(node).is_some_and(|sign| sign.has_moved)
    }

    /// Whether a rankrun agent has given a sign of life that was seen after this moment.
    #[must_use]
    pub fn lives_since(&self, node: &Node, then: Instant) -> bool {
        self.signs.get(node).is_some_and(|sign| sign.since > then && matches!(sign.life, Life::Beat(_)))
    }

    /// When a rankrun agent will be dead whose signs of life are late, by the last look for them: there was none for clearly
    /// longer than the `period` in which one is due. Nothing of one whose signs are fresh.
    #[must_use]
    pub fn doubted_until(&self, node: &Node, period: Duration) -> Option<Instant> {
        let sign = self.signs.get(node).filter(|sign| matches!(sign.life, Life::Beat(_)))?;
        let is_late = sign.looked.saturating_duration_since(sign.since) > period * LATE.0 / LATE.1;
        sign.since.checked_add(self.lease).filter(|_| is_late)
    }

    /// The earliest moment at which a look may find somebody dead who is not yet.
    #[must_use]
    pub fn next_death(&self, now: Instant) -> Option<Instant> {
        let limits = (self.lease, self.torch_limit);
        let away = self.unlisted.values().map(|unlisted| &unlisted.sign);
        // What a rankrun agent does in no list makes no difference.
        let away = away.filter(|sign| matches!(sign.life, Life::Heartbeat(_)));
        let living = self.signs.values().chain(away).filter(|sign| sign.gone == Gone::No);
        living.filter_map(|sign| sign.since.checked_add(sign.limit(limits))).filter(|dies| *dies > now).min()
    }

    /// All connections of a node have been ended by itself or its kernel: it is dead at once, until its beat goes on.
    pub fn gone(&mut self, node: &Node) {
        if let Some(sign) = self.signs.get_mut(node) {
            sign.gone = Gone::JustNow;
        }
    }

    /// Since when the last call of this state is seen.
    #[must_use]
    pub fn deadline_seen(&self, state: &State) -> Option<Instant> {
        let same = |call: &LastCall| call.round == state.round && Some(call.deadline) == state.deadline;
        self.last_call.filter(same).map(|call| call.since)
    }

    /// Since when a node's heartbeat in the state is the same.
    #[must_use]
    pub fn heartbeat_since(&self, node: &Node) -> Option<Instant> {
        self.signs.get(node).filter(|sign| sign.heartbeat.is_some()).map(|sign| sign.heartbeat_since)
    }

    /// What the fastest clock of the torchrun agents shows at least: they hold our heartbeats against it.
    #[must_use]
    pub fn torch_clock(&self, now: Instant) -> Option<Timestamp> {
        let clock = |sign: &Sign| match sign.life {
            Life::Heartbeat(Some(Timestamp(shown))) => {
                let since = now.saturating_duration_since(sign.heartbeat_since).as_micros();
                Some(Timestamp(shown.saturating_add(i64::try_from(since).unwrap_or(i64::MAX))))
            }
            Life::Heartbeat(None) | Life::Beat(_) => None,
        };
        self.signs.values().filter_map(clock).max()
    }
}

impl Sign {
    fn first(beat: Option<i64>, heartbeat: Option<Timestamp>, now: Instant) -> Self {
        let life = beat.map_or(Life::Heartbeat(heartbeat), Life::Beat);
        Self {
            life,
            since: now,
            looked: now,
            has_moved: false,
            gone: Gone::No,
            is_doubtful: false,
            heartbeat,
            heartbeat_since: now,
        }
    }

    /// Silence counts as long as somebody listens: what was not looked for may be there.
    fn is_dead(&self, limits: (Duration, Duration)) -> bool {
        let is_silent = self.looked.saturating_duration_since(self.since) >= self.limit(limits);
        !self.is_doubtful && (self.gone != Gone::No || is_silent)
    }

    const fn limit(&self, (lease, torch_limit): (Duration, Duration)) -> Duration {
        match self.life {
            Life::Beat(_) => lease,
            Life::Heartbeat(_) => torch_limit,
        }
    }

    fn saw(
        &mut self,
        beat: Option<i64>,
        heartbeat: Option<Timestamp>,
        limits: (Duration, Duration),
        now: Instant,
    ) {
        if self.heartbeat != heartbeat {
            (self.heartbeat, self.heartbeat_since) = (heartbeat, now);
            self.is_doubtful = true;
        }
        let life = match (self.life, beat) {
            (_, Some(beat)) => Life::Beat(beat),
            // It was not looked for.
            (Life::Beat(_), None) => return,
            (Life::Heartbeat(_), None) => Life::Heartbeat(heartbeat),
        };
        self.is_doubtful = false;
        let unseen = now.saturating_duration_since(self.looked);
        let interval = self.limit(limits) / LOOKS;
        self.looked = now;
        if life != self.life {
            let is_old_news = self.gone == Gone::JustNow;
            let is_beat = matches!((self.life, life), (Life::Beat(_), Life::Beat(_)));
            // What happened while nobody looked may be long ago.
            let is_fresh = unseen <= interval * 2;
            self.has_moved = is_beat && !is_old_news && (self.has_moved || is_fresh);
            (self.life, self.since) = (life, now);
            self.gone = if is_old_news { Gone::Yes } else { Gone::No };
        } else if unseen > interval * 2 {
            self.since = (self.since + unseen).checked_sub(interval).unwrap_or(now);
        }
        if self.gone == Gone::JustNow {
            self.gone = Gone::Yes;
        }
    }
}

#[cfg(test)]
mod tests;
