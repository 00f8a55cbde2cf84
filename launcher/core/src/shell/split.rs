//! Splits one command of a POSIX shell into words, and quotes such words again. Nothing is run or looked up: an
//! expansion such as `$RANK` stays as it is typed. Pure.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use super::quote::for_shell;

/// The words of one command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShellWords {
    /// Each word without its quotes; expansions are in it as typed.
    pub words: Vec<String>,
    /// What a shell would replace: `$RANK`, `${N:-8}`.
    pub expansions: BTreeSet<String>,
    /// Words without quotes that are one expansion or have a pattern: a shell may make several words of them.
    bare: BTreeSet<String>,
}

/// What is more than the words of one command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    #[error("`{0}` is an operator of the shell")]
    Operator(String),
    #[error("`{0}` is replaced by the shell")]
    Substitution(&'static str),
    #[error("`{0}` has a pattern beside quotes, which the shell replaces in part")]
    Pattern(String),
    #[error("a second command begins in a new line")]
    SecondLine,
    #[error("a quote `{0}` is not closed")]
    OpenQuote(char),
}

/// The words of the command.
///
/// # Errors
/// The text has an operator, a command substitution, a second line, an open quote, or a pattern beside quotes.
pub fn split(text: &str) -> Result<ShellWords, SplitError> {
    let mut splitter = Splitter { rest: text.trim(), ..Splitter::default() };
    while let Some(letter) = splitter.take() {
        splitter.handle(letter)?;
    }
    splitter.end_word()?;
    Ok(splitter.found)
}

#[derive(Default)]
struct Splitter<'a> {
    rest: &'a str,
    found: ShellWords,
    word: Option<String>,
    /// The word is one expansion without quotes, so far.
    is_bare: bool,
    quoting: Quoting,
    /// The length of an expansion `$NAME` at the end of the word.
    name_length: usize,
}

/// What the word has besides plain letters, so far.
#[derive(Default)]
struct Quoting {
    /// `*.txt` or `{1..3}` without quotes.
    has_pattern: bool,
    has_quotes: bool,
}

