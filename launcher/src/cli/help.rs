//! The help of a launch and of its topics: texts about the options, which clap lays out. The options and their lines
//! come from `option`; the help of a subcommand is in `subcommand`.

use clap::{Arg, Command};

use super::option::{Kind, LaunchOption, options};
use super::subcommand;
use super::torchrun;
use rankrun_core::spec::CliFlavor;

/// The width where the terminal's is unknown or larger.
const WIDTH: usize = 100;

/// The most letters of an option's words in the place of its value.
const WIDEST_CHOICE: usize = 24;

/// The headings of the options, in the order of the help.
pub(super) mod heading {
    pub(in crate::cli) const WORKERS: &str = "Workers";
    pub(in crate::cli) const DEVICES: &str = "Devices";
    pub(in crate::cli) const NODES: &str = "Nodes";
    pub(in crate::cli) const RESTARTS: &str = "Restarts";
    pub(in crate::cli) const STOPPING: &str = "Stopping";
    pub(in crate::cli) const OUTPUT: &str = "Output and logs";
    pub(in crate::cli) const COMPATIBILITY: &str = "torchrun compatibility";
    pub(in crate::cli) const ADVANCED: &str = "Advanced";

    /// Whether `-h` leaves the options of a heading out.
    pub(super) fn is_rare(heading: Option<&str>) -> bool {
        heading.is_some_and(|heading| [COMPATIBILITY, ADVANCED].contains(&heading))
    }

    pub(super) const ALL: [&str; 8] =
        [WORKERS, DEVICES, NODES, RESTARTS, STOPPING, OUTPUT, COMPATIBILITY, ADVANCED];
}
const ABOUT: &str = "Start N workers of a training program on each node, watch them, restart them together";
const USAGE: &str = "rankrun [OPTIONS] ENTRYPOINT [ARGS]...
       rankrun COMMAND ...";
const ENTRYPOINT: &str = "A Python script, a module with --module, or a program with --no-python. The words after it are its \
     arguments; only MACROS are replaced in them. One -- before or after it is dropped";
const MACROS: &str = "${local_rank} and ${rank}";
const TORCH_MACROS: &str = "$local_rank, ${local_rank} and $$ (as $)";

/// How long names may be written under our own name.
const SPELLINGS: &str = "underscores; torchrun's may also be abbreviated";
const TORCHRUN_SPELLINGS: &str = "underscores and abbreviated";

/// The text behind the options, which both names share but for their spellings.
const BEHIND: &str = "\
Long names may be written with underscores; torchrun's may also be abbreviated. Where an option
is not given, torchrun's options are read from PET_NAME and ours from RANKRUN_NAME (as in
PET_NPROC_PER_NODE, RANKRUN_STDIN).

Python is PYTHON_EXEC, else the `python` beside this command, in PATH, VIRTUAL_ENV or CONDA_PREFIX.
";

/// What our own name adds.
const PROGRAMS: &str = "
A program, or an executable script that begins with #!, needs no --no-python. Python runs a .py file,
and a script whose first line starts rankrun or torchrun. A bare name that is not a file here is
looked up in PATH.

Where OMP_NUM_THREADS is not set, several workers share the CPUs that the launcher may use.
";

const OTHER_PAGES: &str = "
`rankrun help` with devices, nodes, restarts, stopping or output says more of that.
";

const SHORT_BEHIND: &str = "\
`rankrun --help` says more and has all options; `rankrun help` with devices, nodes, restarts,
stopping or output says more of that.
";

const OUTPUT: &str = "
Workers write to the console. --tee 3 puts the rank in front of each line and writes both streams to
files, too; --redirects 3 writes them to files alone; 1 is standard output, 2 is standard error, and a
list as in 0:3,1:2 chooses by local rank. --local-ranks-filter 0 shows one rank on the console.

The files are DIR/<run id>_<suffix>/attempt_<n>/<local rank>/stdout.log and stderr.log, with DIR of
--log-dir. --duplicate-stdout-filters copies lines with a text to filtered_stdout.log beside them.

--report FILE writes the end of the job for programs: one JSON document with the result, the exit code
and all that is known of the first failure.
";

