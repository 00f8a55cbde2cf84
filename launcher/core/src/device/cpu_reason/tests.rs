//! Reasons from variables and snapshots made by hand.

use std::ffi::OsString;

use super::*;
use crate::device::ProbeProblemKind;
use crate::device::fake;

fn probe_problem(kind: DeviceType, source: &str, why: &str) -> ProbeProblem {
    ProbeProblem { kind, source: source.to_owned(), what: ProbeProblemKind::Missing(why.to_owned()) }
}

fn with_problems(problems: Vec<ProbeProblem>) -> Machine {
    Machine { troubles: problems, ..Machine::default() }
}

/// The reason under `NAME=value|NAME=value` with these device nodes; `quiet` where the CPUs are requested.
fn reason_text(
    variables: &str,
    machine: Option<&Machine>,
    nodes: &[DeviceType],
    warnings: &[ChoiceWarning],
) -> String {
    let variable = |name: &str| {
        let mut set = variables.split('|').filter_map(|variable| variable.split_once('='));
        set.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
    };
    let evidence = CpuFacts {
        variable: &variable,
        machine,
        warnings,
        device_nodes: nodes,
        has_accelerator_sign: !nodes.is_empty(),
    };
    find_cpu_reason(&evidence).unwrap_or_else(|| "quiet".to_owned())
}

#[test]
fn hidden_devices_mean_cpu_is_requested() {
    for (variables, is_quiet) in [
        ("CUDA_VISIBLE_DEVICES=", true),
        ("CUDA_VISIBLE_DEVICES= -1", true),
        ("HIP_VISIBLE_DEVICES=", true),
        ("ROCR_VISIBLE_DEVICES=0|HIP_VISIBLE_DEVICES=-1", true),
        ("ZE_AFFINITY_MASK=", true),
        ("HABANA_VISIBLE_MODULES=", true),
        ("ASCEND_RT_VISIBLE_DEVICES=-1", true),
        // The image's variable counts only where the user sets none.
        ("CUDA_VISIBLE_DEVICES=|NVIDIA_VISIBLE_DEVICES=all", true),
        // To ROCm an empty list of HIP's is an unset one.
        ("ROCR_VISIBLE_DEVICES=0|HIP_VISIBLE_DEVICES=", false),
        ("CUDA_VISIBLE_DEVICES=|HIP_VISIBLE_DEVICES=0", false),
        ("CUDA_VISIBLE_DEVICES=0|ROCR_VISIBLE_DEVICES=", false),
        // A container runtime writes these without being asked.
        ("NVIDIA_VISIBLE_DEVICES=void", false),
        ("NVIDIA_VISIBLE_DEVICES=", false),
        ("", false),
    ] {
        for machine in [None, Some(&Machine::default())] {
            let reason = reason_text(variables, machine, &[], &[]);
            assert_eq!(reason == "quiet", is_quiet, "{variables}: {reason}");
        }
    }
}

#[test]
fn unmet_list_names_driver_and_first_problem() {
    use DeviceType::{Cuda, Hpu, Rocm, Xpu};
    let nvml = || probe_problem(Cuda, "NVML", "libnvidia-ml.so.1: cannot open");
    let bare = with_problems(vec![nvml(), probe_problem(Rocm, "/sys/class/kfd", "no such folder")]);
    let listed =
        with_problems(vec![nvml(), probe_problem(Cuda, "/dev/nvidia0", "No such file or directory")]);
    let cuda = "`CUDA_VISIBLE_DEVICES=0,1` asks for devices, and ";
    for (variables, machine, nodes, expected) in [
        ("CUDA_VISIBLE_DEVICES=0,1", None, vec![], "the NVIDIA driver is missing: no `/dev/nvidiactl`"),
        (
            "CUDA_VISIBLE_DEVICES=0,1",
            Some(&bare),
            vec![],
            "the NVIDIA driver is missing: no `/dev/nvidiactl`; NVML is not there: libnvidia-ml.so.1: cannot open",
        ),
        (
            "CUDA_VISIBLE_DEVICES=0,1",
            Some(&bare),
            vec![Cuda],
            "`/dev/nvidiactl` is here, but NVML is not there: libnvidia-ml.so.1: cannot open",
        ),
        (
            "CUDA_VISIBLE_DEVICES=0,1",
            Some(&listed),
            vec![],
            "the NVIDIA driver is missing: no `/dev/nvidiactl`; /dev/nvidia0 is not there: No such file or directory",
        ),
        ("HIP_VISIBLE_DEVICES=2", Some(&bare), vec![], "the AMD driver is missing: no `/dev/kfd`"),
        ("ZE_AFFINITY_MASK=2", Some(&bare), vec![Xpu], "`/dev/dri` is here, but no device answers"),
        ("HABANA_VISIBLE_DEVICES=2", None, vec![Hpu], "`/dev/accel` is here, but no device answers"),
        (
            "CUDA_VISIBLE_DEVICES=0,1",
            Some(&fake::cuda(2)),
            vec![Cuda],
            "none of the cuda devices here is in it",
        ),
    ] {
        let asks = match variables.starts_with("CUDA") {
            true => cuda.to_owned(),
            false => format!("`{variables}` asks for devices, and "),
        };
        let way_out =
            if nodes.is_empty() { "start the container or job step with" } else { "`rankrun devices` shows" };
        let reason = reason_text(variables, machine, &nodes, &[]);
        assert!(reason.starts_with(&format!("{asks}{expected}; {way_out} ")), "{reason}");
        assert!(reason.ends_with(", or say `--device-type cpu` if CPUs are meant"), "{reason}");
    }
}

