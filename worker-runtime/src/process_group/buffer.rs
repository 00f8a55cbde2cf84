//! Buffers for collectives: a slice to the program, memory that other ranks can read
//! without a copy to the group.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::element::Element;

/// Zeroed bytes, aligned to 64. They keep their address until this value is dropped.
pub struct Memory {
    address: NonNull<u8>,
    bytes: usize,
    /// Frees the bytes when it is dropped.
    _owner: Box<dyn Send + Sync>,
}

// SAFETY: `Memory` is the only way of this process to the bytes, as `Box<[u8]>` would be; its owner is `Send` and `Sync`.
#[expect(unsafe_code, reason = "a raw pointer to memory that this value owns")]
unsafe impl Send for Memory {}
// SAFETY: as above; shared access only reads.
#[expect(unsafe_code, reason = "a raw pointer to memory that this value owns")]
unsafe impl Sync for Memory {}

impl Memory {
    /// Wraps foreign memory; dropping `owner` frees it.
    ///
    /// # Safety
    /// `bytes` bytes from `address` are initialised and aligned to 64. Until `owner` is dropped, no other
    /// code of this process accesses them and no other process writes them.
    #[expect(unsafe_code, reason = "the caller vouches for the memory")]
    pub unsafe fn from_raw_parts(address: NonNull<u8>, bytes: usize, owner: Box<dyn Send + Sync>) -> Self {
        Self { address, bytes, _owner: owner }
    }

    /// Allocates memory that only this process sees.
    #[must_use]
    pub fn on_heap(bytes: usize) -> Self {
        #[derive(Clone, Copy)]
        #[repr(align(64))]
        struct Line(#[expect(dead_code, reason = "only its size and alignment matter")] [u8; 64]);
        let lines = vec![Line([0; 64]); bytes.div_ceil(64)].into_boxed_slice();
        // One pointer for both: using the box again would invalidate every other pointer to its memory.
        let lines = NonNull::from(Box::leak(lines));
        Self { address: lines.cast(), bytes, _owner: Box::new(SendPointer(lines)) }
    }
}

/// Frees the allocation that `Memory::on_heap` leaked.
struct SendPointer<T: ?Sized>(NonNull<T>);

// SAFETY: the pointer came from a box of plain bytes and is used once, to drop it.
#[expect(unsafe_code, reason = "a raw pointer to memory that this value owns")]
unsafe impl<T: ?Sized> Send for SendPointer<T> {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "a raw pointer to memory that this value owns")]
unsafe impl<T: ?Sized> Sync for SendPointer<T> {}

impl<T: ?Sized> Drop for SendPointer<T> {
    fn drop(&mut self) {
        // SAFETY: it came from `Box::leak` and is freed only here; `Memory`, the only user, is being dropped.
        #[expect(unsafe_code, reason = "frees what was leaked")]
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// A slice of elements in memory that its group transfers with the fewest copies; see
/// [`Group::buffer`](super::Group::buffer).
pub struct Buffer<T> {
    memory: Memory,
    elements: usize,
    _of: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    /// `elements` zeros; the memory is at least that long.
    pub(crate) fn new(memory: Memory, elements: usize) -> Self {
        assert!(elements * size_of::<T>() <= memory.bytes, "the memory was made for these elements");
        Self { memory, elements, _of: PhantomData }
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the bytes are initialised, aligned to 64, long enough (checked by `new`) and ours; every bit pattern is
        // an element (`Pod`).
        #[expect(unsafe_code, reason = "a slice of memory that this value owns")]
        unsafe {
            std::slice::from_raw_parts(self.memory.address.cast().as_ptr(), self.elements)
        }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and we are borrowed exclusively.
        #[expect(unsafe_code, reason = "a slice of memory that this value owns")]
        unsafe {
            std::slice::from_raw_parts_mut(self.memory.address.cast().as_ptr(), self.elements)
        }
    }
}

impl<T: Element> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer of {} {}", self.elements, T::DATA_TYPE)
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes)
    }
}