const STOPPING: &str = "
A stop begins with a signal to the workers: that of --stop-signal, else the one that the launcher got,
else SIGTERM. After --grace (30 s) SIGKILL ends what is left. A second signal to the launcher sends
SIGKILL at once. --time-limit stops the job after a time, and --warn-signal tells the workers before it.

Nothing of a job outlives a failure or a stop. After a success, what the workers have left behind is
named, waited for up to --leftover-grace, and stopped; a process with RANKRUN_KEEP=1 in its
environment lives on.

SIGUSR1 and SIGUSR2 go on to the workers and stop nothing, unless --signals-to-handle names them.
";

const DEVICES: &str = "
Without --nproc-per-node there is one worker for each visible accelerator, or one worker where there
is none; -n, -np, --num-processes and --num-gpus are other names of it. --devices 3,1 gives rank 0 device 3 and rank 1 device 1. An index is nvidia-smi's, or
counts within CUDA_VISIBLE_DEVICES and its like where they are set. Workers see the whole list and
take their LOCAL_RANK; where a vendor's variable has no order, each sees its own device alone.
";

const EXTERNAL_WORKER: &str = "
`rankrun explain` in front of the options starts nothing. It prints what the launch would start: the
exact command and environment of each worker, the source of each setting, log files and signals.
--json prints the same as one JSON object. --script RANK prints a shell script that runs this worker
without a launcher. `rankrun explain torchrun ...` explains what the name torchrun would do.

With --leave-out RANK all other workers start and wait for this one; only --time-limit ends the wait.
The launcher prints the command that starts it in another terminal, as in `sh SCRIPT gdb --args`, and
prints it again after each restart. Its exit counts as that of any worker. The launcher sends it no
signal.

`rankrun help COMMAND` says more of a command.
";

const CONFIG: &str = "
The file of --config has any option by its long name below [launch], as in `max-restarts = 3`. Options
of restarts and nodes may also stand below [restart] and [nodes], by shorter names. The file is read
only if it is named. The command line and variables come before it.
";

const RESTARTS: &str = "
--max-restarts N starts all workers again, up to N times, after one has failed. With --restart-window
1h only the restarts of the last hour count, and --restart-delay waits before each. With --progress-dir
the job ends when the same failure comes again and no file there has changed.

A rule of --restart-rules is CONDITION:ACTION. Conditions are exit=3, exit=10-19/42, signal=KILL,
hang and desync (with --hang-timeout), oom, rank=0 and node=0, joined by +, or any. Actions are restart, fail, succeed, requeue (exit status 75:
start me again) and no-requeue (78: do not). If no rule fits, the workers start again.
";

const NODES: &str = "
A job of several nodes is one launcher on each, rankrun or torchrun: either --nnodes, --master-addr
and --master-port, with --node-rank 0, 1, … (static), or --nnodes and --rdzv-backend c10d with the
same --rdzv-endpoint and --rdzv-id on each. With c10d a lost node is noticed within --lease, a node
that comes later joins when the workers start again, and one too many waits as a spare. If every node
gives --node-rank, and each another one, these are the ranks of the nodes. With --hosts one command starts
the launchers of all nodes by ssh.
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

const SEE_ALSO: &str = "torchrun, of PyTorch";

/// What `--version` prints.
pub(super) fn version() -> String {
    format!("rankrun {}\n", env!("CARGO_PKG_VERSION"))
}

/// What `rankrun help` explains beside the commands.
pub(super) const TOPICS: [&str; 5] = ["devices", "nodes", "restarts", "stopping", "output"];

/// What `rankrun help` prints about a topic; without a width at the terminal's.
pub(super) fn topic(name: &str, width: Option<usize>) -> Option<String> {
    let (text, more) = match name {
        "devices" => (DEVICES, "`rankrun devices` shows them; see `rankrun devices --help`."),
        "nodes" => (NODES, ""),
        "restarts" => (RESTARTS, ""),
        "stopping" => (STOPPING, ""),
        "output" => (OUTPUT, ""),
        _ => return None,
    };
    let text = format!("{}\n\n{more}", reflowed(text));
    let command = Command::new("rankrun").disable_help_flag(true).help_template("{about}\n");
    Some(at_width(command.about(text.trim_end().to_owned()), width).render_help().to_string())
}