#[test]
fn dropped_entries_are_named_with_vendor_rule() {
    let dropped = |variable, value: &str, reason: &str| ChoiceWarning::Dropped {
        variable,
        value: OsString::from(value),
        because: reason.to_owned(),
    };
    let cuda = dropped("CUDA_VISIBLE_DEVICES", "5", "`5` is not an index of a device, which ends the list");
    let machine = fake::cuda(4);
    let expected =
        "`CUDA_VISIBLE_DEVICES=5` leaves no device: `5` is not an index of a device, which ends the list";
    let warnings = [cuda.clone()];
    let one = reason_text("CUDA_VISIBLE_DEVICES=5", Some(&machine), &[DeviceType::Cuda], &warnings);
    assert_eq!(one, format!("{expected}; compare with `rankrun devices`"));
    let both = [cuda, dropped("ROCR_VISIBLE_DEVICES", "9", "`9` names no device")];
    let both = reason_text("CUDA_VISIBLE_DEVICES=5|ROCR_VISIBLE_DEVICES=9", Some(&machine), &[], &both);
    assert_eq!(
        both,
        format!(
            "{expected}; `ROCR_VISIBLE_DEVICES=9` leaves no device: `9` names no device; compare with `rankrun devices`"
        )
    );
}

#[test]
fn machine_without_usable_device_names_obstacle() {
    use DeviceType::{Cuda, Npu, Rocm, Xpu};
    let missing = |kind, source: &str| probe_problem(kind, source, "no such file");
    let plain = with_problems(vec![
        missing(Cuda, "NVML"),
        missing(Xpu, "/dev/dri/renderD128"),
        missing(Npu, "/dev/davinci0"),
    ]);
    let mut laptop = fake::xpu(1, 1);
    laptop.accelerators[0].integrated = true;
    laptop.accelerators[0].name = "Intel Arc".to_owned();
    let mut sliced = fake::cuda(2);
    sliced.accelerators.iter_mut().for_each(|card| card.part = Part::MigParent);
    for (machine, nodes, expected) in [
        (None, vec![], "no accelerator is found: no driver library and no device node"),
        (Some(&plain), vec![], "no accelerator is found: no driver library and no device node"),
        (Some(&plain), vec![Xpu], "no accelerator is found"),
        (Some(&plain), vec![Cuda], "`/dev/nvidiactl` is here, but NVML is not there: no such file"),
        (
            Some(&with_problems(vec![missing(Cuda, "NVML"), missing(Rocm, "/dev/kfd")])),
            vec![],
            "the kernel lists a rocm device, but /dev/kfd is not there: no such file",
        ),
        (
            Some(&laptop),
            vec![Xpu],
            "the processor's own GPU (xpu 0, Intel Arc) is used only where `--device-type xpu` asks for it",
        ),
        (Some(&sliced), vec![Cuda], "every GPU is in MIG mode and has no instances"),
    ] {
        assert_eq!(reason_text("", machine, &nodes, &[]), expected);
    }
}
