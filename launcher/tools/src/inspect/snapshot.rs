//! All facts about the machine that `rankrun devices` shows, computed before any page or JSON is written. The probes
//! deliver the machine, the environment the visibility variables. Pure.

use super::{InspectError, fact_text};
use rankrun_core::device::choice::number;
use rankrun_core::device::choice::{
    ChoiceError, ChoiceInput, ChoiceRequest, ChoiceWarning as Remark, select, visible,
};
use rankrun_core::device::health::{Severity, findings, small_memory_findings};
use rankrun_core::device::order::{DeviceOrder, sort_devices};
use rankrun_core::device::visibility::{AskCuda, InheritedVariables};
use rankrun_core::device::{
    Accelerator, DeviceChoice, DeviceLink, DeviceType, Machine, Nic, Part, PciAddress,
};

/// The known facts beside the machine.
#[derive(Clone, Copy)]
pub(super) struct SnapshotContext<'a> {
    pub(super) host: &'a str,
    /// The visibility variables that a launch would inherit.
    pub(super) inherited: &'a InheritedVariables,
    /// The CPUs that this process may use.
    pub(super) affinity: &'a [u32],
    /// A device that is busy for another user than this one gets a warning.
    pub(super) own_uid: u32,
    pub(super) cuda_order: AskCuda<'a>,
}

/// The machine, and what follows from it. Devices are named by their position in [`Machine::accelerators`].
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MachineSnapshot {
    pub(super) host: String,
    pub(super) machine: Machine,
    pub(super) affinity: Vec<u32>,
    pub(super) own_uid: u32,
    /// By position: the variables that keep a launch from using it.
    pub(super) hidden_by: Vec<Option<String>>,
    pub(super) orders: Vec<OrderPreview>,
    pub(super) warnings: Vec<DeviceWarningLine>,
}

/// The order that one `--device-order` gives the devices of this type in a launch without other options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OrderPreview {
    pub(super) kind: DeviceType,
    pub(super) order: DeviceOrder,
    /// Positions in rank order, or the reason why the order is unknown.
    pub(super) devices: Result<Vec<usize>, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeviceWarningLine {
    /// The device of the warning; `None` for all of a type.
    pub(super) device: Option<usize>,
    pub(super) severity: Severity,
    pub(super) text: String,
}

impl MachineSnapshot {
    /// Puts it together; with a `kind`, only of these devices.
    pub(super) fn of(machine: Machine, kind: Option<DeviceType>, context: &SnapshotContext<'_>) -> Self {
        let machine = match kind {
            Some(kind) => with_kind_only(machine, kind),
            None => machine,
        };
        let mut snapshot = Self {
            host: context.host.to_owned(),
            hidden_by: vec![None; machine.accelerators.len()],
            machine,
            affinity: context.affinity.to_vec(),
            own_uid: context.own_uid,
            orders: Vec::new(),
            warnings: Vec::new(),
        };
        for kind in DeviceType::ALL {
            snapshot.add(kind, context);
        }
        snapshot
    }

    /// Only the devices with these names; all where there is none.
    ///
    /// # Errors
    /// A name that no device has.
    pub(super) fn filter_ids(self, ids: &[String]) -> Result<Self, InspectError> {
        if ids.is_empty() {
            return Ok(self);
        }
        let devices = &self.machine.accelerators;
        if let Some(id) = ids.iter().find(|id| !devices.iter().any(|device| is_called(device, id))) {
            let available = devices.iter().map(fact_text::device).collect();
            return Err(InspectError::NoSuchDevice { id: id.clone(), available });
        }
        let kept = self.positions(|device| ids.iter().any(|id| is_called(device, id)));
        let place = |at: &usize| kept.iter().position(|kept| kept == at);
        let orders = self.orders.into_iter().map(|order| OrderPreview {
            devices: order.devices.map(|devices| devices.iter().filter_map(place).collect()),
            ..order
        });
        let is_kept = |warning: &DeviceWarningLine| warning.device.is_none_or(|at| kept.contains(&at));
        let warnings = self.warnings.into_iter().filter(is_kept);
        Ok(Self {
            hidden_by: kept.iter().map(|at| self.hidden_by[*at].clone()).collect(),
            orders: orders.filter(|order| order.devices != Ok(Vec::new())).collect(),
            warnings: warnings
                .map(|warning| DeviceWarningLine {
                    device: warning.device.as_ref().and_then(place),
                    ..warning
                })
                .collect(),
            machine: with_devices(self.machine, &kept),
            ..self
        })
    }

