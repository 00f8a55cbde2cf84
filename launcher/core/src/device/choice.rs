//! Chooses the devices and their order. Pure: machine, inherited variables and request → [`Choice`].
//!
//! The steps, each in its file: the type of the devices (`kind`), the devices that the inherited variables leave
//! ([`visibility`]), the selection of `--devices` among them (`typed`), the removal of dead ones, the order
//! ([`order`]), the names for the vendor's variables (`names`), and the warnings (`remarks`).

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

use std::cell::OnceCell;
use std::ffi::OsString;
use std::fmt;

pub use error::ChoiceError;
pub use label::{label, line, noun, number};
pub use warning::ChoiceWarning;

use super::order::{self, DeviceOrder};
use super::selector::{Selector, SelectorEntry};
use super::visibility::{self, AskCuda, IndexOrder, InheritedVariables, VisibilityQuery, VisibleDevices};
use super::{Accelerator, CudaDevice, DeviceType, Machine, Part};
use kind::DeviceTarget;
use names::DeviceNames;
use typed::{Candidate, CandidatePool};

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
    /// The driver's `FASTEST_FIRST`, asked only where the answer depends on it, and at most once: a child is started
    /// for it.
    pub cuda_order: &'a dyn Fn() -> Result<Vec<CudaDevice>, String>,
}

/// The chosen devices, and the variables that name them.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The type of the devices; [`DeviceType::Cpu`] if there is no accelerator or none was wanted.
    pub kind: DeviceType,
    /// In the order of the ranks; empty for CPUs and MPS-less machines.
    pub devices: Vec<SelectedDevice>,
    /// Whether the inherited variables already name exactly these devices, so that they pass unchanged.
    pub is_untouched: bool,
    /// Variables that define the meaning of the device names (`CUDA_DEVICE_ORDER=PCI_BUS_ID`); set together with the
    /// names.
    pub pinned: Vec<(&'static str, OsString)>,
    /// The types of the accelerators that are there and that the user does not want the workers to see
    /// (`--devices none`, `--device-type cpu`).
    pub hidden: Vec<DeviceType>,
    /// Warnings for the user, each printed once.
    pub warnings: Vec<ChoiceWarning>,
}

/// One chosen device, and what chose it.
#[derive(Debug, Clone, PartialEq)]
pub struct SelectedDevice {
    /// The device as the probes found it.
    pub accelerator: Accelerator,
    /// The option or variable that chose it.
    pub how: SelectionMethod,
    /// How its vendor's variable names it beside [`Choice::pinned`]; empty where the vendor has no variable.
    pub name: String,
}

/// How a device was chosen, for the line that tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SelectionMethod {
    /// Nothing was said: all there are.
    Default,
    /// By an inherited variable, with the entry that named it where there is one.
    Inherited {
        /// The name of the inherited variable.
        variable: &'static str,
        /// The entry of its list, if there is one.
        entry: Option<String>,
    },
    /// By `--devices`; the entry as it was written.
    Typed {
        /// The entry as it was written.
        entry: String,
        /// The inherited variable within which it counts.
        within: Option<&'static str>,
    },
    /// One of the above, moved to its place by `--device-order`.
    Ordered {
        /// The option or variable that chose it.
        how: Box<Self>,
        /// The order that gave it its place.
        order: DeviceOrder,
    },
}

impl fmt::Display for SelectionMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("all devices"),
            Self::Inherited { variable, entry: None } => f.write_str(variable),
            Self::Inherited { variable, entry: Some(entry) } => write!(f, "{variable} entry {entry}"),
            Self::Typed { entry, within: None } => write!(f, "--devices {entry}"),
            Self::Typed { entry, within: Some(variable) } => write!(f, "--devices {entry} within {variable}"),
            Self::Ordered { how, order } => write!(f, "{how}, --device-order {}", order.as_str()),
        }
    }
}

