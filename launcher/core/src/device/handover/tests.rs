use proptest::prelude::*;

use super::*;
use crate::device::choice::tests::properties::{picked_indices, typed_request, worlds};
use crate::device::fake::{self, device_numbers, environment, request, with_variables};
use crate::device::visibility::{self, IndexOrder};
use crate::device::{Accelerator, Machine};

/// Variables as `A=1 -B`, the second taken away.
fn render(variables: &[(&'static str, Option<OsString>)]) -> String {
    let texts: Vec<String> = variables
        .iter()
        .map(|(name, value)| match value {
            Some(value) => format!("{name}={}", value.to_str().unwrap()),
            None => format!("-{name}"),
        })
        .collect();
    texts.join(" ")
}

fn make_handover(
    machine: &str,
    variables: &str,
    options: &str,
    workers: u32,
    visibility: Visibility,
) -> DeviceChoice {
    let inherited = environment(variables);
    let choice = fake::choose(&fake::machine(machine), &inherited, &request(options)).unwrap();
    assign(choice, &inherited, workers, Some(visibility))
}

/// Machine, inherited variables, command line, and the variables of worker 0 of two that see the whole list.
const WRITTEN: &[(&str, &str, &str, &str)] = &[
    ("cuda 4", "", "", ""),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=3,1", "", ""),
    ("cuda 4", "", "--devices 3,1", "CUDA_VISIBLE_DEVICES=3,1 CUDA_DEVICE_ORDER=PCI_BUS_ID"),
    (
        "cuda 4",
        "CUDA_VISIBLE_DEVICES=3,1",
        "--devices 1",
        "CUDA_VISIBLE_DEVICES=1 CUDA_DEVICE_ORDER=PCI_BUS_ID",
    ),
    (
        "mixed",
        "CUDA_VISIBLE_DEVICES=0,1",
        "--devices 1,0",
        "CUDA_VISIBLE_DEVICES=1,3 CUDA_DEVICE_ORDER=PCI_BUS_ID",
    ),
    ("cuda 4", "", "--device-order pci", "CUDA_VISIBLE_DEVICES=0,1,2,3 CUDA_DEVICE_ORDER=PCI_BUS_ID"),
    ("cuda 4", "", "--devices 40:00.0", "CUDA_VISIBLE_DEVICES=3 CUDA_DEVICE_ORDER=PCI_BUS_ID"),
    ("cuda 4", "", "--devices GPU-a0004", "CUDA_VISIBLE_DEVICES=GPU-a0004040-1111-2222-3333-444455556666"),
    ("cuda 4", "", "--devices GPU-a0004,1", "CUDA_VISIBLE_DEVICES=3,1 CUDA_DEVICE_ORDER=PCI_BUS_ID"),
    (
        "cuda 4",
        "CUDA_VISIBLE_DEVICES=GPU-a0004,GPU-a0001",
        "--devices 1,0",
        "CUDA_VISIBLE_DEVICES=GPU-a0001010-1111-2222-3333-444455556666,GPU-a0004040-1111-2222-3333-444455556666",
    ),
    // An index is in doubt where a card is in MIG mode.
    ("mig", "", "--devices 1", "CUDA_VISIBLE_DEVICES=GPU-a0002020-1111-2222-3333-444455556666"),
    ("mig", "", "--devices 0:1", "CUDA_VISIBLE_DEVICES=MIG-10000000-aaaa-bbbb-cccc-dddddddddddd"),
    ("mig", "", "", "CUDA_VISIBLE_DEVICES=MIG-00000000-aaaa-bbbb-cccc-dddddddddddd"),
    ("rocm 4", "HIP_VISIBLE_DEVICES=3,1", "", ""),
    ("rocm 4", "", "--devices 3,1", "ROCR_VISIBLE_DEVICES=3,1"),
    (
        "rocm 4",
        "ROCR_VISIBLE_DEVICES=1,2,3|HIP_VISIBLE_DEVICES=2,0|CUDA_VISIBLE_DEVICES=0",
        "--devices 1,0",
        "ROCR_VISIBLE_DEVICES=1,3 -HIP_VISIBLE_DEVICES -CUDA_VISIBLE_DEVICES",
    ),
    ("rocm 4", "CUDA_VISIBLE_DEVICES=2,3", "--devices 1", "ROCR_VISIBLE_DEVICES=3 -CUDA_VISIBLE_DEVICES"),
    (
        "xpu 4",
        "",
        "--devices 1,3",
        "ZE_AFFINITY_MASK=1,3 ZE_FLAT_DEVICE_HIERARCHY=FLAT ZE_ENABLE_PCI_ID_DEVICE_ORDER=1",
    ),
    (
        "xpu 4",
        "",
        "--devices 3,1",
        "ZE_AFFINITY_MASK=3 ZE_FLAT_DEVICE_HIERARCHY=FLAT ZE_ENABLE_PCI_ID_DEVICE_ORDER=1",
    ),
    (
        "xpu 2x2",
        "ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE|ZE_AFFINITY_MASK=0,1.1",
        "--devices 1",
        "ZE_AFFINITY_MASK=1.1",
    ),
    (
        "xpu 2x2",
        "ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE|ZE_AFFINITY_MASK=0,1.1|ZE_ENABLE_PCI_ID_DEVICE_ORDER=1",
        "--devices 1",
        "ZE_AFFINITY_MASK=1.1 ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE ZE_ENABLE_PCI_ID_DEVICE_ORDER=1",
    ),
    ("xpu 4", "ZE_AFFINITY_MASK=3,1", "", ""),
    ("hpu 8", "", "--devices 7,6", "HABANA_VISIBLE_MODULES=0,1"),
    ("hpu 8", "", "--devices 6,7", "HABANA_VISIBLE_MODULES=1"),
    ("npu 8", "", "--devices 1,3", "ASCEND_RT_VISIBLE_DEVICES=1,3"),
    ("npu 8", "", "--devices 3,1", "ASCEND_RT_VISIBLE_DEVICES=3"),
    ("npu 8", "ASCEND_RT_VISIBLE_DEVICES=3,1", "", ""),
    // CPUs.
    ("none", "", "", ""),
    ("none", "", "--devices none", ""),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=", "", ""),
    ("cuda 4", "", "--devices none", "CUDA_VISIBLE_DEVICES="),
    ("rocm 4", "", "--device-type cpu", "ROCR_VISIBLE_DEVICES= HIP_VISIBLE_DEVICES=-1"),
    (
        "rocm 4",
        "CUDA_VISIBLE_DEVICES=1",
        "--devices none",
        "ROCR_VISIBLE_DEVICES= HIP_VISIBLE_DEVICES=-1 -CUDA_VISIBLE_DEVICES",
    ),
    ("npu 8", "", "--devices none", "ASCEND_RT_VISIBLE_DEVICES=-1"),
    ("xpu 4", "", "--devices none", ""),
];

#[test]
fn visibility_variables_match_table() {
    for (machine, variables, options, expected) in WRITTEN {
        let handover = make_handover(machine, variables, options, 2, Visibility::Whole);
        let row = format!("{machine} | {variables} | {options}");
        assert_eq!(render(&handover.workers[0].variables), *expected, "{row}");
    }
}

#[test]
fn inexpressible_order_forces_own_visibility() {
    let visibility = |machine: &str, options: &str| {
        let handover = make_handover(machine, "", options, 2, Visibility::Whole);
        assert_eq!(handover.forced_own_reason.is_some(), handover.visibility == Visibility::Own);
        assert_eq!(handover.workers[1].ordinal, u32::from(handover.visibility == Visibility::Whole));
        handover.visibility
    };
    assert_eq!(visibility("xpu 4", "--devices 1,3"), Visibility::Whole);
    assert_eq!(visibility("xpu 4", "--devices 3,1"), Visibility::Own);
    assert_eq!(visibility("npu 8", "--devices 3,1"), Visibility::Own);
    assert_eq!(visibility("npu 8", "--devices 1,3"), Visibility::Whole);
    assert_eq!(visibility("hpu 8", "--devices 0,1"), Visibility::Own);
    assert_eq!(visibility("mig", "--devices 0:0,0:1"), Visibility::Own);
    assert_eq!(visibility("cuda 4", "--devices 3,1"), Visibility::Whole);
    assert_eq!(visibility("rocm 4", "--devices 3,1"), Visibility::Whole);
}

#[test]
fn own_visibility_gives_one_device_with_ordinal_0() {
    let handover = make_handover("cuda 4", "CUDA_VISIBLE_DEVICES=3,1", "", 2, Visibility::Own);
    let worker = |place: usize| {
        let worker = &handover.workers[place];
        let identity = worker.identity.as_ref();
        (identity.map(|device| device.position), worker.ordinal, render(&worker.variables))
    };
    assert_eq!(worker(0), (Some(3), 0, "CUDA_VISIBLE_DEVICES=3 CUDA_DEVICE_ORDER=PCI_BUS_ID".to_owned()));
    assert_eq!(worker(1), (Some(1), 0, "CUDA_VISIBLE_DEVICES=1 CUDA_DEVICE_ORDER=PCI_BUS_ID".to_owned()));
    assert_eq!(handover.forced_own_reason, None);
    // The only device that is visible anyway needs no words.
    let alone = make_handover("cuda 4", "CUDA_VISIBLE_DEVICES=3", "", 1, Visibility::Own);
    assert_eq!(render(&alone.workers[0].variables), "");
}

#[test]
fn excess_workers_share_devices_round_robin() {
    let handover = make_handover("cuda 4", "", "--devices 3,1", 5, Visibility::Whole);
    let devices = handover.workers.iter().filter_map(|worker| worker.identity.as_ref());
    assert_eq!(devices.map(|device| device.position).collect::<Vec<_>>(), [3, 1, 3, 1, 3]);
    assert_eq!(handover.visibility, Visibility::Own);
    assert!(handover.forced_own_reason.is_some());
    assert!(handover.workers.iter().all(|worker| worker.ordinal == 0));
    let third = "CUDA_VISIBLE_DEVICES=3 CUDA_DEVICE_ORDER=PCI_BUS_ID";
    assert_eq!(render(&handover.workers[2].variables), third);
}

#[test]
fn workers_on_cpus_have_no_device() {
    let handover = make_handover("none", "", "", 2, Visibility::Whole);
    assert_eq!(handover.workers, [0, 1].map(|rank| WorkerDevice::cpu(LocalRank(rank))));
}

#[test]
fn lost_card_makes_device_index_unreliable() {
    let mut machine = fake::cuda(3);
    machine.accelerators[0].condition = crate::device::Condition::Lost { why: "GPU is lost".to_owned() };
    let inherited = InheritedVariables::default();
    let choice = fake::choose(&machine, &inherited, &request("--devices 2")).unwrap();
    let handover = assign(choice, &inherited, 1, Some(Visibility::Whole));
    let expected = "CUDA_VISIBLE_DEVICES=GPU-a0003030-1111-2222-3333-444455556666";
    assert_eq!(render(&handover.workers[0].variables), expected);
}

#[test]
fn nvml_index_is_converted_to_pci_order() {
    let mut machine = fake::cuda(3);
    machine.accelerators[0].pci = Some("0000:f0:00.0".parse().unwrap());
    let inherited = InheritedVariables::default();
    let choice = fake::choose(&machine, &inherited, &request("--devices 0,1")).unwrap();
    let handover = assign(choice, &inherited, 2, Some(Visibility::Whole));
    let expected = "CUDA_VISIBLE_DEVICES=2,0 CUDA_DEVICE_ORDER=PCI_BUS_ID";
    assert_eq!(render(&handover.workers[0].variables), expected);
}

/// The devices that a process with these variables sees, and whether its vendor would drop or reorder any of them.
fn visible_devices(
    machine: &Machine,
    inherited: &InheritedVariables,
    kind: DeviceType,
) -> (Vec<Accelerator>, bool) {
    let cuda_order = || Ok(fake::mixed_cuda_order(machine));
    let visible =
        visibility::read_visible_devices(kind, machine, inherited, IndexOrder::Runtime, &cuda_order);
    let has_no_warning = visible.warnings.is_empty();
    (visible.devices.into_iter().map(|device| device.accelerator).collect(), has_no_warning)
}

proptest! {
    #[test]
    fn worker_variables_select_assigned_device(
        world in worlds(), picks in picked_indices(), workers in 1_u32..10, own in any::<bool>(),
    ) {
        let (request, _) = typed_request(&world, &picks);
        let choice = fake::choose(&world.machine, &world.inherited, &request).unwrap();
        prop_assume!(!choice.devices.is_empty());
        let visibility = if own { Visibility::Own } else { Visibility::Whole };
        let handover = assign(choice, &world.inherited, workers, Some(visibility));
        let devices = &handover.devices;
        for (local_rank, worker) in handover.workers.iter().enumerate() {
            let place = local_rank % devices.len();
            prop_assert!(worker.identity.as_ref().is_none_or(|device| *device == devices[place]));
            let (sees, smooth) = visible_devices(&world.machine, &with_variables(&world.inherited, &worker.variables), worker.kind);
            let shown = match handover.visibility {
                Visibility::Whole => &devices[..],
                Visibility::Own => &devices[place..=place],
            };
            let shown: Vec<Accelerator> = shown.iter().map(|device| device.accelerator.clone()).collect();
            prop_assert!(smooth || worker.variables.is_empty());
            prop_assert_eq!(device_numbers(&sees), device_numbers(&shown));
            prop_assert_eq!(&sees, &shown);
            prop_assert_eq!(&sees[usize::try_from(worker.ordinal).unwrap()], &devices[place].accelerator);
        }
    }

    #[test]
    fn cpu_worker_sees_only_devices_that_cannot_be_hidden(world in worlds()) {
        let choice = fake::choose(&world.machine, &world.inherited, &request("--devices none")).unwrap();
        let handover = assign(choice, &world.inherited, 1, Some(Visibility::Whole));
        let kind = world.machine.accelerators[0].kind;
        let (sees, _) = visible_devices(&world.machine, &with_variables(&world.inherited, &handover.workers[0].variables), kind);
        let hides = matches!(kind, DeviceType::Cuda | DeviceType::Rocm | DeviceType::Npu);
        prop_assert!(!hides || sees.is_empty());
    }
}
