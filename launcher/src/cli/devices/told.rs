//! Devices in words, and the line for each worker that says which one it has. Pure.

use crate::cli::error::Origin;
use crate::cli::notice::Notice;
use crate::device::choice::{Chosen, How, Warning};
use crate::device::order::DeviceOrder;
use crate::device::{Accelerator, DeviceType, Part};
use crate::placement::Card;
use crate::spec::Seat;

/// `GPU 3`, `MIG 1:0`, `NPU 2`.
fn name(accelerator: &Accelerator) -> String {
    format!("{} {}", noun(accelerator), index(accelerator))
}

const fn noun(accelerator: &Accelerator) -> &'static str {
    match (accelerator.kind, accelerator.part) {
        (_, Part::MigInstance { .. }) => "MIG",
        (DeviceType::Hpu, _) => "HPU",
        (DeviceType::Npu, _) => "NPU",
        _ => "GPU",
    }
}

fn index(accelerator: &Accelerator) -> String {
    match accelerator.part {
        Part::MigInstance { gpu } => format!("{gpu}:{}", accelerator.index),
        _ => accelerator.index.to_string(),
    }
}

/// For a sentence: `GPU 3 (NVIDIA H100 80GB HBM3, 0000:1b:00.0)`.
pub(super) fn label(accelerator: &Accelerator) -> String {
    let pci = accelerator.pci.map(|pci| pci.to_string());
    let known: Vec<String> = [Some(accelerator.name.clone()), pci].into_iter().flatten().collect();
    let known: Vec<&str> = known.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
    match known.as_slice() {
        [] => name(accelerator),
        known => format!("{} ({})", name(accelerator), known.join(", ")),
    }
}

/// What is told of a chosen device; `listed` is who said `--devices`.
pub(super) fn card(chosen: &Chosen, listed: Option<&Origin>, order: Option<DeviceOrder>) -> Card {
    let accelerator = &chosen.accelerator;
    let how = match (&chosen.how, listed) {
        (How::Default, _) => "default".to_owned(),
        (How::Inherited { variable, entry: None }, _) => (*variable).to_owned(),
        (How::Inherited { variable, entry: Some(entry) }, _) => format!("entry {entry} of {variable}"),
        (How::Typed { entry }, Some(Origin::Variable(variable))) => format!("entry {entry} of {variable}"),
        (How::Typed { entry }, _) => format!("--devices {entry}"),
    };
    Card {
        index: index(accelerator),
        noun: noun(accelerator),
        name: accelerator.name.clone(),
        uuid: accelerator.uuid.clone(),
        pci: accelerator.pci,
        numa_node: accelerator.numa_node,
        how: match order {
            Some(order) => format!("{how}, --device-order {}", order.word()),
            None => how,
        },
    }
}

/// One line for each worker that has a device, in columns.
pub(super) fn lines(seats: &[Seat]) -> Vec<Notice> {
    let rows = (0..).zip(seats).filter_map(|(rank, seat): (u32, _)| {
        let card = seat.device.card.as_ref()?;
        let place = card.pci.map_or_else(String::new, |pci| format!("({pci})"));
        let cpus = seat.cpus.as_deref().map_or_else(String::new, |cpus| {
            let plural = if cpus.len() == 1 { "" } else { "s" };
            format!(", CPU{plural} {}", ranges(cpus))
        });
        let columns =
            [format!("rank {rank}"), format!("→ {}:", seat.device), card.title(), card.name.clone(), place];
        Some((columns, format!("by {}{cpus}", card.how)))
    });
    let rows: Vec<_> = rows.collect();
    let widest = |column: usize| rows.iter().map(|(row, _)| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..5).map(widest).collect();
    let line = |(columns, how): &([String; 5], String)| {
        let columns = columns.iter().zip(&widths).filter(|(_, width)| **width > 0);
        let padded: Vec<String> = columns.map(|(text, width)| format!("{text:<width$}")).collect();
        Notice::Seat { line: format!("{}, {how}", padded.join(" ").trim_end()) }
    };
    rows.iter().map(line).collect()
}

/// `0-3,8` for numbers in ascending order.
pub(super) fn ranges(numbers: &[u32]) -> String {
    crate::device::affinity::ranges(numbers)
}

/// A warning of the choice as a sentence.
pub(super) fn warning(warning: &Warning) -> String {
    match warning {
        Warning::Dropped { variable, value, because } => {
            format!("`{variable}` is `{}`: {because}", value.to_string_lossy())
        }
    }
}
