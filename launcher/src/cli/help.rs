//! The help: the tables as text. The only use of clap here, which lays it out.

use clap::{Arg, Command};

use super::option::{is_torchruns, options};
use super::torchrun;
use crate::spec::CliFlavor;

const WIDTH: usize = 100;
const ABOUT: &str = "Start N workers of a training program on each node, watch them, restart them together";
const USAGE: &str = "rankrun [OPTIONS] ENTRYPOINT [ARGS]...
       rankrun run [OPTIONS] ENTRYPOINT [ARGS]...
       rankrun explain [--json | --script RANK] [torchrun] [OPTIONS] ENTRYPOINT [ARGS]...
       rankrun devices [--json | --watch[=SECONDS]] [--device-type TYPE] [-i LIST]
       rankrun topo [--json]
       rankrun ls [--json]
       rankrun status [JOB] [--json] [--check]
       rankrun stop JOB [--wait]
       rankrun restart JOB
       rankrun gc [--dry-run] [--force] [--json]
       rankrun shim on|off|status [--python PATH] [--json]";
const ENTRYPOINT: &str = "A Python script, a module with --module, or a program with --no-python. Everything behind it is handed \
     to it as it stands, with MACROS replaced; one -- in front of it or behind it is dropped";
const MACROS: &str = "${local_rank} and ${rank}";
const TORCH_MACROS: &str = "$local_rank, ${local_rank} and $$ (as $)";

/// The text behind the options, which both names share.
const BEHIND: &str = "\
Long names may be written with underscores and abbreviated. Where an option is not given, torchrun's
options are read from PET_NAME and ours from RANKRUN_NAME (as in PET_NPROC_PER_NODE, RANKRUN_STDIN).

Python is PYTHON_EXEC, else the `python` beside this command, in PATH, VIRTUAL_ENV or CONDA_PREFIX.
";

/// What our own name adds.
const PROGRAMS: &str = "
An ELF file, or an executable file that begins with #!, is run without --no-python, unless it is a
.py file, or its first line starts rankrun or torchrun: Python runs those. A bare name that is no
file here is looked up in PATH.
";

const LEFTOVERS: &str = "
Nothing of a job outlives a failure or a stop. After a success, what the workers have left behind is
named, waited for up to --leftover-grace, and stopped; a process with RANKRUN_KEEP=1 in its
environment lives on.
";

const SIGNALS: &str = "
SIGUSR1 and SIGUSR2 go on to the workers and stop nothing, unless --signals-to-handle names them.
Where OMP_NUM_THREADS is not set, several workers share the CPUs that the launcher may use.
";

const DEVICES: &str = "
Without --nproc-per-node there is one worker for each visible accelerator, or one worker where there
is none. --devices 3,1 gives rank 0 device 3 and rank 1 device 1. An index is nvidia-smi's, or
counts within CUDA_VISIBLE_DEVICES and its like where they are set. Workers see the whole list and
take their LOCAL_RANK; where a vendor's variable has no order, each sees its own device alone.
";

/// What is no launch, and the one option that needs more than a sentence.
const BY_HAND: &str = "
`rankrun explain` starts nothing. It prints what a launch by the words behind it would start: the
exact command and environment of each worker, where each setting was said, log files, signals.
--json prints one JSON object with the same, --script RANK a shell script that runs this worker by
hand. `rankrun explain torchrun ...` explains what the name torchrun would do.

With --leave-out RANK all the others are started and wait, without any limit of ours. The launcher
prints the command that starts the missing one in another terminal, as in `sh SCRIPT gdb --args`,
anew after each restart. How it ends counts as for any worker; it is never signalled, only told.

`rankrun devices` shows the accelerators of this machine and what is wrong with them, `rankrun topo`
how they are joined; see `rankrun devices --help`.

`rankrun ls` lists the jobs of this user that run on this machine, `rankrun status` shows one,
`rankrun stop` and `rankrun restart` act on one; see `rankrun status --help`.

`rankrun gc` finds and ends what is left of jobs whose launcher is gone; see `rankrun gc --help`.

`rankrun shim on` makes the torchrun of this Python environment rankrun's, `off` gives PyTorch's own
back; see `rankrun shim --help`.
";

/// Options that belong together.
const RESTARTS: &str = "
A rule of --restart-rules is CONDITION:ACTION. Conditions are exit=3, exit=10-19/42, signal=KILL,
rank=0 and node=0, joined by +, or any. Actions are restart, fail, succeed, requeue (exit status 75:
start me again) and no-requeue (78: do not). Where no rule fits, the workers start again as ever.

