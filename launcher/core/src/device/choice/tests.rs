//! Tables of machines, variables and command lines.

mod errors;
mod integrated;
pub(crate) mod properties;
mod warnings;

use super::*;
use crate::device::SettingNames;
use crate::device::fake::{self, device_numbers, environment, request};

/// Machine, inherited variables, command line, and the chosen devices in the order of the ranks.
const MAPS: &[(&str, &str, &str, &str)] = &[
    // Nothing is said.
    ("cuda 4", "", "", "0 1 2 3"),
    ("none", "", "", "cpu"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=", "", "cpu"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=2,0", "", "2 0"),
    ("mixed", "", "", "3 1 0 2"),
    ("mixed", "CUDA_DEVICE_ORDER=PCI_BUS_ID", "", "0 1 2 3"),
    ("mixed", "CUDA_VISIBLE_DEVICES=1,2", "", "1 0"),
    ("mig", "", "", "0:0 0:1 1"),
    ("rocm 4", "HIP_VISIBLE_DEVICES=3,1", "", "3 1"),
    ("xpu 2x2", "", "", "0 1 2 3"),
    ("xpu 4", "ZE_AFFINITY_MASK=1,0", "", "0 1"),
    ("hpu 8", "", "", "7 6 5 4 3 2 1 0"),
    ("npu 8", "ASCEND_RT_VISIBLE_DEVICES=4,5", "", "4 5"),
    // Indices, ranges and exclusions; without a variable they are the vendor's tool's.
    ("cuda 4", "", "--devices 3,1", "3 1"),
    ("cuda 4", "", "--devices 0,2", "0 2"),
    ("cuda 4", "", "--devices 2,0", "2 0"),
    ("cuda 4", "", "--devices 1-3", "1 2 3"),
    ("cuda 4", "", "--devices 3-0", "3 2 1 0"),
    ("cuda 4", "", "--devices -2", "0 1 3"),
    ("cuda 4", "", "--devices -2,-0", "1 3"),
    ("cuda 8", "", "--devices -2-5", "0 1 6 7"),
    ("cuda 8", "", "--devices 0-7,-3", "0 1 2 4 5 6 7"),
    ("cuda 8", "", "--devices 7,0-3,-2", "7 0 1 3"),
    ("cuda 4", "", "--devices 0-3,-2,2", "0 1 3 2"),
    ("cuda 4", "", "--devices all", "0 1 2 3"),
    ("cuda 4", "", "--devices none", "cpu"),
    ("cuda 4", "", "--device-type cpu", "cpu"),
    ("cuda 4", "", "--device-type cpu --devices all", "cpu"),
    ("none", "", "--devices none", "cpu"),
    ("mixed", "", "--devices 0,3", "0 3"),
    ("mixed", "", "--devices all", "0 1 2 3"),
    ("hpu 8", "", "--devices 0,1", "0 1"),
    ("npu 8", "", "--devices 3,1", "3 1"),
    ("xpu 2x2", "", "--devices 3,0", "3 0"),
    ("xpu 2x2", "ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE", "--devices 1", "1"),
    // Names.
    ("cuda 4", "", "--devices GPU-a0003,GPU-a0001", "2 0"),
    ("cuda 4", "", "--devices gpu-A0003030", "2"),
    ("cuda 4", "", "--devices 0000:20:00.0,10:00.0", "1 0"),
    ("cuda 4", "", "--devices 00000000:40:00.0", "3"),
    ("cuda 4", "", "--devices -GPU-a0002", "0 2 3"),
    ("cuda 4", "", "--devices 3,GPU-a0001,20:00.0", "3 0 1"),
    ("rocm 4", "", "--devices GPU-1c2d000000000040,0", "3 0"),
    ("xpu 2x2", "", "--devices 20:00.0,0", "2 3 0"),
    // MIG.
    ("mig", "", "--devices 0:1", "0:1"),
    ("mig", "", "--devices 1,0:0", "1 0:0"),
    ("mig", "", "--devices MIG-1", "0:1"),
    ("mig", "", "--devices -0", "1"),
    ("mig", "", "--devices -0:0", "0:1 1"),
    ("mig", "CUDA_VISIBLE_DEVICES=MIG-10000000-aaaa-bbbb-cccc-dddddddddddd", "--devices 0", "0:1"),
    // Within what is inherited.
    ("cuda 4", "CUDA_VISIBLE_DEVICES=3,1", "--devices 0", "3"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=3,1", "--devices 1,0", "1 3"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=3,1,0", "--devices -0", "1 0"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=3,1", "--devices all", "3 1"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=3,1", "--devices GPU-a0002", "1"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=GPU-a0004,GPU-a0002", "--devices 1,0", "1 3"),
    ("mixed", "CUDA_VISIBLE_DEVICES=0,1", "--devices 1", "1"),
    ("mixed", "CUDA_VISIBLE_DEVICES=0,3", "--devices 1,0", "2 3"),
    ("mixed", "CUDA_DEVICE_ORDER=FASTEST_FIRST", "--devices 0", "3"),
    ("mixed", "CUDA_DEVICE_ORDER=FASTEST_FIRST", "--devices all", "3 1 0 2"),
    ("mixed", "CUDA_DEVICE_ORDER=PCI_BUS_ID", "--devices 0", "0"),
    ("mixed", "CUDA_DEVICE_ORDER=PCI_BUS_ID|CUDA_VISIBLE_DEVICES=2,3", "--devices 1-0", "3 2"),
    ("rocm 4", "ROCR_VISIBLE_DEVICES=2,3|HIP_VISIBLE_DEVICES=1,0", "--devices 1", "2"),
    ("rocm 4", "CUDA_VISIBLE_DEVICES=2,3", "--devices 1", "3"),
    ("xpu 4", "ZE_AFFINITY_MASK=3,1", "--devices 1,0", "3 1"),
    ("hpu 8", "HABANA_VISIBLE_MODULES=2,3", "--devices 1", "4"),
    ("npu 8", "ASCEND_RT_VISIBLE_DEVICES=2,5,6", "--devices 2,0", "6 2"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=0,2,-1,1", "--devices 1", "2"),
    // Orders.
    ("mixed", "", "--device-order pci", "0 1 2 3"),
    ("mixed", "", "--device-order fastest", "3 1 0 2"),
    ("mixed", "", "--devices 0-2 --device-order fastest", "1 0 2"),
    ("mixed", "", "--device-order free-memory", "3 1 0 2"),
    ("mixed", "", "--device-order as-listed", "0 1 2 3"),
    ("mixed", "CUDA_DEVICE_ORDER=FASTEST_FIRST", "--device-order as-listed", "3 1 0 2"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=3,1,2", "--device-order pci", "1 2 3"),
    ("cuda 4", "", "--devices 3,1 --device-order as-listed", "3 1"),
    // Types.
    ("cuda 2+xpu 2", "", "--device-type xpu", "0 1"),
    ("cuda 2+xpu 2", "", "--device-type xpu --devices 1", "1"),
    ("cuda 2+xpu 2", "ZE_AFFINITY_MASK=1", "", "1"),
    ("cuda 2+xpu 2", "CUDA_VISIBLE_DEVICES=", "", "0 1"),
    ("cuda 2+rocm 2", "HIP_VISIBLE_DEVICES=1", "", "1"),
    ("cuda 2+rocm 2", "", "--devices GPU-1c2d000000000020", "1"),
    ("cuda 2+rocm 2", "", "--device-type rocm --devices 1,0", "1 0"),
];

#[test]
fn chosen_devices_match_table() {
    assert!(MAPS.len() >= 60);
    for (machine, variables, options, expected) in MAPS {
        let row = format!("{machine} | {variables} | {options}");
        let choice = fake::choose(&fake::machine(machine), &environment(variables), &request(options));
        let choice = choice.unwrap_or_else(|error| panic!("{row}: {error}"));
        let chosen = device_numbers(choice.devices.iter().map(|device| &device.accelerator));
        assert_eq!(chosen, *expected, "{row}");
        assert_eq!(choice.kind == DeviceType::Cpu, *expected == "cpu", "{row}");
    }
}

#[test]
fn idle_selector_excludes_used_devices() {
    let mut machine = fake::cuda(5);
    fake::occupy(&mut machine.accelerators[1], 4711);
    for (card, used) in [(2, 30_u64 << 30), (3, 400 << 20)] {
        let memory = machine.accelerators[card].memory.as_mut().unwrap();
        memory.free = Some(memory.total - used);
    }
    machine.accelerators[4].memory = None;
    let idle =
        |machine: &Machine| fake::choose(machine, &InheritedVariables::default(), &request("--devices idle"));
    let chosen = idle(&machine).unwrap();
    assert_eq!(device_numbers(chosen.devices.iter().map(|device| &device.accelerator)), "0 3");
    machine.accelerators.drain(..1);
    machine.accelerators.remove(2);
    let reason = vec![
        "GPU 1 NVIDIA H100 (0000:20:00.0): process 4711 (python) uses it".to_owned(),
        "GPU 2 NVIDIA H100 (0000:30:00.0): 30720 MiB of its memory are in use".to_owned(),
        "GPU 4 NVIDIA H100 (0000:50:00.0): nothing is known about its use".to_owned(),
    ];
    let error = ChoiceError::NothingLeft { kind: DeviceType::Cuda, because: reason };
    assert_eq!(idle(&machine), Err(error));
}

#[test]
fn device_reports_its_selection_method() {
    let how = |machine: &str, variables: &str, options: &str| {
        let choice =
            fake::choose(&fake::machine(machine), &environment(variables), &request(options)).unwrap();
        choice.devices[0].how.describe(&SettingNames::default())
    };
    assert_eq!(how("cuda 4", "", ""), "all devices");
    assert_eq!(how("cuda 4", "CUDA_VISIBLE_DEVICES=3,1", ""), "CUDA_VISIBLE_DEVICES entry 3");
    assert_eq!(how("mixed", "CUDA_DEVICE_ORDER=PCI_BUS_ID", ""), "CUDA_DEVICE_ORDER");
    assert_eq!(how("cuda 4", "", "--devices 3"), "--devices 3");
    assert_eq!(how("cuda 4", "", "--devices -1,-2"), "--devices -1,-2");
    assert_eq!(
        how("cuda 4", "CUDA_VISIBLE_DEVICES=3,1", "--devices 0"),
        "--devices 0 within CUDA_VISIBLE_DEVICES"
    );
    assert_eq!(how("cuda 4", "", "--devices 0-3 --device-order pci"), "--devices 0-3, --device-order pci");
}

#[test]
fn explicit_request_clears_untouched_flag() {
    let untouched = |machine: &str, variables: &str, options: &str| {
        fake::choose(&fake::machine(machine), &environment(variables), &request(options))
            .unwrap()
            .is_untouched
    };
    assert!(untouched("cuda 4", "", ""));
    assert!(untouched("cuda 4", "CUDA_VISIBLE_DEVICES=3,1", "--device-type cuda"));
    assert!(untouched("cuda 4", "CUDA_VISIBLE_DEVICES=", ""));
    assert!(untouched("none", "", "--devices none"));
    assert!(untouched("mig", "CUDA_VISIBLE_DEVICES=MIG-10000000-aaaa-bbbb-cccc-dddddddddddd", ""));
    assert!(!untouched("mig", "", ""));
    assert!(!untouched("cuda 4", "", "--devices all"));
    assert!(!untouched("cuda 4", "", "--device-order as-listed"));
    assert!(!untouched("cuda 4", "", "--devices none"));
}
