//! Which agents stop their workers before the next round can begin. Computed from the state and the failure detector
//! only; this module stops nothing.

use crate::rendezvous::state::Node;

use super::{LocalNode, RoundView, is_spare};

/// Live rankrun agents in the running round, which must end before this node can join. Each of them stops its workers,
/// then joins the next round by itself. None of them counts as missing, however long its grace period is.
///
/// Empty if this node is not on the wait list. torchrun's agents are never included, because they do not always stop
/// for other nodes.
#[must_use]
pub fn previous_round_members<'a>(view: &RoundView<'a>, me: &Node) -> Vec<&'a Node> {
    let RoundView { state, failure_detector, agents, .. } = *view;
    let waits = state.complete && !state.closed && state.wait_list.contains(me);
    let is_ending = |node: &&Node| agents.contains_key(*node) && !failure_detector.is_dead(node);
    state.participants.nodes().filter(|_| waits).filter(is_ending).collect()
}

/// Whether the join timeout does not count now: this node is a spare, or waits for nodes that stop their workers.
#[must_use]
pub fn has_time_to_rejoin(view: &RoundView<'_>, me: &LocalNode) -> bool {
    is_spare(view.state, &me.node) || !previous_round_members(view, &me.node).is_empty()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::rendezvous::descriptor::AgentDescriptor;
    use crate::rendezvous::failure_detector::FailureDetector;
    use crate::rendezvous::state::RendezvousState;
    use crate::spec::rendezvous::{NodeRange, RoundTimes};

    fn node(name: &str) -> Node {
        Node { addr: name.to_owned(), pid: 1, local_id: 0 }
    }

    /// A round of `members`, with `waiting` on the wait list. `t` is a torchrun agent. `dead` has been silent for a
    /// lease.
    fn notified_nodes(members: &[&str], waiting: &str) -> Vec<String> {
        let descriptor = AgentDescriptor {
            protocol: 1,
            version: String::new(),
            host: String::new(),
            nodes: NodeRange::ONE,
            node_rank: None,
            lease: Duration::from_secs(5),
            workers: rankrun_contract::rank::LocalWorldSize::ONE,
            entrypoint: String::new(),
            nonce: 0,
            max_restarts: None,
        };
        let mut state = RendezvousState { complete: true, ..RendezvousState::default() };
        state.participants = members.iter().copied().map(node).zip(0..).collect();
        state.wait_list.insert(node(waiting));
        let agents = ["a", "b", "dead", "m"].map(|name| (node(name), descriptor.clone())).into();
        let mut failure_detector = FailureDetector::new(&RoundTimes::default());
        #[expect(clippy::disallowed_methods, reason = "a test's clock starts somewhere")]
        let origin = Instant::now();
        for second in 0..=5 {
            let heartbeat = |name: &str| if name == "dead" { 0 } else { second };
            let heartbeats: BTreeMap<Node, i64> =
                ["a", "b", "dead", "m"].map(|name| (node(name), heartbeat(name))).into();
            failure_detector.record_snapshot(
                &state,
                &heartbeats,
                origin + Duration::from_secs(second.unsigned_abs()),
            );
        }
        let view =
            RoundView { state: &state, failure_detector: &failure_detector, agents: &agents, ranks: None };
        previous_round_members(&view, &node("m")).into_iter().map(|node| node.addr.clone()).collect()
    }

    #[test]
    fn next_round_waits_for_live_previous_members() {
        assert_eq!(notified_nodes(&["a", "dead", "b", "t"], "m"), ["a", "b"]);
        assert_eq!(notified_nodes(&["dead", "t"], "m"), [""; 0], "no agent is known to stop its workers");
        assert_eq!(notified_nodes(&["a", "m"], "b"), [""; 0], "it is in the round itself");
    }
}
