//! Which devices a process sees, by the vendor's rules (`CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER` in the *CUDA
//! Programming Guide*, *MIG User Guide*, and PyTorch's reading of the driver). Pure.

use fake_machine::{Card, Machine, Vendor};

/// What a process sees as a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VisibleDevice {
    /// The card's position in the machine.
    pub(crate) card: usize,
    /// The MIG device on it.
    pub(crate) mig: Option<usize>,
}

/// The devices in the order of their ordinals.
pub(crate) fn visible(machine: &Machine, list: Option<&str>, order: Option<&str>) -> Vec<VisibleDevice> {
    let cards = in_order(machine, order);
    let chosen = match list {
        None => cards.iter().flat_map(|card| devices_of(machine, *card)).collect(),
        Some(list) if list.starts_with("GPU-") || list.starts_with("MIG-") => {
            by_uuid(machine, &cards, list, &list[..4])
        }
        Some(list) => by_index(machine, &cards, list),
    };
    // A process enumerates one compute instance, and then no whole card.
    match chosen.iter().find(|device| device.mig.is_some()) {
        Some(mig) => vec![mig.clone()],
        None => chosen,
    }
}

fn in_order(machine: &Machine, order: Option<&str>) -> Vec<usize> {
    let mut cards = machine.by_pci(Vendor::Nvidia);
    if order != Some("PCI_BUS_ID") {
        cards.sort_by_key(|card| std::cmp::Reverse(machine.cards[*card].speed));
    }
    cards
}

/// A card is one device; in MIG mode it is its instances.
fn devices_of(machine: &Machine, card: usize) -> Vec<VisibleDevice> {
    let Card { mig, mig_mode, .. } = &machine.cards[card];
    if *mig_mode || !mig.is_empty() {
        (0..mig.len()).map(|mig| VisibleDevice { card, mig: Some(mig) }).collect()
    } else {
        vec![VisibleDevice { card, mig: None }]
    }
}

fn by_index(machine: &Machine, cards: &[usize], list: &str) -> Vec<VisibleDevice> {
    let mut named = Vec::new();
    for entry in list.split(',') {
        let Some(card) = strtoul(entry).and_then(|index| cards.get(index)) else { break };
        if named.contains(card) {
            return Vec::new();
        }
        named.push(*card);
    }
    named.into_iter().flat_map(|card| devices_of(machine, card)).collect()
}

/// As C's: leading blanks and a sign are read, and everything behind the digits is dropped. `None` is invalid.
fn strtoul(text: &str) -> Option<usize> {
    let text = text.trim_start();
    let text = text.strip_prefix('+').unwrap_or(text);
    let digits = text.find(|c: char| !c.is_ascii_digit()).map_or(text, |end| &text[..end]);
    digits.parse().ok()
}

fn by_uuid(machine: &Machine, cards: &[usize], list: &str, form: &str) -> Vec<VisibleDevice> {
    let mut everything: Vec<(&str, VisibleDevice)> = Vec::new();
    for card in cards {
        for (mig, instance) in machine.cards[*card].mig.iter().enumerate() {
            everything.push((&instance.uuid, VisibleDevice { card: *card, mig: Some(mig) }));
        }
        let first = devices_of(machine, *card).into_iter().next();
        everything.extend(first.map(|device| (machine.cards[*card].uuid.as_str(), device)));
    }
    let mut named = Vec::new();
    for entry in list.split(',') {
        // The beginning of a UUID is enough for a card.
        let fits = |(uuid, _): &&(&str, VisibleDevice)| {
            *uuid == entry || (form == "GPU-" && uuid.starts_with(entry))
        };
        let fits: Vec<_> = everything.iter().filter(fits).collect();
        let [(_, device)] = fits[..] else { break };
        if !entry.starts_with(form) {
            break;
        }
        if named.contains(device) {
            return Vec::new();
        }
        named.push(device.clone());
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four cards, of which the last is the fastest.
    fn machine() -> Machine {
        let uuids = ["GPU-aab0", "GPU-aac0", "GPU-bbb0", "GPU-ccc0"];
        let text: String = uuids.iter().enumerate().fold(String::new(), |text, (at, uuid)| {
            text + &format!("card\n uuid {uuid}\n pci 0000:{at:02x}:00.0\n speed {}\n", [5, 5, 5, 9][at])
        });
        text.parse().expect("the format is right")
    }

    fn cards(list: Option<&str>, order: Option<&str>) -> Vec<usize> {
        visible(&machine(), list, order).into_iter().map(|device| device.card).collect()
    }

    #[test]
    fn visible_devices_follow_nvidia_rules() {
        let vectors: [(Option<&str>, &[usize]); 14] = [
            (None, &[0, 1, 2, 3]),
            (Some(""), &[]),
            (Some("3,1"), &[3, 1]),
            (Some("0,2,-1,1"), &[0, 2]),
            (Some("0,7,1"), &[0]),
            (Some("-1"), &[]),
            (Some("NoDevFiles"), &[]),
            (Some("1,1"), &[]),
            (Some(" 1gpu,2x"), &[1, 2]),
            (Some("0-2"), &[0]),
            (Some("GPU-aa"), &[]),
            (Some("GPU-b"), &[2]),
            (Some("GPU-bbb0,1"), &[2]),
            (Some("GPU-c,GPU-aab"), &[3, 0]),
        ];
        for (list, expected) in vectors {
            assert_eq!(cards(list, Some("PCI_BUS_ID")), expected, "{list:?}");
        }
    }

    #[test]
    fn default_order_is_fastest_first() {
        for order in [None, Some("FASTEST_FIRST")] {
            assert_eq!(cards(None, order), [3, 0, 1, 2]);
            assert_eq!(cards(Some("0,1"), order), [3, 0]);
        }
    }

    #[test]
    fn only_one_mig_device_is_visible() {
        let mut machine = machine();
        machine.cards[1].mig =
            ["MIG-a", "MIG-b"].map(|uuid| fake_machine::Mig { uuid: uuid.to_owned(), memory: 1 }).into();
        let one = |list| visible(&machine, list, Some("PCI_BUS_ID"));
        assert_eq!(one(None), [VisibleDevice { card: 1, mig: Some(0) }]);
        assert_eq!(one(Some("MIG-b,MIG-a")), [VisibleDevice { card: 1, mig: Some(1) }]);
        assert_eq!(one(Some("0,2")).len(), 2);
    }
}
