//! The claim of an agent to a node rank: who it is, so that a second agent with the same rank is found out, and a new one
//! can take the place of a dead one.
#![expect(
    clippy::disallowed_methods,
    reason = "a shell: it reads the clock to see how long an agent gives no sign"
)]

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Job;
use crate::rendezvous::descriptor::Descriptor;
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::exchange::{ExchangeError, Talk};
use crate::rendezvous::state::Node;
use crate::rendezvous::text::harmless;

/// Longest text that is read at all, in bytes.
const MAX_JSON: usize = 128 * 1024;

/// Longest address and host name, in characters.
const MAX_NAME: usize = 255;

/// Who has a node rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) node: Node,
    pub(super) agent: Descriptor,
}

/// The same in every version, so that agents of two versions can name each other.
#[derive(Serialize, Deserialize)]
struct Wire {
    host: String,
    addr: String,
    pid: i64,
    local_id: i64,
    /// A descriptor's own text.
    agent: String,
}

impl Claim {
    fn to_json(&self) -> Vec<u8> {
        let wire = Wire {
            host: self.agent.host.clone(),
            addr: self.node.addr.clone(),
            pid: self.node.pid,
            local_id: self.node.local_id,
            agent: String::from_utf8_lossy(&self.agent.to_json()).into_owned(),
        };
        serde_json::to_vec(&wire).expect("texts and numbers are JSON")
    }

    /// Nothing where it is not what an agent of our protocol writes.
    pub(super) fn from_json(text: &[u8]) -> Option<Self> {
        let wire = read(text)?;
        let agent = Descriptor::from_json(wire.agent.as_bytes()).ok()?;
        Some(Self { node: wire.node(), agent })
    }

    pub(super) fn host(&self) -> String {
        self.agent.host.clone()
    }
}

impl Wire {
    fn node(&self) -> Node {
        Node { addr: harmless(&self.addr, MAX_NAME), pid: self.pid, local_id: self.local_id }
    }
}

fn read(text: &[u8]) -> Option<Wire> {
    (text.len() <= MAX_JSON).then(|| serde_json::from_slice(text).ok())?
}

/// Host and descriptor of a claim, of whatever version.
pub(super) fn outer(text: &[u8]) -> (String, String) {
    match read(text) {
        Some(wire) => (harmless(&wire.host, MAX_NAME), wire.agent),
        None => ("another node".to_owned(), String::new()),
    }
}

impl Job<'_> {
    /// Puts our claim where nobody's is, or that of a dead agent.
    pub(super) fn claim(&self, talk: &mut Talk<'_, '_>) -> Result<(), ExchangeError> {
        self.compare(talk)?;
        let setup = self.setup;
        let ours = Claim { node: setup.node.clone(), agent: setup.descriptor.clone() }.to_json();
        let key = self.keys.claim(setup.node_rank);
        let mut expected = Vec::new();
        loop {
            let found = talk.store.compare_set(&key, &expected, &ours)?;
            if found == ours {
                // Who came at the same moment has not seen us, nor we them.
                return self.compare(talk);
            }
            // The store answers `expected` where the key is gone.
            if found == expected {
                expected.clear();
                continue;
            }
            if !self.is_dead(talk, &found)? {
                let (theirs, _) = outer(&found);
                let (node_rank, ours) = (setup.node_rank, self.host());
                return Err(RendezvousError::SameNodeRank { node_rank, ours, theirs }.into());
            }
            expected = found;
        }
    }

    /// Watches the agent of a claim until it has given a sign of life, or none for its lease.
    fn is_dead(&self, talk: &mut Talk<'_, '_>, claim: &[u8]) -> Result<bool, ExchangeError> {
        // A claim that cannot be read is nobody's to take over.
        let Some(Claim { node, .. }) = Claim::from_json(claim) else { return Ok(false) };
        let (beat, left) = (self.keys.beat(&node), self.keys.left(&node));
        let first = talk.store.get(&beat)?;
        let deadline = Instant::now() + self.setup.lease;
        loop {
            if talk.wait_slice(&left, deadline)? {
                return Ok(true);
            }
            if talk.store.get(&beat)? != first {
                return Ok(false);
            }
            if deadline.saturating_duration_since(Instant::now()) == Duration::ZERO {
                return Ok(true);
            }
            talk.pause()?;
        }
    }
}
