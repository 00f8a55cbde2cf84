//! `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER` (NVIDIA).
//!
//! The list is read as PyTorch reads it, following the driver (`torch/cuda/__init__.py`). Its indices count in CUDA's
//! order, which only the driver knows unless `CUDA_DEVICE_ORDER=PCI_BUS_ID` is set or the cards are alike.
//!
//! An index or UUID of a card in MIG mode means the first of its instances, since a process enumerates no other.

use std::ffi::OsStr;

use super::{AskCuda, ChosenDevice, DeviceChoice, IndexOrder, InheritedVariables};
use crate::device::{Accelerator, Condition, CudaDevice, DeviceType, Machine, Part};

const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

pub(super) fn read(
    machine: &Machine,
    inherited: &InheritedVariables,
    index_order: IndexOrder,
    cuda_order: AskCuda<'_>,
) -> DeviceChoice {
    let cards = CardList { machine, inherited, index_order, cuda_order };
    match &inherited.cuda {
        None => cards.without_list(),
        Some(value) => cards.with_list(value),
    }
}

/// The positions of the machine's cards, including those in MIG mode, in ascending PCI order: the meaning of an index
/// under `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
pub(in crate::device) fn pci_order(machine: &Machine) -> Vec<usize> {
    let is_card = |accelerator: &Accelerator| {
        accelerator.kind == DeviceType::Cuda && matches!(accelerator.part, Part::Whole | Part::MigParent)
    };
    let mut cards: Vec<usize> =
        (0..machine.accelerators.len()).filter(|at| is_card(&machine.accelerators[*at])).collect();
    // A card that is lost does not tell its address; the library's own index follows PCI order in practice.
    let are_known = cards.iter().all(|at| machine.accelerators[*at].pci.is_some());
    cards.sort_by_key(|at| {
        let card = &machine.accelerators[*at];
        (card.pci.filter(|_| are_known), card.index)
    });
    cards
}

/// The driver's answer as positions among `cards`: by UUID, or else by PCI address. Cards that it does not name come
/// last.
///
/// # Errors
/// It names none of them.
fn match_driver(machine: &Machine, cards: &[usize], driver: &[CudaDevice]) -> Result<Vec<usize>, String> {
    let mut order: Vec<usize> = Vec::new();
    for device in driver {
        let by_uuid = |at: &&usize| machine.accelerators[**at].uuid.as_ref() == Some(&device.uuid);
        let by_pci = |at: &&usize| device.pci.is_some() && machine.accelerators[**at].pci == device.pci;
        let found = cards.iter().find(by_uuid).or_else(|| cards.iter().find(by_pci));
        order.extend(found.filter(|at| !order.contains(at)));
    }
    if order.is_empty() {
        return Err("the CUDA driver names none of these devices".to_owned());
    }
    let unnamed: Vec<usize> = cards.iter().copied().filter(|at| !order.contains(at)).collect();
    order.extend(unnamed);
    Ok(order)
}

struct CardList<'a> {
    machine: &'a Machine,
    inherited: &'a InheritedVariables,
    index_order: IndexOrder,
    cuda_order: AskCuda<'a>,
}

/// Cards in CUDA's order, or in PCI order where that is not known, with the reason.
type EnumerationOrder = (Vec<usize>, Option<String>);

