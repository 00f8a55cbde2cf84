//! Chosen devices → the device of each worker, its variables, and the CPUs that it is bound to.

use std::ffi::OsString;

use rankrun_contract::rank::{LocalRank, LocalWorldSize};

use super::{Assigner, device_lines};
use crate::device::affinity::Bindings;
use crate::device::choice::{ChoiceWarning, DeviceChoice};
use crate::device::handover::{Handover, assign_worker_variables};
use crate::device::worker_device::{Device, WorkerDevice};
use crate::device::{DeviceType, Machine, Visibility};
use crate::device_assignment::DeviceError;
use crate::notice::Notice;
use crate::spec::setting::Setting;

impl Assigner<'_> {
    /// Each worker takes the device of its number, as under torchrun.
    pub(super) fn inherited_devices(
        &self,
        choice: &DeviceChoice,
        workers: LocalWorldSize,
    ) -> Result<(Vec<WorkerDevice>, Visibility), DeviceError> {
        let mut worker_devices: Vec<WorkerDevice> = (0..workers.get())
            .map(|rank| {
                let position = Some(LocalRank(rank).index()).filter(|at| *at < choice.devices.len());
                worker_device(choice, position, (LocalRank(rank), rank), Vec::new())
            })
            .collect();
        if is_order_unknown(choice) {
            worker_devices.iter_mut().for_each(|worker| worker.device.identity = None);
        }
        let visibility = self.pass_list_entries(&mut worker_devices)?;
        if visibility == Visibility::Own {
            let on_devices = worker_devices.iter_mut().filter(|worker| worker.device.kind != DeviceType::Cpu);
            on_devices.for_each(|worker| worker.device.ordinal = 0);
        }
        Ok((worker_devices, visibility))
    }

    /// The vendors' variables tell each worker its device.
    pub(super) fn chosen_devices(
        &mut self,
        choice: &DeviceChoice,
        workers: LocalWorldSize,
    ) -> (Vec<WorkerDevice>, Visibility) {
        let requested = self.requested_visibility();
        let Handover { visibility, forced_own_reason: forced, workers } =
            assign_worker_variables(choice, &self.inherited, workers.get(), requested);
        // One worker that sees its one device needs no explanation.
        let is_surprising = workers.len() > 1 || choice.devices.len() > 1;
        if let Some(reason) = forced.filter(|_| is_surprising) {
            let text = format!("each worker sees its own device alone, as LOCAL_RANK 0: {reason}");
            self.notices.push(Notice::Device { text });
        }
        let is_pinned = !choice.pinned.is_empty();
        let worker_devices = (0..).zip(workers).map(|(rank, assigned)| {
            let number = (LocalRank(rank), assigned.ordinal);
            let mut worker = worker_device(choice, assigned.device, number, assigned.variables);
            // Without variables, or with the user's own numbers, the driver's order decides.
            if is_order_unknown(choice) && (worker.variables.is_empty() || !is_pinned) {
                worker.device.identity = None;
            }
            worker
        });
        (worker_devices.collect(), visibility)
    }

    /// `--numa-binding`
    pub(super) fn bind_to_cpus(
        &self,
        machine: &Machine,
        choice: &DeviceChoice,
        worker_devices: &mut [WorkerDevice],
    ) -> Result<(), DeviceError> {
        let Some(Setting { origin, value: binding }) = &self.request.binding else { return Ok(()) };
        let allowed = self.node.facts.world().allowed_cpus();
        let nodes: Vec<u32> =
            choice.devices.iter().map(|chosen| chosen.accelerator.numa_node.unwrap_or(0)).collect();
        let layout = machine.cpus.clone().unwrap_or_default();
        let bindings = Bindings { layout: &layout, allowed: &allowed, nodes: &nodes };
        let shares_devices = !self.passes_variables(choice);
        for (rank, worker) in (0..).map(LocalRank).zip(worker_devices) {
            let shared = rank.index().checked_rem(nodes.len()).filter(|_| shares_devices);
            let device = shared.unwrap_or_else(|| rank.index());
            let cpus = bindings.cpus(*binding, device);
            worker.cpus = Some(cpus.map_err(|error| DeviceError::Binding {
                origin: origin.clone(),
                value: binding.as_str().to_owned(),
                local_rank: rank,
                error,
            })?);
        }
        Ok(())
    }
}

/// Whether the driver decides which device has which number.
fn is_order_unknown(choice: &DeviceChoice) -> bool {
    choice.warnings.iter().any(|warning| matches!(warning, ChoiceWarning::OrderUnknown { .. }))
}

/// A worker on one of the chosen devices, with the number under which it finds that, or on the CPUs.
fn worker_device(
    choice: &DeviceChoice,
    position: Option<usize>,
    (local_rank, ordinal): (LocalRank, u32),
    variables: Vec<(&'static str, Option<OsString>)>,
) -> WorkerDevice {
    let device = match position.and_then(|at| choice.devices.get(at)) {
        Some(chosen) => {
            let identity = Some(device_lines::device_identity(chosen));
            Device { kind: choice.kind, ordinal, identity, is_known_to_runtime: true }
        }
        None => Device::cpu(local_rank.0),
    };
    WorkerDevice { device, variables, cpus: None }
}
