//! Where a setting's value comes from: the command line, then the option's variable, then the file of `--config`. The
//! one place that knows.
//!
//! Own options have `RANKRUN_*`, torchrun's have `PET_*`, and no option has both. Further sources (`LOGLEVEL`,
//! defaults) are named where the setting is resolved.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgMatches, FromArgMatches};

use super::config::{self, Config};
use super::error::{CliError, Origin, SettingError, UsageError};
use super::help::HelpLength;
use super::normalise::{Refusal, normalise};
use super::option::{Family, FromText, Kind, LaunchOption, OptionValue, command, find_option, options};
use super::python_text::parse_int;
use super::rankrun::RankrunArgs;
use rankrun_core::facts::Facts;
use rankrun_core::spec::CliFlavor;
pub(super) use rankrun_core::spec::setting::Setting;

/// An option as it was written; a flag's text is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WrittenOption {
    pub(super) option: &'static Arg,
    pub(super) setting: Setting<OsString>,
}

/// What a command line says, without the variables and the file.
#[derive(Debug, Clone)]
pub(super) struct CommandLine {
    pub(super) cli_flavor: CliFlavor,
    pub(super) args: RankrunArgs,
    /// The options in the order in which they were typed, also repeated ones.
    pub(super) options: Vec<WrittenOption>,
    pub(super) entrypoint: OsString,
    pub(super) arguments: Vec<OsString>,
    /// A `--` stood before or behind the entrypoint.
    pub(super) is_separated: bool,
}

/// What a command line asks for.
#[derive(Debug, Clone)]
pub(super) enum ParsedArgs {
    Launch(Box<CommandLine>),
    Help(HelpLength),
    Version,
    Completion(super::completion::Shell),
}

/// Reads the words behind the command's name.
///
/// # Errors
/// What argparse calls a usage error.
pub(super) fn parse(cli_flavor: CliFlavor, words: &[OsString]) -> Result<ParsedArgs, CliError> {
    let normalised = match normalise(words, command(cli_flavor)) {
        Ok(normalised) => normalised,
        Err(Refusal { before, error }) => {
            match_words(cli_flavor, &before, &[])?;
            return Err(CliError::Usage { cli_flavor, error });
        }
    };
    let options = written_options(&normalised);
    let matches = match match_words(cli_flavor, &normalised, &[])? {
        ClapOutcome::Options(matches) => matches,
        ClapOutcome::Help => {
            let is_short = normalised.last().is_some_and(|word| word == "-h");
            return Ok(ParsedArgs::Help(if is_short { HelpLength::Short } else { HelpLength::Long }));
        }
        ClapOutcome::Version => return Ok(ParsedArgs::Version),
    };
    let mut args = RankrunArgs::default();
    args.update_from_arg_matches(&matches).expect("no option is required");
    if let Some(shell) = &args.torchrun.print_completion {
        return Ok(ParsedArgs::Completion(shell.value));
    }
    let mut program = args.program.clone().unwrap_or_default().into_iter();
    let entrypoint = program.next().unwrap_or_default();
    let arguments: Vec<OsString> = program.collect();
    let separators = |words: &[OsString]| words.iter().filter(|word| *word == "--").count();
    let is_separated = separators(words) > separators(&arguments);
    let line = CommandLine { cli_flavor, args, options, entrypoint, arguments, is_separated };
    Ok(ParsedArgs::Launch(Box::new(line)))
}

/// The options among normalised words.
fn written_options(normalised: &[OsString]) -> Vec<WrittenOption> {
    let words = normalised.iter().take_while(|word| *word != "--");
    let parts = words.filter_map(|word| {
        let word = word.as_bytes().strip_prefix(b"--")?;
        let (name, value) = match word.iter().position(|byte| *byte == b'=') {
            Some(at) => (&word[..at], &word[at + 1..]),
            None => (word, &b""[..]),
        };
        let option = find_option(std::str::from_utf8(name).ok()?)?;
        let value = OsStr::from_bytes(value).to_owned();
        Some(WrittenOption { option, setting: Setting { origin: Origin::Option(option.long_name()), value } })
    });
    parts.collect()
}

