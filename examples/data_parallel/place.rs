//! Which devices this worker has.

use rankrun_examples::gpu;
use rankrun_worker::WorkerContext;
use rankrun_worker::cuda::{CudaMissing, cuda_device_count};
use rankrun_worker::data_parallel::{Device, DeviceError, DeviceIds};

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
        [] => match (available("cuda"), context.cuda_ordinal()) {
            (Ok(gpus @ 1..), _) if context.env().is_none() => (0..gpus).map(Device::cuda).collect(),
            (Ok(1..), Some(ordinal)) => vec![Device::cuda(ordinal)],
            _ => vec![Device::cpu(context.local_rank().index())],
        },
        devices => devices.to_vec(),
    };
    let available = devices.first().map_or(Ok(0), |first| available(&first.kind))?;
    let ids = DeviceIds::new(devices, available).map_err(PlaceError::Device)?;
    Ok(match gpu::sharing() {
        Some(replicas) => DeviceIds::shared(&ids.devices()[0], replicas),
        None => ids,
    })
}

/// How many devices there are of a kind; of the CPU, as many as one names.
fn available(kind: &str) -> Result<usize, PlaceError> {
    match kind {
        "cpu" => Ok(usize::MAX),
        "cuda" => cuda_device_count().map_err(PlaceError::Cuda),
        _ => Ok(0),
    }
}
