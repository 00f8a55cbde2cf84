//! The matrices of machines made by hand.

use super::super::example::{card, machine, machine_without_devices, mig, nic, pci};
use super::*;
use crate::explain::Style;
use rankrun_core::device::DeviceLink;

fn matrix(machine: &Machine) -> String {
    page(machine, "node17", &[]).render(Style::Plain)
}

/// The lines above the legend.
fn matrix_lines(machine: &Machine) -> Vec<String> {
    matrix(machine).lines().take_while(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn two_cards_with_nvlinks_render_full_page() {
    let text = "\
\x20     GPU0  GPU1  CPU Affinity  NUMA Affinity
GPU0   X    NV2   0-3           0
GPU1  NV2    X    0-3           0

Legend
X     the device itself
SYS   through PCIe and the link between two NUMA nodes (QPI, UPI, Infinity Fabric)
NODE  through PCIe and the link between two PCIe host bridges of one NUMA node
PHB   through PCIe and one PCIe host bridge, which is the CPU's
PXB   through several PCIe switches, and no host bridge
PIX   through one PCIe switch
NV#   through # NVLinks
";
    assert_eq!(matrix(&machine(vec![card(0), card(1)], LinkKind::Nvlink(2))), text);
}

#[test]
fn two_cards_on_one_host_bridge_show_phb() {
    let lines = matrix_lines(&machine(vec![card(0), card(1)], LinkKind::Phb));
    assert_eq!(lines[1], "GPU0   X    PHB   0-3           0");
}

#[test]
fn eight_cards_on_switch_show_nv18_for_all_pairs() {
    let lines = matrix_lines(&machine((0..8).map(card).collect(), LinkKind::Nvlink(18)));
    assert_eq!(lines.len(), 9);
    for (at, line) in lines[1..].iter().enumerate() {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let expected = (0..8).map(|other| if at == other { "X" } else { "NV18" });
        assert!(columns[1..9].iter().copied().eq(expected), "{line}");
        assert_eq!(columns[9..], if at < 4 { ["0-3", "0"] } else { ["4-7", "1"] }, "{line}");
    }
}

#[test]
fn network_cards_are_rows_and_nearest_nic_is_listed() {
    let mut machine = machine(vec![card(0), card(4)], LinkKind::Sys);
    machine.nics = vec![
        nic("mlx5_0", 0x20, 0, vec![LinkKind::Pix, LinkKind::Sys]),
        nic("mlx5_1", 0x30, 1, vec![LinkKind::Sys, LinkKind::Pxb]),
        nic("mlx5_2", 0x31, 1, vec![LinkKind::Sys, LinkKind::Pxb]),
        nic("eth0", 0x32, 1, vec![]),
    ];
    machine.nics[2].pci = Some(rankrun_core::device::PciAddress { function: 1, ..pci(0x30) });
    let text = "\
\x20     GPU0  GPU4  NIC0  NIC1  NIC2  NIC3  CPU Affinity  NUMA Affinity  Nearest NIC
GPU0   X    SYS   PIX   SYS   SYS    ?    0-3           0              NIC0 (PIX)
GPU4  SYS    X    SYS   PXB   PXB    ?    4-7           1              NIC1,NIC2 (PXB)
NIC0  PIX   SYS    X    SYS   SYS   SYS
NIC1  SYS   PXB   SYS    X    PIX    ?
NIC2  SYS   PXB   SYS   PIX    X     ?
NIC3   ?     ?    SYS    ?     ?     X

NIC0  mlx5_0
NIC1  mlx5_1
NIC2  mlx5_2
NIC3  eth0

Legend
";
    let all = matrix(&machine);
    assert!(all.starts_with(text), "{all}");
    assert!(all.ends_with("?     not known\n"), "{all}");
}

#[test]
fn unknown_affinity_is_question_mark() {
    let mut machine = machine(vec![card(0), card(1)], LinkKind::Xgmi);
    machine.accelerators[1].numa_node = None;
    machine.cpus = None;
    let text = matrix(&machine);
    assert!(text.contains("GPU0   X    XGMI  ?             0\n"), "{text}");
    assert!(text.contains("GPU1  XGMI   X    ?             ?\n"), "{text}");
    assert!(text.contains("XGMI  through AMD's own links between GPUs\n"), "{text}");
    machine.links.clear();
    assert_eq!(matrix_lines(&machine)[1], "GPU0   X     ?    ?             0");
}

#[test]
fn single_numa_node_applies_to_every_card() {
    let mut machine = machine(vec![card(0)], LinkKind::Sys);
    machine.accelerators[0].numa_node = None;
    machine.cpus.as_mut().unwrap().nodes.truncate(1);
    assert_eq!(matrix_lines(&machine)[1], "GPU0   X    0-3           0");
}

#[test]
fn mig_instances_are_omitted_and_vendors_have_own_names() {
    let mut accelerators = mig(0).to_vec();
    accelerators.push(Accelerator { kind: DeviceType::Rocm, ..card(0) });
    let machine = Machine {
        links: vec![DeviceLink { a: 0, b: 2, kind: LinkKind::Node }],
        ..machine(accelerators, LinkKind::Sys)
    };
    assert_eq!(
        matrix_lines(&machine)[..2],
        ["       CUDA0  ROCM0  CPU Affinity  NUMA Affinity", "CUDA0    X    NODE   0-3           0"]
    );
}

#[test]
fn topology_without_accelerators_lists_sources() {
    let text = "\
node17: no accelerators

type  looked for
cuda  NVML is not there: libnvidia-ml.so.1: cannot open shared object file
rocm  /sys/class/kfd is not there: no such folder

8 CPUs in 2 NUMA nodes: 0-3 on node 0, 4-7 on node 1
";
    assert_eq!(matrix(&machine_without_devices()), text);
}
