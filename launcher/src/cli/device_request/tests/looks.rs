//! Which launches probe the devices, and launches with a probe that does not answer.

use super::*;

const LIMIT: Duration = Duration::from_secs(30);

/// The questions that a launch asks; one that is refused too.
fn questions(world: FakeWorld, line: &str) -> Vec<Question> {
    let asked = world.asked();
    let _ = try_launch(world, line, &[("OMP_NUM_THREADS", "1")]);
    asked.take()
}

#[test]
fn unneeded_hardware_is_not_probed() {
    for line in [
        "torchrun",
        "torchrun --nproc-per-node 4",
        "torchrun --nproc-per-node cpu",
        "torchrun --virtual-local-rank",
        "rankrun --nproc-per-node cpu",
        "rankrun --nproc-per-node 4 --device-type cpu",
        "rankrun --nproc-per-node 4 --devices none",
        "rankrun --nproc-per-node auto --devices none",
        "rankrun --devices none",
        "rankrun --devices 1,,2",
        "rankrun --nproc-per-node xpu --device-type cuda",
        "rankrun --numa-binding node --devices none",
        "rankrun --probe-timeout 0",
    ] {
        assert_eq!(questions(with_sign(gpus(4)), line), [], "{line}");
    }
    for line in ["rankrun --nproc-per-node 1", "rankrun --nproc-per-node 4 --quiet --probe-timeout 1"] {
        assert_eq!(questions(world().machine(gpus(4)), line), [], "{line}");
    }
}

#[test]
fn needed_hardware_is_probed_once_with_minimal_scope() {
    let plain = ProbeScope::default();
    for (line, ask, limit) in [
        ("rankrun", plain, LIMIT),
        ("rankrun --nproc-per-node auto", plain, LIMIT),
        ("rankrun --nproc-per-node gpu", plain, LIMIT),
        ("rankrun --probe-timeout 1.5", plain, Duration::from_millis(1500)),
        ("rankrun --probe-timeout inf", plain, Duration::from_secs(24 * 3600)),
        ("rankrun --nproc-per-node 1 --device-type cuda", plain, LIMIT),
        ("rankrun --nproc-per-node 1 --devices all", plain, LIMIT),
        ("rankrun --nproc-per-node 1 --oversubscribe", plain, LIMIT),
        ("rankrun --devices idle", ProbeScope { state: true, ..plain }, LIMIT),
        ("rankrun --check-devices", ProbeScope { state: true, ..plain }, LIMIT),
        ("rankrun --exclude-unhealthy", ProbeScope { state: true, ..plain }, LIMIT),
        ("rankrun --device-order topology", ProbeScope { links: true, ..plain }, LIMIT),
        ("rankrun --nproc-per-node 1 --numa-binding node", ProbeScope { cpus: true, ..plain }, LIMIT),
        ("torchrun --nproc-per-node auto", plain, LIMIT),
        ("torchrun --nproc-per-node gpu", plain, LIMIT),
        ("torchrun --nproc-per-node 1 --numa-binding node", ProbeScope { cpus: true, ..plain }, LIMIT),
    ] {
        assert_eq!(questions(world().machine(gpus(4)), line), [Question::Discover(ask, limit)], "{line}");
    }
    // An explanation reads the words twice.
    let world = world().machine(gpus(4));
    let asked = world.asked();
    let argv = ["rankrun", "explain", "x.py"].map(OsString::from);
    assert!(interpret(&argv, &world.facts(&[("PATH", "/usr/bin")])).is_ok());
    assert_eq!(asked.take().len(), 1);
}

#[test]
fn failed_library_refuses_dependent_launch() {
    for (what, words, hint) in [
        (ProbeProblemKind::Hung(30), "NVML did not answer within 30 seconds", "--probe-timeout"),
        (
            ProbeProblemKind::Failed("Driver/library version mismatch".to_owned()),
            "mismatch",
            "--device-type cpu",
        ),
        (
            ProbeProblemKind::Crashed("killed by SIGSEGV".to_owned()),
            "NVML crashed: killed by SIGSEGV",
            "--nproc-per-node N",
        ),
    ] {
        for line in [
            "rankrun",
            "rankrun --nproc-per-node gpu",
            "rankrun --nproc-per-node 2 --devices 0,1",
            "torchrun --nproc-per-node auto",
        ] {
            let (code, text, said) = refusal(with_sign(trouble(what.clone())), line, &[]);
            assert!(code == 1 && text.contains(words), "{line}: {text}");
            assert!(line != "rankrun" || said.contains(hint), "{line}: {said}");
        }
        // Without a sign of accelerators only a launch that asks for them fails.
        for line in ["rankrun --nproc-per-node gpu", "rankrun --devices 0", "rankrun --numa-binding node"] {
            let (_, text, _) = refusal(world().machine(trouble(what.clone())), line, &[]);
            assert!(text.contains(words), "{line}: {text}");
        }
        for line in ["rankrun", "torchrun --nproc-per-node auto"] {
            let launch = launch(world().cpus(1).machine(trouble(what.clone())), line, &[]);
            assert!(said(&launch)[0].contains(words) && launch.spec.workers.get() == 1, "{line}");
        }
    }
    // Of another type.
    let (_, text, _) =
        refusal(world().machine(trouble(ProbeProblemKind::Hung(1))), "rankrun --nproc-per-node xpu", &[]);
    assert_eq!(text, "`--nproc-per-node` is `xpu`: there is no xpu device");
}

