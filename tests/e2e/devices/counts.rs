//! How many workers, and how they share.

use harness::{Launch, Machine, Name, only_ours};

use super::{each_sees, gives, got, launch_gives, refused, seat_lines, typed};

#[test]
fn one_worker_for_each_card() {
    gives("rankrun", &Machine::gpus(1), &[0]);
    gives("rankrun", &Machine::gpus(4), &[0, 1, 2, 3]);
    gives("rankrun", &Machine::gpus(8), &[0, 1, 2, 3, 4, 5, 6, 7]);
    gives("CUDA_VISIBLE_DEVICES=3,0,1 rankrun", &Machine::gpus(4), &[3, 0, 1]);
    gives("rankrun --devices all", &Machine::gpus(4), &[0, 1, 2, 3]);
}

#[test]
fn torchrun_starts_one() {
    gives("torchrun", &Machine::gpus(4), &[0]);
}

#[test]
fn without_any_card_one_worker() {
    let outcome = Launch::new(Name::Rankrun).args(["--standalone"]).worker(["alive"]).run();
    outcome.exits(0);
    assert_eq!(outcome.lines_with("alive rank=").len(), 1, "{outcome}");
}

#[test]
fn counted_by_a_word() {
    if !only_ours() {
        return;
    }
    for name in ["rankrun", "torchrun"] {
        let machine = Machine::gpus(4);
        for word in ["gpu", "auto", "cuda"] {
            if (name, word) == ("torchrun", "cuda") {
                continue;
            }
            gives(&format!("{name} --nproc-per-node {word}"), &machine, &[0, 1, 2, 3]);
            gives(&format!("CUDA_VISIBLE_DEVICES=2,1 {name} --nproc-per-node {word}"), &machine, &[2, 1]);
            gives(&format!("CUDA_VISIBLE_DEVICES=2,9,1 {name} --nproc-per-node {word}"), &machine, &[2]);
        }
        gives(&format!("{name} --nproc-per-node auto"), &Machine::gpus(1), &[0]);
    }
    gives("rankrun --devices 3,1 --nproc-per-node auto", &Machine::gpus(4), &[3, 1]);
}

#[test]
fn no_card_to_count() {
    if !only_ours() {
        return;
    }
    for name in ["rankrun", "torchrun"] {
        let hidden = format!("CUDA_VISIBLE_DEVICES= {name} --nproc-per-node gpu");
        refused(&hidden, &Machine::gpus(2), &["CUDA_VISIBLE_DEVICES"]);
        refused(&format!("{name} --nproc-per-node gpu"), &Machine::empty(), &["gpu"]);
        refused(&format!("{name} --nproc-per-node xpu"), &Machine::gpus(2), &["xpu"]);
    }
}

#[test]
fn fewer_workers_than_cards() {
    each_sees(&gives("rankrun --nproc-per-node 2", &Machine::gpus(4), &[0, 1]), 4);
    gives("rankrun --devices 3,2,1 --nproc-per-node 2", &Machine::gpus(4), &[3, 2]);
}

#[test]
fn more_workers_than_cards() {
    let machine = Machine::gpus(2);
    let says = ["3 workers", &machine.pci(0), &machine.pci(1), "--oversubscribe", "--nproc-per-node"];
    refused("rankrun --nproc-per-node 3", &machine, &says);
    refused("rankrun --devices 1 --nproc-per-node 2", &machine, &["2 workers", "1 device"]);
    refused("CUDA_VISIBLE_DEVICES=1 rankrun --nproc-per-node 2", &machine, &["2 workers", "1 device"]);
    // torchrun starts them, and every worker sees both.
    if only_ours() {
        let launch = typed("torchrun --nproc-per-node 3").on(&machine);
        launch.worker(["print=started"]).run().exits(0).says("started");
    }
}

#[test]
fn sharing() {
    let machine = Machine::gpus(2);
    let own = "rankrun --nproc-per-node 5 --oversubscribe --device-visibility own";
    each_sees(&gives(own, &machine, &[0, 1, 0, 1, 0]), 1);
    // A whole list would not have a place for the third worker's number.
    gives("rankrun --devices 1,0 --nproc-per-node 4 --oversubscribe", &machine, &[1, 0, 1, 0]);
}

