//! Network cards from sysfs, and their PCI distance from each accelerator, for `rankrun topo`.

use std::collections::BTreeSet;

use rankrun_core::device::{Accelerator, LinkKind, Nic, PciAddress};

use crate::device_probe::kernel::pci::{self, PciPath};
use crate::device_probe::kernel::tree::{Tree, sanitize_name};

const RDMA: &str = "/sys/class/infiniband";
const INTERFACES: &str = "/sys/class/net";

/// The most network cards that are reported.
const MAX_NICS: usize = 128;

/// The cards on the PCI bus: by their RDMA devices, and the rest by their interfaces.
pub(super) fn find(tree: &Tree<'_>, accelerators: &[Accelerator], ways: &[Option<PciPath>]) -> Vec<Nic> {
    let rdma = pci_devices_of_class(tree, RDMA);
    let with_rdma: BTreeSet<PciAddress> = rdma.iter().map(|(_, address)| *address).collect();
    let interfaces = pci_devices_of_class(tree, INTERFACES);
    let without_rdma = interfaces.into_iter().filter(|(_, address)| !with_rdma.contains(address));
    let nic = |(name, address): (String, PciAddress)| {
        let way = pci::read_pci_path(tree, address);
        let numa_node = pci::numa_node(tree, address);
        let link = |(card, of_card): (&Accelerator, &Option<PciPath>)| match (&way, of_card) {
            (Some(way), Some(of_card)) => pci::link_between(way, of_card),
            _ if numa_node.is_some() => pci::link_by_numa_node(numa_node, card.numa_node),
            _ => LinkKind::Sys,
        };
        let links = accelerators.iter().zip(ways).map(link).collect();
        Nic { name, pci: Some(address), numa_node, links }
    };
    rdma.iter().cloned().chain(without_rdma).take(MAX_NICS).map(nic).collect()
}

/// The devices of a class that have a PCI device, by PCI address and name. Bridges, tunnels and the loopback have none.
fn pci_devices_of_class(tree: &Tree<'_>, class: &str) -> Vec<(String, PciAddress)> {
    let names = tree.names(class).unwrap_or_default();
    let device = |name: String| {
        let path = tree.canonical(&format!("{class}/{name}/device"))?;
        // A virtual function's own device, such as virtio's, is below its PCI device.
        let address = path.rsplit('/').find_map(|folder| folder.parse::<PciAddress>().ok())?;
        Some((sanitize_name(&name)?, address))
    };
    let mut devices: Vec<_> = names.into_iter().filter_map(device).collect();
    devices.sort_by(|one, other| (one.1, &one.0).cmp(&(other.1, &other.0)));
    devices
}
