//! Devices in words, and the line for each worker that says which one it has. Pure.

use crate::device::DeviceType;
use crate::device::affinity::format_ranges;
use crate::device::choice::{SelectedDevice, SelectionMethod, noun, number};
use crate::notice::Notice;
use crate::placement::DeviceIdentity;
use crate::reporter::plain::plain;
use crate::spec::WorkerDevice;

/// What is told of a chosen device.
pub(super) fn card(chosen: &SelectedDevice) -> DeviceIdentity {
    let accelerator = &chosen.accelerator;
    DeviceIdentity {
        index: number(accelerator),
        noun: noun(accelerator),
        name: plain(&accelerator.name),
        uuid: accelerator.uuid.as_deref().map(plain),
        pci: accelerator.pci,
        numa_node: accelerator.numa_node,
        chosen_by: how(&chosen.how),
    }
}

/// Behind `by`.
fn how(how: &SelectionMethod) -> String {
    match how {
        SelectionMethod::Default => "default".to_owned(),
        SelectionMethod::Ordered { how: inner, order } if **inner == SelectionMethod::Default => {
            format!("--device-order {}", order.as_str())
        }
        how => plain(&how.to_string()),
    }
}

/// One line for each worker that has a device, in columns.
pub(super) fn lines(seats: &[WorkerDevice]) -> Vec<Notice> {
    let rows = (0..).zip(seats).filter_map(|(rank, seat): (u32, _)| {
        let columns = |what: [String; 3]| {
            let [title, name, place] = what;
            [format!("rank {rank}"), format!("→ {}:", seat.device), title, name, place]
        };
        let Some(card) = seat.device.identity.as_ref() else {
            let decided = "which device that is, the driver decides".to_owned();
            let is_on_device = seat.device.kind != DeviceType::Cpu;
            return is_on_device.then(|| (columns([decided, String::new(), String::new()]), String::new()));
        };
        let place = card.pci.map_or_else(String::new, |pci| format!("({pci})"));
        let cpus = seat.cpus.as_deref().map_or_else(String::new, |cpus| {
            let plural = if cpus.len() == 1 { "" } else { "s" };
            format!(", CPU{plural} {}", format_ranges(cpus))
        });
        Some((columns([card.title(), card.name.clone(), place]), format!(", by {}{cpus}", card.chosen_by)))
    });
    let rows: Vec<_> = rows.collect();
    let widest = |column: usize| rows.iter().map(|(row, _)| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..5).map(widest).collect();
    let line = |(columns, how): &([String; 5], String)| {
        let columns = columns.iter().zip(&widths).filter(|(_, width)| **width > 0);
        let padded: Vec<String> = columns.map(|(text, width)| format!("{text:<width$}")).collect();
        Notice::Seat { line: format!("{}{how}", padded.join(" ").trim_end()) }
    };
    rows.iter().map(line).collect()
}
