//! Why a rendezvous fails: what a user can meet, with one hint each.

use std::io;
use std::time::Duration;

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
        source: io::Error,
    },
    /// The store was there and is not any more.
    #[error("the rendezvous store at `{endpoint}` is lost")]
    StoreLost {
        /// Host and port.
        endpoint: String,
        /// What the connection gave.
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
            Self::StoreLost { .. } => "the node that hosts the store has gone; start the job again",
        })
    }
}
