//! From the words of a subcommand to what it asks for.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, FromArgMatches};
use rankrun_contract::rank::LocalWorldSize;

use super::{COMMANDS, ExplainArgs, ProbeArgs, Subcommand, help_of, is_name};
use crate::cli::device_request::probe_timeout;
use crate::cli::error::{CliError, Origin, SettingError, UsageError};
use crate::cli::external_worker::local_rank_in;
use crate::cli::option::LaunchOption;
use crate::cli::other_launcher::convert;
use crate::cli::settings::{Setting, variable_value};
use crate::cli::{Command, completion, explain, help, launch, man};
use rankrun_core::facts::Facts;
use rankrun_core::gc::{GcMode, GcRequest};
use rankrun_core::spec::{CliFlavor, OutputFormat};
use rankrun_tools::control::command::{ControlCommand, ControlVerb, JobVerb};
use rankrun_tools::explain::ExplainForm;
use rankrun_tools::inspect::{InspectRequest, OutputMode, Subject};

/// A program or script may have these names: a file here is meant before them.
const BEHIND_FILES: [&str; 4] = ["completions", "help", "man", "version"];

/// The subcommand that the words begin with.
pub(in crate::cli) fn find_subcommand(words: &[OsString], facts: &Facts) -> Option<&'static str> {
    let name = name_of(words)?;
    let is_file = BEHIND_FILES.contains(&name) && facts.exists(Path::new(name));
    (!is_file).then_some(name)
}

/// Whether the words begin with a subcommand that launches nothing.
pub(in crate::cli) fn is_query(words: &[OsString]) -> bool {
    name_of(words).is_some_and(|name| name != "run")
}

fn name_of(words: &[OsString]) -> Option<&'static str> {
    let first = words.first()?.to_str()?;
    // Most launches begin with an option or a file, and need not make the table of subcommands.
    if !first.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return None;
    }
    COMMANDS.find_subcommand(first).map(clap::Command::get_name)
}

/// Parses the words; the first is the subcommand of this name.
///
/// # Errors
/// A word that the subcommand does not know, or a value that it does not take.
pub(in crate::cli) fn interpret(
    name: &'static str,
    (argv0, words): (&OsStr, &[OsString]),
    facts: &Facts,
) -> Result<Command, CliError> {
    // The whole command of accelerate that has a help here.
    let is_about_launch = name == "help" && words[1..] == ["accelerate", "launch"];
    let words = if is_about_launch { &words[..2] } else { words };
    // Also behind a mistake.
    let help = words.iter().find(|word| *word == "-h" || *word == "--help");
    if let Some(help) = help.filter(|_| !["run", "explain", "convert"].contains(&name)) {
        return Ok(Command::Print(help_of(name, help == "--help", None).unwrap_or_default()));
    }
    let subcommand = match parse(words) {
        Ok(subcommand) => subcommand,
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {
            return Ok(Command::Print(error.render().to_string()));
        }
        Err(error) => return Err(usage(usage_error(name, words, &error))),
    };
    Ok(match subcommand {
        Subcommand::Run { .. } => return launch(CliFlavor::Rankrun, argv0, &words[1..], facts),
        Subcommand::Explain { words: typed, .. } => {
            // clap swallows a `--`, which is the launch's.
            let start = words.len() - typed.len();
            let start = if words[start - 1] == "--" { start - 1 } else { start };
            let form = |own: &[OsString], workers| explain_form(&[&words[..start], own].concat(), workers);
            return explain::interpret(argv0, form, &words[start..], facts);
        }
        Subcommand::Convert { json, words } => Command::Print(convert::answer(&words, json, facts)?),
        Subcommand::Devices { json, watch, device_type, id, probe } => {
            let mode = watch.map_or(OutputMode::Once(format(json)), OutputMode::Watch);
            let ids = id.iter().map(|id| id.trim().to_owned()).collect();
            let subject = Subject::Devices { device_type, ids };
            Command::Inspect(InspectRequest { subject, mode, limit: probe.limit(facts)? })
        }
        Subcommand::Topo { json, matrix: _, probe } => {
            let mode = OutputMode::Once(format(json));
            Command::Inspect(InspectRequest { subject: Subject::Topo, mode, limit: probe.limit(facts)? })
        }
        Subcommand::Ls { json } => control(ControlVerb::List, None, json),
        Subcommand::Status { job, json, check } => {
            control(ControlVerb::Job(if check { JobVerb::Check } else { JobVerb::Status }), job, json)
        }
        Subcommand::Stacks { job, rank, json } => control(ControlVerb::Job(JobVerb::Stacks(rank)), job, json),
        Subcommand::Stop { job, wait } => control(
            ControlVerb::Job(if wait { JobVerb::StopAndWait } else { JobVerb::Stop }),
            Some(job),
            false,
        ),
        Subcommand::Restart { job } => control(ControlVerb::Job(JobVerb::Restart), Some(job), false),
        Subcommand::Gc { dry_run, force, json } => {
            let mode = match (dry_run, force) {
                (true, _) => GcMode::List,
                (false, true) => GcMode::EndAll,
                (false, false) => GcMode::End,
            };
            Command::Gc(GcRequest { mode, format: format(json) })
        }
        Subcommand::Shim(args) => Command::Shim(args.request()?),
        Subcommand::Completions { shell } => Command::Print(completion::script(CliFlavor::Rankrun, shell)),
        Subcommand::Man => Command::Print(man::page()),
        Subcommand::Help { topic } => Command::Print(help_about(topic.as_deref())?),
        Subcommand::Version => Command::Print(help::version()),
    })
}

