//! The state that a checkpoint keeps: named tensors in the program's memory, and texts. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::header::{METADATA, OWN_PREFIX};
use crate::process_group::{DataType, Element};

/// The state of a training on one rank, as torch's state dict: the same value is used to save and to fill it.
///
/// ```
/// use rankrun_worker::checkpoint::StateDict;
///
/// struct Model {
///     weight: Vec<f32>,
///     bias: Vec<f32>,
/// }
///
/// impl Model {
///     fn state(&mut self) -> StateDict<'_> {
///         StateDict::new().replicated("weight", &[2, 3], &mut self.weight).replicated("bias", &[2], &mut self.bias)
///     }
/// }
/// ```
#[derive(Debug, Default)]
pub struct StateDict<'a> {
    pub(super) tensors: Vec<Tensor<'a>>,
    pub(super) metadata: BTreeMap<String, String>,
}

/// The distribution of a tensor over ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placement {
    /// Every rank has all of it.
    Replicated,
    /// Each rank has some of its rows, in rank order.
    Sharded,
}

/// A tensor in memory of this rank.
#[derive(Debug)]
pub(super) struct Tensor<'a> {
    pub(super) placement: Placement,
    pub(super) name: String,
    /// The shape on this rank.
    pub(super) shape: Vec<usize>,
    pub(super) data_type: DataType,
    pub(super) bytes: &'a mut [u8],
}

/// Why a state cannot be saved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Two tensors have the same name.
    #[error("two tensors of the state are called `{name}`")]
    SameName {
        /// The repeated name.
        name: String,
    },
    /// The name is reserved by the file format or by this library.
    #[error("the tensor name `{name}` is reserved; choose another name")]
    Reserved {
        /// The reserved name.
        name: String,
    },
    /// The shape does not match the data.
    #[error("`{name}` of shape {shape:?} cannot have {elements} elements")]
    WrongShape {
        /// Name of the tensor.
        name: String,
        /// The given shape.
        shape: Vec<usize>,
        /// Number of given elements.
        elements: usize,
    },
    /// A scalar cannot be sharded.
    #[error("`{name}` is sharded by its first dimension, but has no dimensions")]
    NoRows {
        /// Name of the tensor.
        name: String,
    },
}

impl<'a> StateDict<'a> {
    /// An empty state.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor that is the same on all ranks, such as a model's parameters or its optimiser's momentum.
    /// Rank 0 writes it. Ranks may add such tensors in different orders.
    #[must_use]
    pub fn replicated<T: Element>(self, name: impl Into<String>, shape: &[usize], data: &'a mut [T]) -> Self {
        self.with_tensor(Placement::Replicated, name.into(), shape, data)
    }

    /// Adds this rank's rows of a tensor. `shape` is that of the part; the parts of all ranks in rank order
    /// are the whole. They may have different sizes, and another number of ranks may divide them differently.
    #[must_use]
    pub fn sharded<T: Element>(self, name: impl Into<String>, shape: &[usize], data: &'a mut [T]) -> Self {
        self.with_tensor(Placement::Sharded, name.into(), shape, data)
    }

    /// Adds a text, which [`Loaded`](super::Loaded) returns: values that the weights
    /// depend on and no tensor holds.
    #[must_use]
    pub fn with_metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    fn with_tensor<T: Element>(
        mut self,
        placement: Placement,
        name: String,
        shape: &[usize],
        data: &'a mut [T],
    ) -> Self {
        let (shape, data_type) = (shape.to_owned(), T::DATA_TYPE);
        self.tensors.push(Tensor {
            placement,
            name,
            shape,
            data_type,
            bytes: bytemuck::cast_slice_mut(data),
        });
        self
    }

    /// Checks that a checkpoint can hold the state.
    pub(super) fn check(&self) -> Result<(), StateError> {
        let mut names = BTreeSet::new();
        for Tensor { placement, name, shape, data_type, bytes } in &self.tensors {
            let name = || name.clone();
            if !names.insert(name()) {
                return Err(StateError::SameName { name: name() });
            }
            if name() == METADATA {
                return Err(StateError::Reserved { name: name() });
            }
            if *placement == Placement::Sharded && shape.is_empty() {
                return Err(StateError::NoRows { name: name() });
            }
            let elements = bytes.len() / data_type.size();
            if element_count(shape) != Some(elements) {
                return Err(StateError::WrongShape { name: name(), shape: shape.clone(), elements });
            }
        }
        let reserved = self.metadata.keys().find(|key| key.starts_with(OWN_PREFIX));
        reserved.map_or(Ok(()), |name| Err(StateError::Reserved { name: name.clone() }))
    }

    /// The tensors with this distribution.
    pub(super) fn tensors_with_placement(&self, how: Placement) -> impl Iterator<Item = &Tensor<'a>> {
        self.tensors.iter().filter(move |tensor| tensor.placement == how)
    }

    /// As [`held`](Self::held), mutable.
    pub(super) fn tensors_with_placement_mut(
        &mut self,
        how: Placement,
    ) -> impl Iterator<Item = &mut Tensor<'a>> {
        self.tensors.iter_mut().filter(move |tensor| tensor.placement == how)
    }
}

impl Tensor<'_> {
    /// Rows of the tensor on this rank.
    pub(super) fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }

    /// The shape of one row.
    pub(super) fn row_shape(&self) -> &[usize] {
        self.shape.get(1..).unwrap_or_default()
    }
}

/// Number of elements of a shape; `None` on overflow.
pub(super) fn element_count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |product, &length| product.checked_mul(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_state_is_refused_with_tensor_name() {
        let (mut one, mut two) = ([1.0f32; 6], [2i64; 2]);
        let error_text = |state: StateDict<'_>| state.check().map_err(|error| error.to_string());
        assert_eq!(
            error_text(StateDict::new().replicated("w", &[2, 3], &mut one).sharded("b", &[2], &mut two)),
            Ok(())
        );
        assert_eq!(
            error_text(StateDict::new().replicated("w", &[6], &mut one).replicated("w", &[2], &mut two)),
            Err("two tensors of the state are called `w`".to_owned())
        );
        assert_eq!(
            error_text(StateDict::new().replicated("w", &[7], &mut one)),
            Err("`w` of shape [7] cannot have 6 elements".to_owned())
        );
        assert_eq!(
            error_text(StateDict::new().replicated("w", &[usize::MAX, 2], &mut one)),
            Err(format!("`w` of shape [{}, 2] cannot have 6 elements", usize::MAX))
        );
        assert_eq!(
            error_text(StateDict::new().sharded("w", &[], &mut one[..1])),
            Err("`w` is sharded by its first dimension, but has no dimensions".to_owned())
        );
        for state in [
            StateDict::new().with_metadata("rankrun.step", "1"),
            StateDict::new().replicated("__metadata__", &[2], &mut two),
        ] {
            assert!(matches!(state.check(), Err(StateError::Reserved { .. })));
        }
    }
}
