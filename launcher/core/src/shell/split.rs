//! Splits one command of a POSIX shell into words, and quotes such words again. Nothing is run or looked up: an
//! expansion such as `$RANK` stays as it is typed. Pure.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::ops::Range;

use super::quote::for_shell;

/// The words of one command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShellWords {
    /// Each word without its quotes; expansions are in it as typed.
    pub words: Vec<String>,
    /// What a shell would replace: `$RANK`, `${N:-8}`.
    pub expansions: BTreeSet<String>,
    /// How each of the words stands in the line.
    forms: Vec<WordForm>,
}

/// What the quotes of a word leave to the shell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct WordForm {
    /// It has no quotes, and is one expansion or has a pattern: a shell may make several words of it.
    is_bare: bool,
    /// Where expansions are in the word.
    expansions: Vec<Range<usize>>,
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
    #[error("a shell may replace the `~` of `{0}`")]
    Tilde(String),
    #[error("a second command begins in a new line")]
    SecondLine,
    #[error("a quote `{0}` is not closed")]
    OpenQuote(char),
}

/// The words of the command.
///
/// # Errors
/// The text has an operator, a command substitution, a second line, an open quote, a pattern beside quotes, or a `~`
/// that is not the home folder in every shell.
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
    /// Of the word, so far.
    form: WordForm,
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
            '~' if self.word.as_deref().is_none_or(begins_value) => self.take_tilde()?,
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

    /// What follows a `~` without quotes. Behind `NAME=` every shell replaces it only in front of the command.
    fn take_tilde(&mut self) -> Result<(), SplitError> {
        let before = self.word.as_deref().unwrap_or_default();
        let is_in_front = self.found.words.iter().all(|word| assignment(word).is_some());
        let ends_name =
            |next: char| next.is_ascii_whitespace() || next == '/' || (next == ':' && !before.is_empty());
        if self.rest.chars().next().is_none_or(ends_name) && (before.is_empty() || is_in_front) {
            self.push_expansion("$HOME", false);
            return Ok(());
        }
        let rest = self.rest.split(char::is_whitespace).next().unwrap_or_default();
        Err(SplitError::Tilde(format!("{before}~{rest}")))
    }

    fn open(&mut self) {
        self.form.is_bare = false;
        self.quoting.has_quotes = true;
        self.word.get_or_insert_default();
    }

    fn push(&mut self, letter: char) {
        self.form.is_bare = false;
        let word = self.word.get_or_insert_default();
        // `"$A"b` is not `$Ab`.
        if self.name_length > 0 && is_name(letter) {
            let name = word.split_off(word.len() - self.name_length + 1);
            let braced = format!("${{{name}}}");
            word.push_str(&braced[1..]);
            if let Some(range) = self.form.expansions.last_mut() {
                range.end = word.len();
            }
            self.found.expansions.insert(braced);
        }
        self.name_length = 0;
        word.push(letter);
    }

    fn push_expansion(&mut self, expansion: &str, is_unquoted: bool) {
        self.form.is_bare = is_unquoted && self.word.is_none();
        let word = self.word.get_or_insert_default();
        let start = word.len();
        word.push_str(expansion);
        self.form.expansions.push(start..word.len());
        self.name_length = if expansion[1..].chars().all(is_name) { expansion.len() } else { 0 };
        self.found.expansions.insert(expansion.to_owned());
    }

    fn end_word(&mut self) -> Result<(), SplitError> {
        self.name_length = 0;
        let Quoting { has_pattern, has_quotes } = std::mem::take(&mut self.quoting);
        let mut form = std::mem::take(&mut self.form);
        let Some(word) = self.word.take() else { return Ok(()) };
        if has_pattern && has_quotes {
            return Err(SplitError::Pattern(word));
        }
        form.is_bare |= has_pattern;
        self.found.forms.push(form);
        self.found.words.push(word);
        Ok(())
    }
}

impl ShellWords {
    /// Words that a shell has read already: nothing in them is replaced again.
    #[must_use]
    pub fn literal(words: Vec<String>) -> Self {
        Self { forms: vec![WordForm::default(); words.len()], words, ..Self::default() }
    }

