//! Ranks on several hosts: their backend, and their errors after a loss, a silent rank or a different call.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use rankrun_worker::process_group::{Backend, GroupError};
use rankrun_worker::{Group, Rank, ReduceOp};

use crate::counts::is_soak;
use crate::world::{AMPLE, crash, run_at};

/// Two hosts with two ranks each, in turns.
const TWO_BY_TWO: [&str; 4] = ["a", "b", "a", "b"];

/// How long a group waits for a silent rank here; a busy machine must be able to join in that time.
const PATIENCE: Duration = Duration::from_secs(4);

/// How much later than promised the others may notice on a busy machine: never is what fails.
const LATE: Duration = Duration::from_secs(20);

type Operation = fn(&mut Group) -> Result<(), GroupError>;

const OPERATIONS: [(&str, Operation); 7] = [
    ("barrier", Group::barrier),
    ("broadcast", |group| group.broadcast(&mut [0.5f32; 1000], Rank(1))),
    ("broadcast", |group| group.broadcast(&mut vec![0.5f32; 300_000], Rank(0))),
    ("all_reduce", |group| group.all_reduce(&mut [0.5f32; 1000], ReduceOp::Sum)),
    ("all_reduce", |group| group.all_reduce(&mut vec![0.5f64; 300_000], ReduceOp::Sum)),
    ("all_gather", |group| group.all_gather(&vec![7i64; 100_000]).map(drop)),
    ("reduce_scatter", |group| {
        let input = vec![1.0f32; 100_000 * group.world_size().get() as usize];
        group.reduce_scatter(&input, &mut vec![0.0; 100_000], ReduceOp::Sum)
    }),
];

#[test]
fn hosts_decide_backend_of_group_and_sub_groups() {
    let ended = run_at(&TWO_BY_TWO, AMPLE, |mut group| {
        let half = group.rank().0 / 2;
        let mut across = group.split(Some(half), 0).unwrap().expect("a color was said");
        let mut within = group.split(Some(group.rank().0 % 2), 0).unwrap().expect("a color was said");
        let mut sums = [1i64, 1, 1];
        group.all_reduce(&mut sums[..1], ReduceOp::Sum).unwrap();
        across.all_reduce(&mut sums[1..2], ReduceOp::Sum).unwrap();
        within.all_reduce(&mut sums[2..], ReduceOp::Sum).unwrap();
        ([group.backend(), across.backend(), within.backend()], sums)
    });
    for backends_and_sums in ended {
        assert_eq!(backends_and_sums, Some(([Backend::Mixed, Backend::Mixed, Backend::Shm], [4, 2, 2])));
    }
}

#[test]
fn sums_across_hosts_are_bitwise_reproducible() {
    for elements in [100, 100_001] {
        let sums = || {
            run_at(&["a", "a", "b", "c", "b", "a"], AMPLE, |mut group| {
                let rank = group.rank().0;
                let value = |index: usize| (index as f32 + 0.1) / (rank as f32 + 3.0);
                let mut data: Vec<f32> = (0..elements).map(value).collect();
                group.all_reduce(&mut data, ReduceOp::Mean).unwrap();
                data.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            })
        };
        let (first, second) = (sums(), sums());
        assert!(first[0].is_some());
        assert!(first.iter().all(|sum| *sum == first[0]), "ranks differ at {elements}");
        assert!(first == second, "runs differ at {elements}");
    }
}

#[test]
fn large_buffers_are_reduced_in_blocks() {
    // More than a block of one stream, of which each chunk is less.
    let elements = 5_000_001;
    let value = |rank: usize, index: usize| (index % 1009 + rank) as i32;
    let ended = run_at(&["a", "b", "b"], AMPLE, |mut group| {
        let rank = group.rank().index();
        let mut data: Vec<i32> = (0..elements).map(|index| value(rank, index)).collect();
        group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
        let sum = |index| (0..3).map(|rank| value(rank, index)).sum::<i32>();
        assert!(
            data.iter().enumerate().all(|(index, &element)| element == sum(index)),
            "all_reduce on rank {rank}"
        );
        data.iter_mut().for_each(|element| *element = if rank == 2 { *element } else { 0 });
        group.broadcast(&mut data, Rank(2)).unwrap();
        assert!(
            data.iter().enumerate().all(|(index, &element)| element == sum(index)),
            "broadcast on rank {rank}"
        );
    });
    assert!(ended.iter().all(Option::is_some));
}

