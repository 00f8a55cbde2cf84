//! Whether a checkpoint is of the program's model. Pure.

use std::fmt;

use super::header::{Header, Saved, saved_type, type_name};
use super::sharding::{Sharding, Whole};
use super::state::{Held, State, Tensor};

/// The first thing in which a checkpoint and the program's state differ, in the order of the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// The checkpoint has no tensor of this name, or has it in the other way: replicated or sharded.
    Missing {
        /// Its name, with what the program has.
        name: String,
        /// A tensor that only the checkpoint has, as it may be the same one by another name.
        instead: Option<String>,
    },
    /// Only the checkpoint has a tensor of this name.
    Unknown {
        /// Its name.
        name: String,
    },
    /// The elements are of another type.
    DataType {
        /// The tensor.
        name: String,
        /// The type in the program.
        ours: String,
        /// That in the checkpoint.
        saved: String,
    },
    /// The shapes differ; of sharded tensors those of the whole.
    Shape {
        /// The tensor.
        name: String,
        /// The shape in the program.
        ours: Vec<usize>,
        /// That in the checkpoint.
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
            Self::DataType { name, ours, saved } => {
                write!(f, "`{name}` is of type {ours} in this program, and {saved} in the checkpoint")
            }
            Self::Shape { name, ours, saved } => {
                write!(f, "`{name}` has the shape {ours:?} in this program, and {saved:?} in the checkpoint")
            }
        }
    }
}

/// How many rows all ranks have together of each sharded tensor, in the order of the state.
pub(super) type TotalRows = Vec<usize>;

/// The first difference; `None` where the checkpoint fits.
pub(super) fn difference(state: &State<'_>, total: &TotalRows, header: &Header) -> Option<Difference> {
    let sharding = header.about.sharding.as_ref();
    let wholes: &[Whole] = sharding.map_or(&[], |sharding: &Sharding| &sharding.tensors);
    let whole_of = |name: &str| wholes.iter().find(|whole| whole.name == name);
    let is_ours = |held: Held, name: &str| state.held(held).any(|tensor| tensor.name == name);
    let replicated = header.tensors.keys().filter(|name| !is_ours(Held::Replicated, name));
    let sharded = wholes.iter().map(|whole| &whole.name).filter(|name| !is_ours(Held::Sharded, name));
    let unknown = replicated.chain(sharded).next().cloned();
    let mut totals = total.iter();
    for tensor in &state.tensors {
        let (ours, saved) = match tensor.held {
            Held::Replicated => {
                let saved = |Saved { data_type, shape, .. }: &Saved| (type_name(*data_type), shape.clone());
                (tensor.shape.clone(), header.tensors.get(&tensor.name).map(saved))
            }
            Held::Sharded => {
                let rows = totals.next().copied().unwrap_or_default();
                let ours = [&[rows], tensor.row_shape()].concat();
                (ours, whole_of(&tensor.name).map(|whole| (whole.data_type.clone(), whole.shape.clone())))
            }
        };
        if let Some(difference) = tensor_difference(tensor, ours, saved, unknown.as_ref()) {
            return Some(difference);
        }
    }
    unknown.map(|name| Difference::Unknown { name })
}

fn tensor_difference(
    tensor: &Tensor<'_>,
    ours: Vec<usize>,
    saved: Option<(String, Vec<usize>)>,
    unknown: Option<&String>,
) -> Option<Difference> {
    let name = tensor.name.clone();
    let our_type = type_name(saved_type(tensor.data_type));
    match saved {
        None => Some(Difference::Missing { name, instead: unknown.cloned() }),
        Some((saved, _)) if saved != our_type => Some(Difference::DataType { name, ours: our_type, saved }),
        Some((_, saved)) if saved != ours => Some(Difference::Shape { name, ours, saved }),
        Some(_) => None,
    }
}
