//! Copies and reductions between memory of this process and memory that ranks share.

use std::ops::Range;

use crate::process_group::element::{DataType, Reduction};
use crate::process_group::reduce;

/// Memory of a call of this rank, which others may read meanwhile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    address: *mut u8,
    pub(crate) bytes: usize,
}

impl Span {
    /// Memory that is only read.
    pub(crate) fn of(memory: &[u8]) -> Self {
        Self { address: memory.as_ptr().cast_mut(), bytes: memory.len() }
    }

    /// Memory that is read and written.
    pub(crate) fn of_mut(memory: &mut [u8]) -> Self {
        Self { address: memory.as_mut_ptr(), bytes: memory.len() }
    }

    /// Where this part of it begins.
    pub(crate) fn at(self, range: &Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.bytes, "within the memory of the call");
        self.address.wrapping_add(range.start)
    }
}

/// Copies bytes.
///
/// # Safety
/// `from` can be read and `to` written for `bytes` bytes, they do not overlap, and nobody writes to either meanwhile.
#[expect(unsafe_code, reason = "the caller vouches for the memory")]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: as the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
}

/// Makes the `bytes` bytes at `to` the reduction of those at `sources`, which are all ranks in rank order.
///
/// # Safety
/// The sources can be read and `to` written for `bytes` bytes; nobody else writes to either meanwhile; `to` is one of the sources
/// exactly, or overlaps none.
#[expect(unsafe_code, reason = "the caller vouches for the memory")]
pub(crate) unsafe fn fold(kind: (DataType, Reduction), to: *mut u8, sources: &[*const u8], bytes: usize) {
    let mut block = [0; 4096];
    for start in (0..bytes).step_by(block.len()) {
        let length = block.len().min(bytes - start);
        // SAFETY: within the sources.
        let slice = |source: &*const u8| unsafe { std::slice::from_raw_parts(source.add(start), length) };
        block[..length].copy_from_slice(slice(&sources[0]));
        let others: Vec<&[u8]> = sources[1..].iter().map(slice).collect();
        reduce::fold(kind, &mut block[..length], &others, u32::try_from(sources.len()).ok());
        // SAFETY: within the target.
        unsafe { copy(block.as_ptr(), to.add(start), length) };
    }
}