fn parse(words: &[OsString]) -> Result<Subcommand, clap::Error> {
    Subcommand::from_arg_matches(&COMMANDS.clone().try_get_matches_from(words)?)
}

/// The form that the options of `explain` ask for, wherever they stood.
fn explain_form(words: &[OsString], workers: LocalWorldSize) -> Result<ExplainForm, CliError> {
    match parse(words) {
        Ok(Subcommand::Explain { form: ExplainArgs { script: Some(rank), .. }, .. }) => {
            Ok(ExplainForm::Script(local_rank_in(Origin::Option("script"), rank, workers)?))
        }
        Ok(Subcommand::Explain { form: ExplainArgs { json: true, .. }, .. }) => Ok(ExplainForm::Json),
        Ok(Subcommand::Explain { form: ExplainArgs { all: true, .. }, .. }) => Ok(ExplainForm::Full),
        Ok(_) => Ok(ExplainForm::Brief),
        Err(error) => Err(usage(usage_error("explain", words, &error))),
    }
}

pub(super) const fn format(json: bool) -> OutputFormat {
    if json { OutputFormat::Json } else { OutputFormat::Text }
}

fn control(verb: ControlVerb, job: Option<String>, json: bool) -> Command {
    Command::Control(ControlCommand { verb, job, format: format(json) })
}

/// The help of a launch, about a topic, or of a subcommand.
fn help_about(topic: Option<&str>) -> Result<String, CliError> {
    let Some(topic) = topic else {
        return Ok(help::help(CliFlavor::Rankrun, help::HelpLength::Long, None));
    };
    let text = match topic {
        "run" => Some(help::help(CliFlavor::Rankrun, help::HelpLength::Long, None)),
        topic => help::topic(topic, None).or_else(|| help_of(topic, true, None)),
    };
    text.ok_or_else(|| usage(UsageError::UnknownTo { command: "help", word: topic.to_owned() }))
}

pub(super) fn usage(error: UsageError) -> CliError {
    CliError::Usage { cli_flavor: CliFlavor::Rankrun, error }
}

impl ProbeArgs {
    fn limit(&self, facts: &Facts) -> Result<Duration, CliError> {
        let origin = Origin::Option("probe-timeout");
        let typed = self.probe_timeout.map(|value| Setting { origin, value });
        probe_timeout(typed.map_or_else(|| variable_value("probe-timeout", facts), |typed| Ok(Some(typed)))?)
    }
}

/// The mistake that clap found, in our words.
fn usage_error(command: &'static str, words: &[OsString], error: &clap::Error) -> UsageError {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(" "),
        _ => String::new(),
    };
    let invalid = text(ContextKind::InvalidArg);
    let value = text(ContextKind::InvalidValue);
    let named = option_named(command, &invalid);
    match (error.kind(), named) {
        (ErrorKind::MissingRequiredArgument, _) => UsageError::MissingArgument { command },
        (ErrorKind::ArgumentConflict, Some(option)) => {
            let other = option_named(command, &text(ContextKind::PriorArg)).unwrap_or(option);
            let mut both = [option.long_name(), other.long_name()];
            both.sort_unstable();
            let [one, other] = both.map(Origin::Option);
            SettingError::exclusive(one, &other).into()
        }
        (ErrorKind::TooManyValues, Some(option)) => UsageError::UnwantedValue { option, value },
        (ErrorKind::InvalidValue, Some(option)) if value.is_empty() => UsageError::MissingValue { option },
        (ErrorKind::ValueValidation | ErrorKind::InvalidValue, Some(option)) => {
            let origin = Origin::Option(option.long_name());
            let expected = std::error::Error::source(error).and_then(|source| source.downcast_ref());
            let error = match expected {
                Some(expected) => SettingError::unexpected(origin, value, *expected),
                None => SettingError::not_of_type(option, origin, value),
            };
            error.into()
        }
        (ErrorKind::InvalidValue, None) => UsageError::UnknownTo { command, word: value },
        (ErrorKind::InvalidUtf8, _) => {
            let odd = words.iter().find(|word| word.to_str().is_none());
            let word = odd.map_or(invalid, |word| word.to_string_lossy().into_owned());
            UsageError::UnknownTo { command, word }
        }
        _ if command == "help" && is_topic(&invalid) => UsageError::SecondTopic { word: invalid },
        _ => UsageError::UnknownTo { command, word: invalid },
    }
}

fn is_topic(word: &str) -> bool {
    help::TOPICS.contains(&word) || is_name(word)
}

/// The option in clap's `--watch[=<SECONDS>]` or `-i <LIST>`.
fn option_named(command: &str, invalid: &str) -> Option<&'static Arg> {
    let name = invalid.split([' ', '=', '[']).next()?.strip_prefix("--")?;
    let mut options = COMMANDS.find_subcommand(command)?.get_arguments();
    options.find(|option| option.get_long() == Some(name))
}
