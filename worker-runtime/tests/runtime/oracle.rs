//! The expected result of a call, computed one element at a time, independent of the runtime.

use rankrun_worker::ReduceOp;
use rankrun_worker::process_group::{Element, bf16, f16};

/// Elements after which values repeat. A prime, so that data at a wrong place is wrong data.
const PERIOD: usize = 1021;

/// An element type whose reductions can be computed here.
pub(crate) trait Oracle: Element {
    /// Values at the limits of the type; of floats the first five are what has no size.
    const SPECIAL: &'static [Self];

    /// A value that is not nicely rounded, of no great size.
    fn plain(scrambled: i64) -> Self;

    /// The reduction of the values of all ranks.
    fn reduced(op: ReduceOp, values: &[Self]) -> Self;

    /// Every not-a-number is equal to every other; otherwise bits count.
    fn is_same(self, other: Self) -> bool;
}

/// Which values are reduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Values {
    /// Any: the result of floats depends on the order of the ranks.
    Any,
    /// Those that every order reduces to the same bits: small whole numbers, zeros, infinities and what is not a number.
    AnyOrder,
}

/// `length` values of one rank, of which every eighth is special.
pub(crate) fn samples<T: Oracle>(values: Values, rank: u32, length: usize) -> Vec<T> {
    let value = |index: usize| {
        let mixed = (u64::from(rank) << 40 ^ index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let (is_special, random) = (mixed >> 61 == 0, (mixed >> 40) as i64 - (1 << 23));
        match values {
            Values::Any if is_special => T::SPECIAL[(mixed >> 32) as usize % T::SPECIAL.len()],
            Values::Any => T::plain(random),
            Values::AnyOrder if is_special => T::SPECIAL[(mixed >> 32) as usize % 5],
            Values::AnyOrder => T::plain(random % 3 * 3000),
        }
    };
    repeat_pattern(&(0..length.min(PERIOD)).map(value).collect::<Vec<T>>(), length)
}

/// What ranks `0..world` with these samples get.
pub(crate) fn reduced<T: Oracle>(values: Values, op: ReduceOp, world: u32, length: usize) -> Vec<T> {
    let ranks: Vec<Vec<T>> = (0..world).map(|rank| samples(values, rank, length.min(PERIOD))).collect();
    let all = |index: usize| ranks.iter().map(|rank| rank[index]).collect::<Vec<T>>();
    let pattern: Vec<T> = (0..length.min(PERIOD)).map(|index| T::reduced(op, &all(index))).collect();
    repeat_pattern(&pattern, length)
}

fn repeat_pattern<T: Copy>(pattern: &[T], length: usize) -> Vec<T> {
    let mut all = Vec::with_capacity(length);
    while all.len() < length {
        all.extend_from_slice(&pattern[..pattern.len().min(length - all.len())]);
    }
    all
}

/// Whether all elements are what they must be; says which is not.
pub(crate) fn assert_same<T: Oracle>(actual: &[T], expected: &[T], what: &dyn Fn() -> String) {
    assert_eq!(actual.len(), expected.len(), "{}", what());
    if bytemuck::cast_slice::<T, u8>(actual) == bytemuck::cast_slice::<T, u8>(expected) {
        return;
    }
    let wrong = actual.iter().zip(expected).position(|(actual, expected)| !actual.is_same(*expected));
    if let Some(index) = wrong {
        panic!("{}: element {index} is {:?}, not {:?}", what(), actual[index], expected[index]);
    }
}

macro_rules! float {
    ($type:ident, $wide:ty, $from:expr, $to:expr, $special:expr) => {
        impl Oracle for $type {
            const SPECIAL: &'static [Self] = &$special;

            fn plain(scrambled: i64) -> Self {
                $from(scrambled as $wide / 3000.0)
            }

            fn reduced(op: ReduceOp, values: &[Self]) -> Self {
                let wide: Vec<$wide> = values.iter().map(|&value| $to(value)).collect();
                let (first, rest) = (wide[0], &wide[1..]);
                let has_nan = wide.iter().any(|value| value.is_nan());
                $from(match op {
                    ReduceOp::Sum => rest.iter().fold(first, |total, value| total + value),
                    ReduceOp::Mean => {
                        rest.iter().fold(first, |total, value| total + value) / wide.len() as $wide
                    }
                    ReduceOp::Product => rest.iter().fold(first, |total, value| total * value),
                    ReduceOp::Max | ReduceOp::Min if has_nan => <$wide>::NAN,
                    ReduceOp::Max => {
                        rest.iter().fold(first, |most, &value| if value > most { value } else { most })
                    }
                    ReduceOp::Min => {
                        rest.iter().fold(first, |least, &value| if value < least { value } else { least })
                    }
                })
            }

            fn is_same(self, other: Self) -> bool {
                self.to_bits() == other.to_bits() || self.is_nan() && other.is_nan()
            }
        }
    };
}

macro_rules! integer {
    ($type:ident) => {
        impl Oracle for $type {
            const SPECIAL: &'static [Self] = &[0, 1, Self::MAX, Self::MIN, Self::MAX - 1, Self::MIN + 1];

            fn plain(scrambled: i64) -> Self {
                scrambled as Self
            }

            fn reduced(op: ReduceOp, values: &[Self]) -> Self {
                let sum = || values.iter().map(|&value| i128::from(value)).sum::<i128>() as Self;
                match op {
                    ReduceOp::Sum => sum(),
                    ReduceOp::Mean => (i128::from(sum()) / values.len() as i128) as Self,
                    ReduceOp::Product => values.iter().fold(1, |all, &value| all.wrapping_mul(value)),
                    ReduceOp::Max => *values.iter().max().expect("a rank"),
                    ReduceOp::Min => *values.iter().min().expect("a rank"),
                }
            }

            fn is_same(self, other: Self) -> bool {
                self == other
            }
        }
    };
}

float!(
    f16,
    f32,
    f16::from_f32,
    f16::to_f32,
    [
        f16::NAN,
        f16::INFINITY,
        f16::NEG_INFINITY,
        f16::NEG_ZERO,
        f16::ZERO,
        f16::MAX,
        f16::MIN_POSITIVE_SUBNORMAL,
        f16::MAX_SUBNORMAL
    ]
);
float!(
    bf16,
    f32,
    bf16::from_f32,
    bf16::to_f32,
    [
        bf16::NAN,
        bf16::INFINITY,
        bf16::NEG_INFINITY,
        bf16::NEG_ZERO,
        bf16::ZERO,
        bf16::MAX,
        bf16::MIN_POSITIVE_SUBNORMAL,
        bf16::MAX_SUBNORMAL
    ]
);
float!(
    f32,
    f32,
    std::convert::identity,
    std::convert::identity,
    [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 0.0, f32::MAX, f32::from_bits(1), -f32::from_bits(1)]
);
float!(
    f64,
    f64,
    std::convert::identity,
    std::convert::identity,
    [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0, f64::MAX, f64::from_bits(1), -f64::from_bits(1)]
);
integer!(i32);
integer!(i64);
integer!(u8);
