//! Reductions over the memory of several ranks, element by element in rank order: one pass reads every source
//! once and writes the result once, aligned or not. Pure.
//!
//! - `mod.rs` is the interface: bytes with a type and an operation.
//! - `kernel.rs` is the pass over memory, compiled for any processor of the platform and for AVX2 and F16C.
//! - `number.rs` is the arithmetic of each type and operation.
//!
//! Every version computes the same bits (but for the payload of a NaN, which IEEE 754 leaves open): each
//! element passes the same operations in rank order, and none is fused with another.
//!
//! Measured on one core of an AMD EPYC (Zen 5) with other load beside, `cargo bench -p rankrun-worker --bench reduce -- BYTES`, in
//! GB/s of memory traffic (every source read, the target written), with that many bytes for each rank:
//!
//! | sum of      | 256 KiB, 2 ranks | 256 KiB, 8 | 8 MiB, 2 | 8 MiB, 8 | 64 MiB, 2 |
//! |-------------|------------------|------------|----------|----------|-----------|
//! | `f32`       | 206              | 119        | 183      | 40       | 62        |
//! | `f64`       | 249              | 134        | 188      | 53       | 58        |
//! | `f16`       | 103              | 74         | 93       | 39       | 57        |
//! | `bf16`      | 47               | 48         | 43       | 34       | 40        |
//! | `i32`       | 247              | 129        | 188      | 50       | 56        |
//! | `i64`       | 73               | 123        | 68       | 54       | 40        |
//! | `u8`        | 249              | 127        | 181      | 59       | 60        |
//! | (a copy)    | 267              |            | 120      |          | 43        |
//!
//! Beyond the caches a reduction takes about as long as a copy of as many bytes: at 64 MiB the sums of two
//! ranks run at 0.9 (`bf16`, `i64`) to 1.4 (`f32`) times its speed. In cache a copy is faster than most, and
//! `bf16` is bound by its rounding. Means of integers are far slower, since no vector instruction divides
//! them: 5 GB/s for `u8`, 17 for `i32` and `i64`.

mod kernel;
mod number;
#[cfg(test)]
mod tests;

use bytemuck::{AnyBitPattern, NoUninit, cast_slice, cast_slice_mut};
use half::{bf16, f16};

use self::kernel::ReduceJob;
use self::number::{Largest, Number, Product, Smallest, Sum};
use super::element::{DataType, Element, ReduceOp};

/// Sources for which the list of pointers is on the stack.
const MAX_STACK_SOURCES: usize = 8;

/// Reduces `target`, the value of the first rank, and `others`, those of the next ranks, into
/// `target`. All have `data_type` and the same length, at any alignment. `finish` is the number of
/// ranks by which a mean is divided.
///
/// # Panics
/// If lengths differ.
pub(crate) fn fold(
    kind: (DataType, ReduceOp),
    target: &mut [u8],
    other_sources: &[&[u8]],
    mean_divisor: Option<u32>,
) {
    let (address, bytes) = (target.as_mut_ptr(), target.len());
    let first = std::iter::once(address.cast_const());
    with_pointers(first.chain(checked_pointers(other_sources, bytes)), other_sources.len() + 1, |sources| {
        // SAFETY: all sources have `bytes` bytes (checked); the target is exclusively ours and is the first source.
        #[expect(unsafe_code, reason = "slices as pointers, since one of them is read and written")]
        unsafe {
            reduce_raw(kind, address, (sources, bytes), mean_divisor);
        }
    });
}

/// Reduces `target` and `other` into `target`; `is_first` tells that the target is
/// the value of the lower rank.
///
/// # Panics
/// If lengths differ.
pub(crate) fn fold_two(
    kind: (DataType, ReduceOp),
    target: &mut [u8],
    (other, is_first): (&[u8], bool),
    mean_divisor: Option<u32>,
) {
    assert_eq!(target.len(), other.len(), "both ranks give equally much");
    let (address, bytes) = (target.as_mut_ptr(), target.len());
    let own = address.cast_const();
    let sources = if is_first { [own, other.as_ptr()] } else { [other.as_ptr(), own] };
    // SAFETY: both have `bytes` bytes (checked); the target is exclusively ours and is one of the sources.
    #[expect(unsafe_code, reason = "slices as pointers, since one of them is read and written")]
    unsafe {
        reduce_raw(kind, address, (&sources, bytes), mean_divisor);
    }
}

