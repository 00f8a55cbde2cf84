//! The ranks of a round as JSON in the store, for the agent that completes the next round. Pure.

use serde::{Deserialize, Serialize};

use super::ranks::Ranks;
use super::state::Node;

/// Longest text that is parsed, in bytes.
const MAX_JSON: usize = 8 << 20;

#[derive(Serialize, Deserialize)]
struct RanksWire {
    round: u64,
    /// Address, pid, counter and rank of each node.
    nodes: Vec<(String, i64, i64, i64)>,
}

/// The ranks as JSON for the store.
#[must_use]
pub fn to_json(ranks: &Ranks) -> Vec<u8> {
    let nodes = ranks.of.iter().map(|(node, rank)| (node.addr.clone(), node.pid, node.local_id, *rank));
    let wire = RanksWire { round: ranks.round, nodes: nodes.collect() };
    serde_json::to_vec(&wire).expect("texts and numbers are JSON")
}

/// Parses another agent's text; `None` if it is malformed.
#[must_use]
pub fn from_json(text: &[u8]) -> Option<Ranks> {
    let wire: RanksWire = (text.len() <= MAX_JSON).then(|| serde_json::from_slice(text).ok())??;
    let of = wire.nodes.into_iter().map(|(addr, pid, local_id, rank)| (Node { addr, pid, local_id }, rank));
    Some(Ranks { round: wire.round, of: of.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_json_round_trips_and_other_text_is_none() {
        let node = |addr: &str, pid| Node { addr: addr.to_owned(), pid, local_id: 0 };
        let of = [(node("th1", 7), 1), (node("fe80::1", 8), 0)].into_iter().collect();
        let ranks = Ranks { round: 3, of };
        assert_eq!(from_json(&to_json(&ranks)), Some(ranks));
        for bad in ["", "null", "{\"round\":-1,\"nodes\":[]}", "{\"round\":1,\"nodes\":[[1]]}"] {
            assert_eq!(from_json(bad.as_bytes()), None, "{bad}");
        }
    }
}