/// Chooses the devices of this launch from the machine, the inherited variables and the request.
///
/// # Errors
/// The device options do not fit this machine.
pub fn choose_devices(input: &ChoiceInput<'_>) -> Result<Choice, ChoiceError> {
    let kind = match kind::pick(input)? {
        DeviceTarget::Of(kind) => kind,
        target => return Ok(cpu_choice(input, target == DeviceTarget::WantedCpus)),
    };
    let answer = OnceCell::new();
    let cuda_order = || answer.get_or_init(|| (input.cuda_order)()).clone();
    let request = input.request;
    let query = VisibilityQuery { index_order: index_order(request), cuda_order: &cuda_order };
    let visible = visibility::read_visible_devices(kind, input.machine, input.inherited, query);
    if visible.devices.is_empty() {
        return Err(no_visible_device_error(kind, &visible));
    }
    let is_by_number = kind == DeviceType::Xpu && is_selected_by_index(input, &visible);
    if (request.devices.is_some() || request.order.is_some()) && !is_by_number {
        refuse_unknown_list(kind, &visible)?;
    }
    let pool = CandidatePool { kind, machine: input.machine, visible: &visible };
    let picked = match &request.devices {
        Some(selector) => pool.take(selector)?,
        None => pool.all_visible(),
    };
    let mut warnings = visible.warnings.clone();
    if request.kind.is_none() {
        let elsewhere = kind::lost_devices_of_other_types(input, Some(kind)).into_iter();
        warnings.extend(elsewhere.filter(|warning| !warning.is_among(&visible.warnings)));
    }
    let selected_count = picked.len();
    let mut picked = drop_or_refuse_unhealthy(picked, input, &mut warnings)?;
    if request.devices.is_none() && visible.list().is_none() {
        drop_integrated(&mut picked);
    }
    // A process sees one MIG device only, so each worker gets its own.
    let several_instances = !request.uses_torch_order
        && picked.len() > 1
        && picked.iter().any(|picked| matches!(picked.device.accelerator.part, Part::MigInstance { .. }));
    let untouched = request.devices.is_none()
        && request.order.is_none()
        && picked.len() == selected_count
        && !several_instances;
    if let Some(reason) = visible.order_unknown.clone() {
        if untouched || is_by_number {
            warnings.push(ChoiceWarning::OrderUnknown { kind, because: reason });
        } else if visible.list().is_some() || query.index_order == IndexOrder::Typed {
            return Err(ChoiceError::OrderUnknown { kind, because: reason });
        }
    }
    if let Some(order) = request.order {
        picked = apply_order(order, picked, input.machine, &cuda_order)?;
    }
    let names = match names::of(&picked, &pool, input.inherited) {
        Err(_) if untouched => DeviceNames::unnamed(picked.len()),
        names => names?,
    };
    let devices: Vec<SelectedDevice> =
        picked.into_iter().zip(names.names).map(|(picked, name)| picked.selected(name)).collect();
    remarks::add_remarks(&devices, input.machine, &mut warnings);
    Ok(Choice { kind, devices, is_untouched: untouched, pinned: names.pinned, hidden: Vec::new(), warnings })
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
fn refuse_unknown_list(kind: DeviceType, visible: &VisibleDevices) -> Result<(), ChoiceError> {
    match visible.order_unknown.clone().filter(|_| visible.list().is_some()) {
        Some(because) => Err(ChoiceError::OrderUnknown { kind, because }),
        None => Ok(()),
    }
}

/// Whether the devices are named only by their numbers within an inherited list. Its own entries then identify them,
/// whatever the driver's order is.
fn is_selected_by_index(question: &ChoiceInput<'_>, visible: &VisibleDevices) -> bool {
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
fn unavailable_driver() -> Result<Vec<CudaDevice>, String> {
    Err("it was not asked".to_owned())
}

fn no_visible_device_error(kind: DeviceType, visible: &VisibleDevices) -> ChoiceError {
    match &visible.variable {
        Some((variable, value)) => ChoiceError::AllHidden { kind, variable, value: value.clone() },
        None => ChoiceError::NoDevices { kind: Some(kind), because: Vec::new(), instead: Vec::new() },
    }
}

/// CPUs: since they were wanted, so that the accelerators are hidden, or since nothing else is visible.
fn cpu_choice(question: &ChoiceInput<'_>, wanted: bool) -> Choice {
    let present = kind::present(question.machine);
    let mut warnings = Vec::new();
    let hidden = if wanted {
        remarks::about_hidden(&present, question.machine, &mut warnings);
        present
    } else {
        warnings.extend(kind::lost_devices_of_other_types(question, None));
        remarks::add_remarks(&[], question.machine, &mut warnings);
        Vec::new()
    };
    let untouched = hidden.is_empty();
    Choice {
        kind: DeviceType::Cpu,
        devices: Vec::new(),
        is_untouched: untouched,
        pinned: Vec::new(),
        hidden,
        warnings,
    }
}

/// Drops integrated GPUs if the list has other devices: `all` does not mean them.
fn drop_integrated(picked: &mut Vec<Candidate>) {
    if picked.iter().any(|picked| !picked.device.accelerator.integrated) {
        picked.retain(|picked| !picked.device.accelerator.integrated);
    }
}

/// Refuses dead devices, or with `--exclude-unhealthy` leaves them out.
fn drop_or_refuse_unhealthy(
    mut picked: Vec<Candidate>,
    question: &ChoiceInput<'_>,
    warnings: &mut Vec<ChoiceWarning>,
) -> Result<Vec<Candidate>, ChoiceError> {
    let mut dead = Vec::new();
    picked.retain(|picked| {
        let illness = question.unhealthy.iter().find(|(at, _)| is_part_of(picked, *at, question.machine));
        dead.extend(illness.map(|(_, reason)| (label(&picked.device.accelerator), reason.clone())));
        illness.is_none()
    });
    match dead.first() {
        Some((device, because)) if !question.request.exclude_unhealthy => {
            return Err(ChoiceError::Unhealthy { device: device.clone(), because: because.clone() });
        }
        Some(_) if picked.is_empty() => {
            let reason = dead.iter().map(|(device, because)| format!("{device}: {because}")).collect();
            return Err(ChoiceError::AllUnhealthy { because: reason });
        }
        _ => {}
    }
    warnings
        .extend(dead.into_iter().map(|(device, reason)| ChoiceWarning::LeftOut { device, because: reason }));
    Ok(picked)
}

/// Whether the entry `at` of the machine is this device, the card that it is an instance of, or one of its tiles.
fn is_part_of(picked: &Candidate, at: usize, machine: &Machine) -> bool {
    let (device, Some(entry)) = (&picked.device, machine.accelerators.get(at)) else { return false };
    let first = &machine.accelerators[device.position];
    match (device.accelerator.part, entry.part) {
        (Part::MigInstance { gpu }, Part::MigParent) if entry.kind == DeviceType::Cuda => entry.index == gpu,
        (Part::Whole, Part::Tile { card, .. }) if entry.kind == first.kind => {
            matches!(first.part, Part::Tile { card: of, .. } if of == card)
        }
        _ => device.position == at,
    }
}

fn apply_order(
    order: DeviceOrder,
    mut picked: Vec<Candidate>,
    machine: &Machine,
    cuda_order: AskCuda<'_>,
) -> Result<Vec<Candidate>, ChoiceError> {
    let listed: Vec<usize> = picked.iter().map(|picked| picked.device.position).collect();
    let places = order::sort_devices(order, &listed, machine, cuda_order)
        .map_err(|error| ChoiceError::Order { word: order.as_str(), error })?;
    picked.sort_by_key(|picked| places.iter().position(|at| *at == picked.device.position));
    for picked in &mut picked {
        let how = std::mem::replace(&mut picked.how, SelectionMethod::Default);
        picked.how = SelectionMethod::Ordered { how: Box::new(how), order };
    }
    Ok(picked)
}
