//! Workers on the CPUs, and the reason for them.

use super::{Assigner, virtual_devices};
use crate::device::choice::ChoiceWarning;
use crate::device::cpu_reason::{CpuFacts, find_cpu_reason};
use crate::device::handover::assign;
use crate::device::{DeviceChoice, DeviceType, Machine, Visibility};
use crate::device_assignment::DeviceError;
use crate::spec::CliFlavor;
use crate::spec::device_request::WorkerCount;
use crate::spec::setting::Setting;

impl Assigner<'_> {
    /// Workers without a device; known to be on the CPUs where there is no sign of an accelerator.
    pub(super) fn without_probe(&self, has_sign: bool) -> Result<DeviceChoice, DeviceError> {
        let reason = if has_sign { None } else { self.reason(None, &[]) };
        let mut choice = self.on_cpus(DeviceChoice::cpus(Vec::new()), reason)?;
        // A count of CPUs means workers on them.
        if has_sign && self.request.worker_count != WorkerCount::Cpus {
            choice.workers.iter_mut().for_each(|worker| worker.is_known_to_runtime = false);
        }
        Ok(choice)
    }

    /// Workers without a device; the user may be told the reason.
    pub(super) fn on_cpus(
        &self,
        choice: DeviceChoice,
        reason: Option<String>,
    ) -> Result<DeviceChoice, DeviceError> {
        if let Some(Setting { origin, value }) = &self.request.binding {
            let (origin, value) = (origin.clone(), value.as_str().to_owned());
            return Err(DeviceError::NeedsAccelerator { origin, value });
        }
        let visibility = self.request.chooses_devices().then(|| self.requested_visibility());
        let mut choice = assign(choice, &self.inherited, self.workers_on_cpus().get(), visibility);
        choice.cpu_reason = reason.filter(|_| self.explains_cpus());
        self.pass_list_entries(&mut choice)?;
        Ok(choice)
    }

    /// Whether workers on the CPUs are explained by a line.
    pub(super) fn explains_cpus(&self) -> bool {
        let is_requested = self.request.is_for_cpus() || self.request.worker_count == WorkerCount::Cpus;
        self.cli_flavor == CliFlavor::Rankrun && !self.request.quiet && !is_requested
    }

    /// Whether workers get the entries of the inherited list one by one.
    pub(super) const fn passes_list_entries(&self) -> bool {
        !self.request.chooses_devices() && self.request.virtual_local_rank
    }

    /// The reason why the choice found no device on this machine.
    pub(super) fn reason_of_choice(&self, machine: &Machine, warnings: &[ChoiceWarning]) -> Option<String> {
        // torch's option passes each entry on unchecked.
        let is_unchecked = self.passes_list_entries() && !machine.accelerators.is_empty();
        if is_unchecked { None } else { self.reason(Some(machine), warnings) }
    }

    /// The reason why there is no device; `None` where a variable asks for that.
    fn reason(&self, machine: Option<&Machine>, warnings: &[ChoiceWarning]) -> Option<String> {
        find_cpu_reason(&CpuFacts {
            variable: &|name| self.node.variable(name).map(|value| value.to_string_lossy().into_owned()),
            machine,
            warnings,
            device_nodes: &self.node.device_nodes,
            has_accelerator_sign: self.node.has_accelerator_sign,
        })
    }

    /// `--virtual-local-rank`, if it is set and the launcher chooses no devices.
    pub(super) fn pass_list_entries(&self, choice: &mut DeviceChoice) -> Result<(), DeviceError> {
        if !self.passes_list_entries() {
            return Ok(());
        }
        virtual_devices::add_list_entries(self.node, &mut choice.workers)?;
        choice.visibility = Visibility::Own;
        let on_devices = choice.workers.iter_mut().filter(|worker| worker.kind != DeviceType::Cpu);
        on_devices.for_each(|worker| worker.ordinal = 0);
        Ok(())
    }
}
