//! Lines of cells that know their names, so that two snapshots can be compared cell by cell. Pure.

use crate::explain::Style;
use rankrun_core::plain::plain;

const GAP: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Heading,
    Faint,
    Warning,
    Bad,
}

impl Tone {
    /// The parameters of the escape sequence (ECMA-48, SGR); none for what is plain.
    pub(crate) const fn codes(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Heading => Some("1"),
            Self::Faint => Some("2"),
            Self::Warning => Some("1;33"),
            Self::Bad => Some("1;31"),
        }
    }
}

/// A text at its place in a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cell {
    /// By which it is found again in the same line of the next snapshot.
    pub(crate) name: &'static str,
    pub(crate) before: usize,
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// By which it is found again in the next snapshot.
    pub(crate) key: String,
    pub(crate) cells: Vec<Cell>,
}

/// The whole output, in lines.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Page {
    pub(crate) lines: Vec<Line>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
    Middle,
}

/// A column: its heading, which is its name too, and its alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Column(pub(crate) &'static str, pub(crate) Align);

/// A row of a table: as many texts as there are columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) key: String,
    pub(crate) cells: Vec<(String, Tone)>,
}

impl Row {
    pub(crate) fn new(key: String) -> Self {
        Self { key, cells: Vec::new() }
    }

    /// The text of the next column; empty for no text.
    pub(crate) fn cell(self, text: impl Into<String>) -> Self {
        self.toned(text, Tone::Plain)
    }

    pub(crate) fn toned(mut self, text: impl Into<String>, tone: Tone) -> Self {
        self.cells.push((text.into(), tone));
        self
    }
}

impl Page {
    /// A line of differently painted texts, which follow each other without a gap.
    pub(crate) fn line(&mut self, key: impl Into<String>, texts: &[(&'static str, &str, Tone)]) {
        let cell = |&(name, text, tone): &(&'static str, &str, Tone)| Cell {
            name,
            before: 0,
            text: one_line(text),
            tone,
        };
        self.lines.push(Line { key: key.into(), cells: texts.iter().map(cell).collect() });
    }

    pub(crate) fn blank(&mut self) {
        self.lines.push(Line { key: String::new(), cells: Vec::new() });
    }

    /// A blank line and a table; neither without rows.
    pub(crate) fn section(&mut self, columns: &[Column], rows: Vec<Row>) {
        if !rows.is_empty() {
            self.blank();
            self.table(columns, rows);
        }
    }

    /// A table with its headings; a column with only empty cells is left out.
    pub(crate) fn table(&mut self, columns: &[Column], rows: Vec<Row>) {
        let is_used_at =
            |at: usize| rows.iter().any(|row| row.cells.get(at).is_some_and(|cell| !cell.0.is_empty()));
        let used: Vec<usize> = (0..columns.len()).filter(|at| is_used_at(*at)).collect();
        let key = columns.first().map(|column| column.0).unwrap_or_default();
        let heading = used
            .iter()
            .fold(Row::new(format!("heading/{key}")), |row, at| row.toned(columns[*at].0, Tone::Heading));
        let narrow = |row: Row| Row {
            cells: used.iter().filter_map(|at| row.cells.get(*at).cloned()).collect(),
            ..row
        };
        let rows = std::iter::once(heading).chain(rows.into_iter().map(narrow)).collect();
        let columns: Vec<Column> = used.iter().map(|at| columns[*at]).collect();
        self.bare_table(&columns, rows);
    }

    /// A table without a row of headings.
    pub(crate) fn bare_table(&mut self, columns: &[Column], rows: Vec<Row>) {
        let clean = |row: Row| Row {
            cells: row.cells.into_iter().map(|(text, tone)| (one_line(&text), tone)).collect(),
            ..row
        };
        let rows: Vec<Row> = rows.into_iter().map(clean).collect();
        let texts = |at: usize| rows.iter().filter_map(move |row| row.cells.get(at));
        let widest = |at: usize| texts(at).map(|cell| width(&cell.0)).max().unwrap_or_default();
        let widths: Vec<usize> = (0..columns.len()).map(widest).collect();
        for row in rows {
            let mut owed = 0;
            let mut cells = Vec::new();
            for ((text, tone), (&Column(name, align), &widest)) in
                row.cells.into_iter().zip(columns.iter().zip(&widths))
            {
                let padding = widest.saturating_sub(width(&text));
                let before = match align {
                    Align::Left => 0,
                    Align::Right => padding,
                    Align::Middle => padding / 2,
                };
                if text.is_empty() {
                    owed += widest + GAP;
                } else {
                    cells.push(Cell { name, before: owed + before, text, tone });
                    owed = padding - before + GAP;
                }
            }
            self.lines.push(Line { key: row.key, cells });
        }
    }

    /// The whole text, each line ended.
    pub(crate) fn render(&self, style: Style) -> String {
        let mut text = String::new();
        for line in &self.lines {
            for cell in &line.cells {
                text.push_str(&" ".repeat(cell.before));
                match cell.tone.codes().filter(|_| style == Style::Coloured) {
                    Some(codes) => text.push_str(&format!("\x1b[{codes}m{}\x1b[0m", cell.text)),
                    None => text.push_str(&cell.text),
                }
            }
            text.push('\n');
        }
        text
    }
}

/// How many columns of a terminal a text takes; vendors' names have no wide letters.
pub(crate) fn width(text: &str) -> usize {
    text.chars().count()
}

/// A text from outside as a part of one line: nothing that a terminal obeys.
pub(crate) fn one_line(text: &str) -> String {
    plain(&text.replace(['\n', '\t'], " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [
        Column("#", Align::Left),
        Column("°C", Align::Right),
        Column("never", Align::Left),
        Column("name", Align::Left),
    ];

    fn page() -> Page {
        let mut page = Page::default();
        page.line("top", &[("label", "warning:", Tone::Warning), ("text", " ü\x1b[2J\nx", Tone::Plain)]);
        page.blank();
        page.table(
            &COLUMNS,
            vec![
                Row::new("0".to_owned()).toned("0", Tone::Bad).cell("100").cell("").cell("a\tb"),
                Row::new("1".to_owned()).cell("10").cell("").cell("").cell("c"),
                Row::new("2".to_owned()).cell("").cell("7").cell("").cell(""),
            ],
        );
        page
    }

    #[test]
    fn columns_align_and_empty_columns_are_dropped() {
        let text = "warning: ü x\n\n#    °C  name\n0   100  a b\n10       c\n      7\n";
        assert_eq!(page().render(Style::Plain), text);
    }

    #[test]
    fn colour_codes_exclude_padding() {
        let text = page().render(Style::Coloured);
        assert!(text.starts_with("\x1b[1;33mwarning:\x1b[0m ü x\n"), "{text:?}");
        assert!(text.contains("\x1b[1;31m0\x1b[0m   100  a b\n"), "{text:?}");
    }

    #[test]
    fn cells_have_column_names() {
        let page = page();
        let names: Vec<_> = page.lines[4].cells.iter().map(|cell| cell.name).collect();
        assert_eq!((page.lines[4].key.as_str(), names), ("1", vec!["#", "name"]));
    }
}
