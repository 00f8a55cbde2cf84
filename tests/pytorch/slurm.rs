//! gloo between the hosts of a real Slurm, without an option about nodes.

use harness::{Launch, Name, ProcessTracking, SlurmCluster, is_soak, is_torchrun};

use crate::programs::source;

#[track_caller]
fn run_meet(tracking: ProcessTracking) {
    if is_torchrun() {
        return;
    }
    let size = if is_soak() { 4 } else { 2 };
    let Some(cluster) = SlurmCluster::start(size, tracking) else { return };
    let world = 2 * size;
    for (tasks, options) in [(1, &["--nproc-per-node", "2"][..]), (2, &[])] {
        let launch = Launch::new(Name::Rankrun).with_torch().env("OMP_NUM_THREADS", "1");
        let launch = launch.args(options.iter().copied()).args([source("meet.py")]);
        let outcome = cluster.srun(&format!("-N{size} --ntasks-per-node={tasks}"), launch).run();
        let right = format!("world={world} total={}", world * (world + 1) / 2);
        outcome.expect_exit_code(0).expect_absent("panicked");
        assert_eq!(outcome.lines_with(&right).len(), world, "{outcome}");
        cluster.expect_empty();
    }
}

#[test]
fn tasks_of_slurm_meet_over_gloo() {
    run_meet(ProcessTracking::Parents);
}

#[test]
fn tasks_of_slurm_meet_over_gloo_in_cgroups() {
    run_meet(ProcessTracking::Cgroup);
}
