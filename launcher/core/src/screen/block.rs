//! Lines that are rewritten. On a terminal they are a block at its bottom, one row for each line, which is erased and
//! drawn again when ordinary lines come. Elsewhere a snapshot of each becomes a line now and then. Pure.

use std::time::{Duration, Instant};

use crate::screen::progress::{ProgressArea, ProgressRow};
use crate::screen::terminal_row::width;
use crate::screen::worker_stream::{PromptState, WorkerStream};
use crate::screen::{PROMPT_AGE, Screen, ScreenKind, StreamId};

/// The block is drawn at most so often for changes of its own.
const FRAME: Duration = Duration::from_millis(50);
/// Where nothing can be taken back, the first snapshot of a line is written after this time.
pub(super) const FIRST_SNAPSHOT: Duration = Duration::from_secs(1);
/// The next ones of a stream are written at most so often.
pub(super) const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(10);
/// Rows of the terminal that the block leaves to ordinary lines.
const ROWS_FOR_LINES: u16 = 4;

/// The visible state of the block; the cursor is at the start of its last row.
#[derive(Debug)]
pub(super) struct Block {
    /// The columns that each row takes.
    widths: Vec<usize>,
    /// The block on the terminal is out of date.
    pub(super) is_stale: bool,
    drawn_at: Option<Instant>,
}

impl Block {
    pub(super) const fn nothing() -> Self {
        Self { widths: Vec::new(), is_stale: false, drawn_at: None }
    }

    pub(super) const fn is_erased(&self) -> bool {
        self.widths.is_empty()
    }

    /// Brings the cursor to an empty row. Where the terminal has become too small, the old rows stay above it.
    pub(super) fn erase(&mut self, kind: ScreenKind, out: &mut Vec<u8>) {
        if self.is_erased() {
            return;
        }
        if self.fits(kind) {
            self.go_to_first_row(out);
            out.extend_from_slice(b"\x1b[J");
        } else {
            out.push(b'\n');
        }
        self.widths.clear();
    }

    fn fits(&self, kind: ScreenKind) -> bool {
        let ScreenKind::Terminal { columns, rows } = kind else { return false };
        self.widths.len() <= usize::from(rows)
            && self.widths.iter().all(|width| *width < usize::from(columns))
    }

    fn go_to_first_row(&self, out: &mut Vec<u8>) {
        out.push(b'\r');
        if self.widths.len() > 1 {
            out.extend_from_slice(format!("\x1b[{}A", self.widths.len() - 1).as_bytes());
        }
    }
}

