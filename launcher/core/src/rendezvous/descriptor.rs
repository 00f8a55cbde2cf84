//! The descriptor that a rankrun agent publishes for the other agents of its job, and the check that two agents belong
//! together. Pure.
//!
//! The text is JSON. It was written by another machine; as a [`AgentDescriptor`] it is bounded and safe for a terminal.

use std::ffi::OsStr;
use std::time::Duration;

use rankrun_contract::rank::{LocalWorldSize, NodeCount, NodeRank, RestartCount};
use serde::{Deserialize, Serialize};

use super::text::escape_for_terminal;
use crate::spec::rendezvous::NodeRange;

/// Version of the protocol between rankrun agents. Agents with different protocols do not work together.
pub const PROTOCOL: u32 = 2;

/// Longest text that is parsed, in bytes.
const MAX_JSON: usize = 64 * 1024;

/// Longest host name and version, in characters.
const MAX_NAME: usize = 255;

/// Longest entrypoint, in characters.
const MAX_ENTRYPOINT: usize = 300;

/// What a rankrun agent publishes about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentDescriptor {
    /// Protocol of the agent's version, see [`PROTOCOL`].
    pub protocol: u32,
    /// Version of rankrun that the agent runs.
    pub version: String,
    /// Host name of the agent's machine.
    pub host: String,
    /// Node range of the job, from `--nnodes`.
    pub nodes: NodeRange,
    /// Node rank from `--node-rank`, if the user gave one.
    pub node_rank: Option<NodeRank>,
    /// `--lease`. Other agents declare this node dead by their lease; this agent stops its workers by its own. Both
    /// must be the same.
    pub lease: Duration,
    /// Number of workers that the agent starts.
    pub workers: LocalWorldSize,
    /// What the workers run, see [`display_entrypoint`].
    pub entrypoint: String,
    /// Random number by which the store's host recognizes the agent's connections.
    pub nonce: u32,
    /// `--max-restarts`, if the agent published it; the value may differ between nodes.
    pub max_restarts: Option<RestartCount>,
}

/// Name of the program, script or module of the workers, bounded. It is compared and shown to users.
#[must_use]
pub fn display_entrypoint(name: &OsStr) -> String {
    escape_for_terminal(&name.to_string_lossy(), MAX_ENTRYPOINT)
}

/// Why two agents belong to different jobs. Every variant contains the values of both agents.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The other agent speaks another protocol.
    #[error(
        "this agent is rankrun {ours} (protocol {our_protocol}), the other agent {theirs} (protocol {their_protocol})"
    )]
    Protocol {
        /// Version of this agent's rankrun.
        ours: String,
        /// Protocol number of this agent.
        our_protocol: u32,
        /// Version of the other agent's rankrun.
        theirs: String,
        /// Protocol number of the other agent.
        their_protocol: u32,
    },
    /// The agents have different `--nnodes`.
    #[error("this agent was started with `--nnodes {ours}`, the other agent with `--nnodes {theirs}`")]
    Nodes {
        /// Node range of this agent.
        ours: NodeRange,
        /// Node range of the other agent.
        theirs: NodeRange,
    },
    /// The agents have different `--lease`. Workers with the longer lease would still run after the other nodes have
    /// continued without them.
    #[error(
        "this agent was started with `--lease {}`, the other agent with `--lease {}`",
        humantime::format_duration(*ours), humantime::format_duration(*theirs)
    )]
    Lease {
        /// Lease of this agent.
        ours: Duration,
        /// Lease of the other agent.
        theirs: Duration,
    },
    /// The agents run another program, or other arguments.
    #[error("this agent runs `{ours}`, the other agent `{theirs}`")]
    Entrypoint {
        /// Entrypoint of this agent's workers.
        ours: String,
        /// Entrypoint of the other agent's workers.
        theirs: String,
    },
    /// The other agent's descriptor is not valid.
    #[error("this agent is rankrun {ours}, and the descriptor of the other agent cannot be read")]
    Unreadable {
        /// Version of this agent's rankrun.
        ours: String,
    },
}

impl Mismatch {
    /// One action by which the user resolves the mismatch.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Protocol { .. } | Self::Unreadable { .. } => {
                "install the same version of rankrun on every node"
            }
            Self::Nodes { .. } => "give `--nnodes` the same value on every node",
            Self::Lease { .. } => "give `--lease` the same value on every node",
            Self::Entrypoint { .. } => {
                "start the same program on every node, or another job with another `--rdzv-id`"
            }
        }
    }
}

