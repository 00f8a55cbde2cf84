//! Workers on the CPUs, and the line with the reason.

use rankrun_contract::rank::{LocalRank, LocalWorldSize};

use super::{Assigner, DeviceAssignment, assignment, presence, virtual_devices};
use crate::device::choice::{ChoiceWarning, DeviceChoice};
use crate::device::cpu_reason::{CpuFacts, CpuReason, find_cpu_reason};
use crate::device::handover::assign_worker_variables;
use crate::device::worker_device::WorkerDevice;
use crate::device::{Machine, Visibility};
use crate::device_assignment::DeviceError;
use crate::notice::Notice;
use crate::plain::plain;
use crate::spec::CliFlavor;
use crate::spec::device_request::WorkerCount;
use crate::spec::setting::Setting;

/// The way that led to the CPUs.
#[derive(Clone, Copy)]
pub(super) enum CpuCause<'a> {
    /// An option asks for the CPUs.
    Requested,
    /// No probe has run, and there may be accelerators.
    Unknown,
    /// No probe has run, since the machine shows no sign of an accelerator.
    NoSign,
    /// A library failed, and no driver has made a device node.
    LibraryFailed(&'a DeviceError),
    /// The choice among the devices of this machine.
    Choice(&'a Machine, &'a [ChoiceWarning]),
}

impl Assigner<'_> {
    /// Workers without a device; known to be on the CPUs where there is no sign of an accelerator.
    pub(super) fn without_probe(&mut self, has_sign: bool) -> Result<DeviceAssignment, DeviceError> {
        let cause = if has_sign { CpuCause::Unknown } else { CpuCause::NoSign };
        let mut assignment = self.on_cpus(None, cause)?;
        // A count of CPUs means workers on them.
        if has_sign && self.request.worker_count != WorkerCount::Cpus {
            let devices = assignment.worker_devices.iter_mut().map(|worker| &mut worker.device);
            devices.for_each(|device| device.is_known_to_runtime = false);
        }
        Ok(assignment)
    }

    /// Workers without a device; `hide` is the choice that hides the accelerators from them.
    pub(super) fn on_cpus(
        &self,
        hide: Option<&DeviceChoice>,
        cause: CpuCause<'_>,
    ) -> Result<DeviceAssignment, DeviceError> {
        if let Some(Setting { origin, value }) = &self.request.binding {
            let (origin, value) = (origin.clone(), value.as_str().to_owned());
            return Err(DeviceError::NeedsAccelerator { origin, value });
        }
        let workers = self.workers_on_cpus();
        let mut worker_devices: Vec<WorkerDevice> =
            (0..workers.get()).map(|rank| WorkerDevice::cpu(LocalRank(rank))).collect();
        let visibility = match hide {
            Some(choice) => {
                let visibility = self.requested_visibility();
                let handover = assign_worker_variables(choice, &self.inherited, workers.get(), visibility);
                for (worker, assigned) in worker_devices.iter_mut().zip(handover.workers) {
                    worker.variables = assigned.variables;
                }
                handover.visibility
            }
            None if self.request.chooses_devices() => self.requested_visibility(),
            None => self.pass_list_entries(&mut worker_devices)?,
        };
        let lines = self.cpu_line(workers, cause).into_iter().collect();
        Ok(assignment(workers, worker_devices, visibility, lines))
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

    fn cpu_line(&self, workers: LocalWorldSize, cause: CpuCause<'_>) -> Option<Notice> {
        if !self.explains_cpus() {
            return None;
        }
        let reason = match cause {
            CpuCause::Requested | CpuCause::Unknown => return None,
            // torch's option passes each entry on unchecked.
            CpuCause::Choice(machine, _)
                if self.passes_list_entries() && !machine.accelerators.is_empty() =>
            {
                return None;
            }
            CpuCause::NoSign => self.reason(None, &[])?,
            CpuCause::LibraryFailed(error) => format!("{error}; there is no device node"),
            CpuCause::Choice(machine, warnings) => self.reason(Some(machine), warnings)?,
        };
        let ranks = match workers.get() {
            1 => "rank 0".to_owned(),
            count => format!("ranks 0-{}", count - 1),
        };
        Some(Notice::OnCpus { line: format!("{ranks} → cpu: {}", plain(&reason)) })
    }

    /// The reason why there is no device; `None` where a variable asks for that.
    fn reason(&self, machine: Option<&Machine>, warnings: &[ChoiceWarning]) -> Option<String> {
        let facts = self.node.facts;
        let evidence = CpuFacts {
            variable: &|name| facts.variable(name).map(|value| value.to_string_lossy().into_owned()),
            machine,
            warnings,
            has_node: &|kind| machine.is_some() && presence::has_node(facts.world(), kind),
            has_accelerator_sign: &|| {
                machine.is_some()
                    && presence::has_accelerator_sign(facts.world(), facts.variable("LD_LIBRARY_PATH"))
            },
        };
        match find_cpu_reason(&evidence) {
            CpuReason::Requested => None,
            CpuReason::Because(reason) => Some(reason),
        }
    }

    /// `--virtual-local-rank`, if it is set.
    pub(super) fn pass_list_entries(
        &self,
        worker_devices: &mut [WorkerDevice],
    ) -> Result<Visibility, DeviceError> {
        if !self.request.virtual_local_rank {
            return Ok(Visibility::Whole);
        }
        virtual_devices::add_list_entries(self.node.facts, worker_devices)?;
        Ok(Visibility::Own)
    }
}
