//! Snapshots of NVML and the kernel, and the merged result.

use crate::device_probe::merge::*;
use rankrun_core::device::{Condition, ProbeProblemKind};

fn card(kind: DeviceType, index: u32, pci: &str) -> Accelerator {
    Accelerator {
        kind,
        index,
        name: format!("{kind} {index}"),
        uuid: None,
        pci: pci.parse().ok(),
        numa_node: None,
        memory: None,
        part: Part::Whole,
        integrated: false,
        module_id: None,
        condition: Condition::Answers,
        state: None,
    }
}

fn probe_problem(kind: DeviceType, source: &str) -> ProbeProblem {
    ProbeProblem {
        kind,
        source: source.to_owned(),
        what: ProbeProblemKind::Missing("no such file".to_owned()),
    }
}

/// The devices as `type index`, in order.
fn listed(machine: &Machine) -> Vec<String> {
    let entry = |card: &Accelerator| match card.part {
        Part::MigInstance { gpu } => format!("{} {gpu}.{}", card.kind, card.index),
        _ => format!("{} {}", card.kind, card.index),
    };
    machine.accelerators.iter().map(entry).collect()
}

fn link(machine: &Machine, a: usize, b: usize) -> Option<LinkKind> {
    machine.links.iter().find(|link| (link.a, link.b) == (a, b)).map(|link| link.kind)
}

/// Two NVIDIA cards as the kernel lists them, in its order, between cards of other vendors.
fn kernel() -> Machine {
    let mut accelerators = vec![
        card(DeviceType::Cuda, 0, "0000:01:00.0"),
        card(DeviceType::Cuda, 1, "0000:02:00.0"),
        card(DeviceType::Rocm, 0, "0000:03:00.0"),
    ];
    accelerators[0].numa_node = Some(0);
    accelerators[1].numa_node = Some(1);
    let links = vec![
        DeviceLink { a: 0, b: 1, kind: LinkKind::Sys },
        DeviceLink { a: 0, b: 2, kind: LinkKind::Phb },
        DeviceLink { a: 1, b: 2, kind: LinkKind::Node },
    ];
    let nic = Nic {
        name: "mlx5_0".to_owned(),
        pci: "0000:04:00.0".parse().ok(),
        numa_node: Some(1),
        links: vec![LinkKind::Sys, LinkKind::Pix, LinkKind::Node],
    };
    let problems =
        vec![probe_problem(DeviceType::Cuda, "/proc/driver"), probe_problem(DeviceType::Xpu, "/sys/xe")];
    Machine { accelerators, cpus: None, links, nics: vec![nic], troubles: problems, made_good: Vec::new() }
}

#[test]
fn missing_nvml_uses_kernel_cards_and_keeps_problem() {
    let nvidia = Machine { troubles: vec![probe_problem(DeviceType::Cuda, "NVML")], ..Machine::default() };
    let merged = merge(nvidia, kernel());
    assert_eq!(listed(&merged), ["cuda 0", "cuda 1", "rocm 0"]);
    assert_eq!((merged.links, merged.nics), (kernel().links, kernel().nics));
    let sources: Vec<_> = merged.troubles.iter().map(|problem| problem.source.as_str()).collect();
    assert_eq!(sources, ["NVML", "/proc/driver", "/sys/xe"]);
}

