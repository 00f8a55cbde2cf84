//! Which devices this worker has.

use rankrun_worker::WorkerContext;
#[cfg(feature = "cuda")]
use rankrun_worker::cuda::{CudaMissing, cuda_device_count};
use rankrun_worker::data_parallel::{Device, DeviceError, DeviceIds};

/// How many replicas share one device: for tests of the split on a machine that has one.
const SHARE: &str = "RANKRUN_TEST_SHARE_DEVICE";

#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaceError {
    #[error("{0}\nhint: {hint}", hint = .0.hint())]
    Device(#[from] DeviceError),
    #[cfg(feature = "cuda")]
    #[error("{0}\nhint: {hint}", hint = .0.hint())]
    Cuda(#[from] CudaMissing),
}

/// The devices that were asked for. Without any: under a launcher the one that it gave, of which a worker sees no other; and
/// otherwise all GPUs, or the CPU where there is none.
pub(crate) fn devices(asked: &[Device], context: &WorkerContext) -> Result<DeviceIds, PlaceError> {
    let devices = match asked {
        [] if context.env().is_some() => {
            let device: Device = context.device().parse()?;
            let index = if device.kind == "cpu" { device.index } else { 0 };
            vec![Device { index, ..device }]
        }
        [] => match available("cuda") {
            Ok(gpus @ 1..) => (0..gpus).map(Device::cuda).collect(),
            Ok(0) | Err(_) => vec![Device::cpu(0)],
        },
        devices => devices.to_vec(),
    };
    let available = devices.first().map_or(Ok(0), |first| available(&first.kind))?;
    let ids = DeviceIds::new(devices, available)?;
    Ok(match shared() {
        Some(replicas) => DeviceIds::shared(&ids.devices()[0], replicas),
        None => ids,
    })
}

fn shared() -> Option<std::num::NonZero<usize>> {
    #[expect(clippy::disallowed_methods, reason = "a switch for tests, which is no option of the demo")]
    std::env::var(SHARE).ok()?.parse().ok()
}

/// How many devices there are of a kind; of the CPU, as many as one names.
fn available(kind: &str) -> Result<usize, PlaceError> {
    match kind {
        "cpu" => Ok(usize::MAX),
        #[cfg(feature = "cuda")]
        "cuda" => Ok(cuda_device_count()?),
        _ => Ok(0),
    }
}
