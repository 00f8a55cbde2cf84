//! What was asked for: one `LaunchSpec`, whatever the grammar it was typed in. No trace of clap, no flags.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use rankrun_contract::rank::{LocalRank, LocalWorldSize, RestartCount, RunId};

/// The name we go by: it decides grammar details, console, and exit statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persona {
    /// Our own name.
    Rankrun,
    /// Started under the name `torchrun`: what it does, we do.
    Torchrun,
}

/// Everything that the user decided about one launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchSpec {
    /// The name we go by.
    pub persona: Persona,
    /// What each worker runs.
    pub entrypoint: Entrypoint,
    /// The arguments behind it, before the `${local_rank}` macro.
    pub args: Vec<OsString>,
    /// Workers on this node.
    pub workers: LocalWorldSize,
    /// `--role`.
    pub role: String,
    /// How the workers find each other.
    pub rendezvous: RendezvousSpec,
    /// `--max-restarts`.
    pub max_restarts: RestartCount,
    /// How a worker group is stopped.
    pub stop: StopPolicy,
    /// Where the workers' output goes.
    pub logs: LogSpec,
    /// Who reads the launcher's standard input.
    pub stdin: StdinPolicy,
    /// Variables that the launcher adds for every worker, beside the contract's.
    pub defaults: WorkerDefaults,
}

/// What each worker runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entrypoint {
    /// `PYTHON -u SCRIPT args…`
    Script {
        /// The interpreter.
        python: PathBuf,
        /// The script as it was typed.
        script: OsString,
    },
    /// `PYTHON -u -m MODULE args…`
    Module {
        /// The interpreter.
        python: PathBuf,
        /// The module's dotted name.
        module: OsString,
    },
    /// `PROGRAM args…`
    Program {
        /// The file to execute, already looked up in `PATH`.
        path: PathBuf,
        /// `argv[0]`: the program as it was typed.
        name: OsString,
    },
}

/// How the workers of the job find each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RendezvousSpec {
    /// One node, a store on a free port (torchrun's `--standalone`, and its default).
    Standalone {
        /// A fresh UUID, unless the user gave an id that counts.
        run_id: RunId,
        /// `--local-addr`: the address that the workers are told.
        local_addr: Option<String>,
        /// `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`: worker rank 0 opens the store instead of the agent.
        worker_store: bool,
    },
    /// One node, a store on the given port (torchrun's static rendezvous).
    Static {
        /// `--rdzv-id`, torch's default `none`.
        run_id: RunId,
        /// `--master-addr`.
        addr: String,
        /// `--master-port`; 0 is any free one.
        port: u16,
    },
}

impl RendezvousSpec {
    /// The run id of either kind.
    #[must_use]
    pub const fn run_id(&self) -> &RunId {
        match self {
            Self::Standalone { run_id, .. } | Self::Static { run_id, .. } => run_id,
        }
    }
}

/// How a worker group is stopped: a signal to each process group, then SIGKILL after the grace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopPolicy {
    /// From the signal to SIGKILL.
    pub grace: Duration,
}

/// Where the workers' output goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSpec {
    /// The log tree.
    pub dir: LogDir,
    /// `--redirects`: to files instead of the console.
    pub redirects: StreamMap,
    /// `--tee`: to files and, with a prefix, to the console.
    pub tee: StreamMap,
}

/// Base of the log tree (`--log-dir`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogDir {
    /// In the temporary folder, if there is a writable one.
    Temporary(PathBuf),
    /// Where the user said; a failure to make it is an error.
    At(PathBuf),
    /// `/dev/null`: no tree, and no redirects, as under torchrun.
    Off,
}

/// Which of stdout and stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Streams {
    /// Bit 1 of torchrun's value.
    pub stdout: bool,
    /// Bit 2 of torchrun's value.
    pub stderr: bool,
}

/// torchrun's `-r`/`-t` value: one choice for all local ranks, or one per named rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamMap {
    /// The same for every local rank.
    All(Streams),
    /// Named ranks; the others get none. A rank named twice: the last counts.
    Ranks(Vec<(LocalRank, Streams)>),
}

/// Who reads the launcher's standard input (`--stdin`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StdinPolicy {
    /// Every worker inherits it, as under torchrun.
    All,
    /// One local rank inherits it, the others read nothing.
    Only(LocalRank),
    /// Nobody.
    None,
}

/// Variables that the launcher adds for every worker unless the user set them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerDefaults {
    /// `OMP_NUM_THREADS=1`: more than one worker, and the user did not say.
    pub single_omp_thread: bool,
    /// `TORCH_NCCL_ASYNC_ERROR_HANDLING=1`: the user did not say.
    pub nccl_async_error_handling: bool,
}

/// A small launch for tests: two workers that run `/bin/true`.
#[cfg(test)]
pub(crate) fn example() -> LaunchSpec {
    let none = StreamMap::All(Streams::default());
    LaunchSpec {
        persona: Persona::Rankrun,
        entrypoint: Entrypoint::Program { path: PathBuf::from("/bin/true"), name: "true".into() },
        args: Vec::new(),
        workers: LocalWorldSize::new(2).unwrap(),
        role: "default".to_owned(),
        rendezvous: RendezvousSpec::Standalone {
            run_id: RunId("example".to_owned()),
            local_addr: None,
            worker_store: false,
        },
        max_restarts: RestartCount(0),
        stop: StopPolicy { grace: Duration::from_secs(30) },
        logs: LogSpec { dir: LogDir::Off, redirects: none.clone(), tee: none },
        stdin: StdinPolicy::All,
        defaults: WorkerDefaults { single_omp_thread: false, nccl_async_error_handling: false },
    }
}
