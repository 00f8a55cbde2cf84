//! One snapshot on a terminal, drawn over the one before. Pure: pages and size in, bytes out.
//!
//! Control sequences are those of ECMA-48, and xterm's private modes, which every terminal of today knows.

use crate::explain::Style;

use super::page::{Cell, Line, Page, Tone, one_line, width};

/// The alternate screen, so that the previous contents come back; lines are cut instead of wrapped; no cursor.
pub(super) const ENTER: &[u8] = b"\x1b[?1049h\x1b[?7l\x1b[?25l\x1b[2J";
pub(super) const LEAVE: &[u8] = b"\x1b[m\x1b[?25h\x1b[?7h\x1b[?1049l";

const HOME: &str = "\x1b[H";
/// The rest of the line becomes empty.
const CLEAR_LINE: &str = "\x1b[K";
/// The rest of the screen too.
const CLEAR_BELOW: &str = "\x1b[J";

/// A terminal's size; a terminal that does not know its own counts as the classic one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

impl Size {
    pub(super) fn of(columns: u16, rows: u16) -> Self {
        let or = |number: u16, classic: usize| if number == 0 { classic } else { usize::from(number) };
        Self { columns: or(columns, 80), rows: or(rows, 24) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    /// The command, its interval, and the time of the snapshot.
    pub(super) title: String,
    /// Why this is not the newest snapshot.
    pub(super) problem: Option<String>,
}

/// The bytes that draw `page`, in which everything that `before` did not have is marked.
pub(super) fn draw(header: &Header, page: &Page, before: Option<&Page>, size: Size, style: Style) -> Vec<u8> {
    let mut text = HOME.to_owned();
    let mut room = size.rows;
    let mut put = |line: &str| {
        if room > 0 {
            // Before each line but the first one: a line break behind the last one would scroll.
            let lead = if room == size.rows { "" } else { "\r\n" };
            text.push_str(&format!("{lead}{line}{CLEAR_LINE}"));
            room -= 1;
        }
        room
    };
    let painted = |text: &str, tone| paint(&cut(text, size.columns), codes(tone, style, false).as_deref());
    put(&painted(&header.title, Tone::Faint));
    let mut rows_left = match &header.problem {
        Some(problem) => put(&painted(problem, Tone::Bad)),
        None => put(""),
    };
    let lines = page.lines.len();
    for (at, line) in page.lines.iter().enumerate() {
        if rows_left == 1 && at + 1 < lines {
            let more = format!("… {} more lines: make the window taller", lines - at);
            put(&painted(&more, Tone::Faint));
            break;
        }
        rows_left = put(&row(line, before, size.columns, style));
    }
    text.push_str(CLEAR_BELOW);
    text.into_bytes()
}

fn row(line: &Line, before: Option<&Page>, columns: usize, style: Style) -> String {
    let old = before.and_then(|page| page.lines.iter().find(|old| old.key == line.key));
    let is_new = |cell: &Cell| match (before, old) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(_), Some(old)) => {
            !old.cells.iter().any(|other| other.name == cell.name && other.text == cell.text)
        }
    };
    let mut text = String::new();
    let mut at = 0;
    for cell in &line.cells {
        at += cell.before;
        let shown = cut(&cell.text, columns.saturating_sub(at));
        if shown.is_empty() {
            break;
        }
        at += width(&shown);
        text.push_str(&" ".repeat(cell.before));
        text.push_str(&paint(&shown, codes(cell.tone, style, is_new(cell)).as_deref()));
    }
    text
}

/// A change is marked in reverse video, which is not a colour.
fn codes(tone: Tone, style: Style, is_new: bool) -> Option<String> {
    let tone = tone.codes().filter(|_| style == Style::Coloured);
    let codes: Vec<&str> = tone.into_iter().chain(is_new.then_some("7")).collect();
    (!codes.is_empty()).then(|| codes.join(";"))
}

fn paint(text: &str, codes: Option<&str>) -> String {
    match codes.filter(|_| !text.is_empty()) {
        Some(codes) => format!("\x1b[{codes}m{text}\x1b[m"),
        None => text.to_owned(),
    }
}

