//! Refused requests, and the text of their errors.

use super::*;
use crate::device::{Condition, ProbeProblem, ProbeProblemKind};

fn refused(machine: &str, variables: &str, options: &str) -> ChoiceError {
    refused_on(&fake::machine(machine), variables, options)
}

fn refused_on(machine: &Machine, variables: &str, options: &str) -> ChoiceError {
    let choice = fake::choose(machine, &environment(variables), &request(options));
    let error = choice.expect_err(&format!("{variables} | {options}"));
    assert!(error.hint().is_some_and(|hint| !hint.is_empty()));
    error
}

/// Machine, inherited variables, command line, and the first line of the error.
const REFUSED: &[(&str, &str, &str, &str)] = &[
    ("cuda 4", "", "--devices 9", "no cuda device has the index 9"),
    ("cuda 4", "", "--devices 2-4294967295", "no cuda device has the index 4"),
    ("cuda 4", "", "--devices 4294967295-0", "no cuda device has the index 4294967295"),
    ("cuda 4", "", "--devices -9", "no cuda device has the index 9"),
    (
        "cuda 4",
        "CUDA_VISIBLE_DEVICES=3,1",
        "--devices 3",
        "no cuda device has the index 3 within `CUDA_VISIBLE_DEVICES`",
    ),
    (
        "npu 8",
        "ASCEND_RT_VISIBLE_DEVICES=1",
        "--devices 1",
        "no npu device has the index 1 within `ASCEND_RT_VISIBLE_DEVICES`",
    ),
    ("cuda 4", "", "--devices GPU-a000", "`GPU-a000` fits 4 devices"),
    ("cuda 4", "", "--devices GPU-xyz", "no cuda device of this machine has the name `GPU-xyz`"),
    ("cuda 4", "", "--devices 0:3", "no cuda device of this machine has the name `0:3`"),
    ("cuda 4", "", "--devices 99:00.0", "no cuda device of this machine has the name `0000:99:00.0`"),
    (
        "cuda 4",
        "CUDA_VISIBLE_DEVICES=3",
        "--devices GPU-a0001",
        "GPU 0 NVIDIA H100 (0000:10:00.0) is hidden by `CUDA_VISIBLE_DEVICES=3`",
    ),
    ("cuda 4", "", "--devices 0-2,1", "`1` names GPU 1 NVIDIA H100 (0000:20:00.0) again"),
    ("cuda 4", "", "--devices 1,GPU-a0002", "`GPU-a0002` names GPU 1 NVIDIA H100 (0000:20:00.0) again"),
    ("cuda 4", "", "--devices -1,0", "`0` names GPU 0 NVIDIA H100 (0000:10:00.0) again"),
    (
        "cuda 4",
        "",
        "--devices 0,1,-2",
        "`-2` leaves out GPU 2 NVIDIA H100 (0000:30:00.0), which the list before it does not have",
    ),
    ("cuda 4", "", "--devices -0-3", "no cuda device is left"),
    ("cuda 4", "", "--devices 1,-1", "no cuda device is left"),
    (
        "mig",
        "",
        "--devices 0",
        "GPU 0 NVIDIA H100 (0000:10:00.0) is in MIG mode, and its instances are the devices",
    ),
    (
        "mig",
        "",
        "--devices 2",
        "GPU 2 NVIDIA H100 (0000:30:00.0) is in MIG mode, and its instances are the devices",
    ),
    (
        "mig",
        "",
        "--devices 10:00.0",
        "GPU 0 NVIDIA H100 (0000:10:00.0) is in MIG mode, and its instances are the devices",
    ),
    ("none", "", "--devices 0", "there is no accelerator"),
    ("none", "", "--devices all", "there is no accelerator"),
    ("none", "", "--device-type cuda", "there is no cuda device"),
    ("rocm 4", "", "--device-type cuda", "there is no cuda device"),
    ("cuda 4", "CUDA_VISIBLE_DEVICES=", "--devices 0", "`CUDA_VISIBLE_DEVICES=` hides every cuda device"),
    (
        "cuda 4",
        "CUDA_VISIBLE_DEVICES=-1",
        "--device-type cuda",
        "`CUDA_VISIBLE_DEVICES=-1` hides every cuda device",
    ),
    ("cuda 2+xpu 2", "", "", "this machine has devices of several types"),
    ("cuda 2+xpu 2", "", "--devices 0", "this machine has devices of several types"),
    (
        "cuda 2+xpu 2",
        "CUDA_VISIBLE_DEVICES=0|ZE_AFFINITY_MASK=0",
        "",
        "this machine has devices of several types",
    ),
    (
        "cuda 2+rocm 2",
        "",
        "--devices GPU-a0001,GPU-1c2d000000000010",
        "`GPU-a0001` is a cuda device and `GPU-1c2d000000000010` a rocm device",
    ),
    (
        "cuda 4",
        "",
        "--device-type cpu --devices 0",
        "accelerators cannot be chosen where the device type is `cpu`",
    ),
    (
        "cuda 4",
        "",
        "--device-order topology",
        "the order `topology`: the links between the devices are not known",
    ),
    (
        "cuda 2",
        "",
        "--device-order fastest",
        "the order `fastest`: the CUDA driver does not say which device is fastest: no driver here",
    ),
    (
        "rocm 4",
        "",
        "--device-order fastest",
        "the order `fastest`: only the CUDA driver says which device is fastest, and these are rocm devices",
    ),
];

