//! The environment of a worker: every variable's name, and the typed value ↔ variables both ways.
//!
//! Names and spellings are torchrun 2.15's (`torch/distributed/elastic/agent/server/local_elastic_agent.py`),
//! plus ours under `RANKRUN_`.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use crate::device::Device;
use crate::rank::{
    Generation, JobId, LocalRank, LocalWorldSize, NodeCount, NodeRank, ParseIdError, Rank, RestartCount,
    RunId, WorldSize,
};

/// Global rank of the worker.
pub const RANK: &str = "RANK";
/// Rank of the worker on its node.
pub const LOCAL_RANK: &str = "LOCAL_RANK";
/// Workers in the whole job.
pub const WORLD_SIZE: &str = "WORLD_SIZE";
/// Workers on this node.
pub const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
/// Rank of the node.
pub const GROUP_RANK: &str = "GROUP_RANK";
/// Nodes in this round.
pub const GROUP_WORLD_SIZE: &str = "GROUP_WORLD_SIZE";
/// Role of the worker (`--role`).
pub const ROLE_NAME: &str = "ROLE_NAME";
/// Rank among the workers of the same role.
pub const ROLE_RANK: &str = "ROLE_RANK";
/// Workers of the same role.
pub const ROLE_WORLD_SIZE: &str = "ROLE_WORLD_SIZE";
/// Host of the store.
pub const MASTER_ADDR: &str = "MASTER_ADDR";
/// Port of the store.
pub const MASTER_PORT: &str = "MASTER_PORT";
/// Restarts that this node's agent has used.
pub const RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";
/// Restarts that this node's agent may use.
pub const MAX_RESTARTS: &str = "TORCHELASTIC_MAX_RESTARTS";
/// The run id.
pub const RUN_ID: &str = "TORCHELASTIC_RUN_ID";
/// `True` when the agent hosts the store at `MASTER_ADDR:MASTER_PORT`, else `False`; torch compares the text.
pub const USE_AGENT_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";
/// Where the worker writes its error JSON; empty when there is no such place.
pub const ERROR_FILE: &str = "TORCHELASTIC_ERROR_FILE";
/// The signals that the launcher forwards, comma-separated names.
pub const SIGNALS_TO_HANDLE: &str = "TORCHELASTIC_SIGNALS_TO_HANDLE";
/// The mark of our job: an id of this launch, inherited by every process of it.
pub const JOB: &str = "RANKRUN_JOB";
/// The generation of the worker group, counted from 0.
pub const GENERATION: &str = "RANKRUN_GENERATION";
/// Which completed rendezvous of the job this is: a whole number that is the same on all nodes, and larger than that of
/// the generation before. Beside [`RESTART_COUNT`], which each node counts for itself. Not set in a job of one node.
pub const ROUND: &str = "RANKRUN_ROUND";
/// How many launches of each entrypoint are above this process, written by the innermost launcher.
pub const NESTING: &str = "RANKRUN_NESTING";
/// `1` in the environment of a process that may outlive a job that succeeded.
pub const KEEP: &str = "RANKRUN_KEEP";
/// The device of this worker, such as `cpu:0`; not set where the launcher did not look.
pub const DEVICE: &str = "RANKRUN_DEVICE";
/// The FIFO of this worker for its heartbeats, one line each: `STEP [section=NAME] [limit=SECONDS]`.
pub const HEARTBEAT: &str = "RANKRUN_HEARTBEAT";
/// The file of this worker's [progress page](crate::progress_page); a Python worker has none.
pub const PROGRESS_PAGE: &str = "RANKRUN_PROGRESS_PAGE";
/// The socket on which PyTorch's flight recorder in this worker is to answer; set with `--hang-timeout` alone.
pub const FLIGHT_RECORDER: &str = "RANKRUN_FLIGHT_RECORDER";
/// Where a Python worker writes its stacks for the launcher, `DESCRIPTOR:INODE:SIGNAL`; the launcher's hook takes it away.
pub const STACKS: &str = "RANKRUN_STACKS";
/// NCCL's library for the worker runtime: a path, which comes before every place where it would be looked for.
pub const NCCL_LIBRARY: &str = "RANKRUN_NCCL";
/// What carries the calls of process groups in Rust: `auto` (where it is not set), `shm`, `tcp` or `nccl`, the same for
/// all workers. A user sets it, with or without a launcher.
pub const BACKEND: &str = "RANKRUN_BACKEND";
/// The network interface on which workers reach other hosts, as torch's gloo takes it; `--iface` sets it.
pub const INTERFACE: &str = "GLOO_SOCKET_IFNAME";
/// The same for TensorPipe, which carries torch's RPC.
pub const TENSORPIPE_INTERFACE: &str = "TP_SOCKET_IFNAME";

