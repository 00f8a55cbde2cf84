//! Copies between memory of this process and shared memory.

use std::ops::Range;

/// Memory of a call of this rank. Other ranks may read it during the call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    address: *mut u8,
    pub(crate) bytes: usize,
}

impl Span {
    /// Memory that the call reads.
    pub(crate) fn from_slice(memory: &[u8]) -> Self {
        Self { address: memory.as_ptr().cast_mut(), bytes: memory.len() }
    }

    /// Memory that the call reads and writes.
    pub(crate) fn from_mut_slice(memory: &mut [u8]) -> Self {
        Self { address: memory.as_mut_ptr(), bytes: memory.len() }
    }

    /// Address of the first byte of this part.
    pub(crate) fn ptr_at(self, range: &Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.bytes, "within the memory of the call");
        self.address.wrapping_add(range.start)
    }
}

/// Copies between memory that other processes may access.
///
/// # Safety
/// `from` can be read and `to` written for `bytes` bytes, they do not overlap, and no thread of this process
/// writes to either meanwhile. Another process may write to `from` only after it has given up the call; the
/// copied bytes are then invalid and must not be used. No reference to the bytes is held.
#[expect(unsafe_code, reason = "the caller vouches for the memory")]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: as the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
}
