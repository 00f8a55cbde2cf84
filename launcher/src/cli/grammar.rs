//! torchrun's grammar, word by word.
//!
//! clap is not asked to read the command line, only to lay out the help (`help.rs`): argparse's rules that users
//! rely on have no clap equivalent (both spellings count in prefix matching, `--` is swallowed before *or* after
//! the entrypoint, a repeated option overrides, unknown options are collected until the end, numbers are
//! Python's), and clap adds rules of its own that would have to be undone. This is argparse's own algorithm over
//! the tables of `torchrun.rs` and `run.rs`, with one kindness: words behind the entrypoint are never looked at.
//!
//! Under our own name an abbreviation that fits several spellings of one option is accepted too.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::completion::Shell;
use super::error::{Origin, UsageError};
use super::option::{Kind, OptionRow};
use super::{run, torchrun};
use crate::spec::CliFlavor;

/// An option that was typed, with its value; a flag's is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) row: &'static OptionRow,
    pub(super) value: OsString,
}

/// What was typed, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) given: Vec<Given>,
    pub(super) entrypoint: OsString,
    pub(super) args: Vec<OsString>,
    /// A `--` stood before or behind the entrypoint.
    pub(super) is_separated: bool,
}

/// What the command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Parsed {
    Launch(Request),
    Help,
    Version,
    Completion(Shell),
}

/// Reads the words behind the command's name.
///
/// # Errors
/// What argparse calls a usage error.
pub(super) fn parse(cli_flavor: CliFlavor, words: &[OsString]) -> Result<Parsed, UsageError> {
    let mut reader = Reader { cli_flavor, rest: words, given: Vec::new(), unknown: Vec::new() };
    while let Some((word, rest)) = reader.rest.split_first() {
        let word = classify(cli_flavor, word)?;
        if matches!(word, Word::Plain | Word::Separator) {
            break;
        }
        reader.rest = rest;
        if let Some(answer) = reader.take_word(word)? {
            return Ok(answer);
        }
    }
    reader.finish()
}

/// One word of the command line, before any value is taken from it.
enum Word<'a> {
    /// The entrypoint, or the value of the option before it.
    Plain,
    /// `--`
    Separator,
    Long {
        row: &'static OptionRow,
        value: Option<&'a OsStr>,
    },
    /// The letters behind the dash; the first one is an option.
    Short(&'a [u8]),
    Unknown(&'a OsStr),
}

fn classify(cli_flavor: CliFlavor, word: &OsStr) -> Result<Word<'_>, UsageError> {
    let bytes = word.as_bytes();
    if bytes == b"--" {
        return Ok(Word::Separator);
    }
    let [b'-', letter, ..] = bytes else { return Ok(Word::Plain) };
    if *letter == b'-' {
        let (name, value) = match bytes.iter().position(|byte| *byte == b'=') {
            Some(at) => (&bytes[..at], Some(OsStr::from_bytes(&bytes[at + 1..]))),
            None => (bytes, None),
        };
        if let Some(row) = find_long(cli_flavor, name, word)? {
            return Ok(Word::Long { row, value });
        }
    } else if cli_flavor == CliFlavor::Rankrun && has_one_dash_too_few(bytes) {
        return Ok(Word::Unknown(word));
    } else if find_short(cli_flavor, *letter).is_some() {
        return Ok(Word::Short(&bytes[1..]));
    }
    // argparse takes these for values, not for misspelt options.
    if is_negative_number(bytes) || bytes.contains(&b' ') { Ok(Word::Plain) } else { Ok(Word::Unknown(word)) }
}

