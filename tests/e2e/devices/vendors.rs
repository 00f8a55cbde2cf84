//! The other vendors: their cards in the kernel's own folders, and their libraries in the workers.

use harness::{Machine, MachineTree, Outcome, Vendor, can_use_namespaces, is_rankrun};

use super::{assert_lines_are_true, assert_visible_count, launch_from_line, worker_devices};

fn is_skipped() -> bool {
    !can_use_namespaces() || !is_rankrun()
}

#[track_caller]
fn run(line: &str, tree: &MachineTree, machine: &Machine, step: &str) -> Outcome {
    let outcome = launch_from_line(line).under(tree.stage()).on(machine).worker([step]).run();
    outcome.expect_exit_code(0);
    outcome
}

/// Runs on so many cards of a vendor, and fails unless each rank has the card given for it, and sees so many.
#[track_caller]
fn assert_amd_devices(line: &str, sees: usize, cards: &[usize]) -> Outcome {
    let (tree, machine) = (MachineTree::new().amd(4), Machine::of_vendor(Vendor::Amd, 4, 1));
    let outcome = run(line, &tree, &machine, "device=hip");
    assert_visible_count(&outcome, sees);
    let is: Vec<_> = worker_devices(&outcome).into_iter().map(|got| got.identity).collect();
    let expected: Vec<_> = cards.iter().map(|card| machine.pci(*card)).collect();
    assert_eq!(is, expected, "{line}\n{outcome}");
    let named = if line.contains("torchrun") { 0 } else { cards.len() };
    assert_eq!(assert_lines_are_true(&outcome, |rank| machine.pci(cards[rank])), named, "{line}\n{outcome}");
    outcome
}

#[test]
fn amd_devices_are_assigned_in_order() {
    if is_skipped() {
        return;
    }
    assert_amd_devices("rankrun", 4, &[0, 1, 2, 3]);
    assert_amd_devices("rankrun --devices 3,1", 2, &[3, 1]);
    assert_amd_devices("rankrun --devices 3,1 --device-visibility own", 1, &[3, 1]);
    assert_amd_devices("rankrun --device-type rocm --devices 0,2", 2, &[0, 2]);
    assert_amd_devices("rankrun --devices GPU-000000000000abc2", 1, &[2]);
    assert_amd_devices("torchrun --nproc-per-node gpu", 4, &[0, 1, 2, 3]);
}

#[test]
fn amd_rocr_and_hip_lists_combine() {
    if is_skipped() {
        return;
    }
    assert_amd_devices("ROCR_VISIBLE_DEVICES=2,3 rankrun", 2, &[2, 3]);
    assert_amd_devices("ROCR_VISIBLE_DEVICES=2,3 HIP_VISIBLE_DEVICES=1 rankrun", 1, &[3]);
    assert_amd_devices("ROCR_VISIBLE_DEVICES=3,2,1 HIP_VISIBLE_DEVICES=2,0 rankrun", 2, &[1, 3]);
    assert_amd_devices("ROCR_VISIBLE_DEVICES=0,0,1 rankrun", 1, &[0]);
    assert_amd_devices("HIP_VISIBLE_DEVICES=0,0,1 rankrun", 2, &[0, 1]);
    assert_amd_devices("CUDA_VISIBLE_DEVICES=1 rankrun", 1, &[1]);
    // What is typed counts within both, and replaces both.
    assert_amd_devices("ROCR_VISIBLE_DEVICES=2,3 HIP_VISIBLE_DEVICES=1,0 rankrun --devices 1,0", 2, &[2, 3]);
    assert_amd_devices("CUDA_VISIBLE_DEVICES=3,2 rankrun --devices 1", 1, &[2]);
    assert_amd_devices("ROCR_VISIBLE_DEVICES=2,3 torchrun --nproc-per-node 2", 2, &[2, 3]);
}