#[test]
fn dead_rank_is_named_in_every_operation() {
    for (number, (name, operation)) in OPERATIONS.into_iter().enumerate() {
        for (hosts, dead_rank) in
            [(&TWO_BY_TWO[..], 0), (&TWO_BY_TWO, 3), (&["a", "b"], 1), (&["a", "a", "b", "c", "c"], 2)]
        {
            let all_done = Barrier::new(hosts.len());
            let ended = run_at(hosts, AMPLE, |mut group| {
                operation(&mut group).expect("all are here");
                all_done.wait();
                if group.rank() == Rank(dead_rank) {
                    crash(group);
                }
                // An operation that needs nothing from the dead rank may still succeed, once or twice.
                let started = now();
                let mut calls =
                    std::iter::from_fn(|| (now() - started < AMPLE).then(|| operation(&mut group)));
                let error = calls.find_map(Result::err).expect("the loss is noticed");
                assert!(error.to_string().contains(name), "{error}");
                (error.lost_rank(), operation(&mut group).unwrap_err().lost_rank())
            });
            for (rank, lost) in ended.into_iter().enumerate() {
                let expected =
                    (rank != dead_rank as usize).then_some((Some(Rank(dead_rank)), Some(Rank(dead_rank))));
                assert_eq!(
                    lost, expected,
                    "operation {number} on rank {rank} of {hosts:?} without {dead_rank}"
                );
            }
        }
    }
}

#[test]
fn silent_rank_is_named_at_timeout() {
    // Of a broadcast others than those of its host do not miss it.
    let operations = || OPERATIONS.into_iter().filter(|(name, _)| *name != "broadcast");
    // Their groups wait for the time-out at the same time.
    thread::scope(|scope| {
        for (name, operation) in operations() {
            scope.spawn(move || assert_silent_rank_is_named(name, operation));
        }
    });
}

fn assert_silent_rank_is_named(name: &str, operation: Operation) {
    let all_done = Barrier::new(4);
    let ended = run_at(&TWO_BY_TWO, PATIENCE, |mut group| {
        let started = now();
        let result = if group.rank() == Rank(2) { Ok(()) } else { operation(&mut group) };
        all_done.wait();
        assert!(now() - started < PATIENCE + LATE);
        result.map_err(|error| error.lost_rank())
    });
    for (rank, result) in ended.into_iter().enumerate() {
        let result = result.expect("no rank panics");
        let expected = if rank == 2 { Ok(()) } else { Err(Some(Rank(2))) };
        assert_eq!(result, expected, "`{name}` on rank {rank}");
    }
}

#[test]
fn call_mismatch_names_both_calls() {
    let pairs: [[(&str, Operation); 2]; 4] = [
        [
            ("`barrier`", Group::barrier),
            ("`all_reduce` (sum) of 1 f32", |group| group.all_reduce(&mut [1.0f32], ReduceOp::Sum)),
        ],
        [
            ("`all_reduce` (sum) of 100000 f32", |group| {
                group.all_reduce(&mut vec![1.0f32; 100_000], ReduceOp::Sum)
            }),
            ("`all_reduce` (sum) of 100001 f32", |group| {
                group.all_reduce(&mut vec![1.0f32; 100_001], ReduceOp::Sum)
            }),
        ],
        [
            ("`all_gather` of 10 i32", |group| group.all_gather(&[1i32; 10]).map(drop)),
            ("`all_gather` of 10 f32", |group| group.all_gather(&[1.0f32; 10]).map(drop)),
        ],
        [
            ("`broadcast` of 1 i64 with root 0", |group| group.broadcast(&mut [1i64], Rank(0))),
            ("`broadcast` of 1 i64 with root 1", |group| group.broadcast(&mut [1i64], Rank(1))),
        ],
    ];
    for (one, other) in pairs.into_iter().map(<[_; 2]>::into) {
        for differing in 0..4 {
            let ended = run_at(&TWO_BY_TWO, AMPLE, |mut group| {
                let call = if group.rank() == Rank(differing) { other.1 } else { one.1 };
                // A rank that only sends sees it in a later call, after the others have checked.
                let started = now();
                let mut calls = std::iter::from_fn(|| (now() - started < AMPLE).then(|| call(&mut group)));
                calls.find_map(Result::err).expect("it is noticed").to_string()
            });
            for error in ended {
                let error = error.expect("no rank panics");
                assert!(
                    error.contains(one.0) && error.contains(other.0),
                    "rank {differing} differs: {error}"
                );
                assert!(error.contains(&format!("rank {differing} makes")), "{error}");
            }
        }
    }
}