/// Without any of these a process is a world of one. The other names above are of use outside of a job, too; those of
/// rankrun alone stand in a worker that is not told of its job (`--distributed auto`).
const LAUNCHER_VARIABLES: [&str; 12] = [
    RANK,
    LOCAL_RANK,
    WORLD_SIZE,
    LOCAL_WORLD_SIZE,
    GROUP_RANK,
    GROUP_WORLD_SIZE,
    ROLE_RANK,
    ROLE_WORLD_SIZE,
    RESTART_COUNT,
    MAX_RESTARTS,
    RUN_ID,
    USE_AGENT_STORE,
];

/// What tells a worker of its job: torchrun's variables but for [`ERROR_FILE`], which is of use to a single process.
pub const DISTRIBUTED_VARIABLES: [&str; 16] = [
    RANK,
    LOCAL_RANK,
    WORLD_SIZE,
    LOCAL_WORLD_SIZE,
    GROUP_RANK,
    GROUP_WORLD_SIZE,
    ROLE_NAME,
    ROLE_RANK,
    ROLE_WORLD_SIZE,
    MASTER_ADDR,
    MASTER_PORT,
    RESTART_COUNT,
    MAX_RESTARTS,
    RUN_ID,
    USE_AGENT_STORE,
    SIGNALS_TO_HANDLE,
];

/// Where the workers find the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Master {
    /// Host name or address, as text.
    pub addr: String,
    /// TCP port.
    pub port: u16,
    /// Whether the agent hosts it (then every worker is a client) or worker rank 0 does.
    pub uses_agent_store: bool,
}

/// A worker's place among those of its role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    /// `--role`.
    pub name: String,
    /// Rank among the workers of this role.
    pub rank: Rank,
    /// Workers of this role.
    pub world_size: WorldSize,
}

/// What only a rankrun launcher says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankrunEnv {
    /// The mark of the job.
    pub job: JobId,
    /// Which life of the worker group this is.
    pub generation: Generation,
    /// Which round of the job; `None` in a job of one node.
    pub round: Option<u64>,
    /// The worker's device; `None` where the launcher did not look.
    pub device: Option<Device>,
}

/// Everything that a launcher tells one worker through its environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerEnv {
    /// `RANK`.
    pub rank: Rank,
    /// `LOCAL_RANK`.
    pub local_rank: LocalRank,
    /// `WORLD_SIZE`.
    pub world_size: WorldSize,
    /// `LOCAL_WORLD_SIZE`.
    pub local_world_size: LocalWorldSize,
    /// `GROUP_RANK`.
    pub node_rank: NodeRank,
    /// `GROUP_WORLD_SIZE`.
    pub node_count: NodeCount,
    /// `ROLE_*`.
    pub role: Role,
    /// `MASTER_*` and `TORCHELASTIC_USE_AGENT_STORE`.
    pub master: Master,
    /// `TORCHELASTIC_RESTART_COUNT`.
    pub restart_count: RestartCount,
    /// `TORCHELASTIC_MAX_RESTARTS`.
    pub max_restarts: RestartCount,
    /// `TORCHELASTIC_RUN_ID`.
    pub run_id: RunId,
    /// `TORCHELASTIC_ERROR_FILE`; `None` is the empty text.
    pub error_file: Option<PathBuf>,
    /// `TORCHELASTIC_SIGNALS_TO_HANDLE`.
    pub signals_to_handle: String,
    /// `RANKRUN_*`; absent under another launcher.
    pub rankrun: Option<RankrunEnv>,
}

/// Why the environment does not describe a worker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// A variable that the launcher sets is absent although others of it are there.
    #[error("the environment variable `{name}` is missing")]
    Missing {
        /// The variable's name.
        name: &'static str,
    },
    /// A variable's value is not of its type.
    #[error("the environment variable `{name}` is invalid")]
    Invalid {
        /// The variable's name.
        name: &'static str,
        /// What is wrong with the value.
        source: ParseIdError,
    },
    /// A variable's value is not UTF-8 text.
    #[error("the environment variable `{name}` is not valid UTF-8: `{value}`")]
    NotUnicode {
        /// The variable's name.
        name: &'static str,
        /// The value, with what cannot be shown replaced.
        value: String,
    },
    /// A rank is not below its size.
    #[error("the environment variable `{name}` is {rank}, which does not fit in `{size_name}` = {size}")]
    OutOfRange {
        /// The rank's variable.
        name: &'static str,
        /// The rank.
        rank: u32,
        /// The size's variable.
        size_name: &'static str,
        /// The size.
        size: u32,
    },
}

