//! `rankrun topo`: how the devices are joined, as the matrix of `nvidia-smi topo -m`. It words the links that the probes
//! have found, and looks for none itself. Pure.

use rankrun_core::device::affinity::format_ranges;
use rankrun_core::device::{Accelerator, DeviceType, LinkKind, Machine, Nic, Part};

use super::page::{Align, Column, Page, Row, Tone};
use super::{devices, fact_text};

/// The cell of the matrix for an unknown link.
const UNKNOWN: &str = "?";
const SELF: &str = "X";

/// Every cell's meaning, slowest way first; in the order of `nvidia-smi topo -m`.
const LEGEND: [(&str, &str); 8] = [
    (SELF, "the device itself"),
    ("SYS", "through PCIe and the link between two NUMA nodes (QPI, UPI, Infinity Fabric)"),
    ("NODE", "through PCIe and the link between two PCIe host bridges of one NUMA node"),
    ("PHB", "through PCIe and one PCIe host bridge, which is the CPU's"),
    ("PXB", "through several PCIe switches, and no host bridge"),
    ("PIX", "through one PCIe switch"),
    ("XGMI", "through AMD's own links between GPUs"),
    ("NV#", "through # NVLinks"),
];

/// One row of the matrix, which is a column too.
#[derive(Debug, Clone, Copy)]
enum MatrixRow<'a> {
    Device(usize),
    Nic(&'a Nic),
}

/// The matrix and the neighbourhood of each device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Topology {
    /// The names of rows and columns.
    pub(super) names: Vec<String>,
    /// The links, by row and column of the matrix.
    pub(super) cells: Vec<Vec<String>>,
    /// The nearest CPUs and cards, by row; of devices only.
    pub(super) neighbours: Vec<Neighbours>,
    /// The network cards' own names, in the order of their rows.
    pub(super) nics: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Neighbours {
    /// The position of the device in [`Machine::accelerators`].
    pub(super) device: usize,
    pub(super) cpus: Option<Vec<u32>>,
    pub(super) numa_node: Option<u32>,
    /// The rows of the network cards with the best link, and that link.
    pub(super) nics: Vec<usize>,
    pub(super) nearest_nic_link: Option<LinkKind>,
}

impl Topology {
    /// Of the whole cards, and tiles; MIG instances are where their card is.
    pub(super) fn of(machine: &Machine) -> Self {
        let is_row = |device: &Accelerator| !matches!(device.part, Part::MigInstance { .. });
        let devices: Vec<(usize, &Accelerator)> =
            machine.accelerators.iter().enumerate().filter(|(_, device)| is_row(device)).collect();
        let is_mixed = devices.windows(2).any(|pair| pair[0].1.kind != pair[1].1.kind);
        let ends: Vec<MatrixRow<'_>> = devices
            .iter()
            .map(|&(at, _)| MatrixRow::Device(at))
            .chain(machine.nics.iter().map(MatrixRow::Nic))
            .collect();
        let device_names = devices.iter().map(|(_, device)| name(device, is_mixed));
        let nic_names = (0..machine.nics.len()).map(|number| format!("NIC{number}"));
        let row = |one: usize| {
            let cell = |other: usize| match one == other {
                true => SELF.to_owned(),
                false => link_between(machine, ends[one], ends[other])
                    .map_or_else(|| UNKNOWN.to_owned(), link_name),
            };
            (0..ends.len()).map(cell).collect()
        };
        Self {
            names: device_names.chain(nic_names).collect(),
            cells: (0..ends.len()).map(row).collect(),
            neighbours: devices
                .iter()
                .map(|&(at, device)| neighbours_of(machine, at, device, devices.len()))
                .collect(),
            nics: machine.nics.iter().map(|nic| nic.name.clone()).collect(),
        }
    }
}

/// The page: matrix, names of network cards, legend.
pub(super) fn page(machine: &Machine, host: &str, affinity: &[u32]) -> Page {
    let topology = Topology::of(machine);
    let mut page = Page::default();
    if topology.neighbours.is_empty() {
        let is_blind = machine.troubles.iter().any(fact_text::is_serious);
        let what = if is_blind { "the accelerators are not known" } else { "no accelerators" };
        page.line("title", &[("title", &format!("{host}: {what}"), Tone::Heading)]);
    } else {
        matrix(&mut page, &topology);
    }
    devices::add_probe_problems(&mut page, machine);
    if topology.neighbours.is_empty() {
        devices::sources(&mut page, machine);
        devices::processors(&mut page, machine, affinity);
    } else {
        legend(&mut page, &topology);
    }
    page
}

