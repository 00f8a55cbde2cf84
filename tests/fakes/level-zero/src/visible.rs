//! Which devices a process sees (*Level Zero Specification*, "Device Hierarchy" and "Affinity Mask"). Pure.

use fake_machine::{Machine, Vendor};

/// A device as a process sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VisibleDevice {
    /// The card's position in the machine.
    pub(crate) card: usize,
    /// The tile, where it is not the whole card.
    pub(crate) tile: Option<u32>,
}

/// The variables.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Variables<'a> {
    /// `ZE_AFFINITY_MASK`
    pub(crate) mask: Option<&'a str>,
    /// `ZE_FLAT_DEVICE_HIERARCHY`
    pub(crate) hierarchy: Option<&'a str>,
    /// `ZE_ENABLE_PCI_ID_DEVICE_ORDER`
    pub(crate) pci_order: Option<&'a str>,
}

/// The devices in the order of the driver, which no mask changes.
pub(crate) fn visible(machine: &Machine, variables: Variables<'_>) -> Vec<VisibleDevice> {
    let cards: Vec<usize> = match variables.pci_order {
        Some("1") => machine.by_pci(Vendor::Intel),
        _ => machine.of(Vendor::Intel).map(|(position, _)| position).collect(),
    };
    let composite = variables.hierarchy == Some("COMPOSITE");
    let devices: Vec<VisibleDevice> = cards
        .into_iter()
        .flat_map(|card| {
            let tiles = machine.cards[card].tiles;
            let whole = composite || tiles < 2;
            (0..if whole { 1 } else { tiles })
                .map(move |tile| VisibleDevice { card, tile: (!whole).then_some(tile) })
        })
        .collect();
    match variables.mask {
        None | Some("") => devices,
        Some(mask) => masked(&devices, mask, composite),
    }
}

fn masked(devices: &[VisibleDevice], mask: &str, composite: bool) -> Vec<VisibleDevice> {
    let entries: Vec<(usize, Option<u32>)> = mask
        .split(',')
        .filter_map(|entry| match entry.split_once('.') {
            None => Some((entry.parse().ok()?, None)),
            Some((device, tile)) if composite => Some((device.parse().ok()?, Some(tile.parse().ok()?))),
            Some(_) => None,
        })
        .collect();
    let named = |(ordinal, device): (usize, &VisibleDevice)| {
        let mut tiles = entries.iter().filter(|(named, _)| *named == ordinal).map(|(_, tile)| *tile);
        let first = tiles.next()?;
        // Several tiles of a card are the card, with only these on it.
        let only = first.filter(|_| tiles.next().is_none());
        Some(VisibleDevice { card: device.card, tile: only.or(device.tile) })
    };
    devices.iter().enumerate().filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn sees(tiles: u32, variables: Variables<'_>, expected: &[(usize, Option<u32>)]) {
        let text: String = [3, 1, 2]
            .map(|bus| format!("card\n vendor intel\n pci 0000:{bus:02x}:00.0\n tiles {tiles}\n"))
            .concat();
        let devices = visible(&text.parse().expect("the format is right"), variables);
        let devices: Vec<_> = devices.into_iter().map(|device| (device.card, device.tile)).collect();
        assert_eq!(devices, expected, "{variables:?}");
    }

    #[test]
    fn visibility_variables_follow_intel_rules() {
        let plain = Variables::default();
        let mask = |mask| Variables { mask: Some(mask), ..plain };
        sees(1, plain, &[(0, None), (1, None), (2, None)]);
        sees(1, mask(""), &[(0, None), (1, None), (2, None)]);
        sees(1, mask("2,0"), &[(0, None), (2, None)]);
        sees(1, Variables { pci_order: Some("1"), ..plain }, &[(1, None), (2, None), (0, None)]);
        sees(1, Variables { pci_order: Some("1"), ..mask("2,0") }, &[(1, None), (0, None)]);
        sees(2, mask("1,2"), &[(0, Some(1)), (1, Some(0))]);
        sees(2, Variables { hierarchy: Some("COMPOSITE"), ..mask("1") }, &[(1, None)]);
        sees(2, Variables { hierarchy: Some("COMPOSITE"), ..mask("1.1") }, &[(1, Some(1))]);
    }
}
