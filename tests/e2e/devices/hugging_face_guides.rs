//! The examples of the accelerator-selection guides of Hugging Face Transformers (*Accelerator selection*, its CUDA and
//! its XPU half), each as one test: as the guide has it, under our own name, and with our own options.

use harness::{Machine, MachineTree, Vendor, can_use_namespaces, is_rankrun};

use super::{assert_devices, assert_lines_are_true, assert_visible_count, launch_from_line, worker_devices};

#[test]
fn guide_first_two_of_four_gpus() {
    let machine = Machine::gpus(4);
    for line in ["torchrun --nproc_per_node=2", "rankrun --nproc-per-node 2"] {
        assert_visible_count(&assert_devices(line, &machine, &[0, 1]), 4);
    }
    for line in ["rankrun --devices 0,1", "rankrun --devices 0-1", "rankrun --devices=-2,-3"] {
        assert_visible_count(&assert_devices(line, &machine, &[0, 1]), 2);
    }
}

#[test]
fn guide_first_and_third_gpu() {
    let machine = Machine::gpus(4);
    for line in [
        "CUDA_VISIBLE_DEVICES=0,2 torchrun --nproc_per_node=2",
        "CUDA_VISIBLE_DEVICES=0,2 rankrun --nproc-per-node 2",
        "CUDA_VISIBLE_DEVICES=0,2 rankrun",
        "rankrun --devices 0,2",
        "RANKRUN_DEVICES=0,2 rankrun",
    ] {
        assert_visible_count(&assert_devices(line, &machine, &[0, 2]), 2);
    }
}

#[test]
fn guide_reversed_gpus() {
    let machine = Machine::gpus(4);
    for line in [
        "CUDA_VISIBLE_DEVICES=2,0 torchrun --nproc_per_node=2",
        "CUDA_VISIBLE_DEVICES=2,0 rankrun",
        "rankrun --devices 2,0",
        "CUDA_VISIBLE_DEVICES=0,2 rankrun --devices 1,0",
    ] {
        assert_visible_count(&assert_devices(line, &machine, &[2, 0]), 2);
    }
}

#[test]
fn guide_no_gpus() {
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
        let outcome = launch_from_line(line).on(&machine).worker(["device=cuda"]).run();
        outcome.expect_exit_code(0);
        let found = worker_devices(&outcome);
        assert_eq!(found.len(), workers, "{outcome}");
        assert!(found.iter().all(|got| got.visible == "0" && got.identity == "none"), "{outcome}");
    }
}

/// The old card is the first of PCI order, and the last of CUDA's own.
#[test]
fn guide_pci_and_fastest_order() {
    let machine = Machine::mixed();
    let (pci, fastest) = ([0, 1, 2], [1, 2, 0]);
    for line in [
        "CUDA_DEVICE_ORDER=PCI_BUS_ID torchrun --nproc-per-node 3",
        "CUDA_DEVICE_ORDER=PCI_BUS_ID rankrun",
        "rankrun --device-order pci",
        "CUDA_DEVICE_ORDER=FASTEST_FIRST rankrun --device-order pci",
    ] {
        assert_devices(line, &machine, &pci);
    }
    for line in [
        "torchrun --nproc-per-node 3",
        "CUDA_DEVICE_ORDER=FASTEST_FIRST torchrun --nproc-per-node 3",
        "CUDA_DEVICE_ORDER=FASTEST_FIRST rankrun",
        "rankrun --device-order fastest",
        "CUDA_DEVICE_ORDER=PCI_BUS_ID rankrun --device-order fastest",
    ] {
        assert_devices(line, &machine, &fastest);
    }
}

/// The guides' lists with each order.
#[test]
fn guide_list_in_pci_and_fastest_order() {
    let machine = Machine::mixed();
    assert_devices("CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,2 rankrun", &machine, &[0, 2]);
    assert_devices("CUDA_DEVICE_ORDER=FASTEST_FIRST CUDA_VISIBLE_DEVICES=0,2 rankrun", &machine, &[1, 0]);
    assert_devices("CUDA_VISIBLE_DEVICES=0,2 rankrun", &machine, &[1, 0]);
    // An index within the inherited list.
    assert_devices(
        "CUDA_DEVICE_ORDER=FASTEST_FIRST CUDA_VISIBLE_DEVICES=0,2 rankrun --devices 1",
        &machine,
        &[0],
    );
}

/// A launch on four Intel cards that the driver reports in the opposite order, unless it is told to go by PCI; fails
/// unless each rank has the card given for it, by its place in PCI order.
#[track_caller]
fn assert_xpu_devices(line: &str, sees: usize, cards: &[usize]) {
    let machine = Machine::of_vendor(Vendor::Intel, 4, 1).reported_backwards();
    let tree = MachineTree::new().intel(4, 1);
    let outcome = launch_from_line(line).under(tree.stage()).on(&machine).worker(["device=ze"]).run();
    outcome.expect_exit_code(0);
    assert_visible_count(&outcome, sees);
    let is: Vec<_> = worker_devices(&outcome).into_iter().map(|got| got.identity).collect();
    // The machine has them backwards.
    let expected: Vec<_> = cards.iter().map(|card| format!("{}/0", machine.pci(3 - card))).collect();
    assert_eq!(is, expected, "{line}\n{outcome}");
    assert_lines_are_true(&outcome, |rank| machine.pci(3 - cards[rank]));
}

#[test]
fn guide_xpu_mask() {
    if !can_use_namespaces() || !is_rankrun() {
        return;
    }
    assert_xpu_devices("ZE_AFFINITY_MASK=0,2 torchrun --nproc_per_node=2", 2, &[3, 1]);
    assert_xpu_devices("ZE_AFFINITY_MASK=0,2 rankrun", 2, &[3, 1]);
    // Typed indices are those of `rankrun devices`: in PCI order.
    assert_xpu_devices("rankrun --devices 0,2", 2, &[0, 2]);
}

/// The guide says that this reverses; the vendor says that a mask is a set.
#[test]
fn guide_xpu_mask_reversed() {
    if !can_use_namespaces() || !is_rankrun() {
        return;
    }
    assert_xpu_devices("ZE_AFFINITY_MASK=2,0 torchrun --nproc_per_node=2", 2, &[3, 1]);
    assert_xpu_devices("ZE_AFFINITY_MASK=2,0 rankrun", 2, &[3, 1]);
    // Ours keeps the promise: each worker has a mask of its own.
    assert_xpu_devices("rankrun --devices 2,0", 1, &[2, 0]);
}

#[test]
fn guide_xpu_pci_order() {
    if !can_use_namespaces() || !is_rankrun() {
        return;
    }
    assert_xpu_devices("ZE_ENABLE_PCI_ID_DEVICE_ORDER=1 torchrun --nproc_per_node=2", 4, &[0, 1]);
    assert_xpu_devices("ZE_ENABLE_PCI_ID_DEVICE_ORDER=1 ZE_AFFINITY_MASK=0,2 rankrun", 2, &[0, 2]);
    assert_xpu_devices("rankrun --device-order pci", 4, &[0, 1, 2, 3]);
}
