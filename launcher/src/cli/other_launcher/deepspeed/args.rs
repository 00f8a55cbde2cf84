//! The options of `deepspeed` (2.2 of docs/dev/launchers-contract.md). Names have underscores, as in its own help.

use std::ffi::OsString;
use std::marker::PhantomData;
use std::sync::LazyLock;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Args, Command, FromArgMatches};

use crate::cli::device_request::MAX_WORKERS;
use crate::cli::error::{CliError, Origin, SettingError, UsageError};
use crate::cli::help::at_width;
use crate::cli::normalise::{Refusal, normalise};
use crate::cli::subcommand::TextParser;
use crate::cli::suggest::nearest_of;
use rankrun_core::spec::CliFlavor;

const USAGE: &str = "rankrun deepspeed [OPTIONS] SCRIPT [ARGS]...";
const ABOUT: &str = "Start a DeepSpeed training by the command line of `deepspeed`, on this machine or on the hosts of a file";
const BEHIND: &str = "\
Workers get the variables and the argument of deepspeed, and those of rankrun. `rankrun explain deepspeed
...` shows both and starts nothing. docs/deepspeed.md has the differences.
";

static COMMAND: LazyLock<Command> = LazyLock::new(|| {
    let command = Command::new("deepspeed").no_binary_name(true).disable_help_flag(true);
    let command = DeepspeedArgs::augment_args(command).args_override_self(true);
    command.about(ABOUT).override_usage(USAGE).after_help(BEHIND).hide_possible_values(true)
});

/// The command line of `deepspeed`.
#[derive(Debug, Clone, Default, Args)]
#[command(rename_all = "snake_case")]
#[expect(clippy::struct_excessive_bools, reason = "flags of the command line")]
pub(super) struct DeepspeedArgs {
    /// Print this help and exit
    #[arg(short, long, action = ArgAction::Help)]
    help: Option<bool>,
    /// Hosts, a line `NAME slots=N` for each; others than this machine are started by ssh
    #[arg(short = 'H', long, value_name = "FILE")]
    pub(super) hostfile: Option<String>,
    /// Use these devices alone, in this order, as in localhost:3,1
    #[arg(short, long, value_name = "HOST[:ID,…]")]
    pub(super) include: Option<String>,
    /// Use all devices but these
    #[arg(short, long, value_name = "HOST[:ID,…]")]
    pub(super) exclude: Option<String>,
    /// The first N hosts of the host file
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = TextParser::<i128>(PhantomData))]
    pub(super) num_nodes: Option<i128>,
    /// The first N devices
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        overrides_with = "num_accelerators",
        value_parser = TextParser::<i128>(PhantomData)
    )]
    num_gpus: Option<i128>,
    /// The same as --num_gpus; the last one counts
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        overrides_with = "num_gpus",
        value_parser = TextParser::<i128>(PhantomData)
    )]
    num_accelerators: Option<i128>,
    /// MASTER_PORT [default: 29500]
    #[arg(long, value_name = "PORT", value_parser = TextParser::<i128>(PhantomData))]
    pub(super) master_port: Option<i128>,
    /// MASTER_ADDR with a host file; 127.0.0.1 without one
    #[arg(long, value_name = "HOST")]
    pub(super) master_addr: Option<String>,
    /// SCRIPT is a Python module
    #[arg(long)]
    pub(super) module: bool,
    /// SCRIPT is a program
    #[arg(long)]
    pub(super) no_python: bool,
    /// Do not give SCRIPT the argument --local_rank=N
    #[arg(long)]
    pub(super) no_local_rank: bool,
    /// Write the output of each worker to files below DIR instead of the console
    #[arg(long, value_name = "DIR")]
    pub(super) enable_each_rank_log: Option<String>,
    /// Give each worker its share of the cores
    #[arg(long)]
    pub(super) bind_cores_to_rank: bool,
    /// The cores to share, as in 1,3-5
    #[arg(long, value_name = "LIST")]
    pub(super) bind_core_list: Option<String>,
    /// How much the launcher says; info is rankrun's usual
    #[arg(long, value_name = "debug|info|warning|error|critical", value_parser = ["debug", "info", "warning", "error", "critical"])]
    pub(super) log_level: Option<String>,
    /// The same as --log_level error
    #[arg(short, long)]
    pub(super) quiet: bool,
    /// Refused: rankrun tunes nothing
    #[arg(long, value_name = "tune|run", value_parser = ["tune", "run"])]
    pub(super) autotuning: Option<String>,
    /// With --no_ssh: the place of this machine among the hosts
    #[arg(long, value_name = "R", allow_negative_numbers = true, value_parser = TextParser::<i128>(PhantomData))]
    pub(super) node_rank: Option<i128>,
    /// Start only the node of --node_rank, on this machine
    #[arg(long)]
    pub(super) no_ssh: bool,
    /// No effect: ssh says why it cannot reach a host
    #[arg(long)]
    pub(super) no_ssh_check: bool,
    /// Start by ssh also where this machine is the only host
    #[arg(long)]
    pub(super) force_multi: bool,
    /// No effect: ssh starts the hosts
    #[arg(long, value_name = "NAME")]
    pub(super) launcher: Option<String>,
    /// No effect: ssh starts the hosts
    #[arg(long, value_name = "TEXT")]
    pub(super) launcher_args: Option<String>,
    /// The port of the hosts' ssh servers
    #[arg(long, value_name = "PORT", value_parser = TextParser::<i128>(PhantomData))]
    pub(super) ssh_port: Option<i128>,
    /// Refused with other hosts: export PATH instead
    #[arg(long, value_name = "FILE")]
    pub(super) venv_script: Option<String>,
    /// No effect: `rankrun ls` shows the pid
    #[arg(long)]
    pub(super) save_pid: bool,
    /// The script and its arguments.
    #[arg(last = true, hide = true)]
    pub(super) program: Vec<OsString>,
}

/// The help of the command; without a width at the terminal's.
pub(in crate::cli) fn help(width: Option<usize>) -> String {
    at_width(COMMAND.clone(), width).render_help().to_string()
}

/// What the words ask for.
#[derive(Debug)]
pub(super) enum Parsed {
    Launch(Box<DeepspeedArgs>),
    Help(String),
}

/// Reads the words behind `deepspeed`.
///
/// # Errors
/// What argparse calls a usage error.
pub(super) fn parse(words: &[OsString]) -> Result<Parsed, CliError> {
    let usage = |error: UsageError| {
        let hint = match &error {
            UsageError::MissingEntrypoint { .. } => {
                "name the script behind the options, as in `deepspeed --num_gpus 2 train.py`".to_owned()
            }
            UsageError::Unknown { words } => unknown_hint(words),
            _ => return CliError::Usage { cli_flavor: CliFlavor::Rankrun, error },
        };
        CliError::OtherUsage { message: error.to_string(), hint }
    };
    let normalised = normalise(words, &COMMAND).map_err(|Refusal { error, .. }| usage(error))?;
    let matches = match COMMAND.clone().try_get_matches_from(&normalised) {
        Ok(matches) => matches,
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {
            return Ok(Parsed::Help(help(None)));
        }
        Err(error) => return Err(usage(value_error(&error, words))),
    };
    let args =
        DeepspeedArgs::from_arg_matches(&matches).map_err(|error| usage(value_error(&error, words)))?;
    Ok(Parsed::Launch(Box::new(args)))
}

/// The option of this command that an unknown word may mean. Those of rankrun are not among them.
fn unknown_hint(words: &[String]) -> String {
    let names = || COMMAND.get_arguments().filter_map(Arg::get_long);
    let typed =
        |word: &String| word.split('=').next().unwrap_or_default().trim_start_matches('-').replace('-', "_");
    let meant = |word: String| match word.as_str() {
        "m" => Some("module"),
        "nproc_per_node" | "num_processes" | "n" => Some("num_gpus"),
        "nnodes" => Some("num_nodes"),
        word => nearest_of(word, names()),
    };
    match words.iter().map(typed).find_map(meant) {
        Some(meant) => format!("did you mean `--{meant}`?"),
        None => "an option of the program stands behind the script; `rankrun deepspeed --help` lists those of the launch"
            .to_owned(),
    }
}

/// The value that clap refuses, and the type of its option.
fn value_error(error: &clap::Error, words: &[OsString]) -> UsageError {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    let long = text(ContextKind::InvalidArg).trim_start_matches("--").split(' ').next().unwrap_or_default();
    match COMMAND.get_arguments().find(|option| option.get_long() == Some(long)) {
        Some(option) => {
            let origin = Origin::Option(option.get_long().unwrap_or_default());
            SettingError::not_of_type(option, origin, text(ContextKind::InvalidValue)).into()
        }
        // Of a value that is not Unicode clap names no option.
        None => UsageError::Unknown {
            words: words.iter().filter(|word| word.to_str().is_none()).map(lossy).collect(),
        },
    }
}

fn lossy(word: &OsString) -> String {
    word.to_string_lossy().into_owned()
}

impl DeepspeedArgs {
    /// `--num_gpus` or `--num_accelerators`
    pub(super) fn device_count(&self) -> Option<i128> {
        self.num_accelerators.or(self.num_gpus)
    }

    /// The same as a number of devices. 0 and less are as if it was not given.
    ///
    /// # Errors
    /// No launch has so many workers.
    pub(super) fn first_devices(&self) -> Result<Option<u32>, CliError> {
        let Some(count) = self.device_count().filter(|count| *count > 0) else { return Ok(None) };
        let name = if self.num_accelerators.is_some() { "num_accelerators" } else { "num_gpus" };
        worker_limit(count, option(name)).map(Some)
    }

    /// The options that only a start on other machines needs.
    pub(super) fn options_of_remote_start(&self) -> Vec<&'static str> {
        let given = [
            ("--no_ssh", self.no_ssh),
            ("--no_ssh_check", self.no_ssh_check),
            ("--force_multi", self.force_multi),
            ("--launcher", self.launcher.is_some()),
            ("--launcher_args", self.launcher_args.is_some()),
            ("--ssh_port", self.ssh_port.is_some()),
            ("--venv_script", self.venv_script.is_some()),
        ];
        given.into_iter().filter(|(_, is_given)| *is_given).map(|(option, _)| option).collect()
    }
}

/// The number, unless no launch has so many workers.
pub(super) fn worker_limit(count: i128, origin: Origin) -> Result<u32, CliError> {
    let problem = format!("and a launch has at most {MAX_WORKERS} workers");
    let error = || SettingError::of_value(origin, count, problem, "give a smaller number").into();
    u32::try_from(count).ok().filter(|_| count <= MAX_WORKERS).ok_or_else(error)
}

/// An option of this command.
pub(super) fn option(long: &'static str) -> Origin {
    debug_assert!(COMMAND.get_arguments().any(|arg: &Arg| arg.get_long() == Some(long)), "{long}");
    Origin::Option(long)
}
