//! The cores that each worker is bound to (`--bind-cores`).

use std::path::PathBuf;

use super::Assigner;
use crate::device::DeviceChoice;
use crate::device::cores::CoreFacts;
use crate::device::cpu_list::parse_cpu_list;
use crate::device_assignment::DeviceError;
use crate::facts::FileKind;
use crate::spec::setting::Setting;

/// A list of the CPUs of one core is shorter.
const MOST_BYTES: u64 = 4096;

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
        let facts = CoreFacts {
            allowed: &self.node.allowed_cpus,
            exists: &|cpu| self.node.world.kind(&cpu_folder(cpu)) != FileKind::Missing,
            core_of: &|cpu| self.core_of(cpu),
        };
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

    /// A CPU whose core the kernel does not show is a core of its own.
    fn core_of(&self, cpu: u32) -> u32 {
        let path = cpu_folder(cpu).join("topology/thread_siblings_list");
        let text = self.node.world.read_file(&path, MOST_BYTES).ok();
        let siblings = text.and_then(|text| parse_cpu_list(std::str::from_utf8(&text).ok()?).ok());
        siblings.and_then(|siblings| siblings.first().copied()).unwrap_or(cpu)
    }
}

fn cpu_folder(cpu: u32) -> PathBuf {
    PathBuf::from(format!("/sys/devices/system/cpu/cpu{cpu}"))
}
