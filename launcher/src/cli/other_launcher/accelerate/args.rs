//! The command line of `accelerate launch`, which clap reads after `normalise` has applied argparse's rules.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::LazyLock;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use super::python_value::PythonValue;
use super::value::{parse_count, parse_port, parse_precision, parse_rank, parse_seconds};
use super::variable_option::typed_rows;
use crate::cli::error::{CliError, UsageError};
use crate::cli::help::at_width;
use crate::cli::normalise::normalise;
use crate::cli::suggest::nearest_of;

/// The options that rankrun acts on. Each has a value only where it was given.
#[derive(Debug, Clone, Default, PartialEq, Args)]
#[expect(clippy::struct_excessive_bools, reason = "one for each flag of the command line")]
pub(super) struct AccelerateArgs {
    /// Print this help and exit
    #[arg(short, long, action = ArgAction::Help)]
    pub(super) help: Option<bool>,
    /// Defaults of these options, in YAML or JSON [default: the file that `accelerate config` has written]
    #[arg(long, value_name = "FILE", help_heading = START)]
    pub(super) config_file: Option<OsString>,
    /// Accepted, without effect: there is never a traceback
    #[arg(short, long, help_heading = START)]
    pub(super) quiet: bool,
    /// SCRIPT is a Python module, run as `python -m`
    #[arg(short, long, help_heading = START)]
    pub(super) module: bool,
    /// SCRIPT is a program
    #[arg(long, help_heading = START)]
    pub(super) no_python: bool,
    /// ACCELERATE_DEBUG_MODE=true: the program checks the shapes of its collectives
    #[arg(long, help_heading = START)]
    pub(super) debug: bool,
    /// Train on the CPUs, with as many processes as asked for
    #[arg(long, help_heading = SIZE)]
    pub(super) cpu: bool,
    /// One process for each accelerator
    #[arg(long, help_heading = SIZE)]
    pub(super) multi_gpu: bool,
    /// Processes on all machines together [default: one for each accelerator]
    #[arg(long, value_name = "N", value_parser = parse_count, help_heading = SIZE)]
    pub(super) num_processes: Option<u32>,
    /// Accelerators of this machine, in this order, counted without CUDA_VISIBLE_DEVICES [default: all]
    #[arg(long, value_name = "LIST", help_heading = SIZE)]
    pub(super) gpu_ids: Option<String>,
    /// OMP_NUM_THREADS [default: the inherited value, else 1; on CPUs an even share of them]
    #[arg(long, value_name = "N", value_parser = parse_count, help_heading = SIZE)]
    pub(super) num_cpu_threads_per_process: Option<u32>,
    /// ACCELERATE_CPU_AFFINITY=1: the program binds itself to CPUs near its GPU
    #[arg(long, help_heading = SIZE)]
    pub(super) enable_cpu_affinity: bool,
    /// Machines in the job, each with a launcher of its own [default: 1]
    #[arg(long, value_name = "N", value_parser = parse_count, help_heading = MACHINES)]
    pub(super) num_machines: Option<u32>,
    /// Rank of this machine, from 0
    #[arg(long, value_name = "N", value_parser = parse_rank, help_heading = MACHINES)]
    pub(super) machine_rank: Option<u32>,
    /// Address of the machine with rank 0
    #[arg(long, value_name = "HOST", help_heading = MACHINES)]
    pub(super) main_process_ip: Option<String>,
    /// Port on the machine with rank 0 [default: 29500; on one machine a free port]
    #[arg(long, value_name = "PORT", value_parser = parse_port, help_heading = MACHINES)]
    pub(super) main_process_port: Option<u16>,
    /// Accepted, without effect
    #[arg(long, help_heading = MACHINES)]
    pub(super) same_network: bool,
    /// static, or c10d: the machines then need no rank
    #[arg(long, value_name = "NAME", help_heading = MACHINES)]
    pub(super) rdzv_backend: Option<String>,
    /// Settings of the rendezvous, as in join_timeout=600
    #[arg(long, value_name = "K=V,…", help_heading = MACHINES)]
    pub(super) rdzv_conf: Option<String>,
    /// How often the processes start again after one has failed [default: 0]
    #[arg(long, value_name = "N", value_parser = parse_rank, help_heading = WATCH)]
    pub(super) max_restarts: Option<u32>,
    /// Accepted, without effect: exits are noticed at once
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, help_heading = WATCH)]
    pub(super) monitor_interval: Option<String>,
    /// ROLE_NAME of the processes [default: default]
    #[arg(long, value_name = "NAME", help_heading = WATCH)]
    pub(super) role: Option<String>,
    /// Streams that go to files and to the console: 0 none, 1 stdout, 2 stderr, 3 both [default: 0]
    #[arg(short, long, value_name = "STREAMS", help_heading = WATCH)]
    pub(super) tee: Option<String>,
    /// Base of the log folders
    #[arg(long, value_name = "DIR", help_heading = WATCH)]
    pub(super) log_dir: Option<OsString>,
    /// no, fp16, bf16 or fp8
    #[arg(long, value_name = "KIND", value_parser = parse_precision, help_heading = TRAINING)]
    pub(super) mixed_precision: Option<String>,
    /// The program trains with DeepSpeed
    #[arg(long, help_heading = TRAINING)]
    pub(super) use_deepspeed: bool,
    /// The program trains with FSDP
    #[arg(long, help_heading = TRAINING)]
    pub(super) use_fsdp: bool,
    /// The program trains with Megatron-LM
    #[arg(long, help_heading = TRAINING)]
    pub(super) use_megatron_lm: bool,
    /// The program divides its processes by --parallelism-config-*
    #[arg(long, help_heading = TRAINING)]
    pub(super) use_parallelism_config: bool,
}

