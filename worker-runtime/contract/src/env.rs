//! The environment of a worker: every variable's name, and the typed value ↔ variables both ways.
//!
//! Names and spellings are torchrun 2.15's (`torch/distributed/elastic/agent/server/local_elastic_agent.py`),
//! plus ours under `RANKRUN_`.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

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
/// Which life of the worker group this is, counted from 0.
pub const GENERATION: &str = "RANKRUN_GENERATION";
/// The device of this worker, such as `cpu:0`.
pub const DEVICE: &str = "RANKRUN_DEVICE";

/// Where the workers find the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Master {
    /// Host name or address, as text.
    pub addr: String,
    /// TCP port.
    pub port: u16,
    /// Whether the agent hosts it (then every worker is a client) or worker rank 0 does.
    pub agent_store: bool,
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
    /// The worker's device, such as `cpu:0`.
    pub device: String,
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
    /// A variable that every launcher sets is absent although `RANK` is there.
    #[error("the environment variable `{name}` is missing")]
    Missing {
        /// The variable's name.
        name: &'static str,
    },
    /// A variable's value is not of its type.
    #[error("the environment variable `{name}` is absurd: {source}")]
    Invalid {
        /// The variable's name.
        name: &'static str,
        /// What is wrong with the value.
        source: ParseIdError,
    },
    /// A variable's value is no UTF-8 text.
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
            (USE_AGENT_STORE, OsString::from(if self.master.agent_store { "True" } else { "False" })),
            (ERROR_FILE, error_file),
            (SIGNALS_TO_HANDLE, text(&self.signals_to_handle)),
        ];
        if let Some(rankrun) = &self.rankrun {
            vars.push((JOB, text(&rankrun.job)));
            vars.push((GENERATION, text(&rankrun.generation)));
            vars.push((DEVICE, text(&rankrun.device)));
        }
        vars
    }

    /// Reads the variables through `lookup`; `Ok(None)` where no launcher set `RANK` and `WORLD_SIZE`.
    ///
    /// What plain `torch.distributed` launchers leave out has torchrun's default: one node, role `default`,
    /// no restarts, store hosted by rank 0.
    ///
    /// # Errors
    /// Names the variable that is missing, is not of its type, or does not fit another one.
    pub fn from_vars(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, EnvError> {
        let vars = Vars { lookup };
        if (vars.lookup)(RANK).is_none() && (vars.lookup)(WORLD_SIZE).is_none() {
            return Ok(None);
        }
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
                name: vars.text(ROLE_NAME)?.unwrap_or_else(|| "default".to_owned()),
                rank: vars.optional(ROLE_RANK)?.unwrap_or(rank),
                world_size: vars.optional(ROLE_WORLD_SIZE)?.unwrap_or(world_size),
            },
            master: Master {
                addr: vars.text(MASTER_ADDR)?.ok_or(EnvError::Missing { name: MASTER_ADDR })?,
                port: vars.port(MASTER_PORT)?,
                agent_store: vars.text(USE_AGENT_STORE)?.as_deref() == Some("True"),
            },
            restart_count: vars.optional(RESTART_COUNT)?.unwrap_or_default(),
            max_restarts: vars.optional(MAX_RESTARTS)?.unwrap_or_default(),
            run_id: RunId(vars.text(RUN_ID)?.unwrap_or_else(|| "none".to_owned())),
            error_file: (vars.lookup)(ERROR_FILE).filter(|path| !path.is_empty()).map(PathBuf::from),
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
}

impl<F: Fn(&str) -> Option<OsString>> Vars<F> {
    fn text(&self, name: &'static str) -> Result<Option<String>, EnvError> {
        (self.lookup)(name).map(|value| unicode(name, &value)).transpose()
    }

    fn optional<T: std::str::FromStr<Err = ParseIdError>>(
        &self,
        name: &'static str,
    ) -> Result<Option<T>, EnvError> {
        self.text(name)?
            .map(|text| text.parse().map_err(|source| EnvError::Invalid { name, source }))
            .transpose()
    }

    fn required<T: std::str::FromStr<Err = ParseIdError>>(&self, name: &'static str) -> Result<T, EnvError> {
        self.optional(name)?.ok_or(EnvError::Missing { name })
    }

    fn port(&self, name: &'static str) -> Result<u16, EnvError> {
        let text = self.text(name)?.ok_or(EnvError::Missing { name })?;
        match text.parse::<u16>() {
            Ok(port) if port != 0 && text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(port),
            _ => Err(EnvError::Invalid {
                name,
                source: ParseIdError { text, expected: "a port from 1 to 65535" },
            }),
        }
    }

    fn rankrun(&self) -> Result<Option<RankrunEnv>, EnvError> {
        let Some(job) = self.text(JOB)? else { return Ok(None) };
        Ok(Some(RankrunEnv {
            job: JobId(job),
            generation: self.required(GENERATION)?,
            device: self.text(DEVICE)?.ok_or(EnvError::Missing { name: DEVICE })?,
        }))
    }
}

fn unicode(name: &'static str, value: &OsStr) -> Result<String, EnvError> {
    value
        .to_str()
        .map(str::to_owned)
        .ok_or_else(|| EnvError::NotUnicode { name, value: value.to_string_lossy().into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn worker(rank: u32, world: u32) -> WorkerEnv {
        let world_size = WorldSize::new(world).unwrap();
        WorkerEnv {
            rank: Rank(rank),
            local_rank: LocalRank(rank),
            world_size,
            local_world_size: LocalWorldSize(world_size.0),
            node_rank: NodeRank(0),
            node_count: NodeCount::ONE,
            role: Role { name: "trainer".to_owned(), rank: Rank(rank), world_size },
            master: Master { addr: "127.0.0.1".to_owned(), port: 29_500, agent_store: true },
            restart_count: RestartCount(1),
            max_restarts: RestartCount(3),
            run_id: RunId("j".to_owned()),
            error_file: Some(PathBuf::from("/tmp/e.json")),
            signals_to_handle: "SIGTERM".to_owned(),
            rankrun: Some(RankrunEnv {
                job: JobId("uuid".to_owned()),
                generation: Generation(2),
                device: "cpu:0".to_owned(),
            }),
        }
    }

    fn read(vars: &HashMap<&'static str, OsString>) -> Result<Option<WorkerEnv>, EnvError> {
        WorkerEnv::from_vars(|name| vars.get(name).cloned())
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(world in 1u32..2048, seed in 0u32..2048) {
            let env = worker(seed % world, world);
            let vars: HashMap<_, _> = env.to_vars().into_iter().collect();
            prop_assert_eq!(read(&vars), Ok(Some(env)));
        }
    }

    #[test]
    fn without_a_launcher_there_is_no_worker_env() {
        assert_eq!(read(&HashMap::new()), Ok(None));
    }

    #[test]
    fn a_missing_variable_is_named() {
        for name in [RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT] {
            let mut vars: HashMap<_, _> = worker(0, 2).to_vars().into_iter().collect();
            vars.remove(name);
            assert_eq!(read(&vars), Err(EnvError::Missing { name }));
        }
    }

    #[test]
    fn an_absurd_variable_is_named() {
        for (name, value) in
            [(RANK, "-1"), (WORLD_SIZE, "0"), (MASTER_PORT, "65536"), (LOCAL_RANK, "x"), (RANK, "2")]
        {
            let mut vars: HashMap<_, _> = worker(0, 2).to_vars().into_iter().collect();
            vars.insert(name, value.into());
            let error = read(&vars).expect_err("an absurd value was accepted").to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
