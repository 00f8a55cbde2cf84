//! Choices with warnings, and the text of the warnings.

use super::*;
use crate::device::Memory;

fn warning_texts(machine: &Machine, variables: &str, options: &str) -> Vec<String> {
    let choice = fake::choose(machine, &environment(variables), &request(options)).unwrap();
    choice.warnings.iter().map(ToString::to_string).collect()
}

#[test]
fn invalid_inherited_entries_give_one_warning() {
    let machine = fake::cuda(4);
    assert_eq!(
        warning_texts(&machine, "CUDA_VISIBLE_DEVICES=1gpu,2x,9,0", ""),
        [
            "`CUDA_VISIBLE_DEVICES=1gpu,2x,9,0`: of `1gpu` only `1` is read; of `2x` only `2` is read; `9` is not an index of \
          a device, which ends the list"
        ]
    );
    assert_eq!(
        warning_texts(&machine, "CUDA_VISIBLE_DEVICES=1,1", ""),
        ["`CUDA_VISIBLE_DEVICES=1,1`: `1` is listed twice, which makes no device visible"]
    );
    assert_eq!(warning_texts(&machine, "CUDA_VISIBLE_DEVICES=", ""), [""; 0]);
}

#[test]
fn unknown_order_warns_if_variable_is_unchanged() {
    let machine = fake::mixed_cuda();
    let inherited = environment("CUDA_VISIBLE_DEVICES=0,2");
    let request = ChoiceRequest::default();
    let question = ChoiceInput {
        machine: &machine,
        inherited: &inherited,
        request: &request,
        unhealthy: &[],
        cuda_order: &|| Err("it hangs".to_owned()),
    };
    let choice = fake::choose_by(&question).unwrap();
    assert_eq!(
        choice.warnings,
        [ChoiceWarning::OrderUnknown { kind: DeviceType::Cuda, because: "it hangs".to_owned() }]
    );
    // A worker that sees one device gets the user's own number for it.
    let names: Vec<&str> = choice.devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!((names, choice.pinned), (vec!["0", "2"], Vec::new()));
}

#[test]
fn small_memory_card_gives_warning() {
    let machine = fake::mixed_cuda();
    assert_eq!(
        warning_texts(&machine, "", "--devices 2,1"),
        ["GPU 2 NVIDIA P4 (0000:30:00.0) has 8.0 GiB of memory, less than half of the largest's 24.0 GiB"]
    );
    assert_eq!(warning_texts(&machine, "", "--devices 0,2"), [""; 0]);
    // MIG devices are small on purpose.
    let mut mig = fake::mig();
    mig.accelerators[2].memory = Some(Memory { total: 5 << 30, free: None });
    let warnings = warning_texts(&mig, "", "--devices 0:0,0:1,1");
    assert!(!warnings.iter().any(|text| text.contains("less than half")), "{warnings:?}");
}

#[test]
fn mig_cards_without_instances_give_warning() {
    let expected =
        ["GPU 2 NVIDIA H100 (0000:30:00.0) is in MIG mode and has no instances: nothing can run on it"];
    assert_eq!(warning_texts(&fake::mig(), "", ""), expected);
    let mut parent_alone = fake::mig();
    parent_alone.accelerators.drain(..4);
    assert_eq!(warning_texts(&parent_alone, "", ""), expected);
}

#[test]
fn gaudi_modules_across_groups_give_warning() {
    let machine = fake::hpu(8);
    assert_eq!(warning_texts(&machine, "", "--devices 6,7"), [""; 0]);
    assert_eq!(warning_texts(&machine, "", "--devices 7-4"), [""; 0]);
    assert_eq!(warning_texts(&machine, "", "--devices 3"), [""; 0]);
    assert!(
        warning_texts(&machine, "", "--devices 5,6")[0].starts_with("Gaudi supports part of a node only as")
    );
}

#[test]
fn devices_visible_to_cpu_workers_give_warning() {
    let expected = ["the xpu devices stay visible to the workers: no value of `ZE_AFFINITY_MASK` means none"];
    assert_eq!(warning_texts(&fake::machine("cuda 1+xpu 1"), "", "--devices none"), expected);
    assert_eq!(warning_texts(&fake::machine("cuda 1+rocm 1+npu 1"), "", "--device-type cpu"), [""; 0]);
}
