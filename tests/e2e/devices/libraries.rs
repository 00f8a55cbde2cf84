//! Drivers' libraries that answer with errors, hang, crash, or are not there: bounded, named, and never a hang.

use std::fs;
use std::path::Path;

use harness::{Fault, Machine, MachineTree, namespaces, only_ours};

use super::{gives, refused, typed};

/// Each fault, and the words for it. A second is the shortest time that can be given.
const FAULTS: [(Fault, &str); 3] = [
    (Fault::Error(9), "Driver Not Loaded"),
    (Fault::Hang, "did not answer within 1 second"),
    (Fault::Crash, "SIGABRT"),
];

/// Where the answer is needed.
#[test]
fn a_launch_that_needs_the_answer_is_refused() {
    for (fault, words) in FAULTS {
        let machine = Machine::gpus(2).with_fault("nvmlInit_v2", fault);
        // Without the driver as the second source.
        let machine = machine.without_library("libcuda.so.1").without_library("libcuda.so");
        refused("rankrun --devices 1 --probe-timeout 1", &machine, &["NVML", words]);
        if only_ours() {
            let torchrun = "RANKRUN_PROBE_TIMEOUT=1 torchrun --nproc-per-node gpu";
            refused(torchrun, &machine, &["NVML", words]);
        }
        if namespaces() {
            let tree = MachineTree::new().file("dev/nvidiactl", "").file("dev/nvidia0", "");
            let launch = typed("rankrun --probe-timeout 1").under(tree.stage()).on(&machine);
            let outcome = launch.worker(["print=started"]).run();
            outcome.exits(1).never_says("started").complains("NVML").complains(words);
        }
    }
}

/// A computer without a card that has the image of those that have some.
#[test]
fn libraries_without_a_card_leave_the_cpus() {
    if !namespaces() || !only_ours() {
        return;
    }
    let machine = Machine::empty().with_fault("nvmlInit_v2", Fault::Error(9));
    for line in ["rankrun", "rankrun --nproc-per-node 2", "torchrun --nproc-per-node 2"] {
        let tree = MachineTree::new();
        let outcome = typed(line).under(tree.stage()).on(&machine).worker(["alive"]).run();
        outcome.exits(0).says("alive rank=0").never_says("NVML");
    }
}

/// NVML fails, and the CUDA driver has the cards.
#[test]
fn the_driver_stands_in_for_a_library_that_fails() {
    let machine = Machine::gpus(2).with_fault("nvmlInit_v2", Fault::Error(9));
    let outcome = gives("rankrun", &machine, &[0, 1]);
    assert_eq!(outcome.lines_with("Driver Not Loaded").len(), 1, "{outcome}");
}

/// The launcher says so, and goes on: the number of workers is known.
#[test]
fn a_launch_that_can_do_without_goes_on() {
    if !namespaces() {
        return;
    }
    for (fault, words) in FAULTS {
        let machine = Machine::gpus(2).with_fault("nvmlInit_v2", fault);
        let machine = machine.without_library("libcuda.so.1").without_library("libcuda.so");
        let tree = MachineTree::new().file("dev/nvidiactl", "").file("dev/nvidia0", "");
        let launch = typed("rankrun --nproc-per-node 2 --probe-timeout 1").under(tree.stage()).on(&machine);
        let outcome = launch.worker(["alive"]).run();
        outcome.exits(0).complains(words).says("alive rank=1");
    }
}

/// Every function in which a library may stop.
#[test]
fn a_hang_anywhere_is_bounded() {
    for function in ["nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"] {
        let machine = Machine::gpus(2).with_fault(function, Fault::Hang);
        refused("rankrun --devices 1 --probe-timeout 1", &machine, &["did not answer within 1 second"]);
    }
}

/// A fact that the library does not tell is only missing.
#[test]
fn a_function_that_fails_costs_only_its_fact() {
    for function in ["nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMigMode"] {
        let machine = Machine::gpus(2).with_fault(function, Fault::Error(999));
        gives("rankrun --devices 1,0", &machine, &[1, 0]);
    }
}

/// NVML is not installed: the CUDA driver knows the cards too.
#[test]
fn the_driver_is_the_second_source() {
    let machine = Machine::mixed().without_library("libnvidia-ml.so.1");
    gives("rankrun --devices 2,0", &machine, &[2, 0]);
    gives("rankrun", &machine, &[1, 2, 0]);
}

#[test]
fn no_library_is_no_card() {
    let outcome = typed("rankrun -v").on(&Machine::empty()).worker(["alive"]).run();
    outcome.exits(0).complains("libnvidia-ml");
    assert_eq!(outcome.lines_with("alive rank=").len(), 1, "{outcome}");
    let outcome = typed("rankrun").on(&Machine::empty()).worker(["alive"]).run();
    outcome.exits(0).never_says("libnvidia-ml");
}

/// A probe that cannot be killed would keep it open: a lock that others wait for, or the end of a pipe.
#[test]
fn a_probe_has_no_descriptor_of_a_stranger() {
    if !only_ours() {
        return;
    }
    let machine = Machine::gpus(1).with_fault("nvmlInit_v2", Fault::Hang);
    let with_a_stranger = ["sh", "-c", "exec 9</dev/zero; exec \"$@\"", "sh"];
    let launch = typed("rankrun --devices 0 --probe-timeout 60").under(with_a_stranger).on(&machine);
    let opening = launch.opening();
    let job = launch.worker(["alive"]).start();
    opening.wait();
    let has_it = |pid: i32| {
        fs::read_link(format!("/proc/{pid}/fd/9")).is_ok_and(|target| target == Path::new("/dev/zero"))
    };
    // Another probe may be on its way still, before its `execve`: the one that has opened the library is behind it.
    let asks_nvml = |pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains("nvidia"))
    };
    let probes: Vec<i32> = job.children_of(job.pid()).into_iter().filter(asks_nvml).collect();
    assert!(has_it(job.pid()), "{job}");
    assert!(!probes.is_empty() && !probes.iter().any(|pid| has_it(*pid)), "{probes:?}\n{job}");
    job.signal(nix::sys::signal::Signal::SIGTERM);
    job.wait().never_says("alive rank=");
}

/// A probe that hangs is not left behind: the harness counts the processes of the job.
#[test]
fn a_stopped_launch_leaves_no_probe() {
    let machine = Machine::gpus(1).with_fault("nvmlInit_v2", Fault::Hang);
    let launch = typed("rankrun --devices 0 --probe-timeout 60").on(&machine);
    let opening = launch.opening();
    let job = launch.worker(["alive"]).start();
    opening.wait();
    job.signal(nix::sys::signal::Signal::SIGTERM);
    job.wait().never_says("alive rank=");
}
