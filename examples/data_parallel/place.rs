//! Which devices this worker has.

use rankrun_examples::gpu;
use rankrun_worker::WorkerContext;
use rankrun_worker::cuda::{CudaMissing, cuda_device_count};
use rankrun_worker::data_parallel::{Device, DeviceError, DeviceIds};

/// Neither is a source, whose words would be told twice.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaceError {
    #[error("{0}\nhint: {hint}", hint = .0.hint())]
    Device(DeviceError),
    #[error("{0}\nhint: {hint}", hint = .0.hint())]
    Cuda(CudaMissing),
}

/// The devices that were asked for. Without any these are all GPUs, under a launcher the one that it gave, or the CPU where there is
/// no GPU.
pub(crate) fn devices(asked: &[Device], context: &WorkerContext) -> Result<DeviceIds, PlaceError> {
    let devices = match asked {
        [] => {
            let gpus = if gpu::has_compiler() { cuda_device_count().unwrap_or(0) } else { 0 };
            of_worker(context, gpus)
        }
        devices => devices.to_vec(),
    };
    let available = devices.first().map_or(Ok(0), |first| available(&first.kind))?;
    let ids = DeviceIds::new(devices, available).map_err(PlaceError::Device)?;
    Ok(match gpu::sharing() {
        Some(replicas) => DeviceIds::shared(&ids.devices()[0], replicas),
        None => ids,
    })
}

/// Where a worker computes that sees so many GPUs. Pure, but for the switch for tests.
fn of_worker(context: &WorkerContext, gpus: usize) -> Vec<Device> {
    match (gpus, context.env(), gpu::ordinal(context)) {
        (1.., None, _) => (0..gpus).map(Device::cuda).collect(),
        (1.., Some(_), Some(own)) => vec![Device::cuda(own)],
        _ => vec![Device::cpu(context.local_rank().index())],
    }
}

/// How many devices there are of a kind; of the CPU, as many as one names.
fn available(kind: &str) -> Result<usize, PlaceError> {
    match kind {
        "cpu" => Ok(usize::MAX),
        "cuda" => cuda_device_count().map_err(PlaceError::Cuda),
        _ => Ok(0),
    }
}
