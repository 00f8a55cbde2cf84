//! PCI topology: addresses, and the distance of two devices.
//!
//! The names are those of `nvidia-smi topo -m`; a switch counts as one bridge there, though its two ports are a
//! bridge each to the kernel, so that two cards below one switch are `PIX`.

use rankrun_core::device::{LinkKind, PciAddress};

use crate::device_probe::kernel::tree::Tree;

/// A longer path of folders is taken for an error.
const MAX_BRIDGES: usize = 64;

/// The way from the processor to a PCI device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PciPath {
    pub(super) address: PciAddress,
    /// Its host bridge, such as `pci0000:00`, with the folders before it.
    pub(super) host: String,
    /// The bridges between the two devices, from the host bridge on; the root port is the first.
    pub(super) bridges: Vec<String>,
    pub(super) numa_node: Option<u32>,
}

pub(super) fn folder(address: PciAddress) -> String {
    format!("/sys/bus/pci/devices/{address}")
}

/// The NUMA node of a device; the kernel shows -1 for an unknown node.
pub(super) fn numa_node(tree: &Tree<'_>, address: PciAddress) -> Option<u32> {
    let node: i32 = tree.number(&format!("{}/numa_node", folder(address)))?;
    u32::try_from(node).ok()
}

/// The way to a device, where the kernel shows it.
pub(super) fn read_pci_path(tree: &Tree<'_>, address: PciAddress) -> Option<PciPath> {
    let (host, bridges) = split_pci_path(&tree.link_target(&folder(address))?, address)?;
    Some(PciPath { address, host, bridges, numa_node: numa_node(tree, address) })
}

/// The host bridge and the bridges in the path of a device's own folder. Pure.
fn split_pci_path(path: &str, address: PciAddress) -> Option<(String, Vec<String>)> {
    let (_, path) = path.split_once("devices/")?;
    let folders: Vec<&str> = path.split('/').collect();
    let (own, way) = folders.split_last()?;
    let host = way.iter().position(|folder| is_host_bridge(folder))?;
    if own.parse() != Ok(address) || way.len() > MAX_BRIDGES {
        return None;
    }
    let bridges = way[host + 1..].iter().map(|&folder| folder.to_owned()).collect();
    Some((way[..=host].join("/"), bridges))
}

/// Whether a folder's name is `pci`, a domain and a bus.
fn is_host_bridge(folder: &str) -> bool {
    let hexadecimal = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let numbers = folder.strip_prefix("pci").and_then(|numbers| numbers.split_once(':'));
    numbers.is_some_and(|(domain, bus)| hexadecimal(domain) && hexadecimal(bus))
}

/// How far two devices are from each other. Pure.
pub(super) fn link_between(a: &PciPath, b: &PciPath) -> LinkKind {
    let card = |way: &PciPath| (way.address.domain, way.address.bus, way.address.device);
    if card(a) == card(b) {
        return LinkKind::Pix;
    }
    if a.host != b.host {
        return link_by_numa_node(a.numa_node, b.numa_node);
    }
    let shared = a.bridges.iter().zip(&b.bridges).take_while(|(one, other)| one == other).count();
    let farther = a.bridges.len().max(b.bridges.len());
    match (shared, farther - shared) {
        (0, _) => LinkKind::Phb,
        (_, 0 | 1) => LinkKind::Pix,
        _ => LinkKind::Pxb,
    }
}

/// The distance of two devices with different host bridges. A kernel that knows neither node has only one node. Pure.
pub(super) fn link_by_numa_node(a: Option<u32>, b: Option<u32>) -> LinkKind {
    if a == b { LinkKind::Node } else { LinkKind::Sys }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::device_probe::kernel::pci::*;

    /// The way of a path below `/sys/devices`; the NUMA node is the first digit of the host bridge's bus, over 8.
    fn at(path: &str) -> PciPath {
        let address = path.rsplit('/').next().unwrap().parse().unwrap();
        let (host, bridges) = split_pci_path(&format!("../../../devices/{path}"), address).unwrap();
        let numa_node = Some(u32::from(host.rsplit(':').next().unwrap() >= "80"));
        PciPath { address, host, bridges, numa_node }
    }

    #[test]
    fn pci_paths_give_link_kinds_of_nvidia_smi() {
        let table = [
            // Two functions of one card.
            ("pci0000:00/0000:00:01.0/0000:01:00.0", "pci0000:00/0000:00:01.0/0000:01:00.1", LinkKind::Pix),
            // One switch.
            (
                "pci0000:00/0000:00:01.0/0000:10:00.0/0000:11:00.0/0000:12:00.0",
                "pci0000:00/0000:00:01.0/0000:10:00.0/0000:11:01.0/0000:13:00.0",
                LinkKind::Pix,
            ),
            // Two switches below a third.
            (
                "pci0000:00/0000:00:01.0/0000:10:00.0/0000:11:00.0/0000:12:00.0/0000:13:00.0/0000:14:00.0",
                "pci0000:00/0000:00:01.0/0000:10:00.0/0000:11:01.0/0000:22:00.0/0000:23:00.0/0000:24:00.0",
                LinkKind::Pxb,
            ),
            ("pci0000:00/0000:00:01.0/0000:01:00.0", "pci0000:00/0000:00:02.0/0000:02:00.0", LinkKind::Phb),
            ("pci0000:00/0000:00:02.0", "pci0000:00/0000:00:01.0/0000:01:00.0", LinkKind::Phb),
            ("pci0000:00/0000:00:01.0/0000:01:00.0", "pci0000:40/0000:40:01.0/0000:41:00.0", LinkKind::Node),
            ("pci0000:00/0000:00:01.0/0000:01:00.0", "pci0000:80/0000:80:01.0/0000:81:00.0", LinkKind::Sys),
            // Hyper-V gives each card a domain of its own, VMD puts one below a device.
            (
                "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/47505500-0001/pci0001:00/0001:00:00.0",
                "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/47505500-0002/pci0002:00/0002:00:00.0",
                LinkKind::Node,
            ),
            (
                "pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0/10000:e1:00.0",
                "pci0000:00/0000:00:01.0/0000:01:00.0",
                LinkKind::Phb,
            ),
        ];
        for (a, b, kind) in table {
            assert_eq!(link_between(&at(a), &at(b)), kind, "{a} {b}");
            assert_eq!(link_between(&at(b), &at(a)), kind, "{b} {a}");
        }
    }

    #[test]
    fn unknown_numa_nodes_give_default_link_kind() {
        assert_eq!(link_by_numa_node(None, None), LinkKind::Node);
        assert_eq!(link_by_numa_node(Some(0), None), LinkKind::Sys);
    }

    #[test]
    fn invalid_pci_path_is_rejected() {
        let address = "0000:01:00.0".parse().unwrap();
        let deep = format!("devices/pci0000:00/{}0000:01:00.0", "0000:00:01.0/".repeat(200));
        for path in ["", "devices/", "pci0000:00/0000:01:00.0", "devices/0000:01:00.0", &deep] {
            assert_eq!(split_pci_path(path, address), None, "{path}");
        }
        // Another device's folder, and a host bridge that is none.
        assert_eq!(split_pci_path("devices/pci0000:00/0000:02:00.0", address), None);
        assert_eq!(split_pci_path("devices/pcislots:x/0000:01:00.0", address), None);
    }

    proptest! {
        #[test]
        fn any_pci_path_does_not_panic(path in "(devices/|pci0000:00/|0000:01:00.0/?|[a-z0-9:./]{0,6}){0,8}") {
            let _ = split_pci_path(&path, "0000:01:00.0".parse().unwrap());
        }
    }
}
