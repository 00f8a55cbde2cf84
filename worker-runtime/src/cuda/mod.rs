//! CUDA devices: whether there are any, and the only way to a context on one. Nothing here panics without CUDA.

mod driver;
#[cfg(feature = "nccl")]
mod work;

#[cfg(feature = "nccl")]
pub(crate) use driver::Driver;
pub(crate) use driver::driver;
pub use driver::{CudaMissing, Tried};
#[cfg(feature = "nccl")]
pub(crate) use work::{Event, OwnStream, Query, Scratch};

/// Whether this process can use a CUDA device: the driver's library is there, starts, and shows one.
///
/// It is found out once, by initialising the driver: set `CUDA_VISIBLE_DEVICES` before.
///
/// # Errors
/// Which of these is not so, where it was looked, and the loader's or the driver's own words.
pub fn cuda_available() -> Result<(), CudaMissing> {
    let driver = driver()?;
    match driver.device_count()? {
        0 => Err(CudaMissing::NoDevice { path: driver.path().to_owned() }),
        _ => Ok(()),
    }
}

/// How many CUDA devices this process sees.
///
/// # Errors
/// There is no CUDA or no device at all ([`cuda_available`]).
pub fn cuda_device_count() -> Result<usize, CudaMissing> {
    cuda_available()?;
    driver()?.device_count()
}

/// The primary context of a device, made current in this thread.
///
/// # Errors
/// There is no CUDA or no device at all ([`cuda_available`]), or not this one.
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
    // The number of devices is known, so that cudarc's own error for one too many is not needed.
    let devices = driver()?.device_count()?;
    if ordinal >= devices {
        return Err(CudaMissing::NoSuchDevice { ordinal, devices });
    }
    CudaContext::new(ordinal).map_err(|error| CudaMissing::Refused {
        function: "cuDevicePrimaryCtxRetain",
        code: error.0 as i32,
        words: error.to_string(),
        path,
    })
}
