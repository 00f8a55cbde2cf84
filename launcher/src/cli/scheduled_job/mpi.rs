//! The variables of a task of an MPI launcher. None of them names a host: the batch job does, or an option.

use super::hosts::{BatchJob, batch_job, hosts_of_nodes};
use super::{Number, ScheduledJob, TaskEnvironment, TasksOnNode, variable_value};
use crate::cli::error::{CliError, SettingError};
use crate::cli::scheduler::{MpiNames, OPEN_MPI_NODES, PMI};
use rankrun_core::facts::Facts;

/// The job of these tasks.
///
/// # Errors
/// Variables that are missing, and tasks that are not dealt out to the nodes in blocks of one size: of such tasks the
/// environment does not say which node this is.
pub(super) fn read(
    environment: &TaskEnvironment<'_>,
    names: &MpiNames,
    facts: &Facts,
) -> Result<ScheduledJob, CliError> {
    let tasks = environment.number(names.all)?;
    let task = environment.number(names.rank)?;
    let here = match (environment.variable)(names.here) {
        // Other launchers of PMI do not count the tasks of a node.
        None if PMI.contains(&environment.step.sign) => variable_value(names.all, 1),
        _ => environment.number(names.here)?,
    };
    let index = match here.value {
        1 => variable_value(names.here, 0),
        _ => environment.number(names.local_rank)?,
    };
    // Each task sees its own node's block alone. Open MPI up to version 4 counts the nodes.
    let counted = (environment.variable)(OPEN_MPI_NODES).and_then(|count| count.trim().parse::<u32>().ok());
    let is_block = tasks.value.is_multiple_of(here.value.max(1))
        && task.value % here.value.max(1) == index.value
        && counted.is_none_or(|nodes| nodes.checked_mul(here.value) == Some(tasks.value));
    if !is_block {
        return Err(not_in_blocks(&tasks, &here, &task, &index));
    }
    let node = |value| Number { origin: task.origin.clone(), value };
    let nodes = Number { origin: tasks.origin.clone(), value: tasks.value / here.value.max(1) };
    let (port, run_id) = batch_job(facts).map(|BatchJob { port, run_id }| (port, run_id)).unzip();
    // A resource set of `jsrun` has devices of its own.
    let own = (environment.variable)("CUDA_VISIBLE_DEVICES").filter(|_| names.command == "jsrun");
    let has_own_devices =
        own.is_some_and(|list| u32::try_from(list.split(',').count()).is_ok_and(|count| count < here.value));
    Ok(ScheduledJob {
        hosts: hosts_of_nodes(facts, &nodes),
        nodes,
        node_rank: node(task.value / here.value.max(1)),
        on_node: (here.value > 1).then_some(TasksOnNode { count: here, index, has_own_devices }),
        port,
        run_id,
        tasks,
        task,
    })
}

fn not_in_blocks(tasks: &Number, here: &Number, task: &Number, index: &Number) -> CliError {
    let problem = format!(
        "with {} = `{}` of {} = `{}`, and {} = `{}`: the nodes do not have equal blocks of tasks, so the node is not known",
        task.origin, task.value, tasks.origin, tasks.value, index.origin, index.value
    );
    let hint = "start one task on each node, or as many on each one after the other (`--map-by ppr:8:node` of Open MPI, \
                `-ppn 8` of MPICH)";
    SettingError::of_value(here.origin.clone(), here.value, problem, hint).into()
}
