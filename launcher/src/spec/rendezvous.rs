//! How the agents of several nodes find each other: what was asked for.

use std::time::Duration;

use rankrun_contract::rank::NodeCount;

/// `--nnodes MIN:MAX`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeRange {
    /// No round is smaller.
    pub min: NodeCount,
    /// No round is larger; who comes besides is a spare.
    pub max: NodeCount,
}

impl NodeRange {
    /// A job of one node.
    pub const ONE: Self = Self { min: NodeCount::ONE, max: NodeCount::ONE };
}

/// The times of a dynamic rendezvous (`--rdzv-conf`, contract 1.7) and ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundTimes {
    /// `join_timeout`: to get into a complete round.
    pub join: Duration,
    /// `last_call_timeout`: extra wait once the smallest number of nodes is there.
    pub last_call: Duration,
    /// `close_timeout`: to write the closed flag.
    pub close: Duration,
    /// `read_timeout`: to connect, and for every wait on the store.
    pub read: Duration,
    /// `keep_alive_interval`: between two heartbeats in the state.
    pub keep_alive: Duration,
    /// `keep_alive_max_attempt`: a torchrun agent is dead after so many intervals.
    pub keep_alive_attempts: u32,
    /// `cas_backoff_max_seconds`: longest random pause after a lost write.
    pub cas_backoff: Duration,
    /// `--lease`: a rankrun agent that gives no sign of life for so long is dead.
    pub lease: Duration,
}

impl Default for RoundTimes {
    /// torch's, and a lease of five seconds.
    fn default() -> Self {
        Self {
            join: Duration::from_secs(600),
            last_call: Duration::from_secs(30),
            close: Duration::from_secs(30),
            read: Duration::from_secs(60),
            keep_alive: Duration::from_secs(5),
            keep_alive_attempts: 3,
            cas_backoff: Duration::ZERO,
            lease: Duration::from_secs(5),
        }
    }
}

/// How this node is reached, and where it may listen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkSpec {
    /// `--iface`: the interface that the job's traffic goes through.
    pub iface: Option<String>,
    /// `--port-range A-B`: every listener of ours has a port in it.
    pub ports: Option<PortRange>,
}

/// Ports from the first to the last, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    /// The lowest.
    pub first: u16,
    /// The highest.
    pub last: u16,
}
