//! The state of one terminal, pipe or file that several streams share: bytes in, bytes out. Pure.
//!
//! A stream is one output of one worker; the launcher's own messages are whole lines without a stream. Invariants,
//! quoted by the tests:
//!
//! 1. A line that a stream finishes before it is shown comes out in one piece.
//! 2. The bytes of one stream come out in their order, none lost, none added but prefixes and the line breaks of
//!    rule 4.
//! 3. An unfinished line is shown once it has waited; its owner continues it at once and without a second prefix.
//! 4. While an unfinished line is shown, no other stream writes behind it. On a terminal that line is erased and
//!    drawn again below. Elsewhere, or if it does not fit in one row, it is ended, and its owner continues in a new
//!    line. A line that has stood for a while without a carriage return is ended too: it may be a prompt. The terminal
//!    itself echoes the answer, so the text behind the prompt is unknown.
//! 5. Memory is bounded, by `HELD_BYTES_LIMIT` and one line of `LINE_LIMIT`, if [`Screen::exclusive_stream`] is
//!    respected.
//! 6. A line that a labelled stream rewrites, such as a progress bar, is shown as snapshots (`block`): on a
//!    terminal in place, elsewhere seldom. Its last snapshot becomes an ordinary line. The others are the exception to
//!    rule 2.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use memchr::memrchr;

use block::Block;
use terminal_row::TerminalRow;
use worker_stream::{LineEnd, WorkerStream};

mod block;
#[cfg(test)]
mod block_tests;
mod cells;
mod decoder;
mod progress;
mod terminal_row;
#[cfg(test)]
mod tests;
mod worker_stream;

/// An unfinished line is shown after this long.
const HOLD_TIME: Duration = Duration::from_millis(50);
/// The same where the line cannot be taken back and other streams may write: it would be ended in its middle.
const HOLD_TIME_SHARED: Duration = Duration::from_secs(1);
/// The same where it would end another's unfinished line itself.
const HOLD_TIME_OPEN_LINE: Duration = Duration::from_secs(2);
/// The same where the next line would end it, since other streams write all the time, or where its rest is on its
/// way. A machine with too much to do may stop a worker in the middle of its line for long.
const HOLD_TIME_BUSY: Duration = Duration::from_secs(5);
/// After this time an unfinished line without a carriage return counts as a prompt. A person does not answer faster,
/// and a slow line is finished by then.
const PROMPT_AGE: Duration = Duration::from_secs(1);
/// A longer unfinished line is shown at once, and the next stream may end it: memory is bounded.
const LINE_LIMIT: usize = 32 * 1024 * 1024;
/// The same for progress that waits for another's line to end.
const PROGRESS_LIMIT: usize = 1024 * 1024;
/// When unfinished lines take more than this together, only the longest is continued.
const HELD_BYTES_LIMIT: usize = 32 * 1024 * 1024;

/// The kind of output behind the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScreenKind {
    /// A pipe, a file, or a terminal without cursor movement: written bytes cannot be taken back.
    Plain,
    /// A terminal with a known size in cells.
    Terminal {
        /// The width in columns, one cell each.
        columns: u16,
        /// The height in rows, one cell each.
        rows: u16,
    },
}

impl ScreenKind {
    /// How many unfinished lines are shown at the same time.
    fn capacity(self) -> usize {
        match self {
            Self::Plain => 1,
            Self::Terminal { rows, .. } => usize::from(rows / 2).max(1),
        }
    }

    fn redraws(self, row: &TerminalRow) -> bool {
        match self {
            Self::Plain => false,
            Self::Terminal { columns, .. } => row.fits(usize::from(columns)),
        }
    }
}

/// The number of one stream of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(u64);

/// The state of one output and the unfinished lines of its streams.
#[derive(Debug)]
pub struct Screen {
    kind: ScreenKind,
    streams: BTreeMap<StreamId, WorkerStream>,
    next_id: u64,
    /// Streams with an unfinished line on the screen, from top to bottom; the cursor is in the last one.
    open: Vec<StreamId>,
    /// The last row is the unfinished line of a stream that ended.
    has_ended_open_line: bool,
    /// The rewritten lines on a terminal. It is not there at the same time as an open line.
    block: Block,
    /// The latest time that a caller passed.
    now: Option<Instant>,
}

impl Screen {
    /// An empty screen, the cursor at the start of a line.
    #[must_use]
    pub const fn new(kind: ScreenKind) -> Self {
        let block = Block::nothing();
        Self {
            kind,
            streams: BTreeMap::new(),
            next_id: 0,
            open: Vec::new(),
            has_ended_open_line: false,
            block,
            now: None,
        }
    }

    /// Adds a stream. Its lines begin with `prefix`, and its rewritten lines with `label` if there is one. If a read
    /// returns `max_line` bytes or more, the last ones may be the middle of a write.
    pub fn add(&mut self, (prefix, label): (&str, Option<&str>), max_line: usize, now: Instant) -> StreamId {
        let id = StreamId(self.next_id);
        self.next_id += 1;
        self.streams.insert(id, WorkerStream::new(prefix, label, max_line, now));
        id
    }

