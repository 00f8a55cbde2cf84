//! The element types of collectives, and how two values become one.
//!
//! Bytes travel as they lie in memory: every platform of rankrun is little-endian, and so is the wire.

use std::fmt;

use bytemuck::Pod;

#[cfg(target_endian = "big")]
compile_error!("the wire of a process group is little-endian memory");

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
    impl Sealed for i64 {}
}

/// The element type of a call, as peers compare it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataType {
    /// No elements: a barrier.
    None,
    /// `f32`.
    F32,
    /// `f64`.
    F64,
    /// `i64`.
    I64,
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "nothing",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::I64 => "i64",
        })
    }
}

/// How the values of all ranks become one. Values are taken in rank order, so that the result has the same
/// bits on every rank and in every run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// The sum; `i64` wraps around.
    Sum,
    /// The sum divided by the world size; `i64` is cut towards zero.
    Mean,
    /// The largest value; not-a-number wins over every number.
    Max,
    /// The smallest value; not-a-number wins over every number.
    Min,
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Max => "max",
            Self::Min => "min",
        })
    }
}

/// A type of which a process group can carry slices: `f32`, `f64` and `i64`.
pub trait Element: Pod + sealed::Sealed + PartialOrd + fmt::Debug + Send + Sync {
    /// The name of the type on the wire.
    const DATA_TYPE: DataType;

    /// `self + other`.
    #[must_use]
    fn plus(self, other: Self) -> Self;

    /// `self / count`.
    #[must_use]
    fn divided_by(self, count: u32) -> Self;

    /// Whether the value has no place in the order of numbers.
    fn is_unordered(self) -> bool;
}

macro_rules! float_element {
    ($type:ty, $data_type:expr) => {
        impl Element for $type {
            const DATA_TYPE: DataType = $data_type;

            fn plus(self, other: Self) -> Self {
                self + other
            }

            fn divided_by(self, count: u32) -> Self {
                self / count as Self
            }

            fn is_unordered(self) -> bool {
                self.is_nan()
            }
        }
    };
}

float_element!(f32, DataType::F32);
float_element!(f64, DataType::F64);

impl Element for i64 {
    const DATA_TYPE: DataType = DataType::I64;

    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    fn divided_by(self, count: u32) -> Self {
        self / Self::from(count)
    }

    fn is_unordered(self) -> bool {
        false
    }
}

/// Folds `other`, the value of the next rank, into `total`.
pub(super) fn fold<T: Element>(how: Reduction, total: &mut [T], other: &[T]) {
    let pairs = total.iter_mut().zip(other);
    match how {
        Reduction::Sum | Reduction::Mean => pairs.for_each(|(total, &other)| *total = total.plus(other)),
        Reduction::Max => pairs.for_each(|(total, &other)| {
            if !total.is_unordered() && (other > *total || other.is_unordered()) {
                *total = other;
            }
        }),
        Reduction::Min => pairs.for_each(|(total, &other)| {
            if !total.is_unordered() && (other < *total || other.is_unordered()) {
                *total = other;
            }
        }),
    }
}

/// What is left to do once all ranks are folded.
pub(super) fn finish<T: Element>(how: Reduction, total: &mut [T], world_size: u32) {
    if how == Reduction::Mean {
        total.iter_mut().for_each(|value| *value = value.divided_by(world_size));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded<T: Element>(how: Reduction, values: &[T]) -> T {
        let mut total = [values[0]];
        values[1..].iter().for_each(|&value| fold(how, &mut total, &[value]));
        finish(how, &mut total, u32::try_from(values.len()).unwrap());
        total[0]
    }

    #[test]
    fn numbers_are_reduced_in_order() {
        assert_eq!(folded(Reduction::Sum, &[1e8f32, 1.0, -1e8]), (1e8f32 + 1.0) - 1e8);
        assert_eq!(folded(Reduction::Mean, &[1.0f64, 2.0, 6.0]), 3.0);
        assert_eq!(folded(Reduction::Mean, &[-7i64, 0]), -3);
        assert_eq!(folded(Reduction::Sum, &[i64::MAX, 1]), i64::MIN);
        assert_eq!(folded(Reduction::Max, &[3i64, 9, -1]), 9);
        assert_eq!(folded(Reduction::Min, &[3.0f32, 9.0, -1.0]), -1.0);
    }

    #[test]
    fn not_a_number_is_never_hidden() {
        for how in [Reduction::Sum, Reduction::Mean, Reduction::Max, Reduction::Min] {
            for at in 0..3 {
                let mut values = [1.0f64, 2.0, 3.0];
                values[at] = f64::NAN;
                assert!(folded(how, &values).is_nan(), "{how} lost a NaN at {at}");
            }
        }
    }
}
