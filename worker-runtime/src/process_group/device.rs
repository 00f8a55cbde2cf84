//! Device memory and streams as plain numbers, so that every framework can pass its own.

use std::ffi::c_void;

use super::collective::{Collective, Length};

/// Memory of the current device: a buffer of a framework, or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Start address: CUDA's `CUdeviceptr`.
    pub address: u64,
    /// Length in bytes.
    pub bytes: usize,
}

#[cfg(feature = "nccl")]
impl DeviceMemory {
    /// The `length` bytes that begin at `start`.
    pub(crate) fn part(self, start: usize, length: usize) -> Self {
        Self { address: self.address + start as u64, bytes: length }
    }
}

impl Length for DeviceMemory {
    fn byte_len(&self) -> usize {
        self.bytes
    }
}

/// A stream of the current device: CUDA's `cudaStream_t` or `CUstream`, which are the same
/// type. Null is the default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream(pub *mut c_void);

// SAFETY: a stream is a handle of the driver, and any thread may pass it to the driver.
#[expect(unsafe_code, reason = "a raw handle that any thread may use")]
unsafe impl Send for Stream {}

/// A call on memory of the current device.
pub type DeviceCollective<'a> = Collective<'a, DeviceMemory, DeviceMemory>;
