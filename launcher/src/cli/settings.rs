//! Where a setting's value comes from: the command line, then the option's variable, then the file of `--config`, then a
//! scheduler's variables. The one place that knows.
//!
//! Own options have `RANKRUN_*`, torchrun's have `PET_*`, and no option has both. Further sources (`LOGLEVEL`,
//! defaults) are named where the setting is resolved.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgMatches, Command, FromArgMatches};

use super::config::Config;
use super::error::{CliError, Origin, SettingError, UsageError};
use super::help::HelpLength;
use super::hosts::refuse_in_step;
use super::normalise::{Refusal, find_ambiguous, normalise};
use super::option::{Family, FromText, Kind, LaunchOption, OptionValue, command, find_option, options};
use super::python_text::parse_int;
use super::rankrun::RankrunArgs;
use super::scheduled_job::{ScheduledJob, add_end_of_job, add_settings_of_job, find_scheduled_job};
use rankrun_core::facts::Facts;
use rankrun_core::spec::CliFlavor;
pub(super) use rankrun_core::spec::setting::Setting;

/// An option as it was written; a flag's text is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WrittenOption {
    pub(super) option: &'static Arg,
    pub(super) setting: Setting<OsString>,
}

/// Whether the option is on or off; `-v` has levels.
fn is_switch(option: &Arg) -> bool {
    option.kind() == Kind::Flag && option.long_name() != "verbose"
}

impl WrittenOption {
    /// Whether a variable or a file switches the flag off.
    pub(super) fn is_off(&self) -> bool {
        is_switch(self.option) && self.number() == Some(0)
    }

    fn number(&self) -> Option<i128> {
        self.setting.value.to_str().and_then(parse_int)
    }

    /// The option as normalised words have it.
    pub(super) fn word(&self) -> OsString {
        let mut word = OsString::from(format!("--{}", self.option.long_name()));
        if self.option.kind() != Kind::Flag {
            word.push("=");
            word.push(&self.setting.value);
        }
        word
    }
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
    Ok(parse_with(cli_flavor, words, command(cli_flavor))?.0)
}

/// Reads the words by a grammar with further options, which stand apart as normalised words.
///
/// # Errors
/// What argparse calls a usage error.
pub(super) fn parse_with(
    cli_flavor: CliFlavor,
    words: &[OsString],
    grammar: &'static Command,
) -> Result<(ParsedArgs, Vec<OsString>), CliError> {
    read_words(cli_flavor, words, grammar).map_err(|error| match (&error, cli_flavor) {
        (CliError::Usage { .. }, CliFlavor::Torchrun) => {
            find_ambiguous(words, grammar).map_or(error, |error| CliError::Usage { cli_flavor, error })
        }
        _ => error,
    })
}

fn read_words(
    cli_flavor: CliFlavor,
    words: &[OsString],
    grammar: &'static Command,
) -> Result<(ParsedArgs, Vec<OsString>), CliError> {
    let (mut normalised, error) = match normalise(words, grammar) {
        Ok(normalised) => (normalised, None),
        Err(Refusal { before, error }) => (before, Some(error)),
    };
    let end = normalised.iter().position(|word| word == "--").unwrap_or(normalised.len());
    let is_further =
        |word: &mut OsString| word.as_bytes().starts_with(b"--") && written_option(word).is_none();
    let further = normalised.extract_if(..end, is_further).collect();
    if let Some(error) = error {
        match_words(cli_flavor, &normalised, &[])?;
        return Err(CliError::Usage { cli_flavor, error });
    }
    Ok((parse_normalised(cli_flavor, words, &normalised)?, further))
}

