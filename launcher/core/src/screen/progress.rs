//! The last rows of a stream that rewrites its lines, such as one with progress bars. Pure.
//!
//! It follows carriage returns, backspaces, and the escape sequences that move the cursor within these rows, which
//! nested bars use. A row is finished when the stream continues below it; then it is an ordinary line. Sequences that
//! would reach other rows of the terminal have no effect.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::screen::cells::{CELL_LIMIT, CellRow};
use crate::screen::decoder::{Control, Decoder, Token, begins_ordinary_line};

/// So many rows are kept; above them a row is finished.
const ROW_LIMIT: usize = 32;
/// A cursor that stays so long below a row does not come back to it.
const SETTLE: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
pub(super) struct ProgressRow {
    pub(super) cells: CellRow,
    /// Whether the stream went back to its start, or erased some of it.
    pub(super) rewritten: bool,
    /// The last snapshot of it that became a line.
    written: Option<Vec<u8>>,
}

/// The last cursor movement, colours aside.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum LastMove {
    #[default]
    Other,
    /// To the start of its row: the next character begins a new snapshot.
    Return,
    Newline,
}

#[derive(Debug)]
pub(super) struct ProgressArea {
    rows: VecDeque<ProgressRow>,
    row: usize,
    column: usize,
    decoder: Decoder,
    last: LastMove,
    /// The stream has gone up: it may do so again.
    moved_up: bool,
    last_change: Instant,
}

