//! The vendors' visibility variables, read with each vendor's own rules. Pure.
//!
//! What the vendors' documents leave open is decided in the file of the vendor, and said there.

mod ascend;
mod cuda;
mod habana;
mod level_zero;
mod rocm;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};

use super::choice::ChoiceWarning;
use super::{Accelerator, ChosenDevice, CudaOrder, DeviceChoice, DeviceType, Machine, SelectionMethod};

pub(super) use cuda::pci_order;
pub(super) use level_zero::{Hierarchy, hierarchy, mask_entry_of};

/// The inherited variables; `None` where a variable is not set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InheritedVariables {
    /// The value of `CUDA_VISIBLE_DEVICES`, if it is set.
    pub cuda: Option<OsString>,
    /// The value of `CUDA_DEVICE_ORDER`, if it is set.
    pub cuda_order: Option<OsString>,
    /// The value of `HIP_VISIBLE_DEVICES`, if it is set.
    pub hip: Option<OsString>,
    /// The value of `ROCR_VISIBLE_DEVICES`, if it is set.
    pub rocr: Option<OsString>,
    /// The value of `ZE_AFFINITY_MASK`, if it is set.
    pub ze_mask: Option<OsString>,
    /// The value of `ZE_FLAT_DEVICE_HIERARCHY`, if it is set.
    pub ze_hierarchy: Option<OsString>,
    /// The value of `ZE_ENABLE_PCI_ID_DEVICE_ORDER`, if it is set.
    pub ze_pci_order: Option<OsString>,
    /// The value of `HABANA_VISIBLE_MODULES`, if it is set.
    pub habana: Option<OsString>,
    /// The value of `ASCEND_RT_VISIBLE_DEVICES`, if it is set.
    pub ascend: Option<OsString>,
}

impl IndexOrder {
    /// Whether the order of the untouched runtime matters.
    pub(super) const fn is_runtime_order(self) -> bool {
        matches!(self, Self::Runtime | Self::Torch)
    }
}

impl InheritedVariables {
    /// From a lookup in the environment.
    #[must_use]
    pub fn of<'a>(variable: impl Fn(&str) -> Option<&'a std::ffi::OsStr>) -> Self {
        let get = |name: &str| variable(name).map(ToOwned::to_owned);
        Self {
            cuda: get("CUDA_VISIBLE_DEVICES"),
            cuda_order: get("CUDA_DEVICE_ORDER"),
            hip: get("HIP_VISIBLE_DEVICES"),
            rocr: get("ROCR_VISIBLE_DEVICES"),
            ze_mask: get("ZE_AFFINITY_MASK"),
            ze_hierarchy: get("ZE_FLAT_DEVICE_HIERARCHY"),
            ze_pci_order: get("ZE_ENABLE_PCI_ID_DEVICE_ORDER"),
            habana: get("HABANA_VISIBLE_MODULES"),
            ascend: get("ASCEND_RT_VISIBLE_DEVICES"),
        }
    }
}

/// Asks the CUDA driver for its devices under `FASTEST_FIRST`.
pub type AskCuda<'a> = &'a dyn Fn() -> CudaOrder;

/// The order in which indices count the devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexOrder {
    /// As the runtime of an untouched worker counts them.
    Runtime,
    /// As a user types an index: in the runtime's order if a variable for it is inherited, and otherwise as the
    /// vendor's tool shows the devices.
    Typed,
    /// In any order, since nothing depends on it: as the vendor's tool shows them.
    Named,
    /// As PyTorch's `device_count` counts them for an untouched worker: an NVIDIA card in MIG mode is one device, and
    /// of a list of MIG devices the driver shows the first alone.
    Torch,
}

/// The devices of one type that a process with these variables sees, and in which order. The CUDA driver is asked only
/// where its answer matters.
#[must_use]
pub(crate) fn read_visible_devices(
    kind: DeviceType,
    machine: &Machine,
    inherited: &InheritedVariables,
    index_order: IndexOrder,
    cuda_order: AskCuda<'_>,
) -> DeviceChoice {
    let mut visible = match kind {
        DeviceType::Cuda => cuda::read(machine, inherited, index_order, cuda_order),
        DeviceType::Rocm => rocm::read(machine, inherited),
        DeviceType::Xpu => level_zero::read(machine, inherited, index_order),
        DeviceType::Hpu => habana::read(machine, inherited, index_order),
        DeviceType::Npu => ascend::read(machine, inherited),
        DeviceType::Mps | DeviceType::Cpu => DeviceChoice::of(kind, devices_of_kind(machine, kind)),
    };
    if let Some((variable, _)) = &visible.variable {
        for device in &mut visible.devices {
            device.how = SelectionMethod::Inherited { variable, entry: device.entry.clone() };
        }
    }
    visible
}

impl DeviceChoice {
    /// The devices that a list names, in its order; `--devices` counts within it.
    fn listed(
        kind: DeviceType,
        mut devices: Vec<ChosenDevice>,
        (variable, value): (&'static str, &OsStr),
        dropped: &[String],
    ) -> Self {
        for (index, device) in devices.iter_mut().enumerate() {
            device.index = u32::try_from(index).ok();
        }
        let mut visible = Self::of(kind, devices);
        visible.variable = Some((variable, value.to_owned()));
        // One warning for one variable, however many entries it loses.
        if !dropped.is_empty() {
            let because = dropped.join("; ");
            visible.warnings.push(ChoiceWarning::Dropped { variable, value: value.to_owned(), because });
        }
        visible
    }
}

impl ChosenDevice {
    fn of(machine: &Machine, at: usize) -> Self {
        Self::new(at, machine.accelerators[at].clone())
    }

    /// `text` is the entry as the vendor's parser understands it: `1` for `1gpu`.
    fn named(self, text: impl Into<String>, is_uuid: bool) -> Self {
        Self { entry: Some(text.into()), by_uuid: is_uuid, ..self }
    }
}

/// Every device of a type, by index.
fn devices_of_kind(machine: &Machine, kind: DeviceType) -> Vec<ChosenDevice> {
    let of_kind = |(at, accelerator): (usize, &Accelerator)| (accelerator.kind == kind).then_some(at);
    let mut devices: Vec<ChosenDevice> = machine
        .accelerators
        .iter()
        .enumerate()
        .filter_map(of_kind)
        .map(|at| ChosenDevice::of(machine, at))
        .collect();
    devices.sort_by_key(|device| device.accelerator.index);
    devices
}

/// The value of a variable that is set and not empty; some vendors treat an empty value as unset.
fn not_empty(value: Option<&OsString>) -> Option<&OsString> {
    value.filter(|value| !value.is_empty())
}
