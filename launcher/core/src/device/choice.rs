//! Chooses the devices and their order. Pure: machine, inherited variables and request → [`DeviceChoice`].
//!
//! | step | what it adds | files |
//! |---|---|---|
//! | [`visible`] | the type of the devices, and those that the inherited variables leave | `kind`, [`visibility`] |
//! | [`select`] | those of `--devices` that live, in their order and with their names | `typed`, [`order`], `names`, `remarks` |
//! | `assign` | the device of each worker | `handover` |

mod error;
mod idle;
mod kind;
mod label;
mod names;
mod remarks;
#[cfg(test)]
pub(super) mod tests;
mod typed;
mod warning;

pub use error::{ChoiceError, ORDER_HINT};
pub use label::{label, line, noun, number};
pub use warning::ChoiceWarning;

use super::order::{self, DeviceOrder};
use super::selector::{Selector, SelectorEntry};
use super::visibility::{self, AskCuda, IndexOrder, InheritedVariables};
use super::{Accelerator, ChosenDevice, CudaOrder, DeviceChoice, DeviceType, Machine, Part, SelectionMethod};

/// The device options of the command line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChoiceRequest {
    /// `--devices`: the devices that the user names.
    pub devices: Option<Selector>,
    /// `--device-type`, or the type that `--nproc-per-node gpu` and its like name.
    pub kind: Option<DeviceType>,
    /// `--device-order`: the order that the user asks for.
    pub order: Option<DeviceOrder>,
    /// `--exclude-unhealthy`: a dead device is left out instead of refused.
    pub exclude_unhealthy: bool,
    /// Nothing is chosen: the devices are only counted, as PyTorch counts them.
    pub uses_torch_order: bool,
}

/// Everything that the choice depends on.
pub struct ChoiceInput<'a> {
    /// The machine as the probes found it.
    pub machine: &'a Machine,
    /// The visibility variables that the launcher inherited.
    pub inherited: &'a InheritedVariables,
    /// The options of the command line about devices.
    pub request: &'a ChoiceRequest,
    /// Dead devices by position in [`Machine::accelerators`], with the reason; empty without a health check.
    pub unhealthy: &'a [(usize, String)],
    /// The driver's `FASTEST_FIRST`, asked only where the answer depends on it.
    pub cuda_order: AskCuda<'a>,
}

/// The devices that a launch sees without `--devices`.
///
/// # Errors
/// The device options do not fit this machine, or no device is visible.
pub fn visible(input: &ChoiceInput<'_>) -> Result<DeviceChoice, ChoiceError> {
    let kind = kind::pick(input)?;
    if kind == DeviceType::Cpu {
        return Ok(cpu_choice(input));
    }
    let ChoiceInput { machine, inherited, request, cuda_order, .. } = *input;
    let index_order = index_order(request);
    let mut visible = visibility::read_visible_devices(kind, machine, inherited, index_order, cuda_order);
    if visible.devices.is_empty() {
        return Err(no_visible_device_error(&visible));
    }
    if request.kind.is_none() {
        let elsewhere = kind::lost_devices_of_other_types(input, Some(kind)).into_iter();
        let elsewhere: Vec<_> = elsewhere.filter(|warning| !warning.is_among(&visible.warnings)).collect();
        visible.warnings.extend(elsewhere);
    }
    Ok(visible)
}

/// Narrows the visible devices to the requested ones, puts them into their order, and names them.
///
/// # Errors
/// The device options do not fit this machine.
pub fn select(mut choice: DeviceChoice, input: &ChoiceInput<'_>) -> Result<DeviceChoice, ChoiceError> {
    let (kind, request) = (choice.kind, input.request);
    if kind == DeviceType::Cpu {
        return Ok(choice);
    }
    let is_by_number = kind == DeviceType::Xpu && is_selected_by_index(input, &choice);
    if (request.devices.is_some() || request.order.is_some()) && !is_by_number {
        refuse_unknown_list(&choice)?;
    }
    if let Some(selector) = &request.devices {
        choice.devices = choice.take(selector, input.machine)?;
    }
    let selected_count = choice.devices.len();
    drop_or_refuse_unhealthy(&mut choice, input)?;
    if request.devices.is_none() && choice.list().is_none() {
        drop_integrated(&mut choice.devices);
    }
    // A process sees one MIG device only, so each worker gets its own.
    let several_instances = !request.uses_torch_order
        && choice.devices.len() > 1
        && choice.devices.iter().any(|device| matches!(device.accelerator.part, Part::MigInstance { .. }));
    choice.is_untouched = request.devices.is_none()
        && request.order.is_none()
        && choice.devices.len() == selected_count
        && !several_instances;
    if let Some(because) = choice.order_unknown.clone() {
        if choice.is_untouched || is_by_number {
            choice.warnings.push(ChoiceWarning::OrderUnknown { kind, because });
        } else if choice.list().is_some() || index_order(request) == IndexOrder::Typed {
            return Err(ChoiceError::OrderUnknown { kind, because });
        }
    }
    if let Some(order) = request.order {
        sort_by_order(order, &mut choice.devices, input)?;
    }
    match names::find_names(&choice, input.machine, input.inherited) {
        Err(_) if choice.is_untouched => {}
        names => choice.set_names(names?),
    }
    remarks::add_remarks(&mut choice, input.machine);
    Ok(choice)
}

/// The meaning of device indices for this request.
fn index_order(request: &ChoiceRequest) -> IndexOrder {
    match (&request.devices, request.order) {
        _ if request.uses_torch_order => IndexOrder::Torch,
        (None, None) => IndexOrder::Runtime,
        (Some(Selector::List(entries)), _) if entries.iter().all(SelectorEntry::is_identity) => {
            IndexOrder::Named
        }
        (None, Some(order)) if order != DeviceOrder::AsListed => IndexOrder::Named,
        _ => IndexOrder::Typed,
    }
}