/// What clap makes of normalised words.
enum ClapOutcome {
    Options(ArgMatches),
    Help,
    Version,
}

/// Reads normalised words by the types of the options.
///
/// # Errors
/// A value that is not of the option's type; `written` says where it was written.
fn match_words(
    cli_flavor: CliFlavor,
    words: &[OsString],
    written: &[WrittenOption],
) -> Result<ClapOutcome, CliError> {
    let error = match command(CliFlavor::Rankrun).clone().try_get_matches_from(words) {
        Ok(matches) => return Ok(ClapOutcome::Options(matches)),
        Err(error) => error,
    };
    let (long, value) = invalid_option(&error, words);
    match (error.kind(), find_option(&long)) {
        (clap::error::ErrorKind::DisplayHelp, _) => Ok(ClapOutcome::Help),
        (clap::error::ErrorKind::DisplayVersion, _) => Ok(ClapOutcome::Version),
        (_, Some(option)) => {
            let origin = written.iter().find(|written| written.option == option);
            let origin =
                origin.map_or(Origin::Option(option.long_name()), |written| written.setting.origin.clone());
            let expected = std::error::Error::source(&error).and_then(|source| source.downcast_ref());
            Err(match (expected, option.kind()) {
                (Some(expected), _) => SettingError::unexpected(origin, value, *expected).into(),
                (None, Kind::Text) => SettingError::not_unicode(origin, &value).into(),
                (None, _) => {
                    CliError::Usage { cli_flavor, error: UsageError::BadValue { option, origin, value } }
                }
            })
        }
        (_, None) => {
            let words = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
            Err(CliError::Usage { cli_flavor, error: UsageError::Unknown { words } })
        }
    }
}

/// The long name and the value of the option that clap refuses. Of a value that is not Unicode clap names no option.
fn invalid_option(error: &clap::Error, words: &[OsString]) -> (String, String) {
    let is_refused = |word: &&OsString| {
        word.to_str().is_none() && command(CliFlavor::Rankrun).clone().try_get_matches_from([word]).is_err()
    };
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    let (named, value) = match error.kind() {
        clap::error::ErrorKind::InvalidUtf8 => {
            let word = words.iter().find(is_refused).map(|word| word.to_string_lossy().into_owned());
            let parts = word.as_ref().and_then(|word| word.split_once('='));
            parts.map(|(name, value)| (name.to_owned(), value.to_owned())).unwrap_or_default()
        }
        _ => (text(ContextKind::InvalidArg), text(ContextKind::InvalidValue)),
    };
    // clap writes `--name <VALUE>`.
    let long = named.trim_start_matches("--").split(' ').next().unwrap_or_default();
    (long.to_owned(), value)
}

/// What was typed, over what the environment says, over what a file says.
pub(super) struct Settings<'a> {
    pub(super) cli_flavor: CliFlavor,
    pub(super) facts: &'a Facts,
    /// The options of all three sources, by their types.
    pub(super) args: RankrunArgs,
    /// The options of all three sources as they were written: typed ones in their order, then variables', then the
    /// file's. An option stands here for its first source alone.
    pub(super) written: Vec<WrittenOption>,
    pub(super) config: Config,
}

