//! Which worker has which device, what it is told of it, and what is said.

use super::*;
use rankrun_core::device::choice::number;
use rankrun_core::device::{WorkerDevice, fake};

const CUDA: &str = "CUDA_VISIBLE_DEVICES";

/// The device of each worker: `cuda:0=3` is GPU 3, found as number 0.
fn map(launch: &Launch) -> String {
    let worker_devices = launch.spec.devices.workers.iter().map(|worker| match &worker.identity {
        Some(card) => format!("{worker}={}", number(&card.accelerator)),
        None => worker.to_string(),
    });
    worker_devices.collect::<Vec<_>>().join(" ")
}

/// One variable of each worker, `-` where it is taken away and `.` where it is as it was.
fn variable(launch: &Launch, name: &str) -> String {
    let of = |worker: &WorkerDevice| {
        let found = worker.variables.iter().find(|(set, _)| *set == name);
        match found {
            None => ".".to_owned(),
            Some((_, None)) => "-".to_owned(),
            Some((_, Some(value))) => value.to_string_lossy().into_owned(),
        }
    };
    launch.spec.devices.workers.iter().map(of).collect::<Vec<_>>().join(" ")
}

#[test]
fn each_visible_device_gets_one_worker() {
    for (line, environment, expected) in [
        ("rankrun", vec![], "cuda:0=0 cuda:1=1 cuda:2=2 cuda:3=3"),
        ("rankrun --nproc-per-node auto", vec![], "cuda:0=0 cuda:1=1 cuda:2=2 cuda:3=3"),
        ("rankrun --nproc-per-node 2", vec![], "cuda:0=0 cuda:1=1"),
        ("rankrun --devices 3,1", vec![], "cuda:0=3 cuda:1=1"),
        ("rankrun --devices=-2", vec![], "cuda:0=0 cuda:1=1 cuda:2=3"),
        ("rankrun --devices -2,-3", vec![], "cuda:0=0 cuda:1=1"),
        ("rankrun", vec![("RANKRUN_DEVICES", "2")], "cuda:0=2"),
        ("torchrun", vec![("RANKRUN_DEVICES", "2,3"), ("PET_NPROC_PER_NODE", "gpu")], "cuda:0=2 cuda:1=3"),
        ("rankrun --device-visibility own --devices 3,1", vec![], "cuda:0=3 cuda:0=1"),
        ("rankrun --virtual-local-rank --devices 3,1", vec![], "cuda:0=3 cuda:0=1"),
        ("rankrun --oversubscribe --nproc-per-node 3 --devices 2,3", vec![], "cuda:0=2 cuda:0=3 cuda:0=2"),
        ("rankrun --devices none", vec![], "cpu:0"),
        ("rankrun --device-type cpu --nproc-per-node 2", vec![], "cpu:0 cpu:1"),
        ("rankrun", vec![(CUDA, "")], "cpu:0"),
        ("rankrun --nproc-per-node 6 --device-type cpu", vec![], "cpu:0 cpu:1 cpu:2 cpu:3 cpu:4 cpu:5"),
        ("rankrun --nproc-per-node cpu", vec![], "cpu:0 cpu:1 cpu:2"),
        // Without a probe.
        ("torchrun --nproc-per-node 2", vec![], "not looked at not looked at"),
        ("torchrun", vec![], "not looked at"),
        ("torchrun --nproc-per-node gpu", vec![], "cuda:0=0 cuda:1=1 cuda:2=2 cuda:3=3"),
        ("torchrun --nproc-per-node gpu", vec![(CUDA, "2,3")], "cuda:0=2 cuda:1=3"),
    ] {
        let environment: Vec<_> =
            environment.into_iter().chain([("CUDA_DEVICE_ORDER", "PCI_BUS_ID")]).collect();
        let launch = launch(with_sign(gpus(4)), line, &environment);
        assert_eq!(map(&launch), expected, "{line} {environment:?}");
        assert_eq!(LocalRank(launch.spec.workers.get()).index(), launch.spec.devices.workers.len());
    }
}

