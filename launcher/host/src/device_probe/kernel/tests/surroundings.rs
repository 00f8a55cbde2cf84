//! Processors, links and network cards.

use crate::device_probe::kernel::tests::*;
use rankrun_core::device::{Cpu, Nic, NumaNode};

fn all(folder: &Folder) -> Machine {
    probe_kernel(folder.path(), everything())
}

#[test]
fn cpu_layout_of_two_sockets() {
    let folder = Folder::new();
    folder.file("sys/devices/system/cpu/online", "0-5\n");
    folder.file("sys/devices/system/node/node0/cpulist", "0,2,4\n");
    folder.file("sys/devices/system/node/node1/cpulist", "1,3,5\n");
    folder.file("sys/devices/system/node/node2/cpulist", "\n");
    for cpu in 0..6 {
        let own = if cpu % 2 == 0 { "0,2,4" } else { "1,3,5" };
        let threads = ["0,2", "1,3", "0,2", "1,3", "4", "5"][cpu as usize];
        // The instruction cache has the highest level here, and does not count.
        let caches =
            [(1, "Data", threads), (4, "Instruction", "0-5"), (3, "Unified", own), (2, "Unified", threads)];
        folder.cpu(cpu, i32::try_from(cpu % 2).unwrap(), threads, &caches);
    }
    let layout = all(&folder).cpus.unwrap();
    let expected = [
        NumaNode { id: 0, cpus: vec![0, 2, 4] },
        NumaNode { id: 1, cpus: vec![1, 3, 5] },
        NumaNode { id: 2, cpus: vec![] },
    ];
    assert_eq!(layout.nodes, expected);
    assert_eq!(layout.cpus.len(), 6);
    assert_eq!(layout.cpus[2], Cpu { id: 2, package: 0, siblings: vec![0, 2], cache: vec![0, 2, 4] });
    assert_eq!(layout.cpus[5], Cpu { id: 5, package: 1, siblings: vec![5], cache: vec![1, 3, 5] });
}

#[test]
fn kernel_without_numa_has_single_node() {
    let folder = Folder::new();
    folder.file("sys/devices/system/cpu/online", "0,2\n").cpu(0, 0, "0-1", &[]);
    let layout = all(&folder).cpus.unwrap();
    assert_eq!(layout.nodes, [NumaNode { id: 0, cpus: vec![0, 2] }]);
    let alone = |id, package| Cpu { id, package, siblings: vec![id], cache: vec![id] };
    assert_eq!(layout.cpus, [alone(0, 0), alone(2, -1)], "CPU 1 is off, and nothing is known of CPU 2");
}

#[test]
fn cpu_group_without_own_cpu_is_ignored() {
    let folder = Folder::new();
    folder.file("sys/devices/system/cpu/online", "0-1\n");
    folder.cpu(0, 0, "1", &[(1, "Data", "9-12")]).cpu(1, 0, "0-1", &[(1, "Data", "0-4294967295")]);
    let layout = all(&folder).cpus.unwrap();
    assert_eq!(layout.cpus[0], Cpu { id: 0, package: 0, siblings: vec![0], cache: vec![0] });
    assert_eq!(layout.cpus[1], Cpu { id: 1, package: 0, siblings: vec![0, 1], cache: vec![1] });
}

#[test]
fn unrequested_facts_are_not_probed() {
    let folder = Folder::new();
    folder.file("sys/devices/system/cpu/online", "0\n");
    folder.amd(2, 0x0300, "renderD128", "").amd(3, 0x0500, "renderD129", "");
    folder.pci("pci0000:00/0000:09:00.0", "0x15b3", "0x020000").class(
        "net",
        "eth0",
        "pci0000:00/0000:09:00.0",
    );
    let machine = probe_kernel(folder.path(), ProbeScope::default());
    assert_eq!((machine.cpus, machine.links, machine.nics), (None, vec![], vec![]));
    assert_eq!(machine.accelerators[0].state, None);
    let machine = all(&folder);
    assert_eq!((machine.links.len(), machine.nics.len()), (1, 1));
}

