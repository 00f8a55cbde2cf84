//! The resolved request of a user: one `LaunchSpec`, whatever the grammar it was typed in. Plain data; `cli`
//! makes it, the agent reads it.

pub mod device_request;
#[cfg(any(test, feature = "fakes"))]
pub mod fake;
pub mod options;
pub mod output_stream;
pub mod rendezvous;
pub mod report_file;
pub mod restart;
pub mod setting;
pub mod signal;
pub mod stop;
pub mod wrap;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::iter;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::posix::Signal;

use crate::device::{DeviceChoice, DeviceType};
use crate::spec::device_request::DeviceRequest;
use crate::spec::options::{Distributed, IndependentOptions, ProgressSource};
use crate::spec::rendezvous::{NetworkSpec, NodeRange, RoundTimes};
use crate::spec::restart::RestartPolicy;
use crate::spec::stop::{LeftoverPolicy, StopPolicy, TimeLimit};
use crate::spec::wrap::Wrapper;
use rankrun_contract::rank::{LocalRank, LocalWorldSize, NodeCount, NodeRank, Rank, RestartCount, RunId};

/// No time that is asked for is longer: longer than any job, and short enough to be added to any instant.
pub const MAX_DURATION: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Where the workers meet unless the user named another address.
pub const LOOPBACK: &str = "127.0.0.1";

/// The name we go by: it decides grammar details, console, and exit statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CliFlavor {
    /// The command is called `rankrun`.
    Rankrun,
    /// Started under the name `torchrun`: behaves as torchrun does.
    Torchrun,
}

/// How much the launcher says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Verbosity {
    /// Errors only (`LOGLEVEL=ERROR`).
    Error,
    /// Also warnings, which is the default.
    #[default]
    Warn,
    /// Also what the launcher does (`-v`).
    Info,
    /// Also each step (`-vv`).
    Debug,
}

/// The format of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputFormat {
    /// A text for people.
    Text,
    /// `--json`: one JSON value.
    Json,
}

/// Everything that the user decided about one launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchSpec {
    /// The command name, which selects the rules.
    pub cli_flavor: CliFlavor,
    /// The program that each worker runs.
    pub entrypoint: Entrypoint,
    /// The arguments behind it, before the `${local_rank}` macro.
    pub args: Vec<OsString>,
    /// The number of workers on this node.
    pub workers: LocalWorldSize,
    /// The role of the workers (`--role`).
    pub role: String,
    /// How the workers find each other.
    pub rendezvous: RendezvousSpec,
    /// How this node is reached, and where it may listen.
    pub network: NetworkSpec,
    /// The restart budget of the job (`--max-restarts`).
    pub max_restarts: RestartCount,
    /// The conditions and delays of restarts.
    pub restart: RestartPolicy,
    /// How a worker group is stopped.
    pub stop: StopPolicy,
    /// Treatment of processes that outlive the workers of a job that succeeded.
    pub leftovers: LeftoverPolicy,
    /// `--start-timeout`: every worker of a generation has joined the store within this time.
    pub start_timeout: Option<Duration>,
    /// `--hang-timeout` and `--first-step-timeout`.
    pub hang: HangTimes,
    /// The time limit of the job (`--time-limit`).
    pub time_limit: Option<TimeLimit>,
    /// Which signals stop the job, and which the workers get and nothing else happens.
    pub signals: SignalSpec,
    /// `TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT`: a worker in uninterruptible sleep for longer has failed.
    pub dstate_timeout: Option<Duration>,
    /// The destinations of the workers' output.
    pub logs: LogSpec,
    /// The launcher is one of several on this node, each with one worker.
    pub node_task: Option<NodeTask>,
    /// Which worker reads the launcher's standard input.
    pub stdin: StdinPolicy,
    /// Variables that the launcher adds for every worker, beside the contract's.
    pub defaults: WorkerDefaults,
    /// The chosen devices, and the device of each worker.
    pub devices: DeviceChoice,
    /// The device options; devices are assigned by them again after a device has died.
    pub device_request: DeviceRequest,
    /// The sink of torch's events (`--event-log-handler`).
    pub events: EventLog,
    /// The launcher's own `TORCHELASTIC_ERROR_FILE`, which its parent process reads.
    pub parent_error_file: Option<PathBuf>,
    /// `--leave-out`: this worker is started by hand.
    pub external_worker: Option<LocalRank>,
    /// The value of `RANKRUN_NESTING` for the workers.
    pub nesting: String,
    /// `--wrap`: commands in front of the program of chosen ranks; of several the first one is the outermost.
    pub wrappers: Vec<Wrapper>,
    /// Options that need no other setting.
    pub options: IndependentOptions,
}

