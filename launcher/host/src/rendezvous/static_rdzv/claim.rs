//! The claim of an agent to a node rank. It reveals a second agent with the same rank, and lets a new agent replace a
//! dead one.
//!
//! The host of the store takes back the claim of an agent after all its connections have closed: that agent is known to
//! be dead. An agent that only falls silent, for example on a host that is cut off, keeps its claim for a lease.
#![expect(
    clippy::disallowed_methods,
    reason = "a shell: it reads the clock to see how long an agent gives no sign"
)]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rankrun_contract::rank::{NodeCount, NodeRank, RunId};
use serde::{Deserialize, Serialize};

use super::StaticJob;
use super::authority::AuthorityCheck;
use crate::rendezvous::assign_ranks::AssignRanksError;
use crate::rendezvous::error::RendezvousError;
use crate::store::client::{Client, ClientError};
use rankrun_core::rendezvous::NodeName;
use rankrun_core::rendezvous::descriptor::AgentDescriptor;
use rankrun_core::rendezvous::keys::{RendezvousKeys, RoundKeys};
use rankrun_core::rendezvous::pickle;
use rankrun_core::rendezvous::state::Node;
use rankrun_core::rendezvous::text::escape_for_terminal;

/// Longest claim that is parsed, in bytes.
const MAX_JSON: usize = 128 * 1024;

/// Longest address and host name, in characters.
const MAX_NAME: usize = 255;

/// Value while a claim is being taken back: the rank has no owner, and is not free yet.
pub(super) const WITHDRAWN_CLAIM: &[u8] = b"taken back";

/// Pause until a claim that is being withdrawn is read again.
const RELEASE: Duration = Duration::from_millis(5);
/// Claim and heartbeat of another agent are read again after this time.
const REREAD: Duration = Duration::from_millis(250);

/// The result of watching another agent's claim to this node's rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClaimOutcome {
    /// The agent lives and keeps its claim.
    Stands,
    /// The agent is dead; its claim may be replaced.
    Falls,
    /// The key now has another claim, or none.
    Changed,
}

/// The agent that holds a node rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) node: Node,
    pub(super) agent: AgentDescriptor,
}

/// The wire format is the same in every version, so that agents of two versions can name each other.
#[derive(Serialize, Deserialize)]
struct ClaimWire {
    host: String,
    addr: String,
    pid: i64,
    local_id: i64,
    /// The agent's descriptor, as its own JSON text.
    agent: String,
}

impl Claim {
    fn to_json(&self) -> Vec<u8> {
        let wire = ClaimWire {
            host: self.agent.host.clone(),
            addr: self.node.addr.clone(),
            pid: self.node.pid,
            local_id: self.node.local_id,
            agent: String::from_utf8_lossy(&self.agent.to_json()).into_owned(),
        };
        serde_json::to_vec(&wire).expect("texts and numbers are JSON")
    }

    /// Parses a claim; `None` unless an agent of this protocol wrote it.
    pub(super) fn from_json(text: &[u8]) -> Option<Self> {
        let wire = parse_claim_wire(text)?;
        let agent = AgentDescriptor::from_json(wire.agent.as_bytes()).ok()?;
        Some(Self { node: wire.node(), agent })
    }

    pub(super) fn name(&self) -> NodeName {
        NodeName::of_node(&self.node, Some(&self.agent.host), self.agent.node_rank)
    }
}

impl ClaimWire {
    fn node(&self) -> Node {
        Node { addr: escape_for_terminal(&self.addr, MAX_NAME), pid: self.pid, local_id: self.local_id }
    }
}

fn parse_claim_wire(text: &[u8]) -> Option<ClaimWire> {
    (text.len() <= MAX_JSON).then(|| serde_json::from_slice(text).ok())?
}

/// The node of a claim of any version; `None` for other texts.
#[must_use]
pub(crate) fn claim_name(text: &[u8]) -> Option<NodeName> {
    parse_claim_wire(text).map(|_| parse_claim_header(text).0)
}

