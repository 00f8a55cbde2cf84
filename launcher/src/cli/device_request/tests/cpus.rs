//! The line about workers on the CPUs.

use super::*;

/// The notices that the launch begins with; the threads of several workers are not of interest.
fn lines(world: FakeWorld, line: &str, environment: &[(&str, &str)]) -> Vec<String> {
    let threads = [("OMP_NUM_THREADS", "1")];
    said(&launch(world, line, &[environment, &threads].concat()))
}

const NOTHING: &str = "no accelerator is found: no driver library and no device node";

#[test]
fn cpu_workers_share_one_line() {
    for (line, ranks) in [
        ("rankrun", "rank 0"),
        ("rankrun --nproc-per-node 1", "rank 0"),
        ("rankrun --nproc-per-node 4", "ranks 0-3"),
        ("rankrun --nproc-per-node auto", "ranks 0-2"),
    ] {
        assert_eq!(lines(world().cpus(3), line, &[]), [format!("{ranks} → cpu: {NOTHING}")], "{line}");
    }
    let launch = launch(world(), "rankrun", &[]);
    assert!(matches!(launch.notices.as_slice(), [Notice::OnCpus { .. }]));
}

#[test]
fn requested_cpus_print_no_line() {
    for (line, environment) in [
        ("rankrun --nproc-per-node cpu", vec![("CUDA_VISIBLE_DEVICES", "0")]),
        ("rankrun --device-type cpu", vec![("CUDA_VISIBLE_DEVICES", "0")]),
        ("rankrun --devices none --nproc-per-node 2", vec![]),
        ("rankrun", vec![("CUDA_VISIBLE_DEVICES", "")]),
        ("rankrun --nproc-per-node 2", vec![("CUDA_VISIBLE_DEVICES", "")]),
        ("rankrun --quiet", vec![("CUDA_VISIBLE_DEVICES", "0")]),
        ("torchrun", vec![("CUDA_VISIBLE_DEVICES", "0")]),
        ("torchrun --nproc-per-node auto", vec![("CUDA_VISIBLE_DEVICES", "0")]),
    ] {
        assert_eq!(lines(world().cpus(1), line, &environment), [""; 0], "{line} {environment:?}");
        assert_eq!(lines(world().cpus(1).machine(missing()), line, &environment), [""; 0], "{line}");
    }
}

/// With `--quiet` and as torchrun the entries that a list loses stay a warning of their own.
#[test]
fn dropped_entries_are_reported_once() {
    let list = [("CUDA_VISIBLE_DEVICES", "5")];
    let rule = "`5` is not an index of a device, which ends the list";
    let printed = |line: &str| lines(with_sign(gpus(4)).cpus(1), line, &list);
    let one_line = format!(
        "rank 0 → cpu: `CUDA_VISIBLE_DEVICES=5` leaves no device: {rule}; compare with `rankrun devices`"
    );
    assert_eq!(printed("rankrun"), [one_line]);
    let warning = format!("`CUDA_VISIBLE_DEVICES=5`: {rule}");
    for line in ["rankrun --quiet", "torchrun --nproc-per-node auto"] {
        assert_eq!(printed(line), std::slice::from_ref(&warning), "{line}");
    }
}

/// A value with an escape sequence does not reach a terminal.
#[test]
fn value_of_a_variable_is_printed_without_control_characters() {
    let list = [("CUDA_VISIBLE_DEVICES", "\u{1b}[31m0")];
    let printed = lines(world(), "rankrun --nproc-per-node 1", &list);
    assert_eq!(printed.len(), 1);
    assert!(!printed[0].contains('\u{1b}') && printed[0].contains("asks for devices"), "{printed:?}");
}

/// The line is made of what the launch knows anyhow.
#[test]
fn cpu_reason_line_starts_no_probe() {
    let world = world().machine(gpus(4));
    let asked = world.asked();
    let printed = lines(world, "rankrun --nproc-per-node 2", &[("CUDA_VISIBLE_DEVICES", "0,1")]);
    assert_eq!(asked.take(), []);
    assert_eq!(
        printed,
        [
            "ranks 0-1 → cpu: `CUDA_VISIBLE_DEVICES=0,1` asks for devices, and the NVIDIA driver is missing: no \
          `/dev/nvidiactl`; start the container or job step with its devices, or say `--device-type cpu` if CPUs are meant"
        ]
    );
}
