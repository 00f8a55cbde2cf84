//! What is known of the progress of one rank.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rankrun_contract::progress_page::{GroupSlot, parse_page};
use rankrun_contract::rank::Rank;

use crate::hang::heartbeat::Heartbeat;

/// One call that all ranks of a group make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collective {
    /// Counted from 1 in its group.
    pub sequence: u64,
    /// Such as `all_reduce`.
    pub name: String,
    /// The number of elements of all inputs; `None` if ranks may pass different ones.
    pub elements: Option<u64>,
}

/// Sends and receives of one rank in one group. They show progress, and never a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MessageCounts {
    /// The number of the last one that was called.
    pub called: u64,
    /// Those that are over, as far as the recorder still lists them.
    pub finished: u64,
}

/// What one rank has done in one process group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupActivity {
    /// In words, such as `dp`; may be empty.
    pub description: String,
    /// It is the group of all ranks.
    pub is_world: bool,
    /// The ranks of the group, where the recorder says so.
    pub members: Option<BTreeSet<Rank>>,
    /// Sequence number of the last collective that was called; 0 before the first.
    pub enqueued: u64,
    /// Sequence number of the last collective that is over; 0 before the first.
    pub completed: u64,
    pub messages: MessageCounts,
    /// The last collectives, in ascending order of their sequence numbers, each once.
    pub recent: Vec<Collective>,
}

impl GroupActivity {
    /// The collective that this rank waits in. An older one may be over later than a newer one.
    #[must_use]
    pub fn pending(&self) -> Option<u64> {
        (self.enqueued > self.completed).then_some(self.completed + 1)
    }

    /// The collective with this number, if it is recent.
    #[must_use]
    pub fn collective(&self, sequence: u64) -> Option<&Collective> {
        self.recent.iter().find(|collective| collective.sequence == sequence)
    }
}

/// The groups of one rank, by the name that all ranks of a group share.
pub type Groups = BTreeMap<String, GroupActivity>;

/// The groups on the progress page of a Rust worker.
#[must_use]
pub fn groups_of_page(page: &[u8]) -> Groups {
    let group = |slot: GroupSlot| {
        let last = Collective { sequence: slot.called, name: slot.operation.to_owned(), elements: None };
        let activity = GroupActivity {
            description: if slot.is_world { String::new() } else { slot.name.clone() },
            is_world: slot.is_world,
            members: None,
            enqueued: slot.called,
            completed: slot.finished,
            messages: MessageCounts { called: slot.messages, finished: 0 },
            // A collective that is over tells nothing of the next one, which another rank may wait in.
            recent: if slot.called > slot.finished { vec![last] } else { Vec::new() },
        };
        (slot.name, activity)
    };
    parse_page(page).into_iter().map(group).collect()
}

/// A heartbeat and when it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedHeartbeat {
    pub heartbeat: Heartbeat,
    pub at: Instant,
}

/// What one rank has shown of its progress so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankEvidence {
    pub rank: Rank,
    pub started: Instant,
    pub last_heartbeat: Option<ReceivedHeartbeat>,
    /// The longest time between two heartbeats outside of sections.
    pub largest_gap: Duration,
    /// The groups that the flight recorder, NCCL or the progress page lists; `None` if there is no answer to rely on.
    pub groups: Option<Groups>,
    /// The groups that were forgotten last, to see whether the next answer shows something new.
    pub(super) forgotten: Option<Groups>,
    /// Its flight recorder was asked, and has not answered in time.
    pub is_unanswered: bool,
    /// The last time at which any source showed something new; before that, the start of the rank.
    pub last_progress: Instant,
    /// The rank has exited with 0.
    pub is_finished: bool,
}

impl RankEvidence {
    /// Of a rank that has just started.
    #[must_use]
    pub const fn new(rank: Rank, started: Instant) -> Self {
        Self {
            rank,
            started,
            last_heartbeat: None,
            largest_gap: Duration::ZERO,
            groups: None,
            forgotten: None,
            is_unanswered: false,
            last_progress: started,
            is_finished: false,
        }
    }

    /// Records a heartbeat. Each one is progress, also with the same step.
    pub fn record_heartbeat(&mut self, heartbeat: Heartbeat, at: Instant) {
        if let Some(last) = self.last_heartbeat.as_ref().filter(|last| last.heartbeat.section.is_none()) {
            self.largest_gap = self.largest_gap.max(at.saturating_duration_since(last.at));
        }
        self.last_heartbeat = Some(ReceivedHeartbeat { heartbeat, at });
        self.last_progress = self.last_progress.max(at);
    }

    /// Records an answer of the flight recorder or a progress page. It is progress if a count has moved.
    pub fn record_groups(&mut self, groups: Groups, at: Instant) {
        let counts = |groups: &Groups| -> Vec<(String, u64, u64, MessageCounts)> {
            groups.iter().map(|(name, it)| (name.clone(), it.enqueued, it.completed, it.messages)).collect()
        };
        let has_moved = |before: &Groups| counts(before) != counts(&groups);
        let before = self.groups.as_ref().or(self.forgotten.as_ref());
        if before.map_or(!groups.is_empty(), has_moved) {
            self.last_progress = self.last_progress.max(at);
        }
        (self.groups, self.forgotten, self.is_unanswered) = (Some(groups), None, false);
    }

    /// The flight recorder does not answer as before: what it said last may be old.
    pub fn forget_groups(&mut self) {
        self.forgotten = self.groups.take().or(self.forgotten.take());
        self.is_unanswered = false;
    }

    /// The job stood still for this long until `now`: the time does not count.
    pub fn add_suspended_time(&mut self, lasted: Duration, now: Instant) {
        let last_heartbeat = self.last_heartbeat.as_mut().map(|last| &mut last.at);
        for time in [&mut self.started, &mut self.last_progress].into_iter().chain(last_heartbeat) {
            *time = (*time + lasted).min(now).max(*time);
        }
    }

    /// The groups that it waits in, each with the number of the collective.
    pub(super) fn pending(&self) -> impl Iterator<Item = (&str, u64)> {
        let groups = self.groups.iter().flatten();
        groups.filter_map(|(name, group)| Some((name.as_str(), group.pending()?)))
    }

    pub(super) fn group(&self, name: &str) -> Option<&GroupActivity> {
        self.groups.as_ref()?.get(name)
    }

    /// Its last heartbeat is younger than this.
    #[must_use]
    pub fn has_heartbeat_since(&self, now: Instant, age: Duration) -> bool {
        let last = self.last_heartbeat.as_ref();
        last.is_some_and(|last| now.saturating_duration_since(last.at) < age)
    }

    /// Its recorder or page lists a group now.
    #[must_use]
    pub fn has_groups(&self) -> bool {
        self.groups.as_ref().is_some_and(|groups| !groups.is_empty())
    }

    /// It shows something of its progress, or has done so. A rank that shows nothing else and does not answer may work or
    /// hang.
    #[must_use]
    pub fn has_evidence(&self) -> bool {
        if self.is_unanswered && self.last_heartbeat.is_none() {
            return false;
        }
        self.last_heartbeat.is_some() || self.has_groups() || self.has_progressed()
    }

    pub(super) fn has_progressed(&self) -> bool {
        self.last_progress > self.started
    }
}

#[cfg(test)]
#[path = "evidence_tests.rs"]
mod tests;
