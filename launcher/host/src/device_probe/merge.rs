//! Merges two snapshots of one machine, NVML's and the kernel's, into one. The probes deliver both; the result goes
//! to the choice of devices and to `rankrun devices`. Pure.

use std::collections::BTreeMap;

use rankrun_core::device::{
    Accelerator, DeviceLink, DeviceType, LinkKind, Machine, Nic, NumaNode, Part, PciAddress, ProbeProblem,
};

/// One accelerator of the merged snapshot.
struct MergeEntry {
    accelerator: Accelerator,
    nvml: Option<usize>,
    /// The position of its card there: for a MIG instance its GPU.
    nvml_card: Option<usize>,
    /// The position of its card in the kernel's snapshot.
    kernel: Option<usize>,
}

/// Merges NVML's snapshot of NVIDIA's cards with the kernel's snapshot of everything. If NVML has no card, the kernel's
/// cards count, and NVML's trouble gives the reason. CPUs and network cards are the kernel's.
#[must_use]
pub fn merge(nvidia: Machine, kernel: Machine) -> Machine {
    let problems = merged_problems(&nvidia, &kernel);
    let ways = KnownLinks::new(&nvidia, &kernel);
    let entries = entries(nvidia.accelerators, kernel.accelerators);
    let links = if ways.were_requested { ways.links(&entries) } else { Vec::new() };
    let nodes = kernel.cpus.as_ref().map_or(0, |cpus| count_with_cpus(&cpus.nodes));
    let nics = kernel.nics.into_iter().map(|nic| nic_with_merged_links(nic, &entries, nodes)).collect();
    let accelerators = entries.into_iter().map(|entry| entry.accelerator).collect();
    Machine { accelerators, cpus: kernel.cpus, links, nics, troubles: problems, made_good: nvidia.made_good }
}

fn count_with_cpus(nodes: &[NumaNode]) -> usize {
    nodes.iter().filter(|node| !node.cpus.is_empty()).count()
}

/// The kernel's words on NVIDIA's cards are of interest only where they are all there is.
fn merged_problems(nvidia: &Machine, kernel: &Machine) -> Vec<ProbeProblem> {
    let of_fallback = |problem: &&ProbeProblem| problem.kind == DeviceType::Cuda;
    let superseded = !nvidia.accelerators.is_empty();
    let of_kernel = kernel.troubles.iter().filter(|problem| !(superseded && of_fallback(problem)));
    nvidia.troubles.iter().chain(of_kernel).cloned().collect()
}

/// By type, then by index; MIG instances behind their card.
fn entries(nvidia: Vec<Accelerator>, kernel: Vec<Accelerator>) -> Vec<MergeEntry> {
    let fallback = nvidia.is_empty();
    let is_nvidia = |card: &(usize, &Accelerator)| card.1.kind == DeviceType::Cuda;
    let by_address: BTreeMap<PciAddress, (usize, Option<u32>)> = kernel
        .iter()
        .enumerate()
        .filter(is_nvidia)
        .filter_map(|(at, card)| Some((card.pci?, (at, card.numa_node))))
        .collect();
    let cards: Vec<usize> = (0..nvidia.len()).map(|at| card_of(&nvidia, at)).collect();
    let of_nvml = nvidia.into_iter().zip(cards).enumerate().map(|(at, (mut accelerator, card))| {
        let in_kernel = accelerator.pci.and_then(|address| by_address.get(&address));
        accelerator.numa_node = accelerator.numa_node.or_else(|| in_kernel?.1);
        MergeEntry {
            accelerator,
            nvml: Some(at),
            nvml_card: Some(card),
            kernel: in_kernel.map(|entry| entry.0),
        }
    });
    let of_kernel = kernel.into_iter().enumerate().map(|(at, accelerator)| MergeEntry {
        accelerator,
        nvml: None,
        nvml_card: None,
        kernel: Some(at),
    });
    let of_kernel = of_kernel.filter(|entry| fallback || entry.accelerator.kind != DeviceType::Cuda);
    let mut entries: Vec<MergeEntry> = of_nvml.chain(of_kernel).collect();
    entries.sort_by_key(|entry| sort_key(&entry.accelerator));
    entries
}

