//! Huawei's Ascend cards, by their nodes in `/dev`.

use rankrun_core::device::{Accelerator, DeviceType, PciAddress};

use crate::device_probe::kernel::tree::Tree;
use crate::device_probe::kernel::{KernelReport, card, pci};

const DEVICES: &str = "/dev";
const HUAWEI: u32 = 0x19e5;
/// Processing accelerators: Huawei's network cards and bridges have the same vendor.
const ACCELERATORS: u32 = 0x1200;

/// Adds `/dev/davinci0` and so on. In a container they need not begin at 0; the logical ids do.
pub(super) fn find(tree: &Tree<'_>, report: &mut KernelReport) {
    let numbers = match tree.numbered(DEVICES, "davinci") {
        Ok(numbers) => numbers,
        Err(error) => return report.add_missing_source(DeviceType::Npu, DEVICES, &error),
    };
    if numbers.is_empty() {
        return report.add_missing(DeviceType::Npu, "/dev/davinci0", "no such file or folder");
    }
    let cards = cards(tree);
    let whole = common_facts(tree, &cards);
    for number in numbers {
        let node = format!("/dev/davinci{number}");
        match tree.check_openable(&node) {
            Ok(()) => report.add(whole.clone()),
            Err(why) => report.add_closed_node(DeviceType::Npu, &node, why),
        }
    }
}

/// The facts that hold for each card. The numbers do not follow the PCI order on real machines, and the kernel does
/// not map numbers to addresses: only a lone card has a known address, and a common NUMA node or name holds for all.
fn common_facts(tree: &Tree<'_>, cards: &[PciAddress]) -> Accelerator {
    let node = common_value(cards.iter().map(|address| pci::numa_node(tree, *address)));
    let device =
        common_value(cards.iter().map(|address| tree.hex(&format!("{}/device", pci::folder(*address)))));
    Accelerator {
        pci: if let [one] = cards { Some(*one) } else { None },
        numa_node: node,
        ..card(DeviceType::Npu, name(device).to_owned())
    }
}

fn common_value(mut values: impl Iterator<Item = Option<u32>>) -> Option<u32> {
    let first = values.next()??;
    values.all(|value| value == Some(first)).then_some(first)
}

fn cards(tree: &Tree<'_>) -> Vec<PciAddress> {
    let names = tree.names("/sys/bus/pci/devices").unwrap_or_default();
    let mut addresses: Vec<PciAddress> = names.iter().filter_map(|name| name.parse().ok()).collect();
    addresses.retain(|address| {
        let folder = pci::folder(*address);
        let number = |file: &str| tree.hex(&format!("{folder}/{file}"));
        number("vendor") == Some(HUAWEI) && number("class").is_some_and(|class| class >> 8 == ACCELERATORS)
    });
    addresses
}

const fn name(device: Option<u32>) -> &'static str {
    match device {
        Some(0xd100) => "Ascend 310",
        Some(0xd500) => "Ascend 310P",
        Some(0xd801) => "Ascend 910",
        Some(0xd802) => "Ascend 910B",
        _ => "Ascend NPU",
    }
}