const START: &str = "Program";
const SIZE: &str = "Processes and devices";
const MACHINES: &str = "Machines";
const WATCH: &str = "Restarts and logs";
const TRAINING: &str = "Training";

const ABOUT: &str = "Start the processes of a training program as `accelerate launch` does";
const USAGE: &str = "rankrun accelerate launch [OPTIONS] SCRIPT [ARGS]...";
const BEHIND: &str = "\
--dynamo-*, --fsdp-*, --deepspeed-*, --megatron-lm-*, --fp8-*, --parallelism-config-*, --zero-stage, --zero3-*, --offload-* \
and --gradient-* are accepted too: the program finds them in its environment. Names may be written with underscores. \
`rankrun convert accelerate launch ...` prints the launch in rankrun's words, `rankrun explain accelerate launch ...` \
what it would start. docs/accelerate.md says what differs from accelerate.";

/// The options that only start something in a cloud or on TPUs, and whether they take a value.
const REFUSED: &[(&str, bool)] = &[
    ("tpu", false),
    ("tpu_cluster", false),
    ("no_tpu_cluster", false),
    ("tpu_use_sudo", false),
    ("vm", true),
    ("env", true),
    ("main_training_function", true),
    ("downcast_bf16", false),
    ("aws_access_key_id", true),
    ("aws_secret_access_key", true),
    ("mpirun_hostfile", true),
];

pub(super) const MPIRUN_HINT: &str = "run the same command on each machine, with `--num_machines`, `--machine_rank` and `--main_process_ip` in \
     place of the host file";

static COMMAND: LazyLock<Command> = LazyLock::new(|| {
    let command = Command::new("accelerate").no_binary_name(true).override_usage(USAGE);
    let command = AccelerateArgs::augment_args(command).args(typed_rows().map(|row| row.arg()));
    let refused = REFUSED.iter().map(|(name, takes_value)| {
        let arg = Arg::new(*name).long(name.replace('_', "-")).hide(true);
        if *takes_value {
            arg.value_parser(clap::value_parser!(OsString))
        } else {
            arg.action(ArgAction::SetTrue)
        }
    });
    command.args(refused).about(ABOUT).disable_help_flag(true).args_override_self(true)
});

/// What the command line says.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct TypedLine {
    pub(super) args: AccelerateArgs,
    /// The options that only set variables, as far as they were typed.
    pub(super) variables: BTreeMap<&'static str, PythonValue>,
    /// The script and its arguments.
    pub(super) program: Vec<OsString>,
}