impl Splitter<'_> {
    fn take(&mut self) -> Option<char> {
        let letter = self.rest.chars().next()?;
        self.rest = &self.rest[letter.len_utf8()..];
        Some(letter)
    }

    fn handle(&mut self, letter: char) -> Result<(), SplitError> {
        match letter {
            '\n' => {
                self.end_word()?;
                let more = self.rest.trim_start();
                if !self.found.words.is_empty() && !more.is_empty() && !more.starts_with('#') {
                    return Err(SplitError::SecondLine);
                }
            }
            letter if letter.is_ascii_whitespace() => self.end_word()?,
            '\\' => match self.take() {
                Some('\n') => {}
                Some('\r') if self.rest.starts_with('\n') => self.rest = &self.rest[1..],
                Some(letter) => {
                    self.quoting.has_quotes = true;
                    self.push(letter);
                }
                None => {}
            },
            '\'' => {
                let (quoted, rest) = self.rest.split_once('\'').ok_or(SplitError::OpenQuote('\''))?;
                self.rest = rest;
                self.open();
                quoted.chars().for_each(|letter| self.push(letter));
            }
            '"' => self.take_quoted()?,
            '$' => self.take_expansion(true)?,
            '`' => return Err(SplitError::Substitution("`…`")),
            '#' if self.word.is_none() => {
                self.rest = self.rest.find('\n').map_or("", |end| &self.rest[end..]);
            }
            '~' if self.word.is_none()
                && self.rest.chars().next().is_none_or(|next| " /\n".contains(next)) =>
            {
                self.push_expansion("$HOME", true);
            }
            letter if is_operator(letter) => {
                let end = self.rest.find(|next| !is_operator(next)).unwrap_or(self.rest.len());
                return Err(SplitError::Operator(format!("{letter}{}", &self.rest[..end])));
            }
            letter => {
                self.quoting.has_pattern |= begins_pattern(letter, self.rest);
                self.push(letter);
            }
        }
        Ok(())
    }

    fn take_quoted(&mut self) -> Result<(), SplitError> {
        self.open();
        loop {
            match self.take().ok_or(SplitError::OpenQuote('"'))? {
                '"' => return Ok(()),
                '$' => self.take_expansion(false)?,
                '`' => return Err(SplitError::Substitution("`…`")),
                '\\' => match self.take() {
                    Some('\n') | None => {}
                    Some(letter @ ('"' | '\\' | '$' | '`')) => self.push(letter),
                    Some(letter) => {
                        self.push('\\');
                        self.push(letter);
                    }
                },
                letter => self.push(letter),
            }
        }
    }

    /// What follows a `$`.
    fn take_expansion(&mut self, is_unquoted: bool) -> Result<(), SplitError> {
        let length = match self.rest.chars().next() {
            Some('(') => return Err(SplitError::Substitution("$(…)")),
            Some('\'') if is_unquoted => return Err(SplitError::Substitution("$'…'")),
            Some('{') => self.rest.find('}').map_or(0, |end| end + 1),
            Some(first) if is_name(first) && !first.is_ascii_digit() => {
                self.rest.find(|letter| !is_name(letter)).unwrap_or(self.rest.len())
            }
            Some('@' | '*' | '#' | '?' | '!' | '$' | '0'..='9') => 1,
            _ => 0,
        };
        let (name, rest) = self.rest.split_at(length);
        if name.contains("$(") || name.contains('`') {
            return Err(SplitError::Substitution("$(…)"));
        }
        self.rest = rest;
        if name.is_empty() {
            self.push('$');
        } else {
            self.push_expansion(&format!("${name}"), is_unquoted);
        }
        Ok(())
    }

    fn open(&mut self) {
        self.is_bare = false;
        self.quoting.has_quotes = true;
        self.word.get_or_insert_default();
    }

    fn push(&mut self, letter: char) {
        self.is_bare = false;
        let word = self.word.get_or_insert_default();
        // `"$A"b` is not `$Ab`.
        if self.name_length > 0 && is_name(letter) {
            let name = word.split_off(word.len() - self.name_length + 1);
            let braced = format!("${{{name}}}");
            word.push_str(&braced[1..]);
            self.found.expansions.insert(braced);
        }
        self.name_length = 0;
        word.push(letter);
    }

    fn push_expansion(&mut self, expansion: &str, is_unquoted: bool) {
        self.is_bare = is_unquoted && self.word.is_none();
        self.word.get_or_insert_default().push_str(expansion);
        self.name_length = if expansion[1..].chars().all(is_name) { expansion.len() } else { 0 };
        self.found.expansions.insert(expansion.to_owned());
    }

    fn end_word(&mut self) -> Result<(), SplitError> {
        self.name_length = 0;
        let Quoting { has_pattern, has_quotes } = std::mem::take(&mut self.quoting);
        let is_bare = std::mem::take(&mut self.is_bare);
        let Some(word) = self.word.take() else { return Ok(()) };
        if has_pattern && has_quotes {
            return Err(SplitError::Pattern(word));
        }
        if is_bare || has_pattern {
            self.found.bare.insert(word.clone());
        }
        self.found.words.push(word);
        Ok(())
    }
}

impl ShellWords {
    /// Words that a shell has read already: nothing in them is replaced again.
    #[must_use]
    pub fn literal(words: Vec<String>) -> Self {
        Self { words, ..Self::default() }
    }

    /// Whether the word is one expansion or has a pattern, of which a shell may make several words.
    #[must_use]
    pub fn is_bare(&self, word: &str) -> bool {
        self.bare.contains(word)
    }

    /// The word for a shell: its expansions stay alive, everything else is taken literally.
    #[must_use]
    pub fn quote(&self, word: &str) -> String {
        if self.is_bare(word) {
            return word.to_owned();
        }
        if !self.expansions.iter().any(|expansion| word.contains(expansion)) {
            return String::from_utf8_lossy(&for_shell(OsStr::new(word))).into_owned();
        }
        let mut quoted = "\"".to_owned();
        let mut rest = word;
        while let Some(letter) = rest.chars().next() {
            // The longest one first: `$AB` before `$A`.
            let expansion = self.expansions.iter().rev().find(|expansion| rest.starts_with(*expansion));
            let length = expansion.map_or(letter.len_utf8(), String::len);
            if expansion.is_none() && matches!(letter, '"' | '\\' | '$' | '`') {
                quoted.push('\\');
            }
            quoted.push_str(&rest[..length]);
            rest = &rest[length..];
        }
        quoted.push('"');
        quoted
    }

