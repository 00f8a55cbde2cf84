//! The CPUs that each worker is bound to (`--numa-binding`).

use rankrun_contract::rank::LocalRank;

use super::Assigner;
use crate::device::affinity::Bindings;
use crate::device::{DeviceChoice, Machine};
use crate::device_assignment::DeviceError;
use crate::spec::setting::Setting;

impl Assigner<'_> {
    /// `--numa-binding`
    pub(super) fn bind_to_cpus(
        &self,
        machine: &Machine,
        choice: &mut DeviceChoice,
    ) -> Result<(), DeviceError> {
        let Some(Setting { origin, value: binding }) = &self.request.binding else { return Ok(()) };
        let nodes: Vec<u32> =
            choice.devices.iter().map(|chosen| chosen.accelerator.numa_node.unwrap_or(0)).collect();
        let layout = machine.cpus.clone().unwrap_or_default();
        let bindings = Bindings { layout: &layout, allowed: &self.node.allowed_cpus, nodes: &nodes };
        let shares_devices = !self.passes_variables(choice);
        for (rank, worker) in (0..).map(LocalRank).zip(&mut choice.workers) {
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