#[test]
fn worker_device_variables_match_table() {
    for (line, environment, visible, order) in [
        ("rankrun", vec![], ". .", ". ."),
        ("rankrun --nproc-per-node 1", vec![], ".", "."),
        ("rankrun", vec![(CUDA, "1,0")], ". .", ". ."),
        ("rankrun --devices 1,0", vec![], "1,0 1,0", "PCI_BUS_ID PCI_BUS_ID"),
        ("rankrun --devices 1,0 --device-visibility own", vec![], "1 0", "PCI_BUS_ID PCI_BUS_ID"),
        // torch's own option, by its own rules.
        ("rankrun --virtual-local-rank", vec![], "0 1", ". ."),
        ("rankrun --virtual-local-rank", vec![(CUDA, " 1 , 0")], "1 0", ". ."),
        ("torchrun --virtual-local-rank --nproc-per-node 2", vec![], "0 1", ". ."),
        ("torchrun --nproc-per-node gpu", vec![], ". .", ". ."),
        // Workers on the CPUs see no accelerator.
        ("rankrun --devices none", vec![], "", "."),
        ("torchrun", vec![("RANKRUN_DEVICE_TYPE", "cpu")], "", "."),
    ] {
        let launch = launch(with_sign(gpus(2)), line, &environment);
        assert_eq!(variable(&launch, CUDA), visible, "{line} {environment:?}");
        assert_eq!(variable(&launch, "CUDA_DEVICE_ORDER"), order, "{line} {environment:?}");
    }
    // Without a sign of accelerators nothing is hidden.
    let plain = launch(world(), "rankrun --devices none --nproc-per-node 2", &[]);
    assert!(plain.spec.devices.workers.iter().all(|worker| worker.variables.is_empty()));
}

#[test]
fn each_worker_line_names_its_device() {
    let lines = |line: &str, environment: &[(&str, &str)]| {
        let launch = launch(with_sign(unlike(2)), line, environment);
        said(&launch).into_iter().filter(|line| line.starts_with("rank ")).collect::<Vec<_>>()
    };
    let pinned = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    assert_eq!(
        lines("rankrun", &[pinned]),
        [
            "rank 0 → cuda:0: GPU 0 NVIDIA A2             (0000:1b:00.0), by CUDA_DEVICE_ORDER",
            "rank 1 → cuda:1: GPU 1 NVIDIA H100 80GB HBM3 (0000:1c:00.0), by CUDA_DEVICE_ORDER",
        ]
    );
    assert_eq!(
        lines("rankrun --devices 1 --device-visibility own", &[]),
        ["rank 0 → cuda:0: GPU 1 NVIDIA H100 80GB HBM3 (0000:1c:00.0), by --devices 1"]
    );
    assert_eq!(
        lines("rankrun", &[(CUDA, "1"), pinned]),
        ["rank 0 → cuda:0: GPU 1 NVIDIA H100 80GB HBM3 (0000:1c:00.0), by CUDA_VISIBLE_DEVICES entry 1"]
    );
    for line in [
        "rankrun --quiet",
        "rankrun --devices none",
        "torchrun --nproc-per-node gpu",
        "rankrun --device-type cpu --nproc-per-node 2",
    ] {
        assert!(lines(line, &[]).is_empty(), "{line}");
    }
    // They are the last thing that is said.
    let two = launch(with_sign(gpus(2)), "rankrun", &[]);
    assert!(said(&two)[0].starts_with("each worker gets"), "{:?}", said(&two));
}

#[test]
fn more_workers_than_devices_needs_oversubscribe() {
    let (code, text, hint) = refusal(with_sign(gpus(2)), "rankrun --nproc-per-node 3", &[]);
    assert_eq!(code, 1);
    assert_eq!(
        text,
        "3 workers and 2 devices: GPU 0 NVIDIA H100 80GB HBM3 (0000:1b:00.0), GPU 1 NVIDIA H100 80GB HBM3 (0000:1c:00.0)"
    );
    assert!(hint.contains("--oversubscribe") && hint.contains("--device-type cpu"), "{hint}");
    let one = refusal(with_sign(gpus(2)), "rankrun --nproc-per-node 2 --devices 1", &[]).1;
    assert!(one.starts_with("2 workers and 1 device: GPU 1 "), "{one}");
    // Workers share devices under torchrun, and with `--oversubscribe`.
    for line in ["torchrun --nproc-per-node 3", "rankrun --nproc-per-node 3 --oversubscribe"] {
        assert_eq!(launch(with_sign(gpus(2)), line, &[]).spec.workers.get(), 3, "{line}");
    }
}