    fn add(&mut self, kind: DeviceType, context: &SnapshotContext<'_>) {
        let all: Vec<usize> = self.positions(|device| device.kind == kind);
        if all.is_empty() {
            return;
        }
        let visible = match launch_choice(&self.machine, kind, context) {
            Ok((visible, warnings)) => {
                self.warnings.extend(warnings);
                visible
            }
            Err(error) => {
                let text = format!("what a launch would see is not known: {error}");
                self.warnings.push(DeviceWarningLine { device: None, severity: Severity::Warning, text });
                None
            }
        };
        let usable = |device: &Accelerator| device.kind == kind && device.part != Part::MigParent;
        let variables = hiding_variables(kind, context.inherited);
        let listed = match (visible, variables) {
            (Some(visible), Some(variables)) => {
                for &at in
                    all.iter().filter(|at| !visible.contains(at) && usable(&self.machine.accelerators[**at]))
                {
                    self.hidden_by[at] = Some(variables.clone());
                }
                visible
            }
            (Some(visible), None) if !visible.is_empty() => visible,
            _ => self.positions(usable),
        };
        self.orders.extend(orders(kind, &listed, &self.machine, context.cuda_order));
        self.warnings.extend(health_warnings(&all, &self.machine, context.own_uid));
    }

    fn positions(&self, is_it: impl Fn(&Accelerator) -> bool) -> Vec<usize> {
        let all = self.machine.accelerators.iter().enumerate();
        all.filter(|(_, device)| is_it(device)).map(|(at, _)| at).collect()
    }

    /// Whether no device can be shown because a probe failed.
    pub(super) fn is_blind(&self) -> bool {
        self.machine.accelerators.is_empty() && self.machine.troubles.iter().any(super::fact_text::is_serious)
    }
}

/// The positions of the devices of this type that a launch would take, in its order, and what would be said about that;
/// no positions where it takes another type.
fn launch_choice(
    machine: &Machine,
    kind: DeviceType,
    context: &SnapshotContext<'_>,
) -> Result<(Option<Vec<usize>>, Vec<DeviceWarningLine>), ChoiceError> {
    let request = ChoiceRequest { kind: Some(kind), ..ChoiceRequest::default() };
    let question = ChoiceInput {
        machine,
        inherited: context.inherited,
        request: &request,
        unhealthy: &[],
        cuda_order: context.cuda_order,
    };
    let DeviceChoice { kind: found, devices, warnings, .. } =
        match visible(&question).and_then(|visible| select(visible, &question)) {
            // That is an answer too.
            Err(ChoiceError::AllHidden { .. }) => return Ok((Some(Vec::new()), Vec::new())),
            answer => answer?,
        };
    let position = |device: &Accelerator| {
        let same = |other: &Accelerator| {
            (other.kind, other.index, other.part) == (device.kind, device.index, device.part)
        };
        machine.accelerators.iter().position(same)
    };
    let positions = || devices.iter().filter_map(|chosen| position(&chosen.accelerator)).collect();
    // Small cards are reported once for the whole machine.
    let shown = warnings.into_iter().filter(|warning| !matches!(warning, Remark::SmallMemory { .. }));
    let message = shown.map(|warning| DeviceWarningLine {
        device: None,
        severity: Severity::Warning,
        text: warning.to_string(),
    });
    Ok(((found == kind || found == DeviceType::Cpu).then(positions), message.collect()))
}

