//! Connections at the listener of a joining group, before they have identified
//! themselves. Pure: time is an argument.
//!
//! A connection gets [`MIN_DROP_AGE`] to present the token. If the limit for all is exceeded, the source with the
//! most connections loses its oldest one. A connection that has presented the token is never dropped.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Connections that are accepted before others are read.
pub(crate) const ACCEPT_BATCH: usize = 64;
/// Length of the listen queue. The standard library asks for far less.
pub(crate) const BACKLOG: i32 = 4096;
/// How long a connection may take to identify itself.
pub(crate) const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
/// Most unidentified connections, beyond one for each rank; a quarter of the descriptors at most.
const MAX_UNIDENTIFIED: usize = 512;
/// Minimum age of a dropped connection.
const MIN_DROP_AGE: Duration = Duration::from_millis(100);
/// First and longest pause before a rank connects again after its connection was closed without an answer.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// A connection, its source and its age.
#[derive(Debug)]
pub(crate) struct Entry<C, S> {
    pub(crate) connection: C,
    pub(crate) source: S,
    pub(crate) accepted_at: Instant,
    /// It has presented the token; the rest of its greeting is under way.
    pub(crate) knows_token: bool,
}

impl<C, S> Entry<C, S> {
    pub(crate) fn new(connection: C, source: S, now: Instant) -> Self {
        Self { connection, source, accepted_at: now, knows_token: false }
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.accepted_at + GREETING_TIMEOUT
    }
}

/// All unidentified connections, the oldest first.
#[derive(Debug)]
pub(crate) struct UnidentifiedConnections<C, S> {
    entries: Vec<Entry<C, S>>,
    capacity: usize,
}

impl<C, S: Copy + Eq + Hash> UnidentifiedConnections<C, S> {
    /// The limit for a world of this many ranks, in a process with this limit of descriptors.
    pub(crate) fn new(world: usize, descriptors: Option<u64>) -> Self {
        let quarter = descriptors
            .map_or(MAX_UNIDENTIFIED, |limit| usize::try_from(limit / 4).unwrap_or(MAX_UNIDENTIFIED));
        Self { entries: Vec::new(), capacity: MAX_UNIDENTIFIED.min(quarter) + world }
    }

    pub(crate) fn connections(&self) -> impl Iterator<Item = &C> {
        self.entries.iter().map(|entry| &entry.connection)
    }

    /// When the next connection times out.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.entries.iter().map(Entry::deadline).min()
    }

    /// From when on one more may be accepted.
    pub(crate) fn next_accept_at(&self, now: Instant) -> Instant {
        if self.entries.len() < self.capacity {
            return now;
        }
        let droppable = self.entries.iter().filter(|entry| !entry.knows_token);
        droppable
            .map(|entry| entry.accepted_at + MIN_DROP_AGE)
            .min()
            .map_or(now + MIN_DROP_AGE, |at| at.max(now))
    }

    /// Adds a connection and returns the one that exceeds the limit. The caller reads it once more, since
    /// it may have identified itself meanwhile.
    pub(crate) fn insert_evicting(&mut self, entry: Entry<C, S>) -> Option<Entry<C, S>> {
        let now = entry.accepted_at;
        self.entries.push(entry);
        if self.entries.len() > self.capacity {
            self.take_evictable(|entry| now >= entry.accepted_at + MIN_DROP_AGE)
        } else {
            None
        }
    }

    /// Removes a connection, since this process can open no more descriptors.
    pub(crate) fn evict_one(&mut self) -> Option<Entry<C, S>> {
        self.take_evictable(|_| true)
    }

    /// The oldest connection of the source with the most, among those that may be dropped.
    fn take_evictable(&mut self, is_evictable: impl Fn(&Entry<C, S>) -> bool) -> Option<Entry<C, S>> {
        let mut counts: HashMap<S, usize> = HashMap::new();
        for entry in self.entries.iter().filter(|entry| !entry.knows_token) {
            *counts.entry(entry.source).or_default() += 1;
        }
        let droppable =
            self.entries.iter().enumerate().filter(|(_, entry)| !entry.knows_token && is_evictable(entry));
        let count = |entry: &Entry<C, S>| counts.get(&entry.source).copied().unwrap_or(0);
        let index = droppable
            .max_by_key(|(index, entry)| (count(entry), usize::MAX - index))
            .map(|(index, _)| index)?;
        Some(self.entries.remove(index))
    }

    /// Removes all for reading; those still incomplete return by [`put_back`](Self::put_back).
    pub(crate) fn take_all(&mut self) -> Vec<Entry<C, S>> {
        std::mem::take(&mut self.entries)
    }

    pub(crate) fn put_back(&mut self, entry: Entry<C, S>) {
        self.entries.push(entry);
    }
}

