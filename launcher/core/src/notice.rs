//! Notices: lines that the launcher prints once, before the workers start.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use crate::posix::Signal;
use rankrun_contract::rank::{LocalWorldSize, NodeCount};

use crate::spec::setting::Origin;

/// One thing to say once at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Something of another launcher's command line that has no effect here, as a sentence.
    OfOtherLauncher(String),
    /// The places where one expects Python name different ones.
    Python {
        /// The one that runs the workers.
        taken: PathBuf,
        /// Why this one.
        source: PythonSource,
        /// The others, with their places.
        others: Vec<(PythonSource, PathBuf)>,
    },
    /// More than one worker and no `OMP_NUM_THREADS`: each worker gets 1. The sentence is torchrun's, since people
    /// search for it.
    SingleOmpThread,
    /// More than one worker and no `OMP_NUM_THREADS`: they share the CPUs.
    OmpThreads {
        /// What each worker gets.
        threads: u32,
        /// CPUs that this process may run on.
        cpus: usize,
        /// Workers on this node.
        workers: LocalWorldSize,
    },
    /// Something was said that has no effect here.
    Ignored {
        /// What was said.
        origin: Origin,
        /// Why it has no effect.
        because: IgnoredBecause,
    },
    /// `--nnodes MIN:MAX` of a static rendezvous.
    AllNodes {
        /// Where it came from.
        origin: Origin,
        /// As it was written.
        value: String,
        /// How many are waited for.
        nodes: NodeCount,
    },
    /// More nodes may come, and none can.
    Alone {
        /// Where their number came from.
        origin: Origin,
        /// As it was written.
        value: String,
    },
    /// The job runs on a part of its nodes.
    SeparateJobs(SeparateJobs),
    /// No option names the place where the nodes meet.
    OnThisMachine {
        /// On which port of each machine.
        port: u16,
    },
    /// An empty `--rdzv-id`: torch makes one up.
    MadeUpRunId {
        /// The one.
        run_id: String,
    },
    /// An item of `--signals-to-handle` that stops nothing.
    Signal {
        /// Where the list came from.
        origin: Origin,
        /// The item.
        name: String,
        /// Why.
        problem: SignalProblem,
    },
    /// `--warn-signal` is for a time before the start.
    WarnedAtStart {
        /// Where it came from.
        origin: Origin,
        /// Its value.
        value: String,
        /// `--time-limit`
        limit: Duration,
    },
    /// `--progress-dir` does not exist.
    NoProgressFolder {
        /// As it was written.
        folder: PathBuf,
    },
    /// The device of one worker.
    WorkerDevice {
        /// As it is said.
        line: String,
    },
    /// All workers run on the CPUs, and no setting asks for that.
    OnCpus {
        /// As it is said.
        line: String,
    },
    /// Something about the devices or their choice that may surprise.
    Device {
        /// As it is said.
        text: String,
    },
    /// A detail, such as a missing library or the number of workers; shown at
    /// [`Verbosity::Info`](crate::spec::Verbosity).
    Detail {
        /// As it is said.
        text: String,
        /// The line of torch's `run.py` that says this, where it does.
        torch_line: Option<u32>,
    },
    /// A variable with the prefix of rankrun or torchrun that nothing reads.
    UnknownVariable {
        /// Its name.
        name: String,
        /// Which variables it may have meant.
        question: Option<String>,
    },
    /// Words behind the entrypoint that are options of the launcher.
    BehindEntrypoint {
        /// As they were typed, each with its value.
        options: Vec<String>,
        /// As it was typed.
        entrypoint: String,
    },
    /// A variable that the launcher sets for each worker is set outside of one.
    WorkerVariable {
        /// Its name.
        name: &'static str,
        /// The variable for users.
        meant: String,
    },
    /// A key of `--rdzv-conf` that nothing reads.
    UnknownConfKey {
        /// Where the list came from.
        origin: Origin,
        /// The key.
        key: String,
        /// A key that is written nearly so.
        nearest: Option<&'static str>,
    },
    /// Local ranks are named that do not exist.
    NoSuchRanks {
        /// Where they are named.
        origin: Origin,
        /// The value.
        value: String,
        /// Workers on this node.
        workers: LocalWorldSize,
        /// What follows from it.
        effect: &'static str,
    },
    /// A `LOGLEVEL` that is none.
    UnknownLogLevel {
        /// Its value.
        value: String,
    },
}

