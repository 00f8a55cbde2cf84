//! The rendezvous part of the specification: backend, endpoint, node counts and time limits. Plain data.

use std::fmt;
use std::time::Duration;

use rankrun_contract::rank::NodeCount;

use bytesize::ByteSize;

/// Where several nodes meet when nothing names a port: torchrun's.
pub const STATIC_PORT: u16 = 29_500;

/// The index of a pod among those of its Indexed Job, from 0: Kubernetes sets it, also for the Jobs of a JobSet.
pub const POD_INDEX: &str = "JOB_COMPLETION_INDEX";

/// The number of nodes, `--nnodes MIN:MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeRange {
    /// The fewest nodes of a round.
    pub min: NodeCount,
    /// Most nodes in a round; another node is a spare.
    pub max: NodeCount,
}

impl NodeRange {
    /// The range of a job of one node.
    pub const ONE: Self = Self { min: NodeCount::ONE, max: NodeCount::ONE };

    /// Whether there may be other nodes.
    #[must_use]
    pub fn allows_many(self) -> bool {
        self.max != NodeCount::ONE
    }
}

impl fmt::Display for NodeRange {
    /// As `--nnodes` has it: `2`, `1:4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min, max } = self;
        if min == max { write!(f, "{max}") } else { write!(f, "{min}:{max}") }
    }
}

/// The times of a dynamic rendezvous (`--rdzv-conf`, contract 1.7) and ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundTimes {
    /// `join_timeout`: to get into a complete round.
    pub join: Duration,
    /// `last_call_timeout`: extra wait once the smallest number of nodes has joined.
    pub last_call: Duration,
    /// `close_timeout`: to write the closed flag.
    pub close: Duration,
    /// `read_timeout`: for every wait on the store.
    pub read: Duration,
    /// To reach the store for the first time: torchrun's `read_timeout`, under our own name the join timeout.
    pub connect: Duration,
    /// `keep_alive_interval`: between two heartbeats in the state.
    pub keep_alive: Duration,
    /// `keep_alive_max_attempt`: a torchrun agent is dead after this number of intervals.
    pub keep_alive_attempts: u32,
    /// `cas_backoff_max_seconds`: longest random pause after a lost write.
    pub cas_backoff: Duration,
    /// `--lease`: a rankrun agent without a heartbeat for so long is dead.
    pub lease: Duration,
}

impl RoundTimes {
    /// The default `timeout` of a static rendezvous.
    pub(crate) const STATIC_JOIN: Duration = Duration::from_secs(900);

    /// torch's for a static rendezvous: one time to wait for everything.
    #[must_use]
    pub fn static_defaults() -> Self {
        Self {
            join: Self::STATIC_JOIN,
            read: Self::STATIC_JOIN,
            connect: Self::STATIC_JOIN,
            ..Self::default()
        }
    }
}

impl Default for RoundTimes {
    /// torch's, and a lease of five seconds.
    fn default() -> Self {
        Self {
            join: Duration::from_secs(600),
            last_call: Duration::from_secs(30),
            close: Duration::from_secs(30),
            read: Duration::from_secs(60),
            connect: Duration::from_secs(60),
            keep_alive: Duration::from_secs(5),
            keep_alive_attempts: 3,
            cas_backoff: Duration::ZERO,
            lease: Duration::from_secs(5),
        }
    }
}

/// The network settings of this node: its address, its ports, and the memory limit of its store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkSpec {
    /// `--iface`: the interface that the job's traffic goes through.
    pub iface: Option<String>,
    /// `--port-range A-B`: each listener of the launcher has a port in it.
    pub ports: Option<PortRange>,
    /// A loopback endpoint means that all nodes are on this machine. Under the name torchrun it does not: there the
    /// hosting node may call itself `localhost`.
    pub binds_loopback_only: bool,
    /// `--store-limit SIZE`: bytes of values in a store that the launcher hosts, and of requests and answers under way.
    pub store_limit: Option<ByteSize>,
    /// The workers use NCCL, and no setting names its interface: on a host with several, the user gets a hint.
    pub nccl_chooses: bool,
}

/// Ports from the first to the last, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    /// The lowest port of the range.
    pub first: u16,
    /// The highest port of the range.
    pub last: u16,
}

impl fmt::Display for PortRange {
    /// Writes the form of `--port-range`: `29500-29599`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}