#[test]
fn cards_are_matched_by_pci_address() {
    // NVML counts the other way round, and one of its links is better than the kernel's.
    let mut nvidia = Machine {
        accelerators: vec![
            card(DeviceType::Cuda, 0, "00000000:02:00.0"),
            card(DeviceType::Cuda, 1, "00000000:01:00.0"),
        ],
        links: vec![DeviceLink { a: 0, b: 1, kind: LinkKind::Nvlink(4) }],
        ..Machine::default()
    };
    nvidia.accelerators[1].numa_node = Some(7);
    let merged = merge(nvidia, kernel());
    assert_eq!(listed(&merged), ["cuda 0", "cuda 1", "rocm 0"]);
    let nodes: Vec<_> = merged.accelerators.iter().map(|card| card.numa_node).collect();
    assert_eq!(nodes, [Some(1), Some(7), None], "NVML's word stays, a gap is filled");
    assert_eq!(link(&merged, 0, 1), Some(LinkKind::Nvlink(4)));
    assert_eq!(link(&merged, 0, 2), Some(LinkKind::Node));
    assert_eq!(link(&merged, 1, 2), Some(LinkKind::Phb));
    assert_eq!(merged.nics[0].links, [LinkKind::Pix, LinkKind::Sys, LinkKind::Node]);
    let sources: Vec<_> = merged.troubles.iter().map(|problem| problem.source.as_str()).collect();
    assert_eq!(sources, ["/sys/xe"], "the fallback is not needed");
}

#[test]
fn mig_instances_follow_parent_card_and_share_its_links() {
    let instance = |gpu, index, pci| Accelerator {
        part: Part::MigInstance { gpu },
        ..card(DeviceType::Cuda, index, pci)
    };
    let parent = Accelerator { part: Part::MigParent, ..card(DeviceType::Cuda, 0, "0000:01:00.0") };
    let nvidia = Machine {
        accelerators: vec![
            parent,
            card(DeviceType::Cuda, 1, "0000:02:00.0"),
            instance(0, 1, "0000:01:00.0"),
            instance(0, 0, "0000:01:00.0"),
        ],
        links: vec![DeviceLink { a: 0, b: 1, kind: LinkKind::Phb }],
        ..Machine::default()
    };
    let merged = merge(nvidia, kernel());
    assert_eq!(listed(&merged), ["cuda 0", "cuda 0.0", "cuda 0.1", "cuda 1", "rocm 0"]);
    assert_eq!(link(&merged, 0, 1), Some(LinkKind::Pix));
    assert_eq!(link(&merged, 1, 2), Some(LinkKind::Pix));
    assert_eq!(link(&merged, 1, 3), Some(LinkKind::Phb));
    assert_eq!(link(&merged, 2, 3), Some(LinkKind::Phb));
    assert_eq!(link(&merged, 2, 4), Some(LinkKind::Phb));
    assert_eq!(merged.links.len(), 10);
    let nics = [LinkKind::Sys, LinkKind::Sys, LinkKind::Sys, LinkKind::Pix, LinkKind::Node];
    assert_eq!(merged.nics[0].links, nics);
    assert_eq!(merged.accelerators[1].numa_node, Some(0));
}

#[test]
fn card_unknown_to_kernel_has_no_link() {
    let mut strange = card(DeviceType::Cuda, 0, "0000:77:00.0");
    strange.numa_node = Some(1);
    let nvidia =
        Machine { accelerators: vec![strange, card(DeviceType::Cuda, 1, "nowhere")], ..Machine::default() };
    let merged = merge(nvidia, kernel());
    assert_eq!(merged.links, [], "no source has a link");
    assert_eq!(merged.nics[0].links, [LinkKind::Node, LinkKind::Sys, LinkKind::Node]);
}

#[test]
fn unrequested_links_are_not_added() {
    let parent = Accelerator { part: Part::MigParent, ..card(DeviceType::Cuda, 0, "0000:01:00.0") };
    let instance =
        Accelerator { part: Part::MigInstance { gpu: 0 }, ..card(DeviceType::Cuda, 0, "0000:01:00.0") };
    let nvidia = Machine { accelerators: vec![parent, instance], ..Machine::default() };
    assert_eq!(merge(nvidia, Machine::default()).links, []);
}

#[test]
fn out_of_range_link_positions_are_ignored() {
    let mut kernel = kernel();
    kernel.nics[0].links.clear();
    kernel.links.push(DeviceLink { a: 50, b: 99, kind: LinkKind::Pix });
    let merged = merge(Machine::default(), kernel);
    assert_eq!(merged.links.len(), 3);
    assert_eq!(merged.nics[0].links.len(), 3);
}
