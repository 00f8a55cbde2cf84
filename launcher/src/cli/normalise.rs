//! argparse's rules, in front of clap: what a user may type for torchrun becomes words that clap reads without rules of
//! its own. Pure.
//!
//! Both spellings of a name count in prefix matching, one `--` is swallowed before *or* after the entrypoint, an
//! option without a glued value takes the next word only if it does not look like an option, and unknown options
//! are collected until the end. The rules are those of Python 3.11, with one kindness: words behind the entrypoint are
//! never looked at. Under our own name an abbreviation that fits several spellings of one option is accepted too, and
//! `-master_addr` is a misspelt option; an option may have aliases there, which are never abbreviated.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::{Arg, ArgAction, Command};

use super::error::UsageError;
use super::option::{Kind, LaunchOption, MPIRUN_WORKER_COUNT, is_torchruns, letters, long_names};
use super::python_text::ascii_digits;

/// A command line that argparse refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The options before the mistake. A wrong value among them is the first error.
    pub(super) before: Vec<OsString>,
    pub(super) error: UsageError,
}

/// The words as clap reads them: `--name=value` for each option, `--name` for each flag, then `--`, the entrypoint and
/// its arguments. An option that asks for something else than a launch is the last word.
///
/// # Errors
/// What argparse calls a usage error; the values are left to clap.
pub(super) fn normalise(words: &[OsString], command: &'static Command) -> Result<Vec<OsString>, Refusal> {
    let mut reader = ArgvReader { command, rest: words, normalised: Vec::new(), unknown: Vec::new() };
    match reader.read() {
        Ok(()) => Ok(reader.normalised),
        Err(error) => Err(Refusal { before: reader.normalised, error }),
    }
}

/// The first ambiguous word before a `--`. argparse looks at all words before it reads one, so of several mistakes this is
/// the one that it tells.
pub(super) fn find_ambiguous(words: &[OsString], command: &'static Command) -> Option<UsageError> {
    let reader = ArgvReader { command, rest: words, normalised: Vec::new(), unknown: Vec::new() };
    words.iter().take_while(|word| *word != "--").find_map(|word| reader.classify(word).err())
}

/// One word of the command line, before any value is taken from it.
enum Word<'a> {
    /// The entrypoint, or the value of the option before it.
    Plain,
    /// `--`
    Separator,
    Long {
        arg: &'static Arg,
        value: Option<&'a OsStr>,
    },
    /// The letters behind the dash; the first one is an option.
    Short(&'a [u8]),
    Unknown(&'a OsStr),
}

struct ArgvReader<'a> {
    command: &'static Command,
    rest: &'a [OsString],
    normalised: Vec<OsString>,
    unknown: Vec<String>,
}

impl<'a> ArgvReader<'a> {
    fn read(&mut self) -> Result<(), UsageError> {
        while let Some((word, rest)) = self.rest.split_first() {
            let word = self.classify(word)?;
            if matches!(word, Word::Plain | Word::Separator) {
                break;
            }
            self.rest = rest;
            let last = match word {
                Word::Long { arg, value } => self.take(arg, value)?,
                Word::Short(letters) => self.take_letters(letters)?,
                Word::Unknown(word) => {
                    self.unknown.push(word.to_string_lossy().into_owned());
                    continue;
                }
                Word::Plain | Word::Separator => continue,
            };
            if asks_for_text(last) {
                return Ok(());
            }
        }
        self.take_program()
    }

    fn is_torchrun(&self) -> bool {
        self.command.get_name() == "torchrun"
    }

    /// Our own options and accelerate's are written in full.
    fn can_be_abbreviated(&self, arg: &Arg) -> bool {
        self.command.get_name() == "deepspeed" || is_torchruns(arg, self.command)
    }

    fn classify(&self, word: &'a OsStr) -> Result<Word<'a>, UsageError> {
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
            if let Some(arg) = self.find_long(name, word)? {
                return Ok(Word::Long { arg, value });
            }
        } else if let Some(value) = self.value_for_mpirun(bytes) {
            let arg = self.find_long(b"--nproc-per-node", word)?;
            return Ok(arg.map_or(Word::Unknown(word), |arg| Word::Long { arg, value }));
        } else if !self.is_torchrun() && self.has_one_dash_too_few(bytes) {
            return Ok(Word::Unknown(word));
        } else if self.find_short(*letter).is_some() {
            return Ok(Word::Short(&bytes[1..]));
        }
        // argparse takes these for values, not for misspelt options.
        let is_value = is_negative_number(bytes) || bytes.contains(&b' ');
        Ok(if is_value { Word::Plain } else { Word::Unknown(word) })
    }

