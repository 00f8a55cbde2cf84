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
    sightings: FailureDetector,
    state: RendezvousState,
    origin: Instant,
}

impl Stage {
    fn new() -> Self {
        #[expect(clippy::disallowed_methods, reason = "a test's clock starts somewhere")]
        let origin = Instant::now();
        let mut state = RendezvousState::default();
        state.wait_list.extend([node("ours"), node("torch")]);
        Self { sightings: FailureDetector::new(&RoundTimes::default()), state, origin }
    }

    fn at(&self, seconds: f64) -> Instant {
        self.origin + Duration::from_secs_f64(seconds)
    }

    fn look(&mut self, seconds: f64, beat: i64, heartbeat: i64) {
        self.state.last_heartbeats.insert(node("torch"), Timestamp(heartbeat));
        let now = self.at(seconds);
        self.sightings.saw(&self.state, &BTreeMap::from([(node("ours"), beat)]), now);
    }

    /// One read per second without a change.
    fn look_from(&mut self, from: u32, to: u32, beat: i64, heartbeat: i64) {
        (from..=to).for_each(|second| self.look(f64::from(second), beat, heartbeat));
    }

    fn dead(&self) -> Vec<&str> {
        ["ours", "torch"].into_iter().filter(|name| self.sightings.is_dead(&node(name))).collect()
    }
}

#[test]
fn a_sign_of_life_is_late_when_clearly_more_than_its_period_has_gone_by() {
    let mut stage = Stage::new();
    let period = Duration::from_secs(1);
    let doubted = |stage: &Stage, name| stage.sightings.doubted_until(&node(name), period);
    stage.look(0.0, 1, 100);
    stage.look(1.25, 1, 100);
    assert_eq!(doubted(&stage, "ours"), None, "it may just be a little late");
    stage.look(1.5, 1, 100);
    assert_eq!(doubted(&stage, "ours"), Some(stage.at(5.0)));
    assert_eq!(doubted(&stage, "torch"), None, "its heartbeat is due less often");
    stage.look(1.6, 2, 100);
    assert_eq!([doubted(&stage, "ours"), doubted(&stage, "unknown")], [None; 2]);
}

#[test]
fn rankrun_and_torchrun_peers_expire_by_their_own_limits() {
    let mut stage = Stage::new();
    stage.look_from(0, 4, 1, 100);
    assert!(stage.dead().is_empty());
    assert_eq!(stage.sightings.next_death(stage.at(4.0)), Some(stage.at(5.0)));
    stage.look(5.0, 1, 100);
    assert_eq!(stage.dead(), ["ours"]);
    assert_eq!(stage.sightings.next_death(stage.at(5.0)), Some(stage.at(15.0)));
    stage.look_from(6, 14, 1, 100);
    assert_eq!(stage.dead(), ["ours"]);
    stage.look(15.0, 1, 100);
    assert_eq!(stage.dead(), ["ours", "torch"]);
    stage.look(16.0, 2, 99);
    assert!(stage.dead().is_empty(), "any change is life");
}

#[test]
fn the_clock_of_another_machine_decides_nothing() {
    let mut stage = Stage::new();
    stage.look_from(0, 4, 1, -3_600_000_000);
    stage.look(5.0, 2, 7_200_000_000);
    stage.look_from(6, 9, 2, 7_200_000_000);
    assert!(stage.dead().is_empty());
}

#[test]
fn nobody_is_dead_who_was_not_looked_for() {
    let mut stage = Stage::new();
    stage.look_from(0, 4, 1, 1);
    let now = stage.at(4.5);
    stage.sightings.saw(&stage.state, &BTreeMap::new(), now);
    let now = stage.at(6.0);
    stage.sightings.saw(&stage.state, &BTreeMap::new(), now);
    assert!(stage.dead().is_empty(), "the state alone says nothing of ours");
    stage.look(6.5, 2, 1);
    assert!(stage.dead().is_empty());
}

#[test]
fn nobody_is_dead_who_has_written_since_it_was_looked_for() {
    let mut stage = Stage::new();
    stage.state.last_heartbeats.insert(node("ours"), Timestamp(1));
    stage.look_from(0, 6, 1, 1);
    assert_eq!(stage.dead(), ["ours"]);
    stage.state.last_heartbeats.insert(node("ours"), Timestamp(2));
    let now = stage.at(6.1);
    stage.sightings.saw(&stage.state, &BTreeMap::new(), now);
    assert!(stage.dead().is_empty(), "it may have been cut off, and be back");
    stage.look(7.0, 1, 1);
    assert_eq!(stage.dead(), ["ours"], "others keep its heartbeat fresh until they miss it");
}

