//! How a worker is told its device: the vendors' variables. Pure.
//!
//! | type | chosen | not shown |
//! |---|---|---|
//! | cuda | `CUDA_VISIBLE_DEVICES` with `CUDA_DEVICE_ORDER=PCI_BUS_ID`, or UUIDs | `CUDA_VISIBLE_DEVICES` empty |
//! | rocm | `ROCR_VISIBLE_DEVICES` alone; the two filters over it go | it empty, `HIP_VISIBLE_DEVICES=-1` |
//! | xpu | `ZE_AFFINITY_MASK` with hierarchy and PCI order; a set, so ascending or one each | cannot be said |
//! | hpu | `HABANA_VISIBLE_MODULES`; no promised order, so ascending or one each | cannot be said |
//! | npu | `ASCEND_RT_VISIBLE_DEVICES`; ascending or one each | `-1`, which ends the list |
//! | mps, cpu | nothing | nothing |

#[cfg(test)]
mod tests;

use std::ffi::OsString;

use super::choice::DeviceChoice;
use super::visibility::InheritedVariables;
use super::{DeviceType, Part, Visibility};

/// The devices and variables of all workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handover {
    /// The devices that workers see: as requested, or [`Visibility::Own`] if one list cannot express the choice.
    pub visibility: Visibility,
    /// The reason why the visibility differs from the requested one.
    pub forced_own_reason: Option<&'static str>,
    /// The devices and variables, by local rank.
    pub workers: Vec<WorkerVariables>,
}

/// The device and the variables of one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerVariables {
    /// Position of its device in [`DeviceChoice::devices`]; none on CPUs.
    pub device: Option<usize>,
    /// The device's number among the devices that the worker sees.
    pub ordinal: u32,
    /// Variables to set, or with `None` to take away.
    pub variables: Vec<(&'static str, Option<OsString>)>,
}

/// The variables of `workers` workers; with more workers than devices they are dealt in turn, each its own.
#[must_use]
pub fn assign_worker_variables(
    choice: &DeviceChoice,
    inherited: &InheritedVariables,
    workers: u32,
    visibility: Visibility,
) -> Handover {
    if choice.devices.is_empty() {
        let variables = hide_variables(&choice.hidden, inherited);
        let worker = |ordinal| WorkerVariables { device: None, ordinal, variables: variables.clone() };
        return Handover { visibility, forced_own_reason: None, workers: (0..workers).map(worker).collect() };
    }
    let forced = match visibility {
        Visibility::Whole => own_visibility_reason(choice, workers),
        Visibility::Own => None,
    };
    let visibility = if forced.is_some() { Visibility::Own } else { visibility };
    let names: Vec<&str> = choice.devices.iter().map(|device| device.name.as_str()).collect();
    let count = u32::try_from(names.len()).unwrap_or(u32::MAX);
    let worker = |local_rank: u32| {
        let ordinal = local_rank % count;
        let place = usize::try_from(ordinal).unwrap_or(0);
        let (ordinal, shown) = match visibility {
            Visibility::Whole => (ordinal, names.as_slice()),
            Visibility::Own => (0, &names[place..=place]),
        };
        let as_inherited = choice.is_untouched && shown.len() == names.len();
        let variables = if as_inherited { Vec::new() } else { show_variables(choice, shown, inherited) };
        WorkerVariables { device: Some(place), ordinal, variables }
    };
    Handover { visibility, forced_own_reason: forced, workers: (0..workers).map(worker).collect() }
}

/// The reason why one list cannot express these devices in this order.
fn own_visibility_reason(choice: &DeviceChoice, workers: u32) -> Option<&'static str> {
    let is_instance = |part: Part| matches!(part, Part::MigInstance { .. });
    if choice.devices.iter().any(|device| is_instance(device.accelerator.part)) {
        return Some("a process sees one MIG device only");
    }
    let can_be_named = choice.devices.iter().all(|device| !device.name.is_empty());
    if can_be_named && usize::try_from(workers).is_ok_and(|workers| workers > choice.devices.len()) {
        return Some("workers share devices, and the list has no place for every LOCAL_RANK");
    }
    // `1.0` is tile 0 of card 1, and comes where card 1 comes.
    let number = |name: &str| {
        let digits = name.find(|character: char| !character.is_ascii_digit()).unwrap_or(name.len());
        name[..digits].parse::<u64>().unwrap_or(u64::MAX)
    };
    let ascending = choice.devices.is_sorted_by_key(|device| number(&device.name));
    if choice.is_untouched || ascending {
        return None;
    }
    match choice.kind {
        DeviceType::Xpu => Some("`ZE_AFFINITY_MASK` is a set, and cannot say this order"),
        DeviceType::Hpu => Some("`HABANA_VISIBLE_MODULES` promises no order"),
        DeviceType::Npu => Some("`ASCEND_RT_VISIBLE_DEVICES` must ascend, and cannot say this order"),
        DeviceType::Cuda | DeviceType::Rocm | DeviceType::Mps | DeviceType::Cpu => None,
    }
}

/// The variables with which a process sees exactly these devices.
fn show_variables(
    choice: &DeviceChoice,
    names: &[&str],
    inherited: &InheritedVariables,
) -> Vec<(&'static str, Option<OsString>)> {
    // A device that the vendor's variable cannot name is not named.
    if names.iter().any(|name| name.is_empty()) {
        return Vec::new();
    }
    let list = Some(OsString::from(names.join(",")));
    let mut variables = match choice.kind {
        DeviceType::Cuda => vec![("CUDA_VISIBLE_DEVICES", list)],
        DeviceType::Rocm => {
            // These two would filter what the first leaves.
            let over = [("HIP_VISIBLE_DEVICES", &inherited.hip), ("CUDA_VISIBLE_DEVICES", &inherited.cuda)];
            let gone = over.into_iter().filter(|(_, value)| value.is_some()).map(|(name, _)| (name, None));
            [("ROCR_VISIBLE_DEVICES", list)].into_iter().chain(gone).collect()
        }
        DeviceType::Xpu => vec![("ZE_AFFINITY_MASK", list)],
        DeviceType::Hpu => vec![("HABANA_VISIBLE_MODULES", list)],
        DeviceType::Npu => vec![("ASCEND_RT_VISIBLE_DEVICES", list)],
        DeviceType::Mps | DeviceType::Cpu => Vec::new(),
    };
    variables.extend(choice.pinned.iter().map(|(name, value)| (*name, Some(value.clone()))));
    variables
}

/// The variables with which a process sees no device of these types, where the vendor has words for that.
fn hide_variables(
    hidden: &[DeviceType],
    inherited: &InheritedVariables,
) -> Vec<(&'static str, Option<OsString>)> {
    let cuda = hidden.contains(&DeviceType::Cuda);
    let mut variables = Vec::new();
    for kind in hidden {
        match kind {
            DeviceType::Cuda => variables.push(("CUDA_VISIBLE_DEVICES", Some(OsString::new()))),
            DeviceType::Rocm => {
                variables.push(("ROCR_VISIBLE_DEVICES", Some(OsString::new())));
                // PyTorch takes an empty ROCr list for one device, and an empty HIP list for all.
                variables.push(("HIP_VISIBLE_DEVICES", Some("-1".into())));
                if !cuda && inherited.cuda.is_some() {
                    variables.push(("CUDA_VISIBLE_DEVICES", None));
                }
            }
            DeviceType::Npu => variables.push(("ASCEND_RT_VISIBLE_DEVICES", Some("-1".into()))),
            DeviceType::Xpu | DeviceType::Hpu | DeviceType::Mps | DeviceType::Cpu => {}
        }
    }
    variables
}
