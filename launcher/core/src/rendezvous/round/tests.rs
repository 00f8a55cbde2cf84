use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rankrun_contract::rank::{LocalWorldSize, NodeCount, NodeRank};

use super::{LocalNode, RoundEnd, RoundGoal, RoundStep, RoundView, next};
use crate::rendezvous::descriptor::AgentDescriptor;
use crate::rendezvous::failure_detector::FailureDetector;
use crate::rendezvous::ranks::Ranks;
use crate::rendezvous::state::{Node, RendezvousState, Timestamp};
use crate::spec::rendezvous::{NodeRange, RoundTimes};

fn node(name: &str) -> Node {
    Node { addr: name.to_owned(), pid: 1, local_id: 0 }
}

fn nodes(names: &str) -> Vec<Node> {
    names.split_whitespace().map(node).collect()
}

fn descriptor(node_rank: Option<u32>) -> AgentDescriptor {
    let nodes = NodeRange { min: NodeCount::ONE, max: NodeCount::ONE };
    AgentDescriptor {
        protocol: 1,
        version: String::new(),
        host: String::new(),
        nodes,
        node_rank: node_rank.map(NodeRank),
        lease: Duration::from_secs(5),
        workers: LocalWorldSize::ONE,
        entrypoint: String::new(),
        nonce: 0,
        max_restarts: None,
    }
}

/// One agent's view. The agent is `m`, in a job of `2:3` nodes; `t` and `u` are torchrun agents.
struct Stage {
    me: LocalNode,
    state: RendezvousState,
    failure_detector: FailureDetector,
    agents: BTreeMap<Node, AgentDescriptor>,
    ranks: Option<Ranks>,
    origin: Instant,
}

const WALL: Timestamp = Timestamp(1_700_000_000_000_000);
const DEADLINE: f64 = 600.0;

impl Stage {
    fn new() -> Self {
        #[expect(clippy::disallowed_methods, reason = "a test's clock starts somewhere")]
        let origin = Instant::now();
        let count = |number| NodeCount::new(number).unwrap();
        let times = RoundTimes::default();
        let nodes_asked = NodeRange { min: count(2), max: count(3) };
        let me = LocalNode { node: node("m"), nodes: nodes_asked, node_rank: None, times };
        let agents = nodes("a b c m z").into_iter().map(|node| (node, descriptor(None))).collect();
        let failure_detector = FailureDetector::new(&times);
        Self { me, state: RendezvousState::default(), failure_detector, agents, ranks: None, origin }
    }

    /// A state with these members by rank, wait list and spares.
    fn with(lists: [&str; 3]) -> Self {
        let mut stage = Self::new();
        stage.state.participants = nodes(lists[0]).into_iter().zip(0..).collect();
        stage.state.wait_list.extend(nodes(lists[1]));
        stage.state.redundancy_list.extend(nodes(lists[2]));
        let listed: Vec<Node> = stage.state.listed().cloned().collect();
        stage.state.last_heartbeats.extend(listed.into_iter().map(|node| (node, WALL)));
        stage
    }

    fn complete(mut self, round: u64) -> Self {
        (self.state.round, self.state.complete) = (round, true);
        self
    }

    fn at(&self, seconds: f64) -> Instant {
        self.origin + Duration::from_secs_f64(seconds)
    }

    /// Records a read in which all rankrun agents have advanced their heartbeats.
    fn read_state_at(&mut self, seconds: f64) {
        let count = (seconds * 1_000.0) as i64;
        let heartbeats = self.agents.keys().map(|node| (node.clone(), count)).collect();
        self.failure_detector.record_snapshot(&self.state, &heartbeats, self.at(seconds));
    }

    fn view(&self) -> RoundView<'_> {
        let ranks = self.ranks.as_ref();
        RoundView {
            state: &self.state,
            failure_detector: &self.failure_detector,
            agents: &self.agents,
            ranks,
        }
    }

    fn next(&mut self, goal: RoundGoal<'_>, seconds: f64) -> RoundStep {
        self.read_state_at(seconds);
        let view = self.view();
        let wall = Timestamp(WALL.0 + (seconds * 1e6) as i64);
        next(&view, &self.me, goal, self.at(seconds), wall)
    }

    fn join(&mut self, before: Option<u64>, seconds: f64) -> RoundStep {
        let deadline = self.at(DEADLINE);
        self.next(RoundGoal::Join { deadline, before }, seconds)
    }
}

