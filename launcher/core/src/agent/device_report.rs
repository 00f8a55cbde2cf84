//! Judges the workers' devices after a failure: dead, working with a warning, or unchecked. Pure. The probes
//! of `device_check` provide the machine; the result goes to the state.

use rankrun_contract::rank::LocalRank;

use crate::device::health::{Severity, findings};
use crate::device::worker_device::{Device, DeviceIdentity, WorkerDevice};
use crate::device::{Accelerator, Machine, ProbeProblem, ProbeProblemKind};
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
pub fn report_devices(machine: &Machine, worker_devices: &[WorkerDevice], own_uid: u32) -> DeviceReport {
    let mut checkup = DeviceReport::default();
    // A fallback source knows less: it lists the devices, but not their condition.
    let all = machine.troubles.iter().chain(&machine.made_good);
    let troubles: Vec<&ProbeProblem> =
        all.filter(|trouble| is_of_worker_device(trouble, worker_devices)).collect();
    for (device, identity, local_ranks) in group_by_device(worker_devices) {
        let name = identity.to_string();
        let mut dead = |why| {
            let (local_ranks, device) = (local_ranks.clone(), name.clone());
            checkup.dead.push(DeadDevice { local_ranks, device, reason: why });
        };
        let Some(accelerator) = find_accelerator(machine, device, identity) else {
            if !troubles.iter().any(|trouble| trouble.kind == device.kind) {
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
fn is_of_worker_device(trouble: &ProbeProblem, worker_devices: &[WorkerDevice]) -> bool {
    let is_missing = matches!(trouble.what, ProbeProblemKind::Missing(_));
    !is_missing
        && worker_devices.iter().any(|worker_device| {
            worker_device.device.identity.is_some() && worker_device.device.kind == trouble.kind
        })
}

/// Each device once, with all local ranks that used it.
fn group_by_device(worker_devices: &[WorkerDevice]) -> Vec<(&Device, &DeviceIdentity, Vec<LocalRank>)> {
    let mut devices: Vec<(&Device, &DeviceIdentity, Vec<LocalRank>)> = Vec::new();
    for (local_rank, worker_device) in (0..).map(LocalRank).zip(worker_devices) {
        let Some(identity) = &worker_device.device.identity else { continue };
        let same = |(device, other, _): &&mut (&Device, &DeviceIdentity, _)| {
            device.kind == worker_device.device.kind
                && (&other.index, &other.uuid, other.pci) == (&identity.index, &identity.uuid, identity.pci)
        };
        match devices.iter_mut().find(same) {
            Some((_, _, local_ranks)) => local_ranks.push(local_rank),
            None => devices.push((&worker_device.device, identity, vec![local_rank])),
        }
    }
    devices
}

/// Matches by UUID, else by PCI address, as far as both sides know them. A device without either is matched
/// by its index.
pub fn find_accelerator<'a>(
    machine: &'a Machine,
    device: &Device,
    identity: &DeviceIdentity,
) -> Option<&'a Accelerator> {
    let all = || machine.accelerators.iter().filter(|found| found.kind == device.kind);
    let by_uuid = || all().find(|found| identity.uuid.is_some() && found.uuid == identity.uuid);
    let without_uuid = |found: &&Accelerator| found.uuid.is_none() || identity.uuid.is_none();
    let by_pci =
        || all().filter(without_uuid).find(|found| identity.pci.is_some() && found.pci == identity.pci);
    let is_nameless = |found: &&Accelerator| found.uuid.is_none() && found.pci.is_none();
    let by_index = || all().filter(is_nameless).find(|found| found.index.to_string() == identity.index);
    by_uuid().or_else(by_pci).or_else(by_index)
}

#[cfg(test)]
#[path = "device_report_tests.rs"]
mod tests;