#[test]
fn amd_devices_hidden_by_user_use_cpus() {
    if is_skipped() {
        return;
    }
    let (tree, machine) = (MachineTree::new().amd(2), Machine::of_vendor(Vendor::Amd, 2, 1));
    for line in ["rankrun --devices none", "ROCR_VISIBLE_DEVICES= rankrun", "HIP_VISIBLE_DEVICES=-1 rankrun"]
    {
        let outcome = run(line, &tree, &machine, "device=hip");
        assert_eq!(worker_devices(&outcome).len(), 1, "{outcome}");
        assert_visible_count(&outcome, 0);
    }
}

/// Intel: cards of two tiles, each of which is a device unless the user says otherwise.
#[test]
fn intel_tiles_are_devices() {
    if is_skipped() {
        return;
    }
    let (tree, machine) = (MachineTree::new().intel(2, 2), Machine::of_vendor(Vendor::Intel, 2, 2));
    let gives = |line: &str, expected: &[(usize, u32)]| {
        let outcome = run(line, &tree, &machine, "device=ze");
        let is: Vec<_> = worker_devices(&outcome).into_iter().map(|got| got.identity).collect();
        assert_lines_are_true(&outcome, |rank| machine.pci(expected[rank].0));
        let expected: Vec<_> =
            expected.iter().map(|(card, tile)| format!("{}/{tile}", machine.pci(*card))).collect();
        assert_eq!(is, expected, "{line}\n{outcome}");
    };
    gives("rankrun", &[(0, 0), (0, 1), (1, 0), (1, 1)]);
    gives("rankrun --devices 3,1", &[(1, 1), (0, 1)]);
    gives("ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE rankrun", &[(0, 0), (1, 0)]);
    gives("ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE ZE_AFFINITY_MASK=1 rankrun", &[(1, 0)]);
    gives("ZE_AFFINITY_MASK=1 rankrun", &[(0, 1)]);
}

/// Level Zero counts in an order of its own, here against that of PCI.
#[test]
fn intel_unknown_order_leaves_device_to_driver() {
    if is_skipped() {
        return;
    }
    for tiles in [1, 2] {
        let machine = Machine::of_vendor(Vendor::Intel, 4, tiles).reported_backwards();
        let tree = MachineTree::new().intel(4, tiles as usize);
        // How many lines name a device: those of workers that are told theirs in the order of PCI.
        for (line, workers, naming) in [
            ("rankrun --nproc-per-node 4", 4, 0),
            ("ZE_AFFINITY_MASK=0,2 rankrun", 2, 0),
            ("ZE_AFFINITY_MASK=3 rankrun", 1, 0),
            ("ZE_AFFINITY_MASK=0,2 rankrun --devices 1", 1, 0),
            ("ZE_AFFINITY_MASK=0,2 rankrun --devices 1,0", 2, 0),
            ("ZE_AFFINITY_MASK=0,2 rankrun --device-visibility own", 2, 0),
            ("ZE_ENABLE_PCI_ID_DEVICE_ORDER=1 rankrun --nproc-per-node 4", 4, 4),
            ("ZE_ENABLE_PCI_ID_DEVICE_ORDER=1 ZE_AFFINITY_MASK=0,2 rankrun", 2, 2),
            ("ZE_ENABLE_PCI_ID_DEVICE_ORDER=1 ZE_AFFINITY_MASK=0,2 rankrun --devices 1,0", 2, 2),
            ("rankrun --devices 0,2", 2, 2),
            ("rankrun --devices 3,1", 2, 2),
            ("rankrun --nproc-per-node 4 --device-visibility own", 4, 4),
        ] {
            let outcome = run(line, &tree, &machine, "device=ze");
            let got = worker_devices(&outcome);
            assert_eq!((got.len(), outcome.lines_with("→").len()), (workers, workers), "{line}\n{outcome}");
            let address = |rank: usize| got[rank].identity.split('/').next().unwrap_or_default().to_owned();
            assert_eq!(assert_lines_are_true(&outcome, address), naming, "{line}\n{outcome}");
            let warnings = outcome.lines_with("ZE_ENABLE_PCI_ID_DEVICE_ORDER=1").len();
            assert_eq!(warnings, usize::from(naming == 0), "{line}\n{outcome}");
        }
    }
}