    /// The option whose spelling is `name`, or the only one that begins with it.
    fn find_long(&self, name: &[u8], word: &OsStr) -> Result<Option<&'static Arg>, UsageError> {
        let typed = name.strip_prefix(b"--").unwrap_or(name);
        if let Some(arg) = long_args(self.command).find(|(_, long)| is_spelling(long, typed)) {
            return Ok(Some(arg.0));
        }
        let candidates: Vec<(&'static Arg, String)> = long_args(self.command)
            .filter(|(arg, long)| self.can_be_abbreviated(arg) && *long == arg.long_name())
            .flat_map(|(arg, _)| arg.spellings().into_iter().map(move |spelling| (arg, spelling)))
            .filter(|(_, spelling)| spelling.as_bytes().starts_with(name))
            .collect();
        match candidates.as_slice() {
            [] => Ok(None),
            [(arg, _)] => Ok(Some(*arg)),
            [(first, _), others @ ..]
                if !self.is_torchrun() && others.iter().all(|(arg, _)| arg == first) =>
            {
                Ok(Some(*first))
            }
            _ => Err(UsageError::Ambiguous {
                word: word.to_string_lossy().into_owned(),
                candidates: candidates.into_iter().map(|(_, spelling)| spelling).collect(),
            }),
        }
    }

    /// `-master_addr`, and `-npernode` of mpirun: short options with such letters behind them are never meant.
    fn has_one_dash_too_few(&self, word: &[u8]) -> bool {
        if matches!(word, [b'-', b'n', b'a'..=b'z', ..]) {
            return true;
        }
        let name = word.split(|byte| *byte == b'=').next().unwrap_or_default();
        name.len() > 2 && long_args(self.command).any(|(_, long)| is_spelling(long, &name[1..]))
    }

