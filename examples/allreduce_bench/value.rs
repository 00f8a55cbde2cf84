//! The values of elements and the expected results. Pure.
//!
//! On each rank an element is 1, or 2 where its index modulo the ranks is the rank: results are small
//! integers, exact in every type, and wrong where data is misplaced.

use rankrun_worker::process_group::{DataType, Element, bf16, f16};
use rankrun_worker::{Rank, ReduceOp};

use crate::{Operation, ROOT};

/// Rank and number of ranks of the elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RankPlace {
    pub(crate) rank: Rank,
    pub(crate) world: u32,
}

/// A measured element type.
pub(crate) trait Number: Element {
    /// Converts a small number.
    fn of(value: u32) -> Self;

    /// Whether it equals the number, as exactly as the type can represent it.
    fn is(self, value: f64) -> bool;
}

macro_rules! number {
    ($($type:ident, $of:expr, $to:expr, $within:expr;)*) => {$(
        impl Number for $type {
            fn of(value: u32) -> Self {
                $of(value)
            }

            fn is(self, value: f64) -> bool {
                ($to(self) - value).abs() <= $within * value
            }
        }
    )*};
}

number!(
    f16, |value| f16::from_f32(value as f32), f64::from, 5e-4;
    bf16, |value| bf16::from_f32(value as f32), f64::from, 4e-3;
    f32, |value| value as f32, f64::from, 1e-5;
    f64, f64::from, std::convert::identity, 1e-12;
    i32, |value| value as i32, f64::from, 0.0;
    i64, i64::from, |value| value as f64, 0.0;
    u8, |value| value as u8, f64::from, 0.0;
);

/// Value of an element on a rank.
pub(crate) fn element(rank: u32, world: u32, index: usize) -> u32 {
    if index % (world as usize + 1) == rank as usize { 2 } else { 1 }
}

/// Writes the initial values of a rank.
pub(crate) fn fill<T: Number>(values: &mut [T], rank: u32, world: u32) {
    for (index, place) in values.iter_mut().enumerate() {
        *place = T::of(element(rank, world, index));
    }
}

/// Number of elements of a rank's output that differ from the expected result.
pub(crate) fn count_wrong<T: Number>(
    output: &[T],
    (operation, op): (Operation, ReduceOp),
    RankPlace { rank, world }: RankPlace,
) -> u64 {
    let count = output.len();
    let part = (count / world as usize).max(1);
    let expected = |index: usize| match operation {
        Operation::Reduce if rank != ROOT => f64::from(element(rank.0, world, index)),
        Operation::AllReduce | Operation::Reduce => reduced(T::DATA_TYPE, op, world, index),
        Operation::ReduceScatter => reduced(T::DATA_TYPE, op, world, rank.index() * count + index),
        Operation::Broadcast => f64::from(element(ROOT.0, world, index)),
        Operation::AllGather => {
            let giver = u32::try_from(index / part).unwrap_or(u32::MAX);
            f64::from(element(giver, world, index % part))
        }
    };
    output.iter().enumerate().filter(|&(index, value)| !value.is(expected(index))).count() as u64
}

/// Reduction of the elements with this index over all ranks.
pub(crate) fn reduced(data_type: DataType, op: ReduceOp, world: u32, index: usize) -> f64 {
    let is_hit = index % (world as usize + 1) < world as usize;
    let most = if is_hit { 2 } else { 1 };
    let sum = u64::from(world) - 1 + most;
    // The smallest type wraps around.
    let sum = if data_type == DataType::U8 { sum % 256 } else { sum };
    match op {
        ReduceOp::Sum => sum as f64,
        // Integers are rounded towards zero.
        ReduceOp::Mean if matches!(data_type, DataType::I32 | DataType::I64 | DataType::U8) => {
            (sum / u64::from(world)) as f64
        }
        ReduceOp::Mean => sum as f64 / f64::from(world),
        ReduceOp::Min if world > 1 => 1.0,
        ReduceOp::Product | ReduceOp::Max | ReduceOp::Min => most as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fold<T: Number>(op: ReduceOp, world: u32) {
        for index in 0..2 * world as usize + 3 {
            let all: Vec<[T; 1]> = (0..world).map(|rank| [T::of(element(rank, world, index))]).collect();
            let (first, rest) = all.split_first().unwrap();
            let (mut total, rest) = (*first, rest.iter().map(|value| &value[..]).collect::<Vec<_>>());
            op.fold(&mut total, &rest);
            let expected = reduced(T::DATA_TYPE, op, world, index);
            assert!(total[0].is(expected), "{op} of {} in {world}: {total:?}, not {expected}", T::DATA_TYPE);
            assert!(!total[0].is(expected + 1.0));
        }
    }

    #[test]
    fn expected_results_match_runtime() {
        for op in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Product, ReduceOp::Max, ReduceOp::Min] {
            for world in [1, 2, 3, 8, 100] {
                fold::<f16>(op, world);
                fold::<bf16>(op, world);
                fold::<f32>(op, world);
                fold::<f64>(op, world);
                fold::<i32>(op, world);
                fold::<i64>(op, world);
                fold::<u8>(op, world);
            }
        }
    }
}
