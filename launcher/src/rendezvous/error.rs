//! Why a rendezvous fails: what a user can meet, with one hint each.

use std::io;
use std::time::Duration;

use rankrun_contract::rank::NodeRank;

use super::address::AddressError;
use super::descriptor::Mismatch;
use super::pickle::NotAState;
use crate::store::client::ClientError;

/// Why a rendezvous fails.
#[derive(Debug, thiserror::Error)]
pub enum RendezvousError {
    /// Not enough nodes came.
    #[error("only {here} of {needed} nodes came within {}{}", humantime::format_duration(*waited), missing_words(missing))]
    TooFew {
        /// How many came.
        here: u32,
        /// How many are needed at least.
        needed: u32,
        /// How long was waited.
        waited: Duration,
        /// Who is missing, where it is known.
        missing: Vec<String>,
    },
    /// The store at the endpoint cannot be reached.
    #[error("cannot reach the rendezvous store at `{endpoint}` within {}", humantime::format_duration(*waited))]
    Unreachable {
        /// Host and port.
        endpoint: String,
        /// How long it was tried.
        waited: Duration,
        /// What the last try gave.
        source: ClientError,
    },
    /// The endpoint's name means nothing here.
    #[error("cannot find the host `{host}` of the rendezvous endpoint within {}", humantime::format_duration(*waited))]
    NoSuchHost {
        /// The name.
        host: String,
        /// How long it was tried.
        waited: Duration,
        /// The resolver's last answer.
        source: io::Error,
    },
    /// The store was there and is not any more.
    #[error("the rendezvous store at `{endpoint}` is lost")]
    StoreLost {
        /// Host and port.
        endpoint: String,
        /// What the connection gave.
        source: ClientError,
    },
    /// There is a store at the endpoint, but not the one that this node was connected to.
    #[error("the rendezvous store at `{endpoint}` is another one now (`{found}`) than this node has joined (`{joined}`)")]
    AnotherStore {
        /// Host and port.
        endpoint: String,
        /// The identity of the store at the beginning.
        joined: String,
        /// And now; empty where nobody has given it one.
        found: String,
    },
    /// What stands where the shared state should be is something else. Nothing of it was obeyed.
    #[error("the value of `{key}` in the rendezvous store is not the state of a rendezvous")]
    NotAState {
        /// The key.
        key: String,
        /// What is wrong with it.
        source: NotAState,
    },
    /// An agent of the job and this one were not started alike.
    #[error("this node does not fit the job that `{node}` is in")]
    Mismatch {
        /// The other agent.
        node: String,
        /// The difference.
        source: Mismatch,
    },
    /// Two agents were given the same node rank.
    #[error("node rank {node_rank} belongs to the agent on `{node}`, which is alive")]
    NodeRankTaken {
        /// The rank.
        node_rank: NodeRank,
        /// Who has it.
        node: String,
    },
    /// This node has no address to tell.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The machine does not let us listen, or look at its interfaces.
    #[error("cannot {what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The kernel's refusal.
        source: io::Error,
    },
}

fn missing_words(missing: &[String]) -> String {
    if missing.is_empty() { String::new() } else { format!(": {} missing", missing.join(", ")) }
}

impl RendezvousError {
    /// One thing to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::TooFew { .. } => {
                "start the launcher on every node with the same `--rdzv-id` and endpoint; `--rdzv-conf join_timeout=SECONDS` waits longer"
            }
            Self::Unreachable { .. } => {
                "is the launcher running on the node that the endpoint names, and is its port open there?"
            }
            Self::NoSuchHost { .. } => "give an address as the host of `--rdzv-endpoint`, or a name that this machine knows",
            Self::AnotherStore { .. } => "the node that hosts the store was started anew; start the job again on all nodes",
            Self::NotAState { .. } => {
                "something else writes to this store: give the job another `--rdzv-id` or another endpoint"
            }
            Self::Mismatch { source, .. } => source.hint(),
            Self::NodeRankTaken { .. } => "give each node another `--node-rank`",
            Self::Address(error) => error.hint(),
            Self::System { .. } => return None,
            Self::StoreLost { .. } => "the node that hosts the store has gone; start the job again",
        })
    }
}
