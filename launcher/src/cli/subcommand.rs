//! The subcommands: their arguments and help, which clap reads. `interpret` turns them into commands, which the crate
//! `rankrun-tools` carries out.

mod interpret;
mod shim;

use std::ffi::{OsStr, OsString};
use std::marker::PhantomData;
use std::sync::LazyLock;
use std::time::Duration;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Args, Command as ClapCommand, Subcommand as _, ValueHint};

pub(super) use interpret::{find_subcommand, interpret, is_query};

use super::completion::Shell;
use super::error::Expected;
use super::help::at_width;
use super::option::{FromText, possible_values_of};
use super::other_launcher;
use super::python_text::parse_float;
use rankrun_core::device::DeviceType;
use shim::ShimArgs;

/// Less would keep a driver busy.
const SHORTEST_INTERVAL: f64 = 0.1;
/// A day.
const LONGEST_INTERVAL: f64 = 86_400.0;
const INTERVAL: Expected = Expected::new("a number of seconds from 0.1 to 86400", "2")
    .advised(|_, _| Some("`--watch` alone looks every 2 seconds, `--watch=0.5` more often".to_owned()));

const EXIT_OF_MACHINE: &str = "\
Exit status:
  0  the machine was looked at, with or without accelerators
  1  nothing could be told, since a driver or its library hangs, fails or crashes
  2  the command line could not be read";

/// What stands first on a command line of our own name. Without one of these words the line is a launch.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Subcommand {
    /// Start the workers; the word may be left out
    #[command(disable_help_flag = true)]
    Run {
        /// The options of a launch, the entrypoint and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Say what a launch would start, and start nothing
    ///
    /// Prints what a launch by the words behind it would start: the settings that differ from their defaults and where
    /// each was said, the exact command and environment of each worker, log files, signals. `rankrun explain torchrun ...` explains what the name torchrun would do.
    #[command(override_usage = "rankrun explain [--all | --json | --script RANK]
           [torchrun] [OPTIONS] ENTRYPOINT [ARGS]...")]
    Explain {
        #[command(flatten)]
        form: ExplainArgs,
        /// The command line, with or without the name of the command
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Print the command line of another launcher as one of rankrun
    ///
    /// Reads a command line of torchrun, accelerate launch, deepspeed, mpirun, srun, torchx or horovodrun and prints the
    /// one of rankrun that does the same, ready to paste into a shell. A comment above it names each thing that has no
    /// equivalent. Nothing is started. docs/convert.md has a table.
    ///
    /// A line in quotes keeps its variables, such as $RANK.
    #[command(
        override_usage = "rankrun convert [--json] COMMAND...",
        after_help = "\
Examples:
  rankrun convert torchrun --nproc_per_node 2 train.py
  rankrun convert 'srun -N 2 --ntasks-per-node 8 python train.py --run $RUN'
  rankrun convert accelerate launch --num_processes 4 train.py >train.sh

Exit status:
  0  the line is printed
  1  the launcher is not known, or the line is not one that can be converted
  2  the command line could not be read, by rankrun or by the other launcher"
    )]
    Convert {
        /// For programs: one JSON object with the command, the environment and the notes
        #[arg(long)]
        json: bool,
        /// The command line, as words or as one quoted text
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
        words: Vec<OsString>,
    },
    /// Show the accelerators of this machine and what is wrong with them
    ///
    /// Shows the accelerators of this machine: load, memory, temperature, power, clocks, what slows them down, which
    /// processes use them, what is wrong with them, and the order that each --device-order would give.
    ///
    /// What CUDA_VISIBLE_DEVICES and its like hide from a launch is shown too, and marked. docs/hardware.md says what
    /// each warning means and what to do.
    #[command(after_help = EXIT_OF_MACHINE)]
    Devices {
        /// For programs: one JSON object
        #[arg(long)]
        json: bool,
        /// Look again every so many seconds [default: 2], and mark what has changed: q ends it, the space bar looks at
        /// once; needs a terminal
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
        #[arg(long, alias = "device_type", value_name = "TYPE", hide_possible_values = true, value_parser = TextParser::<DeviceType>(PhantomData))]
        device_type: Option<DeviceType>,
        /// Only these, as in nvidia-smi: indices, UUIDs or their beginnings, PCI addresses
        #[arg(short, long, value_name = "LIST", value_delimiter = ',')]
        id: Vec<String>,
        #[command(flatten)]
        probe: ProbeArgs,
    },
    /// Show how the accelerators of this machine are joined
    ///
    /// Shows how the accelerators and network cards of this machine are joined: the matrix of links with its legend, and
    /// for each accelerator the CPUs, the NUMA node and the network cards near it. docs/hardware.md says how to read it.
    #[command(after_help = EXIT_OF_MACHINE)]
    Topo {
        /// For programs: one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        probe: ProbeArgs,
        /// No effect: the matrix of `nvidia-smi topo -m` is always shown
        #[arg(short, long)]
        matrix: bool,
    },
    /// List the jobs of this user that run on this machine
    ///
    /// Lists the jobs of this user that run on this machine: job id, pid of the launcher, state, workers, restarts, run
    /// time, run id and program. Folders of dead jobs are removed.
    ///
    /// A job under the name torchrun has no control socket and is not listed. docs/control.md describes the socket and
    /// its protocol.
    #[command(after_help = "\
