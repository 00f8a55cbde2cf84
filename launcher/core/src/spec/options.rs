//! Options that need no other setting: [`LaunchSpec`](super::LaunchSpec) has them as clap read them.
//!
//! One field is a whole option. clap reads its name, its value and its documentation. The variable `RANKRUN_NAME`, the
//! key of the configuration file, help, man page, completions and the line of `explain` follow from the field. Its type
//! reads the value (`ValueEnum` for words; `FromStr` with [`Expected`](super::setting::Expected) as its error) and
//! prints it (`Serialize`). Without the option the field has its `Default`.

use crate::posix::Signal;
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::CliFlavor;
use super::report_file::ReportFile;
use super::signal::StopSignal;
use super::stop::StopTarget;

/// Options that need no other setting.
#[derive(Debug, Clone, PartialEq, Eq, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct IndependentOptions {
    /// Whether workers get RANK, WORLD_SIZE, MASTER_ADDR and their like: with auto a job of one worker on one
    /// node gets none, so its program runs as without a launcher [default: always]
    #[arg(long, help_heading = "Workers")]
    pub distributed: Distributed,
    /// The signal that stops the workers; INT is KeyboardInterrupt in Python, so a program can save and clean
    /// up. SIGKILL follows after --grace [default: the one that the launcher got, else TERM]
    #[arg(long, value_name = "SIGNAL", help_heading = "Stopping")]
    pub stop_signal: Option<StopSignal>,
    /// Which processes of a worker get the signal that stops it: `rank` is its main process alone, so its data
    /// loaders live while it saves; `group` is its whole process group; `auto` is rank for Python and for Rust
    /// programs with rankrun-worker, group for a shell or another program. Processes that the rank leaves get
    /// the signal when it exits; SIGKILL is for the group [default: auto; as torchrun: group]
    #[arg(long, help_heading = "Stopping")]
    pub stop_signal_to: Option<StopTarget>,
    /// Start no hook in workers: without it `rankrun stacks` has no Python stacks. The hook is a sitecustomize.py
    /// that Python workers run first; it hides itself and runs the next one [default: a hook, as torchrun: none]
    #[arg(long, help_heading = "Workers")]
    pub no_hooks: bool,
    /// Start the hook also under the name torchrun
    #[arg(long, help_heading = "Workers")]
    pub hooks: bool,
    /// Let each worker name the launcher as its tracer, so that `rankrun stacks` can read the stacks of workers without
    /// a hook where Yama's mode is 1. Then all processes that the launcher has started may trace the workers, other
    /// ranks included [default: what the system permits]
    #[arg(long, help_heading = "Workers")]
    pub allow_ptrace: bool,
    /// When the job ends, write all that is known of its end to this file, as one JSON document: result, exit code,
    /// the first failure with its exception, hang, stacks and last lines. Each node writes its own file
    #[arg(long, value_name = "FILE", help_heading = "Output and logs")]
    pub report: Option<ReportFile>,
    /// On several nodes, the nodes that print the report of a worker that failed first: all of them, or the node of
    /// that worker alone, while the others print one line [default: all]
    #[arg(long, value_name = "NODES", help_heading = "Output and logs")]
    pub log_from: Option<LogFrom>,
    /// Where heartbeats come from, beside the program: trainer answers the Kubeflow callback of Hugging Face's Trainer
    /// in rank 0, so a training sends its steps without a change [default: the program alone]
    #[arg(long, help_heading = "Stopping")]
    pub progress: Option<ProgressSource>,
}

/// The nodes that print the report of a worker that failed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFrom {
    /// Every node of the job.
    All,
    /// The node of that worker.
    FirstFailure,
}

/// Where heartbeats come from, beside the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProgressSource {
    /// Hugging Face's Trainer, by its Kubeflow callback.
    Trainer,
}

/// Whether the workers get the variables of a distributed job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distributed {
    /// A single worker of one node does not.
    Auto,
    #[default]
    Always,
}

impl IndependentOptions {
    /// Whether Python workers of a launcher of this name run the hook.
    #[must_use]
    pub fn has_hooks(&self, cli_flavor: CliFlavor) -> bool {
        !self.no_hooks && (self.hooks || cli_flavor == CliFlavor::Rankrun)
    }

    /// The signal that workers get in a stop with this one. SIGKILL stays.
    #[must_use]
    pub fn signal_of_stop(&self, signal: Signal) -> Signal {
        let other = self.stop_signal.filter(|_| signal != Signal::SIGKILL);
        other.map_or(signal, |StopSignal(other)| other)
    }

    /// The processes of a worker that get the signal to stop, for a launcher of this name.
    #[must_use]
    pub fn stop_target(&self, cli_flavor: CliFlavor) -> StopTarget {
        self.stop_signal_to.unwrap_or(match cli_flavor {
            CliFlavor::Rankrun => StopTarget::Auto,
            CliFlavor::Torchrun => StopTarget::Group,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command, ValueEnum};

    use super::*;

    #[test]
    fn names_of_fields_are_names_of_options() {
        let value = serde_json::to_value(IndependentOptions::default()).unwrap();
        let fields: Vec<&String> = value.as_object().unwrap().keys().collect();
        let command = IndependentOptions::augment_args(Command::new("rankrun"));
        let mut options: Vec<&str> = command.get_arguments().filter_map(Arg::get_long).collect();
        options.sort_unstable();
        assert_eq!(fields, options);
    }

    #[test]
    fn words_are_printed_as_they_are_read() {
        for target in StopTarget::value_variants() {
            let word = target.to_possible_value().unwrap();
            assert_eq!(serde_json::to_value(target).unwrap(), word.get_name());
        }
        for distributed in Distributed::value_variants() {
            let word = distributed.to_possible_value().unwrap();
            assert_eq!(serde_json::to_value(distributed).unwrap(), word.get_name());
        }
        for source in ProgressSource::value_variants() {
            let word = source.to_possible_value().unwrap();
            assert_eq!(serde_json::to_value(source).unwrap(), word.get_name());
        }
    }
}
