//! `ZE_AFFINITY_MASK` under `ZE_FLAT_DEVICE_HIERARCHY` and `ZE_ENABLE_PCI_ID_DEVICE_ORDER` (Intel).
//!
//! The mask is a set. Left open by the specification and decided here: an entry that fits nothing is dropped and the
//! rest stays, as PyTorch and Intel's driver do; an empty mask counts as none set; `1.0` is dropped where tiles are
//! devices of their own. Integrated GPUs are not seen beside discrete ones, as PyTorch counts.

use std::ffi::OsStr;

use super::{ChosenDevice, DeviceChoice, IndexOrder, InheritedVariables, not_empty};
use crate::device::choice::ChoiceWarning;
use crate::device::{Accelerator, DeviceType, Machine, Memory, Part};

const VARIABLE: &str = "ZE_AFFINITY_MASK";
/// The specification leaves it to the implementation.
const ORDER_UNKNOWN: &str = "it is the driver's own, unless `ZE_ENABLE_PCI_ID_DEVICE_ORDER=1` is set";

/// The unit that Level Zero shows as a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) enum Hierarchy {
    /// Each tile (`FLAT`, the default, and `COMBINED`).
    Tiles,
    Cards,
}

/// The hierarchy of the inherited variable, or else the drivers' default.
pub(in crate::device) fn hierarchy(inherited: &InheritedVariables) -> Hierarchy {
    match inherited.ze_hierarchy.as_deref().and_then(OsStr::to_str) {
        Some("COMPOSITE") => Hierarchy::Cards,
        _ => Hierarchy::Tiles,
    }
}

/// How the mask names a device in PCI order.
pub(in crate::device) fn mask_entry_of(machine: &Machine, hierarchy: Hierarchy, at: usize) -> String {
    let cards = cards(machine);
    let card = cards.iter().position(|tiles| tiles.contains(&at)).unwrap_or(0);
    match hierarchy {
        Hierarchy::Tiles => cards.concat().iter().position(|tile| *tile == at).unwrap_or(0).to_string(),
        Hierarchy::Cards => card.to_string(),
    }
}

pub(super) fn read(machine: &Machine, inherited: &InheritedVariables, counting: IndexOrder) -> DeviceChoice {
    let cards = cards(machine);
    let hierarchy = hierarchy(inherited);
    let mask = not_empty(inherited.ze_mask.as_ref());
    let mut dropped = Vec::new();
    let entries = mask.map(|mask| entries(&cards, hierarchy, &mask.to_string_lossy(), &mut dropped));
    let mut devices = match hierarchy {
        Hierarchy::Tiles => tiles(machine, &cards, entries.as_deref()),
        Hierarchy::Cards => whole_cards(machine, &cards, entries.as_deref()),
    };
    if devices.iter().any(|device| !device.accelerator.integrated) {
        devices.retain(|device| !device.accelerator.integrated);
        for (index, device) in devices.iter_mut().enumerate() {
            device.index = u32::try_from(index).ok();
        }
    }
    let pinned = inherited.ze_pci_order.as_deref() == Some(OsStr::new("1"));
    let has_several_cards = match mask {
        // The mask counts every GPU, the integrated too.
        Some(_) => cards.len() > 1,
        None => {
            let is_seen = |tiles: &&Vec<usize>| devices.iter().any(|device| tiles.contains(&device.position));
            counting.is_runtime_order() && cards.iter().filter(is_seen).count() > 1
        }
    };
    let mut visible = match mask {
        Some(mask) => DeviceChoice::listed(DeviceType::Xpu, devices, (VARIABLE, mask), &dropped),
        None => DeviceChoice::of(DeviceType::Xpu, devices),
    };
    if has_several_cards && !pinned {
        visible.order_unknown = Some(ORDER_UNKNOWN.to_owned());
    }
    if let (Some(mask), Some(entries)) = (mask, entries)
        && !entries.is_sorted_by_key(|entry| entry.tiles.first())
    {
        let reason = "a mask is a set, and its devices come in the order of their numbers";
        visible.warnings.push(ChoiceWarning::NoOrder {
            variable: VARIABLE,
            value: mask.clone(),
            because: reason,
        });
    }
    visible
}

/// An entry of the mask that fits, and what it lets through: (card, tile) in PCI order.
struct MaskEntry {
    text: String,
    tiles: Vec<(usize, usize)>,
}

