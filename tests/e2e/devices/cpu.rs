//! Workers that run on the CPUs: one line says it and why, unless CPUs were asked for.

use harness::{Launch, Machine, MachineTree, Name, Outcome, can_use_namespaces, is_torchrun};

use super::{assert_refused, launch_from_line};

/// Runs a launch of alive workers on a machine without any device node, driver or library.
#[track_caller]
fn on_bare_machine(line: &str) -> Outcome {
    let tree = MachineTree::new();
    let launch = launch_from_line(line).env("OMP_NUM_THREADS", "1").under(tree.stage()).on(&Machine::empty());
    let outcome = launch.worker(["alive"]).run();
    outcome.expect_exit_code(0);
    outcome
}

/// The one line about the CPUs, which names the ranks and has these texts.
#[track_caller]
fn cpu_line(outcome: &Outcome, ranks: &str, texts: &[&str]) {
    let lines = outcome.lines_with("→ cpu");
    let [line] = lines.as_slice() else { panic!("not one line about the CPUs\n{outcome}") };
    assert!(line.contains(&format!("{ranks} → cpu: ")), "`{line}` lacks `{ranks}`\n{outcome}");
    texts.iter().for_each(|text| assert!(line.contains(text), "`{line}` lacks `{text}`\n{outcome}"));
}

#[test]
fn device_variable_without_driver_is_named_with_cause() {
    if !can_use_namespaces() {
        return;
    }
    for (variables, cause) in [
        ("CUDA_VISIBLE_DEVICES=0,1", "the NVIDIA driver is missing: no `/dev/nvidiactl`"),
        ("HIP_VISIBLE_DEVICES=0,1", "the AMD driver is missing: no `/dev/kfd`"),
        ("ROCR_VISIBLE_DEVICES=GPU-1c2d000000000030", "the AMD driver is missing: no `/dev/kfd`"),
        ("ZE_AFFINITY_MASK=0,1", "the Intel GPU driver is missing: no `/dev/dri`"),
        ("HABANA_VISIBLE_MODULES=0,1", "the Gaudi driver is missing: no `/dev/accel`"),
        ("HABANA_VISIBLE_DEVICES=0,1", "the Gaudi driver is missing: no `/dev/accel`"),
        ("ASCEND_RT_VISIBLE_DEVICES=0,1", "the Ascend driver is missing: no `/dev/davinci_manager`"),
        ("NVIDIA_VISIBLE_DEVICES=all", "the NVIDIA driver is missing: no `/dev/nvidiactl`"),
        ("CUDA_VISIBLE_DEVICES=NoDevFiles", "Slurm gave this task no GPU"),
    ] {
        let quoted = format!("`{variables}`");
        // A probe has looked, and none has.
        cpu_line(&on_bare_machine(&format!("{variables} rankrun")), "rank 0", &[&quoted, cause]);
        let counted = format!("{variables} rankrun --nproc-per-node 2");
        cpu_line(&on_bare_machine(&counted), "ranks 0-1", &[&quoted, cause]);
    }
    cpu_line(&on_bare_machine("CUDA_VISIBLE_DEVICES=0 rankrun"), "rank 0", &["libnvidia-ml.so.1"]);
}

#[test]
fn device_list_without_valid_entry_is_named_with_entry() {
    for (list, entry) in [("5", "`5`"), ("junk,0", "`junk`"), ("1,1", "`1`"), ("GPU-c", "`GPU-c`")] {
        let launch = launch_from_line(&format!("CUDA_VISIBLE_DEVICES={list} rankrun")).on(&Machine::gpus(4));
        let outcome = launch.worker(["device=cuda"]).run();
        outcome.expect_exit_code(0).expect_stdout("sees=0 is=none");
        let expected = format!("`CUDA_VISIBLE_DEVICES={list}` leaves no device: ");
        cpu_line(&outcome, "rank 0", &[&expected, entry]);
        assert_eq!(outcome.lines_with("CUDA_VISIBLE_DEVICES").len(), 1, "it is said once\n{outcome}");
    }
}

#[test]
fn node_without_driver_library_names_the_library() {
    if !can_use_namespaces() {
        return;
    }
    for line in ["rankrun", "CUDA_VISIBLE_DEVICES=0,1 rankrun", "rankrun --nproc-per-node 1"] {
        let tree = MachineTree::new().file("dev/nvidiactl", "");
        let outcome =
            launch_from_line(line).under(tree.stage()).on(&Machine::empty()).worker(["alive"]).run();
        outcome.expect_exit_code(0);
        cpu_line(&outcome, "rank 0", &["/dev/nvidiactl", "libnvidia-ml.so.1"]);
    }
}

/// A container that shares the kernel of a host with cards, and none of their nodes.
#[test]
fn card_without_node_in_container_names_the_node() {
    if !can_use_namespaces() {
        return;
    }
    let information = "Model: \t\t NVIDIA H100\nDevice Minor: \t 0\n";
    let tree = MachineTree::new().file("proc/driver/nvidia/gpus/0000:12:00.0/information", information);
    for line in ["rankrun", "CUDA_VISIBLE_DEVICES=0 rankrun"] {
        let outcome =
            launch_from_line(line).under(tree.stage()).on(&Machine::empty()).worker(["alive"]).run();
        outcome.expect_exit_code(0);
        cpu_line(&outcome, "rank 0", &["/dev/nvidia0"]);
    }
}

