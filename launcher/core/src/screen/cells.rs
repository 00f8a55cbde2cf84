//! One row of characters with their colours. Pure.

use std::sync::Arc;

use crate::screen::terminal_row::char_width;

pub(super) const CELL_LIMIT: usize = 2048;
/// Stands for the rest of a row that is wider than the terminal.
const CUT_MARK: u8 = b'>';

/// The escape sequences that set colours, together; `None` for the terminal's own.
pub(super) type CellStyle = Option<Arc<[u8]>>;

#[derive(Debug, Clone, PartialEq, Eq)]
struct ScreenCell {
    character: char,
    style: CellStyle,
}

impl ScreenCell {
    const fn is_blank(&self) -> bool {
        self.character == ' ' && self.style.is_none()
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CellRow {
    cells: Vec<ScreenCell>,
}

impl CellRow {
    /// Whether nothing was ever written to it since it was cleared.
    pub(super) const fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Whether the row holds only blanks.
    pub(super) fn is_blank(&self) -> bool {
        self.cells.iter().all(|cell| cell.character == ' ')
    }

    /// Puts a character at a column. Beyond the limit it is lost.
    pub(super) fn put(&mut self, column: usize, character: char, style: &CellStyle) {
        if column >= CELL_LIMIT {
            return;
        }
        if self.cells.len() <= column {
            self.cells.resize(column + 1, ScreenCell { character: ' ', style: None });
        }
        self.cells[column] = ScreenCell { character, style: style.clone() };
    }

    /// Erases the row from this column on.
    pub(super) fn erase_from(&mut self, column: usize) {
        self.cells.truncate(column);
    }

    /// Erases the row up to this column, which is included.
    pub(super) fn erase_to(&mut self, column: usize) {
        let end = self.cells.len().min(column.saturating_add(1));
        self.cells[..end].fill(ScreenCell { character: ' ', style: None });
    }

    /// Writes the row in at most `columns` columns, and returns how many it takes.
    pub(super) fn draw(&self, columns: usize, out: &mut Vec<u8>) -> usize {
        let visible = self.cells.iter().rposition(|cell| !cell.is_blank()).map_or(0, |last| last + 1);
        let cells = &self.cells[..visible];
        let width: usize = cells.iter().map(|cell| char_width(cell.character)).sum();
        let room = if width > columns { columns.saturating_sub(1) } else { columns };
        let (mut used, mut style) = (0, &None);
        for cell in cells {
            let wide = char_width(cell.character);
            if used + wide > room {
                break;
            }
            used += wide;
            set_style(&mut style, &cell.style, out);
            out.extend_from_slice(cell.character.encode_utf8(&mut [0; 4]).as_bytes());
        }
        set_style(&mut style, &None, out);
        if width > columns && columns > 0 {
            out.push(CUT_MARK);
            used += 1;
        }
        used
    }
}

fn set_style<'a>(current: &mut &'a CellStyle, wanted: &'a CellStyle, out: &mut Vec<u8>) {
    if *current != wanted {
        if current.is_some() {
            out.extend_from_slice(b"\x1b[0m");
        }
        out.extend_from_slice(wanted.as_deref().unwrap_or_default());
        *current = wanted;
    }
}
