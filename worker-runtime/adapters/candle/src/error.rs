//! Errors of this crate.

use candle_core::DType;
use rankrun_worker::GroupError;
use rankrun_worker::checkpoint::CheckpointError;
use rankrun_worker::ddp::DdpError;

/// A failed call of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CandleError {
    /// The group failed, or refused the call.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The exchange of gradients failed.
    #[error(transparent)]
    Ddp(#[from] DdpError),
    /// A checkpoint cannot be saved or loaded.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// An error of candle.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// The element type is not supported by process groups.
    #[error("a process group carries no `{0:?}`; convert the tensor first, with `to_dtype`")]
    DataType(DType),
    /// The tensor is not contiguous.
    #[error("the tensor of shape {shape:?} is a view that is not contiguous; call `contiguous` first")]
    NotContiguous {
        /// Shape of the tensor.
        shape: Vec<usize>,
    },
    /// Variables are on different devices.
    #[error(
        "variable `{name}` is on {device}, and `{first}` is on {first_device}; move all variables to one device"
    )]
    Devices {
        /// The first variable.
        first: String,
        /// Device of that variable.
        first_device: String,
        /// The first variable on another device.
        name: String,
        /// Device of the other variable.
        device: String,
    },
    /// This build cannot train on the device.
    #[error("this build cannot train on {device}; {hint}")]
    Device {
        /// The device.
        device: String,
        /// What the user can do about it.
        hint: &'static str,
    },
}
