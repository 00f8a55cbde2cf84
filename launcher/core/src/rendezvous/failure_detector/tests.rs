use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::FailureDetector;
use crate::rendezvous::state::{Node, RendezvousState, Timestamp};
use crate::spec::rendezvous::RoundTimes;

fn node(name: &str) -> Node {
    Node { addr: name.to_owned(), pid: 1, local_id: 0 }
}

/// The agent `ours` has a heartbeat counter; `torch` has its heartbeat in the state.
struct Stage {
    failure_detector: FailureDetector,
    state: RendezvousState,
    origin: Instant,
}

impl Stage {
    fn new() -> Self {
        #[expect(clippy::disallowed_methods, reason = "a test's clock starts somewhere")]
        let origin = Instant::now();
        let mut state = RendezvousState::default();
        state.wait_list.extend([node("ours"), node("torch")]);
        Self { failure_detector: FailureDetector::new(&RoundTimes::default()), state, origin }
    }

    fn at(&self, seconds: f64) -> Instant {
        self.origin + Duration::from_secs_f64(seconds)
    }

    fn read_state_at(&mut self, seconds: f64, counter: i64, heartbeat: i64) {
        self.state.last_heartbeats.insert(node("torch"), Timestamp(heartbeat));
        let now = self.at(seconds);
        self.failure_detector.record_snapshot(&self.state, &BTreeMap::from([(node("ours"), counter)]), now);
    }

    /// One read per second without a change.
    fn read_every_second(&mut self, from: u32, to: u32, counter: i64, heartbeat: i64) {
        (from..=to).for_each(|second| self.read_state_at(f64::from(second), counter, heartbeat));
    }

    fn dead(&self) -> Vec<&str> {
        ["ours", "torch"].into_iter().filter(|name| self.failure_detector.is_dead(&node(name))).collect()
    }
}

#[test]
fn heartbeat_is_late_clearly_after_its_period() {
    let mut stage = Stage::new();
    let period = Duration::from_secs(1);
    let doubted = |stage: &Stage, name| stage.failure_detector.heartbeat_late_until(&node(name), period);
    stage.read_state_at(0.0, 1, 100);
    stage.read_state_at(1.25, 1, 100);
    assert_eq!(doubted(&stage, "ours"), None, "it may just be a little late");
    stage.read_state_at(1.5, 1, 100);
    assert_eq!(doubted(&stage, "ours"), Some(stage.at(5.0)));
    assert_eq!(doubted(&stage, "torch"), None, "its heartbeat is due less often");
    stage.read_state_at(1.6, 2, 100);
    assert_eq!([doubted(&stage, "ours"), doubted(&stage, "unknown")], [None; 2]);
}

#[test]
fn rankrun_and_torchrun_peers_expire_by_their_own_limits() {
    let mut stage = Stage::new();
    stage.read_every_second(0, 4, 1, 100);
    assert!(stage.dead().is_empty());
    assert_eq!(stage.failure_detector.next_death(stage.at(4.0)), Some(stage.at(5.0)));
    stage.read_state_at(5.0, 1, 100);
    assert_eq!(stage.dead(), ["ours"]);
    assert_eq!(stage.failure_detector.next_death(stage.at(5.0)), Some(stage.at(15.0)));
    stage.read_every_second(6, 14, 1, 100);
    assert_eq!(stage.dead(), ["ours"]);
    stage.read_state_at(15.0, 1, 100);
    assert_eq!(stage.dead(), ["ours", "torch"]);
    stage.read_state_at(16.0, 2, 99);
    assert!(stage.dead().is_empty(), "any change is life");
}

#[test]
fn remote_clock_does_not_affect_liveness() {
    let mut stage = Stage::new();
    stage.read_every_second(0, 4, 1, -3_600_000_000);
    stage.read_state_at(5.0, 2, 7_200_000_000);
    stage.read_every_second(6, 9, 2, 7_200_000_000);
    assert!(stage.dead().is_empty());
}

#[test]
fn peer_without_heartbeat_read_is_not_dead() {
    let mut stage = Stage::new();
    stage.read_every_second(0, 4, 1, 1);
    let now = stage.at(4.5);
    stage.failure_detector.record_snapshot(&stage.state, &BTreeMap::new(), now);
    let now = stage.at(6.0);
    stage.failure_detector.record_snapshot(&stage.state, &BTreeMap::new(), now);
    assert!(stage.dead().is_empty(), "the state alone says nothing of ours");
    stage.read_state_at(6.5, 2, 1);
    assert!(stage.dead().is_empty());
}