impl WorkerEnv {
    /// The variables, in a fixed order, each name once.
    #[must_use]
    pub fn to_vars(&self) -> Vec<(&'static str, OsString)> {
        let text = |value: &dyn std::fmt::Display| OsString::from(value.to_string());
        let error_file = self.error_file.clone().unwrap_or_default().into_os_string();
        let mut vars = vec![
            (LOCAL_RANK, text(&self.local_rank)),
            (RANK, text(&self.rank)),
            (GROUP_RANK, text(&self.node_rank)),
            (ROLE_RANK, text(&self.role.rank)),
            (ROLE_NAME, text(&self.role.name)),
            (LOCAL_WORLD_SIZE, text(&self.local_world_size)),
            (WORLD_SIZE, text(&self.world_size)),
            (GROUP_WORLD_SIZE, text(&self.node_count)),
            (ROLE_WORLD_SIZE, text(&self.role.world_size)),
            (MASTER_ADDR, text(&self.master.addr)),
            (MASTER_PORT, text(&self.master.port)),
            (RESTART_COUNT, text(&self.restart_count)),
            (MAX_RESTARTS, text(&self.max_restarts)),
            (RUN_ID, text(&self.run_id)),
            (USE_AGENT_STORE, OsString::from(if self.master.uses_agent_store { "True" } else { "False" })),
            (ERROR_FILE, error_file),
            (SIGNALS_TO_HANDLE, text(&self.signals_to_handle)),
        ];
        if let Some(rankrun) = &self.rankrun {
            vars.push((JOB, text(&rankrun.job)));
            vars.push((GENERATION, text(&rankrun.generation)));
            if let Some(round) = &rankrun.round {
                vars.push((ROUND, text(round)));
            }
            if let Some(device) = &rankrun.device {
                vars.push((DEVICE, text(device)));
            }
        }
        vars
    }

    /// Reads the variables through `lookup`; `Ok(None)` where none of a launcher's is set.
    ///
    /// Under torchrun and rankrun, which are known by `TORCHELASTIC_RUN_ID` and `RANKRUN_JOB`, everything that
    /// they set is demanded: a guess would make worlds that do not know of each other. What other launchers
    /// leave out has torchrun's default: one node, role `default`, no restarts, store hosted by rank 0.
    ///
    /// # Errors
    /// Names the variable that is missing, is not of its type, or does not fit another one.
    pub fn from_vars(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, EnvError> {
        if LAUNCHER_VARIABLES.iter().all(|name| lookup(name).is_none()) {
            return Ok(None);
        }
        let is_elastic = lookup(RUN_ID).is_some() || lookup(JOB).is_some();
        let vars = Vars { lookup, is_elastic };
        let rank: Rank = vars.required(RANK)?;
        let world_size: WorldSize = vars.required(WORLD_SIZE)?;
        let local_rank = vars.optional(LOCAL_RANK)?.unwrap_or_default();
        let local_world_size = vars.optional(LOCAL_WORLD_SIZE)?.unwrap_or(LocalWorldSize(world_size.0));
        let node_rank = vars.optional(GROUP_RANK)?.unwrap_or_default();
        let node_count = vars.optional(GROUP_WORLD_SIZE)?.unwrap_or(NodeCount::ONE);
        let env = Self {
            rank,
            local_rank,
            world_size,
            local_world_size,
            node_rank,
            node_count,
            role: Role {
                name: vars.optional_text(ROLE_NAME)?.unwrap_or_else(|| "default".to_owned()),
                rank: vars.optional(ROLE_RANK)?.unwrap_or(rank),
                world_size: vars.optional(ROLE_WORLD_SIZE)?.unwrap_or(world_size),
            },
            master: Master {
                addr: vars.required_text(MASTER_ADDR)?,
                port: vars.port(MASTER_PORT)?,
                uses_agent_store: vars.optional_text(USE_AGENT_STORE)?.as_deref() == Some("True"),
            },
            restart_count: vars.optional(RESTART_COUNT)?.unwrap_or_default(),
            max_restarts: vars.optional(MAX_RESTARTS)?.unwrap_or_default(),
            run_id: RunId(vars.optional_text(RUN_ID)?.unwrap_or_else(|| "none".to_owned())),
            error_file: vars.path(ERROR_FILE)?,
            // Earlier versions of torchrun do not say it.
            signals_to_handle: vars.text(SIGNALS_TO_HANDLE)?.unwrap_or_default(),
            rankrun: vars.rankrun()?,
        };
        env.check()?;
        Ok(Some(env))
    }

    fn check(&self) -> Result<(), EnvError> {
        let pairs = [
            (RANK, self.rank.0, WORLD_SIZE, self.world_size.get()),
            (LOCAL_RANK, self.local_rank.0, LOCAL_WORLD_SIZE, self.local_world_size.get()),
            (GROUP_RANK, self.node_rank.0, GROUP_WORLD_SIZE, self.node_count.get()),
            (ROLE_RANK, self.role.rank.0, ROLE_WORLD_SIZE, self.role.world_size.get()),
        ];
        match pairs.into_iter().find(|(_, rank, _, size)| rank >= size) {
            Some((name, rank, size_name, size)) => Err(EnvError::OutOfRange { name, rank, size_name, size }),
            None => Ok(()),
        }
    }
}

/// Typed look-ups over the untyped one.
struct Vars<F> {
    lookup: F,
    /// Whether the launcher is one that sets everything.
    is_elastic: bool,
}

impl<F: Fn(&str) -> Option<OsString>> Vars<F> {
    fn text(&self, name: &'static str) -> Result<Option<String>, EnvError> {
        (self.lookup)(name).map(|value| to_unicode(name, &value)).transpose()
    }