fn parse_normalised(
    cli_flavor: CliFlavor,
    words: &[OsString],
    normalised: &[OsString],
) -> Result<ParsedArgs, CliError> {
    let options =
        normalised.iter().take_while(|word| *word != "--").filter_map(|word| written_option(word)).collect();
    let matches = match match_words(cli_flavor, normalised, &[])? {
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

/// The option of a normalised word.
fn written_option(word: &OsStr) -> Option<WrittenOption> {
    let word = word.as_bytes().strip_prefix(b"--")?;
    let (name, value) = match word.iter().position(|byte| *byte == b'=') {
        Some(at) => (&word[..at], &word[at + 1..]),
        None => (word, &b""[..]),
    };
    let option = find_option(std::str::from_utf8(name).ok()?)?;
    let value = OsStr::from_bytes(value).to_owned();
    Some(WrittenOption { option, setting: Setting { origin: Origin::Option(option.long_name()), value } })
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
            let reason = std::error::Error::source(&error);
            let expected = reason.and_then(|reason| reason.downcast_ref());
            Err(match (expected, option.kind(), reason) {
                (Some(expected), ..) => SettingError::unexpected(origin, value, *expected).into(),
                (None, Kind::Text, None) => SettingError::not_unicode(origin, &value).into(),
                (None, Kind::Text, Some(reason)) => {
                    SettingError::of_other_type(option, origin, value, reason).into()
                }
                (None, ..) => {
                    let error = SettingError::not_of_type(option, origin, value).into();
                    CliError::Usage { cli_flavor, error }
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
    /// All that was said of options, the place that counts first: typed ones from the last to the first, then
    /// variables', then the file's.
    pub(super) given: Vec<WrittenOption>,
    pub(super) config: Config,
    /// What a scheduler says of the job; its part of the settings is in `given`.
    pub(super) job: Option<ScheduledJob>,
}

/// The file that `--config` or its variable names.
pub(super) fn config_path(line: &CommandLine, facts: &Facts) -> Option<OsString> {
    let option = find_option("config")?;
    let typed = line.options.iter().rev().find(|written| written.option == option);
    let setting = typed.map(|typed| typed.setting.clone()).or_else(|| variable(option, facts));
    setting.map(|setting| setting.value)
}

/// Adds what variables, the file of `--config` and a scheduler say to what was typed. Pure.
///
/// # Errors
/// What a scheduler says contradicts the rest. A value that is not of the option's type. argparse reads a flag's variable
/// even where the flag was typed.
pub(super) fn merge<'a>(
    line: &CommandLine,
    facts: &'a Facts,
    config: Config,
) -> Result<Settings<'a>, CliError> {
    let cli_flavor = line.cli_flavor;
    check_types(&config)?;
    let written = |option, setting: Option<_>| setting.map(|setting| WrittenOption { option, setting });
    let of_variables =
        options(CliFlavor::Rankrun).filter_map(|option| written(option, variable(option, facts)));
    let of_config = options(CliFlavor::Rankrun).filter_map(|option| written(option, config.find(option)));
    let typed = line.options.iter().rev().cloned();
    let mut given: Vec<WrittenOption> = typed.chain(of_variables).chain(of_config).collect();
    let is_typed = |written: &&WrittenOption| matches!(written.setting.origin, Origin::Option(_));
    let bad_flag = |written: &&WrittenOption| is_switch(written.option) && written.number().is_none();
    if let Some(flag) = given.iter().skip_while(is_typed).find(bad_flag) {
        return Err(flag_is_not_integer(&flag.setting).into());
    }
    let job = find_scheduled_job(cli_flavor, facts, &given)?;
    if let Some(job) = &job {
        refuse_in_step(&given, job)?;
        add_settings_of_job(job, &mut given)?;
    }
    if cli_flavor == CliFlavor::Rankrun {
        add_end_of_job(facts, &mut given);
    }
    let counting = options(CliFlavor::Rankrun)
        // torchrun does not check the choice of a variable.
        .filter(|option| option.long_name() != "start-method")
        .filter_map(|option| given.iter().find(|written| written.option == option))
        .filter(|written| !is_typed(written) && !written.is_off());
    let words: Vec<OsString> = counting.map(WrittenOption::word).collect();
    let mut args = line.args.clone();
    if !words.is_empty()
        && let ClapOutcome::Options(matches) = match_words(cli_flavor, &words, &given)?
    {
        args.update_from_arg_matches(&matches).expect("no option is required");
    }
    Ok(Settings { cli_flavor, facts, args, given, config, job })
}

/// Checks all values of the file, also where the command line or a variable says another one: a slip is seen at once, and
/// not in the first job without that option.
fn check_types(config: &Config) -> Result<(), CliError> {
    let of_file = |option| Some(WrittenOption { option, setting: config.find(option)? });
    let written: Vec<WrittenOption> = options(CliFlavor::Rankrun).filter_map(of_file).collect();
    if !written.is_empty() {
        let words: Vec<OsString> = written.iter().map(WrittenOption::word).collect();
        match_words(CliFlavor::Rankrun, &words, &written)?;
    }
    Ok(())
}

/// torchrun refuses such a variable too.
pub(super) fn flag_is_not_integer(Setting { origin, value }: &Setting<OsString>) -> SettingError {
    let hint = format!("`{}=1` is on, 0 is off", origin.to_string().trim_matches('`'));
    let problem = "which is not a whole number";
    SettingError::of_value(origin.clone(), value.to_string_lossy(), problem, hint)
}

pub(super) fn variable(option: &Arg, facts: &Facts) -> Option<Setting<OsString>> {
    let name = option.variable()?;
    // argparse takes an empty variable for an empty value.
    let may_be_empty = option.family() == Family::Pet || is_switch(option);
    let value = if may_be_empty { facts.variable(&name) } else { facts.filled_variable(&name) };
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
            let error = SettingError::not_of_type(option, origin, value.to_string_lossy()).into();
            Err(CliError::Usage { cli_flavor: CliFlavor::Rankrun, error })
        }
    }
}

impl Settings<'_> {
    /// The value of an option, and where it was said.
    pub(super) fn get<T: FromText>(&self, value: &Option<OptionValue<T>>) -> Option<Setting<T>> {
        let OptionValue { option, value } = value.as_ref()?;
        let origin = self.counting(option.long_name())?.setting.origin.clone();
        Some(Setting { origin, value: value.clone() })
    }

    /// The value of an option as it was written, by the option's long name.
    pub(super) fn find(&self, long: &str) -> Option<Setting<OsString>> {
        debug_assert!(find_option(long).is_some(), "{long}");
        Some(self.counting(long).filter(|written| !written.is_off())?.setting.clone())
    }

    /// The values of an option that may be repeated, in their order: all typed ones, else the one that counts.
    pub(super) fn every(&self, long: &str) -> Vec<&Setting<OsString>> {
        let of_option = self.given.iter().filter(|written| written.option.long_name() == long);
        let mut found: Vec<_> = of_option.map(|written| &written.setting).collect();
        let typed = found.iter().take_while(|setting| matches!(setting.origin, Origin::Option(_))).count();
        found.truncate(typed.max(1));
        found.reverse();
        found
    }

    /// How often an option stands on the command line.
    pub(super) fn typed_count(&self, long: &'static str) -> usize {
        self.given.iter().filter(|written| written.setting.origin == Origin::Option(long)).count()
    }

    fn counting(&self, long: &str) -> Option<&WrittenOption> {
        self.given.iter().find(|written| written.option.long_name() == long)
    }
}
