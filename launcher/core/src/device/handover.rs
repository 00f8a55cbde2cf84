//! The vendors' variables that give a worker its device. Pure.
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

use rankrun_contract::rank::LocalRank;

use super::choice::ChoiceWarning;
use super::visibility::InheritedVariables;
use super::{DeviceChoice, DeviceType, Part, Visibility, WorkerDevice};

/// Gives each worker its device and variables; with more workers than devices they are dealt in turn, each its own.
///
/// Without a visibility the vendors' variables pass unchanged, and each worker takes the device of its number, as under
/// torchrun.
#[must_use]
pub(crate) fn assign(
    mut choice: DeviceChoice,
    inherited: &InheritedVariables,
    workers: u32,
    visibility: Option<Visibility>,
) -> DeviceChoice {
    choice.forced_own_reason = match visibility {
        Some(Visibility::Whole) => own_visibility_reason(&choice, workers),
        Some(Visibility::Own) | None => None,
    };
    let is_forced = choice.forced_own_reason.is_some();
    choice.visibility = if is_forced { Visibility::Own } else { visibility.unwrap_or(Visibility::Whole) };
    let ranks = (0..workers).map(LocalRank);
    choice.workers = match visibility {
        _ if choice.devices.is_empty() => {
            let variables = hide_variables(&choice.hidden, inherited);
            ranks
                .map(|rank| WorkerDevice { variables: variables.clone(), ..WorkerDevice::cpu(rank) })
                .collect()
        }
        None => ranks.map(|rank| inherited_device(&choice, rank)).collect(),
        Some(_) => ranks.map(|rank| chosen_device(&choice, rank, inherited)).collect(),
    };
    choice
}

/// The device of the worker's number; the CPUs if there is none.
fn inherited_device(choice: &DeviceChoice, rank: LocalRank) -> WorkerDevice {
    let cpu = WorkerDevice::cpu(rank);
    match choice.devices.get(rank.index()) {
        Some(device) => {
            let identity = Some(device.clone()).filter(|_| !is_order_unknown(choice));
            WorkerDevice { kind: choice.kind, identity, ..cpu }
        }
        None => cpu,
    }
}

/// The device that the vendor's variables tell the worker.
fn chosen_device(choice: &DeviceChoice, rank: LocalRank, inherited: &InheritedVariables) -> WorkerDevice {
    let names: Vec<&str> = choice.devices.iter().map(|device| device.name.as_str()).collect();
    let place = rank.index() % names.len();
    let (ordinal, shown) = match choice.visibility {
        Visibility::Whole => (u32::try_from(place).unwrap_or(u32::MAX), names.as_slice()),
        Visibility::Own => (0, &names[place..=place]),
    };
    let as_inherited = choice.is_untouched && shown.len() == names.len();
    let variables = if as_inherited { Vec::new() } else { show_variables(choice, shown, inherited) };
    // Without variables, or with the user's own numbers, the driver's order decides.
    let is_unknown = is_order_unknown(choice) && (variables.is_empty() || choice.pinned.is_empty());
    let identity = Some(choice.devices[place].clone()).filter(|_| !is_unknown);
    WorkerDevice { kind: choice.kind, ordinal, identity, variables, ..WorkerDevice::cpu(rank) }
}

/// Whether the driver decides which device has which number.
fn is_order_unknown(choice: &DeviceChoice) -> bool {
    choice.warnings.iter().any(|warning| matches!(warning, ChoiceWarning::OrderUnknown { .. }))
}

/// The reason why one list cannot express these devices in this order.
fn own_visibility_reason(choice: &DeviceChoice, workers: u32) -> Option<&'static str> {
    if choice.devices.is_empty() {
        return None;
    }
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