#[test]
fn explicit_worker_count_launches_without_driver() {
    for what in [ProbeProblemKind::Hung(2), ProbeProblemKind::Failed("no permission".to_owned())] {
        let launch =
            launch(with_sign(trouble(what)), "rankrun --nproc-per-node 2", &[("OMP_NUM_THREADS", "1")]);
        assert_eq!(map(&launch), "not looked at not looked at");
        let said = said(&launch);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with("the cuda devices are not known: NVML"), "{said:?}");
        assert!(said[0].ends_with("; the workers are not told which device is theirs"), "{said:?}");
    }
}

#[test]
fn torchrun_nproc_lines_are_printed_at_info_level() {
    let notices = |line: &str| {
        let environment = [("LOGLEVEL", "INFO"), ("OMP_NUM_THREADS", "1")];
        said(&launch(with_sign(gpus(2)), line, &environment))
    };
    assert_eq!(notices("torchrun --nproc-per-node 2"), ["Using nproc_per_node=2."]);
    for (word, kind) in [("gpu", "gpu"), ("auto", "cuda")] {
        assert_eq!(
            notices(&format!("torchrun --nproc-per-node {word}")),
            [
                format!("Using nproc_per_node={word}."),
                format!(
                    "Using nproc_per_node={word}, setting nproc_per_node to 2 since the instance has 2 {kind}"
                )
            ]
        );
    }
}

/// Two unlike GPUs, with a driver that counts them in this order.
fn driver(order: [u32; 2]) -> FakeWorld {
    let device = |index: u32| {
        let Accelerator { name, pci, uuid, .. } = gpu(DeviceType::Cuda, index);
        rankrun_core::device::CudaDevice { uuid: uuid.unwrap(), pci, name }
    };
    with_sign(unlike(2)).cuda_order(order.map(device).to_vec())
}

/// Both the inherited list and the order depend on the driver, and a child is started for its answer.
#[test]
fn cuda_driver_is_queried_once() {
    let world = driver([1, 0]);
    let asked = world.asked();
    let line = "rankrun --devices 1,0 --device-order fastest";
    assert_eq!(map(&launch(world, line, &[("CUDA_VISIBLE_DEVICES", "0,1")])), "cuda:0=1 cuda:1=0");
    let is_order = |question: &&Question| matches!(question, Question::CudaOrder(_));
    assert_eq!(asked.take().iter().filter(is_order).count(), 1);
}

#[test]
fn unknown_driver_order_is_queried_or_reported() {
    assert_eq!(map(&launch(driver([1, 0]), "rankrun", &[])), "cuda:0=1 cuda:1=0");
    assert_eq!(map(&launch(driver([1, 0]), "rankrun --device-order fastest", &[])), "cuda:0=1 cuda:1=0");
    assert_eq!(map(&launch(driver([1, 0]), "rankrun --devices 0,1", &[])), "cuda:0=0 cuda:1=1");
    let (code, text, _) = refusal(with_sign(unlike(2)), "rankrun --device-order fastest", &[]);
    assert!(code == 1 && text.contains("there is no driver"), "{text}");
    assert!(text.starts_with("`--device-order` is `fastest`: the CUDA driver does not say"), "{text}");
    let variable = [("RANKRUN_DEVICE_ORDER", "fastest")];
    let (_, text, hint) = refusal(with_sign(unlike(2)), "rankrun", &variable);
    assert!(text.starts_with("`RANKRUN_DEVICE_ORDER` is `fastest`: the CUDA driver"), "{text}");
    assert_eq!(hint, "`--device-order pci` or `as-listed` need nothing but the devices");
    let guess = launch(with_sign(unlike(2)), "rankrun", &[]);
    assert_eq!(map(&guess), "cuda:0 cuda:1");
    assert!(said(&guess)[0].contains("the driver decides which device a worker gets"), "{:?}", said(&guess));
    assert_eq!(said(&guess).last().unwrap(), "rank 1 → cuda:1: which device that is, the driver decides");
    // A count alone asks no driver, and names no device.
    let world = driver([1, 0]);
    let asked = world.asked();
    let counted = launch(world, "torchrun --nproc-per-node gpu", &[("OMP_NUM_THREADS", "1")]);
    assert_eq!((map(&counted).as_str(), said(&counted).len()), ("cuda:0 cuda:1", 0));
    assert_eq!(asked.take().len(), 1);
}

