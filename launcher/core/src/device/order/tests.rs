use super::*;
use crate::device::LinkKind::{Node, Nvlink, Phb, Pix, Sys};
use crate::device::fake::{self, link};
use crate::device::{LinkKind, Memory};

fn sorted_devices(order: DeviceOrder, listed: &[usize], machine: &Machine) -> Result<Vec<usize>, OrderError> {
    sort_devices(order, listed, machine, &|| Err("it is not installed".to_owned()))
}

#[test]
fn pci_order_ascends_and_as_listed_is_unchanged() {
    let mut machine = fake::cuda(4);
    assert_eq!(sorted_devices(DeviceOrder::Pci, &[3, 0, 2], &machine), Ok(vec![0, 2, 3]));
    assert_eq!(sorted_devices(DeviceOrder::AsListed, &[3, 0, 2], &machine), Ok(vec![3, 0, 2]));
    machine.accelerators[0].pci = None;
    assert_eq!(sorted_devices(DeviceOrder::Pci, &[0, 3, 2], &machine), Ok(vec![2, 3, 0]));
    machine.accelerators.iter_mut().for_each(|card| card.pci = None);
    assert_eq!(sorted_devices(DeviceOrder::Pci, &[0, 3], &machine), Err(OrderError::NoAddresses));
}

#[test]
fn free_memory_order_puts_unknown_last() {
    let mut machine = fake::cuda(4);
    let free = |gib: Option<u64>| Some(Memory { total: 80 << 30, free: gib.map(|gib| gib << 30) });
    for (card, gib) in machine.accelerators.iter_mut().zip([Some(5), None, Some(70), Some(5)]) {
        card.memory = free(gib);
    }
    assert_eq!(sorted_devices(DeviceOrder::FreeMemory, &[1, 3, 0, 2], &machine), Ok(vec![2, 3, 0, 1]));
    assert_eq!(sorted_devices(DeviceOrder::FreeMemory, &[1, 1], &machine), Err(OrderError::NoMemory));
}

#[test]
fn fastest_order_follows_driver_or_is_refused() {
    let machine = fake::mixed_cuda();
    let driver = || Ok(fake::mixed_cuda_order(&machine));
    assert_eq!(sort_devices(DeviceOrder::Fastest, &[0, 1, 2, 3], &machine, &driver), Ok(vec![3, 1, 0, 2]));
    assert_eq!(sort_devices(DeviceOrder::Fastest, &[2, 3], &machine, &driver), Ok(vec![3, 2]));
    let refused = sorted_devices(DeviceOrder::Fastest, &[0, 1], &machine);
    assert_eq!(refused, Err(OrderError::NoDriver("it is not installed".to_owned())));
    let short = || Ok(fake::cuda_order(&machine, &[1]));
    let unnamed = OrderError::Unnamed("GPU 0 NVIDIA P4 (0000:10:00.0)".to_owned());
    assert_eq!(sort_devices(DeviceOrder::Fastest, &[0, 1], &machine, &short), Err(unnamed));
    let amd = sorted_devices(DeviceOrder::Fastest, &[0, 1], &fake::rocm(2));
    assert_eq!(amd, Err(OrderError::NotCuda(DeviceType::Rocm)));
    assert_eq!(sorted_devices(DeviceOrder::Fastest, &[1], &machine), Ok(vec![1]));
}

#[test]
fn topology_order_puts_nvlink_pairs_side_by_side() {
    let mut machine = fake::cuda(4);
    link(&mut machine, &[(0, 2, Nvlink(4)), (1, 3, Nvlink(4))], Phb);
    assert_eq!(sorted_devices(DeviceOrder::Topology, &[0, 1, 2, 3], &machine), Ok(vec![0, 2, 1, 3]));
    assert_eq!(sorted_devices(DeviceOrder::Topology, &[3, 2, 1, 0], &machine), Ok(vec![3, 1, 2, 0]));
    assert_eq!(sorted_devices(DeviceOrder::Topology, &[1, 2, 3], &machine), Ok(vec![1, 3, 2]));
}

#[test]
fn topology_order_starts_chain_at_its_end() {
    let mut machine = fake::cuda(3);
    link(&mut machine, &[(0, 1, Nvlink(2)), (0, 2, Nvlink(2))], Sys);
    assert_eq!(sorted_devices(DeviceOrder::Topology, &[0, 1, 2], &machine), Ok(vec![1, 0, 2]));
}

#[test]
fn equal_links_keep_listed_order() {
    for count in [2_u8, 8, 12] {
        let mut machine = fake::cuda(count);
        link(&mut machine, &[], Nvlink(18));
        let listed: Vec<usize> = (0..usize::from(count)).rev().collect();
        assert_eq!(sorted_devices(DeviceOrder::Topology, &listed, &machine), Ok(listed.clone()));
    }
    let unknown = sorted_devices(DeviceOrder::Topology, &[0, 1], &fake::cuda(2));
    assert_eq!(unknown, Err(OrderError::NoLinks));
}

#[test]
fn hybrid_cube_mesh_ring_uses_double_nvlinks() {
    // Eight cards as in the first machines with NVLink: one ring of doubled links, and single ones across.
    let double = [(0, 3), (2, 3), (1, 2), (1, 5), (5, 6), (6, 7), (4, 7), (0, 4)];
    let single = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)];
    let mut machine = fake::cuda(8);
    let links: Vec<(usize, usize, LinkKind)> = double
        .map(|(a, b)| (a, b, Nvlink(2)))
        .into_iter()
        .chain(single.map(|(a, b)| (a, b, Nvlink(1))))
        .collect();
    link(&mut machine, &links, Sys);
    let listed: Vec<usize> = (0..8).collect();
    assert_eq!(sorted_devices(DeviceOrder::Topology, &listed, &machine), Ok(vec![0, 3, 2, 1, 5, 6, 7, 4]));
}

#[test]
fn many_devices_are_ordered_by_greedy_path() {
    let mut machine = fake::cuda(10);
    let pairs: Vec<(usize, usize, LinkKind)> = (0..5).map(|a| (a, a + 5, Pix)).collect();
    link(&mut machine, &pairs, Node);
    let listed: Vec<usize> = (0..10).collect();
    let expected = vec![0, 5, 1, 6, 2, 7, 3, 8, 4, 9];
    assert_eq!(sorted_devices(DeviceOrder::Topology, &listed, &machine), Ok(expected));
}