/// Calls for which a rank needs every other one, or its root.
const OF_ALL: [(&str, Operation); 9] = [
    ("`barrier`", Group::barrier),
    ("`all_reduce` (sum) of 10 f32", |group| group.all_reduce(&mut [0.5f32; 10], ReduceOp::Sum)),
    ("`all_reduce` (sum) of 300000 f64", |group| group.all_reduce(&mut vec![0.5f64; 300_000], ReduceOp::Sum)),
    ("`all_gather` of 100000 i64", |group| group.all_gather(&vec![7i64; 100_000]).map(drop)),
    ("`reduce_scatter` (max)", |group| {
        let input = vec![1.0f32; 1000 * group.world_size().get() as usize];
        group.reduce_scatter(&input, &mut vec![0.0; 1000], ReduceOp::Max)
    }),
    ("`broadcast` of 300000 u8 with root 1", |group| group.broadcast(&mut vec![1u8; 300_000], Rank(1))),
    ("`reduce` (min) of 300000 i32 with root 0", |group| {
        group.reduce(&mut vec![1i32; 300_000], ReduceOp::Min, Rank(0))
    }),
    ("`gather` of 3 i64 with root 0", |group| gather(group, Rank(0))),
    ("`scatter` of 3 i64 with root 1", |group| {
        let counts = one_each_of_three(group);
        let data = if group.rank() == Rank(1) { &[1i64, 2, 3][..] } else { &[] };
        group.scatter(data, &counts, Rank(1)).map(drop)
    }),
];

fn one_each_of_three(group: &Group) -> Vec<usize> {
    (0..group.world_size().get()).map(|rank| usize::from(rank < 3)).collect()
}

fn gather(group: &mut Group, root: Rank) -> Result<(), GroupError> {
    let counts = one_each_of_three(group);
    group.gather(&vec![1i64; counts[group.rank().index()]], &counts, root).map(drop)
}

/// What one rank does while the others make a call of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Alone {
    Receives,
    SendsLittle,
    SendsMuch,
}

impl Alone {
    fn call(self, group: &mut Group, other: Rank) -> Result<(), GroupError> {
        match self {
            Self::Receives => group.receive(&mut [0u8], other),
            Self::SendsLittle => group.send(&[0u8; 4], other),
            // More than the kernel keeps for a connection.
            Self::SendsMuch => group.send(&vec![0u8; 32 << 20], other),
        }
    }

    fn name(self, other: u32) -> String {
        match self {
            Self::Receives => format!("`receive` of 1 u8 from rank {other}"),
            Self::SendsLittle => format!("`send` of 4 u8 to rank {other}"),
            Self::SendsMuch => format!("`send` of 33554432 u8 to rank {other}"),
        }
    }
}

#[test]
fn message_during_collective_names_both_calls() {
    // Their groups mostly wait for one another: several at the same time take little more than one.
    thread::scope(|scope| {
        for hosts in [&["a", "a", "b"][..], &["a", "a", "b", "b"]] {
            for (kind, alone) in
                [Alone::Receives, Alone::SendsLittle, Alone::SendsMuch].into_iter().enumerate()
            {
                scope.spawn(move || {
                    let ranks = 0..hosts.len() as u32;
                    let pairs = ranks.clone().flat_map(|one| ranks.clone().map(move |other| (one, other)));
                    for (pair, (one, other)) in pairs.filter(|(one, other)| one != other).enumerate() {
                        // The usual run has each pair with each call, and each message with each call and each pair.
                        let is_taken = |at: &usize| (at + pair + kind).is_multiple_of(3) || is_soak();
                        for call in (0..OF_ALL.len()).filter(is_taken).map(|at| OF_ALL[at]) {
                            assert_both_calls_are_named(hosts, (one, alone, other), call);
                        }
                    }
                });
            }
        }
    });
}

