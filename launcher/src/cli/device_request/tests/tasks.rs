//! Devices of launchers that a scheduler starts for each rank.

use super::*;

/// `srun -N1 -n4`, the third task.
const TASK: [(&str, &str); 9] = [
    ("SLURM_JOB_ID", "7"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_STEP_NUM_NODES", "1"),
    ("SLURM_STEP_NODELIST", "gpu07"),
    ("SLURM_NODEID", "0"),
    ("SLURM_PROCID", "2"),
    ("SLURM_LOCALID", "2"),
    ("SLURM_STEP_NUM_TASKS", "4"),
    ("SLURM_STEP_TASKS_PER_NODE", "4"),
];

fn devices(count: u32, more: &[(&str, &str)]) -> (Vec<Option<u32>>, u32) {
    let environment = [&TASK[..], more].concat();
    let launch = launch(with_sign(gpus(count)), "rankrun", &environment);
    let index = |worker: &rankrun_core::device::WorkerDevice| {
        worker.identity.as_ref().map(|device| device.accelerator.index)
    };
    let local_rank = launch.spec.node_task.expect("it is a task").local_rank.0;
    (launch.spec.devices.workers.iter().map(index).collect(), local_rank)
}

#[test]
fn task_has_device_of_its_local_rank_among_those_of_node() {
    assert_eq!(devices(4, &[]), (vec![Some(2)], 2));
    assert_eq!(
        devices(8, &[("SLURM_GPUS_ON_NODE", "8"), ("SLURM_STEP_GPUS", "0,1,2,3,4,5,6,7")]),
        (vec![Some(2)], 2)
    );
}

#[test]
fn task_with_own_device_has_that_one() {
    assert_eq!(devices(1, &[("SLURM_GPUS_ON_NODE", "4"), ("SLURM_STEP_GPUS", "2")]), (vec![Some(0)], 0));
}

#[test]
fn tasks_without_enough_devices_are_refused() {
    let (_, text, _) = refusal(with_sign(gpus(2)), "rankrun", &TASK);
    assert!(text.contains("4 workers") && text.contains("2 devices"), "{text}");
}