/// What is typed counts within the mask, in the driver's order.
#[test]
fn intel_index_within_mask_uses_driver_order() {
    if is_skipped() {
        return;
    }
    let machine = Machine::of_vendor(Vendor::Intel, 4, 1).reported_backwards();
    let tree = MachineTree::new().intel(4, 1);
    let gives = |line: &str, ordinals: &[usize]| {
        let outcome = run(line, &tree, &machine, "device=ze");
        let is: Vec<_> = worker_devices(&outcome).into_iter().map(|got| got.identity).collect();
        // The cards of this machine stand in the driver's order.
        let expected: Vec<_> = ordinals.iter().map(|at| format!("{}/0", machine.pci(*at))).collect();
        assert_eq!(is, expected, "{line}\n{outcome}");
    };
    gives("ZE_AFFINITY_MASK=0,2 rankrun", &[0, 2]);
    gives("ZE_AFFINITY_MASK=0,2 rankrun --devices 1", &[2]);
    gives("ZE_AFFINITY_MASK=0,2 rankrun --devices 1,0", &[2, 0]);
    gives("ZE_AFFINITY_MASK=0,2,3 rankrun --devices=-1", &[0, 3]);
    gives("ZE_AFFINITY_MASK=0,2 rankrun --devices all", &[0, 2]);
    // Which device has this address within the mask is not known.
    let by_address = format!("ZE_AFFINITY_MASK=0,2 rankrun --devices {}", machine.pci(0));
    let outcome =
        launch_from_line(&by_address).under(tree.stage()).on(&machine).worker(["print=started"]).run();
    outcome.expect_exit_code(1).expect_absent("started").expect_stderr("ZE_ENABLE_PCI_ID_DEVICE_ORDER=1");
}

/// A vendor without an order in its list: each worker gets its own device, and one line says why.
#[track_caller]
fn assert_own_visibility_fallback(outcome: &Outcome, variable: &str) {
    assert_visible_count(outcome, 1);
    assert!(worker_devices(outcome).iter().all(|got| got.local_rank == 0), "{outcome}");
    let lines = outcome.lines_with("own device");
    assert_eq!(lines.len(), 1, "one line tells it\n{outcome}");
    assert!(lines[0].contains(variable), "and says why\n{outcome}");
}

#[test]
fn unordered_mask_falls_back_to_own_visibility() {
    if is_skipped() {
        return;
    }
    let (tree, machine) = (MachineTree::new().intel(4, 1), Machine::of_vendor(Vendor::Intel, 4, 1));
    assert_own_visibility_fallback(
        &run("rankrun --devices 3,1", &tree, &machine, "device=ze"),
        "ZE_AFFINITY_MASK",
    );
    assert_visible_count(&run("rankrun --devices 1,3", &tree, &machine, "device=ze"), 2);
    let (tree, machine) = (MachineTree::new().ascend(4), Machine::of_vendor(Vendor::Ascend, 4, 1));
    assert_own_visibility_fallback(
        &run("rankrun --devices 3,1", &tree, &machine, "device=ascend"),
        "ASCEND_RT_VISIBLE_DEVICES",
    );
    assert_visible_count(&run("rankrun --devices 1,3", &tree, &machine, "device=ascend"), 2);
}

