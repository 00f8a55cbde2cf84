//! Which devices this worker has.

use rankrun_examples::gpu::{self, GpuError};
use rankrun_worker::WorkerContext;
use rankrun_worker::cuda::{CudaMissing, cuda_device_count};
use rankrun_worker::data_parallel::{Device, DeviceError, DeviceIds};

#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaceError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Cuda(#[from] CudaMissing),
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

/// The devices that were asked for. Without any these are all GPUs, under a launcher the one that it gave, or the CPU where there is
/// no GPU. A GPU that the launcher gave is never replaced by the CPU.
pub(crate) fn devices(requested: &[Device], context: &WorkerContext) -> Result<DeviceIds, PlaceError> {
    let devices = match requested {
        [] => {
            let gpus = match (gpu::is_given(context), gpu::has_compiler()) {
                (true, false) => return Err(GpuError::NoCompiler.into()),
                (true, true) => cuda_device_count()?,
                (false, true) => cuda_device_count().unwrap_or(0),
                (false, false) => 0,
            };
            of_worker(context, gpus)
        }
        devices => devices.to_vec(),
    };
    let available = devices.first().map_or(Ok(0), |first| available(first.kind()))?;
    let ids = DeviceIds::new(devices, available)?;
    Ok(match gpu::sharing() {
        Some(replicas) => DeviceIds::repeated(&ids.devices()[0], replicas),
        None => ids,
    })
}

/// Where a worker computes that sees so many GPUs. Pure, but for the switch for tests.
fn of_worker(context: &WorkerContext, gpus: usize) -> Vec<Device> {
    match (gpus, context.env(), gpu::ordinal(context)) {
        (1.., None, _) => (0..gpus).map(Device::Cuda).collect(),
        (1.., Some(_), Some(own)) => vec![Device::Cuda(own)],
        _ => vec![Device::Cpu(context.local_rank().index())],
    }
}

/// How many devices there are of a kind; of the CPU, as many as one names.
fn available(kind: &str) -> Result<usize, PlaceError> {
    match kind {
        "cpu" => Ok(usize::MAX),
        "cuda" => Ok(cuda_device_count()?),
        _ => Ok(0),
    }
}
