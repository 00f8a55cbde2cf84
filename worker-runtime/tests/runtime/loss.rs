//! Ranks that die, fall silent or leave: every other rank gets an error that names the rank.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use rankrun_worker::process_group::{GroupError, GroupFailure, LossCause};
use rankrun_worker::{Group, Rank, ReduceOp};

use super::run;
use crate::world::{AMPLE, crash};

/// How much later than promised the others may notice on a busy machine: never is what fails.
const LATE: Duration = Duration::from_secs(20);

/// How long a group waits for a silent rank here; a busy machine must be able to join in that time.
const PATIENCE: Duration = Duration::from_secs(4);

type Operation = fn(&mut Group) -> Result<(), GroupError>;

const OPERATIONS: [(&str, Operation); 6] = [
    ("broadcast", |group| group.broadcast(&mut [0.5f32; 1000], Rank(0))),
    ("all_reduce", |group| group.all_reduce(&mut vec![0.5f64; 300_000], ReduceOp::Sum)),
    ("all_gather", |group| group.all_gather(&[7i64; 1000]).map(drop)),
    ("scatter", |group| {
        let counts = vec![1000; group.world_size().get() as usize];
        let data = vec![1.0f32; if group.rank() == Rank(0) { counts.len() * 1000 } else { 0 }];
        group.scatter(&data, &counts, Rank(0)).map(drop)
    }),
    ("gather", |group| {
        let counts = vec![1000; group.world_size().get() as usize];
        group.gather(&[1.0f32; 1000], &counts, Rank(0)).map(drop)
    }),
    ("barrier", Group::barrier),
];

#[test]
fn dead_rank_is_named_in_every_operation() {
    for (name, operation) in OPERATIONS {
        for (world, dead_rank) in [(2, 0), (2, 1), (4, 0), (4, 2), (4, 3)] {
            let all_done = Barrier::new(world as usize);
            let ended = run(world, AMPLE, |mut group| {
                operation(&mut group).expect("all are here");
                all_done.wait();
                if group.rank() == Rank(dead_rank) {
                    crash(group);
                }
                // An operation that needs nothing from the dead rank may still succeed, as often as there is time until it has died.
                let error =
                    (0..1_000_000).find_map(|_| operation(&mut group).err()).expect("the loss is noticed");
                assert!(error.to_string().contains(name), "{error}");
                (error.lost_rank(), operation(&mut group).unwrap_err().lost_rank())
            });
            let expected = Some((Some(Rank(dead_rank)), Some(Rank(dead_rank))));
            for (rank, lost) in ended.into_iter().enumerate() {
                let expected = if rank == dead_rank as usize { None } else { expected };
                assert_eq!(lost, expected, "`{name}` on rank {rank} of {world}");
            }
        }
    }
}

#[test]
fn silent_rank_is_named_at_timeout() {
    let all_done = Barrier::new(4);
    let ended = run(4, PATIENCE, |mut group| {
        let started = now();
        let lost = if group.rank() == Rank(2) { None } else { Some(group.barrier().unwrap_err()) };
        all_done.wait();
        assert!(now() - started < PATIENCE + LATE);
        lost.map(|error| (error.lost_rank(), error.to_string().contains("`barrier`")))
    });
    for (rank, lost) in ended.into_iter().enumerate() {
        let expected = (rank != 2).then_some((Some(Rank(2)), true));
        assert_eq!(lost.expect("no rank panics"), expected, "rank {rank}");
    }
}

#[test]
fn abandoned_rank_gets_error() {
    let given_up = Barrier::new(2);
    let ended = run(2, PATIENCE, |mut group| {
        if group.rank() == Rank(0) {
            let error = group.barrier().unwrap_err();
            given_up.wait();
            return error.to_string();
        }
        given_up.wait();
        // The other rank's part of this barrier had come before it gave up.
        group.barrier().and_then(|()| group.barrier()).unwrap_err().to_string()
    });
    assert_eq!(
        ended.into_iter().flatten().collect::<Vec<_>>(),
        [
            "`barrier` cannot finish: lost rank 1, which took no part within 4s",
            "`barrier` cannot finish: lost rank 1, as another rank reports"
        ]
    );
}

#[test]
fn departed_rank_is_error_only_when_needed() {
    let rank_left = Barrier::new(3);
    run(3, AMPLE, |mut group| {
        let rank = group.rank();
        let mut data = [i64::from(rank.0)];
        group.broadcast(&mut data, Rank(0)).unwrap();
        if rank == Rank(1) {
            drop(group);
            rank_left.wait();
            return;
        }
        rank_left.wait();
        let counts = [1, 0, 1];
        match rank {
            // Rank 2 only sends to rank 0, and finishes; rank 0 expects a message of rank 1, too.
            Rank(2) => drop(group.gather(&[1i64], &counts, Rank(0))),
            _ => {
                let error = group.gather(&[1i64], &counts, Rank(0)).unwrap_err();
                let failure = GroupFailure::Lost { rank: Rank(1), cause: LossCause::Left };
                assert!(
                    matches!(&error, GroupError::Failed { failure: it, .. } if *it == failure),
                    "{error}"
                );
            }
        }
    })
    .into_iter()
    .for_each(|ended| ended.expect("no rank panics"));
}

#[expect(clippy::disallowed_methods, reason = "the test measures how long the others take")]
fn now() -> Instant {
    Instant::now()
}
