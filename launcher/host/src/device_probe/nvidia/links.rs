//! How two cards are joined: by `NVLink`s between them, through an `NVSwitch`, or over PCIe.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use nvml_wrapper::error::NvmlError;

use crate::device_probe::nvidia::{Handle, error_text, raw};
use rankrun_core::device::{DeviceLink, LinkKind, PciAddress};

/// The value of `NVML_NVLINK_MAX_LINKS` in NVML's header.
pub(super) const MOST_LINKS: u32 = 18;

/// NVML's numbers for the kind of device at the other end of a link.
const REMOTE_GPU: u32 = 0;
const REMOTE_NPU: u32 = 1;
const REMOTE_SWITCH: u32 = 2;

/// The device at the other end of an active link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkPeer {
    Card(PciAddress),
    /// An `NVSwitch`, which leads to all other cards.
    Switch,
    /// A CPU, or a card that is not shown to us.
    Elsewhere,
}

#[derive(Debug)]
struct ActiveLinks {
    pci: Option<PciAddress>,
    remotes: Vec<LinkPeer>,
}

impl ActiveLinks {
    fn count(&self, to: LinkPeer) -> u32 {
        // At most [`MOST_LINKS`].
        self.remotes.iter().map(|remote| u32::from(*remote == to)).sum()
    }

    fn links_to_card(&self, other: &Self) -> u32 {
        other.pci.map_or(0, |pci| self.count(LinkPeer::Card(pci)))
    }
}

