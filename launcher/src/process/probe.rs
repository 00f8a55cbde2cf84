//! Runs probes: children that look at the hardware, with a deadline.

use std::time::Duration;

use crate::device::{Ask, CudaDevice, Machine};

/// The accelerators; whatever goes wrong is in [`Machine::troubles`].
#[must_use]
pub fn discover(ask: Ask, limit: Duration) -> Machine {
    let _ = (ask, limit);
    Machine::default()
}

/// The CUDA driver's own order of its devices.
///
/// # Errors
/// Why there is no answer, in words.
pub fn cuda_order(limit: Duration) -> Result<Vec<CudaDevice>, String> {
    let _ = limit;
    Err("there is no CUDA driver".to_owned())
}