fn cut(text: &str, columns: usize) -> String {
    one_line(text).chars().take(columns).collect()
}

#[cfg(test)]
mod tests {
    use super::super::page::{Align, Column, Row};
    use super::*;

    const COLUMNS: [Column; 3] =
        [Column("#", Align::Left), Column("°C", Align::Right), Column("name", Align::Left)];

    fn page(degrees: [&str; 2]) -> Page {
        let mut page = Page::default();
        let row = |number: &str, degrees: &str| {
            Row::new(number.to_owned()).toned(number, Tone::Warning).cell(degrees).cell("card")
        };
        page.table(&COLUMNS, vec![row("0", degrees[0]), row("1", degrees[1])]);
        page
    }

    fn drawn(page: &Page, before: Option<&Page>, (columns, rows): (u16, u16), style: Style) -> String {
        let header = Header { title: "title".to_owned(), problem: None };
        String::from_utf8(draw(&header, page, before, Size::of(columns, rows), style)).unwrap()
    }

    #[test]
    fn every_line_clears_to_its_end() {
        let text = drawn(&page(["34", "40"]), None, (80, 24), Style::Plain);
        let lines = ["\x1b[Htitle", "", "#  °C  name", "0  34  card", "1  40  card"];
        assert_eq!(text, lines.join("\x1b[K\r\n") + "\x1b[K\x1b[J");
    }

    #[test]
    fn only_changed_cells_are_highlighted() {
        let (before, after) = (page(["34", "40"]), page(["34", "41"]));
        let text = drawn(&after, Some(&before), (80, 24), Style::Plain);
        assert!(text.contains("1  \x1b[7m41\x1b[m  card"), "{text:?}");
        assert_eq!(text.matches("\x1b[7m").count(), 1, "{text:?}");
        assert!(!drawn(&after, Some(&after), (80, 24), Style::Plain).contains("\x1b[7m"));
        let coloured = drawn(&after, Some(&page(["34", "41"])), (80, 24), Style::Coloured);
        assert!(coloured.contains("\x1b[1;33m0\x1b[m  34"), "{coloured:?}");
    }

    #[test]
    fn new_row_is_highlighted_alone() {
        let (mut before, after) = (page(["34", "40"]), page(["34", "40"]));
        before.lines.remove(1);
        let text = drawn(&after, Some(&before), (80, 24), Style::Plain);
        assert!(text.contains("\x1b[7m0\x1b[m  \x1b[7m34\x1b[m  \x1b[7mcard\x1b[m"), "{text:?}");
        assert_eq!(text.matches("\x1b[7m").count(), 3, "{text:?}");
    }

    #[test]
    fn frame_fits_terminal_size() {
        for (columns, rows) in [(1, 1), (4, 3), (7, 4), (80, 5), (0, 0)] {
            let size = Size::of(columns, rows);
            let text = drawn(&page(["34", "40"]), None, (columns, rows), Style::Plain);
            assert!(text.matches("\r\n").count() < size.rows, "{text:?}");
            let widest = text
                .replace("\x1b[H", "")
                .replace("\x1b[K", "")
                .replace("\x1b[J", "")
                .split("\r\n")
                .map(width)
                .max();
            assert!(widest.unwrap() <= size.columns, "{text:?}");
        }
        let text = drawn(&page(["34", "40"]), None, (80, 4), Style::Plain);
        assert!(text.ends_with("… 2 more lines: make the window taller\x1b[K\x1b[J"), "{text:?}");
    }

    #[test]
    fn problem_replaces_blank_line() {
        let header = Header { title: "t".to_owned(), problem: Some("NVML hangs".to_owned()) };
        let text = draw(&header, &Page::default(), None, Size::of(80, 24), Style::Coloured);
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text, "\x1b[H\x1b[2mt\x1b[m\x1b[K\r\n\x1b[1;31mNVML hangs\x1b[m\x1b[K\x1b[J");
    }
}
