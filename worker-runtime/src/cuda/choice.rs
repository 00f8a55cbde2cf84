//! Which devices the replicas of a worker's model get.

use super::device::has_compiler;
use super::{CudaError, cuda_device_count};
use crate::context::WorkerContext;
use crate::data_parallel::{Device, DeviceIds};

/// The devices of this worker, for [`DataParallel`](crate::DataParallel): the `requested` ones in their order.
///
/// Without any it is the device that the launcher assigned; without a launcher these are all visible GPUs. The CPU takes
/// the place of a GPU that nothing asked for: where there is no GPU, or no NVRTC to compile kernels for it.
///
/// ```
/// use rankrun_worker::cuda::worker_devices;
/// use rankrun_worker::{Device, WorkerContext};
///
/// # fn main() -> Result<(), rankrun_worker::cuda::CudaError> {
/// let context = WorkerContext::single_process();
/// let devices = worker_devices(&[Device::Cpu(1), Device::Cpu(0)], &context)?;
/// assert_eq!(devices.devices(), [Device::Cpu(1), Device::Cpu(0)]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// A device is missing or named twice, or the devices are of different kinds; an assigned GPU cannot be used.
pub fn worker_devices(requested: &[Device], context: &WorkerContext) -> Result<DeviceIds, CudaError> {
    if let Some(first) = requested.first() {
        return Ok(DeviceIds::new(requested.to_vec(), available(first.kind())?)?);
    }
    let is_assigned = matches!(context.device(), Some(Device::Cuda(_)));
    let gpus = match (is_assigned, has_compiler()) {
        (true, false) => return Err(CudaError::NoCompiler),
        (true, true) => cuda_device_count()?,
        (false, true) => cuda_device_count().unwrap_or(0),
        (false, false) => 0,
    };
    let devices = default_devices(context, gpus);
    let available = if devices.iter().any(|device| device.kind() == "cuda") { gpus } else { usize::MAX };
    Ok(DeviceIds::new(devices, available)?)
}

/// The devices of a worker that sees so many GPUs. Pure.
fn default_devices(context: &WorkerContext, gpus: usize) -> Vec<Device> {
    match (gpus, context.env(), context.cuda_ordinal()) {
        (1.., None, _) => (0..gpus).map(Device::Cuda).collect(),
        (1.., Some(_), Some(own)) => vec![Device::Cuda(own)],
        _ => vec![Device::Cpu(context.local_rank().index())],
    }
}

/// How many devices of a kind this process has; of the CPU, as many as one names.
fn available(kind: &str) -> Result<usize, CudaError> {
    match kind {
        "cpu" => Ok(usize::MAX),
        "cuda" => Ok(cuda_device_count()?),
        _ => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_without_launcher_are_all_gpus_or_cpu() {
        let alone = WorkerContext::single_process();
        assert_eq!(default_devices(&alone, 3), [0, 1, 2].map(Device::Cuda));
        assert_eq!(default_devices(&alone, 0), [Device::Cpu(0)]);
    }

    #[test]
    fn unknown_kind_has_no_devices() {
        let error = worker_devices(&["tpu:0".parse().unwrap()], &WorkerContext::single_process());
        let expected = "device `tpu:0` does not exist: this process sees 0 of kind `tpu`";
        assert_eq!(error.unwrap_err().to_string(), expected);
    }
}