/// The place of a launcher that a scheduler started for one rank: to the rendezvous each launcher is a node of one worker,
/// and the worker gets the numbers of its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeTask {
    /// `LOCAL_RANK`: the index of the task among those of this machine; 0 where the task sees its own devices alone.
    pub local_rank: LocalRank,
    /// `LOCAL_WORLD_SIZE`: the tasks on this machine.
    pub local_world_size: LocalWorldSize,
    /// `GROUP_RANK`: the index of the machine in the job.
    pub node_rank: NodeRank,
    /// `GROUP_WORLD_SIZE`: the machines of the job.
    pub nodes: NodeCount,
}

/// How long workers may show no progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HangTimes {
    /// `--hang-timeout`: workers without progress for this time have failed. Without it the user is warned.
    pub timeout: Option<Duration>,
    /// `--first-step-timeout`: the time until the first heartbeat, and of a section without a limit of its own.
    pub first_step: Option<Duration>,
}

impl LaunchSpec {
    /// The effect of a dead device, if the devices are checked; CPUs need no check.
    #[must_use]
    pub fn device_check(&self) -> Option<Unhealthy> {
        let has_devices = self.devices.workers.iter().any(|worker| worker.kind != DeviceType::Cpu);
        self.device_request.check.as_ref().map(|check| check.value).filter(|_| has_devices)
    }

    /// Whether the workers are told of their job.
    #[must_use]
    pub fn is_distributed(&self) -> bool {
        let is_alone = self.workers == LocalWorldSize::ONE && self.rendezvous.nodes().max == NodeCount::ONE;
        self.options.distributed == Distributed::Always || !is_alone
    }

    /// The wrappers of this rank.
    pub fn wrappers_of(&self, rank: Rank) -> impl DoubleEndedIterator<Item = &Wrapper> {
        self.wrappers.iter().filter(move |wrapper| wrapper.command.ranks.contains(rank))
    }

    /// Whether workers get channels by which they show their progress. A worker that a person debugs may stand still.
    /// Under the name torchrun only the option asks for them.
    #[must_use]
    pub fn watches_progress(&self) -> bool {
        let is_wanted = self.cli_flavor == CliFlavor::Rankrun || self.hang.timeout.is_some();
        is_wanted && self.external_worker.is_none()
    }

    /// Whether the Trainer of rank 0 reports to the launcher.
    #[must_use]
    pub fn answers_trainer(&self) -> bool {
        self.options.progress == Some(ProgressSource::Trainer) && self.watches_progress()
    }

    /// Whether workers are asked for the collectives that PyTorch has recorded: the hook starts what answers.
    #[must_use]
    pub fn asks_flight_recorders(&self) -> bool {
        self.hang.timeout.is_some() && self.has_hooks()
    }

    /// Whether workers get a progress page, which the runtime of Rust workers fills.
    #[must_use]
    pub fn has_progress_pages(&self) -> bool {
        !self.entrypoint.is_python()
    }

