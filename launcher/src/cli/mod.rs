//! argv and environment → `LaunchSpec`.
//!
//! The name of the program picks the options: `torchrun` has torchrun's, any other name has ours too. A subcommand is
//! recognised only as the first word, so that every path, also `./run`, is an entrypoint. `normalise` applies
//! argparse's rules, `settings` reads the words with clap and knows which value counts, `resolve` and its neighbours
//! decide. Nothing is started, made or changed here, and nothing is printed.

mod error;
mod option;
pub(crate) mod other_launcher;

mod behind;
mod completion;
mod config;
mod contradiction;
mod device_request;
mod endpoint;
mod entrypoint;
mod exclude_node;
mod explain;
mod external_worker;
mod help;
mod hosts;
mod limits;
mod logs;
mod man;
mod nccl;
mod nesting;
mod network;
mod nodelist;
mod normalise;
mod other_language;
mod plugins;
mod python;
mod python_text;
mod rankrun;
mod rendezvous;
mod resolve;
mod restart;
mod scheduled_job;
mod scheduler;
mod separate_jobs;
mod settings;
mod shebang;
mod signals;
mod stop;
mod subcommand;
mod suggest;
mod torchrun;
mod total_workers;
mod values;
mod wrap;

use std::ffi::{OsStr, OsString};
use std::path::Path;

pub(crate) use error::CliError;
pub(crate) use external_worker::Attach;

use rankrun_core::facts::Facts;
use rankrun_core::gc::GcRequest;
use rankrun_core::notice::Notice;
use rankrun_core::spec::{CliFlavor, LaunchSpec, Verbosity};
use rankrun_core::ssh::plan::FleetSpec;
use rankrun_tools::control::command::ControlCommand;
use rankrun_tools::explain::ExplainRequest;
use rankrun_tools::inspect::InspectRequest;
use rankrun_tools::shim::ShimRequest;
use settings::{CommandLine, ParsedArgs, config_path, merge, parse};

/// What the command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    /// Start workers.
    Launch(Box<Launch>),
    /// Start nothing: the job is to do without this node, which has this name.
    Excluded(String),
    /// Start launchers on other hosts by ssh.
    Fleet(Box<FleetSpec>),
    /// Say what would be launched.
    Explain(Box<ExplainRequest>),
    /// Be the wrapper of a worker that was started by hand.
    Attach(Attach),
    /// Print this on stdout and exit 0.
    Print(String),
    /// Look at the machine.
    Inspect(InspectRequest),
    /// Find and end what a crash left of jobs.
    Gc(GcRequest),
    /// Ask a running job, or act on it.
    Control(ControlCommand),
    /// Make rankrun the torchrun of a Python environment, or undo it.
    Shim(ShimRequest),
}

/// A launch, and what to say about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Launch {
    /// What is launched.
    pub spec: LaunchSpec,
    /// How much the launcher says.
    pub verbosity: Verbosity,
    /// What to say once, in this order.
    pub notices: Vec<Notice>,
}

/// The name by which the launcher was called decides its flavor.
#[must_use]
pub(crate) fn cli_flavor(argv0: &OsStr) -> CliFlavor {
    match Path::new(argv0).file_name() {
        Some(name) if name == "torchrun" => CliFlavor::Torchrun,
        _ => CliFlavor::Rankrun,
    }
}

/// Reads the command line; `argv` begins with the name by which we were called.
///
/// # Errors
/// Everything that can be known to fail before anything starts.
pub(crate) fn interpret(argv: &[OsString], facts: &Facts) -> Result<Command, CliError> {
    let (argv0, words) = match argv.split_first() {
        Some((argv0, words)) => (argv0.as_os_str(), words),
        None => (OsStr::new(""), argv),
    };
    if let Some(attach) = external_worker::parse_attach(words) {
        return Ok(Command::Attach(attach));
    }
    let cli_flavor = cli_flavor(argv0);
    if let Some(text) = completion::answer(words, facts).filter(|_| cli_flavor == CliFlavor::Rankrun) {
        return Ok(Command::Print(text));
    }
    match cli_flavor {
        CliFlavor::Rankrun => match subcommand::find_subcommand(words, facts) {
            Some(name) => subcommand::interpret(name, (argv0, words), facts),
            None => launch(CliFlavor::Rankrun, argv0, words, facts),
        },
        CliFlavor::Torchrun => launch(CliFlavor::Torchrun, argv0, words, facts),
    }
}

/// Whether the words are a query, which launches nothing even if it fails.
#[must_use]
pub(crate) fn asks(argv: &[OsString]) -> bool {
    let [argv0, words @ ..] = argv else { return false };
    cli_flavor(argv0) == CliFlavor::Rankrun && subcommand::is_query(words)
}

/// The launch that a command line of that name asks for, or a text about it.
fn launch(
    cli_flavor: CliFlavor,
    argv0: &OsStr,
    words: &[OsString],
    facts: &Facts,
) -> Result<Command, CliError> {
    answer(cli_flavor, parse(cli_flavor, words)?, |line| {
        let settings = merge(&line, facts, config::read(config_path(&line, facts), facts)?)?;
        if let Some(fleet) = hosts::resolve_fleet(&line, &settings)? {
            return Ok(Command::Fleet(Box::new(fleet)));
        }
        let launch = resolve::resolve(argv0, line, &settings)?;
        Ok(match exclude_node::excluded_name(&settings) {
            Some(name) => Command::Excluded(name),
            None => Command::Launch(Box::new(launch)),
        })
    })
}

/// The text that the words ask for, or what `command` makes of their launch.
fn answer(
    cli_flavor: CliFlavor,
    parsed: ParsedArgs,
    command: impl FnOnce(CommandLine) -> Result<Command, CliError>,
) -> Result<Command, CliError> {
    Ok(Command::Print(match parsed {
        ParsedArgs::Help(length) => help::help(cli_flavor, length, None),
        ParsedArgs::Version => help::version(),
        ParsedArgs::Completion(shell) => completion::script(cli_flavor, shell),
        ParsedArgs::Launch(line) => return command(*line),
    }))
}

#[cfg(test)]
mod tests;
