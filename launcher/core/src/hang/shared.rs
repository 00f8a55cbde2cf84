//! The evidence that one node tells the others: JSON in the agents' store. Times are ages, since each node has its own clock.
//! The bytes come from other machines: their number is bounded, and the words of the verdict escape texts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rankrun_contract::rank::Rank;
use serde::{Deserialize, Serialize};

use crate::hang::evidence::{Collective, GroupActivity, RankEvidence, ReceivedHeartbeat};
use crate::hang::heartbeat::Heartbeat;

/// No node writes or reads more, in bytes.
pub const MAX_SHARED: usize = 256 << 10;
/// The collectives of a group that are published, from the one that the rank waits in.
const MAX_COLLECTIVES: usize = 4;

/// What one node tells of its ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeEvidence {
    /// The round that the ranks run in.
    pub round: u64,
    /// Differs from that of the message before: a node that tells nothing more is not asked again.
    pub number: u64,
    /// The ranks stand still until the user continues them: nothing is judged.
    pub is_suspended: bool,
    ranks: Vec<SharedRank>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct SharedRank {
    rank: u32,
    started_ms_ago: u64,
    progress_ms_ago: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    heartbeat: Option<SharedHeartbeat>,
    largest_gap_ms: u64,
    is_finished: bool,
    is_unanswered: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    groups: Option<BTreeMap<String, SharedGroup>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct SharedHeartbeat {
    ms_ago: u64,
    step: u64,
    section: Option<String>,
    limit_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct SharedGroup {
    description: String,
    is_world: bool,
    members: Option<Vec<u32>>,
    enqueued: u64,
    completed: u64,
    recent: Vec<(u64, String, Option<u64>)>,
}

impl NodeEvidence {
    /// Of the ranks of this node.
    #[must_use]
    pub fn new(round: u64, number: u64, ranks: &[RankEvidence], now: Instant) -> Self {
        Self {
            round,
            number,
            is_suspended: false,
            ranks: ranks.iter().map(|it| SharedRank::new(it, now)).collect(),
        }
    }

    /// At most [`MAX_SHARED`] bytes: ranks in very many groups show their times alone.
    #[must_use]
    pub fn to_json(mut self) -> Vec<u8> {
        let text = |it: &Self| serde_json::to_vec(it).unwrap_or_default();
        let whole = text(&self);
        if whole.len() <= MAX_SHARED {
            return whole;
        }
        self.ranks.iter_mut().for_each(|rank| rank.groups = None);
        Some(text(&self)).filter(|text| text.len() <= MAX_SHARED).unwrap_or_default()
    }

    /// # Errors
    /// The bytes are not the evidence of a node.
    pub fn from_json(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        if bytes.len() > MAX_SHARED {
            return Err(serde::de::Error::custom(format!("{} bytes", bytes.len())));
        }
        serde_json::from_slice(bytes)
    }

    /// The ranks, as they were when this came.
    #[must_use]
    pub fn into_ranks(self, received: Instant) -> Vec<RankEvidence> {
        self.ranks.into_iter().map(|it| it.into_evidence(received)).collect()
    }
}

impl SharedRank {
    fn new(it: &RankEvidence, now: Instant) -> Self {
        let ago = |time: Instant| millis(now.saturating_duration_since(time));
        let heartbeat =
            it.last_heartbeat.as_ref().map(|ReceivedHeartbeat { heartbeat, at }| SharedHeartbeat {
                ms_ago: ago(*at),
                step: heartbeat.step,
                section: heartbeat.section.clone(),
                limit_ms: heartbeat.limit.map(millis),
            });
        let groups = it.groups.as_ref().map(|groups| {
            groups.iter().map(|(name, group)| (name.clone(), SharedGroup::new(group))).collect()
        });
        Self {
            rank: it.rank.0,
            started_ms_ago: ago(it.started),
            progress_ms_ago: ago(it.last_progress),
            heartbeat,
            largest_gap_ms: millis(it.largest_gap),
            is_finished: it.is_finished,
            is_unanswered: it.is_unanswered,
            groups,
        }
    }

    fn into_evidence(self, received: Instant) -> RankEvidence {
        // A clock that began later than the age says has no such time.
        let before = |age: u64| received.checked_sub(Duration::from_millis(age)).unwrap_or(received);
        let started = before(self.started_ms_ago);
        let last_heartbeat = self.heartbeat.map(|it| ReceivedHeartbeat {
            heartbeat: Heartbeat {
                step: it.step,
                section: it.section,
                limit: it.limit_ms.map(Duration::from_millis),
            },
            at: before(it.ms_ago),
        });
        let groups = self
            .groups
            .map(|groups| groups.into_iter().map(|(name, group)| (name, group.into_activity())).collect());
        RankEvidence {
            last_heartbeat,
            largest_gap: Duration::from_millis(self.largest_gap_ms),
            groups,
            last_progress: before(self.progress_ms_ago).max(started),
            is_finished: self.is_finished,
            is_unanswered: self.is_unanswered,
            ..RankEvidence::new(Rank(self.rank), started)
        }
    }
}

impl SharedGroup {
    fn new(group: &GroupActivity) -> Self {
        let first = group.pending().unwrap_or(group.enqueued);
        let recent = group.recent.iter().filter(|it| it.sequence >= first).take(MAX_COLLECTIVES);
        Self {
            description: group.description.clone(),
            is_world: group.is_world,
            members: group.members.as_ref().map(|members| members.iter().map(|rank| rank.0).collect()),
            enqueued: group.enqueued,
            completed: group.completed,
            recent: recent.map(|it| (it.sequence, it.name.clone(), it.elements)).collect(),
        }
    }

    fn into_activity(self) -> GroupActivity {
        let collective =
            |(sequence, name, elements): (u64, String, Option<u64>)| Collective { sequence, name, elements };
        GroupActivity {
            description: self.description,
            is_world: self.is_world,
            members: self.members.map(|members| members.into_iter().map(Rank).collect()),
            enqueued: self.enqueued,
            completed: self.completed,
            recent: self.recent.into_iter().map(collective).collect(),
            ..GroupActivity::default()
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "shared_tests.rs"]
mod tests;