    /// Whether the stacks of workers are taken before a SIGKILL. The kernel shows something of each program.
    #[must_use]
    pub fn takes_stacks(&self) -> bool {
        self.cli_flavor == CliFlavor::Rankrun || self.has_hooks()
    }

    /// Whether Python runs the launcher's hook first in each worker.
    #[must_use]
    pub fn has_hooks(&self) -> bool {
        self.options.has_hooks(self.cli_flavor) && self.entrypoint.is_python()
    }

    /// The files that workers execute, the wrappers' too.
    pub fn programs(&self) -> impl Iterator<Item = &Path> {
        let wrappers = self.wrappers.iter().map(|wrapper| wrapper.path.as_path());
        iter::once(self.entrypoint.program()).chain(wrappers)
    }
}

/// The program that each worker runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entrypoint {
    /// A Python script: `PYTHON -u SCRIPT args…`.
    Script {
        /// The path of the Python interpreter.
        python: PathBuf,
        /// The script as it was typed.
        script: OsString,
    },
    /// A Python module: `PYTHON -u -m MODULE args…`.
    Module {
        /// The path of the Python interpreter.
        python: PathBuf,
        /// The module's name, with its dots.
        module: OsString,
    },
    /// `--run-path`: a Python child that runs the script as `__main__`; `sys.argv[0]` is the script.
    RunPath {
        /// The path of the Python interpreter.
        python: PathBuf,
        /// The script as it was typed.
        script: OsString,
    },
    /// Any other program: `PROGRAM args…`.
    Program {
        /// The file to execute, already looked up in `PATH`.
        path: PathBuf,
        /// `argv[0]`: the program as it was typed.
        name: OsString,
    },
}

impl Entrypoint {
    /// The file that a worker's exec runs.
    #[must_use]
    pub fn program(&self) -> &Path {
        match self {
            Self::Script { python, .. } | Self::Module { python, .. } | Self::RunPath { python, .. } => {
                python
            }
            Self::Program { path, .. } => path,
        }
    }

    /// Whether a worker's process is Python's.
    #[must_use]
    pub fn is_python(&self) -> bool {
        match self {
            Self::Script { .. } | Self::Module { .. } | Self::RunPath { .. } => true,
            Self::Program { path, .. } => is_python(path),
        }
    }
}

/// `python3.11`, `python3.13t`, `pypy3`; the kernel adds a word to the name of a removed file.
pub(crate) fn is_python(program: &Path) -> bool {
    let name = program.file_name().map_or(&b""[..], OsStr::as_bytes);
    name.starts_with(b"python") || name.starts_with(b"pypy")
}

/// How the workers of the job find each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RendezvousSpec {
    /// One node, a store on a free port (torchrun's `--standalone`, and its default).
    Standalone {
        /// A fresh UUID, unless the user gave an id that counts.
        run_id: RunId,
        /// `--local-addr`: the address that the workers get.
        local_addr: Option<String>,
        /// `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`: worker rank 0 opens the store instead of the agent.
        worker_store: bool,
    },
    /// torch's dynamic rendezvous: a store for the agents on the endpoint, and a second one, on a free port of the
    /// node with rank 0, for the workers.
    C10d {
        /// The id of the job (`--rdzv-id`).
        run_id: RunId,
        /// The host in `--rdzv-endpoint`, without the port.
        host: String,
        /// Port of `--rdzv-endpoint`; 0 is any free one.
        port: u16,
        /// The source of the host, as messages show it: an option, a variable, a key of a file; `None` by default.
        named_by: Option<String>,
        /// `--local-addr`: the address that the workers get.
        local_addr: Option<String>,
        /// `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`: worker rank 0 opens the workers' store instead of the agent.
        worker_store: bool,
        /// The range of node counts (`--nnodes`).
        nodes: NodeRange,
        /// `is_host` of `--rdzv-conf`: whether this node hosts the store; else it is guessed from the endpoint.
        is_host: Option<bool>,
        /// `--node-rank`, which counts where every node of a round gives another one.
        node_rank: Option<NodeRank>,
        /// How long each step may take.
        times: RoundTimes,
    },
    /// A fixed number of nodes, and a store on the given port of the one with rank 0 (torchrun's static rendezvous).
    Static {
        /// The id of the job (`--rdzv-id`), torch's default `none`.
        run_id: RunId,
        /// The address of the first node (`--master-addr`).
        addr: String,
        /// `--master-port`; 0 is any free one.
        port: u16,
        /// The source of the host, as messages show it: an option, a variable, a key of a file; `None` by default.
        named_by: Option<String>,
        /// `--local-addr`: where the other nodes reach this one.
        local_addr: Option<String>,
        /// The fixed number of nodes (`--nnodes`).
        nodes: NodeCount,
        /// The rank of this node (`--node-rank`).
        node_rank: NodeRank,
        /// How long each step may take; `join` is `timeout` of `--rdzv-conf`.
        times: RoundTimes,
    },
}