/// As [`fold`], into memory that is not a source; `sources` are all ranks, in rank order.
///
/// # Panics
/// If lengths differ.
pub(crate) fn reduce_into(
    kind: (DataType, ReduceOp),
    target: &mut [u8],
    sources: &[&[u8]],
    mean_divisor: Option<u32>,
) {
    let (address, bytes) = (target.as_mut_ptr(), target.len());
    with_pointers(checked_pointers(sources, bytes), sources.len(), |sources| {
        // SAFETY: all sources have `bytes` bytes (checked); the target is exclusively ours, so it is none of them.
        #[expect(unsafe_code, reason = "slices as pointers, for the kernel that both functions share")]
        unsafe {
            reduce_raw(kind, address, (sources, bytes), mean_divisor);
        }
    });
}

/// Reduces `bytes` bytes of all `sources`, in rank order, into `target`: for memory of other processes, which
/// must not be referenced. Without sources it does nothing.
///
/// # Safety
/// Every source can be read and the target written for `bytes` bytes, and no other code
/// writes to them meanwhile. The target is exactly one of the sources, or overlaps none.
/// `bytes` is a multiple of the element size.
#[expect(unsafe_code, reason = "the caller vouches for memory that is not of this process alone")]
pub(crate) unsafe fn reduce_raw(
    (data_type, op): (DataType, ReduceOp),
    target: *mut u8,
    (sources, bytes): (&[*const u8], usize),
    mean_divisor: Option<u32>,
) {
    debug_assert!(bytes.is_multiple_of(data_type.size().max(1)), "whole elements");
    let divisor = if op == ReduceOp::Mean { mean_divisor } else { None };
    let job = ReduceJob { target, sources, bytes, divisor };
    // SAFETY: as the caller promises.
    unsafe {
        match data_type {
            DataType::None => {}
            DataType::F16 => reduce_as::<f16>(op, &job),
            DataType::Bf16 => reduce_as::<bf16>(op, &job),
            DataType::F32 => reduce_as::<f32>(op, &job),
            DataType::F64 => reduce_as::<f64>(op, &job),
            DataType::I32 => reduce_as::<i32>(op, &job),
            DataType::I64 => reduce_as::<i64>(op, &job),
            DataType::U8 => reduce_as::<u8>(op, &job),
        }
    }
}

/// # Safety
/// As [`reduce_raw`].
#[expect(unsafe_code, reason = "passes the caller's promise on")]
unsafe fn reduce_as<T: Number>(op: ReduceOp, job: &ReduceJob<'_>) {
    // SAFETY: as the caller promises.
    unsafe {
        match op {
            ReduceOp::Sum | ReduceOp::Mean => kernel::reduce::<T, Sum>(job),
            ReduceOp::Product => kernel::reduce::<T, Product>(job),
            ReduceOp::Max => kernel::reduce::<T, Largest>(job),
            ReduceOp::Min => kernel::reduce::<T, Smallest>(job),
        }
    }
}

/// The addresses of slices, all of which must have `bytes` bytes.
fn checked_pointers<'a>(slices: &'a [&[u8]], bytes: usize) -> impl Iterator<Item = *const u8> + 'a {
    slices.iter().map(move |slice| {
        assert_eq!(slice.len(), bytes, "all ranks give equally much");
        slice.as_ptr()
    })
}

/// Calls `then` with a list of these `count` pointers, on the stack if they are few.
fn with_pointers(pointers: impl Iterator<Item = *const u8>, count: usize, then: impl FnOnce(&[*const u8])) {
    let mut few = [std::ptr::null(); MAX_STACK_SOURCES];
    if count > MAX_STACK_SOURCES {
        return then(&pointers.collect::<Vec<_>>());
    }
    few.iter_mut().zip(pointers).for_each(|(place, pointer)| *place = pointer);
    then(&few[..count]);
}

impl ReduceOp {
    /// Reduces `target` of rank 0 and `others` of the next ranks into `target`, with the same bits as a call
    /// among ranks on one host: for custom backends, and for the expected values of tests.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn fold<T: Element>(self, target: &mut [T], sources: &[&[T]]) {
        let sources: Vec<&[u8]> = sources.iter().map(|other| as_bytes(other)).collect();
        let ranks = u32::try_from(sources.len() + 1).unwrap_or(u32::MAX);
        fold((T::DATA_TYPE, self), as_bytes_mut(target), &sources, Some(ranks));
    }
}

/// The bytes of a slice of elements.
pub(crate) fn as_bytes<T: NoUninit>(elements: &[T]) -> &[u8] {
    cast_slice(elements)
}

/// As [`as_bytes`], mutable.
pub(crate) fn as_bytes_mut<T: NoUninit + AnyBitPattern>(elements: &mut [T]) -> &mut [u8] {
    cast_slice_mut(elements)
}
