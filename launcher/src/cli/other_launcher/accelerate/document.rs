//! A file of YAML, or of JSON, which YAML includes: a tree with the line of each key. Pure.

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};

use super::python_value::PythonValue;

/// Deeper files are refused: no key of accelerate is below the second level.
const MAX_DEPTH: usize = 16;
const ALIAS: &str = "an alias (`*name`) is not supported";

/// A value and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) content: Content,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Content {
    /// The word as it was written, and the value that it means.
    Scalar(String, PythonValue),
    List(Vec<Node>),
    /// In the order of the file.
    Map(Vec<(String, Node)>),
}

/// Why a file is not a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DocumentError {
    pub(super) line: usize,
    pub(super) problem: String,
}

impl From<ScanError> for DocumentError {
    fn from(error: ScanError) -> Self {
        Self { line: error.marker().line(), problem: error.info().to_owned() }
    }
}

impl DocumentError {
    pub(super) fn is_about_alias(&self) -> bool {
        self.problem == ALIAS
    }

    pub(super) fn is_about_tab(&self) -> bool {
        self.problem.contains("tab")
    }

    /// The parser names the line of the word in front of a tab, and no tab between a key and its value.
    fn at_tab(mut self, text: &str) -> Self {
        let is_indented = |line: &str| line.trim_start_matches(' ').starts_with('\t');
        let mut lines = text.lines().skip(self.line.saturating_sub(1)).peekable();
        if self.is_about_tab() {
            self.line += lines.position(is_indented).unwrap_or(0);
        } else if lines.peek().is_some_and(|line| line.contains(":\t")) {
            self.problem = "a tab stands behind `:`".to_owned();
        }
        self
    }
}

/// The only document of the text; none where there is nothing but comments.
///
/// # Errors
/// The text is not YAML, or uses aliases, several documents or keys that are not words.
pub(super) fn parse_document(text: &str) -> Result<Option<Node>, DocumentError> {
    read_document(text).map_err(|error| error.at_tab(text))
}

fn read_document(text: &str) -> Result<Option<Node>, DocumentError> {
    let mut reader = DocumentReader { parser: Parser::new_from_str(text) };
    let mut root = None;
    loop {
        let (event, span) = reader.next()?;
        match event {
            Event::StreamEnd => return Ok(root),
            Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
            _ if root.is_some() => return Err(error(span, "a second document begins")),
            event => root = Some(reader.node(event, span, 0)?),
        }
    }
}

struct DocumentReader<'a> {
    parser: Parser<'a, saphyr_parser::StrInput<'a>>,
}

impl<'a> DocumentReader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), DocumentError> {
        match self.parser.next_event() {
            Some(event) => Ok(event?),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    /// The node that begins with this event.
    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node, DocumentError> {
        if depth > MAX_DEPTH {
            return Err(error(span, "the values are nested too deeply"));
        }
        let content = match event {
            Event::Scalar(text, style, ..) => {
                let value = match style {
                    ScalarStyle::Plain => PythonValue::of_plain_word(&text),
                    _ => PythonValue::text(text.as_ref()),
                };
                Content::Scalar(text.into_owned(), value)
            }
            Event::SequenceStart(..) => Content::List(self.list(depth)?),
            Event::MappingStart(..) => Content::Map(self.map(depth)?),
            Event::Alias(_) => return Err(error(span, ALIAS)),
            _ => return Err(error(span, "a value is missing")),
        };
        Ok(Node { line: span.start.line(), content })
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>, DocumentError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(items),
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Vec<(String, Node)>, DocumentError> {
        let mut entries = Vec::new();
        loop {
            let (key, place) = match self.next()? {
                (Event::MappingEnd, _) => return Ok(entries),
                (Event::Scalar(key, ..), place) => (key.into_owned(), place),
                (_, place) => return Err(error(place, "a key is not a word")),
            };
            let (event, span) = self.next()?;
            let node = self.node(event, span, depth + 1)?;
            entries.push((key, Node { line: place.start.line(), ..node }));
        }
    }
}

fn error(span: Span, problem: &str) -> DocumentError {
    DocumentError { line: span.start.line(), problem: problem.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scalar(line: usize, text: &str, value: PythonValue) -> Node {
        Node { line, content: Content::Scalar(text.to_owned(), value) }
    }

    #[test]
    fn document_keeps_order_and_lines_of_keys() {
        let text = "# first\nb: 'NO'\na:\n  c: NO\n  d: [1, x]\n";
        let Some(Node { content: Content::Map(entries), .. }) = parse_document(text).unwrap() else {
            panic!("a map")
        };
        assert_eq!(entries[0], ("b".to_owned(), scalar(2, "NO", PythonValue::text("NO"))));
        let Content::Map(nested) = &entries[1].1.content else { panic!("a map below `a`") };
        assert_eq!(nested[0], ("c".to_owned(), scalar(4, "NO", PythonValue::Bool(false))));
        let list = vec![scalar(5, "1", PythonValue::Int(1)), scalar(5, "x", PythonValue::text("x"))];
        assert_eq!(nested[1], ("d".to_owned(), Node { line: 5, content: Content::List(list) }));
    }

    #[test]
    fn json_is_read_as_yaml() {
        let text = "{\n\t\"num_processes\": 2,\n\t\"debug\": true, \"gpu_ids\": null\n}\n";
        let Some(Node { content: Content::Map(entries), .. }) = parse_document(text).unwrap() else {
            panic!("a map")
        };
        let values: Vec<_> = entries.iter().map(|(key, node)| (key.as_str(), node.line)).collect();
        assert_eq!(values, [("num_processes", 2), ("debug", 3), ("gpu_ids", 3)]);
        assert_eq!(entries[1].1, scalar(3, "true", PythonValue::Bool(true)));
    }

    #[test]
    fn unreadable_document_names_line() {
        let deep = "[".repeat(100);
        for (text, line) in [
            ("a: 1\n\tb: 2\n", 2),
            ("a: [1\n", 2),
            ("a: 1\n---\nb: 2\n", 3),
            ("a: &x 1\nb: *x\n", 2),
            ("? [a]\n: 1\n", 1),
            (deep.as_str(), 1),
        ] {
            let error = parse_document(text).unwrap_err();
            assert_eq!(error.line, line, "{text:?}: {error:?}");
        }
        assert_eq!(parse_document("# nothing\n"), Ok(None));
    }
}