    fn find_short(&self, letter: u8) -> Option<&'static Arg> {
        self.command.get_arguments().find(|arg| letters(arg).any(|known| known == char::from(letter)))
    }

    /// The glued value, if any, of `-np`, `-np=2` and `-np2`: not `-n` with the value `p`.
    fn value_for_mpirun<'w>(&self, word: &'w [u8]) -> Option<Option<&'w OsStr>> {
        let behind = word.strip_prefix(MPIRUN_WORKER_COUNT.as_bytes()).filter(|_| !self.is_torchrun())?;
        match behind {
            [] => Some(None),
            [b'=', value @ ..] | value @ [b'0'..=b'9', ..] => Some(Some(OsStr::from_bytes(value))),
            _ => None,
        }
    }

    /// One option with the value that is glued to it, or with the next word as its value.
    fn take(&mut self, arg: &'static Arg, glued: Option<&OsStr>) -> Result<&'static Arg, UsageError> {
        let mut word = format!("--{}", arg.long_name()).into_bytes();
        match (arg.kind() == Kind::Flag, glued) {
            (true, None) => {}
            (true, Some(value)) => return Err(unwanted(arg, value.as_bytes())),
            (false, value) => {
                word.push(b'=');
                match value {
                    Some(value) => word.extend(value.as_bytes()),
                    None => word.extend(self.next_value(arg)?.as_bytes()),
                }
            }
        }
        self.normalised.push(OsString::from_vec(word));
        Ok(arg)
    }

    fn next_value(&mut self, arg: &'static Arg) -> Result<&'a OsStr, UsageError> {
        let missing = UsageError::MissingValue { option: arg };
        let Some((word, rest)) = self.rest.split_first() else { return Err(missing) };
        let is_value = match self.classify(word)? {
            Word::Plain => true,
            // `-2,-3`: all devices but these.
            Word::Unknown(_) => arg.is_allow_negative_numbers_set() && begins_negative(word.as_bytes()),
            _ => false,
        };
        if !is_value {
            return Err(missing);
        }
        self.rest = rest;
        Ok(word)
    }

    /// `-r3`, `-r=3`, `-mr3`: flags may be followed by further letters, other options by their value. A `=` is
    /// dropped behind the first letter alone. All letters are read before the first one counts.
    fn take_letters(&mut self, letters: &'a [u8]) -> Result<&'static Arg, UsageError> {
        let (first, behind) = letters.split_at(1);
        let mut glued = behind.strip_prefix(b"=").or((!behind.is_empty()).then_some(behind));
        let mut letter = first[0];
        let mut last: Option<&'static Arg> = None;
        let mut text: Option<(&'static Arg, usize)> = None;
        loop {
            let Some(arg) = self.find_short(letter) else {
                let value = [&[letter], glued.unwrap_or_default()].concat();
                return Err(last.map_or_else(|| unknown_letters(letters), |last| unwanted(last, &value)));
            };
            let is_flag = arg.kind() == Kind::Flag;
            let value = glued.filter(|value| !is_flag || value.is_empty());
            last = Some(self.take(arg, value.map(OsStr::from_bytes))?);
            // The short name asks for the short help.
            if let (ArgAction::Help, Some(word)) = (arg.get_action(), self.normalised.last_mut()) {
                *word = "-h".into();
            }
            text = text.or_else(|| asks_for_text(arg).then_some((arg, self.normalised.len())));
            match glued {
                Some([next, behind @ ..]) if is_flag => {
                    letter = *next;
                    glued = (!behind.is_empty()).then_some(behind);
                }
                _ => break,
            }
        }
        if let Some((_, end)) = text {
            self.normalised.truncate(end);
        }
        text.map(|(arg, _)| arg).or(last).ok_or_else(|| unknown_letters(letters))
    }

    /// What is left begins with the entrypoint. One `--` is swallowed: before it, or else directly behind it.
    fn take_program(&mut self) -> Result<(), UsageError> {
        // argparse asks for the entrypoint first; a misspelt option is what a user needs to hear of.
        if !self.is_torchrun() && !self.unknown.is_empty() {
            return Err(self.unknown());
        }
        let is_separator = |word: &OsString| word == "--";
        let (entrypoint, arguments) = match self.rest {
            [first, entrypoint, arguments @ ..] if is_separator(first) => (entrypoint, arguments),
            [first] if is_separator(first) => return Err(self.missing_entrypoint()),
            [entrypoint, second, arguments @ ..] if is_separator(second) => (entrypoint, arguments),
            [entrypoint, arguments @ ..] => (entrypoint, arguments),
            [] => return Err(self.missing_entrypoint()),
        };
        if !self.unknown.is_empty() {
            return Err(self.unknown());
        }
        self.normalised.extend(["--".into(), entrypoint.clone()]);
        self.normalised.extend_from_slice(arguments);
        Ok(())
    }

    fn unknown(&self) -> UsageError {
        UsageError::Unknown { words: self.unknown.clone() }
    }

    /// What may have swallowed the entrypoint: the last option, where its value is a script's name.
    fn missing_entrypoint(&self) -> UsageError {
        let last = self.normalised.last().and_then(|word| word.to_str()?.strip_prefix("--")?.split_once('='));
        let taken = last.filter(|(_, value)| value.ends_with(".py"));
        let taken = taken.and_then(|(name, value)| {
            let (option, _) = long_args(self.command).find(|(_, long)| *long == name)?;
            Some((option, value.to_owned()))
        });
        UsageError::MissingEntrypoint { taken, module: self.normalised.iter().any(|word| word == "--module") }
    }
}

fn long_args(command: &'static Command) -> impl Iterator<Item = (&'static Arg, &'static str)> {
    command.get_arguments().flat_map(|arg| long_names(arg).map(move |long| (arg, long)))
}

/// Whether a name is the long one, in all hyphens or in all underscores.
fn is_spelling(long: &str, typed: &[u8]) -> bool {
    let underscored = || long.bytes().map(|byte| if byte == b'-' { b'_' } else { byte });
    long.as_bytes() == typed || (long.len() == typed.len() && underscored().eq(typed.iter().copied()))
}

/// Whether the option asks for a text instead of a launch. Nothing behind it is looked at.
pub(super) fn asks_for_text(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Help | ArgAction::Version) || arg.get_id() == "print_completion"
}

fn unwanted(option: &'static Arg, value: &[u8]) -> UsageError {
    UsageError::UnwantedValue { option, value: String::from_utf8_lossy(value).into_owned() }
}

fn unknown_letters(letters: &[u8]) -> UsageError {
    UsageError::Unknown { words: vec![format!("-{}", String::from_utf8_lossy(letters))] }
}

/// `-1`, `-1.5`, `-.5`, and so in the digits of any script. Python's `$` fits before a line feed at the end, too.
fn is_negative_number(word: &[u8]) -> bool {
    let word = String::from_utf8_lossy(word);
    let word = ascii_digits(word.strip_suffix('\n').unwrap_or(&word));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let Some(number) = word.strip_prefix('-') else { return false };
    match number.split_once('.') {
        None => !number.is_empty() && digits(number),
        Some((whole, fraction)) => digits(whole) && !fraction.is_empty() && digits(fraction),
    }
}

fn begins_negative(word: &[u8]) -> bool {
    matches!(word, [b'-', digit, ..] if digit.is_ascii_digit())
}

#[cfg(test)]
mod tests;