#[test]
fn peer_with_newer_state_heartbeat_is_not_dead() {
    let mut stage = Stage::new();
    stage.state.last_heartbeats.insert(node("ours"), Timestamp(1));
    stage.read_every_second(0, 6, 1, 1);
    assert_eq!(stage.dead(), ["ours"]);
    stage.state.last_heartbeats.insert(node("ours"), Timestamp(2));
    let now = stage.at(6.1);
    stage.failure_detector.record_snapshot(&stage.state, &BTreeMap::new(), now);
    assert!(stage.dead().is_empty(), "it may have been cut off, and be back");
    stage.read_state_at(7.0, 1, 1);
    assert_eq!(stage.dead(), ["ours"], "others keep its heartbeat fresh until they miss it");
}

#[test]
fn time_without_reads_does_not_age_peers() {
    let mut stage = Stage::new();
    stage.read_every_second(0, 2, 1, 1);
    stage.read_state_at(60.0, 1, 1);
    assert!(stage.dead().is_empty(), "the store was away, for them as for us");
    stage.read_every_second(61, 62, 1, 1);
    assert_eq!(stage.dead(), ["ours"]);
}

#[test]
fn disconnected_peer_is_dead_until_next_heartbeats() {
    let mut stage = Stage::new();
    stage.read_state_at(0.0, 1, 1);
    stage.failure_detector.mark_disconnected(&node("ours"));
    stage.failure_detector.mark_disconnected(&node("unknown"));
    assert_eq!(stage.dead(), ["ours"]);
    stage.read_state_at(0.5, 2, 1);
    assert_eq!(stage.dead(), ["ours"], "this beat may be from before");
    stage.read_state_at(1.5, 3, 1);
    assert!(stage.dead().is_empty());
}

#[test]
fn dead_peer_is_remembered_until_listed_again() {
    let mut stage = Stage::new();
    stage.read_every_second(0, 5, 1, 1);
    stage.state.wait_list.remove(&node("ours"));
    stage.read_state_at(6.0, 1, 1);
    assert!(
        stage.failure_detector.has_died(&node("ours")) && !stage.failure_detector.has_died(&node("torch"))
    );
    stage.state.wait_list.insert(node("ours"));
    stage.read_state_at(7.0, 1, 1);
    assert!(!stage.failure_detector.has_died(&node("ours")) && stage.dead().is_empty(), "it begins anew");
}

#[test]
fn unlisted_torchrun_agent_is_dead_after_its_limit() {
    let mut stage = Stage::new();
    stage.read_every_second(0, 9, 1, 1);
    let listed = std::mem::take(&mut stage.state.wait_list);
    stage.read_every_second(10, 14, 1, 1);
    assert!(!stage.failure_detector.has_died(&node("torch")), "it may be on its way to another list");
    assert_eq!(stage.failure_detector.next_death(stage.at(14.0)), Some(stage.at(15.0)));
    stage.read_state_at(15.0, 1, 1);
    assert!(stage.failure_detector.has_died(&node("torch")));
    stage.state.wait_list = listed;
    stage.read_state_at(16.0, 1, 1);
    assert!(!stage.failure_detector.has_died(&node("torch")), "it was slow");
}

#[test]
fn time_without_reads_does_not_age_unlisted_peers() {
    let mut stage = Stage::new();
    stage.read_every_second(0, 2, 1, 1);
    stage.state.wait_list.clear();
    stage.read_state_at(3.0, 1, 1);
    stage.read_state_at(60.0, 1, 1);
    assert!(!stage.failure_detector.has_died(&node("torch")), "it could not come either");
    stage.read_every_second(61, 69, 1, 1);
    assert!(stage.failure_detector.has_died(&node("torch")));
}

#[test]
fn peer_unlisted_for_two_rounds_is_forgotten() {
    let mut stage = Stage::new();
    stage.read_every_second(0, 15, 1, 1);
    stage.state.wait_list.clear();
    stage.read_state_at(16.0, 1, 1);
    for (round, is_known) in [(1, true), (2, false)] {
        stage.state.round = round;
        stage.read_state_at(17.0, 1, 1);
        assert_eq!(stage.failure_detector.has_died(&node("torch")), is_known, "round {round}");
    }
}

#[test]
fn last_call_is_timed_from_first_observation() {
    let mut stage = Stage::new();
    stage.state.deadline = Some(Timestamp(1));
    stage.read_state_at(1.0, 1, 1);
    stage.read_state_at(2.0, 2, 1);
    assert_eq!(stage.failure_detector.last_call_observed_at(&stage.state), Some(stage.at(1.0)));
    stage.state.deadline = Some(Timestamp(2));
    assert_eq!(stage.failure_detector.last_call_observed_at(&stage.state), None, "another one, not seen yet");
    stage.read_state_at(3.0, 3, 1);
    assert_eq!(stage.failure_detector.last_call_observed_at(&stage.state), Some(stage.at(3.0)));
}

#[test]
fn torchrun_clock_advances_between_heartbeats() {
    let mut stage = Stage::new();
    stage.read_state_at(0.0, 1, 5_000_000);
    assert_eq!(stage.failure_detector.torch_clock(stage.at(3.0)), Some(Timestamp(8_000_000)));
}
