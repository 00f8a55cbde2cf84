//! Devices in words, and the line for each worker that names its device. Pure.

use crate::device::DeviceType;
use crate::device::affinity::format_ranges;
use crate::device::choice::{ChosenDevice, SelectionMethod, noun, number};
use crate::device::worker_device::{DeviceIdentity, WorkerDevice};
use crate::notice::Notice;
use crate::plain::plain;

/// The identity of a chosen device, for messages.
pub(super) fn device_identity(chosen: &ChosenDevice) -> DeviceIdentity {
    let accelerator = &chosen.accelerator;
    DeviceIdentity {
        index: number(accelerator),
        noun: noun(accelerator),
        name: plain(&accelerator.name),
        uuid: accelerator.uuid.as_deref().map(plain),
        pci: accelerator.pci,
        numa_node: accelerator.numa_node,
        chosen_by: chosen_by(&chosen.how),
    }
}

/// The words behind `by`.
fn chosen_by(method: &SelectionMethod) -> String {
    match method {
        SelectionMethod::Default => "default".to_owned(),
        SelectionMethod::Ordered { how: inner, order } if **inner == SelectionMethod::Default => {
            format!("--device-order {}", order.as_str())
        }
        method => plain(&method.to_string()),
    }
}

/// One line for each worker that has a device, in columns.
pub(super) fn device_lines(worker_devices: &[WorkerDevice]) -> Vec<Notice> {
    let rows = (0..).zip(worker_devices).filter_map(|(rank, worker): (u32, _)| {
        let columns = |what: [String; 3]| {
            let [title, name, place] = what;
            [format!("rank {rank}"), format!("→ {}:", worker.device), title, name, place]
        };
        let Some(identity) = worker.device.identity.as_ref() else {
            let unknown = "which device that is, the driver decides".to_owned();
            let is_on_device = worker.device.kind != DeviceType::Cpu;
            return is_on_device.then(|| (columns([unknown, String::new(), String::new()]), String::new()));
        };
        let place = identity.pci.map_or_else(String::new, |pci| format!("({pci})"));
        let cpus = worker.cpus.as_deref().map_or_else(String::new, |cpus| {
            let plural = if cpus.len() == 1 { "" } else { "s" };
            format!(", CPU{plural} {}", format_ranges(cpus))
        });
        let columns = columns([identity.title(), identity.name.clone(), place]);
        Some((columns, format!(", by {}{cpus}", identity.chosen_by)))
    });
    let rows: Vec<_> = rows.collect();
    let widest = |column: usize| rows.iter().map(|(row, _)| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..5).map(widest).collect();
    let line = |(columns, method): &([String; 5], String)| {
        let columns = columns.iter().zip(&widths).filter(|(_, width)| **width > 0);
        let padded: Vec<String> = columns.map(|(text, width)| format!("{text:<width$}")).collect();
        Notice::WorkerDevice { line: format!("{}{method}", padded.join(" ").trim_end()) }
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::choice::label;
    use crate::device::{Accelerator, Part, fake};

    /// The line of a worker and other messages about its device.
    #[test]
    fn device_has_same_name_in_all_messages() {
        let parts = [
            (DeviceType::Cuda, Part::Whole, "GPU 1"),
            (DeviceType::Cuda, Part::MigInstance { gpu: 2 }, "MIG device 2:1"),
            (DeviceType::Xpu, Part::Tile { card: 0, tile: 1 }, "tile 1"),
            (DeviceType::Hpu, Part::Whole, "HPU 1"),
            (DeviceType::Npu, Part::Whole, "NPU 1"),
        ];
        for (kind, part, title) in parts {
            let accelerator = Accelerator { part, ..fake::card(kind, 1, "H100", 0x1b) };
            let label = label(&accelerator);
            let identity = device_identity(&ChosenDevice::new(0, accelerator));
            assert_eq!((identity.title().as_str(), identity.to_string()), (title, label));
        }
    }
}
