//! What a rankrun agent says of itself to the others of its job, and whether two agents belong together. Pure.
//!
//! The text is JSON. What we read was written by another machine: it is bounded, and fit for a terminal once it is a
//! [`Descriptor`].

use std::ffi::OsStr;
use std::time::Duration;

use rankrun_contract::rank::{LocalWorldSize, NodeCount, NodeRank, RestartCount};
use serde::{Deserialize, Serialize};

use super::text::harmless;
use crate::spec::rendezvous::NodeRange;

/// The protocol between rankrun agents: two agents of different numbers do not work together.
pub const PROTOCOL: u32 = 1;

/// Longest text that is read at all, in bytes.
const MAX_JSON: usize = 64 * 1024;

/// Longest host name and version, in characters.
const MAX_NAME: usize = 255;

/// Longest entrypoint, in characters.
const MAX_ENTRYPOINT: usize = 300;

/// What a rankrun agent says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// Of the agent's version: [`PROTOCOL`].
    pub protocol: u32,
    /// The agent's version.
    pub version: String,
    /// Its host's name.
    pub host: String,
    /// `--nnodes`
    pub nodes: NodeRange,
    /// `--node-rank`, where it was given.
    pub node_rank: Option<NodeRank>,
    /// `--lease`: the others age it by theirs, and it stops its workers by its own, so that both have to be the same.
    pub lease: Duration,
    /// How many workers it starts.
    pub workers: LocalWorldSize,
    /// What the workers run: see [`entrypoint`].
    pub entrypoint: String,
    /// The number in the greetings of the agent's connections.
    pub nonce: u32,
    /// `--max-restarts`, where it says so; it need not be the same on all nodes.
    pub max_restarts: Option<RestartCount>,
}

/// What the workers run, for people and to compare: the name of a program, script or module, bounded.
#[must_use]
pub fn entrypoint(name: &OsStr) -> String {
    harmless(&name.to_string_lossy(), MAX_ENTRYPOINT)
}

/// Why another agent and we are not of one job. Every variant has both sides' value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// It speaks another protocol.
    #[error(
        "this agent is rankrun {ours} (protocol {our_protocol}), that one {theirs} (protocol {their_protocol})"
    )]
    Protocol {
        /// Our version.
        ours: String,
        /// Our number.
        our_protocol: u32,
        /// The other agent's version.
        theirs: String,
        /// The other agent's number.
        their_protocol: u32,
    },
    /// Another `--nnodes`.
    #[error("this agent was started with `--nnodes {ours}`, that one with `--nnodes {theirs}`")]
    Nodes {
        /// Ours.
        ours: NodeRange,
        /// The other agent's.
        theirs: NodeRange,
    },
    /// Another `--lease`: the longer one's workers would still run when others have long gone on without it.
    #[error(
        "this agent was started with `--lease {}`, that one with `--lease {}`",
        humantime::format_duration(*ours), humantime::format_duration(*theirs)
    )]
    Lease {
        /// Ours.
        ours: Duration,
        /// The other agent's.
        theirs: Duration,
    },
    /// Another program, or other arguments.
    #[error("this agent runs `{ours}`, that one `{theirs}`")]
    Entrypoint {
        /// Ours.
        ours: String,
        /// The other agent's.
        theirs: String,
    },
    /// What it says of itself is not what an agent says.
    #[error("this agent is rankrun {ours}, and what that one says of itself cannot be read")]
    Unreadable {
        /// Our version.
        ours: String,
    },
}

impl Mismatch {
    /// One thing to do about it.
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

/// Whether an agent that says `theirs` belongs to the job of one that says `ours`.
///
/// # Errors
/// The first difference that matters.
pub fn compare(ours: &Descriptor, theirs: &Descriptor) -> Result<(), Mismatch> {
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

/// Reads what another agent says of itself, and compares it with what we say: both at once, since an agent of another
/// protocol may say things that we cannot read.
///
/// # Errors
/// The first difference that matters.
pub fn meet(ours: &Descriptor, theirs: &[u8]) -> Result<Descriptor, Mismatch> {
    let theirs = Descriptor::from_json(theirs).map_err(|error| match error {
        NotADescriptor::Protocol { protocol, version } => Mismatch::Protocol {
            ours: ours.version.clone(),
            our_protocol: ours.protocol,
            theirs: version,
            their_protocol: protocol,
        },
        NotADescriptor::Unreadable => Mismatch::Unreadable { ours: ours.version.clone() },
    })?;
    compare(ours, &theirs)?;
    Ok(theirs)
}

/// Why a text is no descriptor of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotADescriptor {
    /// Its writer speaks another protocol, whose descriptors may have another shape.
    #[error("the descriptor is of protocol {protocol} (rankrun {version})")]
    Protocol {
        /// Its number.
        protocol: u32,
        /// Its writer's version.
        version: String,
    },
    /// It is too long, or not what an agent writes.
    #[error("this is no descriptor of an agent")]
    Unreadable,
}

/// What every protocol's descriptor has.
#[derive(Deserialize)]
struct Head {
    protocol: u32,
    version: String,
}

#[derive(Serialize, Deserialize)]
struct Wire {
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

impl Descriptor {
    /// For the store.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let wire = Wire {
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
    pub fn from_json(text: &[u8]) -> Result<Self, NotADescriptor> {
        if text.len() > MAX_JSON {
            return Err(NotADescriptor::Unreadable);
        }
        let head: Head = serde_json::from_slice(text).map_err(|_| NotADescriptor::Unreadable)?;
        if head.protocol != PROTOCOL {
            let version = harmless(&head.version, MAX_NAME);
            return Err(NotADescriptor::Protocol { protocol: head.protocol, version });
        }
        let wire: Wire = serde_json::from_slice(text).map_err(|_| NotADescriptor::Unreadable)?;
        wire.check().ok_or(NotADescriptor::Unreadable)
    }
}

impl Wire {
    fn check(self) -> Option<Descriptor> {
        let nodes = NodeRange { min: NodeCount::new(self.min)?, max: NodeCount::new(self.max)? };
        (nodes.min <= nodes.max).then_some(())?;
        Some(Descriptor {
            protocol: self.protocol,
            version: harmless(&self.version, MAX_NAME),
            host: harmless(&self.host, MAX_NAME),
            nodes,
            node_rank: self.node_rank.map(NodeRank),
            lease: Duration::from_millis(self.lease_ms),
            workers: LocalWorldSize::new(self.workers)?,
            entrypoint: harmless(&self.entrypoint, MAX_ENTRYPOINT),
            nonce: self.nonce,
            max_restarts: self.max_restarts.map(RestartCount),
        })
    }
}

#[cfg(test)]
mod tests;
