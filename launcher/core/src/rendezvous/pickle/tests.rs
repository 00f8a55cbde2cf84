//! Tests with texts of real PyTorch, and with texts that are not a state.

mod builder;

use std::collections::BTreeMap;

use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;

use super::*;
use crate::rendezvous::state::{Node, Participants, Timestamp};
use builder::PickleBuilder;

/// Names and texts, written by `fixtures/make.py`.
const FIXTURES: &str = include_str!("fixtures/states.txt");

/// The time 2026-11-22 04:05:06.789012 in microseconds.
const NOON: i64 = 1_795_320_306_789_012;

fn fixture(name: &str) -> &'static [u8] {
    let line = FIXTURES.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.expect("the fixture is there").as_bytes()
}

fn node(addr: &str, pid: i64, local_id: i64) -> Node {
    Node { addr: addr.to_owned(), pid, local_id }
}

fn numbered(index: i64) -> Node {
    node(&format!("node{index}"), 1000 + index, 0)
}

fn ranks(nodes: &[Node]) -> Participants {
    nodes.iter().cloned().zip(0..).collect()
}

fn many() -> RendezvousState {
    let nodes: Vec<_> = (0..60).map(|index| node(&format!("node{index:02}"), 1000 + index, 0)).collect();
    let times = (0..).map(|index| Timestamp(NOON + index * 1_000_000));
    RendezvousState {
        complete: true,
        participants: ranks(&nodes),
        last_heartbeats: nodes.into_iter().zip(times).collect(),
        ..RendezvousState::default()
    }
}

/// The states of the fixtures, by name.
fn expected() -> BTreeMap<&'static str, RendezvousState> {
    let mut states = BTreeMap::new();
    states.insert("empty", RendezvousState::default());
    states.insert(
        "closed",
        RendezvousState { round: 3, complete: true, closed: true, ..RendezvousState::default() },
    );
    let one = RendezvousState {
        participants: ranks(&[numbered(1)]),
        last_heartbeats: [(numbered(1), Timestamp(NOON))].into(),
        ..RendezvousState::default()
    };
    states.insert("one_node", one);
    let numbers = [(node("10.0.0.1", 4_194_304, 70_000), -1), (node("x", 5_000_000_000, 255), 300)];
    let numbers = RendezvousState {
        round: 70_000,
        participants: numbers.into_iter().collect(),
        ..RendezvousState::default()
    };
    states.insert("numbers", numbers);
    for (name, addr) in
        [("non_ascii", "knoten-größe-節点.example".to_owned()), ("long_address", "a".repeat(300))]
    {
        states.insert(
            name,
            RendezvousState { participants: ranks(&[node(&addr, 1, 0)]), ..RendezvousState::default() },
        );
    }
    let nodes = [2, 10, 0].map(numbered);
    let last_call = RendezvousState {
        participants: nodes.iter().map(|node| (node.clone(), 0)).collect(),
        deadline: Some(Timestamp(NOON + 30_000_000)),
        last_heartbeats: nodes.iter().cloned().zip((NOON..).map(Timestamp)).collect(),
        ..RendezvousState::default()
    };
    states.insert("last_call", last_call);
    let all = [2, 10, 0, 7, 8].map(numbered);
    let waiting = RendezvousState {
        round: 5,
        complete: true,
        participants: ranks(&nodes),
        wait_list: [numbered(7)].into(),
        redundancy_list: [numbered(8)].into(),
        last_heartbeats: all.into_iter().map(|node| (node, Timestamp(NOON))).collect(),
        ..RendezvousState::default()
    };
    states.insert("waiting_and_spare", waiting);
    let times = [-62_135_596_800_000_000, 253_402_300_799_999_999, 1_709_251_199_000_000, 0];
    let times = (0..).map(numbered).zip(times.map(Timestamp)).collect();
    states.insert("times", RendezvousState { last_heartbeats: times, ..RendezvousState::default() });
    for name in ["many", "many_again", "protocol_5"] {
        states.insert(name, many());
    }
    states
}

