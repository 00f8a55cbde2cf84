//! Sums and their like over the memory of several ranks, element by element in rank order. Pure.

use bytemuck::{AnyBitPattern, NoUninit, Pod, bytes_of, cast_slice, cast_slice_mut, pod_read_unaligned};
use half::{bf16, f16};

use super::element::{DataType, Reduction};

/// Makes `target` the reduction of itself, as the value of the first rank, and of `others`, as those of the next ones in rank order.
/// All are of `data_type` and equally long, and lie where they like. With `finish` the result is complete: a mean is divided by that
/// number of ranks.
pub(crate) fn fold(
    (data_type, how): (DataType, Reduction),
    target: &mut [u8],
    others: &[&[u8]],
    finish: Option<u32>,
) {
    match data_type {
        DataType::None => {}
        DataType::F16 => fold_as::<f16>(how, target, others, finish),
        DataType::Bf16 => fold_as::<bf16>(how, target, others, finish),
        DataType::F32 => fold_as::<f32>(how, target, others, finish),
        DataType::F64 => fold_as::<f64>(how, target, others, finish),
        DataType::I32 => fold_as::<i32>(how, target, others, finish),
        DataType::I64 => fold_as::<i64>(how, target, others, finish),
        DataType::U8 => fold_as::<u8>(how, target, others, finish),
    }
}

fn fold_as<T: Number>(how: Reduction, target: &mut [u8], others: &[&[u8]], finish: Option<u32>) {
    let size = size_of::<T>();
    for (index, value) in target.chunks_exact_mut(size).enumerate() {
        let mut total = pod_read_unaligned::<T>(value).widen();
        for other in others {
            let next = pod_read_unaligned::<T>(&other[index * size..][..size]).widen();
            total = match how {
                Reduction::Sum | Reduction::Mean => T::plus(total, next),
                Reduction::Product => T::times(total, next),
                Reduction::Max => {
                    if next > total || T::is_unordered(next) && !T::is_unordered(total) {
                        next
                    } else {
                        total
                    }
                }
                Reduction::Min => {
                    if next < total || T::is_unordered(next) && !T::is_unordered(total) {
                        next
                    } else {
                        total
                    }
                }
            };
        }
        if let (Reduction::Mean, Some(count)) = (how, finish) {
            total = T::divided(total, count);
        }
        value.copy_from_slice(bytes_of(&T::narrow(total)));
    }
}

/// How one type computes: in `Wide`, which is the type itself but for the short floats.
trait Number: Pod {
    type Wide: Copy + PartialOrd;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    fn plus(one: Self::Wide, other: Self::Wide) -> Self::Wide;
    fn times(one: Self::Wide, other: Self::Wide) -> Self::Wide;
    fn divided(one: Self::Wide, count: u32) -> Self::Wide;
    fn is_unordered(wide: Self::Wide) -> bool;
}

macro_rules! float {
    ($type:ty, $wide:ty, $widen:expr, $narrow:expr) => {
        impl Number for $type {
            type Wide = $wide;
            fn widen(self) -> $wide {
                $widen(self)
            }
            fn narrow(wide: $wide) -> Self {
                $narrow(wide)
            }
            fn plus(one: $wide, other: $wide) -> $wide {
                one + other
            }
            fn times(one: $wide, other: $wide) -> $wide {
                one * other
            }
            fn divided(one: $wide, count: u32) -> $wide {
                one / count as $wide
            }
            fn is_unordered(wide: $wide) -> bool {
                wide.is_nan()
            }
        }
    };
}

macro_rules! integer {
    ($type:ty) => {
        impl Number for $type {
            type Wide = Self;
            fn widen(self) -> Self {
                self
            }
            fn narrow(wide: Self) -> Self {
                wide
            }
            fn plus(one: Self, other: Self) -> Self {
                one.wrapping_add(other)
            }
            fn times(one: Self, other: Self) -> Self {
                one.wrapping_mul(other)
            }
            fn divided(one: Self, count: u32) -> Self {
                // A world is never larger than a number of four bytes; a small type cannot hold its size, and is then below it.
                Self::try_from(count).map_or(0, |count| one / count)
            }
            fn is_unordered(_: Self) -> bool {
                false
            }
        }
    };
}

float!(f16, f32, Self::to_f32, Self::from_f32);
float!(bf16, f32, Self::to_f32, Self::from_f32);
float!(f32, f32, std::convert::identity, std::convert::identity);
float!(f64, f64, std::convert::identity, std::convert::identity);
integer!(i32);
integer!(i64);
integer!(u8);

/// Elements of bytes that a group carries, for callers that have bytes only.
pub(crate) fn as_bytes<T: NoUninit>(elements: &[T]) -> &[u8] {
    cast_slice(elements)
}

/// As [`as_bytes`], to be written.
pub(crate) fn as_bytes_mut<T: NoUninit + AnyBitPattern>(elements: &mut [T]) -> &mut [u8] {
    cast_slice_mut(elements)
}