    fn required_text(&self, name: &'static str) -> Result<String, EnvError> {
        self.text(name)?.ok_or(EnvError::Missing { name })
    }

    /// What not every launcher sets.
    fn optional_text(&self, name: &'static str) -> Result<Option<String>, EnvError> {
        if self.is_elastic { self.required_text(name).map(Some) } else { self.text(name) }
    }

    /// Not necessarily UTF-8; `None` if it is empty.
    fn path(&self, name: &'static str) -> Result<Option<PathBuf>, EnvError> {
        match (self.lookup)(name) {
            None if self.is_elastic => Err(EnvError::Missing { name }),
            path => Ok(path.filter(|path| !path.is_empty()).map(PathBuf::from)),
        }
    }

    fn optional<T: std::str::FromStr<Err = ParseIdError>>(
        &self,
        name: &'static str,
    ) -> Result<Option<T>, EnvError> {
        self.optional_text(name)?.map(|text| parse_value(name, &text)).transpose()
    }

    fn required<T: std::str::FromStr<Err = ParseIdError>>(&self, name: &'static str) -> Result<T, EnvError> {
        parse_value(name, &self.required_text(name)?)
    }

    fn port(&self, name: &'static str) -> Result<u16, EnvError> {
        let text = self.required_text(name)?;
        match text.parse::<u16>() {
            Ok(port) if port != 0 && text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(port),
            _ => Err(EnvError::Invalid {
                name,
                source: ParseIdError { text, expected: "a port from 1 to 65535" },
            }),
        }
    }

    fn round(&self) -> Result<Option<u64>, EnvError> {
        let Some(text) = self.text(ROUND)? else { return Ok(None) };
        match text.parse() {
            Ok(round) if text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(Some(round)),
            _ => Err(EnvError::Invalid {
                name: ROUND,
                source: ParseIdError { text, expected: "a whole number from 0 to 18446744073709551615" },
            }),
        }
    }

    fn rankrun(&self) -> Result<Option<RankrunEnv>, EnvError> {
        if [JOB, GENERATION, ROUND, DEVICE].iter().all(|name| (self.lookup)(name).is_none()) {
            return Ok(None);
        }
        Ok(Some(RankrunEnv {
            job: JobId(self.required_text(JOB)?),
            generation: self.required(GENERATION)?,
            round: self.round()?,
            device: self.text(DEVICE)?.map(|text| parse_value(DEVICE, &text)).transpose()?,
        }))
    }
}

/// The value of a variable that may be set with or without a launcher; `None` where it is not.
///
/// # Errors
/// Names the variable, its value and what is possible.
pub fn parse_var<T: std::str::FromStr<Err = ParseIdError>>(
    name: &'static str,
    lookup: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<T>, EnvError> {
    lookup(name).map(|value| parse_value(name, &to_unicode(name, &value)?)).transpose()
}

fn parse_value<T: std::str::FromStr<Err = ParseIdError>>(
    name: &'static str,
    text: &str,
) -> Result<T, EnvError> {
    text.parse().map_err(|source| EnvError::Invalid { name, source })
}

fn to_unicode(name: &'static str, value: &OsStr) -> Result<String, EnvError> {
    value
        .to_str()
        .map(str::to_owned)
        .ok_or_else(|| EnvError::NotUnicode { name, value: value.to_string_lossy().into_owned() })
}

#[cfg(test)]
mod tests;
