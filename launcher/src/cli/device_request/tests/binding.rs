//! `--numa-binding` from the command line to the worker.

use super::*;
use rankrun_core::device::{Cpu, CpuLayout, NumaNode};

/// Two nodes of four CPUs, each a core of its own.
fn two_nodes(mut machine: Machine) -> Machine {
    let cpu = |id: u32| Cpu {
        id,
        package: i32::from(id >= 4),
        siblings: vec![id],
        cache: (0..8).filter(|other| other / 4 == id / 4).collect(),
    };
    let node = |id: u32| NumaNode { id, cpus: (id * 4..id * 4 + 4).collect() };
    machine.cpus = Some(CpuLayout { nodes: vec![node(0), node(1)], cpus: (0..8).map(cpu).collect() });
    machine
}

fn bound(launch: &Launch) -> Vec<String> {
    let cpus = launch.spec.devices.workers.iter().map(|worker| worker.cpus.as_deref());
    cpus.map(|cpus| cpus.map_or_else(|| "all".to_owned(), rankrun_core::device::affinity::format_ranges))
        .collect()
}

fn eight(machine: Machine) -> FakeWorld {
    with_sign(two_nodes(machine)).allowed(&[0, 1, 2, 3, 4, 5, 6, 7])
}

#[test]
fn workers_are_bound_to_cpus_near_device() {
    for (line, expected) in [
        ("rankrun --numa-binding node", vec!["0-3", "0-3", "4-7", "4-7"]),
        ("rankrun --numa-binding exclusive", vec!["0-1", "2-3", "4-5", "6-7"]),
        // The device that was chosen, not the one of the worker's number.
        ("rankrun --numa-binding node --devices 3,0", vec!["4-7", "0-3"]),
        ("rankrun --numa-binding exclusive --devices 3,0", vec!["4-7", "0-3"]),
        ("rankrun --numa-binding node --device-visibility own --devices 2", vec!["4-7"]),
        ("torchrun --numa-binding node --nproc-per-node 3", vec!["0-3", "0-3", "4-7"]),
        ("torchrun --numa-binding exclusive --nproc-per-node 1", vec!["0-1"]),
        ("rankrun", vec!["all", "all", "all", "all"]),
    ] {
        assert_eq!(bound(&launch(eight(gpus(4)), line, &[])), expected, "{line}");
    }
    let spec = launch(eight(gpus(4)), "rankrun --numa-binding socket", &[]).spec;
    assert_eq!(spec.device_request.binding.as_ref().map(|binding| binding.value.as_str()), Some("socket"));
}

#[test]
fn omp_threads_follow_cpu_binding() {
    for (line, threads, end) in [
        ("rankrun --numa-binding node", 2, "`OMP_NUM_THREADS=2`: 8 CPUs for 4 workers"),
        ("rankrun --numa-binding node --devices 0,1", 2, "`OMP_NUM_THREADS=2`: 4 CPUs for 2 workers"),
        ("rankrun --numa-binding exclusive --devices 0,1,2", 2, "`OMP_NUM_THREADS=2`: 8 CPUs for 3 workers"),
    ] {
        let launch = launch(eight(gpus(4)), line, &[]);
        assert_eq!(launch.spec.devices.omp_threads, Some(threads), "{line}");
        assert!(said(&launch).iter().any(|line| line.ends_with(end)), "{line}: {:?}", said(&launch));
    }
    let torchs = launch(eight(gpus(4)), "torchrun --numa-binding node --nproc-per-node 2", &[]);
    assert_eq!(torchs.spec.devices.omp_threads, Some(1));
}