The file of --config has options by their long names below [launch], as in `max-restarts = 3`, and
those of restarts and nodes by shorter ones below [restart] and [nodes]. It is read only where it is
named, and counts after the command line and the variables.
";

const NODES: &str = "
A job of several nodes is one launcher on each, rankrun or torchrun: either --nnodes, --master-addr
and --master-port, with --node-rank 0, 1, … (static), or --nnodes and --rdzv-backend c10d with the
same --rdzv-endpoint and --rdzv-id on each. With c10d who is lost is noticed within --lease, who
comes later takes part from the next round on, and who is one too many waits as a spare. --node-rank
counts there too where every node gives another one.
";

const EXAMPLES: &str = "
Examples:
  rankrun train.py --epochs 3
  rankrun --devices 3,1 train.py
  rankrun --device-type cpu --nproc-per-node 4 train.py
  rankrun --nproc-per-node cpu --max-restarts 2 -m package.train
  rankrun --max-restarts 5 --restart-window 1h --restart-delay 10s train.py
  rankrun --nproc-per-node 2 --tee 3 --log-dir logs target/release/train
  rankrun run --stdin 0 --grace 5 --nproc-per-node 2 train.py
  rankrun --nnodes 2 --node-rank 0 --master-addr node0 --master-port 29500 train.py
  rankrun --nnodes 2:4 --rdzv-backend c10d --rdzv-endpoint node0:29400 --rdzv-id 7 train.py
  rankrun --nnodes 2 --node-rank 1 --master-addr node0 --iface eth0 train.py
  rankrun explain --nproc-per-node 2 train.py
  rankrun --leave-out 1 --nproc-per-node 2 train.py

Exit status:
  0        every worker exited 0
  1        the launcher failed: settings, log folder, store, a worker that cannot be started
  2        the command line could not be read
  124      the time limit was over (--time-limit)
  128+N    the launcher was told to stop by signal N, or the first failing worker was ended by it
  75, 78   a rule of --restart-rules said `requeue`, or `no-requeue`
  another  that of the first failing worker, no restart being left
";

const TORCHRUN_EXAMPLES: &str = "
Examples:
  torchrun --nproc-per-node 4 train.py --epochs 3
  torchrun --nproc-per-node cpu --max-restarts 2 -m package.train
  torchrun --nnodes 2 --node-rank 0 --master-addr node0 --master-port 29500 train.py

Exit status:
  0  every worker exited 0
  1  a worker failed, the launcher failed, or it was told to stop by a signal
  2  the command line could not be read
";

/// What `--version` prints.
pub(super) fn version() -> String {
    format!("rankrun {}\n", env!("CARGO_PKG_VERSION"))
}

/// What `--help` prints under this name.
pub(super) fn help(cli_flavor: CliFlavor) -> String {
    let options = |command: Command, heading: &'static str, are_torchruns: bool| {
        let options = options(CliFlavor::Rankrun).filter(|option| is_torchruns(option) == are_torchruns);
        options.fold(command, |command, option| command.arg(option.clone().help_heading(heading)))
    };
    let entrypoint = Arg::new("entrypoint").value_name("ENTRYPOINT").required(true);
    let macros = match cli_flavor {
        CliFlavor::Rankrun => MACROS,
        CliFlavor::Torchrun => TORCH_MACROS,
    };
    let entrypoint = entrypoint.help(ENTRYPOINT.replace("MACROS", macros));
    let command = Command::new("rankrun")
        .version(env!("CARGO_PKG_VERSION"))
        .disable_version_flag(true)
        .term_width(WIDTH)
        .hide_possible_values(true)
        .disable_help_flag(true)
        .next_line_help(false);
    let command = command.about(ABOUT).arg(entrypoint);
    let command = options(command, "Options", true);
    match cli_flavor {
        CliFlavor::Rankrun => options(command, "Options that torchrun does not have", false)
            .override_usage(USAGE)
            .after_help(format!(
                "{BEHIND}{PROGRAMS}{DEVICES}{NODES}{SIGNALS}{LEFTOVERS}{RESTARTS}{BY_HAND}{EXAMPLES}"
            ))
            .render_help()
            .to_string(),
        CliFlavor::Torchrun => {
            let command = command.help_template("{about}\n\n{all-args}{after-help}");
            let text = command.after_help(format!("{BEHIND}{TORCHRUN_EXAMPLES}")).render_help();
            format!("{}\n{text}", torchrun::USAGE)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_matches_reference_file() {
        assert_eq!(help(CliFlavor::Rankrun), include_str!("help_rankrun.txt"));
        assert_eq!(help(CliFlavor::Torchrun), include_str!("help_torchrun.txt"));
    }
}