#[test]
fn plain_machine_gets_one_line_for_all_workers() {
    if !can_use_namespaces() {
        return;
    }
    cpu_line(&on_bare_machine("rankrun"), "rank 0", &["no accelerator is found"]);
    for count in ["4", "auto --device-visibility all"] {
        let outcome = on_bare_machine(&format!("rankrun --nproc-per-node {count}"));
        let workers = outcome.lines_with("alive rank=").len();
        let ranks = if workers == 1 { "rank 0".to_owned() } else { format!("ranks 0-{}", workers - 1) };
        cpu_line(&outcome, &ranks, &["no accelerator is found"]);
    }
}

#[test]
fn requested_cpus_are_used_without_message() {
    if !can_use_namespaces() {
        return;
    }
    for line in [
        "rankrun --device-type cpu",
        "rankrun --device-type cpu --nproc-per-node 2",
        "rankrun --devices none",
        "RANKRUN_DEVICE_TYPE=cpu rankrun",
        "rankrun --nproc-per-node cpu",
        "CUDA_VISIBLE_DEVICES= rankrun",
        "CUDA_VISIBLE_DEVICES= NVIDIA_VISIBLE_DEVICES=all rankrun --nproc-per-node 2",
        "CUDA_VISIBLE_DEVICES=-1 rankrun",
        "HIP_VISIBLE_DEVICES= rankrun",
        "ASCEND_RT_VISIBLE_DEVICES= rankrun --nproc-per-node 2",
        "rankrun --quiet",
        "CUDA_VISIBLE_DEVICES=0,1 rankrun --quiet --nproc-per-node 2",
        "CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node 2",
        "torchrun --nproc-per-node auto",
    ] {
        let outcome = on_bare_machine(line);
        assert_eq!(outcome.stderr(), "", "`{line}`\n{outcome}");
    }
}

/// The list that keeps cards from the workers, where there are some.
#[test]
fn hidden_gpus_use_cpus_without_message() {
    for list in ["", "-1"] {
        let launch = launch_from_line(&format!("CUDA_VISIBLE_DEVICES={list} rankrun")).on(&Machine::gpus(2));
        let outcome = launch.worker(["device=cuda"]).run();
        outcome.expect_exit_code(0).expect_stdout("sees=0 is=none");
        assert_eq!(outcome.stderr(), "", "`{list}`\n{outcome}");
    }
}

#[test]
fn requested_devices_without_gpu_are_refused() {
    for (option, message) in [
        ("--devices 0", "`--devices` is `0`: there is no "),
        ("--devices 0,1 --nproc-per-node 2", "`--devices` is `0,1`: there is no "),
        ("--devices all", "`--devices` is `all`: there is no "),
        ("--devices idle", "`--devices` is `idle`: there is no "),
        ("--device-type cuda", "`--device-type` is `cuda`: there is no cuda device"),
        ("--device-type cuda --nproc-per-node 2", "`--device-type` is `cuda`: there is no cuda device"),
        ("--device-type rocm", "`--device-type` is `rocm`: there is no rocm device"),
        ("--device-type xpu", "`--device-type` is `xpu`: there is no xpu device"),
        ("--device-type hpu", "`--device-type` is `hpu`: there is no hpu device"),
        ("--device-type npu", "`--device-type` is `npu`: there is no npu device"),
        ("--nproc-per-node gpu", "`--nproc-per-node` is `gpu`: there is no cuda device"),
        ("--nproc-per-node xpu", "`--nproc-per-node` is `xpu`: there is no xpu device"),
    ] {
        let message = format!("error: {message}");
        assert_refused(&format!("rankrun {option}"), &Machine::empty(), &[&message, "hint: "]);
        let with_variable = format!("CUDA_VISIBLE_DEVICES=0,1 rankrun {option}");
        assert_refused(&with_variable, &Machine::empty(), &[&message, "hint: "]);
    }
    for (variable, message) in [
        ("RANKRUN_DEVICES=0", "error: `RANKRUN_DEVICES` is `0`: there is no "),
        (
            "RANKRUN_DEVICES=0 RANKRUN_DEVICE_TYPE=cpu",
            "error: `RANKRUN_DEVICES` is `0`, and `RANKRUN_DEVICE_TYPE` is `cpu`",
        ),
        ("RANKRUN_DEVICE_TYPE=cuda", "error: `RANKRUN_DEVICE_TYPE` is `cuda`: there is no cuda device"),
    ] {
        assert_refused(&format!("{variable} rankrun"), &Machine::empty(), &[message, "hint: "]);
        // PyTorch's own does not know the variables.
        if !is_torchrun() {
            assert_refused(&format!("{variable} torchrun"), &Machine::empty(), &[message, "hint: "]);
        }
    }
}

#[test]
fn explain_says_why_a_launch_runs_on_cpus() {
    let launch = Launch::new(Name::Rankrun).args(["explain", "--nproc-per-node", "2"]);
    let outcome = launch.env("CUDA_VISIBLE_DEVICES", "7").on(&Machine::gpus(2)).worker(["alive"]).run();
    outcome.expect_exit_code(0).expect_stdout("ranks 0-1 → cpu: `CUDA_VISIBLE_DEVICES=7` leaves no device: ");
}