#[test]
fn xgmi_hive_takes_precedence_over_pci_path() {
    let folder = Folder::new();
    for (node, hive) in [(2, 7), (3, 0), (4, 7), (5, 8), (6, 0)] {
        folder.amd(node, node << 8, &format!("renderD{}", 126 + node), &format!("hive_id {hive}\n"));
    }
    let links: Vec<_> = all(&folder).links.into_iter().map(|link| (link.a, link.b, link.kind)).collect();
    assert_eq!(links.len(), 10);
    let joined: Vec<_> = links.iter().filter(|(.., kind)| *kind == LinkKind::Xgmi).collect();
    assert_eq!(joined, [&(0, 2, LinkKind::Xgmi)]);
    assert!(links.iter().all(|(_, _, kind)| matches!(kind, LinkKind::Xgmi | LinkKind::Phb)), "{links:?}");
}

#[test]
fn tiles_of_one_card_have_close_link() {
    let folder = Folder::new();
    folder.intel("0000:1b:00.0", "xe", 128).intel("0000:9a:00.0", "xe", 129);
    for tile in ["1b:00.0/tile0", "1b:00.0/tile1", "9a:00.0/tile0"] {
        folder.file(&format!("sys/bus/pci/devices/0000:{tile}/gt0/id"), "0\n");
    }
    let kinds: Vec<_> = all(&folder).links.into_iter().map(|link| link.kind).collect();
    assert_eq!(kinds, [LinkKind::Pix, LinkKind::Phb, LinkKind::Phb]);
}

#[test]
fn card_without_pci_path_has_no_link() {
    let folder = Folder::new();
    folder.habana(0, "0000:33:00.0", "operational\n").habana(1, "0000:34:00.0", "operational\n");
    folder.pci("pci0000:00/0000:34:00.0", "0x1da3", "0x120000");
    assert_eq!(all(&folder).links, []);
}

#[test]
fn network_cards_are_listed_with_links() {
    let folder = Folder::new();
    folder.nvidia("0000:12:00.0", 0, "GPU-a").nvidia("0000:92:00.0", 1, "GPU-b").nvidia(
        "0000:a0:00.0",
        2,
        "GPU-c",
    );
    let switch = "pci0000:00/0000:00:01.0/0000:10:00.0";
    folder.pci(&format!("{switch}/0000:11:00.0/0000:12:00.0"), "0x10de", "0x030200");
    folder.pci("pci0000:80/0000:80:01.0/0000:92:00.0", "0x10de", "0x030200");
    let (rdma, plain) =
        (format!("{switch}/0000:11:01.0/0000:13:00.0"), "pci0000:80/0000:80:02.0/0000:93:00.0");
    folder.pci(&rdma, "0x15b3", "0x020700").class("infiniband", "mlx5_0", &rdma).class("net", "ib0", &rdma);
    // A virtio interface is one below its PCI device; a bridge has none at all.
    folder.pci(plain, "0x1af4", "0x020000").class("net", "eth1", &format!("{plain}/virtio2"));
    folder
        .file("sys/class/net/br0/mtu", "1500\n")
        .link("../../devices/virtual/net/gone", "sys/class/net/lost");
    for (address, node) in [("12", 0), ("13", 0), ("92", 1), ("93", 1)] {
        folder.file(&format!("sys/bus/pci/devices/0000:{address}:00.0/numa_node"), format!("{node}\n"));
    }
    let nic = |name: &str, pci: &str, numa_node, links: [LinkKind; 3]| Nic {
        name: name.to_owned(),
        pci: pci.parse().ok(),
        numa_node: Some(numa_node),
        links: links.to_vec(),
    };
    let expected = [
        nic("mlx5_0", "0000:13:00.0", 0, [LinkKind::Pix, LinkKind::Sys, LinkKind::Sys]),
        nic("eth1", "0000:93:00.0", 1, [LinkKind::Sys, LinkKind::Phb, LinkKind::Sys]),
    ];
    assert_eq!(all(&folder).nics, expected);
}