/// A written state in one line: round, flags, members with ranks, wait list, spares.
fn describe_step(step: RoundStep) -> String {
    let RoundStep::Write { state, notifies } = step else { return format!("{step:?}") };
    let names = |nodes: &mut dyn Iterator<Item = &Node>| {
        nodes.map(|node| node.addr.clone()).collect::<Vec<_>>().join(" ")
    };
    let members: Vec<_> =
        state.participants.iter().map(|(node, rank)| format!("{}{rank}", node.addr)).collect();
    let flags =
        [(state.complete, "complete "), (state.deadline.is_some(), "last call "), (state.closed, "closed ")];
    let flags: String = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, word)| word).collect();
    format!(
        "{}{} {flags}[{}] [{}] [{}]",
        if notifies { "" } else { "(quietly) " },
        state.round,
        members.join(" "),
        names(&mut state.wait_list.iter()),
        names(&mut state.redundancy_list.iter()),
    )
}

fn is_wait(step: &RoundStep) -> bool {
    matches!(step, RoundStep::Wait { .. })
}

#[test]
fn rows_1_and_2_closed_rendezvous_admits_no_agent() {
    let mut stage = Stage::with(["a b c", "", "m"]).complete(0);
    stage.state.closed = true;
    assert_eq!(stage.join(None, 0.0), RoundStep::NotNeeded);
    stage.state.redundancy_list.clear();
    assert_eq!(stage.join(None, 0.0), RoundStep::Closed);
}

#[test]
fn rows_3_and_4_spare_waits_for_place_without_time_limit() {
    let mut stage = Stage::with(["a b c", "", "m"]).complete(0);
    assert!(is_wait(&stage.join(None, 0.0)) && is_wait(&stage.join(None, 3.0)));
    assert_eq!(
        describe_step(stage.join(None, 700.0)),
        "(quietly) 0 complete [a0 b1 c2] [] [m]",
        "its time is not limited"
    );
    stage.state.participants.remove(&node("b"));
    assert_eq!(describe_step(stage.join(None, 1.0)), "0 complete [a0 c2] [m] []");
    stage.state.redundancy_list.insert(node("a0"));
    assert!(is_wait(&stage.join(None, 1.0)), "another spare comes first");
}

#[test]
fn row_5_complete_round_is_joined_only_if_unchanged() {
    let mut stage = Stage::with(["a m", "", ""]).complete(4);
    assert_eq!(stage.join(Some(3), 0.0), RoundStep::Joined);
    stage.state.participants.insert(node("m"), 2);
    assert_eq!(
        describe_step(stage.join(Some(3), 0.0)),
        "4 complete [a0] [m] []",
        "the node with rank 1 has gone already"
    );
    let mut stage = Stage::with(["m", "", ""]).complete(4);
    let step = stage.join(None, 0.0);
    assert_eq!(describe_step(step), "5 [m0] [] []", "it was never so small, and the others have left");
    let mut stage = Stage::with(["a m", "z", ""]).complete(4);
    assert_eq!(describe_step(stage.join(None, 0.0)), "4 complete [a0] [m z] []", "it would be over at once");
    let mut stage = Stage::with(["t m", "z", ""]).complete(4);
    assert_eq!(stage.join(None, 0.0), RoundStep::Joined, "a torchrun agent waits for all in the exchange");
}

#[test]
fn rejoining_agent_moves_to_wait_list_in_one_write() {
    let mut stage = Stage::with(["a b m", "", ""]).complete(4);
    assert_eq!(describe_step(stage.join(Some(4), 0.0)), "4 complete [a0 b1] [m] []");
}

#[test]
fn last_rejoining_agent_starts_and_completes_next_round() {
    let mut stage = Stage::with(["m", "a b", ""]).complete(4);
    stage.ranks = Some(Ranks { round: 4, of: nodes("m b a").into_iter().zip(0..).collect() });
    let step = stage.join(Some(4), 0.0);
    assert_eq!(describe_step(step), "5 complete [m0 b1 a2] [] []", "all have kept their ranks");
    let mut stage = Stage::with(["m", "a t", ""]).complete(4);
    assert_eq!(describe_step(stage.join(Some(4), 0.0)), "5 complete [a0 t2 m1] [] []", "torch's order");
}