/// Retries of a rank whose connection was closed without an answer: the listener may
/// have dropped it in a flood.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retry {
    started_at: Instant,
    attempts: u32,
}

impl Retry {
    pub(crate) fn new(now: Instant) -> Self {
        Self { started_at: now, attempts: 0 }
    }

    /// When to connect again; `None` after the last try.
    pub(crate) fn next_attempt_at(&mut self, now: Instant) -> Option<Instant> {
        let pause = RETRY_PAUSES.1.min(RETRY_PAUSES.0 * (1 << self.attempts.min(8)));
        self.attempts += 1;
        (now < self.started_at + GREETING_TIMEOUT).then_some(now + pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    fn entry(connection: u32, source: char, since: Instant) -> Entry<u32, char> {
        Entry::new(connection, source, since)
    }

    fn connections(waiting: &UnidentifiedConnections<u32, char>) -> Vec<u32> {
        waiting.connections().copied().collect()
    }

    #[test]
    fn flooding_source_loses_its_oldest_connection() {
        let start = clock::now();
        let mut waiting = UnidentifiedConnections::new(1, Some(12));
        let later = start + MIN_DROP_AGE;
        for (connection, source) in [(1, 'a'), (2, 'b'), (3, 'b'), (4, 'b')] {
            assert!(waiting.insert_evicting(entry(connection, source, start)).is_none());
        }
        assert_eq!(waiting.insert_evicting(entry(5, 'b', later)).map(|entry| entry.connection), Some(2));
        assert_eq!(waiting.insert_evicting(entry(6, 'b', later)).map(|entry| entry.connection), Some(3));
        assert_eq!(connections(&waiting), [1, 4, 5, 6]);
    }

    #[test]
    fn connection_with_token_is_never_dropped() {
        let start = clock::now();
        let mut waiting = UnidentifiedConnections::new(0, Some(8));
        for connection in [1, 2] {
            assert!(
                waiting
                    .insert_evicting(Entry { knows_token: true, ..entry(connection, 'a', start) })
                    .is_none()
            );
        }
        let later = start + GREETING_TIMEOUT;
        assert!(
            waiting.insert_evicting(entry(3, 'a', later)).is_none(),
            "both others have the token, and this one is young"
        );
        assert_eq!(waiting.evict_one().map(|entry| entry.connection), Some(3));
        assert!(waiting.evict_one().is_none());
        assert_eq!(connections(&waiting), [1, 2]);
    }

    #[test]
    fn full_list_admits_connection_after_oldest_reaches_min_age() {
        let start = clock::now();
        let mut waiting = UnidentifiedConnections::new(0, Some(8));
        let millis = Duration::from_millis;
        for (connection, since) in [(1, start + millis(30)), (2, start)] {
            assert_eq!(waiting.next_accept_at(start), start);
            assert!(waiting.insert_evicting(entry(connection, 'a', since)).is_none());
        }
        assert_eq!(waiting.next_accept_at(start + millis(50)), start + MIN_DROP_AGE);
        assert_eq!(waiting.next_accept_at(start + millis(150)), start + millis(150));
        assert_eq!(
            waiting.insert_evicting(entry(3, 'a', start + MIN_DROP_AGE)).map(|entry| entry.connection),
            Some(2)
        );
    }

    #[test]
    fn retry_after_close_backs_off_until_timeout() {
        let start = clock::now();
        let (mut retry, mut now, mut tries) = (Retry::new(start), start, 0);
        while let Some(next) = retry.next_attempt_at(now) {
            assert!(next > now && next - now <= RETRY_PAUSES.1);
            (now, tries) = (next, tries + 1);
        }
        assert!((10..40).contains(&tries), "{tries}");
        assert!(now >= start + GREETING_TIMEOUT && now < start + GREETING_TIMEOUT + RETRY_PAUSES.1 * 2);
    }
}
