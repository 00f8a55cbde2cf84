//! Names the chosen devices for the vendors' variables, and the settings that fix the meaning of the names. Pure.

use std::ffi::OsString;

use super::typed::{Candidate, CandidatePool};
use super::{ChoiceError, label};
use crate::device::visibility::{Hierarchy, InheritedVariables, hierarchy, mask_entry_of, pci_order};
use crate::device::{Condition, DeviceType, Part};

/// The names of the devices, in their order.
#[derive(Debug, Default)]
pub(super) struct DeviceNames {
    pub(super) names: Vec<String>,
    pub(super) pinned: Vec<(&'static str, OsString)>,
}

impl DeviceNames {
    /// `count` devices without a name.
    pub(super) fn unnamed(count: usize) -> Self {
        Self { names: vec![String::new(); count], pinned: Vec::new() }
    }
}

pub(super) fn of(
    picked: &[Candidate],
    pool: &CandidatePool<'_>,
    inherited: &InheritedVariables,
) -> Result<DeviceNames, ChoiceError> {
    // The runtime's own order is not known: only the user's own names are right, beside the user's own settings.
    if pool.visible.order_unknown.is_some() && pool.visible.list().is_some() {
        return Ok(DeviceNames { names: as_written(picked), pinned: Vec::new() });
    }
    let index = |picked: &Candidate| picked.device.accelerator.index.to_string();
    match pool.kind {
        DeviceType::Cuda => cuda(picked, pool),
        DeviceType::Xpu => Ok(xpu(picked, pool, inherited)),
        DeviceType::Hpu => hpu(picked),
        DeviceType::Rocm | DeviceType::Npu => {
            Ok(DeviceNames { names: picked.iter().map(index).collect(), pinned: Vec::new() })
        }
        DeviceType::Mps | DeviceType::Cpu => {
            Ok(DeviceNames { names: vec![String::new(); picked.len()], pinned: Vec::new() })
        }
    }
}

fn as_written(picked: &[Candidate]) -> Vec<String> {
    let text = |picked: &Candidate| picked.device.entry.as_ref().map(|entry| entry.text.clone());
    picked.iter().map(|picked| text(picked).unwrap_or_default()).collect()
}

/// Indices in PCI order, since many programs read the list with `int()`. UUIDs for MIG devices, if the user wrote
/// UUIDs, and on a machine with ambiguous indices: no document says whether a card in MIG mode or a lost card counts.
fn cuda(picked: &[Candidate], pool: &CandidatePool<'_>) -> Result<DeviceNames, ChoiceError> {
    let cards = pci_order(pool.machine);
    let doubtful = cards
        .iter()
        .map(|at| &pool.machine.accelerators[*at])
        .any(|card| card.part == Part::MigParent || card.condition != Condition::Answers);
    let is_instance = |picked: &Candidate| matches!(picked.device.accelerator.part, Part::MigInstance { .. });
    let uuids: Option<Vec<String>> =
        picked.iter().map(|picked| picked.device.accelerator.uuid.clone()).collect();
    if let Some(picked) =
        picked.iter().find(|picked| is_instance(picked) && picked.device.accelerator.uuid.is_none())
    {
        return Err(ChoiceError::Nameless {
            device: label(&picked.device.accelerator),
            variable: "CUDA_VISIBLE_DEVICES",
            because: "the driver does not tell its UUID",
        });
    }
    let is_lost = |picked: &Candidate| picked.device.accelerator.condition != Condition::Answers;
    if let Some(picked) =
        picked.iter().find(|picked| is_lost(picked) && picked.device.accelerator.uuid.is_none())
    {
        return Err(ChoiceError::Lost {
            device: label(&picked.device.accelerator),
            variable: "CUDA_VISIBLE_DEVICES",
            index: picked.device.index,
        });
    }
    let wanted = doubtful || picked.iter().any(is_instance) || picked.iter().all(|picked| picked.by_uuid);
    if let Some(names) = uuids.filter(|_| wanted) {
        return Ok(DeviceNames { names, pinned: Vec::new() });
    }
    let ordinal = |picked: &Candidate| cards.iter().position(|at| *at == picked.device.position);
    let names =
        picked.iter().map(|picked| ordinal(picked).map(|ordinal| ordinal.to_string()).unwrap_or_default());
    Ok(DeviceNames { names: names.collect(), pinned: vec![("CUDA_DEVICE_ORDER", "PCI_BUS_ID".into())] })
}

fn xpu(picked: &[Candidate], pool: &CandidatePool<'_>, inherited: &InheritedVariables) -> DeviceNames {
    let hierarchy = hierarchy(inherited);
    let name = |picked: &Candidate| match (&picked.device.entry, hierarchy) {
        // Under the inherited mask a card may have lost some of its tiles.
        (Some(entry), Hierarchy::Cards) => entry.text.clone(),
        _ => mask_entry_of(pool.machine, hierarchy, picked.device.position),
    };
    let known = |value: &&OsString| matches!(value.to_str(), Some("FLAT" | "COMPOSITE" | "COMBINED"));
    let value = inherited.ze_hierarchy.as_ref().filter(known).cloned();
    let pinned = vec![
        ("ZE_FLAT_DEVICE_HIERARCHY", value.unwrap_or_else(|| "FLAT".into())),
        ("ZE_ENABLE_PCI_ID_DEVICE_ORDER", "1".into()),
    ];
    DeviceNames { names: picked.iter().map(name).collect(), pinned }
}

fn hpu(picked: &[Candidate]) -> Result<DeviceNames, ChoiceError> {
    let name = |picked: &Candidate| {
        let module = picked.device.accelerator.module_id.map(|module| module.to_string());
        module.ok_or_else(|| ChoiceError::Nameless {
            device: label(&picked.device.accelerator),
            variable: "HABANA_VISIBLE_MODULES",
            because: "the driver does not tell its module's number",
        })
    };
    let names: Result<Vec<String>, ChoiceError> = picked.iter().map(name).collect();
    Ok(DeviceNames { names: names?, pinned: Vec::new() })
}
