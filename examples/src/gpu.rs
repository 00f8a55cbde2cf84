//! A CUDA device with kernels that NVRTC compiles at run time: no CUDA is needed to build.
#![expect(unsafe_code, reason = "looks whether a library can be opened")]

use std::num::NonZero;
use std::sync::Arc;

use cudarc::driver::{
    CudaFunction, CudaModule, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, DriverError,
    LaunchConfig,
};
use cudarc::nvrtc::{self, CompileError};
use rankrun_worker::cuda::{CudaMissing, cuda_context};
use rankrun_worker::diagnostic::{Details, Diagnostic};
use rankrun_worker::{Device, WorkerContext};

/// Number of workers or replicas that share one device, for tests on a machine with one.
const SHARE: &str = "RANKRUN_TEST_SHARE_DEVICE";

/// Threads of a block. A kernel takes at most 255 registers per thread of the 65,536 of
/// a block, so any kernel fits.
const BLOCK: u32 = 256;

/// Why a program cannot compute on a CUDA device.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// There is no usable device.
    #[error(transparent)]
    Missing(#[from] CudaMissing),
    /// NVRTC was not found.
    #[error("{}NVRTC, which compiles the GPU kernels, cannot be loaded", Details(self))]
    NoCompiler,
    /// The launcher gave the worker a device of another kind.
    #[error(
        "{}this worker is to compute on a CUDA device, and the launcher gives it `{device}`",
        Details(self)
    )]
    NotGiven {
        /// Device of the worker.
        device: Device,
    },
    /// The compiler's error message.
    #[error("NVRTC cannot compile the kernels: {0}")]
    Compile(String),
    /// A call of the driver failed.
    #[error("the CUDA device failed")]
    Device(#[from] DriverError),
}

impl Diagnostic for GpuError {
    fn hint(&self) -> Option<&str> {
        match self {
            Self::NoCompiler => Some(
                "install CUDA's toolkit, or name the folder of its `libnvrtc.so` in LD_LIBRARY_PATH; `rankrun --device-type cpu` \
                 takes the CPUs",
            ),
            Self::NotGiven { .. } => Some(
                "start it with `rankrun --device-type cuda`, or let the program compute on the device that it has",
            ),
            _ => None,
        }
    }
}

impl From<CompileError> for GpuError {
    fn from(error: CompileError) -> Self {
        Self::Compile(match error {
            CompileError::CompileError { log, .. } => format!("\n{}", log.to_string_lossy().trim_end()),
            error => error.to_string(),
        })
    }
}

impl GpuError {
    /// Whether this machine merely lacks a GPU, so that a program without an assigned one may use the CPU.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::Missing(_) | Self::NoCompiler)
    }
}

/// A device with a stream and the compiled kernels.
pub struct Gpu {
    /// The stream of all work.
    pub stream: Arc<CudaStream>,
    kernels: Arc<CudaModule>,
}

impl Gpu {
    /// Opens one of the visible devices, makes it current in this thread, and compiles the kernels.
    ///
    /// # Errors
    /// There is no such device or no compiler, or the kernels do not compile.
    pub fn open(ordinal: usize, kernels: &str) -> Result<Self, GpuError> {
        let context = cuda_context(ordinal)?;
        if !has_compiler() {
            return Err(GpuError::NoCompiler);
        }
        let kernels = context.load_module(nvrtc::compile_ptx(kernels)?)?;
        Ok(Self { stream: context.new_stream()?, kernels })
    }

    /// Looks up a kernel by its name.
    ///
    /// # Errors
    /// There is no such kernel.
    pub fn kernel(&self, name: &str) -> Result<CudaFunction, GpuError> {
        Ok(self.kernels.load_function(name)?)
    }

    /// Copies numbers to the device and waits for the end of the copy: host memory must stay until then ("API
    /// synchronization behavior" in the reference of CUDA's driver API).
    ///
    /// # Errors
    /// The device has failed.
    ///
    /// # Panics
    /// `to` is shorter than `numbers`.
    pub fn put<T: DeviceRepr>(&self, numbers: &[T], to: &mut impl DevicePtrMut<T>) -> Result<(), GpuError> {
        self.stream.memcpy_htod(numbers, to)?;
        Ok(self.stream.synchronize()?)
    }

    /// As [`put`](Self::put), into new memory.
    ///
    /// # Errors
    /// The device has failed, or has no memory left.
    pub fn put_new<T: DeviceRepr>(&self, numbers: &[T]) -> Result<CudaSlice<T>, GpuError> {
        let copied = self.stream.clone_htod(numbers)?;
        self.stream.synchronize()?;
        Ok(copied)
    }

    /// Waits for the stream, copies numbers from the device, and waits for the end of the copy.
    ///
    /// # Errors
    /// The device has failed.
    ///
    /// # Panics
    /// `from` is longer than `numbers`.
    pub fn get<T: DeviceRepr>(&self, from: &impl DevicePtr<T>, numbers: &mut [T]) -> Result<(), GpuError> {
        self.stream.memcpy_dtoh(from, numbers)?;
        Ok(self.stream.synchronize()?)
    }

    /// As [`get`](Self::get), into a new vector.
    ///
    /// # Errors
    /// The device has failed.
    pub fn get_all<T: DeviceRepr + Default + Clone>(
        &self,
        from: &impl DevicePtr<T>,
    ) -> Result<Vec<T>, GpuError> {
        let mut numbers = vec![T::default(); from.len()];
        self.get(from, &mut numbers)?;
        Ok(numbers)
    }
}

/// Whether NVRTC can be loaded.
#[must_use]
pub fn has_compiler() -> bool {
    // SAFETY: it opens NVRTC, which may be loaded at any time.
    unsafe { nvrtc::sys::is_culib_present() }
}

/// A launch with at least this many threads.
#[must_use]
pub fn threads(count: usize) -> LaunchConfig {
    let blocks = u32::try_from(count).unwrap_or(u32::MAX).div_ceil(BLOCK);
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (BLOCK, 1, 1), shared_mem_bytes: 0 }
}

/// The value of the test switch for sharing a device.
#[must_use]
pub fn sharing() -> Option<NonZero<usize>> {
    #[expect(clippy::disallowed_methods, reason = "a switch for tests, not an option of the program")]
    std::env::var(SHARE).ok()?.parse().ok()
}

/// The CUDA device of this worker ([`WorkerContext::cuda_ordinal`]); the first one if a
/// test lets all workers share it.
#[must_use]
pub fn ordinal(context: &WorkerContext) -> Option<usize> {
    if sharing().is_some() { Some(0) } else { context.cuda_ordinal() }
}

/// Whether the launcher assigned a CUDA device: a program that cannot use it must fail.
#[must_use]
pub fn is_given(context: &WorkerContext) -> bool {
    matches!(context.device(), Some(Device::Cuda(_)))
}
