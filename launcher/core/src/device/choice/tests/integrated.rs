//! Integrated GPUs: for the screen, and for a job only when named explicitly.

use super::*;

/// The choice on this machine with an integrated last device: `cuda 0 1`, or the error.
fn chosen(machine: &str, variables: &str, options: &str) -> String {
    let mut machine = fake::machine(machine);
    let last = machine.accelerators.last_mut().unwrap();
    last.integrated = true;
    last.pci = Some("0000:00:02.0".parse().unwrap());
    match fake::choose(&machine, &environment(variables), &request(options)) {
        Ok(choice) => {
            let numbers = fake::device_numbers(choice.devices.iter().map(|chosen| &chosen.accelerator));
            if choice.devices.is_empty() { numbers } else { format!("{} {numbers}", choice.kind) }
        }
        Err(error) => error.to_string(),
    }
}

#[test]
fn integrated_gpu_is_used_only_if_named() {
    for (machine, variables, options, expected) in [
        ("xpu 1", "", "", "cpu"),
        ("rocm 1", "", "", "cpu"),
        ("rocm 1", "CUDA_VISIBLE_DEVICES=0", "", "cpu"),
        ("xpu 1", "", "--device-type xpu", "xpu 0"),
        ("xpu 1", "", "--devices 0", "xpu 0"),
        ("xpu 1", "ZE_AFFINITY_MASK=0", "", "xpu 0"),
        ("rocm 1", "HIP_VISIBLE_DEVICES=0", "", "rocm 0"),
        ("cuda 2+xpu 1", "", "", "cuda 0 1"),
        ("cuda 2+rocm 1", "", "--devices 0-1", "cuda 0 1"),
        ("cuda 2+rocm 1", "", "--exclude-unhealthy", "cuda 0 1"),
        ("cuda 2+xpu 1", "CUDA_VISIBLE_DEVICES=", "", "cpu"),
        ("cuda 2+rocm 1", "CUDA_VISIBLE_DEVICES=", "", "cpu"),
        ("cuda 2+xpu 1", "", "--device-type xpu", "xpu 0"),
        ("cuda 2+xpu 1", "", "--devices 0000:00:02.0", "xpu 0"),
        ("cuda 2+xpu 1", "ZE_AFFINITY_MASK=0", "", "xpu 0"),
        ("cuda 2+xpu 1", "ZE_AFFINITY_MASK=0|CUDA_VISIBLE_DEVICES=1", "", "cuda 1"),
        ("rocm 3", "", "", "rocm 0 1"),
        ("rocm 3", "HIP_VISIBLE_DEVICES=2,0", "", "rocm 2 0"),
        ("rocm 3", "", "--devices 2,0", "rocm 2 0"),
    ] {
        assert_eq!(chosen(machine, variables, options), expected, "{machine}: {variables} {options}");
    }
    let hidden = chosen("cuda 2+xpu 1", "CUDA_VISIBLE_DEVICES=", "--devices 0");
    assert!(hidden.contains("CUDA_VISIBLE_DEVICES="), "{hidden}");
}

#[test]
fn dropped_variable_entries_give_one_warning() {
    for (machine, variables, taken) in [
        ("cuda 2+xpu 1", "CUDA_VISIBLE_DEVICES=9", "cpu"),
        ("cuda 2+rocm 1", "CUDA_VISIBLE_DEVICES=9", "cpu"),
        ("cuda 2+xpu 2", "CUDA_VISIBLE_DEVICES=9", "0"),
    ] {
        let mut machine = fake::machine(machine);
        machine.accelerators.last_mut().unwrap().integrated = true;
        let choice = fake::choose(&machine, &environment(variables), &ChoiceRequest::default()).unwrap();
        assert_eq!(fake::device_numbers(choice.devices.iter().map(|chosen| &chosen.accelerator)), taken);
        let dropped =
            choice.warnings.iter().filter(|warning| matches!(warning, ChoiceWarning::Dropped { .. })).count();
        assert_eq!(dropped, 1, "{variables}: {:?}", choice.warnings);
    }
}