Examples:
  rankrun ls
  rankrun ls --json | jq -r '.[].job'

Exit status:
  0  the jobs are listed, or there is none
  2  the command line could not be read")]
    Ls {
        /// For programs: one JSON array, an object per job
        #[arg(long)]
        json: bool,
    },
    /// Show a running job
    ///
    /// Shows a running job: its state, restarts, and for each worker of this node device, pid, CPU time, memory, and the
    /// age of its last output. docs/control.md describes the fields.
    #[command(after_help = "\
Examples:
  rankrun status
  rankrun status 4f1c --json
  rankrun status my-run --check || echo \"my-run does not run\"

Exit status:
  0  the job is shown; with --check the job runs, or waits for the end of other nodes
  1  with --check: the job starts, stops, restarts or ends
  2  the command line could not be read
  3  there is no such job, or it does not answer within 5 seconds")]
    Status {
        /// A job id or the beginning of one, a run id (--rdzv-id), or the pid of the launcher; may be left out if only
        /// one job runs
        job: Option<String>,
        /// For programs: one JSON object
        #[arg(long)]
        json: bool,
        /// For probes: print nothing, and tell by the exit status
        #[arg(long)]
        check: bool,
    },
    /// Show where the workers of a running job stand
    ///
    /// Shows the stack of each rank of this node: its Python calls, the innermost first. Ranks at the same place are
    /// one entry, and the entry with the fewest ranks stands first. A handler that the launcher's hook has set in its
    /// Python writes the stack, also while the program waits in C; it does not stop the worker.
    ///
    /// A worker without such a stack is looked into from outside: py-spy (built in) reads its Python calls, and
    /// eu-stack, if it is installed, its native ones, which stops the worker for some milliseconds. Where the system
    /// does not permit that, one line says so: see --allow-ptrace. The state of its main thread is shown in any case,
    /// and the system call in which it waits. docs/debugging.md says how to read it.
    #[command(after_help = "\
Examples:
  rankrun stacks
  rankrun stacks 4f1c --rank 3
  rankrun stacks my-run --json

Exit status:
  0  the stacks are shown
  1  the job has no such rank on this node
  2  the command line could not be read
  3  there is no such job, or it does not answer within 5 seconds")]
    Stacks {
        /// A job id or the beginning of one, a run id (--rdzv-id), or the pid of the launcher; may be left out if only
        /// one job runs
        job: Option<String>,
        /// Every thread of this rank
        #[arg(long, value_name = "RANK")]
        rank: Option<u32>,
        /// For programs: one JSON array, an object per rank
        #[arg(long)]
        json: bool,
    },
    /// Stop a running job
    ///
    /// Stops a running job, as a SIGTERM to its launcher does: the workers get the signal of its --stop-signal, else
    /// SIGTERM, and SIGKILL after the grace. There is no restart. A second stop kills at once. `rankrun` ends with status 143.
    #[command(after_help = "\