    /// Whether the word is one expansion or has a pattern, of which a shell may make several words.
    #[must_use]
    pub fn is_bare(&self, word: &str) -> bool {
        self.form_of(word).is_bare
    }

    /// The word for a shell: its expansions stay alive, everything else is taken literally.
    #[must_use]
    pub fn quote(&self, word: &str) -> String {
        let WordForm { is_bare, expansions } = self.form_of(word);
        if is_bare { word.to_owned() } else { quote_around(word, expansions) }
    }

    /// The value of a variable for a shell, as [`Self::quote`]. It stays one word, also behind `env`.
    #[must_use]
    pub fn quote_value(&self, value: &str) -> String {
        quote_around(value, self.find_expansions(value))
    }

    /// A text that the line has under different quotes, so that [`Self::quote`] is wrong at one place: `'$X' $X`. A
    /// longer word that is kept as a whole is told apart: `'echo $X' $X`.
    #[must_use]
    pub fn ambiguous_text(&self, is_kept: impl Fn(&String) -> bool) -> Option<&str> {
        self.words.iter().zip(&self.forms).find_map(|(word, form)| {
            let found = self.find_expansions(word);
            let is_longer = found.first().is_none_or(|range| range.len() < word.len());
            let is_right =
                self.form_of(word) == *form && (found == form.expansions || (is_longer && is_kept(word)));
            let literal = found.into_iter().find(|range| !form.expansions.contains(range));
            (!is_right).then(|| literal.map_or(word.as_str(), |range| &word[range]))
        })
    }

    /// The form of a word of the line, or of a text that was made of its words.
    fn form_of(&self, word: &str) -> WordForm {
        let known = self.words.iter().zip(&self.forms).find(|(known, _)| *known == word);
        known.map_or_else(
            || WordForm { is_bare: false, expansions: self.find_expansions(word) },
            |(_, form)| form.clone(),
        )
    }

    fn find_expansions(&self, text: &str) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        let mut at = 0;
        while let Some(letter) = text[at..].chars().next() {
            // The longest one first: `$AB` before `$A`.
            let expansion = self.expansions.iter().rev().find(|known| text[at..].starts_with(*known));
            let end = at + expansion.map_or(letter.len_utf8(), String::len);
            if expansion.is_some() {
                found.push(at..end);
            }
            at = end;
        }
        found
    }

    /// The word with `value` in the place of each expansion.
    #[must_use]
    pub fn replace_expansions(&self, word: &str, value: impl Fn(&str) -> String) -> String {
        self.expansions.iter().rev().fold(word.to_owned(), |word, expansion| {
            if word.contains(expansion) { word.replace(expansion, &value(expansion)) } else { word }
        })
    }
}

/// The text in quotes that leave its expansions alive.
fn quote_around(text: &str, expansions: Vec<Range<usize>>) -> String {
    if expansions.is_empty() {
        return String::from_utf8_lossy(&for_shell(OsStr::new(text))).into_owned();
    }
    let mut quoted = "\"".to_owned();
    let mut at = 0;
    for range in expansions {
        push_escaped(&mut quoted, &text[at..range.start]);
        at = range.end;
        quoted.push_str(&text[range]);
    }
    push_escaped(&mut quoted, &text[at..]);
    quoted.push('"');
    quoted
}

fn push_escaped(quoted: &mut String, text: &str) {
    for letter in text.chars() {
        if matches!(letter, '"' | '\\' | '$' | '`') {
            quoted.push('\\');
        }
        quoted.push(letter);
    }
}

/// The name and the value of `NAME=VALUE`.
#[must_use]
pub fn assignment(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.split_once('=')?;
    let is_variable = name.chars().all(is_name) && name.starts_with(|first: char| !first.is_ascii_digit());
    is_variable.then_some((name, value))
}

/// Whether the value of an assignment, or the next folder of its list, begins behind the text.
fn begins_value(text: &str) -> bool {
    assignment(text).is_some_and(|(_, value)| value.is_empty() || value.ends_with(':'))
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
mod tests;