/// The option whose spelling is `name`, or the only one that begins with it.
fn find_long(
    cli_flavor: CliFlavor,
    name: &[u8],
    word: &OsStr,
) -> Result<Option<&'static OptionRow>, UsageError> {
    let exact = |row: &&OptionRow| row.spellings().iter().any(|spelling| spelling.as_bytes() == name);
    if let Some(row) = tables(cli_flavor).find(exact) {
        return Ok(Some(row));
    }
    let begins = |spelling: &String| spelling.as_bytes().starts_with(name);
    let candidates: Vec<(&OptionRow, String)> = torchrun::TABLE
        .iter()
        .flat_map(|row| row.spellings().into_iter().filter(begins).map(|spelling| (*row, spelling)))
        .collect();
    match candidates.as_slice() {
        [] => Ok(None),
        [(row, _)] => Ok(Some(*row)),
        [(first, _), others @ ..]
            if cli_flavor == CliFlavor::Rankrun && others.iter().all(|(row, _)| row == first) =>
        {
            Ok(Some(*first))
        }
        _ => Err(UsageError::Ambiguous {
            word: word.to_string_lossy().into_owned(),
            candidates: candidates.into_iter().map(|(_, spelling)| spelling).collect(),
        }),
    }
}

/// `-master_addr`: short options with such letters behind them are never meant.
fn has_one_dash_too_few(word: &[u8]) -> bool {
    let name = word.split(|byte| *byte == b'=').next().unwrap_or_default();
    let long = [b"-", name].concat();
    let is_it = |spelling: String| spelling.as_bytes() == long;
    name.len() > 2 && tables(CliFlavor::Rankrun).flat_map(OptionRow::spellings).any(is_it)
}

fn find_short(cli_flavor: CliFlavor, letter: u8) -> Option<&'static OptionRow> {
    tables(cli_flavor).find(|row| row.short == Some(letter))
}

/// Every option that may be typed under this name.
pub(super) fn tables(cli_flavor: CliFlavor) -> impl Iterator<Item = &'static OptionRow> {
    let own = match cli_flavor {
        CliFlavor::Rankrun => run::TABLE,
        CliFlavor::Torchrun => &[],
    };
    torchrun::TABLE.iter().chain(own).copied()
}

/// `-1`, `-1.5`, `-.5`
fn is_negative_number(word: &[u8]) -> bool {
    let digits = |part: &[u8]| part.iter().all(u8::is_ascii_digit);
    let Some(number) = word.strip_prefix(b"-") else { return false };
    match number.iter().position(|byte| *byte == b'.') {
        None => !number.is_empty() && digits(number),
        Some(at) => digits(&number[..at]) && at + 1 < number.len() && digits(&number[at + 1..]),
    }
}

fn begins_negative(word: &[u8]) -> bool {
    matches!(word, [b'-', digit, ..] if digit.is_ascii_digit())
}

struct Reader<'a> {
    cli_flavor: CliFlavor,
    rest: &'a [OsString],
    given: Vec<Given>,
    unknown: Vec<String>,
}

