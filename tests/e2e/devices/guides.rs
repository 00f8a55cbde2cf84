//! The examples of the accelerator-selection guides of Hugging Face Transformers (*Accelerator selection*, its CUDA and
//! its XPU half), each as one test: as the guide has it, under our own name, and with our own options.

use harness::{Machine, MachineTree, Vendor, namespaces, only_ours};

use super::{assert_lines_are_true, each_sees, gives, got, typed};

#[test]
fn the_first_two_of_four() {
    let machine = Machine::gpus(4);
    for line in ["torchrun --nproc_per_node=2", "rankrun --nproc-per-node 2"] {
        each_sees(&gives(line, &machine, &[0, 1]), 4);
    }
    for line in ["rankrun --devices 0,1", "rankrun --devices 0-1", "rankrun --devices=-2,-3"] {
        each_sees(&gives(line, &machine, &[0, 1]), 2);
    }
}

#[test]
fn the_first_and_the_third() {
    let machine = Machine::gpus(4);
    for line in [
        "CUDA_VISIBLE_DEVICES=0,2 torchrun --nproc_per_node=2",
        "CUDA_VISIBLE_DEVICES=0,2 rankrun --nproc-per-node 2",
        "CUDA_VISIBLE_DEVICES=0,2 rankrun",
        "rankrun --devices 0,2",
        "RANKRUN_DEVICES=0,2 rankrun",
    ] {
        each_sees(&gives(line, &machine, &[0, 2]), 2);
    }
}

#[test]
fn reversed() {
    let machine = Machine::gpus(4);
    for line in [
        "CUDA_VISIBLE_DEVICES=2,0 torchrun --nproc_per_node=2",
        "CUDA_VISIBLE_DEVICES=2,0 rankrun",
        "rankrun --devices 2,0",
        "CUDA_VISIBLE_DEVICES=0,2 rankrun --devices 1,0",
    ] {
        each_sees(&gives(line, &machine, &[2, 0]), 2);
    }
}

#[test]
fn none() {
    let machine = Machine::gpus(4);
    for (line, workers) in [
        ("CUDA_VISIBLE_DEVICES= torchrun --nproc_per_node=2", 2),
        ("CUDA_VISIBLE_DEVICES= rankrun --nproc-per-node 2", 2),
        ("CUDA_VISIBLE_DEVICES= rankrun", 1),
        ("CUDA_VISIBLE_DEVICES=-1 rankrun", 1),
        ("rankrun --devices none", 1),
        ("rankrun --devices none --nproc-per-node 2", 2),
        ("rankrun --device-type cpu --nproc-per-node 2", 2),
    ] {
        let outcome = typed(line).on(&machine).worker(["device=cuda"]).run();
        outcome.exits(0);
        let found = got(&outcome);
        assert_eq!(found.len(), workers, "{outcome}");
        assert!(found.iter().all(|got| got.sees == "0" && got.is == "none"), "{outcome}");
    }
}

/// The old card is the first of PCI order, and the last of CUDA's own.
#[test]
fn both_orders() {
    let machine = Machine::mixed();
    let (pci, fastest) = ([0, 1, 2], [1, 2, 0]);
    for line in [
        "CUDA_DEVICE_ORDER=PCI_BUS_ID torchrun --nproc-per-node 3",
        "CUDA_DEVICE_ORDER=PCI_BUS_ID rankrun",
        "rankrun --device-order pci",
        "CUDA_DEVICE_ORDER=FASTEST_FIRST rankrun --device-order pci",
    ] {
        gives(line, &machine, &pci);
    }
    for line in [
        "torchrun --nproc-per-node 3",
        "CUDA_DEVICE_ORDER=FASTEST_FIRST torchrun --nproc-per-node 3",
        "CUDA_DEVICE_ORDER=FASTEST_FIRST rankrun",
        "rankrun --device-order fastest",
        "CUDA_DEVICE_ORDER=PCI_BUS_ID rankrun --device-order fastest",
    ] {
        gives(line, &machine, &fastest);
    }
}

/// The guides' lists with each order.
#[test]
fn both_orders_of_a_list() {
    let machine = Machine::mixed();
    gives("CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,2 rankrun", &machine, &[0, 2]);
    gives("CUDA_DEVICE_ORDER=FASTEST_FIRST CUDA_VISIBLE_DEVICES=0,2 rankrun", &machine, &[1, 0]);
    gives("CUDA_VISIBLE_DEVICES=0,2 rankrun", &machine, &[1, 0]);
    // An index within the inherited list.
    gives("CUDA_DEVICE_ORDER=FASTEST_FIRST CUDA_VISIBLE_DEVICES=0,2 rankrun --devices 1", &machine, &[0]);
}

/// A launch on four Intel cards that the driver reports in the opposite order, unless it is told to go by PCI; fails
/// unless each rank has the card given for it, by its place in PCI order.
#[track_caller]
fn xpu_gives(line: &str, sees: usize, cards: &[usize]) {
    let machine = Machine::of_vendor(Vendor::Intel, 4, 1).reported_backwards();
    let tree = MachineTree::new().intel(4, 1);
    let outcome = typed(line).under(tree.stage()).on(&machine).worker(["device=ze"]).run();
    outcome.exits(0);
    each_sees(&outcome, sees);
    let is: Vec<_> = got(&outcome).into_iter().map(|got| got.is).collect();
    // The machine has them backwards.
    let expected: Vec<_> = cards.iter().map(|card| format!("{}/0", machine.pci(3 - card))).collect();
    assert_eq!(is, expected, "{line}\n{outcome}");
    assert_lines_are_true(&outcome, |rank| machine.pci(3 - cards[rank]));
}

#[test]
fn xpu_mask() {
    if !namespaces() || !only_ours() {
        return;
    }
    xpu_gives("ZE_AFFINITY_MASK=0,2 torchrun --nproc_per_node=2", 2, &[3, 1]);
    xpu_gives("ZE_AFFINITY_MASK=0,2 rankrun", 2, &[3, 1]);
    // Typed indices are those of `rankrun devices`: in PCI order.
    xpu_gives("rankrun --devices 0,2", 2, &[0, 2]);
}

/// The guide says that this reverses; the vendor says that a mask is a set.
#[test]
fn xpu_mask_reversed() {
    if !namespaces() || !only_ours() {
        return;
    }
    xpu_gives("ZE_AFFINITY_MASK=2,0 torchrun --nproc_per_node=2", 2, &[3, 1]);
    xpu_gives("ZE_AFFINITY_MASK=2,0 rankrun", 2, &[3, 1]);
    // Ours keeps the promise: each worker has a mask of its own.
    xpu_gives("rankrun --devices 2,0", 1, &[2, 0]);
}

#[test]
fn xpu_pci_order() {
    if !namespaces() || !only_ours() {
        return;
    }
    xpu_gives("ZE_ENABLE_PCI_ID_DEVICE_ORDER=1 torchrun --nproc_per_node=2", 4, &[0, 1]);
    xpu_gives("ZE_ENABLE_PCI_ID_DEVICE_ORDER=1 ZE_AFFINITY_MASK=0,2 rankrun", 2, &[0, 2]);
    xpu_gives("rankrun --device-order pci", 4, &[0, 1, 2, 3]);
}