/// Why one Python is a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PythonSource {
    /// `PYTHON_EXEC` names it.
    PythonExec,
    /// It stands beside the launcher.
    Beside,
    /// `PATH` leads to it.
    Path,
    /// It is in `VIRTUAL_ENV`.
    VirtualEnv,
    /// It is in `CONDA_PREFIX`.
    CondaPrefix,
}

impl fmt::Display for PythonSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PythonExec => "named by `PYTHON_EXEC`",
            Self::Beside => "which stands beside the launcher",
            Self::Path => "found in `PATH`",
            Self::VirtualEnv => "of `VIRTUAL_ENV`",
            Self::CondaPrefix => "of `CONDA_PREFIX`",
        })
    }
}

/// What says that a job does not run on all of its nodes, and the command line with which it does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeparateJobs {
    /// Each of several tasks runs a job of its own.
    Tasks {
        /// What says that there are several.
        variable: &'static str,
        /// How many.
        tasks: u32,
        /// The command line that makes one job of them.
        line: String,
    },
    /// The launcher was started by hand or by a batch script, and the Slurm allocation has more nodes.
    Allocation {
        /// How many.
        nodes: u32,
        /// The command line that makes one job on all of them.
        line: String,
    },
}

impl fmt::Display for SeparateJobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tasks { variable, tasks, line } => write!(
                f,
                "`{variable}` says that this is one of {tasks} tasks, and each runs a separate job; one job is started by \
                 `{line}`"
            ),
            Self::Allocation { nodes, line } => write!(
                f,
                "the job runs on this machine alone, and the Slurm allocation has {nodes} nodes; one job on all of them is \
                 started by `{line}`"
            ),
        }
    }
}

/// Why a name in `--signals-to-handle` stops nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalProblem {
    /// No signal has this name.
    Unknown,
    /// The kernel, or the launcher itself, needs it for something else.
    CannotBeHandled,
}

/// Why a setting has no effect. An option that decides in its place has its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IgnoredBecause {
    /// `--standalone` overrides it.
    Standalone(Origin),
    /// Without `--master-port` a job of one node is as with `--standalone`.
    ImplicitStandalone,
    /// The store has a port of the user's choice, and the address that belongs to it.
    FixedPort,
    /// `--rdzv-endpoint` says where the store is.
    Endpoint(Origin),
    /// Only the static rendezvous has it.
    OnlyStatic,
    /// Nodes always tell each other how many workers they have.
    WorkerCountsAreExchanged,
    /// `--run-path` says how the entrypoint runs.
    RunPath(Origin),
    /// Workers are always started in one way.
    OneStartMethod,
    /// `--log-dir /dev/null` makes no files.
    NoLogTree(Origin),
}

