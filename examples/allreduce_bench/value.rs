//! What the elements are, and what must come out of a call. Pure.
//!
//! On each rank an element is 1, or 2 where its index falls on the rank: results are small whole numbers, exact in every type, and
//! wrong where data is at a wrong place.

use rankrun_worker::process_group::{DataType, Element, bf16, f16};
use rankrun_worker::{Rank, Reduction};

use crate::{Operation, ROOT};

/// Whose elements they are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) rank: Rank,
    pub(crate) world: u32,
}

/// A type that is measured.
pub(crate) trait Number: Element {
    /// A small number.
    fn of(value: u32) -> Self;

    /// Whether it is that number, as exactly as the type can say it.
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

/// The element of a rank.
pub(crate) fn element(rank: u32, world: u32, index: usize) -> u32 {
    if index % (world as usize + 1) == rank as usize { 2 } else { 1 }
}

/// Gives the elements of a rank their first values.
pub(crate) fn fill<T: Number>(given: &mut [T], rank: u32, world: u32) {
    for (index, place) in given.iter_mut().enumerate() {
        *place = T::of(element(rank, world, index));
    }
}

/// How many elements of a rank's output are not what one call makes of the first values.
pub(crate) fn count_wrong<T: Number>(
    output: &[T],
    (operation, how): (Operation, Reduction),
    Place { rank, world }: Place,
) -> u64 {
    let count = output.len();
    let part = (count / world as usize).max(1);
    let expected = |index: usize| match operation {
        Operation::Reduce if rank != ROOT => f64::from(element(rank.0, world, index)),
        Operation::AllReduce | Operation::Reduce => reduced(T::DATA_TYPE, how, world, index),
        Operation::ReduceScatter => reduced(T::DATA_TYPE, how, world, rank.index() * count + index),
        Operation::Broadcast => f64::from(element(ROOT.0, world, index)),
        Operation::AllGather => {
            let giver = u32::try_from(index / part).unwrap_or(u32::MAX);
            f64::from(element(giver, world, index % part))
        }
    };
    output.iter().enumerate().filter(|&(index, value)| !value.is(expected(index))).count() as u64
}

/// The reduction over all ranks of the elements with this index.
pub(crate) fn reduced(data_type: DataType, how: Reduction, world: u32, index: usize) -> f64 {
    let is_hit = index % (world as usize + 1) < world as usize;
    let most = if is_hit { 2 } else { 1 };
    let sum = u64::from(world) - 1 + most;
    // The smallest type wraps around.
    let sum = if data_type == DataType::U8 { sum % 256 } else { sum };
    match how {
        Reduction::Sum => sum as f64,
        // Integers are cut.
        Reduction::Mean if matches!(data_type, DataType::I32 | DataType::I64 | DataType::U8) => {
            (sum / u64::from(world)) as f64
        }
        Reduction::Mean => sum as f64 / f64::from(world),
        Reduction::Min if world > 1 => 1.0,
        Reduction::Product | Reduction::Max | Reduction::Min => most as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fold<T: Number>(how: Reduction, world: u32) {
        for index in 0..2 * world as usize + 3 {
            let all: Vec<[T; 1]> = (0..world).map(|rank| [T::of(element(rank, world, index))]).collect();
            let (first, others) = all.split_first().unwrap();
            let (mut total, others) = (*first, others.iter().map(|it| &it[..]).collect::<Vec<_>>());
            how.fold(&mut total, &others);
            let expected = reduced(T::DATA_TYPE, how, world, index);
            assert!(total[0].is(expected), "{how} of {} in {world}: {total:?}, not {expected}", T::DATA_TYPE);
            assert!(!total[0].is(expected + 1.0));
        }
    }

    #[test]
    fn results_are_what_the_runtime_makes_of_the_elements() {
        for how in [Reduction::Sum, Reduction::Mean, Reduction::Product, Reduction::Max, Reduction::Min] {
            for world in [1, 2, 3, 8, 100] {
                fold::<f16>(how, world);
                fold::<bf16>(how, world);
                fold::<f32>(how, world);
                fold::<f64>(how, world);
                fold::<i32>(how, world);
                fold::<i64>(how, world);
                fold::<u8>(how, world);
            }
        }
    }
}
