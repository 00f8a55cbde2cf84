//! Names the chosen devices for the vendors' variables, and the settings that fix the meaning of the names. Pure.

use std::ffi::OsString;

use super::{ChoiceError, ChosenDevice, DeviceChoice, label};
use crate::device::visibility::{Hierarchy, InheritedVariables, hierarchy, mask_entry_of, pci_order};
use crate::device::{Condition, DeviceType, Machine, Part};

/// The names of the devices, in their order, and the variables that define their meaning.
type Names = (Vec<String>, Vec<(&'static str, OsString)>);

impl DeviceChoice {
    pub(super) fn set_names(&mut self, (names, pinned): Names) {
        for (device, name) in self.devices.iter_mut().zip(names) {
            device.name = name;
        }
        self.pinned = pinned;
    }
}

/// # Errors
/// The vendor's variable has no name for a device.
pub(super) fn find_names(
    choice: &DeviceChoice,
    machine: &Machine,
    inherited: &InheritedVariables,
) -> Result<Names, ChoiceError> {
    let devices = choice.devices.as_slice();
    // The runtime's own order is not known: only the user's own names are right, beside the user's own settings.
    if choice.order_unknown.is_some() && choice.list().is_some() {
        return Ok((
            devices.iter().map(|device| device.entry.clone().unwrap_or_default()).collect(),
            Vec::new(),
        ));
    }
    match choice.kind {
        DeviceType::Cuda => cuda(devices, machine),
        DeviceType::Xpu => Ok(xpu(devices, machine, inherited)),
        DeviceType::Hpu => hpu(devices),
        DeviceType::Rocm | DeviceType::Npu => {
            Ok((devices.iter().map(|device| device.accelerator.index.to_string()).collect(), Vec::new()))
        }
        DeviceType::Mps | DeviceType::Cpu => Ok((vec![String::new(); devices.len()], Vec::new())),
    }
}

/// Indices in PCI order, since many programs read the list with `int()`. UUIDs for MIG devices, if the user wrote
/// UUIDs, and on a machine with ambiguous indices: no document says whether a card in MIG mode or a lost card counts.
fn cuda(picked: &[ChosenDevice], machine: &Machine) -> Result<Names, ChoiceError> {
    let cards = pci_order(machine);
    let doubtful = cards
        .iter()
        .map(|at| &machine.accelerators[*at])
        .any(|card| card.part == Part::MigParent || card.condition != Condition::Answers);
    let is_instance = |picked: &ChosenDevice| matches!(picked.accelerator.part, Part::MigInstance { .. });
    let uuids: Option<Vec<String>> = picked.iter().map(|picked| picked.accelerator.uuid.clone()).collect();
    if let Some(picked) =
        picked.iter().find(|picked| is_instance(picked) && picked.accelerator.uuid.is_none())
    {
        return Err(ChoiceError::Nameless {
            device: label(&picked.accelerator),
            variable: "CUDA_VISIBLE_DEVICES",
            because: "the driver does not tell its UUID",
        });
    }
    let is_lost = |picked: &ChosenDevice| picked.accelerator.condition != Condition::Answers;
    if let Some(picked) = picked.iter().find(|picked| is_lost(picked) && picked.accelerator.uuid.is_none()) {
        return Err(ChoiceError::Lost {
            device: label(&picked.accelerator),
            variable: "CUDA_VISIBLE_DEVICES",
            index: picked.index,
        });
    }
    let wanted = doubtful || picked.iter().any(is_instance) || picked.iter().all(|picked| picked.by_uuid);
    if let Some(names) = uuids.filter(|_| wanted) {
        return Ok((names, Vec::new()));
    }
    let ordinal = |picked: &ChosenDevice| cards.iter().position(|at| *at == picked.position);
    let names =
        picked.iter().map(|picked| ordinal(picked).map(|ordinal| ordinal.to_string()).unwrap_or_default());
    Ok((names.collect(), vec![("CUDA_DEVICE_ORDER", "PCI_BUS_ID".into())]))
}

fn xpu(picked: &[ChosenDevice], machine: &Machine, inherited: &InheritedVariables) -> Names {
    let hierarchy = hierarchy(inherited);
    let name = |picked: &ChosenDevice| match (&picked.entry, hierarchy) {
        // Under the inherited mask a card may have lost some of its tiles.
        (Some(entry), Hierarchy::Cards) => entry.clone(),
        _ => mask_entry_of(machine, hierarchy, picked.position),
    };
    let known = |value: &&OsString| matches!(value.to_str(), Some("FLAT" | "COMPOSITE" | "COMBINED"));
    let value = inherited.ze_hierarchy.as_ref().filter(known).cloned();
    let pinned = vec![
        ("ZE_FLAT_DEVICE_HIERARCHY", value.unwrap_or_else(|| "FLAT".into())),
        ("ZE_ENABLE_PCI_ID_DEVICE_ORDER", "1".into()),
    ];
    (picked.iter().map(name).collect(), pinned)
}

fn hpu(picked: &[ChosenDevice]) -> Result<Names, ChoiceError> {
    let name = |picked: &ChosenDevice| {
        let module = picked.accelerator.module_id.map(|module| module.to_string());
        module.ok_or_else(|| ChoiceError::Nameless {
            device: label(&picked.accelerator),
            variable: "HABANA_VISIBLE_MODULES",
            because: "the driver does not tell its module's number",
        })
    };
    let names: Result<Vec<String>, ChoiceError> = picked.iter().map(name).collect();
    Ok((names?, Vec::new()))
}
