//! Entries that no client can reach any more. To free millions of them takes seconds, so it is done in steps.

use std::collections::{VecDeque, btree_map};

use super::{Detached, Entries, Key, Queue, Value};

/// To free this number of bytes takes about as long as to free an entry.
const PAGE: usize = 4096;

/// Discarded entries of one kind.
#[derive(Debug)]
enum DiscardedPart {
    Values(btree_map::IntoIter<Key, Value>),
    Queues(btree_map::IntoIter<Key, Queue>),
    Queue(VecDeque<Value>),
    Keys(std::vec::IntoIter<Key>),
}

impl DiscardedPart {
    /// Takes one entry out of the part. `None` where the part is empty.
    fn take_one(&mut self) -> Option<FreedEntry> {
        Some(match self {
            Self::Values(values) => FreedEntry::Value(values.next()?.1),
            Self::Queues(queues) => FreedEntry::Queue(queues.next()?.1.values),
            Self::Queue(values) => FreedEntry::Value(values.pop_front()?),
            Self::Keys(keys) => {
                keys.next()?;
                FreedEntry::Key
            }
        })
    }
}

/// An entry that was taken out of a [`DiscardedPart`].
enum FreedEntry {
    Value(Value),
    Queue(VecDeque<Value>),
    Key,
}

/// See [`Keyspace::free_some`](super::Keyspace::free_some).
#[derive(Debug, Default)]
pub(super) struct DiscardedEntries {
    parts: Vec<DiscardedPart>,
}

impl DiscardedEntries {
    pub(super) fn add_entries(&mut self, entries: Entries) {
        self.parts.push(DiscardedPart::Values(entries.values.into_iter()));
        self.parts.push(DiscardedPart::Queues(entries.queues.into_iter()));
    }

    pub(super) fn add_keys(&mut self, keys: std::vec::IntoIter<Key>) {
        self.parts.push(DiscardedPart::Keys(keys));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Frees about `most` entries or pages. A value that an answer still holds is detached.
    pub(super) fn free_some(&mut self, most: usize, detached: &mut Detached) {
        let mut freed = 0;
        while freed < most
            && let Some(part) = self.parts.last_mut()
        {
            freed += 1;
            match part.take_one() {
                Some(FreedEntry::Value(value)) => {
                    freed += value.len() / PAGE;
                    detached.let_go(&value);
                }
                Some(FreedEntry::Queue(values)) => self.parts.push(DiscardedPart::Queue(values)),
                Some(FreedEntry::Key) => {}
                None => drop(self.parts.pop()),
            }
        }
    }
}