/// Node and descriptor text of a claim of any version.
pub(super) fn parse_claim_header(text: &[u8]) -> (NodeName, String) {
    match parse_claim_wire(text) {
        Some(wire) => {
            let rank =
                AgentDescriptor::from_json(wire.agent.as_bytes()).ok().and_then(|agent| agent.node_rank);
            (NodeName::of_node(&wire.node(), Some(&wire.host), rank), wire.agent)
        }
        None => (NodeName::default(), String::new()),
    }
}

impl StaticJob<'_> {
    /// Writes this node's claim if the rank is free, or if the agent that holds it is dead.
    pub(super) async fn claim(&self, store: &mut Client) -> Result<(), AssignRanksError> {
        let setup = self.setup;
        // If node rank 0 is here already, a node of another job writes nothing.
        AuthorityCheck::of(setup).perform(setup, store).await?;
        let ours = Claim { node: setup.node.clone(), agent: setup.descriptor.clone() }.to_json();
        let key = self.keys.claim(setup.node_rank);
        let mut expected = Vec::new();
        loop {
            let found = store.compare_set(&key, &expected, &ours).await?;
            if found == ours {
                return Ok(());
            }
            // The store answers `expected` if the key does not exist.
            if found == expected {
                expected.clear();
                continue;
            }
            match self.watch_claim_holder(store, (&key, &found)).await? {
                ClaimOutcome::Falls => expected = found,
                ClaimOutcome::Changed => expected.clear(),
                ClaimOutcome::Stands => {
                    if let Some(misfit) = self.compare(&found) {
                        return Err(misfit.into());
                    }
                    let theirs = Box::new(parse_claim_header(&found).0.without_rank());
                    let (node_rank, ours) = (setup.node_rank, Box::new(self.name()));
                    return Err(RendezvousError::SameNodeRank { node_rank, ours, theirs }.into());
                }
            }
        }
    }

    /// Watches a claim until it changes, its agent sends a heartbeat, or the heartbeat is missing for too long.
    async fn watch_claim_holder(
        &self,
        store: &mut Client,
        (key, claim): (&str, &[u8]),
    ) -> Result<ClaimOutcome, AssignRanksError> {
        if claim == WITHDRAWN_CLAIM {
            // The host needs two requests to release the rank.
            tokio::time::sleep(RELEASE).await;
            return Ok(ClaimOutcome::Changed);
        }
        // An unreadable claim is never taken over.
        let Some(Claim { node, .. }) = Claim::from_json(claim) else { return Ok(ClaimOutcome::Stands) };
        let (heartbeat, left) = (self.keys.heartbeat(&node), self.keys.left(&node));
        let first = store.get(&heartbeat).await?;
        let started = Instant::now();
        loop {
            let until = (started + self.setup.lease).min(Instant::now() + REREAD);
            if store.wait(&[&left], until).await? {
                return Ok(ClaimOutcome::Falls);
            }
            let values = store.multi_get(&[key, &heartbeat, self.keys.state()]).await?;
            let [now, heartbeat, state] = &values[..] else { return Err(ClientError::NoStore.into()) };
            if now != claim {
                return Ok(ClaimOutcome::Changed);
            }
            // Before the first round the store has no state.
            let is_out = pickle::decode(state).is_ok_and(|state| !state.lists(&node));
            match claim_outcome(self.setup.lease, started.elapsed(), *heartbeat != first, is_out) {
                Some(true) => return Ok(ClaimOutcome::Falls),
                Some(false) => return Ok(ClaimOutcome::Stands),
                None => {}
            }
        }
    }
}

/// A claim whose key has [`WITHDRAWN_CLAIM`]: no agent can take the rank, and the published worker count still belongs
/// to the agent of the claim.
#[derive(Debug)]
pub(crate) struct WithdrawnClaim {
    rank: NodeRank,
    text: Vec<u8>,
    /// The nonce of the agent.
    nonce: u32,
}

