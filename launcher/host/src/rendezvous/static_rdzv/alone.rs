//! The note by which node rank 0 starts a static job with rankrun agents only. All agents build the same first state
//! from it, whatever happened since. Pure.

use serde::{Deserialize, Serialize};

use rankrun_core::rendezvous::state::{Node, RendezvousState, Timestamp};

/// Longest text that is parsed, in bytes: the longest value that a client can write.
const MAX_JSON: usize = 8 * 1024 * 1024;

#[derive(Serialize, Deserialize)]
struct FirstRoundWire {
    /// Address, pid and counter of each node, by node rank.
    nodes: Vec<(String, i64, i64)>,
    /// Time of the note in microseconds since 1970.
    wall: i64,
}

/// The state of the complete first round.
pub(super) fn state<'a>(nodes: impl Iterator<Item = &'a Node> + Clone, wall: Timestamp) -> RendezvousState {
    RendezvousState {
        complete: true,
        participants: nodes.clone().zip(0..).map(|(node, rank)| (node.clone(), rank)).collect(),
        last_heartbeats: nodes.map(|node| (node.clone(), wall)).collect(),
        ..RendezvousState::default()
    }
}

/// The note as JSON for the store.
pub(super) fn to_json<'a>(nodes: impl Iterator<Item = &'a Node>, wall: Timestamp) -> Vec<u8> {
    let nodes = nodes.map(|node| (node.addr.clone(), node.pid, node.local_id)).collect();
    serde_json::to_vec(&FirstRoundWire { nodes, wall: wall.0 }).expect("texts and numbers are JSON")
}

/// Parses the nodes by rank and rank 0's time; `None` if the text is malformed, or for another number of nodes.
pub(super) fn from_json(text: &[u8], count: usize) -> Option<(Vec<Node>, Timestamp)> {
    let wire: FirstRoundWire = (text.len() <= MAX_JSON).then(|| serde_json::from_slice(text).ok())??;
    let node = |(addr, pid, local_id)| Node { addr, pid, local_id };
    let nodes: Vec<Node> = wire.nodes.into_iter().map(node).collect();
    (nodes.len() == count).then_some((nodes, Timestamp(wire.wall)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn malformed_record_is_none() {
        let good = br#"{"nodes":[["th1",1,0],["th2",2,0]],"wall":5}"#;
        let (nodes, wall) = from_json(good, 2).unwrap();
        assert_eq!((nodes[1].to_string().as_str(), wall), ("th2_2_0", Timestamp(5)));
        assert_eq!(to_json(nodes.iter(), wall), good);
        assert_eq!(from_json(good, 3), None);
        for bad in
            [&b""[..], b"1", b"{}", br#"{"nodes":[["th1",1]],"wall":5}"#, br#"{"nodes":[[1,1,0]],"wall":5}"#]
        {
            assert_eq!(from_json(bad, 1), None);
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), count in 0_usize..4) {
            let _ = from_json(&bytes, count);
        }
    }
}
