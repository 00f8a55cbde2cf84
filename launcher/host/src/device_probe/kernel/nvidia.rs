//! NVIDIA's cards as their driver lists them in `/proc`: the fallback where NVML does not answer.

use rankrun_core::device::{Accelerator, DeviceType, PciAddress};

use crate::device_probe::kernel::tree::{Tree, plain_number, sanitize_name};
use crate::device_probe::kernel::{KernelReport, card, pci};

const CARDS: &str = "/proc/driver/nvidia/gpus";

/// Adds the cards in PCI order, which is NVML's. A container may list more than it is given.
pub(super) fn find(tree: &Tree<'_>, report: &mut KernelReport) {
    let names = match tree.names(CARDS) {
        Ok(names) => names,
        Err(error) => return report.add_missing_source(DeviceType::Cuda, CARDS, &error),
    };
    let mut addresses: Vec<(PciAddress, String)> =
        names.into_iter().filter_map(|name| Some((name.parse().ok()?, name))).collect();
    if addresses.is_empty() {
        return report.add_missing(DeviceType::Cuda, CARDS, "it lists no card");
    }
    addresses.sort();
    for (address, name) in addresses {
        let path = format!("{CARDS}/{name}/information");
        let text = match tree.read(&path) {
            Ok(text) => text,
            Err(error) => {
                report.add_failed(DeviceType::Cuda, &path, &error.to_string());
                continue;
            }
        };
        if field(&text, "GPU Excluded") == Some("Yes") {
            continue;
        }
        let Some(minor) = field(&text, "Device Minor").and_then(plain_number) else {
            report.add_failed(DeviceType::Cuda, &path, "it has no device minor");
            continue;
        };
        let node = format!("/dev/nvidia{minor}");
        match tree.check_openable(&node) {
            Ok(()) => report.add(read_accelerator(tree, address, &text)),
            Err(why) => report.add_closed_node(DeviceType::Cuda, &node, why),
        }
    }
}

fn read_accelerator(tree: &Tree<'_>, address: PciAddress, text: &str) -> Accelerator {
    let name = field(text, "Model").and_then(sanitize_name);
    // A card that no process has used yet shows question marks.
    let is_uuid = |uuid: &&str| uuid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let uuid = field(text, "GPU UUID").filter(|uuid| uuid.starts_with("GPU-")).filter(is_uuid);
    Accelerator {
        uuid: uuid.and_then(sanitize_name),
        pci: Some(address),
        numa_node: pci::numa_node(tree, address),
        ..card(DeviceType::Cuda, name.unwrap_or_else(|| "NVIDIA GPU".to_owned()))
    }
}

/// The value of a line `name: value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}
