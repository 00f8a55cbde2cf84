//! CUDA devices: detection, and with the feature `cuda` memory and kernels for programs. Libraries are opened at run time;
//! without CUDA each call is an error, never a panic.
//!
//! [`worker_devices`] chooses devices, [`CudaDevice`] opens one, [`Kernels`] are what it computes with. Slices are cudarc's own.

#[cfg(feature = "cuda")]
mod choice;
#[cfg(feature = "cuda")]
mod device;
mod driver;
#[cfg(feature = "cuda")]
mod kernel;
#[cfg(feature = "nccl")]
mod work;

#[cfg(feature = "cuda")]
pub use choice::worker_devices;
#[cfg(feature = "cuda")]
pub use cudarc::driver::{CudaSlice, CudaView, CudaViewMut};
#[cfg(feature = "cuda")]
pub use device::{CudaDevice, CudaError, DeviceNumber};
#[cfg(feature = "nccl")]
pub(crate) use driver::Driver;
pub(crate) use driver::driver;
pub use driver::{CudaMissing, SearchedPlace};
#[cfg(feature = "cuda")]
pub use kernel::{Kernel, Kernels, Parameters, Slice, SliceMut};
#[cfg(feature = "nccl")]
pub(crate) use work::{Event, OwnStream, Query, Scratch};

/// Whether this process can use a CUDA device: the driver's library loads, initialises, and shows one.
///
/// The driver is initialised once: set `CUDA_VISIBLE_DEVICES` before.
///
/// # Errors
/// The failed condition with the searched places, and the message of the loader or the driver.
pub fn cuda_available() -> Result<(), CudaMissing> {
    let driver = driver()?;
    match driver.device_count()? {
        0 => Err(CudaMissing::NoDevice { path: driver.path().to_owned() }),
        _ => Ok(()),
    }
}

/// Number of CUDA devices that this process sees.
///
/// # Errors
/// There is no usable CUDA device ([`cuda_available`]).
pub fn cuda_device_count() -> Result<usize, CudaMissing> {
    cuda_available()?;
    driver()?.device_count()
}

/// The primary context of a device, made current in this thread.
///
/// # Errors
/// There is no usable CUDA device ([`cuda_available`]), or not this one.
#[cfg(feature = "cuda")]
pub fn cuda_context(ordinal: usize) -> Result<std::sync::Arc<cudarc::driver::CudaContext>, CudaMissing> {
    use cudarc::driver::{CudaContext, sys};

    cuda_available()?;
    let path = driver()?.path().to_owned();
    // SAFETY: it opens the driver's library, which is open already.
    #[expect(unsafe_code, reason = "cudarc panics where it does not find the library, so it is asked first")]
    let is_found = unsafe { sys::is_culib_present() };
    if !is_found {
        return Err(CudaMissing::Unnamed { path });
    }
    // Checked here for the clearer error.
    let devices = driver()?.device_count()?;
    if ordinal >= devices {
        return Err(CudaMissing::NoSuchDevice { ordinal, devices });
    }
    CudaContext::new(ordinal).map_err(|error| CudaMissing::Refused {
        function: "cuDevicePrimaryCtxRetain",
        code: error.0 as i32,
        message: error.to_string(),
        path,
    })
}