/// Each paragraph as one line, which clap wraps.
fn reflowed(text: &str) -> String {
    let paragraphs = text.trim().split("\n\n").map(|paragraph| paragraph.replace('\n', " "));
    paragraphs.collect::<Vec<_>>().join("\n\n")
}

/// The command with help of this width; without one at the terminal's.
pub(super) fn at_width(command: Command, width: Option<usize>) -> Command {
    match width {
        Some(width) => command.term_width(width),
        None => command.max_term_width(WIDTH),
    }
}

/// The paragraphs of the man page behind the options.
pub(super) fn page_sections() -> [(&'static str, &'static str); 11] {
    [
        ("Names and variables", BEHIND),
        ("Programs", PROGRAMS),
        ("Configuration file", CONFIG),
        ("Devices of a job", DEVICES),
        ("Jobs of several nodes", NODES),
        ("Restart policy", RESTARTS),
        ("The end of a job", STOPPING),
        ("Output of the workers", OUTPUT),
        ("Debugging", EXTERNAL_WORKER),
        ("Examples", EXAMPLES),
        ("See also", SEE_ALSO),
    ]
}

/// The options of a launch under their headings, in the order of the help.
pub(super) fn command_of_launch() -> Command {
    let headings = [None].into_iter().chain(heading::ALL.map(Some));
    let of_heading =
        |heading| options(CliFlavor::Rankrun).filter(move |option| option.get_help_heading() == heading);
    let arguments = headings.flat_map(of_heading).cloned();
    without_options(MACROS).args(arguments).override_usage(USAGE)
}

/// How much a help says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HelpLength {
    /// `-h`: one line for each common option.
    Short,
    /// `--help`
    Long,
}

/// What `-h` or `--help` prints under this name; without a width at the terminal's.
pub(super) fn help(cli_flavor: CliFlavor, length: HelpLength, width: Option<usize>) -> String {
    match cli_flavor {
        CliFlavor::Rankrun => rankrun_help(length, width),
        CliFlavor::Torchrun => torchrun_help(),
    }
}

fn torchrun_help() -> String {
    let in_order = |(at, option): (usize, &Arg)| option.clone().help_heading("Options").display_order(at);
    let arguments = options(CliFlavor::Torchrun).enumerate().map(in_order);
    let command = without_options(TORCH_MACROS).term_width(WIDTH).args(arguments);
    let command = command.help_template("{about}\n\n{all-args}{after-help}");
    let text = command
        .after_help(format!("{}{TORCHRUN_EXAMPLES}", BEHIND.replace(SPELLINGS, TORCHRUN_SPELLINGS)))
        .render_help();
    format!("{}\n{text}", torchrun::USAGE)
}

fn rankrun_help(length: HelpLength, width: Option<usize>) -> String {
    let headings = [None].into_iter().chain(heading::ALL.map(Some));
    let headings = headings.filter(|heading| length == HelpLength::Long || !heading::is_rare(*heading));
    let arguments = headings.flat_map(|heading| {
        let of_heading = move |option: &&Arg| option.get_help_heading() == heading;
        options(CliFlavor::Rankrun).filter(of_heading).map(move |option| match length {
            HelpLength::Short => with_words(option.clone().help(first_clause(option))),
            HelpLength::Long => with_words(option.clone()),
        })
    });
    let subcommands = subcommand::all().map(|command| {
        Command::new(command.get_name()).about(command.get_about().cloned().unwrap_or_default())
    });
    let command = without_options(MACROS).args(arguments).subcommands(subcommands).override_usage(USAGE);
    let command = command.disable_help_subcommand(true);
    let command = command.help_template("{about}\n\n{usage-heading} {usage}\n\n{all-args}{after-help}");
    let command = at_width(command, width);
    let command = match length {
        HelpLength::Short => command.after_help(reflowed(SHORT_BEHIND)),
        HelpLength::Long => {
            let behind = [BEHIND, PROGRAMS, CONFIG, EXTERNAL_WORKER, OTHER_PAGES].map(reflowed).join("\n\n");
            command.after_help(format!("{behind}\n{EXAMPLES}"))
        }
    };
    // Not for the command as a whole: each of the subcommands has one line.
    command.mut_args(|arg| arg.next_line_help(length == HelpLength::Long)).render_help().to_string()
}