    /// Takes `bytes` of the stream and appends the output to `out`.
    pub fn feed(&mut self, id: StreamId, bytes: &[u8], now: Instant, out: &mut Vec<u8>) {
        self.now = Some(now);
        if self.streams.get(&id).is_some_and(|stream| stream.label.is_some()) {
            self.follow(id, bytes, out);
        } else {
            self.forward_bytes(id, bytes, out);
        }
        self.note_prompt(id, bytes);
    }

    /// Lines as they are, and the beginning of one.
    fn forward_bytes(&mut self, id: StreamId, bytes: &[u8], out: &mut Vec<u8>) {
        let Some(end) = self.streams.get(&id).map(|stream| stream.end_of(bytes)) else { return };
        let (lines, rest) = bytes.split_at(memrchr(b'\n', bytes).map_or(0, |last| last + 1));
        if !lines.is_empty() {
            self.finish_lines(id, lines, out);
        }
        if !rest.is_empty() {
            self.continue_line(id, (rest, end), out);
        }
    }

    /// When unfinished lines take much memory: the only stream that may be fed until that changes.
    #[must_use]
    pub fn exclusive_stream(&self) -> Option<StreamId> {
        let held_bytes = |(id, stream): (StreamId, &WorkerStream)| (stream.pending.bytes.len(), id);
        let total: usize = self.waiting().map(|entry| held_bytes(entry).0).sum();
        self.waiting().map(held_bytes).max().filter(|_| total > HELD_BYTES_LIMIT).map(|(_, id)| id)
    }

    /// Writes a message of the launcher, in whole lines.
    pub fn message(&mut self, text: &[u8], out: &mut Vec<u8>) {
        if text.is_empty() {
            return;
        }
        self.clear_open_lines(out);
        self.block.is_stale = true;
        out.extend_from_slice(text);
        if !text.ends_with(b"\n") {
            out.push(b'\n');
        }
        self.redraw(out);
    }

    /// The stream ended; its unfinished line stays unchanged.
    pub fn end(&mut self, id: StreamId, out: &mut Vec<u8>) {
        if self.streams.get(&id).is_some_and(|stream| !stream.pending.is_empty()) {
            self.show(id, out);
        }
        self.end_area(id, out);
        if self.open == [id] {
            self.open.clear();
            self.has_ended_open_line = true;
        } else if self.open.contains(&id) {
            self.clear_open_lines(out);
            if self.close(id, out) {
                out.push(b'\n');
            }
            self.redraw(out);
        }
        self.streams.remove(&id);
    }

    /// Shows the unfinished lines that have waited long enough. `busy`: other streams are writing right now.
    pub fn show_due(&mut self, now: Instant, busy: bool, out: &mut Vec<u8>) {
        self.now = Some(now);
        // One at a time: each shown line changes the wait of the next.
        while let Some(id) = self.next_due(now, busy) {
            self.show(id, out);
        }
        self.settle_areas(now, out);
    }

