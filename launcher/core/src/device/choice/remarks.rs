//! Warnings about the chosen devices, and about devices that cannot be hidden: facts of the machine that the user may
//! have missed. It changes no choice. Pure.

use super::{ChoiceWarning, ChosenDevice, DeviceChoice, label};
use crate::device::{Accelerator, DeviceType, Machine, Part, health};

/// The modules that Gaudi's documents allow together, beside all.
const GAUDI_GROUPS: [&[u32]; 6] = [&[0, 1], &[2, 3], &[4, 5], &[6, 7], &[0, 1, 2, 3], &[4, 5, 6, 7]];

pub(super) fn add_remarks(choice: &mut DeviceChoice, machine: &Machine) {
    let DeviceChoice { devices, warnings, .. } = choice;
    small_memory(devices, warnings);
    gaudi_group(devices, machine, warnings);
    if devices.first().is_none_or(|device| device.accelerator.kind == DeviceType::Cuda) {
        let has_instance = |card: &Accelerator| {
            let instance = Part::MigInstance { gpu: card.index };
            machine.accelerators.iter().any(|device| device.kind == card.kind && device.part == instance)
        };
        let empty =
            machine.accelerators.iter().filter(|card| card.part == Part::MigParent && !has_instance(card));
        warnings.extend(empty.map(|card| ChoiceWarning::NoInstances { device: label(card) }));
    }
}

/// Devices that workers on CPUs still see.
pub(super) fn about_hidden(choice: &mut DeviceChoice, machine: &Machine) {
    for kind in &choice.hidden {
        let reason = match kind {
            DeviceType::Xpu => "no value of `ZE_AFFINITY_MASK` means none",
            DeviceType::Hpu => "no value of `HABANA_VISIBLE_MODULES` means none",
            // All other types can be hidden, and on Apple's machines a program chooses the device by itself.
            _ => continue,
        };
        let matters = |device: &&Accelerator| device.kind == *kind && !device.integrated;
        if machine.accelerators.iter().any(|device| matters(&device)) {
            choice.warnings.push(ChoiceWarning::StillVisible { kind: *kind, because: reason });
        }
    }
}

fn small_memory(devices: &[ChosenDevice], warnings: &mut Vec<ChoiceWarning>) {
    let accelerators: Vec<&Accelerator> = devices.iter().map(|device| &device.accelerator).collect();
    let small = health::small_memory_findings(&accelerators);
    warnings.extend(small.into_iter().map(|(at, finding)| ChoiceWarning::SmallMemory {
        device: label(accelerators[at]),
        because: finding.text,
    }));
}

fn gaudi_group(devices: &[ChosenDevice], machine: &Machine, warnings: &mut Vec<ChoiceWarning>) {
    let Some(mut modules) =
        devices.iter().map(|device| device.accelerator.module_id).collect::<Option<Vec<_>>>()
    else {
        return;
    };
    modules.sort_unstable();
    let there = machine.accelerators.iter().filter(|device| device.kind == DeviceType::Hpu).count();
    let is_part = modules.len() > 1 && modules.len() < there;
    if is_part && !GAUDI_GROUPS.contains(&modules.as_slice()) {
        warnings.push(ChoiceWarning::Unsupported {
            kind: DeviceType::Hpu,
            because: "Gaudi supports part of a node only as the modules 0,1 or 2,3 or 4,5 or 6,7 or 0-3 or 4-7",
        });
    }
}
