//! Whether a scheduler or an MPI launcher started this launcher once for each of its tasks. Pure: a lookup in the
//! environment.
//!
//! Slurm sets `SLURM_PROCID` in a batch script too, which is not a task of a step: there `SLURM_STEP_ID` is missing or
//! one of the large numbers that mean the script itself, and `SLURM_TASKS_PER_NODE` counts tasks that are still to be
//! started. `srun` alone sets the `SLURM_STEP_*` variables: one of them shows a step, also where others are missing.
//! `sbatch` in a task hands them on to the script of another job, which has other hosts.

use std::collections::HashSet;
use std::ffi::OsStr;

use super::nesting::is_inside_worker;
use super::nodelist;
use rankrun_core::facts::{Facts, StandardStream};

/// What started the tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Starter {
    /// `srun`
    Slurm,
    /// An MPI launcher.
    Mpi(&'static MpiNames),
}

/// A number of tasks, and the variable that says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tasks {
    pub(super) variable: &'static str,
    pub(super) count: u32,
}

/// The step of which this launcher is one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) starter: Starter,
    /// The variable that shows it.
    pub(super) sign: &'static str,
    /// On all nodes, where there are several.
    pub(super) all: Option<Tasks>,
    /// On this node, where there are several.
    pub(super) here: Option<Tasks>,
    /// How many nodes have such tasks.
    pub(super) nodes: u32,
}

impl Starter {
    /// The variable with the number of tasks on all nodes.
    pub(super) fn task_count(self) -> &'static str {
        match self {
            Self::Slurm => STEP_TASKS,
            Self::Mpi(names) => names.all,
        }
    }
}

/// The names under which one MPI launcher tells its tasks of each other, and its own words.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MpiNames {
    /// The number of tasks on all nodes.
    pub(super) all: &'static str,
    /// The number of tasks on this node.
    pub(super) here: &'static str,
    /// The index of the task among all.
    pub(super) rank: &'static str,
    /// The index of the task among those of its node.
    pub(super) local_rank: &'static str,
    /// The command.
    pub(super) command: &'static str,
    /// Before the number of nodes; empty where the command has hosts of its own.
    pub(super) count: &'static str,
    /// One task on each node.
    pub(super) one_per_node: &'static str,
}

