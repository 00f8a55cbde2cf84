//! The settings of a rendezvous that do not change while it lives, made from the launch specification. No state, no IO.

use std::time::Duration;

use rankrun_contract::env::Master;
use rankrun_contract::rank::{LocalWorldSize, NodeRank, RestartCount, RunId};

use crate::rendezvous::address::loopback;
use crate::rendezvous::host::StoreEndpoint;
use crate::system::short_hostname;
use rankrun_core::rendezvous::descriptor::{AgentDescriptor, PROTOCOL};
use rankrun_core::rendezvous::keys::RendezvousKeys;
use rankrun_core::spec::rendezvous::{NetworkSpec, NodeRange, RoundTimes};
use rankrun_core::spec::{RendezvousSpec, StoreHost};

use super::Setup;
use super::rendezvous_task::random;

/// The state is read this often without a notification: torchrun agents send none.
const READ_PERIOD: Duration = Duration::from_secs(1);
/// Number of heartbeats in a lease.
const HEARTBEATS_IN_LEASE: u32 = 5;

/// torch's exit barrier: a node that has succeeded waits so long for nodes without heartbeats.
const EXIT_BARRIER: Duration = Duration::from_secs(300);

/// The fixed settings of a rendezvous.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) endpoint: StoreEndpoint,
    /// The option, variable or file key that names its host.
    pub(super) named_by: Option<String>,
    pub(super) keys: RendezvousKeys,
    pub(super) nodes: NodeRange,
    pub(super) node_rank: Option<NodeRank>,
    pub(super) times: RoundTimes,
    pub(super) local_addr: Option<String>,
    pub(super) network: NetworkSpec,
    pub(super) role: String,
    pub(super) entrypoint: String,
    pub(super) version: String,
    /// Protocol version of this agent.
    pub(super) protocol: u32,
    pub(super) host: String,
    pub(super) nonce: u32,
    pub(super) max_restarts: RestartCount,
    /// The process on node rank 0 that opens the training store.
    pub(super) training_store_host: StoreHost,
    /// How long a node that has succeeded waits for nodes without heartbeats.
    pub(super) exit_barrier: Duration,
    /// Set in a static job.
    pub(super) static_job: Option<StaticPlan>,
}

/// What every node of a static job was given at its start.
#[derive(Debug, Clone)]
pub(super) struct StaticPlan {
    pub(super) run_id: RunId,
    pub(super) node_rank: NodeRank,
    /// The master address of the workers: that of the one store.
    pub(super) master: Master,
}

impl Plan {
    /// The settings, and whether the user said that this node hosts.
    pub(super) fn of(setup: Setup) -> (Self, Option<bool>) {
        let Setup { spec, network, role, workers: _, entrypoint, version, max_restarts } = setup;
        let standalone = || StoreEndpoint { host: "localhost".to_owned(), port: 0 };
        let nonce = u32::try_from(random() & 0xffff_ffff).unwrap_or(0);
        let mut plan = Self {
            endpoint: standalone(),
            named_by: None,
            keys: RendezvousKeys::dynamic(spec.run_id()),
            nodes: NodeRange::ONE,
            node_rank: None,
            times: RoundTimes::default(),
            local_addr: None,
            network,
            role,
            entrypoint,
            version,
            protocol: PROTOCOL,
            host: short_hostname(),
            nonce,
            max_restarts,
            training_store_host: spec.store().host,
            exit_barrier: EXIT_BARRIER,
            static_job: None,
        };
        let is_host = match spec {
            RendezvousSpec::C10d {
                run_id: _,
                host,
                port,
                named_by,
                local_addr,
                worker_store: _,
                nodes,
                is_host,
                node_rank,
                times,
            } => {
                (plan.endpoint, plan.named_by) = (StoreEndpoint { host, port }, named_by);
                (plan.nodes, plan.node_rank, plan.times) = (nodes, node_rank, times);
                plan.local_addr = local_addr;
                is_host
            }
            RendezvousSpec::Static { run_id, addr, port, named_by, local_addr, nodes, node_rank, times } => {
                (plan.endpoint, plan.named_by) = (StoreEndpoint { host: addr.clone(), port }, named_by);
                plan.keys = RendezvousKeys::static_keys(&run_id);
                (plan.nodes, plan.node_rank) = (NodeRange { min: nodes, max: nodes }, Some(node_rank));
                (plan.local_addr, plan.times) = (local_addr, times);
                let master = Master { addr, port, uses_agent_store: true };
                plan.static_job = Some(StaticPlan { run_id, node_rank, master });
                Some(node_rank == NodeRank(0))
            }
            RendezvousSpec::Standalone { run_id: _, local_addr, worker_store: _ } => {
                plan.local_addr = local_addr;
                Some(true)
            }
        };
        (plan, is_host)
    }

    /// Whether the job has one node.
    pub(super) fn is_alone(&self) -> bool {
        !self.nodes.allows_many()
    }

    /// Whether all nodes are on this machine: the endpoint is a loopback address, and no option names another one.
    pub(super) fn is_on_this_machine(&self) -> bool {
        let is_elsewhere = |addr: &str| loopback(addr).is_none();
        self.network.binds_loopback_only
            && self.endpoint.is_loopback()
            && self.network.iface.is_none()
            && !self.local_addr.as_deref().is_some_and(is_elsewhere)
    }

    /// The time between two heartbeats.
    pub(super) fn tick(&self) -> Duration {
        READ_PERIOD.min(self.times.lease / HEARTBEATS_IN_LEASE)
    }

    /// The descriptor of this agent.
    pub(super) fn descriptor(&self, workers: LocalWorldSize) -> AgentDescriptor {
        AgentDescriptor {
            protocol: self.protocol,
            version: self.version.clone(),
            host: self.host.clone(),
            nodes: self.nodes,
            node_rank: self.node_rank,
            lease: self.times.lease,
            workers,
            entrypoint: self.entrypoint.clone(),
            nonce: self.nonce,
            max_restarts: Some(self.max_restarts),
        }
    }
}
