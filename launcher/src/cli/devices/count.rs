//! How many workers there are, and whether that many may share the devices.

use rankrun_contract::rank::{LocalRank, LocalWorldSize};

use super::wishes::Count;
use super::{Devices, Resolver};
use crate::cli::error::CliError;
use crate::cli::scheduler::find_step;
use crate::cli::torchrun::NPROC_PER_NODE;
use crate::device::DeviceType;
use crate::device::assignment::DeviceError;
use crate::device::choice::{Choice, label};
use crate::facts::Facts;
use crate::notice::Notice;
use crate::spec::CliFlavor;
use crate::spec::Verbosity;

/// The permitted CPUs.
fn count_cpus(facts: &Facts) -> LocalWorldSize {
    let cpus = u32::try_from(facts.world().affinity_cpu_count()).unwrap_or(u32::MAX);
    LocalWorldSize::new(cpus).unwrap_or(LocalWorldSize::ONE)
}

impl Resolver<'_> {
    pub(super) fn workers_on_cpus(&self) -> LocalWorldSize {
        match &self.wishes.count {
            Count::Default | Count::Of { .. } => LocalWorldSize::ONE,
            Count::Number(number) => *number,
            Count::Cpus | Count::Auto => count_cpus(self.settings.facts),
        }
    }

    pub(super) fn workers(&self, choice: &Choice) -> Result<LocalWorldSize, DeviceError> {
        let devices = u32::try_from(choice.devices.len()).ok().and_then(LocalWorldSize::new);
        match &self.wishes.count {
            Count::Number(number) => Ok(*number),
            Count::Cpus => Ok(count_cpus(self.settings.facts)),
            Count::Auto => Ok(devices.unwrap_or_else(|| count_cpus(self.settings.facts))),
            // A choice among devices of these types has one at least.
            Count::Of { .. } => Ok(devices.unwrap_or(LocalWorldSize::ONE)),
            Count::Default if self.settings.cli_flavor == CliFlavor::Torchrun => Ok(LocalWorldSize::ONE),
            Count::Default => {
                let workers = devices.unwrap_or(LocalWorldSize::ONE);
                self.refuse_second_launcher(workers)?;
                Ok(workers)
            }
        }
    }

    pub(super) fn torchs_words(&self, word: &str) -> Option<&'static str> {
        match (self.settings.cli_flavor, word) {
            (CliFlavor::Torchrun, "gpu") => Some("Cuda is not available."),
            (CliFlavor::Torchrun, "xpu") => Some("Xpu is not available."),
            _ => None,
        }
    }

    /// Eight tasks on a node with eight devices would be 64 workers.
    fn refuse_second_launcher(&self, workers: LocalWorldSize) -> Result<(), DeviceError> {
        let Some(step) = find_step(self.settings.facts).filter(|_| workers > LocalWorldSize::ONE) else {
            return Ok(());
        };
        step.here.map_or(Ok(()), |tasks| {
            Err(DeviceError::SeveralLaunchers {
                variable: tasks.variable,
                tasks: tasks.count,
                workers: workers.get(),
                fix: format!("{} rankrun …", step.one_per_node()),
            })
        })
    }

    pub(super) fn refuse_sharing(
        &mut self,
        choice: &Choice,
        workers: LocalWorldSize,
    ) -> Result<(), DeviceError> {
        let ours = self.settings.cli_flavor == CliFlavor::Rankrun;
        if LocalRank(workers.get()).index() <= choice.devices.len() {
            return Ok(());
        }
        if ours && !self.wishes.oversubscribe {
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

    /// torch's own lines about the number of workers, for whoever asked to hear them.
    pub(super) fn tell_count(&mut self, devices: &Devices) -> Result<(), CliError> {
        if self.settings.cli_flavor == CliFlavor::Rankrun || self.verbosity < Verbosity::Info {
            return Ok(());
        }
        let said = self.settings.text(&NPROC_PER_NODE)?.map_or_else(|| "1".to_owned(), |said| said.value);
        let text = format!("Using nproc_per_node={said}.");
        self.notices.push(Notice::Detail { text, torch_line: Some(855) });
        let what = match (&self.wishes.count, devices.seats.first().map(|seat| seat.device.kind)) {
            (Count::Default | Count::Number(_), _) => return Ok(()),
            (Count::Of { word, .. }, _) => word.clone(),
            (Count::Auto, Some(DeviceType::Rocm)) => DeviceType::Cuda.to_string(),
            (Count::Auto, Some(kind)) => kind.to_string(),
            (Count::Cpus | Count::Auto, _) => DeviceType::Cpu.to_string(),
        };
        let count = devices.workers;
        let text = format!(
            "Using nproc_per_node={said}, setting nproc_per_node to {count} since the instance has {count} {what}"
        );
        self.notices.push(Notice::Detail { text, torch_line: Some(888) });
        Ok(())
    }
}
