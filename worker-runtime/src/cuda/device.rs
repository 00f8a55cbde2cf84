//! An open CUDA device: memory that the program owns, and copies between host and device. It is a thin layer over
//! cudarc, which owns contexts, streams and slices.
#![expect(unsafe_code, reason = "looks whether NVRTC can be opened")]

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, DriverError, ValidAsZeroBits,
};
use cudarc::nvrtc::{self, CompileError};

use super::{CudaMissing, Kernels, cuda_context};
use crate::data_parallel::DeviceError;
use crate::diagnostic::{Details, Diagnostic};
use crate::process_group::{DeviceMemory, Stream};

/// A number in device memory: every bit pattern is a value, also one that a kernel wrote by mistake.
pub trait DeviceNumber: DeviceRepr + ValidAsZeroBits + bytemuck::Pod {}

impl<T: DeviceRepr + ValidAsZeroBits + bytemuck::Pod> DeviceNumber for T {}

/// Why a program cannot compute on a CUDA device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no usable device.
    #[error(transparent)]
    Missing(#[from] CudaMissing),
    /// The requested devices cannot hold replicas of one model.
    #[error(transparent)]
    Devices(#[from] DeviceError),
    /// NVRTC was not found.
    #[error("{}NVRTC, which compiles the GPU kernels, cannot be loaded", Details(self))]
    NoCompiler,
    /// NVRTC refuses the kernels; its log.
    #[error("NVRTC cannot compile the kernels: {0}")]
    Compile(String),
    /// Memory for nothing, which some drivers refuse.
    #[error("cannot allocate device memory for 0 numbers")]
    NoNumbers,
    /// The lengths of a copy differ.
    #[error("cannot copy {from} numbers to memory for {to}")]
    Lengths {
        /// Length of the source, in numbers.
        from: usize,
        /// Length of the target, in numbers.
        to: usize,
    },
    /// An argument of a kernel is in the memory of another device.
    #[error("the kernel is on `cuda:{kernel}`, and its argument on `cuda:{argument}`")]
    OtherDevice {
        /// Ordinal of the kernel's device.
        kernel: usize,
        /// Ordinal of the argument's device.
        argument: usize,
    },
    /// A call of the driver failed: this one, or an earlier one whose work ran later.
    #[error("the CUDA device failed")]
    Device(#[from] DriverError),
}

impl Diagnostic for CudaError {
    fn hint(&self) -> Option<&str> {
        match self {
            Self::NoCompiler => Some(
                "install CUDA's toolkit, or name the folder of its `libnvrtc.so` in LD_LIBRARY_PATH; `rankrun --device-type cpu` \
                 takes the CPUs",
            ),
            _ => None,
        }
    }
}

impl From<CompileError> for CudaError {
    fn from(error: CompileError) -> Self {
        Self::Compile(match error {
            CompileError::CompileError { log, .. } => format!("\n{}", log.to_string_lossy().trim_end()),
            error => error.to_string(),
        })
    }
}

impl CudaError {
    /// Whether this machine merely lacks a GPU or the compiler for it, so that a program without an assigned GPU
    /// may use the CPU.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::Missing(_) | Self::NoCompiler)
    }
}

/// An open CUDA device with a stream of its own. All its work runs in the order of this stream.
///
/// Lengths are in numbers, not in bytes. A [`CudaSlice`] is memory that is freed with its value;
/// `slice(..)` and `slice_mut(..)` borrow a part of one.
///
/// ```no_run
/// use rankrun_worker::cuda::{CudaDevice, CudaError};
///
/// fn double(numbers: &[f32]) -> Result<Vec<f32>, CudaError> {
///     let device = CudaDevice::open(0)?;
///     let mut both = device.zeros::<f32>(2 * numbers.len())?;
///     let (mut first, mut second) = both.split_at_mut(numbers.len());
///     device.write(numbers, &mut first)?;
///     device.write(numbers, &mut second)?;
///     device.read_all(&both)
/// }
/// ```
#[derive(Clone)]
pub struct CudaDevice {
    stream: Arc<CudaStream>,
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuda:{}", self.ordinal())
    }
}

impl CudaDevice {
    /// Opens one of the visible devices, counted from 0, and makes it current in this thread.
    ///
    /// # Errors
    /// There is no such device.
    pub fn open(ordinal: usize) -> Result<Self, CudaError> {
        Ok(Self { stream: cuda_context(ordinal)?.new_stream()? })
    }

