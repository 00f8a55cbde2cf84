//! One stream of one worker: what it has not finished, and what its lines begin with. Pure.

use std::time::Instant;

use memchr::{memchr, memchr2};

use super::{Row, ScreenKind};

/// Where in its line the speaker is, as far as the prefix is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Start,
    Returned,
    Within,
}

#[derive(Debug)]
pub(super) struct Speaker {
    prefix: Vec<u8>,
    column: Column,
    /// What comes in so many bytes at once may end in the middle of a write.
    brim: usize,
    pub(super) held: Held,
    /// What is on the screen of it.
    pub(super) row: Row,
}

/// The unfinished line, or what came since it was last shown.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) bytes: Vec<u8>,
    /// When its first byte came, or the last of which we know that more is on its way.
    pub(super) since: Instant,
    pub(super) end: End,
    has_return: bool,
}

/// What is known of the last byte that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// A write ended there.
    Written,
    /// The pipe was full: its writer has more, and goes on now that there is room.
    Cut,
}

impl Held {
    const fn nothing(now: Instant) -> Self {
        Self { bytes: Vec::new(), since: now, end: End::Written, has_return: false }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether the line is rewritten in place: no progress bar comes in chunks that fill a pipe.
    pub(super) fn is_progress(&self) -> bool {
        self.has_return && self.end == End::Written
    }
}

impl Speaker {
    pub(super) fn new(prefix: &str, brim: usize, now: Instant) -> Self {
        let (column, row) = (Column::Start, Row::default());
        Self { prefix: prefix.into(), column, brim, held: Held::nothing(now), row }
    }

    /// How the bytes end that came at once.
    pub(super) const fn end_of(&self, bytes: &[u8]) -> End {
        if bytes.len() >= self.brim { End::Cut } else { End::Written }
    }

    /// Keeps more of an unfinished line.
    pub(super) fn hold(&mut self, bytes: &[u8], end: End, now: Instant) {
        if self.held.is_empty() || end == End::Cut {
            self.held.since = now;
        }
        self.held.bytes.extend_from_slice(bytes);
        self.held.end = end;
        self.held.has_return |= memchr(b'\r', bytes).is_some();
    }

    /// Writes `bytes` with the prefix wherever a line (on a terminal: a row) begins.
    pub(super) fn emit(&mut self, bytes: &[u8], kind: ScreenKind, out: &mut Vec<u8>) {
        if self.prefix.is_empty() {
            out.extend_from_slice(bytes);
            return;
        }
        let next_break = |bytes: &[u8]| match kind {
            ScreenKind::Plain => memchr(b'\n', bytes),
            ScreenKind::Terminal { .. } => memchr2(b'\n', b'\r', bytes),
        };
        let mut rest = bytes;
        while !rest.is_empty() {
            let found = next_break(rest);
            let (piece, behind) = rest.split_at(found.map_or(rest.len(), |at| at + 1));
            let wanted = match self.column {
                Column::Start => true,
                Column::Returned => found != Some(0),
                Column::Within => false,
            };
            if wanted {
                out.extend_from_slice(&self.prefix);
            }
            out.extend_from_slice(piece);
            self.column = match (found, piece.last()) {
                (None, _) => Column::Within,
                (Some(_), Some(b'\r')) => Column::Returned,
                (Some(_), _) => Column::Start,
            };
            rest = behind;
        }
    }

    /// Writes what was held; nothing is held then.
    pub(super) fn emit_held(&mut self, kind: ScreenKind, out: &mut Vec<u8>) {
        let nothing = Held::nothing(self.held.since);
        let held = std::mem::replace(&mut self.held, nothing);
        self.emit(&held.bytes, kind, out);
    }

    /// The line was ended by us: it goes on in a new one.
    pub(super) fn forget(&mut self) {
        self.column = Column::Start;
        self.row = Row::default();
    }
}