/// Refuses an inherited list in the driver's own, unknown order: the devices that it names are not known.
fn refuse_unknown_list(visible: &DeviceChoice) -> Result<(), ChoiceError> {
    match visible.order_unknown.clone().filter(|_| visible.list().is_some()) {
        Some(because) => Err(ChoiceError::OrderUnknown { kind: visible.kind, because }),
        None => Ok(()),
    }
}

/// Whether the devices are named only by their numbers within an inherited list. Its own entries then identify them,
/// whatever the driver's order is.
fn is_selected_by_index(question: &ChoiceInput<'_>, visible: &DeviceChoice) -> bool {
    let request = question.request;
    let is_number = |entry: &SelectorEntry| match entry {
        SelectorEntry::Except(entry) => !entry.is_identity(),
        entry => !entry.is_identity(),
    };
    let by_number = match &request.devices {
        Some(Selector::List(entries)) => entries.iter().all(is_number),
        Some(Selector::All) => true,
        Some(Selector::Idle | Selector::None) | None => false,
    };
    // Which number an integrated GPU has is not known either.
    let is_integrated = |found: &Accelerator| found.kind == DeviceType::Xpu && found.integrated;
    let discrete = !question.machine.accelerators.iter().any(is_integrated);
    let ordered = request.order.is_some_and(|order| order != DeviceOrder::AsListed);
    visible.list().is_some() && by_number && discrete && !ordered && !request.exclude_unhealthy
}

/// If only the set of devices matters, the driver is not asked for their order.
fn unavailable_driver() -> CudaOrder {
    Err("it was not asked".to_owned())
}

fn no_visible_device_error(visible: &DeviceChoice) -> ChoiceError {
    let kind = visible.kind;
    match &visible.variable {
        Some((variable, value)) => ChoiceError::AllHidden { kind, variable, value: value.clone() },
        None => ChoiceError::NoDevices { kind: Some(kind), because: Vec::new(), instead: Vec::new() },
    }
}

/// CPUs: since they were wanted, so that the accelerators are hidden, or since nothing else is visible.
fn cpu_choice(input: &ChoiceInput<'_>) -> DeviceChoice {
    let request = input.request;
    let is_wanted = request.devices == Some(Selector::None) || request.kind == Some(DeviceType::Cpu);
    if is_wanted {
        let mut choice = DeviceChoice::cpus(kind::present(input.machine));
        remarks::about_hidden(&mut choice, input.machine);
        return choice;
    }
    let mut choice = DeviceChoice::cpus(Vec::new());
    choice.warnings = kind::lost_devices_of_other_types(input, None);
    remarks::add_remarks(&mut choice, input.machine);
    choice
}

/// Drops integrated GPUs if the list has other devices: `all` does not mean them.
fn drop_integrated(devices: &mut Vec<ChosenDevice>) {
    if devices.iter().any(|device| !device.accelerator.integrated) {
        devices.retain(|device| !device.accelerator.integrated);
    }
}

/// Refuses dead devices, or with `--exclude-unhealthy` leaves them out.
fn drop_or_refuse_unhealthy(choice: &mut DeviceChoice, input: &ChoiceInput<'_>) -> Result<(), ChoiceError> {
    let mut dead = Vec::new();
    choice.devices.retain(|device| {
        let illness = input.unhealthy.iter().find(|(at, _)| is_part_of(device, *at, input.machine));
        dead.extend(illness.map(|(_, reason)| (label(&device.accelerator), reason.clone())));
        illness.is_none()
    });
    match dead.first() {
        Some((device, because)) if !input.request.exclude_unhealthy => {
            return Err(ChoiceError::Unhealthy { device: device.clone(), because: because.clone() });
        }
        Some(_) if choice.devices.is_empty() => {
            let reason = dead.iter().map(|(device, because)| format!("{device}: {because}")).collect();
            return Err(ChoiceError::AllUnhealthy { because: reason });
        }
        _ => {}
    }
    let excluded =
        dead.into_iter().map(|(device, because)| ChoiceWarning::ExcludedDevice { device, because });
    choice.warnings.extend(excluded);
    Ok(())
}

/// Whether the entry `at` of the machine is this device, the card that it is an instance of, or one of its tiles.
fn is_part_of(device: &ChosenDevice, at: usize, machine: &Machine) -> bool {
    let Some(entry) = machine.accelerators.get(at) else { return false };
    let first = &machine.accelerators[device.position];
    match (device.accelerator.part, entry.part) {
        (Part::MigInstance { gpu }, Part::MigParent) if entry.kind == DeviceType::Cuda => entry.index == gpu,
        (Part::Whole, Part::Tile { card, .. }) if entry.kind == first.kind => {
            matches!(first.part, Part::Tile { card: of, .. } if of == card)
        }
        _ => device.position == at,
    }
}

fn sort_by_order(
    order: DeviceOrder,
    devices: &mut [ChosenDevice],
    input: &ChoiceInput<'_>,
) -> Result<(), ChoiceError> {
    let listed: Vec<usize> = devices.iter().map(|device| device.position).collect();
    let places = order::sort_devices(order, &listed, input.machine, input.cuda_order)
        .map_err(|error| ChoiceError::Order { order, error })?;
    devices.sort_by_key(|device| places.iter().position(|at| *at == device.position));
    for device in devices {
        let how = std::mem::replace(&mut device.how, SelectionMethod::Default);
        device.how = SelectionMethod::Ordered { how: Box::new(how), order };
    }
    Ok(())
}