#[test]
fn impossible_binding_is_refused() {
    let near_nothing = with_sign(gpus(4)).allowed(&[0]);
    let few = with_sign(two_nodes(gpus(4))).allowed(&[0, 4, 5]);
    let cut = with_sign(two_nodes(gpus(4))).allowed(&[0, 1, 2, 3]);
    for (world, line, message) in [
        (
            near_nothing,
            "rankrun --numa-binding node",
            "local rank 0 cannot be bound: the kernel shows no CPUs of NUMA node 0",
        ),
        (
            few,
            "rankrun --numa-binding exclusive",
            "NUMA node 0 has 1 cores that may be used here, for 2 devices",
        ),
        (
            cut,
            "rankrun --numa-binding node",
            "local rank 2 cannot be bound: none of the CPUs of NUMA node 1 may be used",
        ),
        (eight(gpus(1)), "torchrun --numa-binding node --nproc-per-node 2", "there is no device 1, only 1"),
        (
            eight(Machine::default()),
            "rankrun --numa-binding node",
            "needs an accelerator, of which none is visible",
        ),
        (eight(gpus(1)), "rankrun --numa-binding node --devices none", "needs an accelerator"),
        (eight(missing()), "torchrun --numa-binding node", "needs an accelerator"),
    ] {
        let (code, text, hint) = refusal(world, line, &[]);
        assert!(
            code == 1 && text.contains("`--numa-binding` is `") && text.contains(message),
            "{line}: {text}"
        );
        let advises_the_same = line.contains("--numa-binding node") && hint.contains("--numa-binding");
        assert!(!hint.is_empty() && !advises_the_same, "{line}: {hint}");
    }
}

#[test]
fn bound_worker_line_names_cpus() {
    let launch = launch(eight(gpus(2)), "rankrun --numa-binding exclusive", &[("OMP_NUM_THREADS", "1")]);
    assert!(said(&launch)[0].ends_with(", by default, CPUs 0-1"), "{:?}", said(&launch));
}

/// Four cores of two threads: the CPUs 0 to 3, and 4 to 7.
fn four_cores() -> FakeWorld {
    let siblings: [&[u8]; 4] = [b"0,4\n", b"1,5\n", b"2,6\n", b"3,7\n"];
    (0..8).zip(siblings.into_iter().cycle()).fold(eight(gpus(0)), |world, (cpu, siblings)| {
        let folder = format!("/sys/devices/system/cpu/cpu{cpu}");
        world.folder(&folder).file(&format!("{folder}/topology/thread_siblings_list"), siblings)
    })
}

#[test]
fn cores_are_shared_among_workers_with_their_omp_threads() {
    for (line, expected, threads) in [
        ("rankrun --device-type cpu -n 2 --bind-cores all", vec!["0-1", "2-3"], 2),
        ("rankrun --device-type cpu -n 3 --bind-cores all", vec!["0", "1", "2"], 1),
        ("rankrun --device-type cpu --bind-cores 1,3-5,7", vec!["1,3-5,7"], 5),
        ("rankrun --nproc-per-node 2 --bind-cores 1,3-5,7", vec!["1,3", "4-5"], 2),
    ] {
        let launch = launch(four_cores(), line, &[]);
        assert_eq!(bound(&launch), expected, "{line}");
        assert_eq!(launch.spec.devices.omp_threads, Some(threads), "{line}");
    }
    let under_torchrun = [("RANKRUN_BIND_CORES", "all")];
    let launched = launch(four_cores(), "torchrun --nproc-per-node 2", &under_torchrun);
    assert_eq!(
        (bound(&launched), launched.spec.devices.omp_threads),
        (vec!["0-1".into(), "2-3".into()], Some(2))
    );
    let line = "rankrun --device-type cpu -n 2 --bind-cores all";
    assert_eq!(launch(four_cores(), line, &[("OMP_NUM_THREADS", "7")]).spec.devices.omp_threads, None);
}

#[test]
fn cores_that_cannot_be_bound_are_refused() {
    for (options, message) in [
        ("-n 5 --bind-cores all", "`--bind-cores` is `all`, and 5 workers cannot share 4 cores"),
        ("--bind-cores 6-8", "`--bind-cores` is `6-8`, and this machine has no CPU 8"),
        ("--bind-cores 3-1", "`--bind-cores` is `3-1`, which is not `all` or a list of CPUs"),
        ("--bind-cores all --numa-binding node", "`--bind-cores` is `all`, and `--numa-binding` is `node`"),
    ] {
        let (code, text, hint) = refusal(four_cores(), &format!("rankrun --device-type cpu {options}"), &[]);
        assert!(code == 1 && text.starts_with(message) && !hint.is_empty(), "{options}: {text}, {hint}");
    }
    let few = four_cores().allowed(&[0, 1]);
    let (_, text, _) = refusal(few, "rankrun --device-type cpu --bind-cores 1-2", &[]);
    assert_eq!(text, "`--bind-cores` is `1-2`, and CPU 2 may not be used here, only 0-1");
}
