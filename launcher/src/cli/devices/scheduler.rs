//! Whether a scheduler started several tasks on this node, each of them a launcher. Pure: a lookup in the environment.
//!
//! Slurm sets `SLURM_PROCID` in a batch script too, which is no task of a step: there it is 0, `SLURM_STEP_ID` is
//! missing or one of the large numbers that mean the script itself, and `SLURM_TASKS_PER_NODE` speaks of tasks that
//! are still to be started. So its task counts are believed where `SLURM_STEP_TASKS_PER_NODE`, which `srun` alone
//! sets, says them, or where the step has a small number, or where this is not task 0.

/// Several tasks on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tasks {
    /// The variable that says so.
    pub(super) variable: &'static str,
    /// How many.
    pub(super) count: u32,
    /// The command that starts one launcher on each node.
    pub(super) fix: &'static str,
}

/// Local sizes that MPI launchers tell their tasks.
const OF_MPI: [(&str, &str); 6] = [
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "mpirun --map-by ppr:1:node rankrun …"),
    ("MPI_LOCALNRANKS", "mpiexec -ppn 1 rankrun …"),
    ("MV2_COMM_WORLD_LOCAL_SIZE", "mpiexec -ppn 1 rankrun …"),
    ("PMI_LOCAL_SIZE", "mpiexec -ppn 1 rankrun …"),
    ("PALS_LOCAL_SIZE", "mpiexec --ppn 1 rankrun …"),
    ("JSM_NAMESPACE_LOCAL_SIZE", "jsrun --tasks_per_rs 1 --rs_per_host 1 rankrun …"),
];
const SRUN: &str = "srun --ntasks-per-node=1 rankrun …";
/// Slurm's numbers from here on are no steps: 4294967291 is the batch script.
const NO_STEP: u32 = 0xffff_fff0;

/// The tasks on this node, if there are several.
pub(super) fn several_tasks<'a>(variable: impl Fn(&str) -> Option<&'a str>) -> Option<Tasks> {
    let of_mpi = OF_MPI.iter().find_map(|(name, fix)| {
        let count = variable(name)?.trim().parse().ok()?;
        Some(Tasks { variable: name, count, fix }).filter(|tasks| tasks.count > 1)
    });
    // `mpirun` may start its own daemons as a step of one task on each node.
    of_slurm(&variable).filter(|tasks| tasks.count > 1).or(of_mpi)
}

fn of_slurm<'a>(variable: impl Fn(&str) -> Option<&'a str>) -> Option<Tasks> {
    let task: u32 = variable("SLURM_PROCID")?.trim().parse().ok()?;
    let node = variable("SLURM_NODEID").and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let of = |name: &'static str| {
        let count = tasks_on(variable(name)?, node)?;
        Some(Tasks { variable: name, count, fix: SRUN })
    };
    let step = variable("SLURM_STEP_ID").or_else(|| variable("SLURM_STEPID"));
    let in_a_step =
        task > 0 || step.and_then(|step| step.parse().ok()).is_some_and(|step: u32| step < NO_STEP);
    of("SLURM_STEP_TASKS_PER_NODE").or_else(|| {
        let of_the_job = || of("SLURM_TASKS_PER_NODE").or_else(|| of("SLURM_NTASKS_PER_NODE"));
        in_a_step.then(of_the_job).flatten()
    })
}

/// The number for node `node` in a list such as `8(x2),4`; for a list that is shorter, the last one.
fn tasks_on(list: &str, node: u32) -> Option<u32> {
    let mut last = None;
    let mut passed: u64 = 0;
    for item in list.split(',') {
        let (count, nodes) = match item.trim().split_once("(x") {
            Some((count, nodes)) => (count, nodes.strip_suffix(')')?.parse::<u32>().ok()?),
            None => (item.trim(), 1),
        };
        last = Some(count.parse().ok()?);
        passed += u64::from(nodes);
        if u64::from(node) < passed {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks(environment: &[(&'static str, &'static str)]) -> Option<(&'static str, u32)> {
        let variable = |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
        several_tasks(variable).map(|tasks| (tasks.variable, tasks.count))
    }

    #[test]
    fn a_step_with_several_tasks_on_this_node_is_seen() {
        const STEP: &str = "SLURM_STEP_TASKS_PER_NODE";
        for (environment, expected) in [
            (vec![], None),
            // A batch script: the tasks are still to come.
            (vec![("SLURM_PROCID", "0"), ("SLURM_TASKS_PER_NODE", "8(x2)")], None),
            (vec![("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "batch"), ("SLURM_NTASKS_PER_NODE", "8")], None),
            (
                vec![("SLURM_PROCID", "0"), ("SLURM_STEPID", "4294967291"), ("SLURM_NTASKS_PER_NODE", "8")],
                None,
            ),
            // The allocation's shell.
            (vec![("SLURM_TASKS_PER_NODE", "8")], None),
            (vec![("SLURM_PROCID", "0"), (STEP, "8(x2)")], Some((STEP, 8))),
            (vec![("SLURM_PROCID", "9"), ("SLURM_NODEID", "1"), (STEP, "8,4")], Some((STEP, 4))),
            (vec![("SLURM_PROCID", "9"), ("SLURM_NODEID", "2"), (STEP, "8(x2),1")], None),
            // `srun --ntasks-per-node=1` inside a script that asked for 8.
            (vec![("SLURM_PROCID", "0"), (STEP, "1(x2)"), ("SLURM_NTASKS_PER_NODE", "8")], None),
            (vec![("SLURM_PROCID", "3"), ("SLURM_NTASKS_PER_NODE", "8")], Some(("SLURM_NTASKS_PER_NODE", 8))),
            (
                vec![("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "0"), ("SLURM_TASKS_PER_NODE", "2(x3)")],
                Some(("SLURM_TASKS_PER_NODE", 2)),
            ),
            (vec![("OMPI_COMM_WORLD_LOCAL_SIZE", "8")], Some(("OMPI_COMM_WORLD_LOCAL_SIZE", 8))),
            (vec![("OMPI_COMM_WORLD_LOCAL_SIZE", "1")], None),
            (vec![("MPI_LOCALNRANKS", " 2")], Some(("MPI_LOCALNRANKS", 2))),
            (vec![("PMI_LOCAL_SIZE", "many")], None),
            (
                vec![("SLURM_PROCID", "0"), (STEP, "1(x2)"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "4")],
                Some(("OMPI_COMM_WORLD_LOCAL_SIZE", 4)),
            ),
            (
                vec![("SLURM_PROCID", "0"), (STEP, "8(x"), ("MPI_LOCALNRANKS", "2")],
                Some(("MPI_LOCALNRANKS", 2)),
            ),
        ] {
            assert_eq!(tasks(&environment), expected, "{environment:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_list_panics(list in "[0-9(x),]{0,24}", node in 0u32..) {
            let _ = tasks_on(&list, node);
        }
    }
}
