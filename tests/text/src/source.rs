//! A Rust file taken apart: its code, its comments and its string literals.
//!
//! This is a lexer, not a parser. It knows strings, raw strings, characters, lifetimes and nested block comments.

/// One line of a comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comment {
    /// Its line, from 1.
    pub line: usize,
    /// Without the slashes and the blanks around it.
    pub text: String,
    /// Whether rustdoc shows it (`///`, `//!`).
    pub is_doc: bool,
}

/// A string literal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Literal {
    /// The line on which it begins, from 1.
    pub line: usize,
    /// As written, with its escapes.
    pub text: String,
    /// Whether it is the `reason` of an attribute: such a text is a comment.
    pub is_reason: bool,
}

/// A file taken apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Source {
    /// The code. A literal is `""`, a character is `' '`, a comment is blank; line ends stay.
    pub code: String,
    /// The lines of its comments.
    pub comments: Vec<Comment>,
    /// Its string literals.
    pub literals: Vec<Literal>,
}

impl Source {
    /// Takes a file apart.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut lexer = Lexer { rest: text, line: 1, source: Self::default() };
        while !lexer.rest.is_empty() {
            lexer.step();
        }
        lexer.source
    }
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
    source: Source,
}

impl<'a> Lexer<'a> {
    fn step(&mut self) {
        if self.rest.starts_with("//") {
            let end = self.rest.find('\n').unwrap_or(self.rest.len());
            let text = self.skip(end);
            self.comment(text);
        } else if self.rest.starts_with("/*") {
            let text = self.skip(block_comment(self.rest));
            for (at, line) in text.trim_end_matches("*/").split('\n').enumerate() {
                let line = Comment {
                    line: self.line - text.matches('\n').count() + at,
                    text: line.trim().trim_start_matches(['/', '*']).trim().to_owned(),
                    is_doc: false,
                };
                self.source.comments.push(line);
            }
            self.source.code.extend(text.chars().filter(|letter| *letter == '\n'));
        } else if let Some(quotes) = self.opening() {
            self.literal(quotes);
        } else if self.rest.starts_with('\'') {
            let length = character(self.rest);
            let text = self.skip(length);
            self.source.code.push_str(if length > 1 { "' '" } else { text });
        } else {
            let length = self.rest.chars().next().map_or(1, char::len_utf8);
            let letter = self.skip(length);
            self.source.code.push_str(letter);
        }
    }

    fn skip(&mut self, length: usize) -> &'a str {
        let (text, rest) = self.rest.split_at(length);
        self.line += text.matches('\n').count();
        self.rest = rest;
        text
    }

    fn comment(&mut self, text: &str) {
        let is_doc = (text.starts_with("///") && !text.starts_with("////")) || text.starts_with("//!");
        let text = text.trim_start_matches('/').trim_start_matches('!').trim().to_owned();
        self.source.comments.push(Comment { line: self.line, text, is_doc });
    }

    /// The length of a string's opening with its quote, and what closes it.
    fn opening(&self) -> Option<(usize, String)> {
        if self.source.code.ends_with(|letter: char| letter.is_alphanumeric() || letter == '_') {
            return None;
        }
        let raw = ["r", "br", "cr"].into_iter().find_map(|prefix| {
            let rest = self.rest.strip_prefix(prefix)?;
            let hashes = rest.len() - rest.trim_start_matches('#').len();
            rest[hashes..].starts_with('"').then(|| (prefix.len() + hashes + 1, hashes))
        });
        if let Some((length, hashes)) = raw {
            return Some((length, format!("\"{}", "#".repeat(hashes))));
        }
        let plain = ["\"", "b\"", "c\""].into_iter().find(|prefix| self.rest.starts_with(prefix))?;
        Some((plain.len(), String::new()))
    }

    fn literal(&mut self, (opening, closing): (usize, String)) {
        let line = self.line;
        let is_reason = self.source.code.trim_end().ends_with("reason =");
        self.skip(opening);
        let (length, quotes) = if closing.is_empty() {
            (string(self.rest), 1)
        } else {
            (self.rest.find(&closing).unwrap_or(self.rest.len()), closing.len())
        };
        let text = self.skip(length).to_owned();
        self.skip(quotes.min(self.rest.len()));
        self.source.code.push_str("\"\"");
        self.source.code.extend(text.chars().filter(|letter| *letter == '\n'));
        self.source.literals.push(Literal { line, text, is_reason });
    }
}

/// The bytes of a string up to its quote.
fn string(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'"' if !is_escaped => return at,
            b'\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    text.len()
}

/// The bytes of a character literal with its quotes, or 1 for a lifetime.
fn character(text: &str) -> usize {
    let mut letters = text.char_indices().skip(1);
    match letters.next() {
        // The letter behind the backslash may be a quote.
        Some((_, '\\')) => {
            text.char_indices().skip(3).find(|(_, letter)| *letter == '\'').map_or(1, |(at, _)| at + 1)
        }
        Some(_) => letters.next().filter(|(_, letter)| *letter == '\'').map_or(1, |(at, _)| at + 1),
        None => 1,
    }
}

/// The bytes of a block comment, which may hold others.
fn block_comment(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_in_a_string_are_not_a_comment() {
        let source = Source::parse("let url = \"http://x\"; // why\n");
        assert_eq!(source.code, "let url = \"\"; \n");
        assert_eq!(source.comments, [Comment { line: 1, text: "why".to_owned(), is_doc: false }]);
        assert_eq!(source.literals[0].text, "http://x");
    }

    #[test]
    fn quote_in_a_character_does_not_open_a_string() {
        let source = Source::parse("match c { '\"' => 1, '\\'' => 2, 'ä' => 3 } fn f<'a>() {} // end");
        assert_eq!(source.literals, []);
        assert_eq!(source.comments[0].text, "end");
        assert!(source.code.contains("fn f<'a>()"), "{}", source.code);
    }

    #[test]
    fn raw_string_ends_at_its_own_hashes() {
        let source = Source::parse("let t = r#\"a \" // b\"#; let u = br\"c\\\"; /// doc\n");
        let texts: Vec<_> = source.literals.iter().map(|literal| &*literal.text).collect();
        assert_eq!(texts, ["a \" // b", "c\\"]);
        assert!(source.comments[0].is_doc);
    }

    #[test]
    fn escaped_quote_stays_in_its_string() {
        let source = Source::parse(r#"say("a \" b \\"); say("c")"#);
        let texts: Vec<_> = source.literals.iter().map(|literal| &*literal.text).collect();
        assert_eq!(texts, [r#"a \" b \\"#, "c"]);
    }

    #[test]
    fn block_comment_counts_its_lines() {
        let source = Source::parse("/* one /* two */\n * three */ x\n// four");
        let lines: Vec<_> = source.comments.iter().map(|comment| (comment.line, &*comment.text)).collect();
        assert_eq!(lines, [(1, "one /* two */"), (2, "three"), (3, "four")]);
    }

    #[test]
    fn reason_of_an_attribute_is_marked() {
        let source = Source::parse("#[expect(clippy::exit, reason = \"the end\")] fn f() { g(\"x\") }");
        assert!(source.literals[0].is_reason && !source.literals[1].is_reason);
    }
}
