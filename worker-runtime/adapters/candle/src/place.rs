//! The device of a worker, as candle opens it.

use candle_core::Device;
use rankrun_worker::WorkerContext;

use crate::CandleError;

/// Opens the device of this worker: the one that the launcher assigned. Where no launcher has looked for devices, it is the GPU
/// with the number of the local rank, in a build with the feature `cuda` and on a machine with a GPU, else the CPU.
///
/// ```
/// use rankrun_worker::WorkerContext;
///
/// # fn main() -> Result<(), rankrun_candle::CandleError> {
/// let device = rankrun_candle::device(&WorkerContext::single_process())?;
/// let zeros = candle_core::Tensor::zeros(3, candle_core::DType::F32, &device)?;
/// # drop(zeros);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The assigned device is none that this build can use, or it cannot be opened. The CPU never takes its place.
pub fn device(context: &WorkerContext) -> Result<Device, CandleError> {
    use rankrun_worker::Device as Assigned;
    match context.device() {
        Some(Assigned::Cpu(_)) => Ok(Device::Cpu),
        Some(Assigned::Cuda(ordinal)) if cfg!(feature = "cuda") => Ok(Device::new_cuda(*ordinal)?),
        Some(device) => Err(CandleError::Device {
            device: device.to_string(),
            hint: "build `rankrun-candle` with the feature `cuda` for a GPU of NVIDIA's, or start the job with `--device-type cpu`",
        }),
        None => Ok(Device::cuda_if_available(context.local_rank().index())?),
    }
}