fn matrix(page: &mut Page, topology: &Topology) {
    // A column's name is its key; the first of them is that of the row's own name.
    let mut columns = vec![(String::new(), Align::Left)];
    columns.extend(topology.names.iter().map(|name| (name.clone(), Align::Middle)));
    let has_nics = !topology.nics.is_empty();
    columns.push(("CPU Affinity".to_owned(), Align::Left));
    columns.push(("NUMA Affinity".to_owned(), Align::Left));
    if has_nics {
        columns.push(("Nearest NIC".to_owned(), Align::Left));
    }
    let heading = columns
        .iter()
        .fold(Row::new("heading".to_owned()), |row, (name, _)| row.toned(name.clone(), Tone::Heading));
    let mut rows = vec![heading];
    for (at, name) in topology.names.iter().enumerate() {
        let mut row = Row::new(format!("row/{name}")).cell(name.clone());
        for cell in &topology.cells[at] {
            row = row.cell(cell.clone());
        }
        if let Some(near) = topology.neighbours.get(at) {
            let unknown = || UNKNOWN.to_owned();
            row = row.cell(near.cpus.as_deref().map_or_else(unknown, format_ranges));
            row = row.cell(near.numa_node.map_or_else(unknown, |node| node.to_string()));
            if has_nics {
                row = row.cell(nearest(near, topology));
            }
        }
        rows.push(row);
    }
    let aligns: Vec<Column> = columns.iter().map(|(_, align)| Column("", *align)).collect();
    page.bare_table(&aligns, rows);
}

fn nearest(near: &Neighbours, topology: &Topology) -> String {
    let Some(way) = near.nearest_nic_link else { return UNKNOWN.to_owned() };
    let names: Vec<&str> = near.nics.iter().map(|row| topology.names[*row].as_str()).collect();
    format!("{} ({})", names.join(","), link_name(way))
}

fn legend(page: &mut Page, topology: &Topology) {
    if !topology.nics.is_empty() {
        page.blank();
        let names = topology.names.iter().skip(topology.neighbours.len()).zip(&topology.nics);
        let row = |(row, nic): (&String, &String)| Row::new(row.clone()).cell(row.clone()).cell(nic.clone());
        page.bare_table(&[Column("", Align::Left); 2], names.map(row).collect());
    }
    let is_in = |name: &str| topology.cells.iter().flatten().any(|cell| cell == name);
    page.blank();
    page.line("legend", &[("legend", "Legend", Tone::Heading)]);
    let mut rows: Vec<Row> = LEGEND
        .iter()
        .filter(|(name, _)| *name != "XGMI" || is_in("XGMI"))
        .map(|(name, meaning)| Row::new((*name).to_owned()).cell(*name).cell(*meaning))
        .collect();
    if is_in(UNKNOWN) {
        rows.push(Row::new(UNKNOWN.to_owned()).cell(UNKNOWN).cell("not known"));
    }
    page.bare_table(&[Column("", Align::Left); 2], rows);
}

/// `GPU0`; where there are several vendors' devices, `CUDA0` and `ROCM0`.
fn name(device: &Accelerator, is_mixed: bool) -> String {
    let noun = match device.kind {
        DeviceType::Cuda | DeviceType::Rocm | DeviceType::Xpu if !is_mixed => "GPU".to_owned(),
        kind => kind.as_str().to_uppercase(),
    };
    format!("{noun}{}", device.index)
}

pub(super) fn link_name(way: LinkKind) -> String {
    match way {
        LinkKind::Nvlink(count) => return format!("NV{count}"),
        LinkKind::Xgmi => "XGMI",
        LinkKind::Pix => "PIX",
        LinkKind::Pxb => "PXB",
        LinkKind::Phb => "PHB",
        LinkKind::Node => "NODE",
        LinkKind::Sys => "SYS",
    }
    .to_owned()
}

fn link_between(machine: &Machine, one: MatrixRow<'_>, other: MatrixRow<'_>) -> Option<LinkKind> {
    match (one, other) {
        (MatrixRow::Device(one), MatrixRow::Device(other)) => {
            let (a, b) = (one.min(other), one.max(other));
            machine.links.iter().find(|link| (link.a, link.b) == (a, b)).map(|link| link.kind)
        }
        (MatrixRow::Device(at), MatrixRow::Nic(nic)) | (MatrixRow::Nic(nic), MatrixRow::Device(at)) => {
            nic.links.get(at).copied()
        }
        (MatrixRow::Nic(one), MatrixRow::Nic(other)) => between_nics(one, other),
    }
}

/// Discovery asks for the ways to accelerators. Of two network cards only the extremes follow from where they are.
fn between_nics(one: &Nic, other: &Nic) -> Option<LinkKind> {
    let (first, second) = (one.pci?, other.pci?);
    if (first.domain, first.bus, first.device) == (second.domain, second.bus, second.device) {
        return Some(LinkKind::Pix);
    }
    (one.numa_node? != other.numa_node?).then_some(LinkKind::Sys)
}

fn neighbours_of(machine: &Machine, at: usize, device: &Accelerator, devices: usize) -> Neighbours {
    let nodes = machine.cpus.as_ref().map_or(&[][..], |layout| &layout.nodes);
    let node = match (device.numa_node, nodes) {
        (Some(id), nodes) => nodes.iter().find(|node| node.id == id),
        // The kernel names no node if there is only one.
        (None, [only]) => Some(only),
        (None, _) => None,
    };
    let ways = || machine.nics.iter().map(|nic| nic.links.get(at).copied());
    let best = ways().flatten().min();
    let nearest = ways().enumerate().filter(|(_, way)| best.is_some() && *way == best);
    Neighbours {
        device: at,
        cpus: node.map(|node| node.cpus.clone()),
        numa_node: device.numa_node.or(node.map(|node| node.id)),
        nics: nearest.map(|(number, _)| devices + number).collect(),
        nearest_nic_link: best,
    }
}

#[cfg(test)]
mod tests;