impl RendezvousSpec {
    /// The run id of each kind.
    #[must_use]
    pub const fn run_id(&self) -> &RunId {
        match self {
            Self::Standalone { run_id, .. } | Self::C10d { run_id, .. } | Self::Static { run_id, .. } => {
                run_id
            }
        }
    }

    /// How many nodes the job may have.
    #[must_use]
    pub const fn nodes(&self) -> NodeRange {
        match self {
            Self::Standalone { .. } => NodeRange::ONE,
            Self::C10d { nodes, .. } => *nodes,
            Self::Static { nodes, .. } => NodeRange { min: *nodes, max: *nodes },
        }
    }

    /// Whether other nodes may take part, so that there is a rendezvous. Nodes that are not needed wait as spares.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::C10d { .. }) || self.nodes().max > NodeCount::ONE
    }

    /// The host that this node looks up at its start.
    #[must_use]
    pub fn host(&self) -> &str {
        match self {
            Self::C10d { host, .. } => host,
            Self::Standalone { .. } | Self::Static { .. } => self.store().addr,
        }
    }

    /// Where the workers meet: on the loopback, unless the user named another address.
    #[must_use]
    pub fn store(&self) -> StorePlan<'_> {
        match self {
            Self::Standalone { local_addr, worker_store, .. }
            | Self::C10d { local_addr, worker_store, .. } => StorePlan {
                addr: local_addr.as_deref().unwrap_or(LOOPBACK),
                source: None,
                port: 0,
                host: if *worker_store { StoreHost::Worker } else { StoreHost::Agent },
            },
            Self::Static { addr, port, named_by, .. } => {
                StorePlan { addr, source: named_by.as_deref(), port: *port, host: StoreHost::Agent }
            }
        }
    }
}

/// Where the workers meet, as far as it is decided before the launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StorePlan<'a> {
    /// The host that the workers get.
    pub addr: &'a str,
    /// The source of the host, as messages show it, where that is known.
    pub source: Option<&'a str>,
    /// The port; 0 means any free port.
    pub port: u16,
    /// The process that opens the store.
    pub host: StoreHost,
}

/// Which process opens the workers' store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreHost {
    /// The agent, once for all generations.
    Agent,
    /// Worker rank 0, in each generation anew (`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`).
    Worker,
}

/// The meaning of signals to the launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignalSpec {
    /// `--signals-to-handle` as it was written: the workers see it in `TORCHELASTIC_SIGNALS_TO_HANDLE`.
    pub text: String,
    /// These stop the job; the workers get the same one.
    pub stop: Vec<Signal>,
    /// These the workers get, and nothing else happens.
    pub forward: Vec<Signal>,
}

impl SignalSpec {
    /// torchrun's default, in its order; nothing is forwarded.
    #[must_use]
    pub fn torchrun() -> Self {
        Self {
            text: "SIGTERM,SIGINT,SIGHUP,SIGQUIT".to_owned(),
            stop: vec![Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT],
            forward: Vec::new(),
        }
    }
}

