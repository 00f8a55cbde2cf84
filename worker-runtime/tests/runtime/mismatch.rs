//! Ranks that make different calls in one step: every rank gets an error that
//! names both calls and both ranks.

use std::time::Duration;

use rankrun_worker::process_group::GroupError;
use rankrun_worker::{Group, Rank, ReduceOp};

use super::run;
use crate::world::AMPLE;

type Operation = fn(&mut Group) -> Result<(), GroupError>;

/// Two calls that do not fit, and how each is named.
type Pair = [(&'static str, Operation); 2];

const PAIRS: [Pair; 15] = [
    // Another operation.
    [
        ("`barrier`", |group| group.barrier()),
        ("`all_reduce` (sum) of 1 f32", |group| group.all_reduce(&mut [1.0f32], ReduceOp::Sum)),
    ],
    [
        ("`all_gather` of 2 i64", |group| group.all_gather(&[1i64, 2]).map(drop)),
        ("`split`", |group| group.split(Some(0), 0).map(drop)),
    ],
    // Another count.
    [
        ("`all_reduce` (sum) of 4 f32", |group| group.all_reduce(&mut [1.0f32; 4], ReduceOp::Sum)),
        ("`all_reduce` (sum) of 5 f32", |group| group.all_reduce(&mut [1.0f32; 5], ReduceOp::Sum)),
    ],
    [
        ("`all_gather` of 0 u8", |group| group.all_gather::<u8>(&[]).map(drop)),
        ("`all_gather` of 1 u8", |group| group.all_gather(&[1u8]).map(drop)),
    ],
    [
        ("`reduce_scatter` (max)", |group| reduce_scatter(group, 70_000, ReduceOp::Max)),
        ("`reduce_scatter` (max)", |group| reduce_scatter(group, 70_001, ReduceOp::Max)),
    ],
    // Another type.
    [
        ("`all_reduce` (sum) of 1 f64", |group| group.all_reduce(&mut [1.0f64], ReduceOp::Sum)),
        ("`all_reduce` (sum) of 1 i64", |group| group.all_reduce(&mut [1i64], ReduceOp::Sum)),
    ],
    // Another reduction.
    [
        ("`all_reduce` (sum) of 9 f32", |group| group.all_reduce(&mut [1.0f32; 9], ReduceOp::Sum)),
        ("`all_reduce` (max) of 9 f32", |group| group.all_reduce(&mut [1.0f32; 9], ReduceOp::Max)),
    ],
    [
        ("`reduce` (min) of 1 i32 with root 0", |group| group.reduce(&mut [1i32], ReduceOp::Min, Rank(0))),
        ("`reduce` (mean) of 1 i32 with root 0", |group| group.reduce(&mut [1i32], ReduceOp::Mean, Rank(0))),
    ],
    // Another root: both only send, or both only receive.
    [
        ("`broadcast` of 1 i64 with root 0", |group| group.broadcast(&mut [1i64], Rank(0))),
        ("`broadcast` of 1 i64 with root 1", |group| group.broadcast(&mut [1i64], Rank(1))),
    ],
    [
        ("`gather` of 3 i64 with root 1", |group| gather(group, Rank(1))),
        ("`gather` of 3 i64 with root 0", |group| gather(group, Rank(0))),
    ],
    [
        ("`reduce` (sum) of 1 u8 with root 0", |group| group.reduce(&mut [1u8], ReduceOp::Sum, Rank(0))),
        ("`reduce` (sum) of 1 u8 with root 1", |group| group.reduce(&mut [1u8], ReduceOp::Sum, Rank(1))),
    ],
    // A collective and a message between two ranks, in all four ways.
    [
        ("`send` of 1 i64 to rank 1", |group| group.send(&[1i64], Rank(1))),
        ("`barrier`", |group| group.barrier()),
    ],
    [
        ("`barrier`", |group| group.barrier()),
        ("`receive` of 1 i64 from rank 0", |group| group.receive(&mut [1i64], Rank(0))),
    ],
    // Two messages that do not fit.
    [
        ("`send` of 2 i64 to rank 1", |group| group.send(&[1i64; 2], Rank(1))),
        ("`receive` of 3 i64 from rank 0", |group| group.receive(&mut [1i64; 3], Rank(0))),
    ],
    [
        ("`send` of 2 f32 to rank 1", |group| group.send(&[1f32; 2], Rank(1))),
        ("`receive` of 2 i32 from rank 0", |group| group.receive(&mut [1i32; 2], Rank(0))),
    ],
];

fn reduce_scatter(group: &mut Group, length: usize, op: ReduceOp) -> Result<(), GroupError> {
    let input = vec![1.0f64; length * group.world_size().get() as usize];
    group.reduce_scatter(&input, &mut vec![0.0; length], op)
}

/// One element of each of the first ranks, three in all.
fn gather(group: &mut Group, root: Rank) -> Result<(), GroupError> {
    let mut counts = vec![0; group.world_size().get() as usize];
    (counts[0], counts[1]) = (1, 2);
    let own = vec![1i64; counts[group.rank().index()]];
    group.gather(&own, &counts, root).map(drop)
}

/// The errors of all ranks, of which rank 0 makes the one call and all others the other one.
fn errors(world: u32, [one, other]: &Pair) -> Vec<String> {
    let ended = run(world, AMPLE, |mut group| {
        let call = if group.rank() == Rank(0) { one.1 } else { other.1 };
        // Calls before it succeed; a rank that only sends sees it in a later call.
        group.barrier().unwrap();
        let error = call(&mut group).err().or_else(|| (0..3).find_map(|_| group.barrier().err()));
        error.expect("the calls do not fit").to_string()
    });
    ended.into_iter().map(|error| error.expect("no rank panics")).collect()
}

#[test]
fn mismatch_names_both_calls_and_ranks_everywhere() {
    for pair in &PAIRS {
        for world in [2, 4] {
            // A message is between two ranks; a third one would wait for another call.
            if world > 2 && pair.iter().any(|(name, _)| name.starts_with("`send") || name.starts_with("`rec"))
            {
                continue;
            }
            let [one, other] = pair.map(|(name, _)| name);
            let errors = errors(world, pair);
            for (rank, error) in errors.iter().enumerate() {
                let place = format!("{one} and {other}, rank {rank} of {world}: {error}");
                assert!(error.contains("rank 0 makes call ") && error.contains(one), "{place}");
                assert!(error.contains(other), "{place}");
                assert_eq!(error.matches("makes call").count(), 2, "{place}");
                let error_text = |error: &str| error.split_once(": ").map(|(_, reason)| reason.to_owned());
                assert_eq!(error_text(error), error_text(&errors[0]), "{place}");
            }
        }
    }
}

#[test]
fn mismatch_names_call_of_rank_far_ahead() {
    let ended = run(2, AMPLE, |mut group| {
        if group.rank() == Rank(1) {
            let call = group.broadcast(&mut [7i64], Rank(1));
            return call.and_then(|()| group.barrier()).unwrap_err().to_string();
        }
        // It only sends, until it hears of the other one.
        (0..)
            .find_map(|_| group.broadcast(&mut [1i64], Rank(0)).err())
            .map(|error| error.to_string())
            .unwrap()
    });
    for error in ended {
        let error = error.expect("no rank panics");
        for call in ["rank 0 makes call 1, `broadcast` of 1 i64 with root 0", "rank 1 makes call 1, "] {
            assert!(error.contains(call), "{error}");
        }
    }
}

#[test]
fn third_rank_gets_mismatching_ranks() {
    let ended = run(3, AMPLE, |mut group| {
        let result = match group.rank() {
            Rank(1) => group.broadcast(&mut [1i64, 2], Rank(0)),
            _ => group.broadcast(&mut [1i64], Rank(0)).and_then(|()| group.barrier()),
        };
        result.unwrap_err().to_string()
    });
    for error in ended {
        let error = error.expect("no rank panics");
        // Of the two ranks that make the same call, the one that was there when another one came is named.
        for call in
            ["rank 1 makes call 1, `broadcast` of 2 i64 with root 0", "`broadcast` of 1 i64 with root 0"]
        {
            assert!(error.contains(call), "{error}");
        }
    }
}

#[test]
fn messages_between_peers_do_not_hide_mismatch() {
    // Rank 2 waits for a message while ranks 0 and 1 disagree.
    let ended = run(3, AMPLE, |mut group| {
        let result = match group.rank() {
            Rank(0) => group.barrier(),
            Rank(1) => group.all_reduce(&mut [1u8], ReduceOp::Product),
            _ => group.receive(&mut [1i64], Rank(1)),
        };
        result.unwrap_err().to_string()
    });
    for error in ended {
        let error = error.expect("no rank panics");
        assert_eq!(error.matches("makes call 1").count(), 2, "{error}");
    }
}

#[test]
fn send_without_receive_times_out_and_names_the_rank() {
    let patience = Duration::from_secs(4);
    let met = std::sync::Barrier::new(2);
    let ended = run(2, patience, |mut group| {
        // More than the sockets hold, while the other rank is in no call, or sends as well.
        let error = group.send(&vec![1u8; 64 << 20], Rank(1 - group.rank().0)).unwrap_err();
        met.wait();
        (error.lost_rank(), error.to_string())
    });
    for (rank, ended) in (0..).zip(ended) {
        let (lost, error) = ended.expect("no rank panics");
        assert!(lost.is_some(), "rank {rank}: {error}");
        assert!(error.starts_with("`send` cannot finish: lost rank"), "rank {rank}: {error}");
    }
}
