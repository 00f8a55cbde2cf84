//! One stream of one worker: its unfinished line, and the prefix of its lines. Pure.

use std::time::Instant;

use memchr::{memchr, memrchr};

use crate::screen::TerminalRow;
use crate::screen::decoder::first_rewrite;
use crate::screen::progress::ProgressArea;

/// An escape sequence that comes in two reads is found up to this length.
const MAX_SPLIT_ESCAPE_BYTES: usize = 16;

/// Where in its line the stream is, as far as the prefix is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinePosition {
    Start,
    Within,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PromptState {
    /// No person answers what the stream asks.
    Never,
    Idle,
    /// The last bytes may be a prompt that waits for its answer.
    MayWait,
}

#[derive(Debug)]
pub(super) struct WorkerStream {
    prefix: Vec<u8>,
    column: LinePosition,
    /// A read of this number of bytes may end in the middle of a write.
    max_line: usize,
    pub(super) pending: PendingLine,
    /// The visible part of its unfinished line.
    pub(super) row: TerminalRow,
    /// The prefix of rewritten lines. Without it lines are passed on unchanged.
    pub(super) label: Option<Vec<u8>>,
    /// The rewritten lines, from the first one on until the last one is finished.
    pub(super) area: Option<Box<ProgressArea>>,
    pub(super) prompt: PromptState,
    /// The area was fed since a snapshot of it was written.
    pub(super) is_undrawn: bool,
    /// When the next snapshot may be written where none can be taken back.
    pub(super) snapshot_due: Instant,
}

/// The unfinished line, or its bytes since it was last shown.
#[derive(Debug)]
pub(super) struct PendingLine {
    pub(super) bytes: Vec<u8>,
    /// When its first byte came, or the last of which we know that more is on its way.
    pub(super) since: Instant,
    pub(super) end: LineEnd,
    has_return: bool,
}

/// The circumstances of the last byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineEnd {
    Written,
    /// The pipe was full: its writer has more, and continues now that there is room.
    Cut,
}

impl PendingLine {
    const fn nothing(now: Instant) -> Self {
        Self { bytes: Vec::new(), since: now, end: LineEnd::Written, has_return: false }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether there are only blank lines.
    pub(super) fn is_blank(&self) -> bool {
        self.bytes.ends_with(b"\n")
    }

    /// Whether the line is rewritten in place: no progress bar comes in chunks that fill a pipe.
    pub(super) fn is_progress(&self) -> bool {
        self.has_return && self.end == LineEnd::Written
    }
}

impl WorkerStream {
    pub(super) fn new(prefix: &str, label: Option<&str>, max_line: usize, now: Instant) -> Self {
        Self {
            prefix: prefix.into(),
            column: LinePosition::Start,
            max_line,
            pending: PendingLine::nothing(now),
            row: TerminalRow::default(),
            label: label.map(Into::into),
            area: None,
            prompt: PromptState::Never,
            is_undrawn: false,
            snapshot_due: now,
        }
    }

    /// Where in `bytes` the first line begins that is rewritten, or the blank lines above it, which nested bars make
    /// for room. 0 too where what is held belongs to it.
    pub(super) fn first_rewritten_line(&self, bytes: &[u8]) -> Option<usize> {
        let pending = &self.pending.bytes[self.pending.bytes.len().saturating_sub(MAX_SPLIT_ESCAPE_BYTES)..];
        let seam = [pending, &bytes[..bytes.len().min(MAX_SPLIT_ESCAPE_BYTES)]].concat();
        if first_rewrite(&seam).is_some_and(|at| at < pending.len()) {
            return Some(0);
        }
        let line = memrchr(b'\n', &bytes[..first_rewrite(bytes)?]).map_or(0, |newline| newline + 1);
        Some(self.blank_lines_before(&bytes[..line]))
    }

    /// Where the blank lines begin that `lines` end with.
    pub(super) fn blank_lines_before(&self, lines: &[u8]) -> usize {
        let last = lines.iter().rposition(|byte| *byte != b'\n');
        let is_at_start = if self.pending.is_empty() {
            self.column == LinePosition::Start
        } else {
            self.pending.is_blank()
        };
        match last {
            // The first newline ends the line before.
            Some(last) => lines.len().min(last + 2),
            None if is_at_start => 0,
            None => lines.len().min(1),
        }
    }

    /// Whether the held bytes can be shown at once: blank lines, or a snapshot that ends with its carriage return.
    pub(super) fn holds_whole_rows(&self) -> bool {
        self.label.is_some() && (self.pending.is_blank() || self.pending.bytes.ends_with(b"\r"))
    }

    /// How the bytes end that came at once.
    pub(super) const fn end_of(&self, bytes: &[u8]) -> LineEnd {
        if bytes.len() >= self.max_line { LineEnd::Cut } else { LineEnd::Written }
    }

    /// Keeps more of an unfinished line.
    pub(super) fn hold(&mut self, bytes: &[u8], end: LineEnd, now: Instant) {
        if self.pending.is_empty() || end == LineEnd::Cut {
            self.pending.since = now;
        }
        self.pending.bytes.extend_from_slice(bytes);
        self.pending.end = end;
        self.pending.has_return |= memchr(b'\r', bytes).is_some();
    }

    /// Writes `bytes` with the prefix wherever a line begins.
    pub(super) fn emit(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let Some(last) = bytes.last() else { return };
        if self.prefix.is_empty() {
            out.extend_from_slice(bytes);
        } else {
            for line in Lines(bytes) {
                if std::mem::replace(&mut self.column, LinePosition::Start) == LinePosition::Start {
                    out.extend_from_slice(&self.prefix);
                }
                out.extend_from_slice(line);
            }
        }
        self.column = if *last == b'\n' { LinePosition::Start } else { LinePosition::Within };
    }

    /// Writes the held bytes; nothing is held then.
    pub(super) fn emit_pending(&mut self, out: &mut Vec<u8>) {
        let line = self.take_pending();
        self.emit(&line, out);
    }

    /// Nothing is held any more: it goes elsewhere.
    pub(super) fn take_pending(&mut self) -> Vec<u8> {
        let nothing = PendingLine::nothing(self.pending.since);
        std::mem::replace(&mut self.pending, nothing).bytes
    }

    /// The visible part of an unfinished line, without its prefix.
    pub(super) fn shown_text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        self.row.draw(&mut text);
        text.strip_prefix(&*self.prefix).map(<[u8]>::to_vec).unwrap_or(text)
    }

    pub(super) fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Notes whether these newest bytes may end in a prompt: an unfinished line without a carriage return.
    pub(super) fn note_prompt(&mut self, bytes: &[u8]) {
        let line = &bytes[memrchr(b'\n', bytes).map_or(0, |newline| newline + 1)..];
        let is_plain = self.area.is_none() && !self.pending.has_return && !self.row.is_progress();
        let may_wait = !line.is_empty() && memchr(b'\r', line).is_none() && is_plain;
        self.prompt = if may_wait { PromptState::MayWait } else { PromptState::Idle };
    }

    /// The launcher ended the line: the stream continues in a new one.
    pub(super) fn reset_row(&mut self) {
        self.column = LinePosition::Start;
        self.row = TerminalRow::default();
    }
}

/// Lines with their ends, at the speed of memory.
struct Lines<'a>(&'a [u8]);

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (line, rest) = self.0.split_at(memchr(b'\n', self.0).map_or(self.0.len(), |at| at + 1));
        self.0 = rest;
        (!line.is_empty()).then_some(line)
    }
}
