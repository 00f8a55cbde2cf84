//! argv and environment → `LaunchSpec`.
//!
//! The name of the program picks the options: `torchrun` has torchrun's, any other name has ours too. A subcommand is
//! recognised only as the first word, so that every path, also `./run`, is an entrypoint. `normalise` applies argparse's
//! rules, `settings` reads the words with clap and knows which value counts, `resolve` and its neighbours decide.
//! Nothing is started, made or changed here, and nothing is printed.

pub mod error;
pub mod option;
pub mod python;

mod behind;
mod by_hand;
mod completion;
mod config;
mod contradiction;
mod device_request;
mod endpoint;
mod entrypoint;
mod explain;
mod help;
mod inspect;
mod limits;
mod logs;
mod nccl;
mod nesting;
mod network;
mod normalise;
mod other_language;
mod plugins;
mod python_text;
mod rankrun;
mod rendezvous;
mod resolve;
mod restart;
mod scheduler;
mod separate_jobs;
mod settings;
mod shebang;
mod signals;
mod stop;
mod subcommand;
mod suggest;
mod torchrun;
mod values;

use std::ffi::{OsStr, OsString};
use std::path::Path;

pub use by_hand::Attach;
pub use error::{CliError, SettingError, UsageError};
pub use explain::{Explain, Form, Origins, RunIdLife};
pub use inspect::{Inspect, Manner, Subject};
pub use logs::parents_of_error_files;

use crate::control::command::ControlCommand;
use crate::facts::Facts;
use crate::gc::GcRequest;
use crate::notice::Notice;
use crate::spec::{CliFlavor, LaunchSpec, Verbosity};
use settings::{Parsed, parse};

/// What the command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Start workers.
    Launch(Box<Launch>),
    /// Say what would be launched.
    Explain(Box<Explain>),
    /// Be the wrapper of a worker that was started by hand.
    Attach(Attach),
    /// Print this on stdout and exit 0.
    Print(String),
    /// Look at the machine.
    Inspect(Inspect),
    /// Find and end what a crash left of jobs.
    Gc(GcRequest),
    /// Ask a running job, or act on it.
    Control(ControlCommand),
    /// `rankrun shim` with these words behind it.
    Shim(Vec<OsString>),
}

/// A launch, and what to say about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// What is launched.
    pub spec: LaunchSpec,
    /// How much the launcher says.
    pub verbosity: Verbosity,
    /// What to say once, in this order.
    pub notices: Vec<Notice>,
}

/// The name by which the launcher was called decides its flavor.
#[must_use]
pub fn cli_flavor(argv0: &OsStr) -> CliFlavor {
    match Path::new(argv0).file_name() {
        Some(name) if name == "torchrun" => CliFlavor::Torchrun,
        _ => CliFlavor::Rankrun,
    }
}

/// Reads the command line; `argv` begins with the name by which we were called.
///
/// # Errors
/// Everything that can be known to fail before anything starts.
pub fn interpret(argv: &[OsString], facts: &Facts) -> Result<Command, CliError> {
    let (argv0, words) = match argv.split_first() {
        Some((argv0, words)) => (argv0.as_os_str(), words),
        None => (OsStr::new(""), argv),
    };
    let cli_flavor = cli_flavor(argv0);
    if let Some(attach) = by_hand::parse_attach(words) {
        return Ok(Command::Attach(attach));
    }
    if let [first, name] = words
        && cli_flavor == CliFlavor::Rankrun
        && first == "help"
        && !facts.exists(Path::new("help"))
        && let Some(text) = name.to_str().and_then(help::topic)
    {
        return Ok(Command::Print(text));
    }
    let asked = if cli_flavor == CliFlavor::Rankrun { as_option(words, facts) } else { None };
    let words = asked.as_deref().unwrap_or(words);
    if cli_flavor == CliFlavor::Rankrun && subcommand::is_subcommand(words) {
        return subcommand::interpret(argv0, words, facts);
    }
    command(cli_flavor, argv0, words, facts)
}

/// `help`, `help devices` and `version` as the option that was meant, where no file has the word's name.
fn as_option(words: &[OsString], facts: &Facts) -> Option<Vec<OsString>> {
    let texts: Vec<&str> = words.iter().map(|word| word.to_str()).collect::<Option<_>>()?;
    let option = match texts.as_slice() {
        ["help"] | ["help", "help" | "version"] => vec!["--help".into()],
        ["help", about] if suggest::SUBCOMMANDS.contains(about) => vec![(*about).into(), "--help".into()],
        ["help", _] => vec!["--help".into()],
        ["version"] => vec!["--version".into()],
        _ => return None,
    };
    (!facts.exists(Path::new(texts[0]))).then_some(option)
}

/// Whether the words only ask what would be: whatever comes of it, nothing is launched.
#[must_use]
pub fn asks(argv: &[OsString]) -> bool {
    let [argv0, words @ ..] = argv else { return false };
    cli_flavor(argv0) == CliFlavor::Rankrun && subcommand::is_subcommand(words)
}

/// What a command line of that name asks for; not an explanation.
fn command(
    cli_flavor: CliFlavor,
    argv0: &OsStr,
    words: &[OsString],
    facts: &Facts,
) -> Result<Command, CliError> {
    let words = match words.split_first() {
        Some((first, rest)) if cli_flavor == CliFlavor::Rankrun && first == "run" => rest,
        Some((first, rest)) if cli_flavor == CliFlavor::Rankrun && first == "shim" => {
            return Ok(Command::Shim(rest.to_vec()));
        }
        _ => words,
    };
    match parse(cli_flavor, words)? {
        Parsed::Help(length) => Ok(Command::Print(help::help(cli_flavor, length, None))),
        Parsed::Version => Ok(Command::Print(help::version())),
        Parsed::Completion(shell) => Ok(Command::Print(completion::script(cli_flavor, shell))),
        Parsed::Launch(line) => {
            let launch = resolve::resolve(argv0, *line, facts)?;
            Ok(Command::Launch(Box::new(launch)))
        }
    }
}

#[cfg(test)]
mod tests;