/// The cards in PCI order, each as the positions of its tiles.
fn cards(machine: &Machine) -> Vec<Vec<usize>> {
    let mut tiles: Vec<(usize, &Accelerator)> = machine
        .accelerators
        .iter()
        .enumerate()
        .filter(|(_, accelerator)| accelerator.kind == DeviceType::Xpu)
        .collect();
    tiles.sort_by_key(|(_, tile)| (tile.pci.is_none(), tile.pci, tile.index));
    let mut cards: Vec<(Option<u32>, Vec<usize>)> = Vec::new();
    for (at, tile) in tiles {
        let card = match tile.part {
            Part::Tile { card, .. } => Some(card),
            Part::Whole | Part::MigParent | Part::MigInstance { .. } => None,
        };
        match cards.last_mut() {
            Some((last, tiles)) if card.is_some() && *last == card => tiles.push(at),
            _ => cards.push((card, vec![at])),
        }
    }
    cards.into_iter().map(|(_, tiles)| tiles).collect()
}

fn entries(
    cards: &[Vec<usize>],
    hierarchy: Hierarchy,
    mask: &str,
    dropped: &mut Vec<String>,
) -> Vec<MaskEntry> {
    let flat: Vec<(usize, usize)> = cards
        .iter()
        .enumerate()
        .flat_map(|(card, tiles)| (0..tiles.len()).map(move |tile| (card, tile)))
        .collect();
    let plain = |text: &str| text.parse::<usize>().ok().filter(|_| !text.starts_with('+'));
    let of_card = |card: usize| flat.iter().copied().filter(|(of, _)| *of == card).collect::<Vec<_>>();
    let mut entries = Vec::new();
    for text in mask.split(',').map(str::trim) {
        let tiles = match (hierarchy, text.split_once('.')) {
            (Hierarchy::Tiles, None) => plain(text).and_then(|tile| flat.get(tile)).map(|tile| vec![*tile]),
            (Hierarchy::Tiles, Some(_)) => None,
            (Hierarchy::Cards, None) => plain(text).map(of_card),
            (Hierarchy::Cards, Some((card, tile))) => {
                plain(card).zip(plain(tile)).filter(|named| flat.contains(named)).map(|named| vec![named])
            }
        };
        match tiles.filter(|tiles| !tiles.is_empty()) {
            Some(tiles) => entries.push(MaskEntry { text: text.to_owned(), tiles }),
            None => dropped.push(format!("`{text}` names no device")),
        }
    }
    entries
}

fn tiles(machine: &Machine, cards: &[Vec<usize>], entries: Option<&[MaskEntry]>) -> Vec<ChosenDevice> {
    let mut devices = Vec::new();
    for (card, tiles) in cards.iter().enumerate() {
        for (tile, at) in tiles.iter().enumerate() {
            let device = ChosenDevice::of(machine, *at);
            match entries.map(|entries| entries.iter().find(|entry| entry.tiles.contains(&(card, tile)))) {
                None => devices.push(device),
                Some(Some(entry)) => devices.push(device.named(&*entry.text, false)),
                Some(None) => {}
            }
        }
    }
    devices
}

fn whole_cards(machine: &Machine, cards: &[Vec<usize>], entries: Option<&[MaskEntry]>) -> Vec<ChosenDevice> {
    let mut devices = Vec::new();
    for (card, tiles) in cards.iter().enumerate() {
        let Some(entries) = entries else {
            devices.push(merge_tiles(machine, card, tiles));
            continue;
        };
        let through = |tile: usize| entries.iter().any(|entry| entry.tiles.contains(&(card, tile)));
        let visible_tiles: Vec<usize> =
            tiles.iter().enumerate().filter(|(tile, _)| through(*tile)).map(|(_, at)| *at).collect();
        if !visible_tiles.is_empty() {
            let of_card = |entry: &&MaskEntry| entry.tiles.iter().any(|(of, _)| *of == card);
            let mut texts: Vec<&str> = Vec::new();
            for entry in entries.iter().filter(of_card) {
                if !texts.contains(&entry.text.as_str()) {
                    texts.push(&entry.text);
                }
            }
            devices.push(merge_tiles(machine, card, &visible_tiles).named(texts.join(","), false));
        }
    }
    devices
}

/// Some tiles of a card as the one device that they are together.
fn merge_tiles(machine: &Machine, card: usize, tiles: &[usize]) -> ChosenDevice {
    let mut device = ChosenDevice::of(machine, tiles[0]);
    device.index = u32::try_from(card).ok();
    if tiles.len() > 1 {
        let memories: Option<Vec<Memory>> = tiles.iter().map(|at| machine.accelerators[*at].memory).collect();
        device.accelerator.memory = memories.map(|memories| Memory {
            total: memories.iter().map(|memory| memory.total).fold(0, u64::saturating_add),
            free: memories
                .iter()
                .map(|memory| memory.free)
                .try_fold(0_u64, |sum, free| Some(sum.saturating_add(free?))),
        });
        device.accelerator.part = Part::Whole;
        device.accelerator.index = device.index.unwrap_or(device.accelerator.index);
    }
    device
}
