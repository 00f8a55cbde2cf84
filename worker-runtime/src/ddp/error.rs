//! Errors of data-parallel training.

use rankrun_contract::rank::{Rank, WorldSize};

use super::agreement::ModelDifference;
use crate::diagnostic::{Details, Diagnostic};
use crate::process_group::{DataType, GroupError};

/// A failed call of [`Ddp`](super::Ddp) or of its device variant. Parameters are named.
#[derive(Debug, thiserror::Error)]
pub enum DdpError {
    /// A call of the group failed.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The list of parameters is empty.
    #[error("the model has no parameters, so there are no gradients to exchange")]
    NoParameters,
    /// Two parameters have the same name, so that messages could not distinguish them.
    #[error("parameters {first} and {second} of the model have the same name, `{name}`")]
    SameName {
        /// The repeated name.
        name: String,
        /// Index of the first one.
        first: usize,
        /// Index of the second one.
        second: usize,
    },
    /// The parameter is of an integer type.
    #[error("{}parameter `{parameter}` is of type {data_type}, which has no gradients", Details(self))]
    NotFloat {
        /// Name of the parameter.
        parameter: String,
        /// Its element type.
        data_type: DataType,
    },
    /// All gradients together exceed the address space.
    #[error("the gradients up to `{parameter}` exceed the address space")]
    TooLarge {
        /// Name of the parameter that exceeds it.
        parameter: String,
    },
    /// Ranks have different models or options. Every rank gets the same error.
    #[error("{}the ranks do not train the same model: {}", Details(self), .0)]
    Differ(Box<ModelDifference>),
    /// The description of a rank's model cannot be decoded.
    #[error("{}the model description of rank {rank} cannot be decoded", Details(self))]
    Unreadable {
        /// The rank that sent it.
        rank: Rank,
    },
    /// The index is beyond the model.
    #[error("parameter {index} does not exist: the model has {parameters}")]
    NoSuchParameter {
        /// The given index.
        index: usize,
        /// Number of parameters of the model.
        parameters: usize,
    },
    /// The gradient was accessed with the wrong element type.
    #[error("the gradient of `{parameter}` has type {expected}, but the call uses {actual}")]
    WrongType {
        /// Name of the parameter.
        parameter: String,
        /// Its element type.
        expected: DataType,
        /// The given element type.
        actual: DataType,
    },
    /// A slice has the wrong length.
    #[error("`{parameter}` has {expected} elements, but the call passes {actual}")]
    WrongLength {
        /// Name of the parameter.
        parameter: String,
        /// Its number of elements.
        expected: usize,
        /// The given number of elements.
        actual: usize,
    },
    /// Device memory has the wrong length.
    #[error("`{parameter}` has {expected} bytes, but the call passes {actual} bytes of memory")]
    WrongBytes {
        /// Name of the parameter.
        parameter: String,
        /// Length of its gradient in bytes.
        expected: usize,
        /// The given length in bytes.
        actual: usize,
    },
    /// The host group and the device group have different ranks.
    #[error(
        "{}the two groups do not match: this is rank {} of {} between hosts and rank {} of {} between devices",
        Details(self), host.0, host.1, device.0, device.1
    )]
    OtherRanks {
        /// Rank and number of ranks in the host group.
        host: (Rank, WorldSize),
        /// Rank and number of ranks in the device group.
        device: (Rank, WorldSize),
    },
    /// The number of given parameters is wrong.
    #[error("the model has {expected} parameters{}, but the call passes {actual}", of_type(*.data_type))]
    WrongCount {
        /// Their element type, if only those of one type were expected.
        data_type: Option<DataType>,
        /// Number in the model.
        expected: usize,
        /// Number of given parameters.
        actual: usize,
    },
    /// A gradient was marked ready twice in one pass, or written after it was ready.
    #[error("{}the gradient of `{parameter}` is marked ready twice in this pass", Details(self))]
    Twice {
        /// Name of the parameter.
        parameter: String,
    },
    /// A parameter has no gradient in this pass. It can still be made ready.
    #[error("{}the gradient of `{parameter}`{} is missing", Details(self), other_parameters_text(*.other_count))]
    Missing {
        /// The first parameter without one, in model order.
        parameter: String,
        /// Number of further parameters without one.
        other_count: usize,
    },
    /// The sum of earlier passes would be overwritten.
    #[error(
        "{}the gradient of `{parameter}` holds the sum of earlier passes, which this call would overwrite",
        Details(self)
    )]
    Kept {
        /// Name of the parameter.
        parameter: String,
    },
    /// Within `no_sync` there is nothing to finish.
    #[error("{}`finish` is called inside `no_sync`, which exchanges no gradients", Details(self))]
    NoSync,
    /// The memory of the gradients is in use by a call.
    #[error("{}`broadcast` is called while gradients are collected", Details(self))]
    UnderWay,
    /// An earlier call failed, and its gradients are lost.
    #[error("the gradient exchange has already failed with an earlier error")]
    Ended,
}

impl Diagnostic for DdpError {
    fn hint(&self) -> Option<&str> {
        Self::hint(self)
    }
}

fn of_type(data_type: Option<DataType>) -> String {
    data_type.map_or_else(String::new, |data_type| format!(" of type {data_type}"))
}

fn other_parameters_text(other_count: usize) -> String {
    match other_count {
        0 => String::new(),
        1 => " and of 1 other parameter".to_owned(),
        other_count => format!(" and of {other_count} other parameters"),
    }
}

impl DdpError {
    /// One thing that the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Group(error) => error.hint(),
            Self::NotFloat { .. } => {
                Some("leave it out of the model, and send untrained data with `AsyncGroup::broadcast`")
            }
            Self::Differ(_) => {
                Some("build the same model on every rank, from the same code and the same options")
            }
            Self::Unreadable { .. } => Some("build all ranks with the same version of rankrun"),
            Self::UnderWay => Some("call it before the first gradient, or after `finish`"),
            Self::OtherRanks { .. } => {
                Some("join both groups with the same context, or split both with the same colors and keys")
            }
            Self::Twice { .. } => Some(
                "add up the gradient before it is marked ready, and end each pass with `finish` or `no_sync`",
            ),
            Self::Missing { .. } => Some(
                "make every gradient ready, or set `find_unused_parameters` where a pass may leave some out",
            ),
            Self::Kept { .. } => Some("add to `gradient_mut` instead, in every pass after the first"),
            Self::NoSync => Some("call it after the last pass, outside of `no_sync`"),
            _ => None,
        }
    }
}
