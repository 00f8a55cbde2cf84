//! What can go wrong.

use candle_core::DType;
use rankrun_worker::GroupError;
use rankrun_worker::ddp::DdpError;

/// Why a call of this crate failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CandleError {
    /// The group ended, or refused the call.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The exchange of gradients failed.
    #[error(transparent)]
    Ddp(#[from] DdpError),
    /// candle's own.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// A type that process groups do not carry.
    #[error("a process group carries no `{0:?}`; convert the tensor first, with `to_dtype`")]
    DataType(DType),
    /// The elements of a tensor are not in one piece of memory.
    #[error("the tensor of shape {shape:?} is a view that is not contiguous; call `contiguous` first")]
    NotContiguous {
        /// Its shape.
        shape: Vec<usize>,
    },
    /// Variables on devices of different kinds, or on one that nothing is known about.
    #[error(
        "variable `{name}` is on {device}, and `{first}` is on {first_device}; move all variables to one device"
    )]
    Devices {
        /// The first variable.
        first: String,
        /// Where it is.
        first_device: String,
        /// The first of the others that is elsewhere.
        name: String,
        /// Where that is.
        device: String,
    },
    /// A device on which nothing is reduced.
    #[error("tensors on {device} cannot be reduced; {hint}")]
    Device {
        /// Where the tensor is.
        device: String,
        /// What to do.
        hint: &'static str,
    },
}
