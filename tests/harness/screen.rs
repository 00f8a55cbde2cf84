//! What a person sees on a terminal after some bytes.

use rustix::termios::Winsize;

/// A terminal's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Its height.
    pub rows: u16,
    /// Its width.
    pub columns: u16,
}

impl Size {
    /// The rows of a terminal of this size, without blanks at their ends and blank rows at the bottom.
    #[must_use]
    pub fn rows_after(self, bytes: &[u8]) -> Vec<String> {
        let mut terminal = vt100::Parser::new(self.rows, self.columns, 0);
        terminal.process(bytes);
        let rows = terminal.screen().rows(0, self.columns);
        let mut rows: Vec<String> = rows.map(|row| row.trim_end().to_owned()).collect();
        rows.truncate(rows.iter().rposition(|row| !row.is_empty()).map_or(0, |last| last + 1));
        rows
    }

    /// The same with all that has scrolled out at the top.
    #[must_use]
    pub fn history_after(self, bytes: &[u8]) -> Vec<String> {
        Self { rows: 1000, ..self }.rows_after(bytes)
    }
}

pub(crate) const fn window_size(size: Size) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}