impl ProgressArea {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            rows: VecDeque::from([ProgressRow::default()]),
            row: 0,
            column: 0,
            decoder: Decoder::default(),
            last: LastMove::Other,
            moved_up: false,
            last_change: now,
        }
    }

    /// Follows `bytes` until the area is of no more use; returns how many that took. Rows that are finished by them
    /// are added to `finished`.
    pub(super) fn feed(&mut self, bytes: &[u8], now: Instant, finished: &mut Vec<ProgressRow>) -> usize {
        self.last_change = now;
        if self.ends_before(bytes, finished) {
            return 0;
        }
        for (at, &byte) in bytes.iter().enumerate() {
            for token in self.decoder.push(byte).into_iter().flatten() {
                match token {
                    Token::Character(character) => self.print(character, finished),
                    Token::Control(control) => self.apply_control(control, finished),
                }
            }
            if byte == b'\n' && (self.is_idle() || self.ends_before(&bytes[at + 1..], finished)) {
                return at + 1;
            }
        }
        bytes.len()
    }

    /// Whether an ordinary line begins with these bytes, below all rows: it is not a row, and keeps every byte.
    fn ends_before(&mut self, next: &[u8], finished: &mut Vec<ProgressRow>) -> bool {
        let is_below = self.last == LastMove::Newline && !self.moved_up && self.row + 1 == self.rows.len();
        let is_fresh = self.rows[self.row].cells.is_empty() && self.column == 0 && self.decoder.is_idle();
        let ends = is_below && is_fresh && begins_ordinary_line(next);
        if ends {
            self.finish_above(self.row, finished);
        }
        ends
    }

    /// The rows above a cursor that has come to rest are finished.
    pub(super) fn settle(&mut self, now: Instant, finished: &mut Vec<ProgressRow>) {
        if self.settles_at().is_some_and(|at| at <= now) {
            self.finish_above(self.row, finished);
            self.moved_up &= self.rows.len() > 1;
        }
    }

    /// When [`Self::settle`] has something to do.
    pub(super) fn settles_at(&self) -> Option<Instant> {
        (self.row > 0).then(|| self.last_change + SETTLE)
    }

    /// Whether lines can be passed on as they are again.
    pub(super) fn is_idle(&self) -> bool {
        let is_blank = self.rows.len() == 1 && self.rows[0].cells.is_empty();
        is_blank && self.column == 0 && self.last != LastMove::Return && self.decoder.is_idle()
    }

    /// The rows that a terminal would show.
    pub(super) fn visible(&self) -> impl DoubleEndedIterator<Item = &ProgressRow> {
        self.rows.iter().filter(|row| !row.cells.is_blank())
    }

    /// As [`Self::visible`].
    pub(super) fn visible_mut(&mut self) -> impl Iterator<Item = &mut ProgressRow> {
        self.rows.iter_mut().filter(|row| !row.cells.is_blank())
    }

    /// The stream ended: all rows are finished.
    pub(super) fn into_finished(mut self) -> Vec<ProgressRow> {
        let mut finished = Vec::new();
        while self.rows.back().is_some_and(|row| row.cells.is_blank()) {
            self.rows.pop_back();
        }
        self.finish_above(self.rows.len(), &mut finished);
        finished
    }

    fn print(&mut self, character: char, finished: &mut Vec<ProgressRow>) {
        let is_last = self.row + 1 == self.rows.len();
        let last = std::mem::take(&mut self.last);
        if last == LastMove::Newline && is_last && !self.moved_up {
            self.finish_above(self.row, finished);
        }
        let (column, row) = (self.column, &mut self.rows[self.row]);
        if last == LastMove::Return && column == 0 {
            // A bar that erased itself with blanks makes room for an ordinary line.
            row.rewritten = row.cells.is_empty() || !row.cells.is_blank();
            row.cells.erase_from(0);
        }
        row.cells.put(column, character, self.decoder.style());
        self.column = (column + 1).min(CELL_LIMIT);
    }

    fn apply_control(&mut self, control: Control, finished: &mut Vec<ProgressRow>) {
        if control == Control::Newline {
            return self.go_to_next_row(finished);
        }
        if self.last == LastMove::Newline {
            self.last = LastMove::Other;
        }
        let (column, row) = (self.column, &mut self.rows[self.row]);
        match control {
            Control::Newline => {}
            Control::Return => (self.column, self.last) = (0, LastMove::Return),
            Control::Left(count) => {
                (self.column, self.last) = (column.saturating_sub(count), LastMove::Other);
                row.rewritten = true;
            }
            Control::Right(count) => self.column = (column + count).min(CELL_LIMIT),
            Control::Column(wanted) => {
                self.column = wanted.min(CELL_LIMIT);
                self.last = if wanted == 0 { LastMove::Return } else { LastMove::Other };
            }
            Control::Tab => self.column = (column / 8 * 8 + 8).min(CELL_LIMIT),
            Control::Up(count) => self.go_up(count),
            Control::Down(count) => self.row = (self.row + count).min(self.rows.len() - 1),
            Control::EraseRight => row.erase(|cells| cells.erase_from(column)),
            Control::EraseLeft => row.erase(|cells| cells.erase_to(column)),
            Control::EraseRow => row.erase(|cells| cells.erase_from(0)),
            Control::EraseBelow => {
                row.erase(|cells| cells.erase_from(column));
                self.rows.truncate(self.row + 1);
            }
        }
    }

    fn go_to_next_row(&mut self, finished: &mut Vec<ProgressRow>) {
        let row = &self.rows[self.row];
        let is_ordinary = !self.moved_up && !row.rewritten && !row.cells.is_blank();
        self.row += 1;
        if self.row == self.rows.len() {
            self.rows.push_back(ProgressRow::default());
        }
        if is_ordinary {
            self.finish_above(self.row, finished);
        } else if self.rows.len() > ROW_LIMIT {
            self.finish_above(1, finished);
        }
        (self.column, self.last) = (0, LastMove::Newline);
    }

    /// A row above the first one was finished before; the stream draws it again.
    fn go_up(&mut self, count: usize) {
        self.moved_up = true;
        let missing = count.saturating_sub(self.row).min(ROW_LIMIT.saturating_sub(self.rows.len()));
        for _ in 0..missing {
            self.rows.push_front(ProgressRow::default());
        }
        self.row = (self.row + missing).saturating_sub(count);
    }

    /// The first `count` rows are finished. Blank ones among rows that are drawn again only made room.
    fn finish_above(&mut self, count: usize, finished: &mut Vec<ProgressRow>) {
        let moved_up = self.moved_up;
        finished.extend(self.rows.drain(..count).filter(|row| !moved_up || !row.cells.is_blank()));
        self.row = self.row.saturating_sub(count);
        if self.rows.is_empty() {
            self.rows.push_back(ProgressRow::default());
        }
    }
}

impl ProgressRow {
    /// Its snapshot, which becomes a line now, unless it did already.
    pub(super) fn new_snapshot(&mut self) -> Option<&[u8]> {
        let snapshot = self.snapshot();
        if self.written.as_ref() == Some(&snapshot) {
            return None;
        }
        Some(self.written.insert(snapshot))
    }

    /// Whether its last snapshot is a line already.
    pub(super) fn is_written(&self) -> bool {
        self.written.as_ref().is_some_and(|written| *written == self.snapshot())
    }

    fn snapshot(&self) -> Vec<u8> {
        let mut snapshot = Vec::new();
        self.cells.draw(usize::MAX, &mut snapshot);
        snapshot
    }

    fn erase(&mut self, erase: impl FnOnce(&mut CellRow)) {
        erase(&mut self.cells);
        self.rewritten = true;
    }
}
