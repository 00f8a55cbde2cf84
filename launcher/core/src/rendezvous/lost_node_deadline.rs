//! How long a failed node waits for the notice that a lost node was the cause. Pure.

use std::time::{Duration, Instant};

use crate::spec::rendezvous::RoundTimes;

/// How long the answer waits for the notice of a lost node that needs no lease.
const LOST_NODE_QUERY: Duration = Duration::from_millis(50);
/// How long the answer waits at most. No failure is held back for longer.
const LONGEST_LOST_NODE_QUERY: Duration = Duration::from_secs(7);

/// What the other agents have shown since the question was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerActivity {
    /// Every rankrun agent that may be lost has sent a heartbeat.
    pub all_live: bool,
    /// When the last agent with late heartbeats will be dead, if there is one. Its workers may be stopped already, and
    /// that may have caused the failure here.
    pub doubted_until: Option<Instant>,
    /// This node's failure is the first one in the store and lost a peer, and another node may still report the cause.
    pub awaits_cause: bool,
}

/// Until when the answer waits for the notice of a lost node, or for the report of a lost peer's failure. Afterwards the
/// failure counts as this node's own.
#[must_use]
pub fn lost_node_deadline(
    asked: Instant,
    is_watched: bool,
    shown: PeerActivity,
    times: &RoundTimes,
) -> Instant {
    let PeerActivity { all_live, doubted_until, awaits_cause } = shown;
    // A heartbeat may have come just before the loss. A node that reports nothing for a lease is lost itself.
    let unwatched = (awaits_cause || !is_watched && !all_live).then(|| asked + times.lease);
    let dead = unwatched.max(doubted_until);
    dead.map_or(asked, |dead| dead.clamp(asked, asked + LONGEST_LOST_NODE_QUERY - LOST_NODE_QUERY))
        + LOST_NODE_QUERY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "any moment will do")]
    #[test]
    fn failure_report_is_delayed_while_peer_liveness_is_unknown() {
        let asked = Instant::now();
        let until = |is_watched, all_live, lease| {
            let times = RoundTimes { lease: Duration::from_secs(lease), ..RoundTimes::default() };
            let shown = PeerActivity { all_live, doubted_until: None, awaits_cause: false };
            (lost_node_deadline(asked, is_watched, shown, &times) - asked).as_millis()
        };
        assert_eq!([until(true, false, 5), until(false, true, 5), until(true, true, 5)], [50; 3]);
        assert_eq!([until(false, false, 5), until(false, false, 60)], [5050, 7000]);
    }

    #[expect(clippy::disallowed_methods, reason = "any moment will do")]
    #[test]
    fn failure_report_is_delayed_for_late_heartbeats() {
        let asked = Instant::now();
        let until = |is_watched, all_live, dead_in| {
            let shown = PeerActivity {
                all_live,
                doubted_until: Some(asked + Duration::from_millis(dead_in)),
                awaits_cause: false,
            };
            (lost_node_deadline(asked, is_watched, shown, &RoundTimes::default()) - asked).as_millis()
        };
        assert_eq!([until(true, false, 1_500), until(false, true, 1_500)], [1_550; 2]);
        assert_eq!(until(false, false, 1_500), 5_050, "of others nothing is known at all");
        assert_eq!(until(true, false, 18_000), 7_000, "for no longer");
    }

    #[expect(clippy::disallowed_methods, reason = "any moment will do")]
    #[test]
    fn failure_report_after_lost_peer_is_delayed_one_lease_at_most() {
        let asked = Instant::now();
        let until = |lease| {
            let times = RoundTimes { lease: Duration::from_secs(lease), ..RoundTimes::default() };
            let shown = PeerActivity { all_live: true, doubted_until: None, awaits_cause: true };
            (lost_node_deadline(asked, true, shown, &times) - asked).as_millis()
        };
        assert_eq!([until(2), until(5), until(60)], [2_050, 5_050, 7_000]);
    }
}