#[test]
fn invalid_request_error_names_entry() {
    for (machine, variables, options, expected) in REFUSED {
        let error = refused(machine, variables, options).to_string();
        assert_eq!(error.lines().next(), Some(*expected), "{machine} | {variables} | {options}");
    }
}

#[test]
fn choice_error_lists_visible_devices() {
    let error = refused("cuda 4", "CUDA_VISIBLE_DEVICES=3,1", "--devices 2").to_string();
    let lines: Vec<&str> = error.lines().skip(1).collect();
    let uuid = |digits: &str| format!("GPU-{digits}-1111-2222-3333-444455556666");
    let expected = [
        format!("  0  NVIDIA H100  0000:40:00.0  {}", uuid("a0004040")),
        format!("  1  NVIDIA H100  0000:20:00.0  {}", uuid("a0002020")),
    ];
    assert_eq!(lines, expected);
    let mig = refused("mig", "", "--devices 0").to_string();
    assert!(mig.lines().nth(1).unwrap().starts_with("  0:0  NVIDIA H100 MIG 3g.40gb"), "{mig}");
}

#[test]
fn missing_device_type_reports_problems_and_alternatives() {
    let mut machine = fake::rocm(1);
    machine.troubles = vec![ProbeProblem {
        kind: DeviceType::Cuda,
        source: "NVML".to_owned(),
        what: ProbeProblemKind::Hung(5),
    }];
    let error = refused_on(&machine, "", "--device-type cuda");
    assert_eq!(error.to_string(), "there is no cuda device\n  NVML did not answer within 5 seconds");
    assert_eq!(error.hint().unwrap(), "devices of another type are here: `--device-type rocm`");
}

#[test]
fn unknown_driver_order_is_refused_if_order_matters() {
    let machine = fake::mixed_cuda();
    let choose_with = |variables: &str, options: &str| {
        fake::choose_by(&ChoiceInput {
            machine: &machine,
            inherited: &environment(variables),
            request: &request(options),
            unhealthy: &[],
            cuda_order: &|| Err("it hangs".to_owned()),
        })
    };
    let unknown = Err(ChoiceError::OrderUnknown { kind: DeviceType::Cuda, because: "it hangs".to_owned() });
    assert_eq!(choose_with("CUDA_VISIBLE_DEVICES=0,1", "--devices 0"), unknown);
    assert_eq!(choose_with("CUDA_VISIBLE_DEVICES=0,1", "--device-order pci"), unknown);
    assert_eq!(choose_with("CUDA_DEVICE_ORDER=FASTEST_FIRST", "--devices 0"), unknown);
    assert!(choose_with("CUDA_DEVICE_ORDER=FASTEST_FIRST", "--devices GPU-a0001").is_ok());
    assert!(choose_with("CUDA_VISIBLE_DEVICES=GPU-a0001", "--devices 0").is_ok());
    assert!(choose_with("", "--devices 0").is_ok());
    assert!(choose_with("", "--device-order pci").is_ok());
}

