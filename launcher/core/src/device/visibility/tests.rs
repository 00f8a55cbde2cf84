use super::*;
use crate::device::fake::{self, device_numbers, environment};

/// The devices that a process with these variables sees, and the number of warnings if there are any.
fn visible_text(machine: &str, variables: &str) -> String {
    visible_text_with_order(machine, variables, IndexOrder::Runtime)
}

fn visible_text_with_order(machine: &str, variables: &str, counting: IndexOrder) -> String {
    let machine = fake::machine(machine);
    let kind = machine.accelerators[0].kind;
    let cuda_order = || Ok(fake::mixed_cuda_order(&machine));
    let visible = read_visible_devices(kind, &machine, &environment(variables), counting, &cuda_order);
    let devices = match device_numbers(visible.devices.iter().map(|device| &device.accelerator)).as_str() {
        "cpu" => "none".to_owned(),
        devices => devices.to_owned(),
    };
    match visible.warnings.len() {
        0 => devices,
        warnings => format!("{devices} !{warnings}"),
    }
}

/// Machine, variables, what is visible in which order and how many warnings there are. The rows of
/// `docs/dev/device-selection.md` first.
const VECTORS: &[(&str, &str, &str)] = &[
    ("cuda 4", "", "0 1 2 3"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=", "none"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=3,1", "3 1"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=0,2,-1,1", "0 2 !1"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=0,7,1", "0 !1"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=-1", "none"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=NoDevFiles", "none"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=1,1", "none !1"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES= 1gpu,2x", "1 2 !1"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=0-2", "0 !1"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=GPU-a000", "none !1"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=GPU-a0003030-1111-2222-3333-444455556666,1", "2 !1"),
    ("rocm 4", "ROCR_VISIBLE_DEVICES=", "none"),
    ("rocm 4", "ROCR_VISIBLE_DEVICES=0,0,1", "0 !1"),
    ("rocm 4", "ROCR_VISIBLE_DEVICES=0x2", "2"),
    ("rocm 4", "HIP_VISIBLE_DEVICES=0,0,1", "0 1 !1"),
    ("rocm 4", "HIP_VISIBLE_DEVICES=0, 1", "0 !1"),
    ("rocm 4", "HIP_VISIBLE_DEVICES=|CUDA_VISIBLE_DEVICES=1", "1"),
    ("rocm 4", "ROCR_VISIBLE_DEVICES=2,3|HIP_VISIBLE_DEVICES=1", "3"),
    ("xpu 4", "ZE_AFFINITY_MASK=3,1", "1 3 !1"),
    ("xpu 2x2", "ZE_FLAT_DEVICE_HIERARCHY=FLAT|ZE_AFFINITY_MASK=1", "1"),
    ("xpu 2x2", "ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE|ZE_AFFINITY_MASK=1", "1"),
    ("npu 8", "ASCEND_RT_VISIBLE_DEVICES=1, 2,3", "1 !1"),
    ("npu 8", "ASCEND_RT_VISIBLE_DEVICES=1,3,8", "1 3 !1"),
    // CUDA, beyond the document.
    ("cuda 4", "CUDA_VISIBLE_DEVICES=GPU-a0002,GPU-a0001", "1 0"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=GPU-a0002,GPU-a00020", "none !1"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=GPU-", "none !1"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=0,1,", "0 1"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=99999999999999999999", "none !1"),
    ("mixed", "", "3 1 0 2"),
    ("mixed", "CUDA_VISIBLE_DEVICES=0,2", "3 0"),
    ("mixed", "CUDA_DEVICE_ORDER=PCI_BUS_ID|CUDA_VISIBLE_DEVICES=0,2", "0 2"),
    ("mixed", "CUDA_DEVICE_ORDER=PCI_BUS_ID", "0 1 2 3"),
    ("mixed", "CUDA_DEVICE_ORDER=FASTEST_FIRST", "3 1 0 2"),
    ("mig", "CUDA_VISIBLE_DEVICES=MIG-10000000-aaaa-bbbb-cccc-dddddddddddd", "0:1"),
    ("mig", "CUDA_VISIBLE_DEVICES=MIG-1", "none !1"),
    ("mig", "CUDA_VISIBLE_DEVICES=0", "0:0"),
    ("mig", "CUDA_VISIBLE_DEVICES=1,2", "1 !1"),
    ("mig", "", "0:0 0:1 1"),
    // ROCm.
    ("rocm 4", "", "0 1 2 3"),
    ("rocm 4", "CUDA_VISIBLE_DEVICES=", "0 1 2 3"),
    ("rocm 4", "HIP_VISIBLE_DEVICES=-1", "none"),
    ("rocm 4", "HIP_VISIBLE_DEVICES=+1", "none !1"),
    ("rocm 4", "ROCR_VISIBLE_DEVICES= gpu-1c2d000000000030 , 03", "2 3"),
    ("rocm 4", "ROCR_VISIBLE_DEVICES=GPU-1c2d", "none !1"),
    ("rocm 4", "ROCR_VISIBLE_DEVICES=3,2x,1", "3 !1"),
    ("rocm 4", "ROCR_VISIBLE_DEVICES=3,++2", "3 !1"),
    ("rocm 4", "HIP_VISIBLE_DEVICES=GPU-1c2d000000000020,0", "1 0"),
    ("rocm 4", "HIP_VISIBLE_DEVICES=2|CUDA_VISIBLE_DEVICES=1", "2"),
    ("rocm 4", "ROCR_VISIBLE_DEVICES=0,9|HIP_VISIBLE_DEVICES=0,1", "0 !2"),
    // Intel.
    ("xpu 2x2", "", "0 1 2 3"),
    ("xpu 2x2", "ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE", "0 1"),
    ("xpu 2x2", "ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE|ZE_AFFINITY_MASK=1.1", "3"),
    ("xpu 2x2", "ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE|ZE_AFFINITY_MASK=0,1.2", "0 !1"),
    ("xpu 2x2", "ZE_FLAT_DEVICE_HIERARCHY=COMBINED|ZE_AFFINITY_MASK=3,0.1", "3 !1"),
    ("xpu 4", "ZE_AFFINITY_MASK=", "0 1 2 3"),
    ("xpu 4", "ZE_AFFINITY_MASK=2,2,x,-1", "2 !1"),
    // Gaudi: module 7 is device 0.
    ("hpu 8", "", "7 6 5 4 3 2 1 0"),
    ("hpu 8", "HABANA_VISIBLE_MODULES=0,1", "7 6"),
    ("hpu 8", "HABANA_VISIBLE_MODULES=1,0", "6 7 !1"),
    ("hpu 8", "HABANA_VISIBLE_MODULES=0,9,0", "7 !1"),
    ("hpu 8", "HABANA_VISIBLE_MODULES=", "7 6 5 4 3 2 1 0"),
    // Ascend.
    ("npu 8", "ASCEND_RT_VISIBLE_DEVICES=", "none"),
    ("npu 8", "ASCEND_RT_VISIBLE_DEVICES=-1", "none"),
    ("npu 8", "ASCEND_RT_VISIBLE_DEVICES=3,1", "3 !1"),
    ("npu 8", "ASCEND_RT_VISIBLE_DEVICES=1,3,2,5", "1 3 !1"),
    ("npu 8", "ASCEND_RT_VISIBLE_DEVICES=1,1,2", "1 !1"),
    ("npu 8", "ASCEND_RT_VISIBLE_DEVICES=1x,2", "1 !1"),
];

#[test]
fn each_variable_follows_vendor_rules() {
    for (machine, variables, expected) in VECTORS {
        assert_eq!(visible_text(machine, variables), *expected, "{machine}, {variables}");
    }
}

/// GPU 0 has two MIG devices, GPU 1 is whole, GPU 2 has none.
#[test]
fn torch_index_order_counts_mig_parents() {
    let sees = |variables: &str| visible_text_with_order("mig", variables, IndexOrder::Torch);
    assert_eq!(sees(""), "0:0 1 2");
    let [first, second] = [0, 1].map(|index| format!("MIG-{index}0000000-aaaa-bbbb-cccc-dddddddddddd"));
    assert_eq!(sees(&format!("CUDA_VISIBLE_DEVICES={second},{first}")), "0:1");
    assert_eq!(sees(&format!("CUDA_VISIBLE_DEVICES={first}")), "0:0");
    assert_eq!(sees("CUDA_VISIBLE_DEVICES=1,0"), "1 0:0");
    for (machine, variables, expected) in VECTORS.iter().filter(|(machine, ..)| *machine != "mig") {
        assert_eq!(
            visible_text_with_order(machine, variables, IndexOrder::Torch),
            *expected,
            "{machine}, {variables}"
        );
    }
}

#[test]
fn composite_card_has_memory_of_all_tiles() {
    let machine = fake::xpu(2, 2);
    let visible = read_visible_devices(
        DeviceType::Xpu,
        &machine,
        &environment("ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE"),
        IndexOrder::Runtime,
        &|| Err(String::new()),
    );
    let memory = visible.devices[0].accelerator.memory.unwrap();
    assert_eq!((memory.total, memory.free), (160 << 30, Some(160 << 30)));
    assert_eq!(visible.devices[1].position, 2);
    let masked = environment("ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE|ZE_AFFINITY_MASK=1");
    let visible =
        read_visible_devices(DeviceType::Xpu, &machine, &masked, IndexOrder::Runtime, &|| Err(String::new()));
    assert_eq!(visible.devices.iter().map(|device| device.position).collect::<Vec<_>>(), [2]);
}

#[test]
fn single_visible_tile_has_tile_label() {
    let machine = fake::xpu(2, 2);
    let mask = environment("ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE|ZE_AFFINITY_MASK=0.1,1");
    let visible =
        read_visible_devices(DeviceType::Xpu, &machine, &mask, IndexOrder::Runtime, &|| Err(String::new()));
    let labels: Vec<String> =
        visible.devices.iter().map(|device| crate::device::choice::label(&device.accelerator)).collect();
    assert!(labels[0].starts_with("tile 1 ") && labels[1].starts_with("GPU 1 "), "{labels:?}");
}

#[test]
fn integrated_gpu_counts_in_mask_and_hides_beside_discrete() {
    let mut machine = fake::xpu(3, 1);
    machine.accelerators[0].pci = Some("0000:00:02.0".parse().unwrap());
    machine.accelerators[0].integrated = true;
    let at = |variables: &str| {
        let visible = read_visible_devices(
            DeviceType::Xpu,
            &machine,
            &environment(variables),
            IndexOrder::Runtime,
            &|| Err(String::new()),
        );
        visible.devices.iter().map(|device| device.position).collect::<Vec<_>>()
    };
    assert_eq!(at(""), [1, 2]);
    assert_eq!(at("ZE_AFFINITY_MASK=0,1"), [1]);
    assert_eq!(at("ZE_AFFINITY_MASK=0"), [0]);
}

#[test]
fn cuda_driver_is_queried_only_if_order_matters() {
    let machine = fake::mixed_cuda();
    let queries_driver = |variables: &str, counting: IndexOrder| {
        let was_queried = std::cell::Cell::new(false);
        let cuda_order = || {
            was_queried.set(true);
            Err("it hangs".to_owned())
        };
        let visible =
            read_visible_devices(DeviceType::Cuda, &machine, &environment(variables), counting, &cuda_order);
        assert_eq!(visible.order_unknown, was_queried.get().then(|| "it hangs".to_owned()), "{variables}");
        was_queried.get()
    };
    assert!(queries_driver("", IndexOrder::Runtime));
    assert!(queries_driver("CUDA_VISIBLE_DEVICES=0,2", IndexOrder::Named));
    assert!(queries_driver("CUDA_DEVICE_ORDER=FASTEST_FIRST", IndexOrder::Typed));
    assert!(!queries_driver("", IndexOrder::Typed));
    assert!(!queries_driver("", IndexOrder::Named));
    assert!(!queries_driver("CUDA_DEVICE_ORDER=FASTEST_FIRST", IndexOrder::Named));
    assert!(!queries_driver("CUDA_DEVICE_ORDER=PCI_BUS_ID|CUDA_VISIBLE_DEVICES=0,2", IndexOrder::Runtime));
    assert!(!queries_driver("CUDA_VISIBLE_DEVICES=GPU-a0001", IndexOrder::Runtime));
    assert!(!queries_driver("CUDA_VISIBLE_DEVICES=", IndexOrder::Runtime));
}

#[test]
fn cuda_devices_match_by_uuid_then_pci_address() {
    let machine = fake::mixed_cuda();
    let mut driver = fake::cuda_order(&machine, &[2, 3]);
    driver[0].uuid = "GPU-of-another-spelling".to_owned();
    let cuda_order = || Ok(driver.clone());
    let visible = read_visible_devices(
        DeviceType::Cuda,
        &machine,
        &InheritedVariables::default(),
        IndexOrder::Runtime,
        &cuda_order,
    );
    // Those that it does not name come last, in PCI order.
    assert_eq!(visible.devices.iter().map(|device| device.position).collect::<Vec<_>>(), [2, 3, 0, 1]);
    let foreign = || Ok(fake::cuda_order(&fake::rocm(1), &[0]));
    let mut elsewhere = machine.clone();
    elsewhere.accelerators.iter_mut().for_each(|card| card.pci = None);
    assert!(
        read_visible_devices(
            DeviceType::Cuda,
            &elsewhere,
            &InheritedVariables::default(),
            IndexOrder::Runtime,
            &foreign
        )
        .order_unknown
        .is_some()
    );
}

#[test]
fn intel_order_is_unknown_without_pci_order_variable() {
    let machine = fake::xpu(2, 1);
    let unknown = |variables: &str, counting: IndexOrder| {
        read_visible_devices(DeviceType::Xpu, &machine, &environment(variables), counting, &|| {
            Err(String::new())
        })
        .order_unknown
        .is_some()
    };
    assert!(unknown("", IndexOrder::Runtime));
    assert!(unknown("ZE_AFFINITY_MASK=1", IndexOrder::Named));
    assert!(!unknown("", IndexOrder::Typed));
    assert!(!unknown("ZE_ENABLE_PCI_ID_DEVICE_ORDER=1", IndexOrder::Runtime));
    assert!(!unknown("ZE_ENABLE_PCI_ID_DEVICE_ORDER=1|ZE_AFFINITY_MASK=1", IndexOrder::Runtime));
    assert_eq!(
        read_visible_devices(
            DeviceType::Xpu,
            &fake::xpu(1, 2),
            &InheritedVariables::default(),
            IndexOrder::Runtime,
            &|| Err(String::new())
        )
        .order_unknown,
        None
    );
    assert!(!unknown("ZE_AFFINITY_MASK=1|ZE_ENABLE_PCI_ID_DEVICE_ORDER=1", IndexOrder::Runtime));
}