/// The option with its words behind its help, where they are too many for the place of a value.
fn with_words(option: Arg) -> Arg {
    match option.kind() {
        Kind::Choice(words) if words.join("|").len() > WIDEST_CHOICE => {
            let help = option.get_help().map(ToString::to_string).unwrap_or_default();
            let (sentence, default) = help.split_at(help.find(" [default").unwrap_or(help.len()));
            option.value_name("WORD").help(format!("{sentence} [words: {}]{default}", words.join(", ")))
        }
        _ => option,
    }
}

fn without_options(macros: &str) -> Command {
    let entrypoint = Arg::new("entrypoint").value_name("ENTRYPOINT").required(true);
    Command::new("rankrun")
        .version(env!("CARGO_PKG_VERSION"))
        .disable_version_flag(true)
        .disable_help_flag(true)
        .hide_possible_values(true)
        .about(ABOUT)
        .arg(entrypoint.help(ENTRYPOINT.replace("MACROS", macros)))
}

/// The beginning of an option's sentence that stands alone.
fn first_clause(option: &Arg) -> String {
    let help = option.get_help().map(ToString::to_string).unwrap_or_default();
    let sentence = help.split(" [default").next().unwrap_or_default();
    let end = ["; ", ": ", ", as in "].iter().filter_map(|end| sentence.find(end)).min();
    let clause = &sentence[..end.unwrap_or(sentence.len())];
    // One word alone says nothing.
    if clause.contains(' ') { clause.to_owned() } else { sentence.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::subcommand::help_of;

    /// `RANKRUN_UPDATE=1` writes the files anew.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test that rewrites its files")]
    fn help_matches_reference_file() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cli/help");
        let launch =
            |name: &str, cli_flavor, length| (name.to_owned(), help(cli_flavor, length, Some(WIDTH)));
        let of_launch = [
            launch("rankrun", CliFlavor::Rankrun, HelpLength::Long),
            launch("rankrun_short", CliFlavor::Rankrun, HelpLength::Short),
            launch("torchrun", CliFlavor::Torchrun, HelpLength::Long),
        ];
        let of_subcommands = subcommand::all()
            .map(Command::get_name)
            .filter(|name| *name != "run")
            .map(|name| (name.to_owned(), help_of(name, true, Some(WIDTH)).unwrap()));
        let of_topics = TOPICS.map(|name| (format!("topic_{name}"), topic(name, Some(WIDTH)).unwrap()));
        for (name, text) in of_launch.into_iter().chain(of_subcommands).chain(of_topics) {
            let path = format!("{folder}/{name}.txt");
            if std::env::var_os("RANKRUN_UPDATE").is_some() {
                std::fs::write(&path, &text).unwrap();
            }
            assert_eq!(text, std::fs::read_to_string(&path).unwrap(), "{name}");
        }
    }

    #[test]
    fn every_option_has_a_heading_of_the_help() {
        for option in options(CliFlavor::Rankrun) {
            let heading = option.get_help_heading();
            let is_known = heading.map_or(["help", "version"].contains(&option.long_name()), |heading| {
                heading::ALL.contains(&heading)
            });
            assert!(is_known, "--{}: {heading:?}", option.long_name());
        }
    }

    #[test]
    fn no_page_is_wider_than_the_terminal() {
        let of_launch = [HelpLength::Short, HelpLength::Long]
            .map(|length| (format!("{length:?}"), help(CliFlavor::Rankrun, length, Some(60))));
        let names = subcommand::all().map(Command::get_name);
        let of_subcommands = names.flat_map(|name| {
            [false, true].map(|is_long| (name.to_owned(), help_of(name, is_long, Some(60)).unwrap()))
        });
        for (name, page) in of_launch.into_iter().chain(of_subcommands) {
            let wide: Vec<&str> = page.lines().filter(|line| line.chars().count() > 60).collect();
            assert!(wide.is_empty(), "{name}: {wide:#?}");
        }
    }

    #[test]
    fn help_topics_are_wrapped_at_the_width() {
        for name in TOPICS {
            let [narrow, wide] = [60, 400].map(|width| topic(name, Some(width)).unwrap());
            assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(words(&narrow), words(&wide));
            assert!(wide.lines().count() < narrow.lines().count() && wide.ends_with(".\n"), "{wide}");
        }
        assert_eq!(topic("gc", None), None);
    }
}
