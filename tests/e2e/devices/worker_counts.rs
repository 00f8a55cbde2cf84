//! How many workers, and how they share.

use harness::{Launch, Machine, Name, is_rankrun};

use super::{
    assert_devices, assert_launch_devices, assert_refused, assert_visible_count, assignment_lines,
    launch_from_line, worker_devices,
};

#[test]
fn rankrun_starts_one_worker_per_gpu() {
    assert_devices("rankrun", &Machine::gpus(1), &[0]);
    assert_devices("rankrun", &Machine::gpus(4), &[0, 1, 2, 3]);
    assert_devices("rankrun", &Machine::gpus(8), &[0, 1, 2, 3, 4, 5, 6, 7]);
    assert_devices("CUDA_VISIBLE_DEVICES=3,0,1 rankrun", &Machine::gpus(4), &[3, 0, 1]);
    assert_devices("rankrun --devices all", &Machine::gpus(4), &[0, 1, 2, 3]);
}

#[test]
fn torchrun_starts_one_worker() {
    assert_devices("torchrun", &Machine::gpus(4), &[0]);
}

#[test]
fn machine_without_gpu_starts_one_worker() {
    let outcome = Launch::new(Name::Rankrun).args(["--standalone"]).worker(["alive"]).run();
    outcome.expect_exit_code(0);
    assert_eq!(outcome.lines_with("alive rank=").len(), 1, "{outcome}");
}

#[test]
fn names_of_other_launchers_count_workers_of_this_node() {
    for words in [&["-n", "2"][..], &["-n2"], &["-np", "2"], &["--num-processes", "2"], &["--num_gpus=2"]] {
        let launch = Launch::new(Name::Rankrun).args(["--standalone", "--device-type", "cpu", "-n", "3"]);
        let outcome = launch.args(words.iter().copied()).worker(["alive"]).run();
        outcome.expect_exit_code(0);
        assert_eq!(outcome.lines_with("alive rank=").len(), 2, "{words:?}\n{outcome}");
    }
    let outcome = Launch::new(Name::Torchrun).args(["-np", "2", "train.py"]).run();
    outcome.expect_exit_code(2).expect_stderr("error: unrecognized arguments: -np");
}

#[test]
fn nproc_gpu_or_auto_counts_gpus() {
    if !is_rankrun() {
        return;
    }
    for name in ["rankrun", "torchrun"] {
        let machine = Machine::gpus(4);
        for count in ["gpu", "auto", "cuda"] {
            if (name, count) == ("torchrun", "cuda") {
                continue;
            }
            assert_devices(&format!("{name} --nproc-per-node {count}"), &machine, &[0, 1, 2, 3]);
            assert_devices(
                &format!("CUDA_VISIBLE_DEVICES=2,1 {name} --nproc-per-node {count}"),
                &machine,
                &[2, 1],
            );
            assert_devices(
                &format!("CUDA_VISIBLE_DEVICES=2,9,1 {name} --nproc-per-node {count}"),
                &machine,
                &[2],
            );
        }
        assert_devices(&format!("{name} --nproc-per-node auto"), &Machine::gpus(1), &[0]);
    }
    assert_devices("rankrun --devices 3,1 --nproc-per-node auto", &Machine::gpus(4), &[3, 1]);
}

#[test]
fn nproc_gpu_without_gpu_is_refused() {
    if !is_rankrun() {
        return;
    }
    for name in ["rankrun", "torchrun"] {
        let hidden = format!("CUDA_VISIBLE_DEVICES= {name} --nproc-per-node gpu");
        assert_refused(&hidden, &Machine::gpus(2), &["CUDA_VISIBLE_DEVICES"]);
        assert_refused(&format!("{name} --nproc-per-node gpu"), &Machine::empty(), &["gpu"]);
        assert_refused(&format!("{name} --nproc-per-node xpu"), &Machine::gpus(2), &["xpu"]);
    }
}

#[test]
fn fewer_workers_than_gpus_use_first_gpus() {
    assert_visible_count(&assert_devices("rankrun --nproc-per-node 2", &Machine::gpus(4), &[0, 1]), 4);
    assert_devices("rankrun --devices 3,2,1 --nproc-per-node 2", &Machine::gpus(4), &[3, 2]);
}

#[test]
fn more_workers_than_gpus_are_refused() {
    let machine = Machine::gpus(2);
    let says = ["3 workers", &machine.pci(0), &machine.pci(1), "--oversubscribe", "--nproc-per-node"];
    assert_refused("rankrun --nproc-per-node 3", &machine, &says);
    assert_refused("rankrun --devices 1 --nproc-per-node 2", &machine, &["2 workers", "1 device"]);
    assert_refused("CUDA_VISIBLE_DEVICES=1 rankrun --nproc-per-node 2", &machine, &["2 workers", "1 device"]);
    // torchrun starts them, and every worker sees both.
    if is_rankrun() {
        let launch = launch_from_line("torchrun --nproc-per-node 3").on(&machine);
        launch.worker(["print=started"]).run().expect_exit_code(0).expect_stdout("started");
    }
}