#[test]
fn device_line_names_origin_of_list_and_order() {
    let world = || with_sign(gpus(2));
    for (line, environment, method) in [
        ("rankrun --devices 1,0", &[][..], "--devices 1"),
        ("rankrun", &[("RANKRUN_DEVICES", "1,0")], "RANKRUN_DEVICES 1"),
        ("rankrun", &[("RANKRUN_DEVICE_ORDER", "as-listed")], "RANKRUN_DEVICE_ORDER as-listed"),
    ] {
        let lines = said(&launch(world(), line, environment));
        let is_named = lines.iter().any(|line| line.ends_with(&format!(", by {method}")));
        assert!(is_named, "{line} {environment:?}: {lines:?}");
    }
}

#[test]
fn unhealthy_device_is_refused_or_excluded_if_checked() {
    let mut machine = gpus(3);
    machine.accelerators[1].condition = Condition::Lost { why: "GPU is lost".to_owned() };
    let (code, text, hint) = refusal(with_sign(machine.clone()), "rankrun --check-devices", &[]);
    assert!(code == 1 && text.contains("GPU 1 ") && text.contains("GPU is lost"), "{text}");
    assert!(hint.contains("--exclude-unhealthy"), "{hint}");
    let without = launch(with_sign(machine.clone()), "rankrun --exclude-unhealthy", &[]);
    assert_eq!(map(&without), "cuda:0=0 cuda:1=2");
    assert_eq!(without.spec.device_check(), Some(Unhealthy::Exclude));
    assert_eq!(without.spec.device_request.probe_timeout, Duration::from_secs(30));
    // A dead device that is not chosen does not matter.
    assert_eq!(map(&launch(with_sign(machine), "rankrun --check-devices --devices 2", &[])), "cuda:0=2");
    assert_eq!(launch(with_sign(gpus(1)), "rankrun", &[]).spec.device_check(), None);
    assert_eq!(launch(world(), "rankrun --check-devices", &[]).spec.device_check(), None);
}

#[test]
fn several_launchers_per_node_error_names_both_fixes() {
    let step = [("SLURM_PROCID", "3"), ("SLURM_STEP_TASKS_PER_NODE", "8(x2)")];
    let (code, text, hint) = refusal(with_sign(gpus(2)), "rankrun --nnodes 1", &step);
    assert_eq!(code, 1);
    assert_eq!(
        text,
        "`SLURM_STEP_TASKS_PER_NODE` says that 8 tasks run on this node, and each would start 2 workers, one for each \
         device"
    );
    assert!(hint.contains("`srun -N1 -n1 --ntasks-per-node=1 rankrun …`"), "{hint}");
    assert!(hint.contains("`--nproc-per-node 1`"), "{hint}");
    for line in ["rankrun --nproc-per-node 1", "rankrun --devices 0", "torchrun", "rankrun --device-type cpu"]
    {
        let line = &format!("{line} --nnodes 1");
        assert_eq!(launch(with_sign(gpus(2)), line, &step).spec.workers.get(), 1, "{line}");
    }
    assert_eq!(launch(with_sign(gpus(2)), "rankrun", &[("SLURM_PROCID", "0")]).spec.workers.get(), 2);
}

#[test]
fn device_name_loses_control_characters() {
    let mut machine = gpus(1);
    machine.accelerators[0].name = "\x1b[31mGPU\n".to_owned();
    let launch = launch(with_sign(machine), "rankrun", &[]);
    assert_eq!(said(&launch), ["rank 0 → cuda:0: GPU 0 GPU (0000:1b:00.0), by default"]);
}

/// torch counts cards where nothing is set, and asks the driver where MIG devices are listed, which shows the first.
#[test]
fn torchrun_counts_mig_parent_once() {
    let machine = fake::mig;
    let list = "MIG-10000000-aaaa-bbbb-cccc-dddddddddddd,MIG-00000000-aaaa-bbbb-cccc-dddddddddddd";
    for word in ["gpu", "auto"] {
        let line = format!("torchrun --nproc-per-node {word}");
        assert_eq!(map(&launch(with_sign(machine()), &line, &[])), "cuda:0=0:0 cuda:1=1 cuda:2=2");
        assert_eq!(map(&launch(with_sign(machine()), &line, &[(CUDA, list)])), "cuda:0=0:1");
        let ours = format!("rankrun --nproc-per-node {word}");
        assert_eq!(map(&launch(with_sign(machine()), &ours, &[])), "cuda:0=0:0 cuda:0=0:1 cuda:0=1");
    }
}
