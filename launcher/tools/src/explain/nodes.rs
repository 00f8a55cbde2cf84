//! The multi-node part of a launch's plan. Pure: no other node is asked, so their decisions are unknown.

use serde::Serialize;

use rankrun_contract::env::{
    GROUP_RANK, GROUP_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, RANK, ROLE_RANK, ROLE_WORLD_SIZE, ROUND,
    WORLD_SIZE,
};
use rankrun_contract::rank::NodeRank;

use rankrun_core::rendezvous::Round;
use rankrun_core::spec::rendezvous::{NetworkSpec, RoundTimes};
use rankrun_core::spec::{LaunchSpec, RendezvousSpec};
use rankrun_host::rendezvous::address::loopback;
use rankrun_host::system::short_hostname;

/// The part of this node in a job of several nodes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodesSection {
    /// The fewest nodes of a round.
    pub min: u32,
    /// The most nodes of a round.
    pub max: u32,
    /// The rendezvous backend: `static` or `c10d`.
    pub rendezvous: &'static str,
    /// The rank of this node, where it is set.
    pub node_rank: Option<u32>,
    /// The process that opens the rendezvous store, in words.
    pub store_opened_by: String,
    /// How long the nodes may take to come together.
    pub join_timeout_seconds: f64,
    /// How long more nodes are waited for once there are enough.
    pub last_call_seconds: Option<f64>,
    /// A node without a heartbeat for so long is lost.
    pub lease_seconds: f64,
    /// The address that this node publishes, where it is set.
    pub local_addr: Option<String>,
    /// The interface by which other nodes reach this one, if it is set.
    pub interface: Option<String>,
    /// Where it listens, beside the port that was set.
    pub ports: Option<ListenPorts>,
}

/// The only ports on which the launcher listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ListenPorts {
    /// The lowest port of the range.
    pub first: u16,
    /// The highest port of the range.
    pub last: u16,
}

/// `None` for a job of one node.
pub(super) fn nodes_of(spec: &LaunchSpec) -> Option<NodesSection> {
    let range = spec.rendezvous.nodes();
    let (rendezvous, node_rank, times, local_addr) = match &spec.rendezvous {
        RendezvousSpec::C10d { node_rank, times, local_addr, .. } => ("c10d", *node_rank, times, local_addr),
        RendezvousSpec::Static { node_rank, times, local_addr, .. } if range.allows_many() => {
            ("static", Some(*node_rank), times, local_addr)
        }
        RendezvousSpec::Static { .. } | RendezvousSpec::Standalone { .. } => return None,
    };
    let RoundTimes { join, last_call, lease, .. } = times;
    let NetworkSpec { iface, ports, .. } = &spec.network;
    Some(NodesSection {
        min: range.min.get(),
        max: range.max.get(),
        rendezvous,
        node_rank: node_rank.map(|rank| rank.0),
        store_opened_by: host_of(&spec.rendezvous),
        join_timeout_seconds: join.as_secs_f64(),
        last_call_seconds: (range.min != range.max).then_some(last_call.as_secs_f64()),
        lease_seconds: lease.as_secs_f64(),
        local_addr: local_addr.clone(),
        interface: iface.clone(),
        ports: ports.map(|ports| ListenPorts { first: ports.first, last: ports.last }),
    })
}

/// Without a look-up no more can be said about a name than whether it is ours.
fn host_of(rendezvous: &RendezvousSpec) -> String {
    match rendezvous {
        RendezvousSpec::Standalone { .. } | RendezvousSpec::Static { node_rank: NodeRank(0), .. } => {
            "this node".to_owned()
        }
        RendezvousSpec::Static { .. } => "the node with rank 0".to_owned(),
        RendezvousSpec::C10d { is_host: Some(true), .. } => "this node".to_owned(),
        RendezvousSpec::C10d { is_host: Some(false), .. } => "another node".to_owned(),
        RendezvousSpec::C10d { host, .. } if is_local_host(host) => {
            "the first launcher on this machine".to_owned()
        }
        RendezvousSpec::C10d { host, .. } => format!("the first launcher on the machine `{host}`"),
    }
}

fn is_local_host(host: &str) -> bool {
    loopback(host).is_some() || host == short_hostname()
}

/// Whether the value of this variable is only known after the nodes' rendezvous.
pub(super) fn is_agreed_on(spec: &LaunchSpec, name: &str) -> bool {
    let range = spec.rendezvous.nodes();
    if !range.allows_many() {
        return false;
    }
    match (&spec.rendezvous, name) {
        (_, WORLD_SIZE | ROLE_WORLD_SIZE | ROUND) => true,
        (RendezvousSpec::Static { node_rank, .. }, RANK | ROLE_RANK) => *node_rank != NodeRank(0),
        (RendezvousSpec::C10d { .. }, RANK | ROLE_RANK | GROUP_RANK | MASTER_ADDR | MASTER_PORT) => true,
        (RendezvousSpec::C10d { .. }, GROUP_WORLD_SIZE) => range.min != range.max,
        _ => false,
    }
}

/// This node's place in the first round, as far as it is known before the rendezvous.
pub(super) fn initial_round(spec: &LaunchSpec, round: Round) -> Round {
    let node_rank = match &spec.rendezvous {
        RendezvousSpec::Static { node_rank, .. } => *node_rank,
        RendezvousSpec::C10d { .. } | RendezvousSpec::Standalone { .. } => NodeRank(0),
    };
    // Which one is known when the store is reached.
    let interface = Some(String::new()).filter(|_| spec.rendezvous.nodes().allows_many());
    Round { node_rank, nodes: spec.rendezvous.nodes().max, interface, ..round }
}