#[test]
fn torchrun_spare_moves_only_into_a_round_it_completes() {
    let mut stage = Stage::with(["", "", "t"]);
    assert_eq!(
        describe_step(stage.join(None, 0.0)),
        "(quietly) 0 [m0] [] [t]",
        "it would have no new deadline"
    );
    let mut stage = Stage::with(["", "", "t z"]);
    assert_eq!(describe_step(stage.join(None, 0.0)), "0 complete [t1 z2 m0] [] []");
    let mut stage = Stage::with(["", "", "z"]);
    assert_eq!(describe_step(stage.join(None, 0.0)), "0 last call [z0 m0] [] []");
}

#[test]
fn previous_participants_precede_newcomers_which_become_spares() {
    let mut stage = Stage::with(["m", "a b z", ""]).complete(4);
    stage.ranks = Some(Ranks { round: 4, of: nodes("m z b").into_iter().zip(0..).collect() });
    assert_eq!(describe_step(stage.join(Some(4), 0.0)), "5 complete [m0 z1 b2] [] [a]");
}

#[test]
fn rows_6_to_8_timed_out_agent_removes_itself_first() {
    let mut stage = Stage::with(["m a", "", ""]);
    stage.state.deadline = Some(WALL);
    assert_eq!(describe_step(stage.join(None, 601.0)), "0 [a1] [] []", "and below min there is no last call");
    stage.state.participants.remove(&node("m"));
    assert_eq!(stage.join(None, 601.0), RoundStep::TimedOut);
    let mut stage = Stage::with(["a b", "m", ""]).complete(0);
    assert_eq!(describe_step(stage.join(None, 604.0)), "0 complete [a0 b1] [] []");
    assert_eq!(stage.join(None, 605.5), RoundStep::TimedOut, "whatever is left of it is found dead");
}

#[test]
fn rows_9_and_10_running_round_is_waited_for_if_place_is_free() {
    let mut stage = Stage::with(["a b", "", ""]).complete(0);
    assert_eq!(describe_step(stage.join(None, 0.0)), "0 complete [a0 b1] [m] []");
    let mut stage = Stage::with(["a b", "m", ""]).complete(0);
    assert!(is_wait(&stage.join(None, 0.0)));
    let mut stage = Stage::with(["a b c", "", ""]).complete(0);
    assert_eq!(describe_step(stage.join(None, 0.0)), "(quietly) 0 complete [a0 b1 c2] [] [m]");
    let mut stage = Stage::with(["a b c", "m", ""]).complete(0);
    assert_eq!(
        describe_step(stage.join(None, 0.0)),
        "(quietly) 0 complete [a0 b1 c2] [] [m]",
        "it would disturb torchrun agents"
    );
    let mut stage = Stage::with(["a b", "z", ""]).complete(0);
    assert_eq!(
        describe_step(stage.join(None, 0.0)),
        "(quietly) 0 complete [a0 b1] [z] [m]",
        "the place is z's"
    );
}

#[test]
fn row_11_last_call_ends_by_observed_duration_not_by_clocks() {
    for skew in [-3_600_000_000, 0, 3_600_000_000] {
        let mut stage = Stage::with(["a m", "", ""]);
        stage.state.deadline = Some(Timestamp(WALL.0 + skew));
        assert!(is_wait(&stage.join(None, 0.0)));
        (1..30).for_each(|second| stage.read_state_at(f64::from(second)));
        assert_eq!(describe_step(stage.join(None, 29.9)), "(quietly) 0 last call [a0 m1] [] []");
        assert_eq!(describe_step(stage.join(None, 30.0)), "0 complete [a0 m1] [] []");
    }
}

#[test]
fn row_12_minimum_starts_last_call_and_maximum_completes() {
    let mut stage = Stage::new();
    assert_eq!(describe_step(stage.join(None, 0.0)), "(quietly) 0 [m0] [] []");
    let mut stage = Stage::with(["z", "", ""]);
    let step = stage.join(None, 0.0);
    let RoundStep::Write { state, .. } = &step else { panic!("{step:?}") };
    let lasts = state.deadline.map(|deadline| deadline.0 - WALL.0).expect("a last call has a deadline");
    assert!((30_000_000..30_001_000).contains(&lasts), "{lasts} µs");
    assert_eq!(describe_step(step), "0 last call [z0 m0] [] []");
    let mut stage = Stage::with(["z t", "", ""]);
    assert_eq!(describe_step(stage.join(None, 0.0)), "0 complete [z2 t1 m0] [] []");
    let mut stage = Stage::with(["z", "a b", ""]);
    assert_eq!(describe_step(stage.join(None, 0.0)), "0 complete [z2 a0 b1] [] [m]", "both waited before");
}

