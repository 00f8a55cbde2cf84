//! The description of a model for data-parallel training. Pure.

use std::fmt;

use crate::process_group::{DataType, Element};

/// One parameter of a model, the same on all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Name in messages, such as `fc1.weight`; unique within the model.
    pub name: String,
    /// Length of each dimension; empty for a scalar.
    pub shape: Vec<usize>,
    /// Element type of its gradient.
    pub data_type: DataType,
}

impl Parameter {
    /// A parameter with a gradient of type `T`.
    pub fn new<T: Element>(name: impl Into<String>, shape: &[usize]) -> Self {
        Self { name: name.into(), shape: shape.to_owned(), data_type: T::DATA_TYPE }
    }

    /// Number of elements; `usize::MAX` on overflow.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().fold(1usize, |elements, &length| elements.saturating_mul(length))
    }

    /// Length of its gradient in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.elements().saturating_mul(self.data_type.size())
    }
}

/// Formats name, type, and shape as torch writes it.
impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {:?} {}", self.name, self.shape, self.data_type)
    }
}
