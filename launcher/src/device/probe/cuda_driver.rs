//! The CUDA driver: the only one who knows its own order of devices.

use crate::device::CudaDevice;

/// Its devices, in the order of its ordinals under this process's own environment.
///
/// # Errors
/// Its words, or the loader's where there is no driver.
pub fn order() -> Result<Vec<CudaDevice>, String> {
    Err("there is no CUDA driver".to_owned())
}