Examples:
  rankrun stop 4f1c
  rankrun stop my-run --wait

Exit status:
  0  the job is told to stop; with --wait it has ended
  1  the job refuses
  2  the command line could not be read
  3  there is no such job, or it does not answer within 5 seconds")]
    Stop {
        /// A job id or the beginning of one, a run id (--rdzv-id), or the pid of the launcher
        job: String,
        /// Return after the end of the job
        #[arg(long)]
        wait: bool,
    },
    /// Restart the workers of a running job
    ///
    /// Stops all workers of a running job and starts them again, with a new store. --max-restarts is not touched: the
    /// restart uses none of the budget. Workers see a TORCHELASTIC_RESTART_COUNT that is higher by one. A job of several
    /// nodes is not restarted this way.
    #[command(after_help = "\
Examples:
  rankrun restart 4f1c

Exit status:
  0  the workers are told to stop, and start again after that
  1  the job refuses: its workers do not run, it is being stopped, or it has several nodes
  2  the command line could not be read
  3  there is no such job, or it does not answer within 5 seconds")]
    Restart {
        /// A job id or the beginning of one, a run id (--rdzv-id), or the pid of the launcher
        job: String,
    },
    /// Find and end what is left of jobs whose launcher is gone
    ///
    /// Finds and ends what is left of jobs whose launcher is gone: after a crash, or because both of the launcher's
    /// processes were killed in the same instant. Each process gets SIGTERM, and SIGKILL when it is still there after 5
    /// seconds; a process that is stopped is continued.
    ///
    /// It looks at processes of this user alone that carry the mark of a job (RANKRUN_JOB, a UUID, in their
    /// environment), that no launcher stands above, and that have no terminal. A job that runs is never touched, nor a
    /// process with RANKRUN_KEEP=1 in its environment. What a job under the name torchrun left behind after its success
    /// lives on, and is found. So is a worker that was started by hand (--leave-out) without a terminal, once its
    /// launcher waits for it no more.
    ///
    /// The mark may leak: `sbatch --export=ALL` and `at` copy it to processes that the job has not started. So a process
    /// is ended only if it descends from the job. The kernel shows that: it hands a number of the job from parent to
    /// child, as the soft limit on file locks (`ulimit -x`), which Linux does not enforce. A process with the mark and
    /// without the number is listed, and ended with --force.
    ///
    /// A process that has overwritten the environment it was started with, as setproctitle may do, is not found.
    ///
    /// It also removes the folders of error files that dead jobs have left in /dev/shm and the temporary folders; the
    /// agent of a living job holds a lock on its own. And it clears away what an interrupted `rankrun shim` has left in
    /// the environment beside rankrun, or in the active one: an old file whose place is empty is put back, any other is
    /// removed.
    #[command(after_help = "\
Exit status:
  0  nothing is left of what was to be ended; with --dry-run whatever is found
  1  processes cannot be looked at, one survived SIGKILL for 5 seconds, or a file cannot be removed
  2  the command line could not be read")]
    Gc {
        /// Only list them
        #[arg(long, alias = "dry_run")]
        dry_run: bool,
        /// End also the processes that did not inherit the number of the job
        #[arg(long)]
        force: bool,
        /// For programs: one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Make the torchrun of a Python environment rankrun's, and back
    #[command(after_help = shim::AFTER_HELP)]
    Shim(ShimArgs),
    /// Print the completions for a shell
    ///
    /// Prints a script that completes the words of rankrun, the jobs that run among them.
    #[command(after_help = "\
Examples:
  source <(rankrun completions bash)
  rankrun completions zsh >~/.zfunc/_rankrun
  rankrun completions fish >~/.config/fish/completions/rankrun.fish")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the man page
    #[command(after_help = "Examples:\n  rankrun man | man -l -")]
    Man,
    /// Print the help, of a command or about a topic
    #[command(disable_help_flag = true)]
    Help {
        /// A command, or devices, nodes, restarts, stopping or output
        topic: Option<String>,
    },
    /// Print the version
    Version,
}

