//! The visible part of one unfinished line in a terminal's row, as far as drawing it again needs it. Pure.

/// Beyond this an unfinished line is wider than any terminal and is never drawn again.
const MAX_LINE_BYTES: usize = 8 * 1024;

/// The visible part of an unfinished line: the bytes since the last carriage return that was overwritten.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TerminalRow {
    text: Vec<u8>,
    returns: CarriageReturns,
    is_overflowed: bool,
}

/// Where the carriage returns of a row are.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum CarriageReturns {
    #[default]
    Never,
    Before,
    /// Behind it: the cursor is at the start.
    Last,
}

impl TerminalRow {
    /// Adds bytes to the row: any but a newline.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        for run in bytes.split_inclusive(|&byte| byte == b'\r') {
            let text = run.strip_suffix(b"\r").unwrap_or(run);
            if !text.is_empty() {
                // A row that was returned keeps its text until something overwrites it: `50%\r` stays visible.
                if self.returns == CarriageReturns::Last {
                    self.returns = CarriageReturns::Before;
                    self.text.clear();
                    self.is_overflowed = false;
                }
                self.is_overflowed |= self.text.len() + text.len() > MAX_LINE_BYTES;
                if !self.is_overflowed {
                    self.text.extend_from_slice(text);
                }
            }
            if text.len() < run.len() {
                self.returns = CarriageReturns::Last;
            }
        }
    }

    /// Writes the current row, cursor included.
    pub(super) fn draw(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.text);
        if self.returns == CarriageReturns::Last {
            out.push(b'\r');
        }
    }

    /// Whether the row is rewritten in place, as progress bars are.
    pub(super) fn is_progress(&self) -> bool {
        self.returns != CarriageReturns::Never
    }

    /// Whether the row has an escape sequence, such as a colour that is still on.
    pub(super) fn is_styled(&self) -> bool {
        self.text.contains(&0x1b)
    }

    /// Whether the text takes one row of a terminal with this number of columns, so that it can be erased and drawn
    /// again.
    pub(super) fn fits(&self, columns: usize) -> bool {
        !self.is_overflowed && width(&self.text).is_some_and(|width| width < columns)
    }
}

/// How many columns a text takes at most; `None` when it moves the cursor in ways that we do not follow.
pub(super) fn width(text: &[u8]) -> Option<usize> {
    let mut width = 0;
    let text = String::from_utf8_lossy(text);
    let mut rest = text.chars();
    while let Some(char) = rest.next() {
        width += match char {
            '\x1b' => {
                skip_style(&mut rest)?;
                0
            }
            '\t' => 8,
            char if char.is_control() => return None,
            char => char_width(char),
        };
    }
    Some(width)
}

/// How many columns a printable character takes at most. A guess to the safe side: one that may take two counts as two.
pub(super) const fn char_width(char: char) -> usize {
    match char {
        '\0'..'\u{1100}' | '\u{2010}'..'\u{2300}' | '\u{2400}'..'\u{25fd}' | '\u{2800}'..'\u{2b00}' => 1,
        _ => 2,
    }
}

/// Skips a control sequence that only sets colours or erases to the end of the row.
fn skip_style(rest: &mut std::str::Chars<'_>) -> Option<()> {
    if rest.next()? != '[' {
        return None;
    }
    match rest.find(|char| ('@'..='~').contains(char))? {
        'm' | 'K' => Some(()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::screen::terminal_row::*;

    fn row(pushes: &[&str]) -> TerminalRow {
        let mut row = TerminalRow::default();
        pushes.iter().for_each(|bytes| row.push(bytes.as_bytes()));
        row
    }

    #[test]
    fn carriage_return_keeps_text_until_overwritten() {
        assert_eq!(row(&["50%\r"]).text, b"50%");
        assert_eq!(row(&["50%\r", "60%"]).text, b"60%");
        assert_eq!(row(&["\r10%\r", "\r", "20", "%"]).text, b"20%");
    }

    #[test]
    fn row_after_return_is_drawn_with_cursor_at_start() {
        let mut out = Vec::new();
        row(&["50%\r"]).draw(&mut out);
        assert_eq!(out, b"50%\r");
    }

    #[test]
    fn text_that_may_exceed_one_row_does_not_fit() {
        assert!(row(&["50%|\u{2588}\u{2588}  | 1/2 \x1b[32mok\x1b[0m"]).fits(20));
        assert!(!row(&["0123456789"]).fits(10));
        assert!(!row(&["\u{4f60}\u{597d}"]).fits(4));
        assert!(!row(&["\x1b[A up"]).fits(80));
        assert!(!row(&["back\x08"]).fits(80));
        assert!(!row(&[&"x".repeat(MAX_LINE_BYTES + 1)]).fits(usize::MAX));
    }
}
