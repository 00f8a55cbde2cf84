//! Slurm's variables of a task of a step: `srun` sets them, of which those of a batch script tell too little.

use super::{Number, ScheduledJob, Setting, TaskEnvironment, TasksOnNode, Variables, variable_value};
use crate::cli::error::{CliError, SettingError};
use crate::cli::nodelist;
use crate::cli::scheduler::{STEP_ID, STEP_NODE_LIST, STEP_NODES, STEP_TASKS, STEP_TASKS_PER_NODE, tasks_on};

/// What `srun -m` says.
const DISTRIBUTION: &str = "SLURM_DISTRIBUTION";
/// How often the job was requeued.
const RESTARTS: &str = "SLURM_RESTART_COUNT";
/// Of a job with parts that `srun` starts by `:`; each part has numbers of its own.
const PARTS: &str = "SLURM_HET_SIZE";
/// The variables by which Slurm gives a task its devices.
const DEVICE_LISTS: [&str; 4] =
    ["SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"];
/// How many the step has on this node.
const ON_NODE: &str = "SLURM_GPUS_ON_NODE";

/// Ports from here on: below the ephemeral ones (`net.ipv4.ip_local_port_range`), and above what daemons use.
const FIRST_PORT: u16 = 20_000;
/// A prime, so that jobs with neighbouring ids and their steps meet late.
const PORTS: u64 = 9_973;

/// The job of the step.
///
/// # Errors
/// See [`find_scheduled_job`](super::find_scheduled_job).
pub(super) fn read(environment: &TaskEnvironment<'_>) -> Result<ScheduledJob, CliError> {
    if let Some(parts) = (environment.variable)(PARTS).filter(|parts| *parts != "1") {
        let message = format!(
            "`{PARTS}` is `{parts}`: the parts of a heterogeneous job have variables of their own, which do not tell of \
             the others"
        );
        let hint = "give `--nnodes`, `--node-rank` and `--master-addr`; for a separate job add `--nnodes 1`";
        return Err(CliError::refused(message, hint));
    }
    let tasks = environment.number(STEP_TASKS)?;
    let nodes = environment.number(STEP_NODES)?;
    if tasks.value < nodes.value {
        let problem = format!("and {} is `{}`: each node of a step has a task", nodes.origin, nodes.value);
        return Err(SettingError::of_value(tasks.origin, tasks.value, problem, super::PASS_ALL).into());
    }
    let node_rank = environment.number("SLURM_NODEID")?;
    let on_node = (tasks.value > nodes.value).then(|| tasks_on_node(environment, &node_rank)).transpose()?;
    let job = environment.number("SLURM_JOB_ID")?;
    let step = environment.number(STEP_ID)?.value;
    let restarts = match (environment.variable)(RESTARTS) {
        Some(_) => environment.number(RESTARTS)?.value,
        None => 0,
    };
    let id = match restarts {
        0 => format!("{}.{step}", job.value),
        restarts => format!("{}.{step}-restart{restarts}", job.value),
    };
    let hosts = hosts(environment, &nodes)?;
    // Under it task 0, which hosts the store, may be on any node, and nothing tells the other tasks on which.
    let is_known = on_node.is_none() || (environment.variable)(DISTRIBUTION) != Some("arbitrary");
    Ok(ScheduledJob {
        hosts: Some(hosts).filter(|_| is_known),
        task: environment.number("SLURM_PROCID")?,
        port: Some(Setting { origin: job.origin.clone(), value: port(job.value, step, restarts) }),
        run_id: Some(Setting { origin: job.origin, value: id }),
        nodes,
        node_rank,
        tasks,
        on_node,
    })
}

/// Also another one for each incarnation: a node that was cut off finds no store, and its workers do not reach ours.
pub(super) fn port(job: u32, step: u32, restarts: u32) -> u16 {
    let offset = (u64::from(job) * 61 + u64::from(step) * 7 + u64::from(restarts)) % PORTS;
    FIRST_PORT + u16::try_from(offset).unwrap_or_default()
}

fn hosts(environment: &TaskEnvironment<'_>, nodes: &Number) -> Result<Setting<Vec<String>>, CliError> {
    let text = environment.text(STEP_NODE_LIST)?;
    let list = variable_value(STEP_NODE_LIST, text);
    let hint = "`scontrol show hostnames` reads the list; name the first host by `--master-addr`, and the nodes by \
                `--nnodes` and `--node-rank`";
    let Some(hosts) = nodelist::expand(text) else {
        return Err(SettingError::of_value(list.origin, text, "which is not a list of hosts", hint).into());
    };
    if u32::try_from(hosts.len()) != Ok(nodes.value) {
        let problem = format!("which are {} hosts, and {} is `{}`", hosts.len(), nodes.origin, nodes.value);
        return Err(SettingError::of_value(list.origin, text, problem, super::PASS_ALL).into());
    }
    Ok(Setting { origin: list.origin, value: hosts })
}

fn tasks_on_node(environment: &TaskEnvironment<'_>, node_rank: &Number) -> Result<TasksOnNode, CliError> {
    let text = environment.text(STEP_TASKS_PER_NODE)?;
    let Some(count) = tasks_on(text, node_rank.value) else {
        let problem = "which is not a list of numbers such as `8(x2),4`";
        let origin = variable_value(STEP_TASKS_PER_NODE, ()).origin;
        return Err(SettingError::of_value(origin, text, problem, super::PASS_ALL).into());
    };
    let count = variable_value(STEP_TASKS_PER_NODE, count);
    Ok(TasksOnNode {
        has_own_devices: has_own_devices(environment.variable, &count)?,
        index: environment.number("SLURM_LOCALID")?,
        count,
    })
}

/// Lists of a task on CPUs.
const NO_DEVICES: [&str; 3] = ["", "-1", "NoDevFiles"];

/// `--gpus-per-task` and `--gpu-bind` leave a task fewer devices than the step has on the node, and other ones than the
/// other tasks have, where there are enough.
fn has_own_devices(variable: Variables<'_>, tasks: &Number) -> Result<bool, CliError> {
    let Some(on_node) = variable(ON_NODE).and_then(|count| count.trim().parse::<usize>().ok()) else {
        return Ok(false);
    };
    let lists = DEVICE_LISTS.iter().filter_map(|name| Some((*name, variable(name)?)));
    let lists = lists.filter(|(_, list)| !NO_DEVICES.contains(list));
    let counts = lists.map(|(name, list)| (list.split(',').count(), name, list));
    let Some((count, name, list)) =
        counts.min_by_key(|(count, ..)| *count).filter(|(count, ..)| *count < on_node)
    else {
        return Ok(false);
    };
    let tasks = usize::try_from(tasks.value).unwrap_or(usize::MAX);
    // There is no choice among one, also where there are more tasks than devices.
    if count == 1 || count.saturating_mul(tasks) <= on_node {
        return Ok(true);
    }
    let problem = format!(
        "and `{ON_NODE}` is `{on_node}`: {tasks} tasks with so many devices each share some, and nothing says which of \
         them is this task's"
    );
    let hint = "let each task have one of its own (`--gpus-per-task=1`), or all see all (`--gpu-bind=none`)";
    Err(SettingError::of_value(variable_value(name, ()).origin, list, problem, hint).into())
}
