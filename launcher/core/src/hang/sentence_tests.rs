#![expect(clippy::disallowed_methods, reason = "a test's clock starts somewhere")]

use super::*;
use crate::hang::evidence::RankEvidence;
use crate::hang::flight_recorder::parse_trace;
use crate::hang::flight_recorder::recorded::trace;
use crate::hang::heartbeat::Heartbeat;
use crate::hang::verdict::{Limits, judge};
use std::time::Instant;

const LIMITS: Limits = Limits {
    hang_timeout: Some(Duration::from_secs(60)),
    first_step: Duration::from_secs(60),
    has_other_nodes: false,
};

fn ranks(count: u32, started: Instant) -> Vec<RankEvidence> {
    (0..count).map(|rank| RankEvidence::new(Rank(rank), started)).collect()
}

fn heartbeat(line: &str) -> Heartbeat {
    Heartbeat::parse(line.as_bytes()).unwrap()
}

/// The sentence 92 s after three ranks have answered as they did in this scenario.
fn of_recorded(scenario: &str) -> String {
    let started = Instant::now();
    let mut ranks = ranks(3, started);
    for (rank, evidence) in ranks.iter_mut().enumerate() {
        evidence.record_groups(parse_trace(trace(scenario, rank)).unwrap(), started);
    }
    sentence(&judge(&ranks, started + Duration::from_secs(92), &LIMITS))
}

#[test]
fn recorded_hang_names_waiting_and_missing_ranks() {
    assert_eq!(
        of_recorded("missing"),
        "ranks 0, 1 wait in all_reduce #5; rank 2 has made no progress for 92 s"
    );
}

#[test]
fn recorded_hang_in_subgroup_names_ranks_outside_of_it_last() {
    assert_eq!(
        of_recorded("subgroup"),
        "rank 0 waits in all_reduce #2; ranks 1, 2 have made no progress for 92 s"
    );
}

#[test]
fn recorded_desync_names_both_collectives() {
    assert_eq!(
        of_recorded("names"),
        "ranks 0, 2 call all_reduce, rank 1 calls broadcast as #5; no progress for 92 s"
    );
    assert_eq!(
        of_recorded("sizes"),
        "ranks 0, 2 call all_reduce of 4 elements, rank 1 calls all_reduce of 5 elements as #5; no progress \
         for 92 s"
    );
}

#[test]
fn recorded_idle_ranks_give_no_verdict() {
    assert_eq!(of_recorded("done"), "the ranks do not show whether they make progress");
}

#[test]
fn hang_without_recorder_has_steps_and_sections() {
    let started = Instant::now();
    let mut ranks = ranks(4, started);
    ranks[0].record_heartbeat(heartbeat("7"), started);
    ranks[1].record_heartbeat(heartbeat("7"), started);
    ranks[2].record_heartbeat(heartbeat("7 section=checkpoint limit=30"), started);
    assert_eq!(
        sentence(&judge(&ranks, started + Duration::from_secs(700), &LIMITS)),
        "ranks 0, 1 have made no progress for 11 min (step 7); rank 2 has been in section checkpoint at step 7 for \
         11 min; rank 3 shows nothing of its progress"
    );
}

#[test]
fn rank_whose_recorder_lists_no_collective_says_so() {
    let started = Instant::now();
    let mut ranks = ranks(3, started);
    ranks[0].record_groups(parse_trace(trace("missing", 0)).unwrap(), started);
    ranks[1].record_groups(parse_trace(b"{}").unwrap(), started);
    assert_eq!(
        sentence(&judge(&ranks, started + Duration::from_secs(92), &LIMITS)),
        "rank 0 waits in all_reduce #5; rank 1 has called no collective yet; rank 2 shows nothing of its progress"
    );
}

#[test]
fn straggler_is_named_with_its_section() {
    let started = Instant::now();
    let mut ranks = ranks(3, started);
    for (rank, evidence) in ranks.iter_mut().enumerate() {
        evidence.record_groups(parse_trace(trace("missing", rank)).unwrap(), started);
    }
    ranks[2].record_heartbeat(heartbeat("90 section=evaluate limit=600"), started);
    assert_eq!(
        sentence(&judge(&ranks, started + Duration::from_secs(92), &LIMITS)),
        "ranks 0, 1 wait in all_reduce #5; rank 2 has worked in section evaluate at step 90 for 92 s"
    );
    ranks[2].record_heartbeat(heartbeat("91"), started + Duration::from_secs(90));
    assert_eq!(
        sentence(&judge(&ranks, started + Duration::from_secs(92), &LIMITS)),
        "ranks 0, 1 wait in all_reduce #5; rank 2 works at step 91"
    );
}

#[test]
fn finished_rank_is_named_where_others_wait_for_it() {
    let started = Instant::now();
    let mut ranks = ranks(3, started);
    for (rank, evidence) in ranks.iter_mut().enumerate() {
        evidence.record_groups(parse_trace(trace("missing", rank)).unwrap(), started);
    }
    ranks[2].is_finished = true;
    assert_eq!(
        sentence(&judge(&ranks, started + Duration::from_secs(92), &LIMITS)),
        "ranks 0, 1 wait in all_reduce #5; rank 2 exited with 0"
    );
    for (text, has_other_nodes) in [("no rank is missing", false), ("no rank of this node is missing", true)]
    {
        let limits = Limits { has_other_nodes, ..LIMITS };
        assert_eq!(
            sentence(&judge(&ranks[..2], started + Duration::from_secs(92), &limits)),
            format!("ranks 0, 1 wait in all_reduce #5; {text}")
        );
    }
}
