//! The device type of the job: the type that the user asks for, or the only one that the machine, the variables and
//! `--devices` leave. Pure; the first step of the choice.

use super::{ChoiceError, ChoiceInput, ChoiceWarning, DeviceChoice, Selector, unavailable_driver};
use crate::device::selector::SelectorEntry;
use crate::device::visibility::{self, IndexOrder, InheritedVariables};
use crate::device::{Accelerator, DeviceType, Machine, Part, ProbeProblem, ProbeProblemKind};

/// The type of the devices; [`DeviceType::Cpu`] if that is asked for, or if no accelerator is visible.
pub(super) fn pick(question: &ChoiceInput<'_>) -> Result<DeviceType, ChoiceError> {
    let (machine, request) = (question.machine, question.request);
    match (request.kind, &request.devices) {
        (_, Some(Selector::None)) | (Some(DeviceType::Cpu), None | Some(Selector::All)) => {
            Ok(DeviceType::Cpu)
        }
        (Some(DeviceType::Cpu), Some(_)) => Err(ChoiceError::NotForCpus),
        (Some(kind), _) if present(machine).contains(&kind) => Ok(kind),
        (Some(kind), _) => Err(no_devices(machine, Some(kind))),
        (None, selector) => default_target(question, selector.as_ref()),
    }
}

/// The types of which the machine has something that a program can run on.
pub(super) fn present(machine: &Machine) -> Vec<DeviceType> {
    let usable = |kind: DeviceType| {
        machine.accelerators.iter().any(|device| device.kind == kind && device.part != Part::MigParent)
    };
    DeviceType::ALL.into_iter().filter(|kind| *kind != DeviceType::Cpu && usable(*kind)).collect()
}

/// The visible devices of a type, in no promised order.
pub(super) fn visible_devices_of_type(kind: DeviceType, question: &ChoiceInput<'_>) -> DeviceChoice {
    let (machine, inherited) = (question.machine, question.inherited);
    visibility::read_visible_devices(kind, machine, inherited, IndexOrder::Named, &unavailable_driver)
}

/// No device of this type, and the probes' troubles.
fn no_devices(machine: &Machine, kind: Option<DeviceType>) -> ChoiceError {
    let of_kind = machine.troubles.iter().filter(|problem| kind.is_none_or(|kind| problem.kind == kind));
    let (absent, telling): (Vec<&ProbeProblem>, Vec<&ProbeProblem>) =
        of_kind.partition(|problem| is_plain_absence(problem));
    let reason = if telling.is_empty() && !absent.is_empty() {
        vec!["no driver is found here".to_owned()]
    } else {
        telling.into_iter().map(ToString::to_string).collect()
    };
    ChoiceError::NoDevices { kind, because: reason, instead: present(machine) }
}

/// A library or folder that a machine without such devices lacks. A device without its node is more than that.
fn is_plain_absence(problem: &ProbeProblem) -> bool {
    let ProbeProblemKind::Missing(reason) = &problem.what else { return false };
    let is_node = problem.source.starts_with("/dev/") && problem.kind != DeviceType::Npu;
    let reason = reason.to_lowercase();
    !is_node && (reason.contains("no such file") || reason.contains("the loader finds no"))
}

fn default_target(
    question: &ChoiceInput<'_>,
    selector: Option<&Selector>,
) -> Result<DeviceType, ChoiceError> {
    let present = present(question.machine);
    let by_kind: Vec<(DeviceType, DeviceChoice)> =
        present.iter().map(|kind| (*kind, visible_devices_of_type(*kind, question))).collect();
    let mut visible: Vec<(DeviceType, &DeviceChoice)> = by_kind
        .iter()
        .filter(|(_, of_kind)| !of_kind.devices.is_empty())
        .map(|(kind, of_kind)| (*kind, of_kind))
        .collect();
    let hidden = by_kind.iter().find_map(|(kind, of_kind)| {
        let emptied = of_kind.devices.is_empty() && has_cards(*kind, question.machine);
        Some((*kind, of_kind.variable.clone().filter(|_| emptied)?))
    });
    // Many machines have an integrated GPU for the screen: it is used only when named explicitly.
    let is_meant = |(kind, of_kind): &(DeviceType, &DeviceChoice)| {
        !all_integrated(of_kind) || is_named(*kind, question, selector)
    };
    if selector.is_none() || hidden.is_some() || visible.iter().any(is_meant) {
        visible.retain(is_meant);
    }
    match visible.as_slice() {
        [] => match (selector, hidden) {
            (None, _) => Ok(DeviceType::Cpu),
            (Some(_), Some((kind, (variable, value)))) => {
                Err(ChoiceError::AllHidden { kind, variable, value })
            }
            (Some(_), None) => Err(no_devices(question.machine, None)),
        },
        [(kind, _)] => Ok(*kind),
        several => select_type(several, question, selector),
    }
}

fn all_integrated(visible: &DeviceChoice) -> bool {
    visible.devices.iter().all(|device| device.accelerator.integrated)
}

/// Whether there are devices of this type other than integrated GPUs.
fn has_cards(kind: DeviceType, machine: &Machine) -> bool {
    machine.accelerators.iter().any(|device| device.kind == kind && !device.integrated)
}