#[test]
fn time_in_which_nobody_could_look_ages_nobody() {
    let mut stage = Stage::new();
    stage.look_from(0, 2, 1, 1);
    stage.look(60.0, 1, 1);
    assert!(stage.dead().is_empty(), "the store was away, for them as for us");
    stage.look_from(61, 62, 1, 1);
    assert_eq!(stage.dead(), ["ours"]);
}

#[test]
fn who_is_gone_is_dead_at_once_until_it_beats_again() {
    let mut stage = Stage::new();
    stage.look(0.0, 1, 1);
    stage.sightings.gone(&node("ours"));
    stage.sightings.gone(&node("stranger"));
    assert_eq!(stage.dead(), ["ours"]);
    stage.look(0.5, 2, 1);
    assert_eq!(stage.dead(), ["ours"], "this beat may be from before");
    stage.look(1.5, 3, 1);
    assert!(stage.dead().is_empty());
}

#[test]
fn who_was_found_dead_is_remembered_until_it_is_in_a_list_again() {
    let mut stage = Stage::new();
    stage.look_from(0, 5, 1, 1);
    stage.state.wait_list.remove(&node("ours"));
    stage.look(6.0, 1, 1);
    assert!(stage.sightings.has_died(&node("ours")) && !stage.sightings.has_died(&node("torch")));
    stage.state.wait_list.insert(node("ours"));
    stage.look(7.0, 1, 1);
    assert!(!stage.sightings.has_died(&node("ours")) && stage.dead().is_empty(), "it begins anew");
}

#[test]
fn a_torchrun_agent_in_no_list_has_died_when_its_limit_is_over() {
    let mut stage = Stage::new();
    stage.look_from(0, 9, 1, 1);
    let listed = std::mem::take(&mut stage.state.wait_list);
    stage.look_from(10, 14, 1, 1);
    assert!(!stage.sightings.has_died(&node("torch")), "it may be on its way to another list");
    assert_eq!(stage.sightings.next_death(stage.at(14.0)), Some(stage.at(15.0)));
    stage.look(15.0, 1, 1);
    assert!(stage.sightings.has_died(&node("torch")));
    stage.state.wait_list = listed;
    stage.look(16.0, 1, 1);
    assert!(!stage.sightings.has_died(&node("torch")), "it was slow");
}

#[test]
fn time_in_which_nobody_could_look_ages_nobody_who_is_on_its_way() {
    let mut stage = Stage::new();
    stage.look_from(0, 2, 1, 1);
    stage.state.wait_list.clear();
    stage.look(3.0, 1, 1);
    stage.look(60.0, 1, 1);
    assert!(!stage.sightings.has_died(&node("torch")), "it could not come either");
    stage.look_from(61, 69, 1, 1);
    assert!(stage.sightings.has_died(&node("torch")));
}

#[test]
fn who_is_in_no_list_for_two_rounds_is_forgotten() {
    let mut stage = Stage::new();
    stage.look_from(0, 15, 1, 1);
    stage.state.wait_list.clear();
    stage.look(16.0, 1, 1);
    for (round, is_known) in [(1, true), (2, false)] {
        stage.state.round = round;
        stage.look(17.0, 1, 1);
        assert_eq!(stage.sightings.has_died(&node("torch")), is_known, "round {round}");
    }
}

#[test]
fn a_last_call_is_timed_from_when_it_is_seen_first() {
    let mut stage = Stage::new();
    stage.state.deadline = Some(Timestamp(1));
    stage.look(1.0, 1, 1);
    stage.look(2.0, 2, 1);
    assert_eq!(stage.sightings.deadline_seen(&stage.state), Some(stage.at(1.0)));
    stage.state.deadline = Some(Timestamp(2));
    assert_eq!(stage.sightings.deadline_seen(&stage.state), None, "another one, not seen yet");
    stage.look(3.0, 3, 1);
    assert_eq!(stage.sightings.deadline_seen(&stage.state), Some(stage.at(3.0)));
}

#[test]
fn the_clock_of_torchrun_agents_goes_on_between_their_heartbeats() {
    let mut stage = Stage::new();
    stage.look(0.0, 1, 5_000_000);
    assert_eq!(stage.sightings.torch_clock(stage.at(3.0)), Some(Timestamp(8_000_000)));
}