/// Reads the words behind `launch`; nothing where they ask for help.
///
/// # Errors
/// A usage error, with exit status 2, or an option that rankrun refuses.
pub(super) fn parse(words: &[OsString]) -> Result<Option<TypedLine>, CliError> {
    let mut normalised = normalise(words, &COMMAND).map_err(|refusal| usage_error(&refusal.error))?;
    let end = normalised.iter().position(|word| word == "--").unwrap_or(normalised.len());
    let program = normalised.split_off(end);
    if normalised.last().is_some_and(|word| word == "--help" || word == "-h") {
        return Ok(None);
    }
    let matches = COMMAND.clone().try_get_matches_from(&normalised).map_err(|error| value_error(&error))?;
    if let Some((name, _)) = REFUSED.iter().find(|(name, _)| is_typed(&matches, name)) {
        return Err(refuse_option(name));
    }
    let args = AccelerateArgs::from_arg_matches(&matches).map_err(|error| value_error(&error))?;
    let variables = typed_rows().filter(|row| is_typed(&matches, row.name)).filter_map(|row| {
        let value = if row.is_flag() { Some(&PythonValue::Bool(true)) } else { matches.get_one(row.name) };
        Some((row.name, value?.clone()))
    });
    let program = program.get(1..).unwrap_or_default().to_vec();
    Ok(Some(TypedLine { args, variables: variables.collect(), program }))
}

/// The help of the command; without a width at the terminal's.
pub(in crate::cli) fn help(width: Option<usize>) -> String {
    let command = at_width(COMMAND.clone(), width);
    let script = Arg::new("script").value_name("SCRIPT").required(true).help("The training program");
    command.arg(script).after_help(BEHIND).render_help().to_string()
}

fn is_typed(matches: &ArgMatches, name: &str) -> bool {
    matches.value_source(name) == Some(clap::parser::ValueSource::CommandLine)
}

fn refuse_option(name: &str) -> CliError {
    let (problem, hint) = match name {
        "mpirun_hostfile" => ("would start mpirun, which rankrun does not", MPIRUN_HINT),
        name if name.starts_with("aws") => (
            "is for Amazon SageMaker, where rankrun starts nothing",
            "leave it out, or run `accelerate` itself",
        ),
        _ => ("is for TPUs, which rankrun does not launch on", "leave it out, or run `accelerate` itself"),
    };
    CliError::refused(format!("`--{name}` {problem}"), hint)
}

/// The mistake in the form of the command line.
fn usage_error(error: &UsageError) -> CliError {
    let hint = match error {
        UsageError::Unknown { words } => unknown_hint(words),
        UsageError::MissingEntrypoint { .. } => {
            "name the script behind the options, as in `accelerate launch --num_processes 2 train.py`"
                .to_owned()
        }
        UsageError::UnwantedValue { .. } => "write the flag alone".to_owned(),
        _ => "`rankrun accelerate launch --help` lists the options".to_owned(),
    };
    CliError::OtherUsage { message: error.to_string(), hint }
}

fn unknown_hint(words: &[String]) -> String {
    let names = || {
        COMMAND.get_arguments().filter(|arg| !arg.is_hide_set() || find_name(arg)).filter_map(Arg::get_long)
    };
    let typed =
        |word: &String| word.split('=').next().unwrap_or_default().trim_start_matches('-').replace('_', "-");
    let meant = words.iter().find_map(|word| {
        let typed = typed(word);
        let begun = || names().find(|name| typed.len() > 3 && name.starts_with(typed.as_str()));
        nearest_of(&typed, names()).or_else(begun)
    });
    match meant {
        Some(meant) => format!("did you mean `--{}`?", meant.replace('-', "_")),
        None => "an option of the program stands behind the script; `rankrun accelerate launch --help` lists those of \
                 the launch"
            .to_owned(),
    }
}

fn find_name(arg: &Arg) -> bool {
    typed_rows().any(|row| arg.get_id() == row.name)
}

/// The mistake in a value.
fn value_error(error: &clap::Error) -> CliError {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    let option = text(ContextKind::InvalidArg);
    let name = option.split(' ').next().unwrap_or_default().trim_start_matches('-').replace('-', "_");
    let value = text(ContextKind::InvalidValue);
    let reason =
        std::error::Error::source(error).map_or_else(|| "valid UTF-8".to_owned(), ToString::to_string);
    CliError::OtherUsage {
        message: format!("`--{name}` is `{value}`, which is not {reason}"),
        hint: format!("give `--{name}` {reason}"),
    }
}
