//! What a checkpoint keeps of a training: named tensors in the program's memory, and a few texts. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::header::{METADATA, OURS};
use crate::process_group::{DataType, Element};

/// The state of a training, as one rank has it: described once, and used to save it as well as to fill it again.
///
/// ```
/// use rankrun_worker::checkpoint::State;
///
/// struct Model {
///     weight: Vec<f32>,
///     bias: Vec<f32>,
/// }
///
/// impl Model {
///     fn state(&mut self) -> State<'_> {
///         State::new().replicated("weight", &[2, 3], &mut self.weight).replicated("bias", &[2], &mut self.bias)
///     }
/// }
/// ```
#[derive(Debug, Default)]
pub struct State<'a> {
    pub(super) tensors: Vec<Tensor<'a>>,
    pub(super) metadata: BTreeMap<String, String>,
}

/// Who has what of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// Every rank has all of it.
    Replicated,
    /// Each rank has some of its rows, in the order of ranks.
    Sharded,
}

/// A tensor in memory of this rank.
#[derive(Debug)]
pub(super) struct Tensor<'a> {
    pub(super) held: Held,
    pub(super) name: String,
    /// Of what this rank has.
    pub(super) shape: Vec<usize>,
    pub(super) data_type: DataType,
    pub(super) bytes: &'a mut [u8],
}

/// A state that no checkpoint can hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Which of the two would be loaded?
    #[error("two tensors of the state are called `{name}`")]
    SameName {
        /// The name.
        name: String,
    },
    /// A name that the file format, or this library, keeps for itself.
    #[error("the state cannot call anything `{name}`: that name is reserved")]
    Reserved {
        /// The name.
        name: String,
    },
    /// The shape is not that of the data.
    #[error("`{name}` of shape {shape:?} cannot have {elements} elements")]
    WrongShape {
        /// The tensor.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
        /// What there is.
        elements: usize,
    },
    /// A single number cannot be shared out.
    #[error("`{name}` is sharded by its first dimension, and has none")]
    NoRows {
        /// The tensor.
        name: String,
    },
}

impl<'a> State<'a> {
    /// Of nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With a tensor that is the same on all ranks: the parameters of a model, the momentum of its optimiser. Rank 0 writes it. Each
    /// rank may name such tensors in an order of its own.
    #[must_use]
    pub fn replicated<T: Element>(self, name: impl Into<String>, shape: &[usize], data: &'a mut [T]) -> Self {
        self.with(Held::Replicated, name.into(), shape, data)
    }

    /// With this rank's rows of a tensor: `shape` is that of the part, and the parts of all ranks, one after another in the order of
    /// ranks, are the whole. They need not be of the same size, and with another number of ranks they may lie elsewhere.
    #[must_use]
    pub fn sharded<T: Element>(self, name: impl Into<String>, shape: &[usize], data: &'a mut [T]) -> Self {
        self.with(Held::Sharded, name.into(), shape, data)
    }

    /// With a text, which [`Loaded`](super::Loaded) gives back: what the weights depend on and no tensor says.
    #[must_use]
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    fn with<T: Element>(mut self, held: Held, name: String, shape: &[usize], data: &'a mut [T]) -> Self {
        let (shape, data_type) = (shape.to_owned(), T::DATA_TYPE);
        self.tensors.push(Tensor { held, name, shape, data_type, bytes: bytemuck::cast_slice_mut(data) });
        self
    }

    /// Whether a checkpoint can hold it.
    pub(super) fn check(&self) -> Result<(), StateError> {
        let mut names = BTreeSet::new();
        for Tensor { held, name, shape, data_type, bytes } in &self.tensors {
            let name = || name.clone();
            if !names.insert(name()) {
                return Err(StateError::SameName { name: name() });
            }
            if name() == METADATA {
                return Err(StateError::Reserved { name: name() });
            }
            if *held == Held::Sharded && shape.is_empty() {
                return Err(StateError::NoRows { name: name() });
            }
            let elements = bytes.len() / data_type.size();
            if product(shape) != Some(elements) {
                return Err(StateError::WrongShape { name: name(), shape: shape.clone(), elements });
            }
        }
        let reserved = self.metadata.keys().find(|key| key.starts_with(OURS));
        reserved.map_or(Ok(()), |name| Err(StateError::Reserved { name: name.clone() }))
    }

    /// The tensors that ranks hold in this way.
    pub(super) fn held(&self, how: Held) -> impl Iterator<Item = &Tensor<'a>> {
        self.tensors.iter().filter(move |tensor| tensor.held == how)
    }

    /// As [`held`](Self::held), to be filled.
    pub(super) fn held_mut(&mut self, how: Held) -> impl Iterator<Item = &mut Tensor<'a>> {
        self.tensors.iter_mut().filter(move |tensor| tensor.held == how)
    }
}

impl Tensor<'_> {
    /// How many rows this rank has.
    pub(super) fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }

    /// The shape of a row.
    pub(super) fn row_shape(&self) -> &[usize] {
        self.shape.get(1..).unwrap_or_default()
    }
}

/// How many elements a shape has; `None` where no memory holds them.
pub(super) fn product(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |product, &length| product.checked_mul(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_no_checkpoint_can_hold_is_refused_by_name() {
        let (mut one, mut two) = ([1.0f32; 6], [2i64; 2]);
        let told = |state: State<'_>| state.check().map_err(|error| error.to_string());
        assert_eq!(
            told(State::new().replicated("w", &[2, 3], &mut one).sharded("b", &[2], &mut two)),
            Ok(())
        );
        assert_eq!(
            told(State::new().replicated("w", &[6], &mut one).replicated("w", &[2], &mut two)),
            Err("two tensors of the state are called `w`".to_owned())
        );
        assert_eq!(
            told(State::new().replicated("w", &[7], &mut one)),
            Err("`w` of shape [7] cannot have 6 elements".to_owned())
        );
        assert_eq!(
            told(State::new().replicated("w", &[usize::MAX, 2], &mut one)),
            Err(format!("`w` of shape [{}, 2] cannot have 6 elements", usize::MAX))
        );
        assert_eq!(
            told(State::new().sharded("w", &[], &mut one[..1])),
            Err("`w` is sharded by its first dimension, and has none".to_owned())
        );
        for state in [
            State::new().metadata("rankrun.step", "1"),
            State::new().replicated("__metadata__", &[2], &mut two),
        ] {
            assert!(matches!(state.check(), Err(StateError::Reserved { .. })));
        }
    }
}
