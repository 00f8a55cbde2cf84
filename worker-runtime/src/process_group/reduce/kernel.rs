//! The pass over memory: a block of elements of every source at a time.
//!
//! A block is computed in registers and written once all sources were read, so the target may be one of them, and the compiler
//! needs no proof that they are apart to use vectors.

#[cfg(target_arch = "x86_64")]
use super::number::V3;
use super::number::{LANES, Level, Number, Operator, Portable};

/// What is to be reduced; see [`reduce_raw`](super::reduce_raw).
pub(super) struct Work<'a> {
    pub(super) target: *mut u8,
    pub(super) sources: &'a [*const u8],
    pub(super) bytes: usize,
    /// By what the total is divided in the end.
    pub(super) divisor: Option<u32>,
}

/// Reduces with the best version for this processor.
///
/// # Safety
/// As [`reduce_raw`](super::reduce_raw).
#[expect(
    unsafe_code,
    reason = "passes the caller's promise on, and calls what was compiled for a newer processor"
)]
pub(super) unsafe fn reduce<T: Number, O: Operator>(work: &Work<'_>) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
        // SAFETY: the processor can do it; the rest is as the caller promises.
        return unsafe { reduce_v3::<T, O>(work) };
    }
    // SAFETY: as the caller promises.
    unsafe { reduce_plain::<T, O>(work) }
}

/// # Safety
/// As [`reduce`], and the processor has AVX2 and F16C, as every x86-64-v3 has.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
#[expect(unsafe_code, reason = "passes the caller's promise on")]
unsafe fn reduce_v3<T: Number, O: Operator>(work: &Work<'_>) {
    // SAFETY: as the caller promises.
    unsafe { by_count::<T, O, V3>(work) }
}

/// # Safety
/// As [`reduce`].
#[expect(unsafe_code, reason = "passes the caller's promise on")]
pub(super) unsafe fn reduce_plain<T: Number, O: Operator>(work: &Work<'_>) {
    // SAFETY: as the caller promises.
    unsafe { by_count::<T, O, Portable>(work) }
}

/// Has a loop of its own for the most usual numbers of ranks on a host, which are faster in cache. Others are as fast as memory,
/// and each loop is some 5 kB for each type and reduction.
///
/// # Safety
/// As [`reduce`], and the processor has what `L` uses.
#[inline(always)]
#[expect(unsafe_code, reason = "passes the caller's promise on")]
unsafe fn by_count<T: Number, O: Operator, L: Level>(work: &Work<'_>) {
    // SAFETY: as the caller promises.
    unsafe {
        match *work.sources {
            [] => return,
            [a, b] => whole_blocks::<T, O, L>(work, &[a, b]),
            [a, b, c, d] => whole_blocks::<T, O, L>(work, &[a, b, c, d]),
            [a, b, c, d, e, f, g, h] => whole_blocks::<T, O, L>(work, &[a, b, c, d, e, f, g, h]),
            ref any => whole_blocks::<T, O, L>(work, any),
        }
        rest::<T, O, L>(work);
    }
}

/// All but what is no whole block at the end.
///
/// # Safety
/// As [`by_count`]. There is a source.
#[inline(always)]
#[expect(unsafe_code, reason = "reads and writes memory of which there must be no reference")]
unsafe fn whole_blocks<T: Number, O: Operator, L: Level>(work: &Work<'_>, sources: &[*const u8]) {
    let length = size_of::<[T; LANES]>();
    let end = work.bytes - work.bytes % length;
    let mut at = 0;
    while at < end {
        // SAFETY: a whole block lies at `at` of every source and of the target, as the caller promises; bytes are elements (`Pod`).
        let read = |source: *const u8| unsafe { source.add(at).cast::<[T; LANES]>().read_unaligned() };
        let block = block::<T, O, L>(sources, read, work.divisor);
        // SAFETY: as above.
        unsafe { work.target.add(at).cast::<[T; LANES]>().write_unaligned(block) };
        at += length;
    }
}

/// What is no whole block: one that is filled up with zeros.
///
/// # Safety
/// As [`by_count`]. There is a source.
#[inline(always)]
#[expect(unsafe_code, reason = "reads and writes memory of which there must be no reference")]
unsafe fn rest<T: Number, O: Operator, L: Level>(work: &Work<'_>) {
    let bytes = work.bytes % size_of::<[T; LANES]>();
    let at = work.bytes - bytes;
    if bytes == 0 {
        return;
    }
    let read = |source: *const u8| {
        let mut block = [T::zeroed(); LANES];
        // SAFETY: `bytes` bytes, fewer than a block, lie at `at` of every source, as the caller promises.
        unsafe { block.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(source.add(at), bytes) };
        block
    };
    let block = block::<T, O, L>(work.sources, read, work.divisor);
    // SAFETY: as above, of the target.
    unsafe { work.target.add(at).copy_from_nonoverlapping(block.as_ptr().cast(), bytes) };
}

/// One block of the result; `read` gives that of a source.
#[inline(always)]
fn block<T: Number, O: Operator, L: Level>(
    sources: &[*const u8],
    read: impl Fn(*const u8) -> [T; LANES],
    divisor: Option<u32>,
) -> [T; LANES] {
    let (first, others) = sources.split_first().expect("there is a source");
    let mut total = T::widen::<L>(read(*first));
    for other in others {
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
