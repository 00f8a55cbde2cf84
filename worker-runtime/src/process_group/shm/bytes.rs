//! Copies between memory of this process and memory that ranks share.

use std::ops::Range;

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
/// `from` can be read and `to` written for `bytes` bytes, they do not overlap, and no thread of this process writes to either
/// meanwhile. Another process may write to `from` only where it has given up the call: what was copied then may be of any time, and
/// must not be used. Nothing is assumed of the bytes, and no reference to them is held.
#[expect(unsafe_code, reason = "the caller vouches for the memory")]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: as the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
}
