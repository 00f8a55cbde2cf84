//! A CUDA device with kernels of the program, which NVRTC compiles when it runs: nothing of CUDA is needed to build.
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

/// How many workers or replicas share one device: for tests of the split on a machine that has one.
const SHARE: &str = "RANKRUN_TEST_SHARE_DEVICE";

/// Threads of a block. A kernel takes at most 255 of the 65,536 registers of a block for each of its threads, so that any fits.
const BLOCK: u32 = 256;

/// Why a program cannot compute on a CUDA device.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// There is none, or no driver.
    #[error(transparent)]
    Missing(#[from] CudaMissing),
    /// No compiler for kernels.
    #[error("{}there is no NVRTC, which compiles the kernels for the GPU", Details(self))]
    NoCompiler,
    /// The program is to compute on CUDA, and the launcher gives the worker another device.
    #[error(
        "{}this worker is to compute on a CUDA device, and the launcher gives it `{device}`",
        Details(self)
    )]
    NotGiven {
        /// The worker's device.
        device: Device,
    },
    /// The compiler refuses the kernels: its words.
    #[error("NVRTC cannot compile the kernels: {0}")]
    Compile(String),
    /// The driver refuses a call.
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
    /// Whether this machine just is not made for it, so that a program to which no GPU was given may take the CPU instead.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::Missing(_) | Self::NoCompiler)
    }
}

/// A device, with a stream of the program and its kernels.
pub struct Gpu {
    /// On which everything is put.
    pub stream: Arc<CudaStream>,
    kernels: Arc<CudaModule>,
}

impl Gpu {
    /// Opens one of the devices that this process sees, makes it current in this thread, and compiles the kernels.
    ///
    /// # Errors
    /// There is no such device or no compiler, or the kernels are wrong.
    pub fn open(ordinal: usize, kernels: &str) -> Result<Self, GpuError> {
        let context = cuda_context(ordinal)?;
        if !has_compiler() {
            return Err(GpuError::NoCompiler);
        }
        let kernels = context.load_module(nvrtc::compile_ptx(kernels)?)?;
        Ok(Self { stream: context.new_stream()?, kernels })
    }

    /// A kernel.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn kernel(&self, name: &str) -> Result<CudaFunction, GpuError> {
        Ok(self.kernels.load_function(name)?)
    }

    /// Copies numbers to the device, and waits until it has them: a copy may still be under way when it was put on the stream, and
    /// memory of the host must stay until then ("API synchronization behavior" in the reference of CUDA's driver API).
    ///
    /// # Errors
    /// The device has failed.
    ///
    /// # Panics
    /// There are more numbers than places.
    pub fn put<T: DeviceRepr>(&self, numbers: &[T], to: &mut impl DevicePtrMut<T>) -> Result<(), GpuError> {
        self.stream.memcpy_htod(numbers, to)?;
        Ok(self.stream.synchronize()?)
    }

    /// As [`put`](Self::put), to memory of its own.
    ///
    /// # Errors
    /// The device has failed, or has no memory left.
    pub fn put_new<T: DeviceRepr>(&self, numbers: &[T]) -> Result<CudaSlice<T>, GpuError> {
        let copied = self.stream.clone_htod(numbers)?;
        self.stream.synchronize()?;
        Ok(copied)
    }

    /// Copies numbers from the device when all is done that is on the stream, and waits until they are there.
    ///
    /// # Errors
    /// The device has failed.
    ///
    /// # Panics
    /// There are more numbers than places.
    pub fn get<T: DeviceRepr>(&self, from: &impl DevicePtr<T>, numbers: &mut [T]) -> Result<(), GpuError> {
        self.stream.memcpy_dtoh(from, numbers)?;
        Ok(self.stream.synchronize()?)
    }

    /// As [`get`](Self::get), all that there are.
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

/// Whether kernels can be compiled here.
#[must_use]
pub fn has_compiler() -> bool {
    // SAFETY: it opens NVRTC, which may be loaded at any time.
    unsafe { nvrtc::sys::is_culib_present() }
}

/// So many threads, and some more.
#[must_use]
pub fn threads(count: usize) -> LaunchConfig {
    let blocks = u32::try_from(count).unwrap_or(u32::MAX).div_ceil(BLOCK);
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (BLOCK, 1, 1), shared_mem_bytes: 0 }
}

/// How many workers or replicas are to share one device: a switch for tests, which is no option.
#[must_use]
pub fn sharing() -> Option<NonZero<usize>> {
    #[expect(clippy::disallowed_methods, reason = "a switch for tests, which is no option of a program")]
    std::env::var(SHARE).ok()?.parse().ok()
}

/// The CUDA device of this worker, of those that it sees ([`WorkerContext::cuda_ordinal`]); the first one where tests let all workers
/// share it.
#[must_use]
pub fn ordinal(context: &WorkerContext) -> Option<usize> {
    if sharing().is_some() { Some(0) } else { context.cuda_ordinal() }
}

/// Whether the launcher gives this worker a CUDA device: then a program that cannot compute on it fails, and takes no other.
#[must_use]
pub fn is_given(context: &WorkerContext) -> bool {
    matches!(context.device(), Some(Device::Cuda(_)))
}
