//! What a rankrun agent says of itself to the others of its job. Pure.

use rankrun_contract::rank::{LocalWorldSize, NodeRank};

use crate::spec::rendezvous::NodeRange;

/// What a rankrun agent says of itself, before it enters any list of the shared state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// Of what agents say to each other beside torch's protocol.
    pub protocol: u32,
    /// The launcher's version.
    pub version: String,
    /// The host's name.
    pub host: String,
    /// How many nodes it was told.
    pub nodes: NodeRange,
    /// Its own node rank, where it was told one.
    pub node_rank: Option<NodeRank>,
    /// Its workers.
    pub workers: LocalWorldSize,
    /// What it runs, shortened.
    pub entrypoint: String,
    /// Of the whole of what it runs.
    pub digest: String,
    /// Marks all connections of this agent.
    pub nonce: u32,
}
