//! Habana's cards (Linux `Documentation/ABI/testing/sysfs-driver-habanalabs`), by the number of their driver.

use rankrun_core::device::{Accelerator, Condition, DeviceType};

use crate::device_probe::kernel::tree::{Tree, sanitize_name};
use crate::device_probe::kernel::{KernelReport, card, pci};

const CLASS: &str = "/sys/class/accel";

/// Adds the cards. Other vendors' devices are of the same class; they have no `device_type`.
pub(super) fn find(tree: &Tree<'_>, report: &mut KernelReport) {
    let numbers = match tree.numbered(CLASS, "accel") {
        Ok(numbers) => numbers,
        Err(error) => return report.add_missing_source(DeviceType::Hpu, CLASS, &error),
    };
    let before = (report.accelerators.len(), report.troubles.len());
    for number in numbers {
        let folder = format!("{CLASS}/accel{number}/device");
        let Some(name) = tree.name(&format!("{folder}/device_type")) else { continue };
        // The driver lets one process in at a time: opened for a look, it would refuse the worker.
        let node = format!("/dev/accel/accel{number}");
        match tree.check_openable(&node) {
            Ok(()) => report.add(read_accelerator(tree, &folder, name)),
            Err(why) => report.add_closed_node(DeviceType::Hpu, &node, why),
        }
    }
    if (report.accelerators.len(), report.troubles.len()) == before {
        report.add_missing(DeviceType::Hpu, CLASS, "none of its devices is a Gaudi");
    }
}

fn read_accelerator(tree: &Tree<'_>, folder: &str, name: String) -> Accelerator {
    let address = tree.text(&format!("{folder}/pci_addr")).and_then(|address| address.parse().ok());
    Accelerator {
        pci: address,
        numa_node: address.and_then(|address| pci::numa_node(tree, address)),
        module_id: tree.number(&format!("{folder}/module_id")),
        condition: condition(tree.text(&format!("{folder}/status")).as_deref()),
        ..card(DeviceType::Hpu, name)
    }
}

/// The driver's word for the card; the reset behind a process's end is over in seconds, before the next needs it.
fn condition(status: Option<&str>) -> Condition {
    match status.and_then(sanitize_name) {
        None => Condition::Answers,
        Some(status)
            if ["operational", "in reset after device release"]
                .iter()
                .any(|fine| status.eq_ignore_ascii_case(fine)) =>
        {
            Condition::Answers
        }
        Some(why) => Condition::Lost { why },
    }
}