/// The form of an explanation; these may also stand among the options of the launch.
#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// Every setting, also with its default
    #[arg(long)]
    all: bool,
    /// For programs: one JSON object
    #[arg(long, conflicts_with = "script")]
    json: bool,
    /// A shell script that runs this worker by hand
    #[arg(long, value_name = "RANK", allow_hyphen_values = true, value_parser = TextParser::<i128>(PhantomData))]
    script: Option<i128>,
}

#[derive(Debug, Args)]
pub(super) struct ProbeArgs {
    /// How long the library of a driver may take to answer [default: RANKRUN_PROBE_TIMEOUT, then 30]
    #[arg(long, alias = "probe_timeout", value_name = "SECONDS", value_parser = TextParser::<f64>(PhantomData))]
    probe_timeout: Option<f64>,
}

static COMMANDS: LazyLock<ClapCommand> = LazyLock::new(|| {
    let mut command = described();
    command.build();
    command
});

/// The launchers whose command lines `other_launcher` translates before a subcommand is looked for.
const OTHER_LAUNCHERS: [(&str, &str); 2] = [
    ("accelerate", "Launch by a command line of `accelerate launch`, of Hugging Face"),
    ("deepspeed", "Launch by a command line of `deepspeed`, of Microsoft"),
];

/// The commands before clap has built them: a built one does not take a further option as its own.
pub(super) fn described() -> ClapCommand {
    let command = ClapCommand::new("rankrun").no_binary_name(true).disable_help_subcommand(true);
    let others = OTHER_LAUNCHERS.map(|(name, about)| {
        let words = Arg::new("words").num_args(0..).trailing_var_arg(true).allow_hyphen_values(true);
        ClapCommand::new(name).about(about).disable_help_flag(true).arg(words.value_hint(ValueHint::AnyPath))
    });
    let command = Subcommand::augment_subcommands(command).subcommands(others);
    command.args_override_self(true).max_term_width(100)
}

/// Every word that may stand first.
pub(super) fn all() -> impl Iterator<Item = &'static ClapCommand> {
    COMMANDS.get_subcommands()
}

/// Whether a subcommand has this name.
pub(super) fn is_name(word: &str) -> bool {
    all().any(|command| command.get_name() == word)
}

/// The options of a subcommand, by their long names.
pub(super) fn options_of(command: &str) -> Vec<&'static str> {
    let command = COMMANDS.find_subcommand(command);
    command.into_iter().flat_map(ClapCommand::get_arguments).filter_map(Arg::get_long).collect()
}

/// The help of a subcommand, without a width at the terminal's; nothing where there is no such word.
pub(super) fn help_of(command: &str, is_long: bool, width: Option<usize>) -> Option<String> {
    if let Some(help) = other_launcher::help(command, width) {
        return Some(help);
    }
    let mut command = at_width(COMMANDS.find_subcommand(command)?.clone(), width);
    let help = if is_long { command.render_long_help() } else { command.render_help() };
    Some(help.to_string())
}

/// Reads a value by the rules of its type.
#[derive(Debug, Clone)]
pub(super) struct TextParser<T>(pub(super) PhantomData<fn() -> T>);

impl<T: FromText> TypedValueParser for TextParser<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &ClapCommand,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Self::Value, clap::Error> {
        let parse = |text: String| T::from_text(text.as_ref()).ok_or(BadValue);
        StringValueParser::new().try_map(parse).parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        possible_values_of::<T>()
    }
}

fn parse_interval(text: &str) -> Result<Duration, Expected> {
    let seconds =
        parse_float(text).filter(|seconds| (SHORTEST_INTERVAL..=LONGEST_INTERVAL).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or(INTERVAL)
}

/// The value is not of the option's type; the message says which type.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("bad value")]
struct BadValue;

#[cfg(test)]
mod tests;