/// The best link between each two cards; a pair without an answer of NVML is left out.
pub(super) fn links_between_cards(cards: &[Handle<'_>]) -> Vec<DeviceLink> {
    let here: Vec<PciAddress> = cards.iter().filter_map(|card| card.pci).collect();
    let ports: Vec<ActiveLinks> = cards
        .iter()
        .map(|card| ActiveLinks { pci: card.pci, remotes: link_peers(&card.device, &here) })
        .collect();
    let mut links = Vec::new();
    for (first, a) in cards.iter().enumerate() {
        for (second, b) in cards.iter().enumerate().skip(first + 1) {
            let kind = nvlinks(&ports[first], &ports[second]).map(LinkKind::Nvlink);
            if let Some(kind) = kind.or_else(|| pcie(&a.device, &b.device)) {
                links.push(DeviceLink { a: a.position, b: b.position, kind });
            }
        }
    }
    links
}

/// Where each active link of a card leads.
fn link_peers(device: &Device<'_>, here: &[PciAddress]) -> Vec<LinkPeer> {
    let mut remotes = Vec::new();
    for number in 0..MOST_LINKS {
        let link = device.link_wrapper_for(number);
        match link.is_active() {
            Ok(true) => {
                let address = link.remote_pci_info().ok().and_then(|pci| pci.bus_id.parse().ok());
                remotes.push(link_peer(address, here, || raw::remote_kind(device, number).ok()));
            }
            Err(NvmlError::FailedToLoadSymbol(_)) => break,
            Err(error) if error_text::is_loss(&error) => break,
            // A link that is not wired answers with an error, and may come before one that is.
            Ok(false) | Err(_) => {}
        }
    }
    remotes
}

/// The target of a link, from the address at its other end, and from the kind only if the address is not a card of
/// `here`.
fn link_peer(
    address: Option<PciAddress>,
    here: &[PciAddress],
    kind: impl FnOnce() -> Option<u32>,
) -> LinkPeer {
    if let Some(address) = address.filter(|address| here.contains(address)) {
        return LinkPeer::Card(address);
    }
    match kind() {
        Some(REMOTE_SWITCH) => LinkPeer::Switch,
        Some(REMOTE_GPU | REMOTE_NPU) => LinkPeer::Elsewhere,
        _ if address.is_some() => LinkPeer::Switch,
        _ => LinkPeer::Elsewhere,
    }
}

/// How many `NVLink`s join two cards, as `nvidia-smi topo -m` counts: the direct ones, or else the ones from each
/// card to the switch.
fn nvlinks(a: &ActiveLinks, b: &ActiveLinks) -> Option<u32> {
    let direct = a.links_to_card(b).max(b.links_to_card(a));
    let switched = a.count(LinkPeer::Switch).min(b.count(LinkPeer::Switch));
    [direct, switched].into_iter().find(|count| *count > 0)
}

fn pcie(a: &Device<'_>, b: &Device<'_>) -> Option<LinkKind> {
    a.nvml().topology_common_ancestor(a, b).ok().map(level)
}

fn level(level: TopologyLevel) -> LinkKind {
    match level {
        TopologyLevel::Internal | TopologyLevel::Single => LinkKind::Pix,
        TopologyLevel::Multiple => LinkKind::Pxb,
        TopologyLevel::HostBridge => LinkKind::Phb,
        TopologyLevel::Node => LinkKind::Node,
        TopologyLevel::System => LinkKind::Sys,
    }
}

#[cfg(test)]
mod tests {
    use crate::device_probe::nvidia::links::*;

    fn pci(bus: u8) -> PciAddress {
        PciAddress { domain: 0, bus, device: 0, function: 0 }
    }

    fn ports(bus: u8, remotes: &[LinkPeer]) -> ActiveLinks {
        ActiveLinks { pci: Some(pci(bus)), remotes: remotes.to_vec() }
    }

    #[test]
    fn link_to_local_card_skips_remote_kind_query() {
        let query_kind = || panic!("the kind must not be asked for");
        assert_eq!(link_peer(Some(pci(2)), &[pci(1), pci(2)], query_kind), LinkPeer::Card(pci(2)));
    }

    #[test]
    fn link_to_unknown_address_is_switch_unless_other_kind() {
        let here = [pci(1)];
        let kinds = [
            (Some(pci(9)), Some(2), LinkPeer::Switch),
            (Some(pci(9)), Some(255), LinkPeer::Switch),
            (Some(pci(9)), None, LinkPeer::Switch),
            (Some(pci(9)), Some(0), LinkPeer::Elsewhere),
            (Some(pci(9)), Some(1), LinkPeer::Elsewhere),
            (None, Some(2), LinkPeer::Switch),
            (None, None, LinkPeer::Elsewhere),
        ];
        for (address, kind, expected) in kinds {
            assert_eq!(link_peer(address, &here, || kind), expected, "{address:?} {kind:?}");
        }
    }

    #[test]
    fn nvlinks_are_counted_per_card_pair() {
        let a = ports(1, &[LinkPeer::Card(pci(2)), LinkPeer::Card(pci(2)), LinkPeer::Card(pci(3))]);
        let b = ports(2, &[LinkPeer::Card(pci(1)), LinkPeer::Card(pci(1))]);
        let c = ports(3, &[LinkPeer::Card(pci(1))]);
        assert_eq!(nvlinks(&a, &b), Some(2));
        assert_eq!(nvlinks(&a, &c), Some(1));
        assert_eq!(nvlinks(&b, &c), None);
    }

    #[test]
    fn nvlinks_reported_by_one_side_are_counted() {
        let a = ports(1, &[]);
        let b = ports(2, &[LinkPeer::Card(pci(1)); 4]);
        assert_eq!(nvlinks(&a, &b), Some(4));
    }

    #[test]
    fn nvlinks_through_switch_are_minimum_of_both_cards() {
        let a = ports(1, &[LinkPeer::Switch; 18]);
        let b = ports(2, &[LinkPeer::Switch; 18]);
        let with_disabled_port = ports(3, &[LinkPeer::Switch; 17]);
        assert_eq!(nvlinks(&a, &b), Some(18));
        assert_eq!(nvlinks(&a, &with_disabled_port), Some(17));
        assert_eq!(nvlinks(&a, &ports(4, &[])), None);
        assert_eq!(nvlinks(&a, &ports(4, &[LinkPeer::Elsewhere; 6])), None);
    }

    #[test]
    fn topology_levels_map_to_nvidia_smi_names() {
        let levels = [
            (TopologyLevel::Internal, LinkKind::Pix),
            (TopologyLevel::Single, LinkKind::Pix),
            (TopologyLevel::Multiple, LinkKind::Pxb),
            (TopologyLevel::HostBridge, LinkKind::Phb),
            (TopologyLevel::Node, LinkKind::Node),
            (TopologyLevel::System, LinkKind::Sys),
        ];
        for (level_code, name) in levels {
            assert_eq!(level(level_code), name);
        }
    }
}
