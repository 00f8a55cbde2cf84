//! Who this worker is: its environment, read once.

#![expect(clippy::disallowed_methods, reason = "a shell: the worker's environment is read here")]

use std::sync::Arc;
use std::time::Duration;

use rankrun_contract::device::Device;
use rankrun_contract::env::{self, EnvError, WorkerEnv};
use rankrun_contract::rank::{LocalRank, LocalWorldSize, NodeRank, Rank, RestartCount, RunId, WorldSize};

use crate::process_group::{Group, GroupError, GroupOptions, Wish};
use crate::store::{StoreError, TcpStore};

/// A worker's place in its job.
#[derive(Debug, Clone)]
pub struct WorkerContext {
    /// `None` outside any launcher.
    env: Option<WorkerEnv>,
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
        Self { run_id: env.run_id.clone(), env: Some(env), ..Self::alone() }
    }

    /// A world of one, which needs no store: rank 0, on whatever device the program takes.
    #[must_use]
    pub fn alone() -> Self {
        let run_id = RunId("none".to_owned());
        Self { env: None, run_id, backend: None, interface: None, host: None }
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

    /// The device that the launcher gives this worker; `None` where it has not looked for devices, as torchrun, and outside any
    /// launcher. The program chooses then.
    ///
    /// ```
    /// # use rankrun_worker::{Device, WorkerContext};
    /// # fn choose(context: &WorkerContext) -> String {
    /// match context.device() {
    ///     Some(Device::Cuda(ordinal)) => format!("GPU {ordinal} of those that this process sees"),
    ///     Some(Device::Cpu(_)) => "the processors".to_owned(),
    ///     Some(other) => format!("{other}, for which this program is not made"),
    ///     None => "the launcher has not looked".to_owned(),
    /// }
    /// # }
    /// # assert_eq!(choose(&WorkerContext::alone()), "the launcher has not looked");
    /// ```
    #[must_use]
    pub fn device(&self) -> Option<&Device> {
        self.env.as_ref()?.rankrun.as_ref()?.device.as_ref()
    }

    /// Which of the CUDA devices that this process sees is this worker's, if there are any: that of [`device`](Self::device), and
    /// `None` where that is of another kind. Where the launcher has not looked it is that of the local rank, as under torchrun,
    /// and the first one outside any launcher.
    #[must_use]
    pub fn cuda_ordinal(&self) -> Option<usize> {
        match self.device() {
            Some(Device::Cuda(ordinal)) => Some(*ordinal),
            Some(_) => None,
            None => Some(self.local_rank().index()),
        }
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

    /// What `RANKRUN_BACKEND` asks to carry the calls of process groups; `None` where it is not set.
    #[must_use]
    pub fn backend(&self) -> Option<Wish> {
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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// A worker of local rank 2 whose launcher gives it this device, if it looked.
    fn context(device: Option<&str>) -> WorkerContext {
        let torch = [
            (env::RANK, "2"),
            (env::WORLD_SIZE, "4"),
            (env::LOCAL_RANK, "2"),
            (env::MASTER_ADDR, "127.0.0.1"),
            (env::MASTER_PORT, "29500"),
        ];
        let vars: HashMap<_, _> = torch.into_iter().collect();
        let mut env = WorkerEnv::from_vars(|name| vars.get(name).map(Into::into)).unwrap().unwrap();
        env.rankrun = device.map(|device| env::RankrunEnv {
            job: rankrun_contract::rank::JobId("job".to_owned()),
            generation: rankrun_contract::rank::Generation(0),
            round: None,
            device: Some(device.parse().unwrap()),
        });
        WorkerContext::new(env)
    }

    #[test]
    fn cuda_ordinal_is_that_of_the_device() {
        for (told, ordinal) in [("cuda:5", Some(5)), ("cpu:2", None), ("rocm:1", None), ("tpu:1", None)] {
            let context = context(Some(told));
            assert_eq!(context.device().map(ToString::to_string).as_deref(), Some(told));
            assert_eq!(context.cuda_ordinal(), ordinal, "{told}");
        }
    }

    #[test]
    fn device_is_not_known_where_the_launcher_has_not_looked() {
        let (launched, alone) = (context(None), WorkerContext::alone());
        assert_eq!((launched.device(), launched.cuda_ordinal()), (None, Some(2)));
        assert_eq!((alone.device(), alone.cuda_ordinal()), (None, Some(0)));
    }
}