const fn mpi(
    [all, here, rank, local_rank]: [&'static str; 4],
    [command, count, one_per_node]: [&'static str; 3],
) -> MpiNames {
    MpiNames { all, here, rank, local_rank, command, count, one_per_node }
}

const HYDRA: [&str; 3] = ["mpiexec", "-n", "-ppn 1"];
static MPI: [MpiNames; 6] = [
    mpi(
        [
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_LOCAL_RANK",
        ],
        ["mpirun", "", "--map-by ppr:1:node"],
    ),
    mpi(["PMI_SIZE", "MPI_LOCALNRANKS", "PMI_RANK", "MPI_LOCALRANKID"], HYDRA),
    mpi(
        [
            "MV2_COMM_WORLD_SIZE",
            "MV2_COMM_WORLD_LOCAL_SIZE",
            "MV2_COMM_WORLD_RANK",
            "MV2_COMM_WORLD_LOCAL_RANK",
        ],
        HYDRA,
    ),
    mpi(["PMI_SIZE", "PALS_LOCAL_SIZE", "PMI_RANK", "PALS_LOCAL_RANKID"], ["mpiexec", "-n", "--ppn 1"]),
    mpi(
        ["JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_SIZE", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK"],
        ["jsrun", "--nrs", "--tasks_per_rs 1 --rs_per_host 1"],
    ),
    mpi(["PMI_SIZE", "PMI_LOCAL_SIZE", "PMI_RANK", "PMI_LOCAL_RANK"], HYDRA),
];
/// Open MPI up to version 4 says it; otherwise the sizes do.
pub(super) const OPEN_MPI_NODES: &str = "OMPI_MCA_orte_num_nodes";
/// Several MPI launchers set them, and `srun --mpi=pmi2`.
pub(super) const PMI: [&str; 2] = ["PMI_SIZE", "PMI_RANK"];
/// The tasks of a step of Slurm on all nodes, and those of each node.
pub(super) const STEP_TASKS: &str = "SLURM_STEP_NUM_TASKS";
pub(super) const STEP_TASKS_PER_NODE: &str = "SLURM_STEP_TASKS_PER_NODE";
/// The nodes of a step, and their names.
pub(super) const STEP_NODES: &str = "SLURM_STEP_NUM_NODES";
pub(super) const STEP_NODE_LIST: &str = "SLURM_STEP_NODELIST";
/// The number of a step in its job.
pub(super) const STEP_ID: &str = "SLURM_STEP_ID";
/// What `srun` sets for its tasks alone.
const OF_STEP: [&str; 6] =
    [STEP_TASKS, STEP_TASKS_PER_NODE, STEP_NODES, STEP_NODE_LIST, STEP_ID, "SLURM_STEPID"];
/// Slurm's numbers from here on are not steps: 4294967291 is the batch script, 4294967290 the shell of `salloc`.
const NO_STEP: u32 = 0xffff_fff0;

/// The step, if this launcher is a task of one. A worker is not: its launcher was the task.
pub(super) fn find_step(facts: &Facts) -> Option<Step> {
    if is_inside_worker(facts) {
        return None;
    }
    let step = step_of(|name| facts.variable(name).and_then(OsStr::to_str));
    step.filter(|step| step.starter != Starter::Slurm || !is_in_shell_of_pty(facts))
}

/// Whether this is typed into the shell of `srun --pty`, whose other tasks have ended: they have no input. A task of an
/// inner `srun` inherits the port, and has no terminal. A program or a script behind `srun --pty` stays a task.
pub(super) fn is_in_shell_of_pty(facts: &Facts) -> bool {
    let number = |name: &str| facts.variable(name)?.to_str()?.trim().parse::<u32>().ok();
    number("SLURM_PTY_PORT").is_some()
        && facts.world().is_terminal(StandardStream::Input)
        && facts.world().is_shell_job()
}

/// How many nodes the Slurm allocation has, where several.
pub(super) fn nodes_of_allocation(facts: &Facts) -> Option<u32> {
    let variable = |name: &str| facts.variable(name).and_then(OsStr::to_str);
    variable("SLURM_JOB_ID").filter(|_| !is_inside_worker(facts))?;
    let nodes = number(&variable, "SLURM_JOB_NUM_NODES").or_else(|| number(&variable, "SLURM_NNODES"));
    nodes.filter(|nodes| *nodes > 1)
}

fn step_of<'a>(variable: impl Fn(&str) -> Option<&'a str>) -> Option<Step> {
    let is_set = |name: &&str| variable(name).is_some_and(|value| !value.trim().is_empty());
    let mpi = |names: &'static MpiNames, signs: &[&'static str]| {
        let sign = signs.iter().copied().filter(|name| !PMI.contains(name)).find(is_set)?;
        Some(step_of_mpi(names, sign, &variable))
    };
    // `jsrun` sets some names of Open MPI too.
    let with_count = || MPI.iter().find_map(|names| mpi(names, &[names.here]));
    let with_any = || MPI.iter().find_map(|names| mpi(names, &[names.local_rank, names.all, names.rank]));
    let pmi = || {
        let sign = PMI.into_iter().find(is_set)?;
        let names = MPI.iter().find(|names| names.all == PMI[0])?;
        Some(step_of_mpi(names, sign, &variable))
    };
    // `mpirun` may start its own daemons as a step of one task on each node. With `MpiDefault=pmi2` Slurm says to the shell
    // of `salloc` too that it is one of one.
    let pmi = || pmi().filter(|step| step.all.is_some() || !is_outside_steps(&variable));
    with_count().or_else(with_any).or_else(|| step_of_slurm(&variable)).or_else(pmi)
}

fn number<'a>(variable: &impl Fn(&str) -> Option<&'a str>, name: &str) -> Option<u32> {
    variable(name)?.trim().parse().ok()
}

fn several(tasks: Tasks) -> Option<Tasks> {
    Some(tasks).filter(|tasks| tasks.count > 1)
}

fn step_of_mpi<'a>(
    names: &'static MpiNames,
    sign: &'static str,
    variable: &impl Fn(&str) -> Option<&'a str>,
) -> Step {
    let tasks = |name| number(variable, name).and_then(|count| several(Tasks { variable: name, count }));
    let here = tasks(names.here);
    let all = tasks(names.all).or(here);
    let nodes = number(variable, OPEN_MPI_NODES);
    let nodes = nodes.unwrap_or_else(|| count_nodes(all, here));
    Step { starter: Starter::Mpi(names), sign, all, here, nodes }
}

fn step_of_slurm<'a>(variable: &impl Fn(&str) -> Option<&'a str>) -> Option<Step> {
    let text = |name: &str| variable(name).map(str::trim).filter(|value| !value.is_empty());
    // A batch script is number 0 too.
    let is_later_task = || text("SLURM_PROCID").filter(|task| *task != "0").map(|_| "SLURM_PROCID");
    let sign = OF_STEP.into_iter().find(|name| text(name).is_some()).or_else(is_later_task)?;
    if is_outside_steps(variable) || is_step_of_other_job(variable) {
        return None;
    }
    let node = number(variable, "SLURM_NODEID").unwrap_or(0);
    let of = |name: &'static str| {
        let count = tasks_on(variable(name)?, node)?;
        Some(Tasks { variable: name, count })
    };
    let here =
        [STEP_TASKS_PER_NODE, "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"].into_iter().find_map(of);
    let here = here.and_then(several);
    let all = number(variable, STEP_TASKS).map(|count| Tasks { variable: STEP_TASKS, count });
    let all = all.and_then(several).or(here);
    let nodes = number(variable, STEP_NODES).unwrap_or_else(|| count_nodes(all, here));
    Some(Step { starter: Starter::Slurm, sign, all, here, nodes })
}

