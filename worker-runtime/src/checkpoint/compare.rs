//! Compares a checkpoint with the program's model. Pure.

use std::fmt;

use super::header::{FileHeader, SavedTensor, saved_type, type_name};
use super::sharding::{ShardedTensor, Sharding};
use super::state::{Placement, StateDict, Tensor};

/// The first difference between a checkpoint and the program's state, in the order of the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// The checkpoint lacks a tensor, or holds it as the other kind: replicated or sharded.
    Missing {
        /// Name and kind in the program.
        name: String,
        /// A tensor that only the checkpoint has: it may have been renamed.
        instead: Option<String>,
    },
    /// The program lacks a tensor of the checkpoint.
    Unknown {
        /// Name in the checkpoint.
        name: String,
    },
    /// A tensor has different element types.
    DataType {
        /// Name of the tensor.
        name: String,
        /// Type in the program.
        expected: String,
        /// Type in the checkpoint.
        saved: String,
    },
    /// A tensor has different shapes; of a sharded tensor that of the whole.
    Shape {
        /// Name of the tensor.
        name: String,
        /// Shape in the program.
        expected: Vec<usize>,
        /// Shape in the checkpoint.
        saved: Vec<usize>,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { name, instead: None } => write!(f, "it has no `{name}`"),
            Self::Missing { name, instead: Some(instead) } => {
                write!(f, "it has no `{name}`, but `{instead}`, which this program does not have")
            }
            Self::Unknown { name } => write!(f, "it has `{name}`, which this program does not have"),
            Self::DataType { name, expected, saved } => {
                write!(f, "`{name}` is of type {expected} in this program, and {saved} in the checkpoint")
            }
            Self::Shape { name, expected, saved } => {
                write!(
                    f,
                    "`{name}` has the shape {expected:?} in this program, and {saved:?} in the checkpoint"
                )
            }
        }
    }
}

/// Rows of each sharded tensor over all ranks, in the order of the state.
pub(super) type TotalRows = Vec<usize>;

/// The first difference; `None` if the checkpoint matches.
pub(super) fn find_difference(
    state: &StateDict<'_>,
    total: &TotalRows,
    header: &FileHeader,
) -> Option<Difference> {
    let sharding = header.about.sharding.as_ref();
    let wholes: &[ShardedTensor] = sharding.map_or(&[], |sharding: &Sharding| &sharding.tensors);
    let whole_of = |name: &str| wholes.iter().find(|whole| whole.name == name);
    let is_ours = |placement: Placement, name: &str| {
        state.tensors_with_placement(placement).any(|tensor| tensor.name == name)
    };
    let replicated = header.tensors.keys().filter(|name| !is_ours(Placement::Replicated, name));
    let sharded = wholes.iter().map(|whole| &whole.name).filter(|name| !is_ours(Placement::Sharded, name));
    let unknown = replicated.chain(sharded).next().cloned();
    let mut totals = total.iter();
    for tensor in &state.tensors {
        let (expected, saved) = match tensor.placement {
            Placement::Replicated => {
                let saved = |SavedTensor { data_type, shape, .. }: &SavedTensor| {
                    (type_name(*data_type), shape.clone())
                };
                (tensor.shape.clone(), header.tensors.get(&tensor.name).map(saved))
            }
            Placement::Sharded => {
                let rows = totals.next().copied().unwrap_or_default();
                let expected = [&[rows], tensor.row_shape()].concat();
                (expected, whole_of(&tensor.name).map(|whole| (whole.data_type.clone(), whole.shape.clone())))
            }
        };
        if let Some(difference) = tensor_difference(tensor, expected, saved, unknown.as_ref()) {
            return Some(difference);
        }
    }
    unknown.map(|name| Difference::Unknown { name })
}

fn tensor_difference(
    tensor: &Tensor<'_>,
    expected: Vec<usize>,
    saved: Option<(String, Vec<usize>)>,
    unknown: Option<&String>,
) -> Option<Difference> {
    let name = tensor.name.clone();
    let our_type = type_name(saved_type(tensor.data_type));
    match saved {
        None => Some(Difference::Missing { name, instead: unknown.cloned() }),
        Some((saved, _)) if saved != our_type => {
            Some(Difference::DataType { name, expected: our_type, saved })
        }
        Some((_, saved)) if saved != expected => Some(Difference::Shape { name, expected, saved }),
        Some(_) => None,
    }
}