#[test]
fn a_line_for_each_worker() {
    let machine = Machine::gpus(4);
    let outcome = gives("rankrun --devices 3,1", &machine, &[3, 1]);
    let lines = seat_lines(&outcome, 2);
    for (line, card) in lines.iter().zip([3, 1]) {
        assert!(line.contains("NVIDIA H100 80GB HBM3"), "{outcome}");
        assert!(line.contains(&machine.pci(card)) && line.contains("--devices"), "{outcome}");
    }
    let outcome = gives("CUDA_VISIBLE_DEVICES=2,0 rankrun", &machine, &[2, 0]);
    assert!(seat_lines(&outcome, 2).iter().all(|line| line.contains("CUDA_VISIBLE_DEVICES")), "{outcome}");
    seat_lines(&gives("rankrun", &machine, &[0, 1, 2, 3]), 4);
}

#[test]
fn quiet() {
    let machine = Machine::gpus(2);
    seat_lines(&gives("rankrun --quiet --devices 1", &machine, &[1]), 0);
    seat_lines(&gives("torchrun --nproc-per-node 2", &machine, &[0, 1]), 0);
}

/// Each of eight tasks would start a worker for each of the cards.
#[test]
fn several_launchers_on_one_node() {
    if !only_ours() {
        return;
    }
    let machine = Machine::gpus(8);
    for (variables, fix) in [
        ("SLURM_PROCID=3 SLURM_STEP_ID=0 SLURM_STEP_TASKS_PER_NODE=8(x2)", "--ntasks-per-node=1 rankrun"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=3", "mpirun"),
    ] {
        refused(&format!("{variables} rankrun"), &machine, &["8 tasks", fix, "--nproc-per-node"]);
        gives(&format!("{variables} rankrun --nproc-per-node 1"), &machine, &[0]);
        gives(&format!("{variables} torchrun --nproc-per-node 2"), &machine, &[0, 1]);
    }
    // One task on each node, and a batch script, are as they should be.
    for variables in [
        "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_STEP_TASKS_PER_NODE=1(x2)",
        "SLURM_PROCID=0 SLURM_STEP_ID=4294967291 SLURM_TASKS_PER_NODE=8",
        "OMPI_COMM_WORLD_LOCAL_SIZE=1",
    ] {
        let launch = typed(&format!("{variables} rankrun --quiet"));
        launch_gives(launch, &machine, &[0, 1, 2, 3, 4, 5, 6, 7]);
    }
}

/// Without a choice or count of devices only the workers open a driver's library.
#[test]
fn nothing_is_looked_at_without_need() {
    if !only_ours() {
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
        let outcome = typed(line).on(&machine).worker(["alive"]).run();
        outcome.exits(0);
        assert_eq!(outcome.opened(), [], "{line}\n{outcome}");
    }
    // The trap works: a launcher that looks leaves a trace.
    let outcome = typed("torchrun --nproc-per-node gpu").on(&machine).worker(["alive"]).run();
    assert!(!outcome.exits(0).opened().is_empty(), "{outcome}");
}

/// A library is opened in a process that ends before the workers start, never in the launcher.
#[test]
fn the_launcher_opens_no_library() {
    let job = typed("rankrun --devices 1,0 --check-devices").on(&Machine::gpus(2));
    let job = job.worker(["alive", "forever"]).start();
    job.lines("alive rank=", 2);
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
fn a_worker_on_a_small_card_is_named() {
    let machine = Machine::mixed();
    let outcome = gives("rankrun --devices 0,1", &machine, &[0, 1]);
    outcome.complains("11.0 GiB").complains("24.0 GiB");
    let outcome = gives("rankrun --devices 1,2", &machine, &[1, 2]);
    outcome.never_says("11.0 GiB");
    assert_eq!(got(&outcome).len(), 2);
}
