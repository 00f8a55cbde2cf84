//! The environment of this worker, read once: its rank, its store and its device. It
//! comes from the launcher (or torchrun).

#![expect(clippy::disallowed_methods, reason = "a shell: the worker's environment is read here")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rankrun_contract::device::Device;
use rankrun_contract::env::{self, EnvError, WorkerEnv};
use rankrun_contract::rank::{LocalRank, LocalWorldSize, NodeRank, Rank, RestartCount, RunId, WorldSize};

use crate::heartbeat::HeartbeatSender;
use crate::process_group::{BackendChoice, Group, GroupError, GroupOptions};
use crate::progress_page::ProgressPage;
use crate::store::{StoreError, TcpStore};

/// Rank, store and device of this worker.
#[derive(Debug, Clone)]
pub struct WorkerContext {
    /// `None` without a launcher.
    env: Option<WorkerEnv>,
    run_id: RunId,
    /// `RANKRUN_BACKEND`.
    backend: Option<BackendChoice>,
    /// `GLOO_SOCKET_IFNAME`.
    interface: Option<Arc<str>>,
    /// `RANKRUN_HEARTBEAT`.
    heartbeat: HeartbeatSender,
    /// `RANKRUN_PROGRESS_PAGE`.
    progress_page: ProgressPage,
    /// Overrides the detected host, in tests.
    host: Option<String>,
}

impl WorkerContext {
    /// Reads the variables of the launcher. Without them this process is a world of one.
    ///
    /// # Errors
    /// Names the variable that is missing or invalid.
    pub fn from_env() -> Result<Self, EnvError> {
        let lookup = |name: &str| std::env::var_os(name);
        let context = WorkerEnv::from_vars(lookup)?.map_or_else(Self::single_process, Self::new);
        let interface = std::env::var(env::INTERFACE).ok().filter(|name| !name.is_empty()).map(Arc::from);
        let heartbeat = lookup(env::HEARTBEAT).map(|path| HeartbeatSender::open(Path::new(&path)));
        let heartbeat = heartbeat.unwrap_or_default();
        let progress_page = lookup(env::PROGRESS_PAGE).map(|path| ProgressPage::open(Path::new(&path)));
        let progress_page = progress_page.unwrap_or_default();
        let backend = env::parse_var(env::BACKEND, lookup)?;
        Ok(Self { backend, interface, heartbeat, progress_page, ..context })
    }

    /// The context that `env` describes.
    #[must_use]
    pub fn new(env: WorkerEnv) -> Self {
        Self { run_id: env.run_id.clone(), env: Some(env), ..Self::single_process() }
    }

    /// A world of one without a store: rank 0, with no assigned device.
    #[must_use]
    pub fn single_process() -> Self {
        let run_id = RunId("none".to_owned());
        Self {
            env: None,
            run_id,
            backend: None,
            interface: None,
            heartbeat: HeartbeatSender::default(),
            progress_page: ProgressPage::default(),
            host: None,
        }
    }

    /// Overrides the host: ranks with the same host name share memory. For tests, in which workers of one
    /// machine act as several hosts. A name has up to 200 visible ASCII characters; with any other one this
    /// worker gets a host of its own.
    #[must_use]
    pub fn with_host(self, name: &str) -> Self {
        Self { host: Some(name.to_owned()), ..self }
    }

    /// The launcher's variables; `None` without a launcher.
    #[must_use]
    pub fn env(&self) -> Option<&WorkerEnv> {
        self.env.as_ref()
    }

