//! The averaged gradients at the end of a step.

use bytemuck::{cast_slice, cast_slice_mut};

use super::{Ddp, DdpError, check_type, parameter_at};
use crate::process_group::Element;

/// The mean gradients of a step, in the memory in which they were reduced. The next pass overwrites them.
#[derive(Debug)]
pub struct Gradients<'a> {
    ddp: &'a mut Ddp,
    is_unused: Vec<bool>,
}

impl<'a> Gradients<'a> {
    pub(super) fn new(ddp: &'a mut Ddp, is_unused: Vec<bool>) -> Self {
        Self { ddp, is_unused }
    }

    /// The mean gradient of a parameter.
    ///
    /// # Errors
    /// There is no such parameter, or it has another type.
    pub fn get<T: Element>(&self, index: usize) -> Result<&[T], DdpError> {
        check_type::<T>(parameter_at(&self.ddp.parameters, index)?)?;
        let place = &self.ddp.plan.places[index];
        Ok(cast_slice(&self.ddp.slots[place.bucket].bytes()?[place.bytes.clone()]))
    }

    /// As [`get`](Self::get), mutable: to clip it, for instance.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_mut<T: Element>(&mut self, index: usize) -> Result<&mut [T], DdpError> {
        check_type::<T>(parameter_at(&self.ddp.parameters, index)?)?;
        let place = &self.ddp.plan.places[index];
        Ok(cast_slice_mut(&mut self.ddp.slots[place.bucket].bytes_mut()?[place.bytes.clone()]))
    }

    /// The gradients of all parameters of type `T`, in model order.
    pub fn iter<T: Element>(&self) -> impl Iterator<Item = &[T]> {
        (0..self.ddp.parameters.len()).filter_map(|index| self.get(index).ok())
    }

    /// Whether no rank has used the parameter in this step, so that its gradient is zero and the optimiser
    /// should skip it. Always false without [`DdpOptions::find_unused_parameters`](super::DdpOptions::find_unused_parameters).
    #[must_use]
    pub fn is_unused(&self, index: usize) -> bool {
        self.is_unused.get(index).is_some_and(|is_unused| *is_unused)
    }
}