/// The sort key of the merged list.
fn sort_key(accelerator: &Accelerator) -> (usize, u32, bool, u32) {
    let of_type = DeviceType::ALL.iter().position(|kind| *kind == accelerator.kind);
    let (card, is_instance) = match accelerator.part {
        Part::MigInstance { gpu } => (gpu, true),
        Part::Whole | Part::MigParent | Part::Tile { .. } => (accelerator.index, false),
    };
    (of_type.unwrap_or(usize::MAX), card, is_instance, accelerator.index)
}

/// The position of an entry's card; for all but a MIG instance that is its own. An instance without a listed card
/// counts as its own card.
fn card_of(accelerators: &[Accelerator], at: usize) -> usize {
    let Part::MigInstance { gpu } = accelerators[at].part else { return at };
    let is_card = |card: &Accelerator| {
        !matches!(card.part, Part::MigInstance { .. })
            && card.kind == accelerators[at].kind
            && card.index == gpu
    };
    accelerators.iter().position(is_card).unwrap_or(at)
}

/// The ways that both snapshots know.
struct KnownLinks {
    nvml: BTreeMap<(usize, usize), LinkKind>,
    kernel: BTreeMap<(usize, usize), LinkKind>,
    were_requested: bool,
}

impl KnownLinks {
    fn new(nvidia: &Machine, kernel: &Machine) -> Self {
        let table =
            |machine: &Machine| machine.links.iter().map(|link| (pair(link.a, link.b), link.kind)).collect();
        let were_asked = !(nvidia.links.is_empty() && kernel.links.is_empty() && kernel.nics.is_empty());
        Self { nvml: table(nvidia), kernel: table(kernel), were_requested: were_asked }
    }

    fn links(&self, entries: &[MergeEntry]) -> Vec<DeviceLink> {
        let pairs = (0..entries.len()).flat_map(|a| (a + 1..entries.len()).map(move |b| (a, b)));
        pairs
            .filter_map(|(a, b)| Some(DeviceLink { a, b, kind: self.between(&entries[a], &entries[b])? }))
            .collect()
    }

    /// NVML's word counts first; parts of one card are as near as can be.
    fn between(&self, a: &MergeEntry, b: &MergeEntry) -> Option<LinkKind> {
        let link = |table: &BTreeMap<(usize, usize), LinkKind>, a: Option<usize>, b: Option<usize>| {
            table.get(&pair(a?, b?)).copied()
        };
        let one_card = || (a.nvml_card.is_some() && a.nvml_card == b.nvml_card).then_some(LinkKind::Pix);
        link(&self.nvml, a.nvml, b.nvml)
            .or_else(one_card)
            .or_else(|| link(&self.nvml, a.nvml_card, b.nvml_card))
            .or_else(|| link(&self.kernel, a.kernel, b.kernel))
    }
}

const fn pair(a: usize, b: usize) -> (usize, usize) {
    if a < b { (a, b) } else { (b, a) }
}

/// A network card with its link to each accelerator. For a card that the kernel's driver does not list, only the NUMA
/// nodes are known: on a machine of one node there is no link between two.
fn nic_with_merged_links(mut nic: Nic, entries: &[MergeEntry], nodes: usize) -> Nic {
    let by_node = |entry: &MergeEntry| match (nic.numa_node, entry.accelerator.numa_node) {
        (Some(one), Some(other)) if one != other => LinkKind::Sys,
        (Some(_), Some(_)) => LinkKind::Node,
        _ if nodes == 1 => LinkKind::Node,
        _ => LinkKind::Sys,
    };
    let known = |entry: &MergeEntry| nic.links.get(entry.kernel?).copied();
    nic.links = entries.iter().map(|entry| known(entry).unwrap_or_else(|| by_node(entry))).collect();
    nic
}

#[cfg(test)]
mod tests;
