//! Every operation, type and world size against the same computation done in one place.

use std::fmt::Debug;

use rankrun_worker::process_group::Element;
use rankrun_worker::{Group, GroupError, Rank, Reduction};

use crate::world::{AMPLE, run};

const WORLDS: [u32; 5] = [1, 2, 3, 4, 8];
const SIZES: [usize; 4] = [0, 1, 7, 4099];
const REDUCTIONS: [Reduction; 5] =
    [Reduction::Sum, Reduction::Mean, Reduction::Product, Reduction::Max, Reduction::Min];

/// An element type with values that are not nicely rounded.
trait Sample: Element {
    fn at(rank: u32, index: usize) -> Self;
    fn reduced(how: Reduction, values: &[Self]) -> Self;
}

fn scrambled(rank: u32, index: usize) -> i64 {
    let mixed = (u64::from(rank) << 40 ^ index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 40) as i64 - (1 << 23)
}

macro_rules! sample {
    ($type:ident, $from:expr, $times:expr) => {
        impl Sample for $type {
            fn at(rank: u32, index: usize) -> Self {
                $from(scrambled(rank, index))
            }

            fn reduced(how: Reduction, values: &[Self]) -> Self {
                let first = values[0];
                let rest = || values[1..].iter().copied();
                let sum = rest().fold(first, |total, value| total + value);
                match how {
                    Reduction::Sum => sum,
                    Reduction::Mean => sum / values.len() as Self,
                    Reduction::Product => rest().fold(first, |total, value| $times(total, value)),
                    Reduction::Max => {
                        rest().fold(first, |most, value| if value > most { value } else { most })
                    }
                    Reduction::Min => {
                        rest().fold(first, |least, value| if value < least { value } else { least })
                    }
                }
            }
        }
    };
}

sample!(f32, |value: i64| value as f32 / 3.0, |one: f32, other: f32| one * other);
sample!(f64, |value: i64| value as f64 / 3.0, |one: f64, other: f64| one * other);
sample!(i64, |value: i64| value, i64::wrapping_mul);

fn samples<T: Sample>(rank: u32, size: usize) -> Vec<T> {
    (0..size).map(|index| T::at(rank, index)).collect()
}

/// Runs `body` on every rank and asserts that no rank has an error.
fn on_all(world: u32, body: impl Fn(&mut Group, u32) -> Result<(), GroupError> + Sync) {
    let ended = run(world, AMPLE, |mut group| {
        let rank = group.rank().0;
        body(&mut group, rank)
    });
    for (rank, result) in ended.into_iter().enumerate() {
        result.unwrap_or_else(|| panic!("rank {rank} of {world} panicked")).expect("a rank failed");
    }
}

/// Unequal shares of the ranks, some of them empty.
fn shares(world: u32, size: usize) -> Vec<usize> {
    (0..world as usize).map(|rank| if rank % 3 == 2 { 0 } else { size + rank }).collect()
}

fn every_operation<T: Sample + PartialEq + Debug>(world: u32, sizes: &[usize], reductions: &[Reduction]) {
    on_all(world, |group, rank| {
        for &size in sizes {
            let own: Vec<T> = samples(rank, size);
            for &how in reductions {
                let mut data = own.clone();
                group.all_reduce(&mut data, how)?;
                let expected = |index| {
                    let values: Vec<T> = (0..world).map(|rank| T::at(rank, index)).collect();
                    T::reduced(how, &values)
                };
                assert!((0..size).all(|index| data[index] == expected(index)), "{how} of {size} in {world}");
            }
            let gathered: Vec<T> = (0..world).flat_map(|rank| samples(rank, size)).collect();
            assert!(group.all_gather(&own)? == gathered, "all_gather of {size} in {world}");
            group.barrier()?;
            for root in [0, world - 1].map(Rank) {
                rooted_operations::<T>(group, size, root)?;
            }
        }
        Ok(())
    });
}

fn rooted_operations<T: Sample + PartialEq + Debug>(
    group: &mut Group,
    size: usize,
    root: Rank,
) -> Result<(), GroupError> {
    let (world, rank) = (group.world_size().get(), group.rank());
    let mut data: Vec<T> = samples(rank.0, size);
    group.broadcast(&mut data, root)?;
    assert!(data == samples::<T>(root.0, size), "broadcast of {size} in {world}");

    let counts = shares(world, size);
    let all: Vec<T> = samples(77, counts.iter().sum());
    let start: usize = counts[..rank.index()].iter().sum();
    let part = all[start..][..counts[rank.index()]].to_vec();
    let given = if rank == root { &all[..] } else { &[] };
    assert!(group.scatter(given, &counts, root)? == part, "scatter of {size} in {world}");

    let gathered = group.gather(&part, &counts, root)?;
    assert!(gathered == (rank == root).then_some(all), "gather of {size} in {world}");
    Ok(())
}

#[test]
fn every_operation_is_right_in_every_world() {
    for world in WORLDS {
        every_operation::<f32>(world, &SIZES, &REDUCTIONS);
        every_operation::<f64>(world, &SIZES, &REDUCTIONS);
        every_operation::<i64>(world, &SIZES, &REDUCTIONS);
    }
}

#[test]
fn large_buffers_pass_through_small_sockets() {
    let mebibytes = 1 << 20;
    for world in WORLDS {
        every_operation::<f32>(world, &[mebibytes / 4 + 1], &[Reduction::Sum]);
    }
    every_operation::<f64>(2, &[8 * mebibytes / 8 + 3], &[Reduction::Mean]);
    every_operation::<i64>(3, &[4 * mebibytes / 8 + 3], &[Reduction::Max]);
}

#[test]
fn sums_have_the_same_bits_on_every_rank_and_in_every_run() {
    let sums = || {
        run(4, AMPLE, |mut group| {
            let mut data: Vec<f32> = samples(group.rank().0, 10_001);
            group.all_reduce(&mut data, Reduction::Sum).unwrap();
            data.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        })
    };
    let (first, second) = (sums(), sums());
    assert!(first[0].is_some());
    assert!(first.iter().all(|sum| *sum == first[0]), "ranks differ");
    assert!(first == second, "runs differ");
}

#[test]
fn a_wrong_argument_is_an_error_and_costs_nothing() {
    on_all(2, |group, _| {
        let error = group.scatter(&[1i64], &[1], Rank(0)).unwrap_err();
        assert_eq!(error.to_string(), "`scatter` takes 2 counts here, not 1");
        let error = group.gather(&[1i64], &[2, 2], Rank(0)).unwrap_err();
        assert_eq!(error.to_string(), "`gather` takes 2 elements here, not 1");
        let error = group.gather(&[1i64], &[usize::MAX, 1], Rank(0)).unwrap_err();
        assert!(matches!(error, GroupError::WrongLength { .. }), "{error}");
        let error = group.broadcast(&mut [1i64], Rank(2)).unwrap_err();
        assert_eq!(error.to_string(), "`broadcast` names rank 2, but the group has 2 ranks");
        group.barrier()
    });
}

#[test]
fn ranks_may_be_far_ahead_of_each_other() {
    on_all(3, |group, rank| {
        // The root does not wait for those who receive, nor do those who send to another root.
        for round in 0..200 {
            let mut data = vec![if rank == 0 { round } else { -1 }; 100];
            group.broadcast(&mut data, Rank(0))?;
            assert_eq!(data, vec![round; 100]);
            let all = group.gather(&[i64::from(rank), round], &[2; 3], Rank(2))?;
            assert_eq!(all, (rank == 2).then(|| vec![0, round, 1, round, 2, round]));
        }
        Ok(())
    });
}
