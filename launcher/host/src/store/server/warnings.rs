//! Warnings about clients that meet a limit: each kind once in a generation, since a client may try for ever.

use std::collections::BTreeSet;

use rankrun_contract::store::keyspace::KeyspaceError;

use crate::store::connection::CloseReason;
use bytesize::ByteSize;

/// Longest part of a key that is shown, in bytes.
const MAX_SHOWN: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WarningKind {
    Full,
    TooMuch,
    Unread,
}

/// The kinds of warnings already written.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    given: BTreeSet<WarningKind>,
}

impl Warnings {
    /// A request did not fit into the keyspace; its text, where it is the first one.
    pub(super) fn of_full(&mut self, error: &KeyspaceError, request: &str) -> Option<String> {
        let KeyspaceError::Full { key, used, more, limit } = error else { return None };
        let key = key[..key.len().min(MAX_SHOWN)].escape_ascii();
        self.given.insert(WarningKind::Full).then(|| {
            format!(
                "the store is full: it holds {} of {}, and `{request}` of key `{key}` with {} more is refused; \
                 `--store-limit SIZE` raises the limit",
                ByteSize(*used),
                ByteSize(*limit),
                ByteSize(*more)
            )
        })
    }

    /// A connection was closed for a limit; its text, where it is the first one.
    pub(super) fn of_close(&mut self, reason: &CloseReason, limit: u64) -> Option<String> {
        let limit = ByteSize(limit);
        match reason {
            CloseReason::TooMuch => self.given.insert(WarningKind::TooMuch).then(|| {
                format!(
                    "the store's clients leave more than {limit} of requests and answers unfinished: the store closes \
                     the connection with the most; `--store-limit SIZE` raises the limit"
                )
            }),
            CloseReason::Unread => self.given.insert(WarningKind::Unread).then(|| {
                "a client of the store has read none of its answers for a minute: the store closes its connection"
                    .to_owned()
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_warning_is_given_once_with_values() {
        let mut warnings = Warnings::default();
        let key = [b"k\x1b".as_slice(), &[b'x'; 100]].concat();
        let full = KeyspaceError::Full { key, used: 3 << 19, more: 1000, limit: 2 << 20 };
        let text = warnings.of_full(&full, "SET").unwrap();
        assert!(
            text.starts_with("the store is full: it holds 1.5 MiB of 2.0 MiB, and `SET` of key `k\\x1bxx"),
            "{text}"
        );
        assert!(text.contains("x` with 1000 B more is refused; `--store-limit SIZE`"), "{text}");
        assert_eq!(warnings.of_full(&full, "SET"), None);
        assert_eq!(warnings.of_full(&KeyspaceError::AlreadyWaiting, "WAIT"), None);
        for reason in [CloseReason::TooMuch, CloseReason::Unread] {
            assert!(warnings.of_close(&reason, 1 << 30).is_some());
            assert_eq!(warnings.of_close(&reason, 1 << 30), None);
        }
        assert_eq!(warnings.of_close(&CloseReason::Silent, 1 << 30), None);
    }
}