/// Whether this is the batch script or the shell of `salloc`, by the number of its step.
fn is_outside_steps<'a>(variable: &impl Fn(&str) -> Option<&'a str>) -> bool {
    let id = number(variable, STEP_ID).or_else(|| number(variable, "SLURM_STEPID"));
    id.is_some_and(|id| id >= NO_STEP)
}

/// Whether `sbatch` in a task of another job has handed that task's variables on to the script of this one.
fn is_step_of_other_job<'a>(variable: &impl Fn(&str) -> Option<&'a str>) -> bool {
    // The parts of a heterogeneous job have lists of their own.
    if variable("SLURM_HET_SIZE").is_some() {
        return false;
    }
    let hosts = |name: &str| variable(name).and_then(nodelist::expand);
    match (hosts(STEP_NODE_LIST), hosts("SLURM_JOB_NODELIST")) {
        (Some(step), Some(job)) => {
            let job: HashSet<String> = job.into_iter().collect();
            !step.iter().all(|host| job.contains(host))
        }
        _ => false,
    }
}

/// Where each node has as many tasks as this one.
fn count_nodes(all: Option<Tasks>, here: Option<Tasks>) -> u32 {
    let here = here.map_or(1, |here| here.count);
    all.map_or(1, |all| all.count.div_ceil(here))
}

/// The number for node `node` in a list such as `8(x2),4`; for a list that is shorter, the last one.
pub(super) fn tasks_on(list: &str, node: u32) -> Option<u32> {
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

    type Environment = Vec<(&'static str, &'static str)>;

    fn step(environment: &Environment) -> Option<Step> {
        step_of(|name| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| *value))
    }

    #[test]
    fn step_with_several_tasks_on_node_is_detected() {
        const STEP: &str = "SLURM_STEP_TASKS_PER_NODE";
        for (environment, expected) in [
            (vec![], None),
            // A batch script: the tasks are still to come.
            (vec![("SLURM_PROCID", "0"), ("SLURM_TASKS_PER_NODE", "8(x2)")], None),
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
            let here = step(&environment).and_then(|step| step.here);
            assert_eq!(here.map(|tasks| (tasks.variable, tasks.count)), expected, "{environment:?}");
        }
    }

    #[test]
    fn step_gives_number_of_tasks_and_nodes() {
        const ALL: &str = "SLURM_STEP_NUM_TASKS";
        const OMPI: &str = "OMPI_COMM_WORLD_SIZE";
        let slurm =
            |all| vec![("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "0"), (ALL, all), ("SLURM_NNODES", "2")];
        let with = |more: Environment| [slurm("2"), more].concat();
        for (environment, expected) in [
            (slurm("2"), Some((ALL, 2, 2))),
            (vec![("SLURM_PROCID", "0"), (ALL, "3")], Some((ALL, 3, 3))),
            (slurm("1"), None),
            (slurm(""), None),
            (vec![(ALL, "2")], Some((ALL, 2, 2))),
            (with(vec![("SLURM_STEP_NUM_NODES", "1")]), Some((ALL, 2, 1))),
            // The shell of `salloc`, where it is a step.
            (vec![("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "4294967290"), (ALL, "2")], None),
            // `mpiexec` in it.
            (vec![("SLURM_STEP_ID", "4294967290"), ("PMI_SIZE", "2")], Some(("PMI_SIZE", 2, 2))),
            // The daemons of `mpirun` are a step of two, and it starts one task.
            (with(vec![(OMPI, "1"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "1")]), None),
            (with(vec![("PMI_SIZE", "2")]), Some((ALL, 2, 2))),
            (vec![(OMPI, "6"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")], Some((OMPI, 6, 3))),
            (
                vec![(OMPI, "5"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"), ("OMPI_MCA_orte_num_nodes", "2")],
                Some((OMPI, 5, 2)),
            ),
            (vec![("PMI_SIZE", "4")], Some(("PMI_SIZE", 4, 4))),
            (vec![("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", "4")], Some(("PMI_SIZE", 4, 1))),
        ] {
            let step = step(&environment);
            let said = step.and_then(|step| Some((step.all?.variable, step.all?.count, step.nodes)));
            assert_eq!(said, expected, "{environment:?}");
        }
    }

    #[test]
    fn shell_of_salloc_is_no_task_of_pmi() {
        let shell = vec![("SLURM_STEP_ID", "4294967290"), ("PMI_SIZE", "1"), ("PMI_RANK", "0")];
        assert_eq!(step(&shell), None);
        assert!(step(&vec![("PMI_SIZE", "1"), ("PMI_RANK", "0")]).is_some());
    }

    proptest::proptest! {
        #[test]
        fn any_task_list_does_not_panic(list in "[0-9(x),]{0,24}", node in 0u32..) {
            let _ = tasks_on(&list, node);
        }
    }
}
