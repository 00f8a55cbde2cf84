//! What was asked for, as far as it does not change. Pure, but for the names that a node gives itself.

use std::time::Duration;

use rankrun_contract::env::Master;
use rankrun_contract::rank::{LocalWorldSize, NodeRank, RestartCount, RunId};

use crate::facts::short_hostname;
use crate::rendezvous::address::loopback;
use crate::rendezvous::descriptor::{AgentDescriptor, PROTOCOL};
use crate::rendezvous::host::StoreEndpoint;
use crate::rendezvous::keys::RendezvousKeys;
use crate::spec::rendezvous::{NetworkSpec, NodeRange, RoundTimes};
use crate::spec::{RendezvousSpec, StoreHost};

use super::Setup;
use super::driver::random;

/// Without a ring the store is looked at as often as this: torchrun's agents ring nothing.
const POLL: Duration = Duration::from_secs(1);
/// Signs of life are given, and looked for, as often as this part of the lease.
const BEATS_IN_LEASE: u32 = 5;

/// torch's exit barrier: so long a node that is done waits for those of which nobody says whether they live.
const EXIT_BARRIER: Duration = Duration::from_secs(300);

/// What does not change.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) endpoint: StoreEndpoint,
    /// What names its host, as messages show it.
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
    /// The protocol that this agent speaks.
    pub(super) protocol: u32,
    pub(super) host: String,
    pub(super) nonce: u32,
    pub(super) max_restarts: RestartCount,
    /// The process on node rank 0 that opens the training store.
    pub(super) training_store_host: StoreHost,
    /// How long it is waited for others that say nothing.
    pub(super) exit_barrier: Duration,
    /// Where every node was told at its start which rank it has.
    pub(super) fixed: Option<Fixed>,
}

/// What the nodes of a job with given ranks know from the start.
#[derive(Debug, Clone)]
pub(super) struct Fixed {
    pub(super) run_id: RunId,
    pub(super) node_rank: NodeRank,
    /// Where the workers meet: in the one store.
    pub(super) master: Master,
}

impl Plan {
    /// What was asked for, and whether this node was told to host.
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
            fixed: None,
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
                plan.fixed = Some(Fixed { run_id, node_rank, master });
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

    /// Whether the endpoint says that all nodes are on this machine, and nothing names a way by which others come.
    pub(super) fn is_on_this_machine(&self) -> bool {
        let is_elsewhere = |addr: &str| loopback(addr).is_none();
        self.network.binds_loopback_only
            && self.endpoint.is_loopback()
            && self.network.iface.is_none()
            && !self.local_addr.as_deref().is_some_and(is_elsewhere)
    }

    /// Between two signs of life.
    pub(super) fn tick(&self) -> Duration {
        POLL.min(self.times.lease / BEATS_IN_LEASE)
    }

    /// What this agent says of itself.
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