/// Whether the list has one of this type by what it is, or, where no other type's cards are there, a variable of its
/// vendor's points at it.
fn is_named(kind: DeviceType, question: &ChoiceInput<'_>, selector: Option<&Selector>) -> bool {
    let listed = match selector {
        Some(Selector::List(entries)) => entries.iter().any(|entry| {
            let fits = |device: &Accelerator| device.kind == kind && names(entry, device);
            !matches!(entry, SelectorEntry::Except(_)) && question.machine.accelerators.iter().any(fits)
        }),
        _ => false,
    };
    let elsewhere =
        |other: DeviceType| has_cards(other, question.machine) && points_at(question.inherited, other);
    listed || (points_at(question.inherited, kind) && !DeviceType::ALL.into_iter().any(elsewhere))
}

/// Variables that hide devices of types other than `taken`; each variable is listed once, though several vendors read
/// it.
pub(super) fn lost_devices_of_other_types(
    question: &ChoiceInput<'_>,
    taken: Option<DeviceType>,
) -> Vec<ChoiceWarning> {
    let mut reported: Vec<ChoiceWarning> = Vec::new();
    for kind in present(question.machine).into_iter().filter(|kind| Some(*kind) != taken) {
        let visible = visible_devices_of_type(kind, question);
        let new: Vec<ChoiceWarning> =
            visible.warnings.into_iter().filter(|warning| !warning.is_among(&reported)).collect();
        if taken.is_none() || visible.devices.is_empty() {
            reported.extend(new);
        }
    }
    reported
}

/// Several vendors' devices are visible: the list or a variable must select one type.
fn select_type(
    several: &[(DeviceType, &DeviceChoice)],
    question: &ChoiceInput<'_>,
    selector: Option<&Selector>,
) -> Result<DeviceType, ChoiceError> {
    if let Some(Selector::List(entries)) = selector
        && let Some(kind) = named(entries, question.machine)?
    {
        return Ok(kind);
    }
    let pointed: Vec<DeviceType> =
        several.iter().map(|(kind, _)| *kind).filter(|kind| points_at(question.inherited, *kind)).collect();
    if let [kind] = pointed.as_slice() {
        return Ok(*kind);
    }
    let available = several.iter().map(|(kind, visible)| format!("{} of type {kind}", visible.devices.len()));
    Err(ChoiceError::SeveralTypes {
        kinds: several.iter().map(|(kind, _)| *kind).collect(),
        available: available.collect(),
    })
}

/// The one type of the devices that a list names by what they are; `None` where it names none so, or one that is not
/// there, or one that fits devices of several types.
fn named(entries: &[SelectorEntry], machine: &Machine) -> Result<Option<DeviceType>, ChoiceError> {
    let mut first: Option<(&SelectorEntry, DeviceType)> = None;
    for entry in entries {
        let mut kinds: Vec<DeviceType> = machine
            .accelerators
            .iter()
            .filter(|device| names(entry, device))
            .map(|device| device.kind)
            .collect();
        kinds.dedup();
        let [kind] = kinds.as_slice() else { continue };
        match first {
            None => first = Some((entry, *kind)),
            Some((_, first_kind)) if first_kind == *kind => {}
            Some((first, first_kind)) => {
                return Err(ChoiceError::MixedVendors {
                    first: first.to_string(),
                    first_kind,
                    second: entry.to_string(),
                    second_kind: *kind,
                });
            }
        }
    }
    Ok(first.map(|(_, kind)| kind))
}

/// Whether an entry names a device by UUID, address or MIG id.
pub(super) fn names(entry: &SelectorEntry, device: &Accelerator) -> bool {
    match entry {
        SelectorEntry::Index(_) | SelectorEntry::Range(..) => false,
        SelectorEntry::Except(entry) => names(entry, device),
        SelectorEntry::Uuid(begin) => device
            .uuid
            .as_deref()
            .and_then(|uuid| uuid.get(..begin.len()))
            .is_some_and(|uuid| uuid.eq_ignore_ascii_case(begin)),
        SelectorEntry::Mig(gpu, instance) => {
            device.part == Part::MigInstance { gpu: *gpu } && device.index == *instance
        }
        // A MIG device has its card's address, and does not count as a PCI device of its own.
        SelectorEntry::Pci(address) => {
            device.pci == Some(*address) && !matches!(device.part, Part::MigInstance { .. })
        }
    }
}

/// Whether a variable is set that only programs for this type read.
fn points_at(inherited: &InheritedVariables, kind: DeviceType) -> bool {
    let lists = match kind {
        DeviceType::Cuda => [&inherited.cuda, &inherited.cuda_order],
        DeviceType::Rocm => [&inherited.hip, &inherited.rocr],
        DeviceType::Xpu => [&inherited.ze_mask, &None],
        DeviceType::Hpu => [&inherited.habana, &None],
        DeviceType::Npu => [&inherited.ascend, &None],
        DeviceType::Mps | DeviceType::Cpu => [&None, &None],
    };
    lists.into_iter().flatten().any(|value| !value.is_empty())
}