/// Withdraws the claims of agents that have lost all connections. A nonce identifies an agent. Only the host of the
/// store sees closed connections. [`release_ranks`] must follow.
///
/// # Errors
/// See [`Client`].
pub(crate) async fn withdraw_claims(
    store: &mut Client,
    (run_id, nodes): (&RunId, NodeCount),
    departed: &BTreeSet<u32>,
) -> Result<Vec<WithdrawnClaim>, ClientError> {
    let keys = RendezvousKeys::static_keys(run_id);
    let names: Vec<String> = (0..nodes.get()).map(|rank| keys.claim(NodeRank(rank))).collect();
    let texts = store.multi_get(&names.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    let mut withdrawn = Vec::new();
    for (rank, (name, text)) in (0..).map(NodeRank).zip(names.iter().zip(texts)) {
        let nonce = Claim::from_json(&text).map(|claim| claim.agent.nonce);
        let Some(nonce) = nonce.filter(|nonce| departed.contains(nonce)) else { continue };
        if store.compare_set(name, &text, WITHDRAWN_CLAIM).await? == WITHDRAWN_CLAIM {
            withdrawn.push(WithdrawnClaim { rank, text, nonce });
        }
    }
    Ok(withdrawn)
}

/// Frees the ranks of withdrawn claims, for other agents. An agent that is connected again, by the nonces in
/// `connected`, gets its claim back.
///
/// # Errors
/// See [`Client`].
pub(crate) async fn release_ranks(
    store: &mut Client,
    run_id: &RunId,
    withdrawn: Vec<WithdrawnClaim>,
    connected: &BTreeSet<u32>,
) -> Result<(), ClientError> {
    let (keys, round) = (RendezvousKeys::static_keys(run_id), RoundKeys::first_of_static(run_id));
    for WithdrawnClaim { rank, text, nonce } in withdrawn {
        let name = keys.claim(rank);
        if connected.contains(&nonce) {
            store.set(&name, &text).await?;
            continue;
        }
        store.delete(&round.role_info(rank)).await?;
        store.delete(&name).await?;
    }
    Ok(())
}

/// Whether an agent that was watched for this long is dead; `None` if it is too early to decide.
fn claim_outcome(lease: Duration, watched: Duration, has_heartbeat: bool, is_out: bool) -> Option<bool> {
    // Another agent has removed the dead agent from the state. A failed agent is out for a moment too, but sends two
    // heartbeats in this time.
    let enough = if is_out { lease * 2 / 5 } else { lease };
    if has_heartbeat { Some(false) } else { (watched >= enough).then_some(true) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_is_dead_after_lease_or_peer_report() {
        let at = Duration::from_secs;
        let cases = [
            (at(0), false, false, None),
            (at(4), false, false, None),
            (at(5), false, false, Some(true)),
            (at(1), false, true, None),
            (at(2), false, true, Some(true)),
            (at(1), true, true, Some(false)),
            (at(9), true, false, Some(false)),
        ];
        for (watched, gave_a_sign, is_out, expected) in cases {
            assert_eq!(
                claim_outcome(at(5), watched, gave_a_sign, is_out),
                expected,
                "{watched:?} {gave_a_sign} {is_out}"
            );
        }
    }

    #[test]
    fn claim_of_any_version_names_its_host() {
        let text = br#"{"host":"th1\u001b","addr":"a","pid":1,"local_id":0,"agent":"{\"protocol\":9}"}"#;
        let (name, agent) = parse_claim_header(text);
        assert_eq!((name.to_string().as_str(), agent.as_str()), ("th1  (a)", "{\"protocol\":9}"));
        assert_eq!(Claim::from_json(text), None);
        assert_eq!(parse_claim_header(b"\xff").0.to_string(), "another node");
    }
}
