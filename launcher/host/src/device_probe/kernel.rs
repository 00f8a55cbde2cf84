//! Accelerators as the kernel shows them in sysfs, `/dev` and `/proc`, under a root folder.
//!
//! One vendor per file; each adds its cards, or the reason why there are none, to one report. Nothing here opens a
//! device or loads a library. A card counts if its driver lists it and this process may open its node. `access` tells
//! that: a container's device rules answer it as they answer `open`, without waking or initialising the card. The
//! vendor's runtime does not verify these facts.

mod amd;
#[cfg(target_os = "macos")]
mod apple;
mod ascend;
mod cpus;
mod habana;
mod hwmon;
mod intel;
mod nics;
mod nvidia;
mod pci;
mod processes;
mod tree;

use std::io::ErrorKind;
use std::path::Path;

use pci::PciPath;
use rankrun_core::device::{
    Accelerator, Condition, DeviceLink, DeviceType, LinkKind, Machine, Part, ProbeProblem, ProbeProblemKind,
    ProbeScope,
};
use tree::Tree;

/// A longer list of cards of one vendor is taken for an error.
const MAX_CARDS: usize = 128;
/// The most troubles that are reported.
const MAX_PROBLEMS: usize = 64;

/// Everything but what only NVML knows. What was not asked for is not read.
#[must_use]
pub(crate) fn probe_kernel(root: &Path, ask: ProbeScope) -> Machine {
    let tree = Tree::new(root);
    let mut report = KernelReport::default();
    nvidia::find(&tree, &mut report);
    amd::find(&tree, ask.state, &mut report);
    intel::find(&tree, ask.state, &mut report);
    habana::find(&tree, &mut report);
    ascend::find(&tree, &mut report);
    #[cfg(target_os = "macos")]
    apple::find(&mut report);
    let cpus = if ask.cpus { cpus::read_cpu_layout(&tree, &mut report) } else { None };
    let mut machine = Machine { cpus, ..Machine::default() };
    if ask.links {
        let ways: Vec<_> =
            report.accelerators.iter().map(|card| pci::read_pci_path(&tree, card.pci?)).collect();
        machine.links = links(&ways, &report.hives);
        machine.nics = nics::find(&tree, &report.accelerators, &ways);
    }
    machine.accelerators = report.accelerators;
    machine.troubles = report.troubles;
    machine
}

#[derive(Debug, Default)]
struct KernelReport {
    accelerators: Vec<Accelerator>,
    /// Positions in `accelerators`, each with the number of its xGMI hive.
    hives: Vec<(usize, u64)>,
    troubles: Vec<ProbeProblem>,
}

impl KernelReport {
    /// The folder, or whatever else the vendor is found by, is not there, or not readable.
    fn add_missing_source(&mut self, kind: DeviceType, source: &str, error: &std::io::Error) {
        if error.kind() == ErrorKind::NotFound {
            self.add_missing(kind, source, "no such file or folder");
        } else {
            self.add_failed(kind, source, &error.to_string());
        }
    }

    /// The node of a card that the kernel lists cannot be opened. In a container it is absent, and a scheduler's
    /// device rules return EPERM. Any other error is new to the user, such as a group without this user as a member.
    fn add_closed_node(&mut self, kind: DeviceType, node: &str, why: nix::Error) {
        match why {
            nix::Error::ENOENT | nix::Error::EPERM => self.add_missing(kind, node, why.desc()),
            _ => self.add_failed(kind, node, why.desc()),
        }
    }

    fn add_missing(&mut self, kind: DeviceType, source: &str, why: &str) {
        self.add_problem(kind, source, ProbeProblemKind::Missing(why.to_owned()));
    }

    fn add_failed(&mut self, kind: DeviceType, source: &str, why: &str) {
        self.add_problem(kind, source, ProbeProblemKind::Failed(why.to_owned()));
    }

    fn add_problem(&mut self, kind: DeviceType, source: &str, what: ProbeProblemKind) {
        if self.troubles.len() < MAX_PROBLEMS {
            self.troubles.push(ProbeProblem { kind, source: source.to_owned(), what });
        }
    }

    /// Adds a card after the others of its type, with the next index.
    fn add(&mut self, mut card: Accelerator) {
        let of_type = self.accelerators.iter().filter(|other| other.kind == card.kind).count();
        if of_type < MAX_CARDS {
            card.index = u32::try_from(of_type).unwrap_or(u32::MAX);
            self.accelerators.push(card);
        }
    }

    /// Adds a card of an xGMI hive.
    fn add_to_hive(&mut self, card: Accelerator, hive: Option<u64>) {
        let position = self.accelerators.len();
        self.add(card);
        if position < self.accelerators.len() {
            self.hives.extend(hive.map(|hive| (position, hive)));
        }
    }
}

/// A whole card that answers, of which nothing but this is known. [`Report::add`] gives it its index.
const fn card(kind: DeviceType, name: String) -> Accelerator {
    Accelerator {
        kind,
        index: 0,
        name,
        uuid: None,
        pci: None,
        numa_node: None,
        memory: None,
        part: Part::Whole,
        integrated: false,
        module_id: None,
        condition: Condition::Answers,
        state: None,
    }
}

/// The way between every two cards of which the kernel can tell it.
fn links(ways: &[Option<PciPath>], hives: &[(usize, u64)]) -> Vec<DeviceLink> {
    let hive = |at: usize| hives.iter().find(|(position, _)| *position == at).map(|(_, hive)| *hive);
    let kind = |a: usize, b: usize| match (hive(a), hive(b)) {
        (Some(one), Some(other)) if one == other => Some(LinkKind::Xgmi),
        _ => Some(pci::link_between(ways[a].as_ref()?, ways[b].as_ref()?)),
    };
    let pairs = (0..ways.len()).flat_map(|a| (a + 1..ways.len()).map(move |b| (a, b)));
    pairs.filter_map(|(a, b)| Some(DeviceLink { a, b, kind: kind(a, b)? })).collect()
}

#[cfg(test)]
mod tests;