/// The effect of a dead device on the launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unhealthy {
    /// A launch on a dead device is refused.
    Refuse,
    /// `--exclude-unhealthy`: the launch continues without that device.
    Exclude,
}

/// The sink of torch's events (`--event-log-handler`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventLog {
    /// The events are not written at all.
    Off,
    /// The events are JSON lines on standard error.
    Console,
}

/// The destinations of the workers' output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSpec {
    /// The folder of the log tree.
    pub dir: LogDir,
    /// `--redirects`: to files instead of the console.
    pub redirects: StreamMap,
    /// `--tee`: to files and, with a prefix, to the console.
    pub tee: StreamMap,
    /// `--local-ranks-filter`: local ranks with output on the console; all of them if not given.
    pub console: Option<BTreeSet<LocalRank>>,
    /// The template of the line prefix (`--log-line-prefix-template`); `None` is `[<role><local rank>]:`.
    pub prefix: Option<String>,
    /// Which tee'd lines are copied to one more file.
    pub duplicates: LineFilters,
}

/// `--duplicate-stdout-filters` and `--duplicate-stderr-filters`: a tee'd line that contains one of these texts
/// goes, with its prefix, to `filtered_stdout.log` or `filtered_stderr.log` of the attempt folder too.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LineFilters {
    /// The texts that select lines of standard output.
    pub stdout: Vec<String>,
    /// The texts that select lines of standard error.
    pub stderr: Vec<String>,
}

/// Base of the log tree (`--log-dir`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogDir {
    /// In the temporary folder, if there is a writable one.
    Temporary(PathBuf),
    /// The same under our own name, for error files alone: they are removed when the report shows their content.
    ErrorFiles(PathBuf),
    /// Where the user said; a failure to make it is an error.
    At(PathBuf),
    /// `/dev/null`: no tree, and no redirects, as under torchrun.
    Off,
}

impl LogDir {
    /// The folder that the user knows.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        match self {
            Self::Temporary(folder) | Self::ErrorFiles(folder) | Self::At(folder) => Some(folder),
            Self::Off => None,
        }
    }
}

/// A selection of stdout and stderr, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Streams {
    /// Standard output, bit 1 of torchrun's value.
    pub stdout: bool,
    /// Standard error, bit 2 of torchrun's value.
    pub stderr: bool,
}

/// torchrun's `-r`/`-t` value: one choice for all local ranks, or one per named rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamMap {
    /// The same for every local rank.
    All(Streams),
    /// Named ranks; all other ranks get none. A rank named twice: the last counts.
    Ranks(Vec<(LocalRank, Streams)>),
}

/// Which worker reads the launcher's standard input (`--stdin`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StdinPolicy {
    /// Every worker inherits it, as under torchrun.
    All,
    /// One local rank inherits it, the other workers read nothing.
    Only(LocalRank),
    /// No worker reads the standard input.
    None,
}

/// Variables that the launcher adds for every worker unless the user set them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerDefaults {
    /// `TORCH_NCCL_ASYNC_ERROR_HANDLING=1`: set if the user did not set it.
    pub nccl_async_error_handling: bool,
    /// `GLOO_SOCKET_IFNAME`, `TP_SOCKET_IFNAME` and `NCCL_SOCKET_IFNAME` where the user did not set them, with the name
    /// of `--iface`.
    pub interfaces: Vec<(&'static str, String)>,
    /// `GLOO_SOCKET_IFNAME` and `TP_SOCKET_IFNAME` where the user did not set them, in a job of several hosts without
    /// `--iface`: they get the interface of the connection to the rendezvous store.
    pub connection_interfaces: Vec<&'static str>,
    /// The path of `--nccl-lib`, for `RANKRUN_NCCL`.
    pub nccl_library: Option<PathBuf>,
}