    /// Rank within the job, from 0.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.env.as_ref().map_or(Rank(0), |env| env.rank)
    }

    /// Rank within the node, from 0.
    #[must_use]
    pub fn local_rank(&self) -> LocalRank {
        self.env.as_ref().map_or(LocalRank(0), |env| env.local_rank)
    }

    /// Number of workers in the job.
    #[must_use]
    pub fn world_size(&self) -> WorldSize {
        self.env.as_ref().map_or(WorldSize::ONE, |env| env.world_size)
    }

    /// Number of workers on this node.
    #[must_use]
    pub fn local_world_size(&self) -> LocalWorldSize {
        self.env.as_ref().map_or(LocalWorldSize::ONE, |env| env.local_world_size)
    }

    /// Index of the node in the job, from 0.
    #[must_use]
    pub fn node_rank(&self) -> NodeRank {
        self.env.as_ref().map_or(NodeRank(0), |env| env.node_rank)
    }

    /// Number of restarts of the workers so far.
    #[must_use]
    pub fn restart_count(&self) -> RestartCount {
        self.env.as_ref().map_or(RestartCount(0), |env| env.restart_count)
    }

    /// Id of the run: `TORCHELASTIC_RUN_ID`.
    #[must_use]
    pub fn run_id(&self) -> &RunId {
        &self.run_id
    }

    /// The device that the launcher assigned. `None` under torchrun and
    /// without a launcher: the program chooses.
    ///
    /// ```
    /// # use rankrun_worker::{Device, WorkerContext};
    /// # fn choose(context: &WorkerContext) -> String {
    /// match context.device() {
    ///     Some(Device::Cuda(ordinal)) => format!("GPU {ordinal} of the visible ones"),
    ///     Some(Device::Cpu(_)) => "the CPU".to_owned(),
    ///     Some(other) => format!("{other}, which this program does not support"),
    ///     None => "no device was assigned".to_owned(),
    /// }
    /// # }
    /// # assert_eq!(choose(&WorkerContext::single_process()), "no device was assigned");
    /// ```
    #[must_use]
    pub fn device(&self) -> Option<&Device> {
        self.env.as_ref()?.rankrun.as_ref()?.device.as_ref()
    }

    /// Ordinal of this worker's CUDA device among the visible ones: that of [`device`](Self::device), or
    /// `None` if that is of another kind. Without an assigned device it is the local rank, as under torchrun.
    #[must_use]
    pub fn cuda_ordinal(&self) -> Option<usize> {
        match self.device() {
            Some(Device::Cuda(ordinal)) => Some(*ordinal),
            Some(_) => None,
            None => Some(self.local_rank().index()),
        }
    }

    /// Connects to the store of the job, with retries for `timeout`.
    ///
    /// # Errors
    /// The store cannot be reached; without a launcher there is none.
    pub fn store(&self, timeout: Duration) -> Result<TcpStore, StoreError> {
        match &self.env {
            Some(env) => TcpStore::connect(&env.master.addr, env.master.port, timeout),
            None => Err(StoreError::NoLauncher),
        }
    }

    /// Joins the group of all ranks of the job.
    ///
    /// # Errors
    /// As [`Group::join`].
    pub fn process_group(&self, options: &GroupOptions) -> Result<Group, GroupError> {
        Group::join(self, options)
    }

    /// Tells the launcher that this step is done, so that it finds a hang (`--hang-timeout`). It costs one write
    /// and never waits. Without a launcher that watches, it does nothing.
    pub fn progress(&self, step: u64) {
        self.heartbeat.send_step(step);
    }

    /// Tells the launcher that a part of the program begins behind this step which may take longer than a
    /// step, such as `checkpoint`. It lasts until the next [`progress`](Self::progress). A name has letters,
    /// digits, `-`, `_`, `.` and `/`.
    pub fn begin_section(&self, step: u64, name: &str, limit: Duration) {
        self.heartbeat.send_section(step, name, limit);
    }

    /// The backend that `RANKRUN_BACKEND` requests for process groups.
    #[must_use]
    pub fn backend(&self) -> Option<BackendChoice> {
        self.backend
    }

    /// The network interface for other hosts, from `GLOO_SOCKET_IFNAME`.
    pub(crate) fn interface(&self) -> Option<Arc<str>> {
        self.interface.clone()
    }

    /// Where groups mark their collectives.
    pub(crate) const fn progress_page(&self) -> &ProgressPage {
        &self.progress_page
    }

    /// The host set by [`with_host`](Self::with_host).
    pub(crate) fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// Generation of the workers, equal on all ranks: a store may outlive one. With several nodes it is the
    /// round, since each node counts its own generations.
    pub(crate) fn generation(&self) -> u32 {
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

    /// A worker of local rank 2, with this assigned device.
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
    fn cuda_ordinal_equals_device_index() {
        for (device, ordinal) in [("cuda:5", Some(5)), ("cpu:2", None), ("rocm:1", None), ("tpu:1", None)] {
            let context = context(Some(device));
            assert_eq!(context.device().map(ToString::to_string).as_deref(), Some(device));
            assert_eq!(context.cuda_ordinal(), ordinal, "{device}");
        }
    }

    #[test]
    fn device_without_launcher_variable_is_none() {
        let (launched, alone) = (context(None), WorkerContext::single_process());
        assert_eq!((launched.device(), launched.cuda_ordinal()), (None, Some(2)));
        assert_eq!((alone.device(), alone.cuda_ordinal()), (None, Some(0)));
    }
}
