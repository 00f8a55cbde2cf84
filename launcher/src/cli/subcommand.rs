//! The subcommands that launch nothing: clap reads them.

use std::ffi::{OsStr, OsString};
use std::sync::LazyLock;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Args, Command as ClapCommand, FromArgMatches, Subcommand};

use super::Command;
use super::device_request::probe_timeout;
use super::error::{CliError, Origin, UsageError};
use super::explain::{self, AskedForm};
use super::inspect::{Inspect, Manner, Subject};
use super::option::{FromText, LaunchOption};
use super::python_text::parse_float;
use super::settings::{Setting, variable_value};
use crate::control::command::{AnswerFormat, ControlCommand, ControlVerb, JobVerb};
use crate::device::DeviceType;
use crate::facts::Facts;
use crate::gc::{GcMode, GcRequest, OutputFormat};
use crate::spec::CliFlavor;

/// Less would keep a driver busy.
const SHORTEST_INTERVAL: f64 = 0.1;
/// A day.
const LONGEST_INTERVAL: f64 = 86_400.0;

#[derive(Debug, Subcommand)]
enum Query {
    /// Show the accelerators of this machine and what is wrong with them
    Devices(DevicesArgs),
    /// Show how the accelerators of this machine are joined
    Topo(TopoArgs),
    /// List the jobs of this user that run on this machine
    Ls(LsArgs),
    /// Show one job
    Status(StatusArgs),
    /// Stop a job
    Stop(StopArgs),
    /// Restart the workers of a job
    Restart(RestartArgs),
    /// Find and end what is left of jobs whose launcher is gone
    Gc(GcArgs),
    /// Say what a launch would start, and start nothing
    #[command(disable_help_flag = true)]
    Explain(ExplainArgs),
}

#[derive(Debug, Args)]
struct FormatArgs {
    /// For programs: one JSON object, `ls` an array of them
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct DevicesArgs {
    #[command(flatten)]
    format: FormatArgs,
    /// Look again every so many seconds [default: 2], and mark what has changed
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2",
        conflicts_with = "json",
        value_parser = parse_interval
    )]
    watch: Option<Duration>,
    /// Only these: cuda, rocm, xpu, hpu, npu, mps or cpu (processors only)
    #[arg(long, alias = "device_type", value_name = "TYPE", value_parser = parse_value::<DeviceType>)]
    device_type: Option<DeviceType>,
    /// Only these, as in nvidia-smi: indices, UUIDs or their beginnings, PCI addresses
    #[arg(short, long, value_name = "LIST", value_delimiter = ',')]
    id: Vec<String>,
    #[command(flatten)]
    probe: ProbeArgs,
}

#[derive(Debug, Args)]
struct TopoArgs {
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    probe: ProbeArgs,
    /// The matrix, as in `nvidia-smi topo -m`; it is shown anyway
    #[arg(short, long)]
    matrix: bool,
}

#[derive(Debug, Args)]
struct ProbeArgs {
    /// How long the library of a driver may take to answer [default: RANKRUN_PROBE_TIMEOUT, then 30]
    #[arg(long, alias = "probe_timeout", value_name = "SECONDS", value_parser = parse_value::<f64>)]
    probe_timeout: Option<f64>,
}

#[derive(Debug, Args)]
struct LsArgs {
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Debug, Args)]
struct StatusArgs {
    /// The job
    job: Option<String>,
    #[command(flatten)]
    format: FormatArgs,
    /// Say by the exit status alone whether the job runs well
    #[arg(long)]
    check: bool,
}

#[derive(Debug, Args)]
struct StopArgs {
    /// The job
    job: String,
    /// Return after the end of the job
    #[arg(long)]
    wait: bool,
}

#[derive(Debug, Args)]
struct RestartArgs {
    /// The job
    job: String,
}

#[derive(Debug, Args)]
struct GcArgs {
    /// Only list them
    #[arg(long, alias = "dry_run")]
    dry_run: bool,
    /// End also the processes that did not inherit the number of the job
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Debug, Args)]
struct ExplainArgs {
    /// For programs: one JSON object
    #[arg(long, conflicts_with = "script")]
    json: bool,
    /// A shell script that runs this worker by hand
    #[arg(long, value_name = "RANK", allow_hyphen_values = true, value_parser = parse_value::<i128>)]
    script: Option<i128>,
    /// The command line, with or without the name of the command
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

static QUERIES: LazyLock<ClapCommand> = LazyLock::new(|| {
    let command = ClapCommand::new("rankrun").no_binary_name(true).disable_help_subcommand(true);
    let mut command = Query::augment_subcommands(command).args_override_self(true);
    command.build();
    command
});

/// The first words that ask a question or act on what runs.
pub(super) const WORDS: [&str; 8] = ["devices", "topo", "ls", "status", "stop", "restart", "gc", "explain"];

/// The subcommand that the words begin with.
pub(super) fn subcommand(words: &[OsString]) -> Option<&'static str> {
    let first = words.first()?;
    WORDS.into_iter().find(|word| first == word)
}

/// Whether the words begin with one of these subcommands.
pub(super) fn is_subcommand(words: &[OsString]) -> bool {
    subcommand(words).is_some()
}

/// The options of a subcommand, by their long names.
pub(super) fn options_of(command: &str) -> Vec<&'static str> {
    let command = QUERIES.find_subcommand(command);
    command.into_iter().flat_map(ClapCommand::get_arguments).filter_map(Arg::get_long).collect()
}

