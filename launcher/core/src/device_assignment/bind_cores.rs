//! The cores that each worker is bound to (`--bind-cores`).

use super::Assigner;
use crate::device::DeviceChoice;
use crate::device::cores::CoreFacts;
use crate::device_assignment::DeviceError;
use crate::spec::setting::Setting;

impl Assigner<'_> {
    /// # Errors
    /// `--bind-cores` stands beside `--numa-binding`.
    pub(super) fn refuse_two_bindings(&self) -> Result<(), DeviceError> {
        match (&self.request.bind_cores, &self.request.binding) {
            (Some(cores), Some(binding)) => Err(DeviceError::Contradiction {
                one: cores.origin.clone(),
                value: cores.value.0.clone(),
                other: binding.origin.clone(),
                other_value: binding.value.as_str().to_owned(),
            }),
            _ => Ok(()),
        }
    }

    pub(super) fn bind_to_cores(&self, choice: &mut DeviceChoice) -> Result<(), DeviceError> {
        let Some(Setting { origin, value: (text, selection) }) = &self.request.bind_cores else {
            return Ok(());
        };
        let facts = CoreFacts { allowed: &self.node.allowed_cpus, topology: self.node.topology };
        let shares = facts.shares(selection, choice.workers.len());
        let shares = shares.map_err(|error| {
            let (origin, value) = (origin.clone(), text.clone());
            DeviceError::Cores { origin, value, error }
        })?;
        for (worker, cpus) in choice.workers.iter_mut().zip(shares) {
            worker.cpus = Some(cpus);
        }
        Ok(())
    }
}