impl CardList<'_> {
    fn order(&self) -> EnumerationOrder {
        let cards = pci_order(self.machine);
        let names = || {
            let cards = cards.iter().map(|at| &self.machine.accelerators[*at]);
            cards.filter(|card| card.condition == Condition::Answers).map(|card| &card.name)
        };
        let pinned = self.inherited.cuda_order.as_deref() == Some(OsStr::new("PCI_BUS_ID"));
        // Cards of one model leave the driver nothing to guess, and then it counts in PCI order.
        if pinned || names().all(|name| Some(name) == names().next()) {
            return (cards, None);
        }
        if cards.iter().any(|at| self.machine.accelerators[*at].part == Part::MigParent) {
            let reason = "a process sees one MIG device only, so that the driver cannot be asked for all";
            return (cards, Some(reason.to_owned()));
        }
        let driver = (self.cuda_order)();
        match driver.and_then(|driver| match_driver(self.machine, &cards, &driver)) {
            Ok(order) => (order, None),
            Err(reason) => (cards, Some(reason)),
        }
    }

    fn instances(&self, card: usize) -> impl Iterator<Item = usize> {
        let gpu = self.machine.accelerators[card].index;
        let of_card = move |(at, accelerator): (usize, &Accelerator)| {
            let is = accelerator.kind == DeviceType::Cuda && accelerator.part == Part::MigInstance { gpu };
            is.then_some(at)
        };
        self.machine.accelerators.iter().enumerate().filter_map(of_card)
    }

    /// The device that a process sees if it is shown only this card.
    fn device_of(&self, card: usize) -> Option<usize> {
        match self.machine.accelerators[card].part {
            Part::MigParent => self.instances(card).next(),
            Part::Whole | Part::MigInstance { .. } | Part::Tile { .. } => Some(card),
        }
    }

    fn without_list(&self) -> DeviceChoice {
        let variable = self.inherited.cuda_order.as_ref().filter(|_| self.index_order != IndexOrder::Named);
        let has_instances =
            self.machine.accelerators.iter().any(|device| matches!(device.part, Part::MigInstance { .. }));
        // Each worker of a machine with MIG devices is shown its own by UUID, whatever the runtime's order is.
        let counts = match self.index_order {
            IndexOrder::Runtime | IndexOrder::Torch => !has_instances,
            IndexOrder::Typed => variable.is_some(),
            IndexOrder::Named => false,
        };
        let (cards, order_unknown) = if counts {
            self.order()
        } else {
            let mut cards = pci_order(self.machine);
            cards.sort_by_key(|at| self.machine.accelerators[*at].index);
            (cards, None)
        };
        let mut visible = DeviceChoice::of(DeviceType::Cuda, Vec::new());
        for (ordinal, card) in cards.into_iter().enumerate() {
            if self.index_order == IndexOrder::Torch {
                // Through NVML, which lists cards. Without instances there is nothing to see, and it counts all the same.
                let at = self.device_of(card).unwrap_or(card);
                visible.devices.push(ChosenDevice::of(self.machine, at));
            } else if self.machine.accelerators[card].part == Part::MigParent {
                let instances = self.instances(card).map(|at| ChosenDevice::of(self.machine, at));
                visible.devices.extend(instances.map(|device| ChosenDevice { index: None, ..device }));
            } else {
                let mut device = ChosenDevice::of(self.machine, card);
                if counts {
                    device.index = u32::try_from(ordinal).ok();
                }
                visible.devices.push(device);
            }
        }
        visible.variable = variable.filter(|_| counts).map(|value| ("CUDA_DEVICE_ORDER", value.clone()));
        visible.order_unknown = order_unknown;
        visible
    }

    fn with_list(&self, value: &OsStr) -> DeviceChoice {
        let text = value.to_string_lossy();
        let mut dropped = Vec::new();
        let form = ["GPU-", "MIG-"].into_iter().find(|form| text.starts_with(form));
        let (devices, order_unknown) = match form {
            Some(form) => {
                let old = self.by_legacy_mig_names(&text);
                let mut devices = old.unwrap_or_else(|| self.by_uuid(&text, form, &mut dropped));
                if form == "MIG-" && self.index_order == IndexOrder::Torch {
                    devices.truncate(1);
                }
                (devices, None)
            }
            None => self.by_number(&text, &mut dropped),
        };
        // The usual ways to write "none".
        if matches!(text.trim(), "" | "-1" | "NoDevFiles") {
            dropped.clear();
        }
        let mut visible = DeviceChoice::listed(DeviceType::Cuda, devices, (VARIABLE, value), &dropped);
        visible.order_unknown = order_unknown;
        visible
    }

    fn by_uuid(&self, text: &str, form: &str, dropped: &mut Vec<String>) -> Vec<ChosenDevice> {
        let mut entries: Vec<&str> = Vec::new();
        let mut rest = text.split(',').map(str::trim);
        while let Some(entry) = rest.next() {
            if entries.contains(&entry) {
                dropped.push(format!("`{entry}` is listed twice, which makes no device visible"));
                return Vec::new();
            }
            if !entry.starts_with(form) {
                if !entry.is_empty() || rest.next().is_some() {
                    end_of_list(
                        dropped,
                        entry,
                        &format!("does not begin with `{form}` as the first entry does"),
                    );
                }
                break;
            }
            entries.push(entry);
        }
        let mut named: Vec<ChosenDevice> = Vec::new();
        for entry in entries {
            let Some(at) = self.match_unique_uuid(entry, form) else {
                end_of_list(dropped, entry, "fits no device or several");
                break;
            };
            if named.iter().any(|device| device.position == at) {
                dropped.push(format!("`{entry}` names a device again, which makes no device visible"));
                return Vec::new();
            }
            named.push(ChosenDevice::of(self.machine, at).named(entry, true));
        }
        named
    }

    /// MIG devices in the form that drivers before R470 gave out, and later ones still take: `MIG-GPU-<uuid>/1/0`, with
    /// the ids of the GPU instance and of the compute instance in it. Where the driver does not tell these names it is
    /// not known which instance one means, and so the card stands for it.
    ///
    /// Nothing where the list has anything else.
    fn by_legacy_mig_names(&self, text: &str) -> Option<Vec<ChosenDevice>> {
        let entries: Vec<&str> = text.split(',').map(str::trim).collect();
        let is_known = entries.iter().all(|entry| self.match_unique_uuid(entry, "MIG-").is_some());
        let is_twice = entries.iter().enumerate().any(|(at, entry)| entries[..at].contains(entry));
        if is_known || is_twice {
            return None;
        }
        entries.into_iter().map(|entry| self.by_legacy_mig_name(entry)).collect()
    }

    fn by_legacy_mig_name(&self, entry: &str) -> Option<ChosenDevice> {
        let (card, ids) = entry.strip_prefix("MIG-")?.split_once('/')?;
        let (instance, compute) = ids.split_once('/')?;
        let (instance, _): (u32, u32) = (instance.parse().ok()?, compute.parse().ok()?);
        let is_it = |at: &usize| self.machine.accelerators[*at].uuid.as_deref() == Some(card);
        let at = pci_order(self.machine).into_iter().find(is_it)?;
        let mut device = ChosenDevice::of(self.machine, at);
        let gpu = device.accelerator.index;
        device.accelerator.part = Part::MigInstance { gpu };
        device.accelerator.index = instance;
        device.accelerator.name = format!("{} MIG {ids}", device.accelerator.name);
        device.accelerator.uuid = Some(entry.to_owned());
        // Otherwise the card's own memory would be reported as the instance's.
        device.accelerator.memory = None;
        device.accelerator.state = None;
        Some(device.named(entry, true))
    }

    /// The one device that a UUID fits: the beginning of a card's is enough, that of a MIG device is written whole.
    fn match_unique_uuid(&self, entry: &str, form: &str) -> Option<usize> {
        let uuid = |at: usize| self.machine.accelerators[at].uuid.as_deref();
        if form == "MIG-" {
            let is = |at: &usize| {
                self.machine.accelerators[*at].kind == DeviceType::Cuda && uuid(*at) == Some(entry)
            };
            return (0..self.machine.accelerators.len()).find(is);
        }
        let cards = pci_order(self.machine);
        let mut fitting =
            cards.into_iter().filter(|at| uuid(*at).is_some_and(|uuid| uuid.starts_with(entry)));
        let first = fitting.next().filter(|_| entry != form)?;
        fitting.next().is_none().then(|| self.device_of(first)).flatten()
    }

    fn by_number(&self, text: &str, dropped: &mut Vec<String>) -> (Vec<ChosenDevice>, Option<String>) {
        let mut numbers: Vec<(u64, &str)> = Vec::new();
        let mut rest = text.split(',').map(str::trim);
        while let Some(entry) = rest.next() {
            let Some(number) = strtoul(entry) else {
                // A comma at the end drops nothing.
                if !entry.is_empty() || rest.next().is_some() {
                    end_of_list(dropped, entry, "is not an index");
                }
                break;
            };
            if numbers.iter().any(|(earlier, _)| *earlier == number) {
                dropped.push(format!("`{number}` is listed twice, which makes no device visible"));
                return (Vec::new(), None);
            }
            numbers.push((number, entry));
        }
        if numbers.is_empty() {
            return (Vec::new(), None);
        }
        let (cards, order_unknown) = self.order();
        let mut named = Vec::new();
        for (number, entry) in numbers {
            let card = usize::try_from(number).ok().and_then(|number| cards.get(number));
            let Some(at) = card.and_then(|card| self.device_of(*card)) else {
                end_of_list(dropped, entry, "is not an index of a device");
                break;
            };
            if !entry.bytes().all(|byte| byte.is_ascii_digit()) {
                dropped.push(format!("of `{entry}` only `{number}` is read"));
            }
            named.push(ChosenDevice::of(self.machine, at).named(number.to_string(), false));
        }
        (named, order_unknown)
    }
}

/// The first invalid entry ends the list.
fn end_of_list(dropped: &mut Vec<String>, entry: &str, why: &str) {
    dropped.push(format!("`{entry}` {why}, which ends the list"));
}

/// The number at the start of the text, as `strtoul` reads it; a negative one is not an index.
fn strtoul(text: &str) -> Option<u64> {
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(unsigned) => (true, unsigned),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let digits = unsigned.find(|character: char| !character.is_ascii_digit()).unwrap_or(unsigned.len());
    if digits == 0 {
        return None;
    }
    let number = unsigned[..digits].parse().unwrap_or(u64::MAX);
    (!negative || number == 0).then_some(number)
}