/// Parses the words; the first is the subcommand.
///
/// # Errors
/// A word that the subcommand does not know, or a value that it does not take.
pub(super) fn interpret(argv0: &OsStr, words: &[OsString], facts: &Facts) -> Result<Command, CliError> {
    let name = subcommand(words).unwrap_or_default();
    // Also behind a mistake.
    if name != "explain" && words.iter().any(|word| word == "-h" || word == "--help") {
        return Ok(Command::Print(help(name).to_owned()));
    }
    let matches = QUERIES.clone().try_get_matches_from(words);
    let query = matches.and_then(|matches| Query::from_arg_matches(&matches)).map_err(|error| {
        let error = usage_error(name, words, &error);
        CliError::Usage { cli_flavor: CliFlavor::Rankrun, error }
    })?;
    Ok(match query {
        Query::Devices(args) => {
            let form = |json| if json { Manner::Json } else { Manner::Text };
            let manner = args.watch.map_or_else(|| form(args.format.json), Manner::Watch);
            let ids = args.id.iter().map(|id| id.trim().to_owned()).collect();
            let subject = Subject::Devices { kind: args.device_type, ids };
            Command::Inspect(Inspect { subject, manner, limit: args.probe.limit(facts)? })
        }
        Query::Topo(args) => {
            let manner = if args.format.json { Manner::Json } else { Manner::Text };
            Command::Inspect(Inspect { subject: Subject::Topo, manner, limit: args.probe.limit(facts)? })
        }
        Query::Ls(args) => control(ControlVerb::List, None, args.format.json),
        Query::Status(args) => {
            let verb = if args.check { JobVerb::Check } else { JobVerb::Status };
            control(ControlVerb::Job(verb), args.job, args.format.json)
        }
        Query::Stop(args) => {
            let verb = if args.wait { JobVerb::StopAndWait } else { JobVerb::Stop };
            control(ControlVerb::Job(verb), Some(args.job), false)
        }
        Query::Restart(args) => control(ControlVerb::Job(JobVerb::Restart), Some(args.job), false),
        Query::Gc(args) => {
            let mode = match args {
                GcArgs { dry_run: true, .. } => GcMode::List,
                GcArgs { force: true, .. } => GcMode::EndAll,
                _ => GcMode::End,
            };
            let format = if args.format.json { OutputFormat::Json } else { OutputFormat::Text };
            Command::Gc(GcRequest { mode, format })
        }
        Query::Explain(args) => {
            let json = if args.json { AskedForm::Json } else { AskedForm::Text };
            let form = args.script.map_or(json, AskedForm::Script);
            // clap swallows a `--`, which is the launch's.
            let start = words.len() - args.words.len();
            let start = if words[start - 1] == "--" { start - 1 } else { start };
            return explain::interpret(argv0, form, &words[start..], facts);
        }
    })
}

fn control(verb: ControlVerb, job: Option<String>, json: bool) -> Command {
    let format = if json { AnswerFormat::Json } else { AnswerFormat::Text };
    Command::Control(ControlCommand { verb, job, format })
}

impl ProbeArgs {
    fn limit(&self, facts: &Facts) -> Result<Duration, CliError> {
        let origin = Origin::Option("probe-timeout");
        let typed = self.probe_timeout.map(|value| Setting { origin, value });
        probe_timeout(typed.map_or_else(|| variable_value("probe-timeout", facts), |typed| Ok(Some(typed)))?)
    }
}

/// The text of a subcommand's `--help`.
fn help(command: &str) -> &'static str {
    match command {
        "devices" => include_str!("help_devices.txt"),
        "topo" => include_str!("help_topo.txt"),
        "ls" => include_str!("help_ls.txt"),
        "status" => include_str!("help_status.txt"),
        "stop" => include_str!("help_stop.txt"),
        "restart" => include_str!("help_restart.txt"),
        _ => include_str!("help_gc.txt"),
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
        (ErrorKind::MissingRequiredArgument, _) => UsageError::MissingJob { command },
        (ErrorKind::ArgumentConflict, _) if command == "explain" => UsageError::TwoForms,
        (ErrorKind::ArgumentConflict, _) => UsageError::WatchedJson,
        (ErrorKind::TooManyValues, Some(option)) => UsageError::UnwantedValue { option, value },
        (ErrorKind::ValueValidation, Some(option)) if option.long_name() == "watch" => {
            UsageError::BadInterval { value }
        }
        (ErrorKind::InvalidValue, Some(option)) if value.is_empty() => UsageError::MissingValue { option },
        (ErrorKind::ValueValidation | ErrorKind::InvalidValue, Some(option)) => {
            UsageError::BadValue { option, origin: Origin::Option(option.long_name()), value }
        }
        (ErrorKind::InvalidUtf8, _) => {
            let odd = words.iter().find(|word| word.to_str().is_none());
            UsageError::UnknownTo {
                command,
                word: odd.map_or(invalid, |word| word.to_string_lossy().into_owned()),
            }
        }
        _ => UsageError::UnknownTo { command, word: invalid },
    }
}

/// The option in clap's `--watch[=<SECONDS>]` or `-i <LIST>`.
fn option_named(command: &str, invalid: &str) -> Option<&'static Arg> {
    let name = invalid.split([' ', '=', '[']).next()?.trim_start_matches('-');
    let mut options = QUERIES.find_subcommand(command)?.get_arguments();
    options.find(|option| option.get_long() == Some(name))
}

/// A value by the rules of its type.
fn parse_value<T: FromText>(text: &str) -> Result<T, BadValue> {
    T::from_text(text.as_ref()).ok_or(BadValue)
}

fn parse_interval(text: &str) -> Result<Duration, BadValue> {
    let seconds =
        parse_float(text).filter(|seconds| (SHORTEST_INTERVAL..=LONGEST_INTERVAL).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or(BadValue)
}

/// The value is not of the option's type; the message says which type.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("bad value")]
struct BadValue;

#[cfg(test)]
mod tests;
