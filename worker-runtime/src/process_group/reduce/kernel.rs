//! The pass over memory: one block of elements of every source at a time.
//!
//! A block is computed in registers and written after all sources were read. The target may therefore be one
//! of them, and the compiler can vectorise without proof that they are apart.

#[cfg(target_arch = "x86_64")]
use super::number::V3;
use super::number::{LANES, Level, Number, Operator, Portable};

/// The input of a reduction; see [`reduce_raw`](super::reduce_raw).
pub(super) struct ReduceJob<'a> {
    pub(super) target: *mut u8,
    pub(super) sources: &'a [*const u8],
    pub(super) bytes: usize,
    /// The number by which the total is divided.
    pub(super) divisor: Option<u32>,
}

/// Reduces with the fastest version for this processor.
///
/// # Safety
/// As [`reduce_raw`](super::reduce_raw).
#[expect(
    unsafe_code,
    reason = "passes the caller's promise on, and calls what was compiled for a newer processor"
)]
pub(super) unsafe fn reduce<T: Number, O: Operator>(job: &ReduceJob<'_>) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
        // SAFETY: the processor has these features; the rest is the caller's promise.
        return unsafe { reduce_v3::<T, O>(job) };
    }
    // SAFETY: as the caller promises.
    unsafe { reduce_plain::<T, O>(job) }
}

/// # Safety
/// As [`reduce`], and the processor has AVX2 and F16C, as every x86-64-v3 has.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
#[expect(unsafe_code, reason = "passes the caller's promise on")]
unsafe fn reduce_v3<T: Number, O: Operator>(job: &ReduceJob<'_>) {
    // SAFETY: as the caller promises.
    unsafe { reduce_by_source_count::<T, O, V3>(job) }
}

/// # Safety
/// As [`reduce`].
#[expect(unsafe_code, reason = "passes the caller's promise on")]
pub(super) unsafe fn reduce_plain<T: Number, O: Operator>(job: &ReduceJob<'_>) {
    // SAFETY: as the caller promises.
    unsafe { reduce_by_source_count::<T, O, Portable>(job) }
}

/// Has separate loops for the most usual numbers of ranks on a host, which are faster in cache. Other numbers
/// run at the speed of memory; each loop takes some 5 kB for each type and operation.
///
/// # Safety
/// As [`reduce`], and the processor has what `L` uses.
#[inline(always)]
#[expect(unsafe_code, reason = "passes the caller's promise on")]
unsafe fn reduce_by_source_count<T: Number, O: Operator, L: Level>(job: &ReduceJob<'_>) {
    // SAFETY: as the caller promises.
    unsafe {
        match *job.sources {
            [] => return,
            [a, b] => reduce_whole_blocks::<T, O, L>(job, &[a, b]),
            [a, b, c, d] => reduce_whole_blocks::<T, O, L>(job, &[a, b, c, d]),
            [a, b, c, d, e, f, g, h] => reduce_whole_blocks::<T, O, L>(job, &[a, b, c, d, e, f, g, h]),
            ref any => reduce_whole_blocks::<T, O, L>(job, any),
        }
        reduce_remainder::<T, O, L>(job);
    }
}

/// All blocks but an incomplete one at the end.
///
/// # Safety
/// As [`reduce_by_source_count`]. There is a source.
#[inline(always)]
#[expect(unsafe_code, reason = "reads and writes memory of which there must be no reference")]
unsafe fn reduce_whole_blocks<T: Number, O: Operator, L: Level>(job: &ReduceJob<'_>, sources: &[*const u8]) {
    let length = size_of::<[T; LANES]>();
    let end = job.bytes - job.bytes % length;
    let mut at = 0;
    while at < end {
        // SAFETY: a whole block lies at `at` of every source and of the target, as the caller promises; bytes are elements (`Pod`).
        let read = |source: *const u8| unsafe { source.add(at).cast::<[T; LANES]>().read_unaligned() };
        let block = reduce_block::<T, O, L>(sources, read, job.divisor);
        // SAFETY: as above.
        unsafe { job.target.add(at).cast::<[T; LANES]>().write_unaligned(block) };
        at += length;
    }
}

/// The incomplete block at the end, filled up with zeros.
///
/// # Safety
/// As [`reduce_by_source_count`]. There is a source.
#[inline(always)]
#[expect(unsafe_code, reason = "reads and writes memory of which there must be no reference")]
unsafe fn reduce_remainder<T: Number, O: Operator, L: Level>(job: &ReduceJob<'_>) {
    let bytes = job.bytes % size_of::<[T; LANES]>();
    let at = job.bytes - bytes;
    if bytes == 0 {
        return;
    }
    let read = |source: *const u8| {
        let mut block = [T::zeroed(); LANES];
        // SAFETY: `bytes` bytes, fewer than a block, lie at `at` of every source, as the caller promises.
        unsafe { block.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(source.add(at), bytes) };
        block
    };
    let block = reduce_block::<T, O, L>(job.sources, read, job.divisor);
    // SAFETY: as above, of the target.
    unsafe { job.target.add(at).copy_from_nonoverlapping(block.as_ptr().cast(), bytes) };
}

/// One block of the result; `read` returns that of a source.
#[inline(always)]
fn reduce_block<T: Number, O: Operator, L: Level>(
    sources: &[*const u8],
    read: impl Fn(*const u8) -> [T; LANES],
    divisor: Option<u32>,
) -> [T; LANES] {
    let (first, rest) = sources.split_first().expect("there is a source");
    let mut total = T::widen::<L>(read(*first));
    for other in rest {
        let next = T::widen::<L>(read(*other));
        for lane in 0..LANES {
            total[lane] = O::combine(total[lane], next[lane]);
        }
    }
    if let Some(divisor) = divisor {
        total.iter_mut().for_each(|value| *value = T::divided(*value, divisor));
    }
    T::narrow::<L>(total)
}
