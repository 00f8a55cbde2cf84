//! Hints and notices that fit what was said.

use super::*;

const GIVEN: &str = "rankrun --nproc-per-node 2 --devices 0,1";

#[test]
fn hint_omits_given_and_refused_options() {
    let hung = || with_sign(trouble(ProbeProblemKind::Hung(30)));
    let failed = || with_sign(trouble(ProbeProblemKind::Failed("mismatch".to_owned())));
    let hint = |world: FakeWorld, line: &str, environment: &[_]| refusal(world, line, environment).2;
    assert_eq!(
        hint(failed(), GIVEN, &[]),
        "repair the driver, or do without its answer: leave out `--devices` or `--devices none`"
    );
    assert_eq!(
        hint(failed(), "rankrun --nproc-per-node gpu", &[]),
        "repair the driver, or do without its answer: `--nproc-per-node N`"
    );
    assert_eq!(
        hint(hung(), "rankrun --check-devices", &[]),
        "give it more time with `--probe-timeout SECONDS`, or do without it: `--nproc-per-node N` without \
         `--check-devices` or `--device-type cpu`"
    );
    let environment = [
        ("RANKRUN_CHECK_DEVICES", "1"),
        ("RANKRUN_OVERSUBSCRIBE", "1"),
        ("RANKRUN_DEVICE_VISIBILITY", "own"),
    ];
    let said = hint(hung(), "rankrun --nproc-per-node 2", &environment);
    let origins = "`RANKRUN_DEVICE_VISIBILITY` and `RANKRUN_CHECK_DEVICES` and `RANKRUN_OVERSUBSCRIBE`";
    assert!(said.contains(&format!("leave out {origins}")), "{said}");
    // torchrun's grammar has none of our options.
    let said = hint(hung(), "torchrun --nproc-per-node auto", &[]);
    assert!(said.contains("`RANKRUN_PROBE_TIMEOUT=SECONDS`") && said.contains("`RANKRUN_DEVICE_TYPE=cpu`"));
    for variables in [("RANKRUN_DEVICES", "0,0"), ("RANKRUN_DEVICES", "cuda:1"), ("RANKRUN_DEVICES", "9")] {
        let said = hint(with_sign(gpus(2)), "torchrun --nproc-per-node gpu", &[variables]);
        for option in ["--devices", "--device-type", "--oversubscribe"] {
            assert!(!said.contains(option), "{variables:?}: {said}");
        }
    }
}

#[test]
fn device_options_without_accelerators_give_notice() {
    let notices = |line: &str, environment: &[(&str, &str)]| said(&launch(world(), line, environment));
    assert_eq!(
        notices("rankrun --device-order pci --check-devices", &[]),
        [
            "`--device-order` and `--check-devices` have no effect: no accelerator is visible",
            "rank 0 → cpu: no accelerator is found: no driver library and no device node"
        ]
    );
    assert_eq!(
        said(&launch(with_sign(gpus(2)), "rankrun --device-visibility own", &[("CUDA_VISIBLE_DEVICES", "")])),
        ["`--device-visibility` has no effect: no accelerator is visible"]
    );
    let environment = [("RANKRUN_DEVICE_ORDER", "pci"), ("RANKRUN_EXCLUDE_UNHEALTHY", "1")];
    let text =
        "`RANKRUN_DEVICE_ORDER` and `RANKRUN_EXCLUDE_UNHEALTHY` have no effect: no accelerator is visible";
    assert_eq!(notices("rankrun --check-devices", &environment)[0], text);
    assert!(notices("rankrun --quiet", &[]).is_empty());
    assert!(notices("rankrun --devices none --device-order pci", &[]).is_empty());
}

#[test]
fn virtual_local_rank_gives_no_dropped_warning() {
    let list = [("CUDA_VISIBLE_DEVICES", "0,1gpu,-0")];
    let launch = launch(with_sign(gpus(2)), "rankrun --virtual-local-rank --nproc-per-node 1", &list);
    assert!(said(&launch).is_empty(), "{:?}", said(&launch));
}

#[test]
fn legacy_mig_names_are_accepted() {
    let mut machine = gpus(1);
    machine.accelerators[0].part = Part::MigParent;
    let mut instance = gpu(DeviceType::Cuda, 0);
    instance.part = Part::MigInstance { gpu: 0 };
    instance.uuid = Some("MIG-11111111-2222-3333-4444-555555555555".to_owned());
    machine.accelerators.push(instance);
    let name = "MIG-GPU-00000000-0000-0000-0000-000000000000/1/0";
    for line in ["rankrun", "rankrun --nproc-per-node gpu", "rankrun -v"] {
        let launch = launch(with_sign(machine.clone()), line, &[("CUDA_VISIBLE_DEVICES", name)]);
        assert_eq!(launch.spec.workers.get(), 1, "{line}");
        assert_eq!(launch.spec.devices.workers[0].kind, DeviceType::Cuda, "{line}");
        assert!(launch.spec.devices.workers[0].variables.is_empty(), "{:?}", launch.spec.devices.workers);
        let said = said(&launch);
        assert_eq!(said.iter().any(|line| line.contains("before R470")), line.ends_with("-v"), "{said:?}");
        assert!(!said.iter().any(|line| line.contains("alone")), "{said:?}");
    }
    let other_machine = [("CUDA_VISIBLE_DEVICES", "MIG-GPU-ffffffff-0000-0000-0000-000000000000/1/0")];
    assert_eq!(
        launch(with_sign(machine), "rankrun", &other_machine).spec.devices.workers[0].kind,
        DeviceType::Cpu
    );
}

#[test]
fn device_error_escapes_control_characters() {
    let argv = ["rankrun", "--devices", "GPU-0\n\u{1b}[31m", "x.py"].map(OsString::from);
    let error = interpret(&argv, &with_sign(gpus(2)).facts(&[("PATH", "/usr/bin")])).unwrap_err().render();
    assert!(error.contains(r"`GPU-0\n\u{1b}[31m`") && !error.contains('\u{1b}'), "{error}");
    let long = "7".repeat(5000);
    let (_, text, _) = refusal(with_sign(gpus(2)), &format!("rankrun --devices GPU-{long}"), &[]);
    assert!(text.len() < 600 && text.contains('…'), "{text}");
    let argv = ["rankrun", "--device-order", "\u{1b}[31m", "x.py"].map(OsString::from);
    let error = interpret(&argv, &world().facts(&[("PATH", "/usr/bin")])).unwrap_err().render();
    assert!(!error.contains('\u{1b}'), "{error}");
}
