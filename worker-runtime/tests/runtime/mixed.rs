//! Ranks on several hosts: which backend they get, and what they hear when one of them is lost, silent or makes another call.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use rankrun_worker::process_group::{Backend, GroupError};
use rankrun_worker::{Group, Rank, Reduction};

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
    ("all_reduce", |group| group.all_reduce(&mut [0.5f32; 1000], Reduction::Sum)),
    ("all_reduce", |group| group.all_reduce(&mut vec![0.5f64; 300_000], Reduction::Sum)),
    ("all_gather", |group| group.all_gather(&vec![7i64; 100_000]).map(drop)),
    ("reduce_scatter", |group| {
        let input = vec![1.0f32; 100_000 * group.world_size().get() as usize];
        group.reduce_scatter(&input, &mut vec![0.0; 100_000], Reduction::Sum)
    }),
];

#[test]
fn hosts_choose_the_backend_also_of_sub_groups() {
    let ended = run_at(&TWO_BY_TWO, AMPLE, |mut group| {
        let half = group.rank().0 / 2;
        let mut across = group.split(Some(half), 0).unwrap().expect("a color was said");
        let mut within = group.split(Some(group.rank().0 % 2), 0).unwrap().expect("a color was said");
        let mut sums = [1i64, 1, 1];
        group.all_reduce(&mut sums[..1], Reduction::Sum).unwrap();
        across.all_reduce(&mut sums[1..2], Reduction::Sum).unwrap();
        within.all_reduce(&mut sums[2..], Reduction::Sum).unwrap();
        ([group.backend(), across.backend(), within.backend()], sums)
    });
    for told in ended {
        assert_eq!(told, Some(([Backend::Mixed, Backend::Mixed, Backend::Shm], [4, 2, 2])));
    }
}

#[test]
fn sums_have_the_same_bits_on_every_rank_and_in_every_run() {
    for elements in [100, 100_001] {
        let sums = || {
            run_at(&["a", "a", "b", "c", "b", "a"], AMPLE, |mut group| {
                let rank = group.rank().0;
                let value = |index: usize| (index as f32 + 0.1) / (rank as f32 + 3.0);
                let mut data: Vec<f32> = (0..elements).map(value).collect();
                group.all_reduce(&mut data, Reduction::Mean).unwrap();
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
fn much_goes_around_the_hosts_in_blocks_of_chunks() {
    // More than a block of one stream, of which each chunk is less.
    let elements = 5_000_001;
    let value = |rank: usize, index: usize| (index % 1009 + rank) as i32;
    let ended = run_at(&["a", "b", "b"], AMPLE, |mut group| {
        let rank = group.rank().index();
        let mut data: Vec<i32> = (0..elements).map(|index| value(rank, index)).collect();
        group.all_reduce(&mut data, Reduction::Sum).unwrap();
        let sum = |index| (0..3).map(|rank| value(rank, index)).sum::<i32>();
        assert!(data.iter().enumerate().all(|(index, &it)| it == sum(index)), "all_reduce on rank {rank}");
        data.iter_mut().for_each(|it| *it = if rank == 2 { *it } else { 0 });
        group.broadcast(&mut data, Rank(2)).unwrap();
        assert!(data.iter().enumerate().all(|(index, &it)| it == sum(index)), "broadcast on rank {rank}");
    });
    assert!(ended.iter().all(Option::is_some));
}

#[test]
fn a_rank_that_dies_is_named_by_all_others_in_every_operation() {
    for (number, (name, operation)) in OPERATIONS.into_iter().enumerate() {
        for (hosts, dying) in
            [(&TWO_BY_TWO[..], 0), (&TWO_BY_TWO, 3), (&["a", "b"], 1), (&["a", "a", "b", "c", "c"], 2)]
        {
            let all_done = Barrier::new(hosts.len());
            let ended = run_at(hosts, AMPLE, |mut group| {
                operation(&mut group).expect("all are here");
                all_done.wait();
                if group.rank() == Rank(dying) {
                    crash(group);
                }
                // An operation that needs nothing from the dead rank may still succeed, once or twice.
                let error = (0..1000).find_map(|_| operation(&mut group).err()).expect("the loss is noticed");
                assert!(error.to_string().contains(name), "{error}");
                (error.lost_rank(), operation(&mut group).unwrap_err().lost_rank())
            });
            for (rank, lost) in ended.into_iter().enumerate() {
                let expected = (rank != dying as usize).then_some((Some(Rank(dying)), Some(Rank(dying))));
                assert_eq!(lost, expected, "operation {number} on rank {rank} of {hosts:?} without {dying}");
            }
        }
    }
}

#[test]
fn a_silent_rank_is_named_by_all_others_when_the_time_is_over() {
    // Of a broadcast others than those of its host do not miss it.
    for (name, operation) in OPERATIONS.into_iter().filter(|(name, _)| *name != "broadcast") {
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
}

#[test]
fn ranks_that_make_different_calls_hear_of_both() {
    let pairs: [[(&str, Operation); 2]; 4] = [
        [
            ("`barrier`", Group::barrier),
            ("`all_reduce` (sum) of 1 f32", |group| group.all_reduce(&mut [1.0f32], Reduction::Sum)),
        ],
        [
            ("`all_reduce` (sum) of 100000 f32", |group| {
                group.all_reduce(&mut vec![1.0f32; 100_000], Reduction::Sum)
            }),
            ("`all_reduce` (sum) of 100001 f32", |group| {
                group.all_reduce(&mut vec![1.0f32; 100_001], Reduction::Sum)
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
                // Who only sends sees it in a later call.
                (0..1000).find_map(|_| call(&mut group).err()).expect("it is noticed").to_string()
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

#[test]
fn ranks_may_leave_when_others_need_them_no_more() {
    let ended = run_at(&TWO_BY_TWO, AMPLE, |mut group| {
        for round in 0..50i64 {
            let mut data = vec![round + i64::from(group.rank().0); 20_000];
            group.all_reduce(&mut data, Reduction::Sum).unwrap();
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
