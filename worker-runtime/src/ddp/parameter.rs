//! What a model is to data-parallel training: a list of parameters. Pure.

use std::fmt;

use crate::process_group::{DataType, Element};

/// One parameter of a model, as all ranks must have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// What messages call it, such as `fc1.weight`; no two parameters of a model have the same name.
    pub name: String,
    /// The length of each dimension; none for a single number.
    pub shape: Vec<usize>,
    /// The type of its gradient.
    pub data_type: DataType,
}

impl Parameter {
    /// A parameter whose gradient has elements of type `T`.
    pub fn new<T: Element>(name: impl Into<String>, shape: &[usize]) -> Self {
        Self { name: name.into(), shape: shape.to_owned(), data_type: T::DATA_TYPE }
    }

    /// How many numbers it has; the largest `usize` where no memory holds them.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().fold(1usize, |elements, &length| elements.saturating_mul(length))
    }

    /// As many bytes has its gradient.
    pub(crate) fn bytes(&self) -> usize {
        self.elements().saturating_mul(self.data_type.size())
    }
}

/// The name, the shape as torch writes it, and the type.
impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {:?} {}", self.name, self.shape, self.data_type)
    }
}
