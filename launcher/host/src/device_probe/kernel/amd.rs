//! AMD's cards by KFD's topology (Linux `kfd_topology.c`): in the order of its nodes, which is the runtime's.

use std::io::ErrorKind;

use rankrun_core::device::{Accelerator, DeviceState, DeviceType, Memory, PciAddress};

use crate::device_probe::kernel::tree::Tree;
use crate::device_probe::kernel::{KernelReport, card, hwmon, pci, processes};

/// The runtime opens it before any card.
const DRIVER: &str = "/dev/kfd";
const NODES: &str = "/sys/class/kfd/kfd/topology/nodes";

/// A GPU with less memory than this, in bytes, is a processor's own. Those have 512 MiB of the machine's memory set
/// aside by the firmware, seldom more, and no card for computing has so little.
const MIN_DISCRETE_MEMORY: u64 = 2 << 30;

/// Adds the nodes that the runtime would count: GPUs with compute units and a render node that can be opened.
pub(super) fn find(tree: &Tree<'_>, state: bool, report: &mut KernelReport) {
    let nodes = match tree.numbered(NODES, "") {
        Ok(nodes) => nodes,
        Err(error) => return report.add_missing_source(DeviceType::Rocm, NODES, &error),
    };
    if let Err(why) = tree.check_openable(DRIVER) {
        return report.add_closed_node(DeviceType::Rocm, DRIVER, why);
    }
    let before = (report.accelerators.len(), report.troubles.len());
    for node in nodes {
        add_node(tree, &format!("{NODES}/{node}"), state, report);
    }
    if (report.accelerators.len(), report.troubles.len()) == before {
        report.add_missing(DeviceType::Rocm, NODES, "none of its nodes is a GPU");
    }
}

fn add_node(tree: &Tree<'_>, node: &str, state: bool, report: &mut KernelReport) {
    // A CPU's is 0; of a GPU that a scheduler's rules hide it cannot be read.
    let id = tree.number(&format!("{node}/gpu_id")).unwrap_or(0_u32);
    if id == 0 {
        return;
    }
    let path = format!("{node}/properties");
    let properties = match tree.read(&path) {
        Ok(text) => Properties(text),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return,
        Err(error) => return report.add_failed(DeviceType::Rocm, &path, &error.to_string()),
    };
    if properties.number("simd_count").unwrap_or(0) == 0 {
        return;
    }
    let Some(minor) = properties.number("drm_render_minor").and_then(|minor| u32::try_from(minor).ok())
    else {
        return report.add_failed(DeviceType::Rocm, &path, "it has no render node");
    };
    let render = format!("/dev/dri/renderD{minor}");
    if let Err(why) = tree.check_openable(&render) {
        return report.add_closed_node(DeviceType::Rocm, &render, why);
    }
    let hive = properties.number("hive_id").filter(|hive| *hive != 0);
    let mut card = accelerator_of_node(tree, node, &properties);
    card.state = card.pci.filter(|_| state).map(|address| {
        let processes = processes::processes_on_gpu(tree, id);
        Box::new(DeviceState { processes, ..hwmon::read_sensors(tree, &pci::folder(address)) })
    });
    report.add_to_hive(card, hive);
}

fn accelerator_of_node(tree: &Tree<'_>, node: &str, properties: &Properties) -> Accelerator {
    let address = properties.address();
    let folder = address.map(pci::folder);
    let product = folder.as_ref().and_then(|folder| tree.name(&format!("{folder}/product_name")));
    let name = product.or_else(|| properties.architecture()).unwrap_or_else(|| "AMD GPU".to_owned());
    let unique = properties.number("unique_id").filter(|unique| *unique != 0);
    Accelerator {
        uuid: unique.map(|unique| format!("GPU-{unique:016x}")),
        pci: address,
        numa_node: address.and_then(|address| pci::numa_node(tree, address)),
        memory: memory(tree, node, folder.as_deref()),
        integrated: is_integrated(tree, node, folder.as_deref()),
        ..card(DeviceType::Rocm, name)
    }
}

/// Memory decides, and not `cpu_cores_count`: newer kernels list the GPU of every processor as a node without CPUs, and
/// the MI300A is part of a processor too, with hundreds of GiB. Video memory is asked before the banks, in which newer
/// kernels count what a processor's GPU may borrow; the MI300A, which has no other memory, tells 0 of it.
fn is_integrated(tree: &Tree<'_>, node: &str, folder: Option<&str>) -> bool {
    let path = folder.map(|folder| format!("{folder}/mem_info_vram_total"));
    let video: Option<u64> = path.and_then(|path| tree.number(&path)).filter(|total| *total > 0);
    let total = video.or_else(|| memory(tree, node, None).map(|memory| memory.total));
    total.is_some_and(|total| total < MIN_DISCRETE_MEMORY)
}

/// The banks of the node, which for one partition of a card are its own; what is in use, only the driver knows.
fn memory(tree: &Tree<'_>, node: &str, folder: Option<&str>) -> Option<Memory> {
    let banks = tree.numbered(&format!("{node}/mem_banks"), "").unwrap_or_default();
    let size = |bank: u32| -> Option<u64> {
        let bank = Properties(tree.read(&format!("{node}/mem_banks/{bank}/properties")).ok()?);
        // 1 and 2: the card's own memory, within and beyond the processor's reach.
        let own = bank.number("heap_type").is_none_or(|heap| heap == 1 || heap == 2);
        if own { bank.number("size_in_bytes") } else { None }
    };
    let total = banks.into_iter().filter_map(size).try_fold(0_u64, u64::checked_add);
    let of_card = |name: &str| -> Option<u64> { tree.number(&format!("{}/{name}", folder?)) };
    let total = total.filter(|total| *total > 0).or_else(|| of_card("mem_info_vram_total"))?;
    let free = of_card("mem_info_vram_used").and_then(|used| total.checked_sub(used));
    Some(Memory { total, free })
}

/// Lines of a name and a decimal number.
struct Properties(String);

impl Properties {
    fn number(&self, name: &str) -> Option<u64> {
        let mut lines = self.0.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(key, _)| *key == name)?.1.trim().parse().ok()
    }

    /// `location_id` is bus, device and function; the bits above them number the partitions of a card.
    fn address(&self) -> Option<PciAddress> {
        let domain = u32::try_from(self.number("domain").unwrap_or(0)).ok()?;
        let location = self.number("location_id").filter(|location| *location != 0)?;
        let [function, bus, ..] = location.to_le_bytes();
        Some(PciAddress { domain, bus, device: function >> 3, function: function & 7 })
    }

    /// `gfx90a` for 90010: the stepping and the minor number are hexadecimal in the name.
    fn architecture(&self) -> Option<String> {
        let version =
            self.number("gfx_target_version").filter(|version| (1..10_000_000).contains(version))?;
        let (major, minor, stepping) = (version / 10_000, version / 100 % 100, version % 100);
        Some(format!("gfx{major}{minor:x}{stepping:x}"))
    }
}