impl Screen {
    /// As [`Self::pass_on`], for a stream with tracked rewritten lines.
    pub(super) fn follow(&mut self, id: StreamId, bytes: &[u8], out: &mut Vec<u8>) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let Some(stream) = self.streams.get(&id) else { return };
            let taken = if stream.area.is_some() {
                self.feed_area(id, rest, out)
            } else if let Some(start) = stream.first_rewritten_line(rest) {
                self.forward_bytes(id, &rest[..start], out);
                self.open_area(id, out);
                start
            } else if rest.ends_with(b"\r") && self.open.contains(&id) {
                // The line is shown: the next bytes overwrite it.
                self.open_area(id, out);
                0
            } else {
                self.pass_on_but_blank(id, rest, out);
                rest.len()
            };
            rest = &rest[taken..];
        }
    }

    /// Blank lines at the end are held for a moment: they may be the room that a nested bar makes for itself.
    fn pass_on_but_blank(&mut self, id: StreamId, bytes: &[u8], out: &mut Vec<u8>) {
        let Some(stream) = self.streams.get(&id) else { return };
        let (end, blank) = (stream.end_of(bytes), stream.blank_lines_before(bytes));
        let is_line_ended = bytes.ends_with(b"\n");
        if stream.pending.is_blank() {
            self.finish_lines(id, &[], out);
        }
        if !is_line_ended || blank == bytes.len() {
            return self.forward_bytes(id, bytes, out);
        }
        self.forward_bytes(id, &bytes[..blank], out);
        if let (Some(stream), Some(now)) = (self.streams.get_mut(&id), self.now) {
            stream.hold(&bytes[blank..], end, now);
        }
    }

    /// From here on the stream's lines are followed, with the present part of its current line.
    fn open_area(&mut self, id: StreamId, out: &mut Vec<u8>) {
        self.clear_open_lines(out);
        let (Some(stream), Some(now)) = (self.streams.get_mut(&id), self.now) else { return };
        let mut text = stream.shown_text();
        text.extend_from_slice(&stream.take_pending());
        stream.reset_row();
        stream.area = Some(Box::new(ProgressArea::new(now)));
        stream.snapshot_due = stream.snapshot_due.max(now + FIRST_SNAPSHOT);
        self.open.retain(|&open| open != id);
        self.redraw(out);
        self.follow(id, &text, out);
    }

    fn feed_area(&mut self, id: StreamId, bytes: &[u8], out: &mut Vec<u8>) -> usize {
        let (Some(stream), Some(now)) = (self.streams.get_mut(&id), self.now) else { return bytes.len() };
        let Some(area) = &mut stream.area else { return 0 };
        let mut finished = Vec::new();
        let taken = area.feed(bytes, now, &mut finished);
        stream.is_undrawn = true;
        if area.is_idle() {
            stream.area = None;
        }
        self.block.is_stale = true;
        self.write_rows(id, &finished, out);
        taken
    }

    /// Blank lines that were held, or a snapshot that was finished by its carriage return.
    pub(super) fn show_whole_rows(&mut self, id: StreamId, out: &mut Vec<u8>) -> bool {
        let Some(stream) = self.streams.get(&id).filter(|stream| stream.holds_whole_rows()) else {
            return false;
        };
        if stream.pending.is_blank() {
            self.finish_lines(id, &[], out);
        } else {
            self.open_area(id, out);
        }
        true
    }

    /// The stream ended: its last rewritten rows become its last lines.
    pub(super) fn end_area(&mut self, id: StreamId, out: &mut Vec<u8>) {
        let area = self.streams.get_mut(&id).and_then(|stream| stream.area.take());
        if let Some(area) = area {
            // The thread may end before the next frame.
            self.block.erase(self.kind, out);
            self.block.is_stale = true;
            self.write_rows(id, &area.into_finished(), out);
        }
    }

    /// Writes the rows that time has finished, and snapshots where they cannot be taken back.
    pub(super) fn settle_areas(&mut self, now: Instant, out: &mut Vec<u8>) {
        let ids: Vec<StreamId> = self.streams_with_progress().map(|(id, _, _)| id).collect();
        for id in ids {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            let Some(area) = &mut stream.area else { continue };
            let mut finished = Vec::new();
            area.settle(now, &mut finished);
            if area.is_idle() {
                stream.area = None;
            }
            self.write_rows(id, &finished, out);
            self.write_due_snapshot(id, now, out);
        }
    }

    fn write_due_snapshot(&mut self, id: StreamId, now: Instant, out: &mut Vec<u8>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if snapshot_due(self.kind, stream).is_none_or(|due| due > now) {
            return;
        }
        stream.is_undrawn = false;
        let mut snapshots = Vec::new();
        for row in stream.area.iter_mut().flat_map(|area| area.visible_mut()) {
            if let Some(snapshot) = row.new_snapshot() {
                snapshots.extend_from_slice(stream.label.as_deref().unwrap_or_default());
                snapshots.extend_from_slice(snapshot);
                snapshots.push(b'\n');
            }
        }
        if snapshots.is_empty() {
            return;
        }
        stream.snapshot_due = now + SNAPSHOT_INTERVAL;
        self.clear_open_lines(out);
        out.extend_from_slice(&snapshots);
        self.redraw(out);
    }

    fn write_rows(&mut self, id: StreamId, rows: &[ProgressRow], out: &mut Vec<u8>) {
        if rows.iter().all(ProgressRow::is_written) {
            return;
        }
        self.clear_open_lines(out);
        if let Some(stream) = self.streams.get(&id) {
            for row in rows.iter().filter(|row| !row.is_written()) {
                let label = stream.label.as_deref().filter(|_| row.rewritten);
                out.extend_from_slice(label.unwrap_or(stream.prefix()));
                row.cells.draw(usize::MAX, out);
                out.push(b'\n');
            }
        }
        self.redraw(out);
        self.block.is_stale = true;
    }

    fn streams_with_progress(&self) -> impl Iterator<Item = (StreamId, &WorkerStream, &ProgressArea)> {
        self.streams.iter().filter_map(|(&id, stream)| Some((id, stream, stream.area.as_deref()?)))
    }

    /// Draws the block, unless it is too early. After each turn of lines and messages.
    pub fn draw_due(&mut self, now: Instant, out: &mut Vec<u8>) {
        let ScreenKind::Terminal { columns, rows } = self.kind else { return };
        if self.draws_at().is_none_or(|at| at > now) {
            return;
        }
        let budget = usize::from(rows.saturating_sub(ROWS_FOR_LINES)).max(2);
        let frame = self.frame(usize::from(columns).saturating_sub(1), budget);
        self.block.is_stale = false;
        self.block.drawn_at = Some(now);
        // In place, where it can be: a block that is erased first flickers.
        let is_in_place = !self.has_ended_open_line && self.open.is_empty() && !self.block.is_erased();
        if is_in_place && self.block.fits(self.kind) && frame.len() >= self.block.widths.len() {
            self.block.go_to_first_row(out);
        } else if !frame.is_empty() || !self.block.is_erased() {
            self.clear_open_lines(out);
        }
        for (row, (text, _)) in frame.iter().enumerate() {
            if row > 0 {
                out.extend_from_slice(b"\r\n");
            }
            out.extend_from_slice(text);
            out.extend_from_slice(b"\x1b[K");
        }
        if !frame.is_empty() {
            out.push(b'\r');
        }
        self.block.widths = frame.into_iter().map(|(_, width)| width).collect();
    }

    /// The rows of the block, with the columns that each takes.
    fn frame(&self, columns: usize, budget: usize) -> Vec<(Vec<u8>, usize)> {
        let all = || {
            self.streams_with_progress()
                .flat_map(|(_, stream, area)| area.visible().map(move |row| (stream, row)))
        };
        let count = all().count();
        let shown = if count > budget { budget - 1 } else { count };
        let draw = |(stream, row): (&WorkerStream, &ProgressRow)| {
            let mut text = stream.label.clone().unwrap_or_default();
            let mut used = width(&text).filter(|used| used * 2 <= columns).unwrap_or_else(|| {
                text.clear();
                0
            });
            used += row.cells.draw(columns - used, &mut text);
            (text, used)
        };
        let mut frame: Vec<_> = all().take(shown).map(draw).collect();
        if shown < count {
            let mut text = format!("({} more lines in progress)", count - shown);
            text.truncate(columns);
            frame.push((text.clone().into_bytes(), text.len()));
        }
        frame
    }

    /// A person answers what this stream asks: the block leaves the bottom of the terminal to the prompt.
    pub fn allow_prompts(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.prompt = PromptState::Idle;
        }
    }

    /// A worker that writes to its other stream does not wait for an answer.
    pub(super) fn note_prompt(&mut self, id: StreamId, bytes: &[u8]) {
        if self.streams.get(&id).is_none_or(|stream| stream.prompt == PromptState::Never) {
            return;
        }
        for (&other, stream) in &mut self.streams {
            if other == id {
                stream.note_prompt(bytes);
            } else if stream.prompt == PromptState::MayWait {
                stream.prompt = PromptState::Idle;
            }
        }
    }

    /// When the block may be drawn. An unfinished line of another kind has the bottom of the terminal for a while:
    /// it may be finished soon.
    fn draws_at(&self) -> Option<Instant> {
        let has_rows = !self.block.is_erased() || self.streams_with_progress().next().is_some();
        let is_asked = self.streams.values().any(|stream| stream.prompt == PromptState::MayWait);
        if !self.block.is_stale || !has_rows || is_asked || self.kind == ScreenKind::Plain {
            return None;
        }
        let now = self.now?;
        let frame = match self.block.drawn_at {
            Some(drawn) if !self.block.is_erased() => drawn + FRAME,
            Some(_) | None => now,
        };
        let open = self.open.iter().filter_map(|id| self.streams.get(id));
        open.map(|stream| stream.pending.since + PROMPT_AGE).chain([frame]).max()
    }

    /// When an area or the block changes without a new byte.
    pub(super) fn block_deadline(&self) -> impl Iterator<Item = Instant> {
        let areas = self.streams_with_progress().flat_map(|(_, stream, area)| {
            [area.settles_at(), snapshot_due(self.kind, stream)].into_iter().flatten()
        });
        areas.chain(self.draws_at())
    }
}

/// When the next snapshot of this stream's lines is written as lines.
fn snapshot_due(kind: ScreenKind, stream: &WorkerStream) -> Option<Instant> {
    let area = stream.area.as_deref()?;
    let is_wanted = kind == ScreenKind::Plain && stream.is_undrawn && area.visible().next().is_some();
    is_wanted.then_some(stream.snapshot_due)
}