impl Reader<'_> {
    fn take_word(&mut self, word: Word<'_>) -> Result<Option<Parsed>, UsageError> {
        match word {
            Word::Long { row, value } => self.take(row, value),
            Word::Short(letters) => self.take_letters(letters),
            Word::Unknown(word) => {
                self.unknown.push(word.to_string_lossy().into_owned());
                Ok(None)
            }
            Word::Plain | Word::Separator => Ok(None),
        }
    }

    /// One option with the value that is glued to it, or with the next word as its value.
    fn take(&mut self, row: &'static OptionRow, glued: Option<&OsStr>) -> Result<Option<Parsed>, UsageError> {
        let value = match (row.kind, glued) {
            (Kind::Flag, None) => OsString::new(),
            (Kind::Flag, Some(value)) => {
                return Err(UsageError::UnwantedValue {
                    option: row,
                    value: value.to_string_lossy().into_owned(),
                });
            }
            (_, Some(value)) => value.to_owned(),
            (_, None) => self.next_value(row)?,
        };
        if !row.takes(&value) {
            let value = value.to_string_lossy().into_owned();
            return Err(UsageError::BadValue { option: row, origin: Origin::Option(row.long), value });
        }
        let answer = answer_at_once(row, &value);
        self.given.push(Given { row, value });
        Ok(answer)
    }

    fn next_value(&mut self, row: &'static OptionRow) -> Result<OsString, UsageError> {
        let missing = UsageError::MissingValue { option: row };
        let Some((word, rest)) = self.rest.split_first() else { return Err(missing) };
        match classify(self.cli_flavor, word)? {
            Word::Plain => {
                self.rest = rest;
                Ok(word.clone())
            }
            // `-2,-3`: all devices but these.
            Word::Unknown(_) if *row == run::DEVICES && begins_negative(word.as_bytes()) => {
                self.rest = rest;
                Ok(word.clone())
            }
            _ => Err(missing),
        }
    }

    /// `-r3`, `-r=3`, `-mr3`: flags may be followed by further letters, other options by their value.
    fn take_letters(&mut self, letters: &[u8]) -> Result<Option<Parsed>, UsageError> {
        let mut letters = letters;
        let mut last_flag = &torchrun::MODULE;
        while let [letter, behind @ ..] = letters {
            let Some(row) = find_short(self.cli_flavor, *letter) else {
                let value = letters.strip_prefix(b"=").unwrap_or(letters);
                let value = String::from_utf8_lossy(value).into_owned();
                return Err(UsageError::UnwantedValue { option: last_flag, value });
            };
            if row.kind != Kind::Flag {
                let glued = behind.strip_prefix(b"=").or((!behind.is_empty()).then_some(behind));
                return self.take(row, glued.map(OsStr::from_bytes));
            }
            if let Some(answer) = self.take(row, None)? {
                return Ok(Some(answer));
            }
            last_flag = row;
            letters = behind;
        }
        Ok(None)
    }

    /// What is left begins with the entrypoint. One `--` is swallowed: before it, or else directly behind it.
    fn finish(self) -> Result<Parsed, UsageError> {
        // argparse asks for the entrypoint first; a misspelt option is what a user needs to hear of.
        if self.cli_flavor == CliFlavor::Rankrun && !self.unknown.is_empty() {
            return Err(UsageError::Unknown { words: self.unknown });
        }
        let is_separator = |word: &OsString| word == "--";
        let (entrypoint, args) = match self.rest {
            [first, entrypoint, args @ ..] if is_separator(first) => (entrypoint, args),
            [first] if is_separator(first) => return Err(missing_entrypoint(&self.given)),
            [entrypoint, second, args @ ..] if is_separator(second) => (entrypoint, args),
            [entrypoint, args @ ..] => (entrypoint, args),
            [] => return Err(missing_entrypoint(&self.given)),
        };
        if !self.unknown.is_empty() {
            return Err(UsageError::Unknown { words: self.unknown });
        }
        let is_separated = self.rest.len() > args.len() + 1;
        let (entrypoint, args) = (entrypoint.clone(), args.to_vec());
        Ok(Parsed::Launch(Request { given: self.given, entrypoint, args, is_separated }))
    }
}

/// What may have swallowed the entrypoint: the last option, where its value is a script's name.
fn missing_entrypoint(given: &[Given]) -> UsageError {
    let script = given.last().filter(|last| last.value.as_bytes().ends_with(b".py"));
    let taken = script.map(|last| (last.row, last.value.to_string_lossy().into_owned()));
    let module = given.iter().any(|given| *given.row == torchrun::MODULE);
    UsageError::MissingEntrypoint { taken, module }
}

/// What an option asks for that is done instead of a launch.
fn answer_at_once(row: &'static OptionRow, value: &OsStr) -> Option<Parsed> {
    if *row == torchrun::HELP {
        Some(Parsed::Help)
    } else if *row == run::VERSION {
        Some(Parsed::Version)
    } else if *row == torchrun::PRINT_COMPLETION {
        Shell::named(value).map(Parsed::Completion)
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
