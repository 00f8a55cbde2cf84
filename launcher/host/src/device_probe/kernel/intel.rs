//! Intel's GPUs: the PCI devices that `xe` or `i915` drive, in PCI order.

use std::io;

use rankrun_core::device::{Accelerator, DeviceType, Memory, Part, PciAddress};

use crate::device_probe::kernel::tree::Tree;
use crate::device_probe::kernel::{KernelReport, card, hwmon, pci};

const DRIVERS: [&str; 2] = ["/sys/bus/pci/drivers/xe", "/sys/bus/pci/drivers/i915"];

struct Gpu {
    address: PciAddress,
    folder: String,
    tiles: Vec<u32>,
}

/// Adds the cards; each tile of a card with several is a device. Discrete cards come first, so their numbers are
/// PyTorch's; an integrated GPU beside them is kept since `ZE_AFFINITY_MASK` counts it.
pub(super) fn find(tree: &Tree<'_>, state: bool, report: &mut KernelReport) {
    let mut addresses = Vec::new();
    let mut drivers = 0;
    for driver in DRIVERS {
        match tree.names(driver) {
            Ok(names) => {
                drivers += 1;
                addresses.extend(names.iter().filter_map(|name| name.parse::<PciAddress>().ok()));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => report.add_failed(DeviceType::Xpu, driver, &error.to_string()),
        }
    }
    if drivers == 0 {
        for driver in DRIVERS {
            report.add_missing(DeviceType::Xpu, driver, "no such file or folder");
        }
        return;
    }
    addresses.sort_unstable();
    addresses.dedup();
    let mut gpus: Vec<Gpu> =
        addresses.into_iter().filter_map(|address| openable_gpu(tree, address, report)).collect();
    gpus.sort_by_key(|gpu| !is_discrete(gpu.address));
    if gpus.is_empty() {
        report.add_missing(
            DeviceType::Xpu,
            "/sys/bus/pci/drivers/{xe,i915}",
            "they drive no GPU that may be opened",
        );
    }
    for (number, gpu) in (0..).zip(&gpus) {
        add(tree, number, gpu, state, report);
    }
}

/// Integrated GPUs are on the processor's own bus.
const fn is_discrete(address: PciAddress) -> bool {
    address.bus != 0
}

/// A display or 3D controller of Intel's that this process may open.
fn openable_gpu(tree: &Tree<'_>, address: PciAddress, report: &mut KernelReport) -> Option<Gpu> {
    let folder = pci::folder(address);
    let class = tree.hex(&format!("{folder}/class"))? >> 8;
    if tree.hex(&format!("{folder}/vendor"))? != 0x8086 || !matches!(class, 0x0300 | 0x0380) {
        return None;
    }
    let Some(minor) = tree.numbered(&format!("{folder}/drm"), "renderD").ok()?.first().copied() else {
        let why = "it has no render node";
        if is_discrete(address) {
            report.add_failed(DeviceType::Xpu, &folder, why);
        } else {
            report.add_missing(DeviceType::Xpu, &folder, why);
        }
        return None;
    };
    let node = format!("/dev/dri/renderD{minor}");
    if let Err(why) = tree.check_openable(&node) {
        // No job waits for an integrated GPU: its closed node counts as missing.
        if is_discrete(address) {
            report.add_closed_node(DeviceType::Xpu, &node, why);
        } else {
            report.add_missing(DeviceType::Xpu, &node, why.desc());
        }
        return None;
    }
    let tiles = tiles(tree, &folder, is_discrete(address));
    Some(Gpu { address, folder, tiles })
}

/// `xe` has a folder for each tile. Under `i915` the `gt`s of a discrete card are its tiles; an integrated GPU has
/// one for graphics and one for video.
fn tiles(tree: &Tree<'_>, folder: &str, discrete: bool) -> Vec<u32> {
    let tiles = tree.numbered(folder, "tile").unwrap_or_default();
    if !tiles.is_empty() || !discrete {
        return tiles;
    }
    let drm = format!("{folder}/drm");
    let card = tree.numbered(&drm, "card").unwrap_or_default().first().copied();
    card.and_then(|card| tree.numbered(&format!("{drm}/card{card}/gt"), "gt").ok()).unwrap_or_default()
}

fn add(tree: &Tree<'_>, number: u32, gpu: &Gpu, state: bool, report: &mut KernelReport) {
    let id = tree.hex(&format!("{}/device", gpu.folder));
    let whole = Accelerator {
        pci: Some(gpu.address),
        integrated: !is_discrete(gpu.address),
        numa_node: pci::numa_node(tree, gpu.address),
        state: state.then(|| Box::new(hwmon::read_sensors(tree, &gpu.folder))),
        ..card(DeviceType::Xpu, name(id))
    };
    match gpu.tiles.as_slice() {
        [] | [_] => {
            let total = memory(tree, gpu, gpu.tiles.first().copied()).or_else(|| card_memory(tree, gpu));
            report.add(Accelerator { memory: total, ..whole });
        }
        tiles => {
            for (position, tile) in (0..).zip(tiles) {
                let part = Part::Tile { card: number, tile: position };
                report.add(Accelerator { part, memory: memory(tree, gpu, Some(*tile)), ..whole.clone() });
            }
        }
    }
}

/// The memory of a tile, as `xe` tells it.
fn memory(tree: &Tree<'_>, gpu: &Gpu, tile: Option<u32>) -> Option<Memory> {
    let path = format!("{}/tile{}/physical_vram_size_bytes", gpu.folder, tile?);
    tree.number(&path).filter(|total| *total > 0).map(|total| Memory { total, free: None })
}

/// The memory of a card, as `i915` tells it.
fn card_memory(tree: &Tree<'_>, gpu: &Gpu) -> Option<Memory> {
    let drm = format!("{}/drm", gpu.folder);
    let card = *tree.numbered(&drm, "card").ok()?.first()?;
    let bytes = |name: &str| -> Option<u64> { tree.number(&format!("{drm}/card{card}/{name}")) };
    let total = bytes("lmem_total_bytes").filter(|total| *total > 0)?;
    Some(Memory { total, free: bytes("lmem_avail_bytes").filter(|free| *free <= total) })
}

/// The kernel has numbers, no names; these are the ones that train models.
fn name(device: Option<u32>) -> String {
    match device {
        Some(0x0bd5 | 0x0bd6) => "Intel Data Center GPU Max 1550".to_owned(),
        Some(0x0bda) => "Intel Data Center GPU Max 1100".to_owned(),
        Some(0x56c0) => "Intel Data Center GPU Flex 170".to_owned(),
        Some(0x56c1) => "Intel Data Center GPU Flex 140".to_owned(),
        Some(other) => format!("Intel GPU {other:04x}"),
        None => "Intel GPU".to_owned(),
    }
}