#[test]
fn last_calls_of_two_nodes_at_one_moment_have_two_deadlines() {
    let deadline_of = |name| {
        let mut stage = Stage::with(["z", "", ""]);
        stage.me.node = node(name);
        let step = stage.join(None, 0.0);
        let RoundStep::Write { state, .. } = step else { panic!("{step:?}") };
        state.deadline
    };
    assert_ne!(deadline_of("a"), deadline_of("b"));
}

#[test]
fn later_round_does_not_wait_for_unlisted_member() {
    let ranks = |names| Some(Ranks { round: 0, of: nodes(names).into_iter().zip(0..).collect() });
    let mut stage = Stage::with(["m", "a", ""]).complete(0);
    stage.ranks = ranks("a m b");
    assert_eq!(
        describe_step(stage.join(Some(0), 0.0)),
        "1 complete [a0 m1] [] []",
        "b is in no list, and was ours"
    );
    stage.ranks = ranks("a m t");
    assert_eq!(describe_step(stage.join(Some(0), 0.0)), "1 last call [a0 m0] [] []", "t may be on its way");
    stage.ranks = None;
    assert_eq!(describe_step(stage.join(Some(0), 0.0)), "1 last call [a0 m0] [] []");
}

#[test]
fn later_round_completes_once_torchrun_agent_is_dead_to_us_too() {
    // Time of t's last heartbeat, and time of the read at which this node finds t dead, in seconds.
    for (heartbeat_time, dies) in [(0.0, 15.0), (7.0, 22.0)] {
        let mut stage = Stage::with(["a t m", "", ""]).complete(0);
        stage.ranks = Some(Ranks { round: 0, of: nodes("a t m").into_iter().zip(0..).collect() });
        (0..7).for_each(|second| stage.read_state_at(f64::from(second)));
        stage.state.last_heartbeats.insert(node("t"), Timestamp(WALL.0 + (heartbeat_time * 1e6) as i64));
        (7..15).for_each(|second| stage.read_state_at(f64::from(second)));
        // Another agent removes t, and turns the round.
        stage.state = Stage::with(["m a", "", ""]).state;
        (stage.state.round, stage.state.deadline) = (1, Some(WALL));
        for tenths in (145..).map(f64::from).take_while(|tenths| tenths / 10.0 < dies) {
            let step = stage.join(Some(0), tenths / 10.0);
            assert!(!describe_step(step).contains("complete"), "it may be on its way after {tenths} tenths");
            stage.state.last_heartbeats.insert(node("m"), Timestamp(tenths as i64));
        }
        assert_eq!(stage.join(Some(0), dies - 0.01), RoundStep::Wait { until: stage.at(dies) });
        assert_eq!(
            describe_step(stage.join(Some(0), dies)),
            "1 complete [m1 a0] [] []",
            "not when the call is over"
        );
    }
}

#[test]
fn dead_member_is_removed_with_same_effects_as_torch() {
    let mut stage = Stage::with(["a b m", "", ""]).complete(3);
    let members = nodes("a b m");
    let goal = RoundGoal::Stay { round: 3, members: &members };
    stage.read_state_at(0.0);
    stage.failure_detector.mark_disconnected(&node("b"));
    assert_eq!(describe_step(stage.next(goal, 0.1)), "3 complete [a0 m2] [] []");
    stage.state.participants.remove(&node("b"));
    assert_eq!(stage.next(goal, 0.2), RoundStep::Changed(RoundEnd::MemberGone(node("b"))));
    let mut stage = Stage::with(["a m", "", ""]);
    stage.state.deadline = Some(WALL);
    stage.read_state_at(0.0);
    stage.failure_detector.mark_disconnected(&node("a"));
    assert_eq!(describe_step(stage.join(None, 0.1)), "0 [m1] [] []", "below min there is no last call");
    let mut stage = Stage::with(["a", "m", ""]).complete(3);
    stage.read_state_at(0.0);
    stage.failure_detector.mark_disconnected(&node("a"));
    assert_eq!(describe_step(stage.join(Some(3), 0.1)), "4 [m0] [] []", "no node is left");
}