/// Adds what variables and the file of `--config` say to what was typed.
///
/// # Errors
/// A value that is not of the option's type, a file that cannot be read or understood.
pub(super) fn merge<'a>(line: &CommandLine, facts: &'a Facts) -> Result<Settings<'a>, CliError> {
    let cli_flavor = line.cli_flavor;
    let mut written = line.options.clone();
    let path = find_option("config").and_then(|option| {
        let typed = written.iter().rev().find(|written| written.option == option);
        typed.map(|typed| typed.setting.clone()).or_else(|| variable(option, facts))
    });
    let config = config::read(path, facts)?;
    let mut words = Vec::new();
    for option in options(CliFlavor::Rankrun) {
        let is_typed = line.options.iter().any(|typed| typed.option == option);
        let Some(setting) = below_command_line(option, facts, &config)?.filter(|_| !is_typed) else {
            continue;
        };
        let mut word = format!("--{}", option.long_name()).into_bytes();
        if option.kind() != Kind::Flag {
            word.push(b'=');
            word.extend(setting.value.as_bytes());
        }
        // torchrun does not check the choice of a variable.
        if option.long_name() != "start-method" {
            words.push(OsString::from_vec(word));
        }
        written.push(WrittenOption { option, setting });
    }
    let mut args = line.args.clone();
    if !words.is_empty()
        && let ClapOutcome::Options(matches) = match_words(cli_flavor, &words, &written)?
    {
        args.update_from_arg_matches(&matches).expect("no option is required");
    }
    Ok(Settings { cli_flavor, facts, args, written, config })
}

/// What the option's variable says, or else the file.
///
/// # Errors
/// A flag's variable is not a number. argparse reads it even where the flag was typed.
fn below_command_line(
    option: &'static Arg,
    facts: &Facts,
    config: &Config,
) -> Result<Option<Setting<OsString>>, SettingError> {
    // `-v` has levels.
    if option.kind() != Kind::Flag || option.long_name() == "verbose" {
        return Ok(variable(option, facts).or_else(|| config.find(option)));
    }
    let of_variable = option.variable().and_then(|name| Some((facts.variable(&name)?, name)));
    let Some((value, variable)) = of_variable else {
        return Ok(config.find(option).filter(|setting| setting.value != "0"));
    };
    match value.to_str().and_then(parse_int) {
        Some(0) => Ok(None),
        Some(_) => Ok(Some(Setting { origin: Origin::Variable(variable), value: value.to_owned() })),
        None => Err(flag_is_not_integer(variable, value)),
    }
}

/// torchrun refuses such a variable too.
pub(super) fn flag_is_not_integer(variable: String, value: &OsStr) -> SettingError {
    let hint = format!("`{variable}=1` is on, 0 is off");
    let problem = "which is not a whole number";
    SettingError::of_value(Origin::Variable(variable), value.to_string_lossy(), problem, hint)
}

pub(super) fn variable(option: &Arg, facts: &Facts) -> Option<Setting<OsString>> {
    let name = option.variable()?;
    let value = match option.family() {
        // argparse takes an empty variable for an empty value.
        Family::Pet => facts.variable(&name),
        Family::Rankrun | Family::None => facts.filled_variable(&name),
    };
    value.map(|value| Setting { value: value.to_owned(), origin: Origin::Variable(name) })
}

/// What the variable of an option says.
///
/// # Errors
/// It is not of the option's type.
pub(super) fn variable_value<T: FromText>(long: &str, facts: &Facts) -> Result<Option<Setting<T>>, CliError> {
    let found = find_option(long).and_then(|option| Some((option, variable(option, facts)?)));
    let Some((option, Setting { origin, value })) = found else { return Ok(None) };
    match T::from_text(&value) {
        Some(value) => Ok(Some(Setting { origin, value })),
        None => {
            let value = value.to_string_lossy().into_owned();
            let error = UsageError::BadValue { option, origin, value };
            Err(CliError::Usage { cli_flavor: CliFlavor::Rankrun, error })
        }
    }
}

impl Settings<'_> {
    /// The value of an option, and where it was said.
    pub(super) fn get<T: FromText>(&self, value: &Option<OptionValue<T>>) -> Option<Setting<T>> {
        let OptionValue { option, value } = value.as_ref()?;
        let origin = self.written(option.long_name())?.setting.origin.clone();
        Some(Setting { origin, value: value.clone() })
    }

    /// The value of an option as it was written, by the option's long name.
    pub(super) fn find(&self, long: &str) -> Option<Setting<OsString>> {
        debug_assert!(find_option(long).is_some(), "{long}");
        Some(self.written(long)?.setting.clone())
    }

    fn written(&self, long: &str) -> Option<&WrittenOption> {
        self.written.iter().rev().find(|written| written.option.long_name() == long)
    }
}
