#![expect(clippy::disallowed_methods, reason = "a test's clock starts somewhere")]

use super::*;
use crate::hang::flight_recorder::parse_trace;
use crate::hang::flight_recorder::recorded::trace;
use crate::hang::sentence::sentence;
use crate::hang::verdict::{Limits, judge};

const LIMITS: Limits = Limits {
    hang_timeout: Some(Duration::from_secs(60)),
    first_step: Duration::from_secs(60),
    has_other_nodes: false,
};

/// What these ranks of a recorded job of three have shown.
fn recorded(scenario: &str, ranks: std::ops::Range<u32>, at: Instant) -> Vec<RankEvidence> {
    let rank = |rank: u32| {
        let mut evidence = RankEvidence::new(Rank(rank), at);
        evidence.record_groups(parse_trace(trace(scenario, rank as usize)).unwrap(), at);
        evidence
    };
    ranks.map(rank).collect()
}

/// The bytes that a node with these ranks writes after 80 s.
fn published(ranks: &[RankEvidence], started: Instant) -> Vec<u8> {
    NodeEvidence::new(4, 9, ranks, started + Duration::from_secs(80)).to_json()
}

#[test]
fn ranks_of_two_nodes_are_judged_as_those_of_one() {
    let started = Instant::now();
    for scenario in ["missing", "names", "sizes", "subgroup"] {
        let all = recorded(scenario, 0..3, started);
        // The clock of the other node began an hour earlier.
        let elsewhere = started - Duration::from_secs(3600);
        let bytes = published(&recorded(scenario, 1..3, elsewhere), elsewhere);
        let other = NodeEvidence::from_json(&bytes).unwrap();
        assert_eq!((other.round, other.number), (4, 9));
        let received = started + Duration::from_secs(80);
        let ranks = [&all[..1], &other.into_ranks(received)].concat();
        let now = started + Duration::from_secs(92);
        assert_eq!(
            sentence(&judge(&ranks, now, &LIMITS)),
            sentence(&judge(&all, now, &LIMITS)),
            "{scenario}"
        );
    }
}

#[test]
fn heartbeat_of_other_node_keeps_its_section_and_age() {
    let started = Instant::now();
    let at = |seconds| started + Duration::from_secs(seconds);
    let mut rank = RankEvidence::new(Rank(5), started);
    rank.record_heartbeat(Heartbeat::parse(b"6").unwrap(), at(10));
    rank.record_heartbeat(Heartbeat::parse(b"7 section=save limit=600").unwrap(), at(40));
    let other = NodeEvidence::from_json(&published(&[rank.clone()], started)).unwrap();
    assert_eq!(other.into_ranks(at(80)), [rank]);
}

#[test]
fn ranks_in_very_many_groups_are_published_without_them() {
    let started = Instant::now();
    let mut rank = RankEvidence::new(Rank(0), started);
    let group = |number| (format!("a group with a long name {number}"), GroupActivity::default());
    rank.groups = Some((0..4000).map(group).collect());
    let other = NodeEvidence::from_json(&published(&[rank.clone()], started)).unwrap();
    assert_eq!(other.into_ranks(started + Duration::from_secs(80)), [RankEvidence { groups: None, ..rank }]);
}

#[test]
fn garbage_of_other_node_is_an_error() {
    for bytes in [b"".as_slice(), b"[]", b"{\"round\": 1}", b"\xff", &[b' '; MAX_SHARED + 1]] {
        assert!(NodeEvidence::from_json(bytes).is_err());
    }
    // An age that no clock has.
    let text = br#"{"round":1,"number":1,"is_suspended":false,"ranks":[{"rank":4294967295,"started_ms_ago":18446744073709551615,
        "progress_ms_ago":0,"largest_gap_ms":18446744073709551615,"is_finished":false,"is_unanswered":false}]}"#;
    let _ =
        judge(&NodeEvidence::from_json(text).unwrap().into_ranks(Instant::now()), Instant::now(), &LIMITS);
}