#[test]
fn member_gets_only_changes_that_end_its_round() {
    let members = nodes("a b m");
    let goal = RoundGoal::Stay { round: 3, members: &members };
    let stay = |lists: [&str; 3]| {
        let mut stage = Stage::with(lists).complete(3);
        stage.state.participants = nodes(lists[0]).into_iter().zip(0..).collect();
        stage.next(goal, 0.0)
    };
    assert!(is_wait(&stay(["a b m", "", "z t"])));
    assert_eq!(stay(["a b", "", ""]), RoundStep::Changed(RoundEnd::Removed));
    assert_eq!(stay(["a m", "", ""]), RoundStep::Changed(RoundEnd::MemberGone(node("b"))));
    assert_eq!(stay(["a m", "b", ""]), RoundStep::Changed(RoundEnd::Rejoins(node("b"))));
    assert_eq!(
        stay(["m", "b", ""]),
        RoundStep::Changed(RoundEnd::MemberGone(node("a"))),
        "what is worse comes first"
    );
    assert_eq!(
        describe_step(stay(["a b m", "t", "z"])),
        "(quietly) 3 complete [a0 b1 m2] [] [t z]",
        "there is no place"
    );
    let pair = nodes("a m");
    let goal = RoundGoal::Stay { round: 3, members: &pair };
    let mut stage = Stage::with(["a m", "t", ""]).complete(3);
    assert_eq!(stage.next(goal, 0.0), RoundStep::Changed(RoundEnd::Waits(node("t"))));
    assert!(is_wait(&stage.next(RoundGoal::Hold, 0.0)), "it keeps its place while its workers stop");
    stage.state.closed = true;
    assert!(is_wait(&stage.next(goal, 0.0)), "what a closed rendezvous means is not said here");
}

#[test]
fn leave_removes_agent_without_closing() {
    let mut stage = Stage::with(["a m", "b", "z"]).complete(3);
    assert_eq!(describe_step(stage.next(RoundGoal::Leave, 0.0)), "3 complete [a0] [b] [z]");
    stage.state.participants.remove(&node("m"));
    assert_eq!(stage.next(RoundGoal::Leave, 0.0), RoundStep::Done);
    let mut stage = Stage::with(["m", "", ""]).complete(3);
    assert_eq!(describe_step(stage.next(RoundGoal::Leave, 0.0)), "4 [] [] []");
    assert_eq!(describe_step(stage.next(RoundGoal::Close, 0.0)), "3 complete closed [m0] [] []");
    stage.state.closed = true;
    assert_eq!(stage.next(RoundGoal::Close, 0.0), RoundStep::Done);
    assert_eq!(stage.next(RoundGoal::Leave, 0.0), RoundStep::Done);
}

#[test]
fn heartbeats_are_written_by_one_agent_with_a_torchrun_clock() {
    let members = nodes("a m t");
    let goal = RoundGoal::Stay { round: 0, members: &members };
    let mut stage = Stage::with(["a m t", "", ""]).complete(0);
    let ahead = Timestamp(WALL.0 + 20_000_000);
    stage.state.last_heartbeats.insert(node("t"), ahead);
    stage.read_state_at(0.0);
    assert!(is_wait(&stage.next(goal, 4.4)), "a is due before");
    let step = stage.next(goal, 4.5);
    let RoundStep::Write { state, notifies: false } = step else { panic!("{step:?}") };
    let now = Timestamp(ahead.0 + 4_500_000);
    assert_eq!(
        state.last_heartbeats,
        BTreeMap::from([(node("a"), now), (node("m"), now), (node("t"), ahead)])
    );
}

#[test]
fn duplicate_node_rank_is_refused_if_holder_is_alive() {
    let mut stage = Stage::with(["a", "", ""]);
    stage.me.node_rank = Some(NodeRank(1));
    stage.agents.insert(node("a"), descriptor(Some(1)));
    assert!(is_wait(&stage.join(None, 0.0)), "it may be dead");
    assert_eq!(stage.join(None, 1.0), RoundStep::Taken { by: node("a") });
    stage.failure_detector.mark_disconnected(&node("a"));
    let heartbeats = BTreeMap::from([(node("a"), 1_000)]);
    stage.failure_detector.record_snapshot(&stage.state, &heartbeats, stage.at(1.0));
    let deadline = stage.at(DEADLINE);
    let step =
        next(&stage.view(), &stage.me, RoundGoal::Join { deadline, before: None }, stage.at(1.0), WALL);
    assert_eq!(describe_step(step), "0 [m0] [] []");
}