    /// Its index among the visible devices.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.stream.context().ordinal()
    }

    /// Compiles kernels in CUDA C++ with NVRTC, which is opened at run time. See [`Kernels`].
    ///
    /// # Errors
    /// NVRTC is missing or refuses the source; or the driver refuses the result.
    pub fn compile(&self, source: &str) -> Result<Kernels, CudaError> {
        if !has_compiler() {
            return Err(CudaError::NoCompiler);
        }
        let module = self.stream.context().load_module(nvrtc::compile_ptx(source)?)?;
        Ok(Kernels::new(module, Arc::clone(&self.stream)))
    }

    /// Allocates zeros.
    ///
    /// # Errors
    /// `length` is 0, the device has no memory left, or it failed.
    pub fn zeros<T: DeviceNumber>(&self, length: usize) -> Result<CudaSlice<T>, CudaError> {
        check_some(length)?;
        Ok(self.stream.alloc_zeros(length)?)
    }

    /// Copies numbers to new memory of the device, and waits for the end of the copy.
    ///
    /// # Errors
    /// There are no numbers, the device has no memory left, or it failed.
    pub fn upload<T: DeviceNumber>(&self, numbers: &[T]) -> Result<CudaSlice<T>, CudaError> {
        check_some(numbers.len())?;
        let copied = self.stream.clone_htod(numbers)?;
        self.synchronize()?;
        Ok(copied)
    }

    /// Copies numbers to memory of the same length, and waits for the end of the copy.
    ///
    /// # Errors
    /// The lengths differ, or the device failed.
    pub fn write<T: DeviceNumber>(
        &self,
        numbers: &[T],
        to: &mut impl DevicePtrMut<T>,
    ) -> Result<(), CudaError> {
        check_lengths(numbers.len(), to.len())?;
        if !numbers.is_empty() {
            self.stream.memcpy_htod(numbers, to)?;
        }
        // Host memory must stay until then: "API synchronization behavior" in the reference of CUDA's driver API.
        self.synchronize()
    }

    /// Waits for the work so far, and copies numbers to host memory of the same length.
    ///
    /// # Errors
    /// The lengths differ, or the device failed.
    pub fn read<T: DeviceNumber>(
        &self,
        from: &impl DevicePtr<T>,
        numbers: &mut [T],
    ) -> Result<(), CudaError> {
        check_lengths(from.len(), numbers.len())?;
        if !numbers.is_empty() {
            self.stream.memcpy_dtoh(from, numbers)?;
        }
        self.synchronize()
    }

    /// As [`read`](Self::read), to a new vector.
    ///
    /// # Errors
    /// The device failed.
    pub fn read_all<T: DeviceNumber>(&self, from: &impl DevicePtr<T>) -> Result<Vec<T>, CudaError> {
        let mut numbers = vec![T::zeroed(); from.len()];
        self.read(from, &mut numbers)?;
        Ok(numbers)
    }

    /// Waits on the host until all work so far is done.
    ///
    /// # Errors
    /// The device failed, in this or in earlier work.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        Ok(self.stream.synchronize()?)
    }

    /// The stream, for calls of a group on NCCL.
    #[must_use]
    pub fn raw_stream(&self) -> Stream {
        Stream(self.stream.cu_stream().cast::<c_void>())
    }

    /// The memory of a slice, for calls of a group on NCCL: address and bytes, without the lifetime.
    pub fn raw_memory<T>(&self, slice: &mut impl DevicePtrMut<T>) -> DeviceMemory {
        let bytes = slice.num_bytes();
        let (address, _sync) = slice.device_ptr_mut(&self.stream);
        DeviceMemory { address, bytes }
    }
}

/// Whether NVRTC can be loaded.
pub(super) fn has_compiler() -> bool {
    // SAFETY: it opens NVRTC, which may be loaded at any time.
    unsafe { nvrtc::sys::is_culib_present() }
}

fn check_some(length: usize) -> Result<(), CudaError> {
    (length > 0).then_some(()).ok_or(CudaError::NoNumbers)
}

fn check_lengths(from: usize, to: usize) -> Result<(), CudaError> {
    (from == to).then_some(()).ok_or(CudaError::Lengths { from, to })
}