/// Rank `one` makes a call with rank `other`, and all others make this one.
fn assert_both_calls_are_named(
    hosts: &[&str],
    (one, alone, other): (u32, Alone, u32),
    (name, call): (&str, Operation),
) {
    let ended = run_at(hosts, AMPLE, |mut group| {
        let is_alone = group.rank() == Rank(one);
        let result = if is_alone { alone.call(&mut group, Rank(other)) } else { Ok(()) };
        // A rank that has done its part of the call, or sent little, sees it in the next one.
        let both = |_| call(&mut group).and_then(|()| group.barrier()).err();
        result.err().or_else(|| (0..3).find_map(both)).expect("it is noticed").to_string()
    });
    for error in &ended {
        let error = error.as_ref().expect("no rank panics");
        let place = format!("rank {one}, {alone:?}, {name}, {hosts:?}: {error}");
        let is_next = error.contains("call 2, `barrier`");
        assert!(error.contains(&alone.name(other)), "{place}");
        assert!(error.contains(name) || is_next, "{place}");
        assert_eq!(error.matches("makes call").count(), 2, "{place}");
    }
}

#[test]
fn messages_of_any_length_arrive_within_and_across_hosts() {
    let ended = run_at(&["a", "a", "b", "b", "a"], AMPLE, |mut group| {
        let me = group.rank().0;
        let (next, before) = (Rank((me + 1) % 5), Rank((me + 4) % 5));
        for length in [0, 1, 1003, 1 << 20] {
            let (own, mut received) = (vec![me; length], vec![9; length]);
            let own: Vec<i32> = own.into_iter().map(|value| value as i32).collect();
            if me == 0 {
                group.send(&own, next).unwrap();
                group.receive(&mut received, before).unwrap();
            } else {
                group.receive(&mut received, before).unwrap();
                group.send(&own, next).unwrap();
            }
            assert_eq!(received, vec![before.0 as i32; length]);
            group.all_reduce(&mut received, ReduceOp::Sum).unwrap();
        }
    });
    assert!(ended.iter().all(Option::is_some));
}

#[test]
fn root_gathers_and_scatters_each_rank() {
    let hosts = ["a", "b", "a", "c", "b", "a"];
    let ended = run_at(&hosts, AMPLE, |mut group| {
        let me = group.rank().index();
        for root in (0..6).map(Rank) {
            for size in [1, 400_000] {
                let counts: Vec<usize> = (0..6).map(|rank| if rank == 2 { 0 } else { size + rank }).collect();
                let part = |rank: usize| vec![rank as i32; counts[rank]];
                let all: Vec<i32> = (0..6).flat_map(part).collect();
                let gathered = group.gather(&part(me), &counts, root).unwrap();
                assert_eq!(gathered, (group.rank() == root).then(|| all.clone()));
                let input = if group.rank() == root { &all[..] } else { &[] };
                assert_eq!(group.scatter(input, &counts, root).unwrap(), part(me));
                let mut data: Vec<i64> = (0..size).map(|index| (index + me) as i64).collect();
                let own = data.clone();
                group.reduce(&mut data, ReduceOp::Sum, root).unwrap();
                let sums = (0..size).map(|index| (6 * index + 15) as i64).collect();
                assert_eq!(data, if group.rank() == root { sums } else { own }, "rank {me}, root {root}");
            }
        }
    });
    assert!(ended.iter().all(Option::is_some));
}

#[test]
fn unneeded_ranks_may_leave() {
    let ended = run_at(&TWO_BY_TWO, AMPLE, |mut group| {
        for round in 0..50i64 {
            let mut data = vec![round + i64::from(group.rank().0); 20_000];
            group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            assert_eq!(data, vec![4 * round + 6; 20_000]);
        }
        group.leave();
    });
    assert!(ended.iter().all(Option::is_some));
}

#[expect(clippy::disallowed_methods, reason = "the test measures how long the others take")]
fn now() -> Instant {
    Instant::now()
}