/// Checks that the agent with descriptor `theirs` belongs to this agent's job.
///
/// # Errors
/// The first difference that matters.
pub fn compare(ours: &AgentDescriptor, theirs: &AgentDescriptor) -> Result<(), Mismatch> {
    if theirs.protocol != ours.protocol {
        return Err(Mismatch::Protocol {
            ours: ours.version.clone(),
            our_protocol: ours.protocol,
            theirs: theirs.version.clone(),
            their_protocol: theirs.protocol,
        });
    }
    if theirs.nodes != ours.nodes {
        return Err(Mismatch::Nodes { ours: ours.nodes, theirs: theirs.nodes });
    }
    if theirs.lease != ours.lease {
        return Err(Mismatch::Lease { ours: ours.lease, theirs: theirs.lease });
    }
    if theirs.entrypoint != ours.entrypoint {
        return Err(Mismatch::Entrypoint {
            ours: ours.entrypoint.clone(),
            theirs: theirs.entrypoint.clone(),
        });
    }
    Ok(())
}

/// Parses the descriptor of another agent, and compares it with ours. Both happen together, because another protocol's
/// descriptor may have unknown fields.
///
/// # Errors
/// The first difference that matters.
pub fn parse_and_compare(ours: &AgentDescriptor, theirs: &[u8]) -> Result<AgentDescriptor, Mismatch> {
    let theirs = AgentDescriptor::from_json(theirs).map_err(|error| match error {
        DescriptorError::Protocol { protocol, version } => Mismatch::Protocol {
            ours: ours.version.clone(),
            our_protocol: ours.protocol,
            theirs: version,
            their_protocol: protocol,
        },
        DescriptorError::Unreadable => Mismatch::Unreadable { ours: ours.version.clone() },
    })?;
    compare(ours, &theirs)?;
    Ok(theirs)
}

/// Why a text is not a descriptor of this protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorError {
    /// The writer speaks another protocol; its descriptors may have another shape.
    #[error("the descriptor is of protocol {protocol} (rankrun {version})")]
    Protocol {
        /// Protocol number of the writer.
        protocol: u32,
        /// Version of the writer's rankrun.
        version: String,
    },
    /// The text is too long or malformed.
    #[error("this is not a descriptor of an agent")]
    Unreadable,
}

/// The part that descriptors of every protocol have.
#[derive(Deserialize)]
struct DescriptorHead {
    protocol: u32,
    version: String,
}

#[derive(Serialize, Deserialize)]
struct DescriptorWire {
    protocol: u32,
    version: String,
    host: String,
    min: u32,
    max: u32,
    node_rank: Option<u32>,
    lease_ms: u64,
    workers: u32,
    entrypoint: String,
    nonce: u32,
    #[serde(default)]
    max_restarts: Option<u32>,
}

impl AgentDescriptor {
    /// The descriptor as JSON for the store.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let wire = DescriptorWire {
            protocol: self.protocol,
            version: self.version.clone(),
            host: self.host.clone(),
            min: self.nodes.min.get(),
            max: self.nodes.max.get(),
            node_rank: self.node_rank.map(|rank| rank.0),
            lease_ms: u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX),
            workers: self.workers.get(),
            entrypoint: self.entrypoint.clone(),
            nonce: self.nonce,
            max_restarts: self.max_restarts.map(|count| count.0),
        };
        serde_json::to_vec(&wire).expect("texts and numbers are JSON")
    }

    /// Of another agent. Fields that we do not know are not an error.
    ///
    /// # Errors
    /// It is of another protocol, or no descriptor.
    pub fn from_json(text: &[u8]) -> Result<Self, DescriptorError> {
        if text.len() > MAX_JSON {
            return Err(DescriptorError::Unreadable);
        }
        let head: DescriptorHead = serde_json::from_slice(text).map_err(|_| DescriptorError::Unreadable)?;
        if head.protocol != PROTOCOL {
            let version = escape_for_terminal(&head.version, MAX_NAME);
            return Err(DescriptorError::Protocol { protocol: head.protocol, version });
        }
        let wire: DescriptorWire = serde_json::from_slice(text).map_err(|_| DescriptorError::Unreadable)?;
        wire.into_descriptor().ok_or(DescriptorError::Unreadable)
    }
}

impl DescriptorWire {
    fn into_descriptor(self) -> Option<AgentDescriptor> {
        let nodes = NodeRange { min: NodeCount::new(self.min)?, max: NodeCount::new(self.max)? };
        (nodes.min <= nodes.max).then_some(())?;
        Some(AgentDescriptor {
            protocol: self.protocol,
            version: escape_for_terminal(&self.version, MAX_NAME),
            host: escape_for_terminal(&self.host, MAX_NAME),
            nodes,
            node_rank: self.node_rank.map(NodeRank),
            lease: Duration::from_millis(self.lease_ms),
            workers: LocalWorldSize::new(self.workers)?,
            entrypoint: escape_for_terminal(&self.entrypoint, MAX_ENTRYPOINT),
            nonce: self.nonce,
            max_restarts: self.max_restarts.map(RestartCount),
        })
    }
}

#[cfg(test)]
mod tests;
