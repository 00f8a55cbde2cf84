//! Who this worker is: its environment, read once.

#![expect(clippy::disallowed_methods, reason = "a shell: the worker's environment is read here")]

use std::sync::Arc;
use std::time::Duration;

use rankrun_contract::env::{self, EnvError, WorkerEnv};
use rankrun_contract::rank::{LocalRank, LocalWorldSize, NodeRank, Rank, RestartCount, RunId, WorldSize};

use crate::process_group::{Group, GroupError, GroupOptions, Wish};
use crate::store::{StoreError, TcpStore};

/// A worker's place in its job.
#[derive(Debug, Clone)]
pub struct WorkerContext {
    /// `None` outside any launcher.
    env: Option<WorkerEnv>,
    device: String,
    run_id: RunId,
    /// `RANKRUN_BACKEND`.
    backend: Option<Wish>,
    /// `GLOO_SOCKET_IFNAME`.
    interface: Option<Arc<str>>,
    /// Where this worker says that it is, if it says anything.
    host: Option<String>,
}

impl WorkerContext {
    /// Reads the variables that a launcher sets; without them this process is a world of its own.
    ///
    /// # Errors
    /// Names the variable that is missing or absurd.
    pub fn from_env() -> Result<Self, EnvError> {
        let lookup = |name: &str| std::env::var_os(name);
        let context = WorkerEnv::from_vars(lookup)?.map_or_else(Self::alone, Self::new);
        let interface = std::env::var(env::INTERFACE).ok().filter(|name| !name.is_empty()).map(Arc::from);
        Ok(Self { backend: env::setting(env::BACKEND, lookup)?, interface, ..context })
    }

    /// The place that `env` describes.
    #[must_use]
    pub fn new(env: WorkerEnv) -> Self {
        let told = env.rankrun.as_ref().and_then(|rankrun| rankrun.device.clone());
        let device = told.unwrap_or_else(|| format!("cpu:{}", env.local_rank));
        Self { device, run_id: env.run_id.clone(), env: Some(env), ..Self::alone() }
    }

    /// A world of one: rank 0 on `cpu:0`, for which no store is needed.
    #[must_use]
    pub fn alone() -> Self {
        let (device, run_id) = ("cpu:0".to_owned(), RunId("none".to_owned()));
        Self { env: None, device, run_id, backend: None, interface: None, host: None }
    }

    /// The same place on a host of this name: ranks share memory with those that are on a host of the same name. It is for tests, in
    /// which workers of one machine are to meet as those of several do. A name has up to 200 visible ASCII characters; with
    /// any other one this worker is on a host of its own.
    #[must_use]
    pub fn on_host(self, name: &str) -> Self {
        Self { host: Some(name.to_owned()), ..self }
    }

    /// What the launcher said, word for word; `None` outside any launcher.
    #[must_use]
    pub fn env(&self) -> Option<&WorkerEnv> {
        self.env.as_ref()
    }

    /// This worker's index in the whole job.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.env.as_ref().map_or(Rank(0), |env| env.rank)
    }

    /// This worker's index on its node.
    #[must_use]
    pub fn local_rank(&self) -> LocalRank {
        self.env.as_ref().map_or(LocalRank(0), |env| env.local_rank)
    }

    /// How many workers the whole job has.
    #[must_use]
    pub fn world_size(&self) -> WorldSize {
        self.env.as_ref().map_or(WorldSize::ONE, |env| env.world_size)
    }

    /// How many workers this node has.
    #[must_use]
    pub fn local_world_size(&self) -> LocalWorldSize {
        self.env.as_ref().map_or(LocalWorldSize::ONE, |env| env.local_world_size)
    }

    /// The node's index in the job.
    #[must_use]
    pub fn node_rank(&self) -> NodeRank {
        self.env.as_ref().map_or(NodeRank(0), |env| env.node_rank)
    }

    /// How often the workers were started again.
    #[must_use]
    pub fn restart_count(&self) -> RestartCount {
        self.env.as_ref().map_or(RestartCount(0), |env| env.restart_count)
    }

    /// The id of the run.
    #[must_use]
    pub fn run_id(&self) -> &RunId {
        &self.run_id
    }

    /// Which of the CUDA devices that this process sees is this worker's, if there are any: the one that the launcher tells, that of
    /// its local rank where it tells none (as torchrun), the first outside any launcher. `None` if the launcher tells a device
    /// of another kind.
    #[must_use]
    pub fn cuda_ordinal(&self) -> Option<usize> {
        let told = self.env.as_ref().and_then(|env| env.rankrun.as_ref()?.device.as_deref());
        match told {
            Some(device) => device.strip_prefix("cuda:")?.parse().ok(),
            None => usize::try_from(self.local_rank().0).ok(),
        }
    }

    /// The device of this worker, such as `cpu:0`; that of its local rank where no launcher said one.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Connects to the job's store, trying for `timeout`.
    ///
    /// # Errors
    /// The store cannot be reached; outside a launcher there is none.
    pub fn store(&self, timeout: Duration) -> Result<TcpStore, StoreError> {
        match &self.env {
            Some(env) => TcpStore::connect(&env.master.addr, env.master.port, timeout),
            None => Err(StoreError::NoLauncher),
        }
    }

    /// Joins the group of all ranks.
    ///
    /// # Errors
    /// As [`Group::join`].
    pub fn process_group(&self, options: &GroupOptions) -> Result<Group, GroupError> {
        Group::join(self, options)
    }

    /// What the environment asks to carry the calls of process groups.
    pub(crate) fn backend(&self) -> Option<Wish> {
        self.backend
    }

    /// The network interface for other hosts, where one is named.
    pub(crate) fn interface(&self) -> Option<Arc<str>> {
        self.interface.clone()
    }

    /// The host on which this worker says that it is.
    pub(crate) fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// Which life of the workers this is, as all ranks count it: a store may outlive one. Of several nodes each counts
    /// its own generations, and all have the same round.
    pub(crate) fn life(&self) -> u32 {
        let Some(env) = &self.env else { return 0 };
        let Some(rankrun) = &env.rankrun else { return env.restart_count.0 };
        let round = rankrun.round.map(|round| u32::try_from(round).unwrap_or(u32::MAX));
        round.unwrap_or(rankrun.generation.0)
    }
}