#[test]
fn oversubscribe_shares_gpus() {
    let machine = Machine::gpus(2);
    let own = "rankrun --nproc-per-node 5 --oversubscribe --device-visibility own";
    assert_visible_count(&assert_devices(own, &machine, &[0, 1, 0, 1, 0]), 1);
    // A whole list would not have a place for the third worker's number.
    assert_devices("rankrun --devices 1,0 --nproc-per-node 4 --oversubscribe", &machine, &[1, 0, 1, 0]);
}

#[test]
fn assignment_has_line_per_worker() {
    let machine = Machine::gpus(4);
    let outcome = assert_devices("rankrun --devices 3,1", &machine, &[3, 1]);
    let lines = assignment_lines(&outcome, 2);
    for (line, card) in lines.iter().zip([3, 1]) {
        assert!(line.contains("NVIDIA H100 80GB HBM3"), "{outcome}");
        assert!(line.contains(&machine.pci(card)) && line.contains("--devices"), "{outcome}");
    }
    let outcome = assert_devices("CUDA_VISIBLE_DEVICES=2,0 rankrun", &machine, &[2, 0]);
    assert!(
        assignment_lines(&outcome, 2).iter().all(|line| line.contains("CUDA_VISIBLE_DEVICES")),
        "{outcome}"
    );
    assignment_lines(&assert_devices("rankrun", &machine, &[0, 1, 2, 3]), 4);
}

#[test]
fn quiet_launch_has_no_assignment_lines() {
    let machine = Machine::gpus(2);
    assignment_lines(&assert_devices("rankrun --quiet --devices 1", &machine, &[1]), 0);
    assignment_lines(&assert_devices("torchrun --nproc-per-node 2", &machine, &[0, 1]), 0);
}

/// Each of eight tasks would start a worker for each of the cards.
#[test]
fn several_tasks_per_node_without_nproc_are_refused() {
    if !is_rankrun() {
        return;
    }
    let machine = Machine::gpus(8);
    for (variables, fix) in [
        ("SLURM_PROCID=3 SLURM_STEP_ID=0 SLURM_STEP_TASKS_PER_NODE=8(x2)", "--ntasks-per-node=1 rankrun"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=3", "mpirun"),
    ] {
        assert_refused(&format!("{variables} rankrun"), &machine, &["8 tasks", fix, "--nproc-per-node"]);
        assert_devices(&format!("{variables} rankrun --nproc-per-node 1"), &machine, &[0]);
        assert_devices(&format!("{variables} torchrun --nproc-per-node 2"), &machine, &[0, 1]);
    }
    // One task on each node, and a batch script, are as they should be.
    for variables in [
        "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_STEP_TASKS_PER_NODE=1(x2)",
        "SLURM_PROCID=0 SLURM_STEP_ID=4294967291 SLURM_TASKS_PER_NODE=8",
        "OMPI_COMM_WORLD_LOCAL_SIZE=1",
    ] {
        let launch = launch_from_line(&format!("{variables} rankrun --quiet"));
        assert_launch_devices(launch, &machine, &[0, 1, 2, 3, 4, 5, 6, 7]);
    }
}

/// Without a choice or count of devices only the workers open a driver's library.
#[test]
fn launch_without_device_option_opens_no_library() {
    if !is_rankrun() {
        return;
    }
    let machine = Machine::gpus(4);
    for line in [
        "torchrun --nproc-per-node 2",
        "torchrun",
        "torchrun --nproc-per-node cpu",
        "rankrun --device-type cpu --nproc-per-node 2",
        "rankrun --devices none",
    ] {
        let outcome = launch_from_line(line).on(&machine).worker(["alive"]).run();
        outcome.expect_exit_code(0);
        assert_eq!(outcome.opened(), [], "{line}\n{outcome}");
    }
    // The trap works: a launcher that looks leaves a trace.
    let outcome = launch_from_line("torchrun --nproc-per-node gpu").on(&machine).worker(["alive"]).run();
    assert!(!outcome.expect_exit_code(0).opened().is_empty(), "{outcome}");
}

/// A library is opened in a process that ends before the workers start, never in the launcher.
#[test]
fn launcher_processes_open_no_driver_library() {
    let job = launch_from_line("rankrun --devices 1,0 --check-devices").on(&Machine::gpus(2));
    let job = job.worker(["alive", "forever"]).start();
    job.wait_for_lines("alive rank=", 2);
    let (guard, agent) = (job.pid(), job.only_child_of(job.pid()));
    for pid in [guard, agent] {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
        assert!(!maps.contains("libfake_"), "process {pid} has a vendor's library\n{job}");
    }
    job.signal(nix::sys::signal::Signal::SIGTERM);
    let opened = job.wait().opened();
    assert!(!opened.is_empty());
    assert!(opened.iter().all(|(_, pid)| *pid != guard && *pid != agent), "{opened:?}");
}

#[test]
fn gpu_with_less_memory_is_reported() {
    let machine = Machine::mixed();
    let outcome = assert_devices("rankrun --devices 0,1", &machine, &[0, 1]);
    outcome.expect_stderr("11.0 GiB").expect_stderr("24.0 GiB");
    let outcome = assert_devices("rankrun --devices 1,2", &machine, &[1, 2]);
    outcome.expect_absent("11.0 GiB");
    assert_eq!(worker_devices(&outcome).len(), 2);
}
