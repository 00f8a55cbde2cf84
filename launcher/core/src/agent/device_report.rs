//! Judges the workers' devices after a failure: dead, working with a warning, or unchecked. Pure. The probes
//! of `device_check` provide the machine; the result goes to the state.

use rankrun_contract::rank::LocalRank;

use crate::device::choice::number;
use crate::device::health::{Severity, findings};
use crate::device::{Accelerator, ChosenDevice, Machine, ProbeProblem, ProbeProblemKind, WorkerDevice};
use crate::job_event::{DeadDevice, DeviceWarning, JobEvent};

/// Why a device that is no longer listed counts as dead.
const NOT_LISTED: &str = "fell off the bus: it is not listed any more";

/// The result of a health check of the workers' devices.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceReport {
    /// Dead devices, ordered by the lowest local rank that used each.
    pub dead: Vec<DeadDevice>,
    /// Devices that work with a warning.
    pub warnings: Vec<DeviceWarning>,
    /// Sources that gave no answer, each described in words.
    pub unchecked: Vec<String>,
}

impl DeviceReport {
    /// One message for the user per unchecked source, warning and dead device.
    pub(super) fn events(&self) -> impl Iterator<Item = JobEvent> + use<> {
        let unchecked =
            self.unchecked.clone().into_iter().map(|why| JobEvent::DevicesUnchecked { reason: why });
        let warnings = self.warnings.clone().into_iter().map(JobEvent::DeviceWarning);
        unchecked.chain(warnings).chain(self.dead.clone().into_iter().map(JobEvent::DeviceDead))
    }
}

/// Judges the devices that the workers used; a worker on a CPU has no device to judge.
///
/// A device that is not found is dead only if every source that could list it has answered.
#[must_use]
pub fn report_devices(machine: &Machine, workers: &[WorkerDevice], own_uid: u32) -> DeviceReport {
    let mut checkup = DeviceReport::default();
    // A fallback source knows less: it lists the devices, but not their condition.
    let all = machine.troubles.iter().chain(&machine.made_good);
    let troubles: Vec<&ProbeProblem> = all.filter(|trouble| is_of_worker_device(trouble, workers)).collect();
    for (device, local_ranks) in group_by_device(workers) {
        let name = device.to_string();
        let mut dead = |why| {
            let (local_ranks, device) = (local_ranks.clone(), name.clone());
            checkup.dead.push(DeadDevice { local_ranks, device, reason: why });
        };
        let Some(accelerator) = find_accelerator(machine, device) else {
            if !troubles.iter().any(|trouble| trouble.kind == device.accelerator.kind) {
                dead(NOT_LISTED.to_owned());
            }
            continue;
        };
        let found = findings(accelerator, own_uid);
        match found.iter().find(|finding| finding.severity == Severity::Fatal) {
            Some(fatal) => dead(fatal.text.clone()),
            None => checkup.warnings.extend(
                found
                    .into_iter()
                    .filter(|finding| finding.severity == Severity::Warning)
                    .map(|finding| DeviceWarning { device: name.clone(), problem: finding.text }),
            ),
        }
    }
    for trouble in troubles {
        let text = trouble.to_string();
        if !checkup.unchecked.contains(&text) {
            checkup.unchecked.push(text);
        }
    }
    checkup
}

/// True if the trouble may hide something about the workers' devices. A missing library never listed them.
fn is_of_worker_device(trouble: &ProbeProblem, workers: &[WorkerDevice]) -> bool {
    let is_missing = matches!(trouble.what, ProbeProblemKind::Missing(_));
    !is_missing && workers.iter().any(|worker| worker.identity.is_some() && worker.kind == trouble.kind)
}

/// Each device once, with all local ranks that used it.
fn group_by_device(workers: &[WorkerDevice]) -> Vec<(&ChosenDevice, Vec<LocalRank>)> {
    let mut devices: Vec<(&ChosenDevice, Vec<LocalRank>)> = Vec::new();
    for (local_rank, worker) in (0..).map(LocalRank).zip(workers) {
        let Some(device) = &worker.identity else { continue };
        match devices.iter_mut().find(|(other, _)| other.accelerator == device.accelerator) {
            Some((_, local_ranks)) => local_ranks.push(local_rank),
            None => devices.push((device, vec![local_rank])),
        }
    }
    devices
}

/// Matches by UUID, else by PCI address, as far as both sides know them. A device without either is matched
/// by its index.
pub(crate) fn find_accelerator<'a>(machine: &'a Machine, device: &ChosenDevice) -> Option<&'a Accelerator> {
    let known = &device.accelerator;
    let all = || machine.accelerators.iter().filter(|found| found.kind == known.kind);
    let by_uuid = || all().find(|found| known.uuid.is_some() && found.uuid == known.uuid);
    let without_uuid = |found: &&Accelerator| found.uuid.is_none() || known.uuid.is_none();
    let by_pci = || all().filter(without_uuid).find(|found| known.pci.is_some() && found.pci == known.pci);
    let is_nameless = |found: &&Accelerator| found.uuid.is_none() && found.pci.is_none();
    let by_index = || all().filter(is_nameless).find(|found| number(found) == number(known));
    by_uuid().or_else(by_pci).or_else(by_index)
}

#[cfg(test)]
#[path = "device_report_tests.rs"]
mod tests;