    /// When [`Self::show_due`] or [`Self::draw_due`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let lines = self.waiting().map(|(_, stream)| stream.pending.since + self.hold_time(stream, false));
        lines.chain(self.block_deadline()).min()
    }

    fn next_due(&self, now: Instant, busy: bool) -> Option<StreamId> {
        self.waiting()
            .find(|(_, stream)| {
                now.saturating_duration_since(stream.pending.since) >= self.hold_time(stream, busy)
            })
            .map(|(id, _)| id)
    }

    /// How long an unfinished line waits.
    fn hold_time(&self, stream: &WorkerStream, busy: bool) -> Duration {
        let is_alone = self.streams.len() == 1;
        if is_alone || stream.holds_whole_rows() || is_erasable(self.kind, &stream.pending.bytes) {
            HOLD_TIME
        } else if busy || stream.pending.end == LineEnd::Cut {
            HOLD_TIME_BUSY
        } else if self.open.is_empty() {
            HOLD_TIME_SHARED
        } else {
            HOLD_TIME_OPEN_LINE
        }
    }

    /// The terminal has another size now.
    pub fn resize(&mut self, kind: ScreenKind) {
        self.kind = kind;
        self.block.is_stale = true;
    }

    /// Streams with an unfinished line that is not shown and may be.
    fn waiting(&self) -> impl Iterator<Item = (StreamId, &WorkerStream)> {
        self.streams
            .iter()
            .filter(|(_, stream)| !stream.pending.is_empty() && !self.must_wait(stream))
            .map(|(&id, stream)| (id, stream))
    }

    /// Whether there is no place for this stream's unfinished line. A progress bar must not end the line of
    /// another for each of its steps.
    fn must_wait(&self, stream: &WorkerStream) -> bool {
        match self.kind {
            _ if stream.holds_whole_rows() => false,
            ScreenKind::Plain => !self.open.is_empty() && stream.pending.is_progress(),
            ScreenKind::Terminal { .. } => self.open.len() >= self.kind.capacity(),
        }
    }

    /// Lines of `id` that are finished now: the held one and those in `lines`.
    fn finish_lines(&mut self, id: StreamId, lines: &[u8], out: &mut Vec<u8>) {
        let alone = !self.has_ended_open_line
            && (self.open.is_empty() || self.open == [id])
            && self.block.is_erased();
        self.block.is_stale = true;
        if alone {
            self.open.clear();
        } else {
            self.clear_open_lines(out);
            self.close(id, out);
        }
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.row = TerminalRow::default();
            stream.emit_pending(out);
            stream.emit(lines, out);
        }
        if !alone {
            self.redraw(out);
        }
    }

    /// Appends more bytes to a shown unfinished line.
    fn continue_line(&mut self, id: StreamId, (bytes, end): (&[u8], LineEnd), out: &mut Vec<u8>) {
        let alone = self.open == [id];
        let shown = self.open.contains(&id);
        if shown && !alone {
            self.clear_open_lines(out);
        }
        let shown = shown && self.open.contains(&id);
        let (Some(stream), Some(now)) = (self.streams.get_mut(&id), self.now) else { return };
        if alone {
            let start = out.len();
            stream.emit(bytes, out);
            stream.row.push(&out[start..]);
        } else if shown {
            self.continue_open_line(id, bytes, out);
        } else {
            stream.hold(bytes, end, now);
            if self.holds_too_much(id) {
                self.show(id, out);
            }
        }
    }

    fn holds_too_much(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_some_and(|stream| {
            let limit = if self.must_wait(stream) { PROGRESS_LIMIT } else { LINE_LIMIT };
            stream.pending.bytes.len() > limit
        })
    }

    /// More of one of several lines that are shown and erased for the moment.
    fn continue_open_line(&mut self, id: StreamId, bytes: &[u8], out: &mut Vec<u8>) {
        let kind = self.kind;
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let (mut text, mut before) = (Vec::new(), Vec::new());
        stream.emit(bytes, &mut text);
        stream.row.draw(&mut before);
        stream.row.push(&text);
        if !kind.redraws(&stream.row) {
            out.extend_from_slice(&before);
            out.extend_from_slice(&text);
            out.push(b'\n');
            stream.reset_row();
            self.open.retain(|&open| open != id);
        }
        self.redraw(out);
    }

    /// Shows the unfinished line of a stream that has none on the screen.
    fn show(&mut self, id: StreamId, out: &mut Vec<u8>) {
        if self.show_whole_rows(id, out) {
            return;
        }
        self.clear_open_lines(out);
        let kind = self.kind;
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let mut text = Vec::new();
        stream.emit_pending(&mut text);
        stream.row.push(&text);
        if self.open.is_empty() {
            out.extend_from_slice(&text);
            self.open.push(id);
            return;
        }
        if self.open.len() < kind.capacity() && kind.redraws(&stream.row) {
            self.open.push(id);
        } else {
            out.extend_from_slice(&text);
            out.push(b'\n');
            stream.reset_row();
        }
        self.redraw(out);
    }

    /// Brings the cursor to the start of an empty row. The lines that were shown can be drawn again, or they are
    /// ended and no longer open.
    fn clear_open_lines(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.has_ended_open_line) {
            out.push(b'\n');
        }
        self.block.erase(self.kind, out);
        if self.open.is_empty() {
            return;
        }
        let open = || self.open.iter().filter_map(|id| self.streams.get(id));
        if self.kind != ScreenKind::Plain && open().any(|stream| stream.row.is_styled()) {
            out.extend_from_slice(b"\x1b[0m");
        }
        if open().all(|stream| self.kind.redraws(&stream.row) && !self.may_be_prompt(stream)) {
            out.push(b'\r');
            if self.open.len() > 1 {
                out.extend_from_slice(format!("\x1b[{}A", self.open.len() - 1).as_bytes());
            }
            out.extend_from_slice(b"\x1b[J");
        } else {
            out.push(b'\n');
            for id in self.open.drain(..) {
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.reset_row();
                }
            }
        }
    }

    fn may_be_prompt(&self, stream: &WorkerStream) -> bool {
        let age = self.now.map(|now| now.saturating_duration_since(stream.pending.since)).unwrap_or_default();
        !stream.row.is_progress() && age >= PROMPT_AGE
    }

    /// Draws the lines that [`Self::clear_open_lines`] erased.
    fn redraw(&self, out: &mut Vec<u8>) {
        for (row, id) in self.open.iter().enumerate() {
            if row > 0 {
                out.extend_from_slice(b"\r\n");
            }
            if let Some(stream) = self.streams.get(id) {
                stream.row.draw(out);
            }
        }
    }

    /// Draws one erased line for the last time; `false` if the stream has none.
    fn close(&mut self, id: StreamId, out: &mut Vec<u8>) -> bool {
        let Some(row) = self.open.iter().position(|&open| open == id) else { return false };
        self.open.remove(row);
        if let Some(stream) = self.streams.get(&id) {
            stream.row.draw(out);
        }
        true
    }
}

fn is_erasable(kind: ScreenKind, line: &[u8]) -> bool {
    match kind {
        ScreenKind::Plain => false,
        ScreenKind::Terminal { columns, .. } => line.len() < usize::from(columns),
    }
}
