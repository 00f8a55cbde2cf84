//! Drivers' libraries that answer with errors, hang, crash, or are not there: bounded, named, and never a hang.

use std::fs;
use std::path::Path;

use harness::{Fault, Machine, MachineTree, can_use_namespaces, is_rankrun};

use super::{assert_devices, assert_refused, launch_from_line};

/// Each fault, and the words for it. A second is the shortest time that can be given.
const FAULTS: [(Fault, &str); 3] = [
    (Fault::Error(9), "Driver Not Loaded"),
    (Fault::Hang, "did not answer within 1 second"),
    (Fault::Crash, "SIGABRT"),
];

/// Where the answer is needed.
#[test]
fn failed_library_refuses_launch_that_needs_devices() {
    for (fault, expected) in FAULTS {
        let machine = Machine::gpus(2).with_fault("nvmlInit_v2", fault);
        // Without the driver as the second source.
        let machine = machine.without_library("libcuda.so.1").without_library("libcuda.so");
        assert_refused("rankrun --devices 1 --probe-timeout 1", &machine, &["NVML", expected]);
        if is_rankrun() {
            let torchrun = "RANKRUN_PROBE_TIMEOUT=1 torchrun --nproc-per-node gpu";
            assert_refused(torchrun, &machine, &["NVML", expected]);
        }
        if can_use_namespaces() {
            let tree = MachineTree::new().file("dev/nvidiactl", "").file("dev/nvidia0", "");
            let launch = launch_from_line("rankrun --probe-timeout 1").under(tree.stage()).on(&machine);
            let outcome = launch.worker(["print=started"]).run();
            outcome
                .expect_exit_code(1)
                .expect_absent("started")
                .expect_stderr("NVML")
                .expect_stderr(expected);
        }
    }
}

/// A computer without a card that has the image of those that have some.
#[test]
fn libraries_without_gpu_use_cpus() {
    if !can_use_namespaces() || !is_rankrun() {
        return;
    }
    let machine = Machine::empty().with_fault("nvmlInit_v2", Fault::Error(9));
    for line in ["rankrun", "rankrun --nproc-per-node 2", "torchrun --nproc-per-node 2"] {
        let tree = MachineTree::new();
        let outcome = launch_from_line(line).under(tree.stage()).on(&machine).worker(["alive"]).run();
        outcome.expect_exit_code(0).expect_stdout("alive rank=0").expect_absent("NVML");
    }
}

/// NVML fails, and the CUDA driver has the cards.
#[test]
fn driver_replaces_failed_nvml() {
    let machine = Machine::gpus(2).with_fault("nvmlInit_v2", Fault::Error(9));
    let outcome = assert_devices("rankrun", &machine, &[0, 1]);
    assert_eq!(outcome.lines_with("Driver Not Loaded").len(), 1, "{outcome}");
}

/// The launcher says so, and goes on: the number of workers is known.
#[test]
fn failed_library_warns_launch_with_known_count() {
    if !can_use_namespaces() {
        return;
    }
    for (fault, expected) in FAULTS {
        let machine = Machine::gpus(2).with_fault("nvmlInit_v2", fault);
        let machine = machine.without_library("libcuda.so.1").without_library("libcuda.so");
        let tree = MachineTree::new().file("dev/nvidiactl", "").file("dev/nvidia0", "");
        let launch =
            launch_from_line("rankrun --nproc-per-node 2 --probe-timeout 1").under(tree.stage()).on(&machine);
        let outcome = launch.worker(["alive"]).run();
        outcome.expect_exit_code(0).expect_stderr(expected).expect_stdout("alive rank=1");
    }
}

/// Every function in which a library may stop.
#[test]
fn hanging_library_call_times_out() {
    for function in ["nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"] {
        let machine = Machine::gpus(2).with_fault(function, Fault::Hang);
        assert_refused(
            "rankrun --devices 1 --probe-timeout 1",
            &machine,
            &["did not answer within 1 second"],
        );
    }
}

/// A fact that the library does not tell is only missing.
#[test]
fn failing_library_call_loses_only_its_value() {
    for function in ["nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMigMode"] {
        let machine = Machine::gpus(2).with_fault(function, Fault::Error(999));
        assert_devices("rankrun --devices 1,0", &machine, &[1, 0]);
    }
}

/// NVML is not installed: the CUDA driver knows the cards too.
#[test]
fn driver_replaces_missing_nvml() {
    let machine = Machine::mixed().without_library("libnvidia-ml.so.1");
    assert_devices("rankrun --devices 2,0", &machine, &[2, 0]);
    assert_devices("rankrun", &machine, &[1, 2, 0]);
}

#[test]
fn missing_libraries_mean_no_gpu() {
    let outcome = launch_from_line("rankrun -v").on(&Machine::empty()).worker(["alive"]).run();
    outcome.expect_exit_code(0).expect_stderr("libnvidia-ml");
    assert_eq!(outcome.lines_with("alive rank=").len(), 1, "{outcome}");
    let outcome = launch_from_line("rankrun").on(&Machine::empty()).worker(["alive"]).run();
    outcome.expect_exit_code(0).expect_absent("libnvidia-ml");
}

/// A probe that cannot be killed would keep it open: a lock that others wait for, or the end of a pipe.
#[test]
fn probe_inherits_no_descriptor() {
    if !is_rankrun() {
        return;
    }
    let machine = Machine::gpus(1).with_fault("nvmlInit_v2", Fault::Hang);
    let with_open_file = ["sh", "-c", "exec 9</dev/zero; exec \"$@\"", "sh"];
    let launch =
        launch_from_line("rankrun --devices 0 --probe-timeout 60").under(with_open_file).on(&machine);
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
    job.wait().expect_absent("alive rank=");
}

/// A probe that hangs is not left behind: the harness counts the processes of the job.
#[test]
fn stopped_launch_leaves_no_probe() {
    let machine = Machine::gpus(1).with_fault("nvmlInit_v2", Fault::Hang);
    let launch = launch_from_line("rankrun --devices 0 --probe-timeout 60").on(&machine);
    let opening = launch.opening();
    let job = launch.worker(["alive"]).start();
    opening.wait();
    job.signal(nix::sys::signal::Signal::SIGTERM);
    job.wait().expect_absent("alive rank=");
}