#[test]
fn unhealthy_device_is_refused_or_excluded() {
    let machine = fake::cuda(3);
    let unhealthy = [(1, "GPU is lost".to_owned())];
    let with = |options: &str, unhealthy: &[(usize, String)]| {
        fake::choose_by(&ChoiceInput {
            machine: &machine,
            inherited: &InheritedVariables::default(),
            request: &request(options),
            unhealthy,
            cuda_order: &unavailable_driver,
        })
    };
    let device = "GPU 1 NVIDIA H100 (0000:20:00.0)".to_owned();
    let reason = "GPU is lost".to_owned();
    assert_eq!(
        with("", &unhealthy),
        Err(ChoiceError::Unhealthy { device: device.clone(), because: reason.clone() })
    );
    assert_eq!(with("--devices 0,2", &unhealthy).unwrap().devices.len(), 2);
    let choice = with("--exclude-unhealthy", &unhealthy).unwrap();
    assert_eq!(device_numbers(choice.devices.iter().map(|device| &device.accelerator)), "0 2");
    assert!(!choice.is_untouched);
    assert_eq!(choice.warnings, [ChoiceWarning::ExcludedDevice { device, because: reason }]);
    let all: Vec<(usize, String)> = (0..3).map(|at| (at, "GPU is lost".to_owned())).collect();
    assert!(
        matches!(with("--exclude-unhealthy", &all), Err(ChoiceError::AllUnhealthy { because }) if because.len() == 3)
    );
    assert!(with("--exclude-unhealthy", &[(7, String::new())]).unwrap().is_untouched);
}

#[test]
fn unhealthy_card_covers_its_instances_and_tiles() {
    let dead = |machine: &Machine, at: usize, variables: &str| {
        let unhealthy = [(at, "it is lost".to_owned())];
        let request = request("--exclude-unhealthy");
        let inherited = environment(variables);
        let question = ChoiceInput {
            machine,
            inherited: &inherited,
            request: &request,
            unhealthy: &unhealthy,
            cuda_order: &unavailable_driver,
        };
        device_numbers(fake::choose_by(&question).unwrap().devices.iter().map(|device| &device.accelerator))
    };
    assert_eq!(dead(&fake::mig(), 0, ""), "1");
    assert_eq!(dead(&fake::xpu(2, 2), 1, ""), "0 2 3");
    assert_eq!(dead(&fake::xpu(2, 2), 1, "ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE"), "1");
}

#[test]
fn unnamed_lost_card_error_suggests_exclusion() {
    let mut machine = fake::cuda(8);
    let card = &mut machine.accelerators[5];
    card.condition = Condition::Lost { why: "GPU is lost".to_owned() };
    (card.uuid, card.name, card.pci) = (None, "unknown".to_owned(), None);
    let error = refused_on(&machine, "", "--devices -0-3");
    assert_eq!(
        error.to_string(),
        "`CUDA_VISIBLE_DEVICES` cannot name GPU 5 unknown: it does not answer, and its UUID is not known"
    );
    assert_eq!(
        error.hint().unwrap(),
        "`--exclude-unhealthy` goes on without it, and so does `-5` at the end of `--devices`"
    );
    let without =
        fake::choose(&machine, &InheritedVariables::default(), &request("--devices -0-3,-5")).unwrap();
    assert_eq!(device_numbers(without.devices.iter().map(|device| &device.accelerator)), "4 6 7");
}

#[test]
fn device_without_variable_name_is_refused() {
    let mut machine = fake::hpu(2);
    machine.accelerators.iter_mut().for_each(|card| card.module_id = None);
    let error = refused_on(&machine, "", "--devices 1");
    assert!(matches!(error, ChoiceError::Nameless { variable: "HABANA_VISIBLE_MODULES", .. }), "{error:?}");
    let untouched =
        fake::choose(&machine, &InheritedVariables::default(), &ChoiceRequest::default()).unwrap();
    assert!(matches!(untouched.warnings.as_slice(), [ChoiceWarning::OrderUnknown { .. }]));
}