#[test]
fn ascend_devices_are_assigned() {
    if is_skipped() {
        return;
    }
    let (tree, machine) = (MachineTree::new().ascend(8), Machine::of_vendor(Vendor::Ascend, 8, 1));
    for (line, cards) in [
        ("rankrun --devices 1,3", vec!["1", "3"]),
        ("rankrun --devices 3,1", vec!["3", "1"]),
        ("ASCEND_RT_VISIBLE_DEVICES=1,3,8 rankrun", vec!["1", "3"]),
        // The list ends where it does not ascend.
        ("ASCEND_RT_VISIBLE_DEVICES=3,1 rankrun", vec!["3"]),
        ("ASCEND_RT_VISIBLE_DEVICES=1,3,5 rankrun --devices 2,0", vec!["5", "1"]),
        ("ASCEND_RT_VISIBLE_DEVICES=1,3 torchrun --nproc-per-node npu", vec!["1", "3"]),
    ] {
        let outcome = run(line, &tree, &machine, "device=ascend");
        let is: Vec<_> = worker_devices(&outcome).into_iter().map(|got| got.identity).collect();
        assert_eq!(is, cards, "{line}\n{outcome}");
        let named = if line.contains("torchrun") { 0 } else { cards.len() };
        // The kernel does not say which address an NPU has.
        let card = |rank: usize| format!("NPU {} ", cards[rank]);
        assert_eq!(assert_lines_are_true(&outcome, card), named, "{line}\n{outcome}");
    }
}

/// Habana's variable names places on the board; the card at index `n` has the place `count - 1 - n`. Its runtime has no
/// list to ask, so this reads the variable.
#[test]
fn habana_modules_are_assigned() {
    if is_skipped() {
        return;
    }
    let tree = MachineTree::new().habana(8);
    let slots = Machine::of_vendor(Vendor::Ascend, 8, 1);
    let modules = |line: &str| -> Vec<String> {
        let outcome = launch_from_line(line).under(tree.stage()).worker(["env"]).run();
        outcome.expect_exit_code(0);
        let of_rank = |rank: usize, name: &str| {
            let prefix = format!("env{rank} {name}=");
            outcome.stdout_lines().iter().find_map(|line| Some(line.strip_prefix(&prefix)?.to_owned()))
        };
        let ranks = outcome.lines_with("LOCAL_RANK=").len();
        // The vendor's bridge takes the module at the place of its local rank; without a list the number is the rank.
        let module = |rank: usize| -> usize {
            let local: usize =
                of_rank(rank, "LOCAL_RANK").and_then(|text| text.parse().ok()).expect("a rank");
            let list = of_rank(rank, "HABANA_VISIBLE_MODULES");
            list.map_or(local, |list| {
                list.split(',').nth(local).and_then(|text| text.parse().ok()).expect("a module")
            })
        };
        assert_eq!(
            assert_lines_are_true(&outcome, |rank| slots.pci(7 - module(rank))),
            ranks,
            "{line}\n{outcome}"
        );
        (0..ranks).filter_map(|rank| of_rank(rank, "HABANA_VISIBLE_MODULES")).collect()
    };
    assert_eq!(modules("rankrun"), [""; 0]);
    assert_eq!(modules("rankrun --devices 0,7"), ["7", "0"]);
    assert_eq!(modules("rankrun --devices 7,6"), ["0,1", "0,1"]);
    assert_eq!(modules("rankrun --devices 7,6 --device-visibility own").len(), 2);
    assert_eq!(modules("HABANA_VISIBLE_MODULES=2,3 rankrun"), ["2,3", "2,3"]);
}

/// Several vendors in one machine: the user says which.
#[test]
fn two_vendors_without_device_type_are_refused() {
    if is_skipped() {
        return;
    }
    let machine = Machine::gpus(2).and(Machine::of_vendor(Vendor::Amd, 3, 1));
    let tree = MachineTree::new().amd(3);
    assert_visible_count(&run("rankrun --device-type rocm", &tree, &machine, "device=hip"), 3);
    assert_visible_count(&run("rankrun --device-type rocm --devices 2,0", &tree, &machine, "device=hip"), 2);
    assert_visible_count(&run("rankrun --device-type cuda", &tree, &machine, "device=cuda"), 2);
    assert_visible_count(&run("rankrun --nproc-per-node gpu", &tree, &machine, "device=cuda"), 2);
    for line in ["rankrun", "rankrun --devices 1"] {
        let outcome = launch_from_line(line).under(tree.stage()).on(&machine).worker(["print=started"]).run();
        outcome.expect_exit_code(1).expect_absent("started");
        outcome.expect_stderr("--device-type cuda").expect_stderr("--device-type rocm");
    }
}