    /// The word with `value` in the place of each expansion.
    #[must_use]
    pub fn replace_expansions(&self, word: &str, value: impl Fn(&str) -> String) -> String {
        self.expansions.iter().rev().fold(word.to_owned(), |word, expansion| {
            if word.contains(expansion) { word.replace(expansion, &value(expansion)) } else { word }
        })
    }
}

/// Whether a shell replaces the word by the names of files, or by several words: `*`, `[ab]`, `{1..3}`.
fn begins_pattern(letter: char, rest: &str) -> bool {
    let word = rest.split(char::is_whitespace).next().unwrap_or_default();
    match letter {
        '*' | '?' => true,
        '[' => word.contains(']'),
        '{' => word.split_once('}').is_some_and(|(inner, _)| inner.contains(',') || inner.contains("..")),
        _ => false,
    }
}

const fn is_operator(letter: char) -> bool {
    matches!(letter, '|' | '&' | ';' | '<' | '>' | '(' | ')')
}

const fn is_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_and_quoted_again() {
        for (line, words, again) in [
            ("a  b\tc", &["a", "b", "c"][..], "a b c"),
            ("a 'b c' \"d e\"f g\\ h ''", &["a", "b c", "d ef", "g h", ""], "a 'b c' 'd ef' 'g h' ''"),
            ("a \\\n  b # c\n", &["a", "b"], "a b"),
            (
                "a --n=$N \"${M:-8}\" $ARGS",
                &["a", "--n=$N", "${M:-8}", "$ARGS"],
                "a \"--n=$N\" \"${M:-8}\" $ARGS",
            ),
            ("\"$A\"b '$C' \\$D", &["${A}b", "$C", "$D"], "\"${A}b\" '$C' '$D'"),
            (
                "~/x a~b \"it's $X \\\" \\n\"",
                &["$HOME/x", "a~b", "it's $X \" \\n"],
                "\"$HOME/x\" 'a~b' \"it's $X \\\" \\\\n\"",
            ),
            ("$", &["$"], "'$'"),
            (
                "*.txt '*.md' x{1..3} $D/*[ab] {} a[0",
                &["*.txt", "*.md", "x{1..3}", "$D/*[ab]", "{}", "a[0"],
                "*.txt '*.md' x{1..3} $D/*[ab] '{}' 'a[0'",
            ),
        ] {
            let found = split(line).unwrap();
            assert_eq!(found.words, words, "{line}");
            let quoted: Vec<String> = found.words.iter().map(|word| found.quote(word)).collect();
            assert_eq!(quoted.join(" "), again, "{line}");
        }
    }

    #[test]
    fn operators_and_substitutions_are_refused_by_name() {
        for (line, part) in [
            ("a | tee log", "`|`"),
            ("a && b", "`&&`"),
            ("a 2>&1", "`>&`"),
            ("a $(nproc)", "`$(…)`"),
            ("a \"${X:-$(nproc)}\"", "`$(…)`"),
            ("a `nproc`", "`…`"),
            ("a\nb", "new line"),
            ("a 'b", "quote `'`"),
            ("a \"b", "quote `\"`"),
            ("a 'b c'*.txt", "`b c*.txt` has a pattern"),
            ("a {\"x\":1,\"y\":2}", "has a pattern"),
        ] {
            let error = split(line).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
        assert_eq!(split("a 'b|c' \"d>e\" f\\;").unwrap().words, ["a", "b|c", "d>e", "f;"]);
    }

    proptest::proptest! {
        #[test]
        fn quoted_words_are_read_back(line in "[ab $'\"\\\\{}A~/\n#|&*,-]{0,24}") {
            if let Ok(found) = split(&line) {
                let quoted: Vec<String> = found.words.iter().map(|word| found.quote(word)).collect();
                let again = split(&quoted.join(" "));
                proptest::prop_assert_eq!(again.map(|again| again.words), Ok(found.words));
            }
        }
    }
}
