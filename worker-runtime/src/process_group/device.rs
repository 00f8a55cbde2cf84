//! Memory and streams of a device, as whoever owns them hands them over: plain numbers, so that every framework can.

use std::ffi::c_void;

use super::collective::{Collective, Length};

/// Memory of the current device: a framework's buffer, or a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Where it begins: CUDA's `CUdeviceptr`.
    pub address: u64,
    /// How long it is.
    pub bytes: usize,
}

#[cfg(feature = "nccl")]
impl DeviceMemory {
    /// The `length` bytes from `start` on.
    pub(crate) fn part(self, start: usize, length: usize) -> Self {
        Self { address: self.address + start as u64, bytes: length }
    }
}

impl Length for DeviceMemory {
    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A stream of the current device: CUDA's `cudaStream_t` or `CUstream`, which are the same; null is the default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream(pub *mut c_void);

// SAFETY: a stream is a handle of the driver, whose calls may come from any thread.
#[expect(unsafe_code, reason = "a raw handle that any thread may use")]
unsafe impl Send for Stream {}

/// A call on memory of a device.
pub type DeviceCollective<'a> = Collective<'a, DeviceMemory, DeviceMemory>;