impl fmt::Display for IgnoredBecause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Standalone(origin) => return write!(f, "{origin} chooses for itself"),
            Self::Endpoint(origin) => return write!(f, "{origin} says it"),
            Self::RunPath(origin) => return write!(f, "{origin} says how the script runs"),
            Self::NoLogTree(origin) => return write!(f, "{origin} is `/dev/null`, which has no files"),
            Self::ImplicitStandalone => "one node without `--master-port` is as with `--standalone`",
            Self::FixedPort => "with a given port the workers are told the address given with it",
            Self::OnlyStatic => "only the static rendezvous has it",
            Self::WorkerCountsAreExchanged => "nodes always tell each other how many workers they have",
            Self::OneStartMethod => "every worker is a fresh process",
        })
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Python { taken, source, others } => write_python(f, (taken, source), others),
            Self::OmpThreads { threads, cpus, workers } => omp_threads(*threads, *cpus, *workers).fmt(f),
            Self::SingleOmpThread => f.write_str(
                "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid \
                 your system being overloaded, please further tune the variable for optimal performance in \
                 your application as needed",
            ),
            Self::Ignored { origin, because } => write!(f, "{origin} has no effect: {because}"),
            Self::AllNodes { origin, value, nodes } => {
                write!(f, "{origin} is `{value}`, and a static rendezvous waits for all {nodes} nodes")
            }
            Self::Alone { origin, value } => {
                write!(f, "{origin} is `{value}`, and no other node can find a store on a free port")
            }
            Self::SeparateJobs(jobs) => jobs.fmt(f),
            Self::OnThisMachine { port } => write!(
                f,
                "no `--rdzv-endpoint` is given: this node meets others at `localhost:{port}`; on other machines it \
                 needs the name of this one"
            ),
            Self::MadeUpRunId { run_id } => write!(f, "the run id is empty, so it is `{run_id}`"),
            Self::Signal { origin, name, problem: SignalProblem::Unknown } => {
                write!(f, "{origin} names `{name}`, which is not a signal; {}", signal_meant_by(name))
            }
            Self::Signal { origin, name, problem: SignalProblem::CannotBeHandled } => {
                write!(f, "{origin} names `{name}`, which a launcher cannot handle")
            }
            Self::WarnedAtStart { origin, value, limit } => write!(
                f,
                "{origin} is `{value}`, and the time limit is {}: the workers get the signal at the start",
                humantime::format_duration(*limit)
            ),
            Self::NoProgressFolder { folder } => write!(
                f,
                "`{}`, where progress is to be seen, does not exist yet: until it does there is none",
                folder.display()
            ),
            Self::WorkerDevice { line: text }
            | Self::OnCpus { line: text }
            | Self::Device { text }
            | Self::Detail { text, .. } => f.write_str(text),
            Self::UnknownVariable { name, question } => unknown_variable(name, question.as_deref()).fmt(f),
            Self::BehindEntrypoint { options, entrypoint } => write_behind(f, options, entrypoint),
            Self::WorkerVariable { name, meant } => {
                write!(f, "`{name}` is set by the launcher for each worker; did you mean `{meant}`?")
            }
            Self::UnknownConfKey { origin, key, nearest } => {
                write!(f, "{origin} has the key `{key}`, which has no effect{}", question_for(*nearest))
            }
            Self::NoSuchRanks { origin, value, workers, effect } => {
                write!(
                    f,
                    "{origin} is `{value}`, but the local ranks are 0 to {}: {effect}",
                    workers.get() - 1
                )
            }
            Self::OfOtherLauncher(sentence) => f.write_str(sentence),
            Self::UnknownLogLevel { value } => write!(f, "`LOGLEVEL` is `{value}`, which is not {LEVELS}"),
        }
    }
}

const LEVELS: &str = "DEBUG, INFO, WARNING, ERROR or CRITICAL; warnings and errors are shown";

fn omp_threads(threads: u32, cpus: usize, workers: LocalWorldSize) -> String {
    let unit = if cpus == 1 { "CPU" } else { "CPUs" };
    format!("each worker gets `OMP_NUM_THREADS={threads}`: {cpus} {unit} for {} workers", workers.get())
}

fn question_for(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!("; did you mean `{nearest}`?"))
}

fn signal_meant_by(name: &str) -> String {
    match Signal::from_str(&format!("SIG{}", name.to_uppercase())) {
        Ok(signal) => format!("did you mean `{signal}`?"),
        Err(_) => "signals are written as in `SIGTERM`".to_owned(),
    }
}

fn write_behind(f: &mut fmt::Formatter<'_>, options: &[String], entrypoint: &str) -> fmt::Result {
    let one = ("stands", "goes", "it", "it");
    let (stand, go, they, them) = if options.len() == 1 { one } else { ("stand", "go", "they", "them") };
    let options: Vec<String> = options.iter().map(|option| format!("`{option}`")).collect();
    write!(
        f,
        "{} {stand} behind `{entrypoint}` and {go} to it; if {they} should reach the launcher, put {them} before \
         `{entrypoint}`; a `--` before {them} silences this line",
        options.join(", ")
    )
}

fn unknown_variable(name: &str, question: Option<&str>) -> String {
    let family = if name.starts_with("PET_") { "torchrun's `PET_*`" } else { "our `RANKRUN_*`" };
    let question = question.map_or_else(String::new, |question| format!("; {question}"));
    format!("`{name}` has no effect: it is none of {family} variables{question}")
}

fn write_python(
    f: &mut fmt::Formatter<'_>,
    (taken, source): (&Path, &PythonSource),
    others: &[(PythonSource, PathBuf)],
) -> fmt::Result {
    write!(f, "the workers run `{}`, {source}, not ", taken.display())?;
    for (at, (source, path)) in others.iter().enumerate() {
        let comma = if at == 0 { "" } else { ", nor " };
        write!(f, "{comma}`{}`, {source}", path.display())?;
    }
    Ok(())
}
