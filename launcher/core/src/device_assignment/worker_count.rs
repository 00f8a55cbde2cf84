//! The number of workers, and whether that many may share the devices.

use rankrun_contract::rank::{LocalRank, LocalWorldSize};

use super::Assigner;
use crate::device::choice::label;
use crate::device::{DeviceChoice, DeviceType};
use crate::device_assignment::DeviceError;
use crate::notice::Notice;
use crate::spec::CliFlavor;
use crate::spec::device_request::WorkerCount;

impl Assigner<'_> {
    pub(super) fn workers_on_cpus(&self) -> LocalWorldSize {
        match &self.request.worker_count {
            WorkerCount::Default | WorkerCount::Devices { .. } => LocalWorldSize::ONE,
            WorkerCount::Number(number) => *number,
            WorkerCount::Cpus | WorkerCount::Auto => self.cpus(),
        }
    }

    /// The number of permitted CPUs.
    fn cpus(&self) -> LocalWorldSize {
        let cpus = u32::try_from(self.node.cpu_count).unwrap_or(u32::MAX);
        LocalWorldSize::new(cpus).unwrap_or(LocalWorldSize::ONE)
    }

    pub(super) fn workers(&self, choice: &DeviceChoice) -> Result<LocalWorldSize, DeviceError> {
        let devices = u32::try_from(choice.devices.len()).ok().and_then(LocalWorldSize::new);
        match &self.request.worker_count {
            WorkerCount::Number(number) => Ok(*number),
            WorkerCount::Cpus => Ok(self.cpus()),
            WorkerCount::Auto => Ok(devices.unwrap_or_else(|| self.cpus())),
            // A choice among devices of these types has one at least.
            WorkerCount::Devices { .. } => Ok(devices.unwrap_or(LocalWorldSize::ONE)),
            WorkerCount::Default if self.cli_flavor == CliFlavor::Torchrun => Ok(LocalWorldSize::ONE),
            WorkerCount::Default => {
                let workers = devices.unwrap_or(LocalWorldSize::ONE);
                self.refuse_several_launchers(workers)?;
                Ok(workers)
            }
        }
    }

    /// torch's sentence about missing devices, under its name.
    pub(super) fn torch_sentence(&self, word: &str) -> Option<&'static str> {
        match (self.cli_flavor, word) {
            (CliFlavor::Torchrun, "gpu") => Some("Cuda is not available."),
            (CliFlavor::Torchrun, "xpu") => Some("Xpu is not available."),
            _ => None,
        }
    }

    /// Eight tasks on a node with eight devices would be 64 workers.
    fn refuse_several_launchers(&self, workers: LocalWorldSize) -> Result<(), DeviceError> {
        match self.request.node_tasks.clone().filter(|_| workers > LocalWorldSize::ONE) {
            Some(tasks) => Err(DeviceError::SeveralLaunchers {
                variable: tasks.variable,
                tasks: tasks.count,
                workers: workers.get(),
                fix: tasks.fix,
            }),
            None => Ok(()),
        }
    }

    pub(super) fn refuse_sharing(
        &mut self,
        choice: &DeviceChoice,
        workers: LocalWorldSize,
    ) -> Result<(), DeviceError> {
        if LocalRank(workers.get()).index() <= choice.devices.len() {
            return Ok(());
        }
        if self.cli_flavor == CliFlavor::Rankrun && self.request.oversubscribe.is_none() {
            let there = choice.devices.iter().map(|chosen| label(&chosen.accelerator)).collect();
            return Err(DeviceError::TooManyWorkers { workers: workers.get(), there });
        }
        if choice.kind == DeviceType::Mps {
            let text =
                format!("{} workers share the one MPS device, which has no collectives", workers.get());
            self.notices.push(Notice::Device { text });
        }
        Ok(())
    }
}