#[test]
fn torch_pickles_are_decoded() {
    assert_eq!(FIXTURES.lines().count(), expected().len());
    for (name, state) in expected() {
        assert_eq!(decode(fixture(name)).as_ref(), Ok(&state), "{name}");
    }
}

/// Only for fixtures with a dict order that our encoder uses too.
#[test]
fn encoder_output_equals_torch_output() {
    for name in ["empty", "closed", "one_node", "numbers", "non_ascii", "long_address", "times", "many"] {
        let (ours, torchs) = (encode(&expected()[name]), fixture(name));
        assert_eq!(String::from_utf8_lossy(&ours), String::from_utf8_lossy(torchs), "{name}");
    }
}

#[test]
fn states_larger_than_batch_or_frame_round_trip() {
    for count in [999, 1000, 1001, 2500] {
        let nodes: Vec<_> = (0..count).map(numbered).collect();
        let state = RendezvousState {
            participants: ranks(&nodes),
            wait_list: nodes.iter().cloned().collect(),
            last_heartbeats: nodes.into_iter().map(|node| (node, Timestamp(NOON))).collect(),
            ..RendezvousState::default()
        };
        assert_eq!(decode(&encode(&state)).as_ref(), Ok(&state), "{count}");
    }
}

#[test]
fn time_out_of_python_range_is_clamped() {
    let written = |time| RendezvousState { deadline: Some(Timestamp(time)), ..RendezvousState::default() };
    let read = |time| decode(&encode(&written(time))).map(|state| state.deadline);
    assert_eq!(read(i64::MIN), Ok(Some(Timestamp(-62_135_596_800_000_000))));
    assert_eq!(read(i64::MAX), Ok(Some(Timestamp(253_402_300_799_999_999))));
}

fn any_node() -> impl Strategy<Value = Node> {
    ("\\PC{0,12}", prop_oneof![0..5_000_000_i64, any::<i64>()], 0..400_i64)
        .prop_map(|(addr, pid, local_id)| Node { addr, pid, local_id })
}

fn any_time() -> impl Strategy<Value = Timestamp> {
    prop_oneof![NOON..NOON + 100_000_000, -62_135_596_800_000_000..=253_402_300_799_999_999_i64]
        .prop_map(Timestamp)
}

prop_compose! {
    fn any_state()(
        (round, complete, closed) in (0..=u64::MAX / 2, any::<bool>(), any::<bool>()),
        deadline in proptest::option::of(any_time()),
        participants in vec((any_node(), any::<i64>()), 0..8),
        wait_list in btree_set(any_node(), 0..4),
        redundancy_list in btree_set(any_node(), 0..4),
        last_heartbeats in btree_map(any_node(), any_time(), 0..8),
    ) -> RendezvousState {
        let participants = participants.into_iter().collect();
        RendezvousState { round, complete, deadline, closed, participants, wait_list, redundancy_list, last_heartbeats }
    }
}

proptest! {
    #[test]
    fn encoded_state_round_trips(state in any_state()) {
        prop_assert_eq!(decode(&encode(&state)), Ok(state));
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = decode(&bytes);
        let _ = PickleBuilder::new().raw(&bytes).read();
    }

    /// Instructions that often fit, appended to a state.
    #[test]
    fn arbitrary_opcodes_do_not_panic(
        codes in vec(proptest::sample::select(&b"(.N\x88\x89K\x8fCK}\x8f)t\x85\x86\x87su\x90\x94h\x93\x81Rb\0\x01\x02"[..]), 0..60),
        state in any_state(),
    ) {
        let mut pickle = STANDARD.decode(encode(&state)).unwrap();
        pickle.pop();
        pickle.extend_from_slice(&codes);
        let _ = decode(STANDARD.encode(&pickle).as_bytes());
    }

    /// With one byte changed, the decoder returns a state or an error.
    #[test]
    fn changed_byte_does_not_panic(state in any_state(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut pickle = STANDARD.decode(encode(&state)).unwrap();
        let at = at.index(pickle.len());
        pickle[at] = byte;
        let _ = decode(STANDARD.encode(&pickle).as_bytes());
    }
}