/// The variables that are set and may hide devices of this type.
fn hiding_variables(kind: DeviceType, inherited: &InheritedVariables) -> Option<String> {
    let cuda = ("CUDA_VISIBLE_DEVICES", inherited.cuda.is_some());
    let candidates = match kind {
        DeviceType::Cuda => vec![cuda],
        DeviceType::Rocm => vec![
            ("ROCR_VISIBLE_DEVICES", inherited.rocr.is_some()),
            ("HIP_VISIBLE_DEVICES", inherited.hip.is_some()),
            cuda,
        ],
        DeviceType::Xpu => vec![("ZE_AFFINITY_MASK", inherited.ze_mask.is_some())],
        DeviceType::Hpu => vec![("HABANA_VISIBLE_MODULES", inherited.habana.is_some())],
        DeviceType::Npu => vec![("ASCEND_RT_VISIBLE_DEVICES", inherited.ascend.is_some())],
        DeviceType::Mps | DeviceType::Cpu => Vec::new(),
    };
    let set: Vec<&str> = candidates.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect();
    (!set.is_empty()).then(|| set.join(", "))
}

fn orders(
    kind: DeviceType,
    listed: &[usize],
    machine: &Machine,
    cuda_order: AskCuda<'_>,
) -> Vec<OrderPreview> {
    // One device has one order, so the driver is not asked.
    let of = |order| match listed.len() {
        0 | 1 => Ok(listed.to_vec()),
        _ => sort_devices(order, listed, machine, cuda_order).map_err(|error| error.to_string()),
    };
    DeviceOrder::ALL.into_iter().map(|order| OrderPreview { kind, order, devices: of(order) }).collect()
}

fn health_warnings(all: &[usize], machine: &Machine, own_uid: u32) -> Vec<DeviceWarningLine> {
    let cards: Vec<&Accelerator> = all.iter().map(|at| &machine.accelerators[*at]).collect();
    let small = small_memory_findings(&cards);
    let of_card = |(place, card): (usize, &&Accelerator)| -> Vec<DeviceWarningLine> {
        let small = small.iter().filter(|(at, _)| *at == place).map(|(_, finding)| finding.clone());
        let findings = findings(card, own_uid).into_iter().chain(small);
        let warning = |finding: rankrun_core::device::health::HealthFinding| DeviceWarningLine {
            device: Some(all[place]),
            severity: finding.severity,
            text: finding.text,
        };
        findings.map(warning).collect()
    };
    cards.iter().enumerate().flat_map(of_card).collect()
}

/// The part of the machine that concerns one type of devices.
fn with_kind_only(machine: Machine, kind: DeviceType) -> Machine {
    let kept: Vec<usize> =
        (0..machine.accelerators.len()).filter(|at| machine.accelerators[*at].kind == kind).collect();
    let machine = with_devices(machine, &kept);
    Machine {
        troubles: machine.troubles.into_iter().filter(|problem| problem.kind == kind).collect(),
        made_good: machine.made_good.into_iter().filter(|problem| problem.kind == kind).collect(),
        ..machine
    }
}

/// Whether an index, the beginning of a UUID or a PCI address means this device.
fn is_called(device: &Accelerator, id: &str) -> bool {
    let is_of_uuid = |uuid: &String| id.len() > 4 && uuid.to_lowercase().starts_with(&id.to_lowercase());
    let address = id.parse::<PciAddress>().ok();
    number(device) == id
        || device.uuid.as_ref().is_some_and(is_of_uuid)
        || (address.is_some() && device.pci == address)
}

/// The machine with only the devices at these positions.
fn with_devices(machine: Machine, kept: &[usize]) -> Machine {
    let place = |at: usize| kept.iter().position(|kept| *kept == at);
    let link = |link: DeviceLink| Some(DeviceLink { a: place(link.a)?, b: place(link.b)?, ..link });
    let nic = |nic: Nic| {
        let links = kept.iter().filter_map(|at| nic.links.get(*at).copied()).collect();
        Nic { links, ..nic }
    };
    Machine {
        links: machine.links.into_iter().filter_map(link).collect(),
        nics: machine.nics.into_iter().map(nic).collect(),
        accelerators: kept.iter().map(|at| machine.accelerators[*at].clone()).collect(),
        ..machine
    }
}

#[cfg(test)]
mod tests;