#[test]
fn missing_library_is_reported_only_if_verbose() {
    let line = "rank 0 → cpu: no accelerator is found: no driver library and no device node";
    let plain = launch(world().machine(missing()), "rankrun", &[]);
    assert_eq!((plain.spec.workers.get(), said(&plain)), (1, vec![line.to_owned()]));
    let launch = launch(world().machine(missing()), "rankrun -v", &[]);
    assert_eq!(
        said(&launch),
        ["looking for cuda devices: NVML is not there: libnvidia-ml.so.1: no such file", line]
    );
    let (code, text, _) = refusal(world().machine(missing()), "torchrun --nproc-per-node gpu", &[]);
    assert_eq!(
        (code, text.as_str()),
        (
            1,
            "Cuda is not available. `--nproc-per-node` is `gpu`: there is no cuda device\n  no driver is \
             found here"
        )
    );
    let hidden = [("CUDA_VISIBLE_DEVICES", "")];
    let (_, text, _) = refusal(with_sign(gpus(2)), "rankrun --nproc-per-node gpu", &hidden);
    assert_eq!(text, "`--nproc-per-node` is `gpu`: `CUDA_VISIBLE_DEVICES=` hides every cuda device");
}

#[test]
fn invalid_device_options_are_refused() {
    for (line, code, message) in [
        (
            "rankrun --probe-timeout 0",
            1,
            "`--probe-timeout` is `0`, which is not a number of seconds from 0.1 up",
        ),
        ("rankrun --probe-timeout soon", 2, "`--probe-timeout` is `soon`, which is not a number"),
        ("rankrun --device-order best", 2, "`--device-order` is `best`, which is not one of `pci`"),
        (
            "rankrun --nproc-per-node gpu --device-type xpu",
            1,
            "`--nproc-per-node` is `gpu`, and `--device-type` is `xpu`",
        ),
        (
            "rankrun --nproc-per-node gpu --devices none",
            1,
            "`--nproc-per-node` is `gpu`, and `--devices` is `none`",
        ),
        (
            "rankrun --nproc-per-node xpu --device-type cpu",
            1,
            "`--nproc-per-node` is `xpu`, and `--device-type`",
        ),
        ("torchrun --devices 0", 2, "unrecognized arguments: --devices"),
    ] {
        let (found, text, _) = refusal(world().machine(gpus(2)), line, &[]);
        assert!(found == code && text.starts_with(message), "{line}: {found} {text}");
    }
    let variables = [("RANKRUN_DEVICE_TYPE", "tpu")];
    for line in ["rankrun", "torchrun"] {
        let (code, text, _) = refusal(world(), line, &variables);
        assert_eq!(code, 2);
        assert!(text.starts_with("`RANKRUN_DEVICE_TYPE` is `tpu`, which is not one of"), "{text}");
    }
}

/// Without a probe there may still be accelerators.
#[test]
fn unprobed_workers_have_unknown_device() {
    let known = |world: FakeWorld, line: &str| {
        let launch = launch(world, line, &[]);
        launch.spec.devices.workers.iter().map(|worker| worker.is_known_to_runtime).collect::<Vec<_>>()
    };
    assert_eq!(known(with_sign(gpus(2)), "torchrun --nproc-per-node 2"), [false, false]);
    assert_eq!(known(world(), "torchrun --nproc-per-node 2"), [true, true]);
    assert_eq!(known(with_sign(gpus(2)), "rankrun --nproc-per-node 2"), [true, true]);
    assert_eq!(known(with_sign(trouble(ProbeProblemKind::Hung(1))), "rankrun --nproc-per-node 1"), [false]);
    assert_eq!(known(with_sign(gpus(2)), "rankrun --nproc-per-node 1 --devices none"), [true]);
}

/// The image has the library, and the machine has no card.
#[test]
fn library_without_device_allows_launch() {
    let image = || world().cpus(3).file("/usr/lib/libnvidia-ml.so.1", b"");
    for (line, workers) in [("rankrun", 1), ("rankrun --nproc-per-node auto", 3)] {
        let launch = launch(image().machine(trouble(ProbeProblemKind::Hung(1))), line, &[]);
        assert_eq!(launch.spec.workers.get(), workers, "{line}");
    }
}

#[test]
fn replaced_probe_source_is_reported_once() {
    let mut machine = gpus(2);
    machine.made_good = trouble(ProbeProblemKind::Failed("Driver Not Loaded".to_owned())).troubles;
    let launch = launch(with_sign(machine), "rankrun --quiet", &[]);
    let notices = said(&launch);
    assert_eq!(launch.spec.workers.get(), 2);
    assert_eq!(notices.iter().filter(|line| line.contains("Driver Not Loaded")).count(), 1, "{notices:?}");
}

/// A laptop: its GPU is for the screen.
#[test]
fn integrated_gpu_is_ignored_for_worker_count() {
    let laptop = || {
        let mut gpu = gpu(DeviceType::Xpu, 0);
        gpu.integrated = true;
        world().cpus(3).device("/dev/dri").machine(Machine { accelerators: vec![gpu], ..Machine::default() })
    };
    for (line, workers, device) in [
        ("rankrun --nproc-per-node 2", 2, "cpu:0"),
        ("rankrun --nproc-per-node auto", 3, "cpu:0"),
        ("torchrun --nproc-per-node auto", 3, "cpu:0"),
        ("rankrun", 1, "cpu:0"),
        ("rankrun --nproc-per-node xpu", 1, "xpu:0"),
    ] {
        let launch = launch(laptop(), line, &[]);
        let first = launch.spec.devices.workers[0].to_string();
        assert_eq!((launch.spec.workers.get(), &*first), (workers, device), "{line}");
    }
}
