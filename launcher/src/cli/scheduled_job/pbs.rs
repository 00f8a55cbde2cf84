//! The variables of a task that `pbsdsh` starts. PBS gives its own script such numbers too, those of the first task.

use std::ffi::OsStr;

use super::hosts::{self, BatchJob, NODE_FILE, batch_job, distinct, hosts_of_pbs};
use super::{ScheduledJob, Setting, variable_value};
use crate::cli::error::{CliError, Origin, SettingError};
use crate::cli::nesting::is_inside_worker;
use rankrun_core::facts::Facts;

const NODE: &str = "PBS_NODENUM";
/// In decimal or, of OpenPBS, hexadecimal digits; 1 is the job's script.
const TASK: &str = "PBS_TASKNUM";

/// The job of this task, if it is one of several.
///
/// # Errors
/// The file of hosts cannot be read, or names a host twice: tasks on one node have no numbers of their own there.
pub(super) fn find(facts: &Facts) -> Result<Option<ScheduledJob>, CliError> {
    let text = |name: &str| facts.filled_variable(name).and_then(OsStr::to_str).map(str::trim);
    let (Some(node), Some(task)) = (text(NODE), text(TASK)) else { return Ok(None) };
    let is_script = node == "0" && task.trim_start_matches('0') == "1";
    if is_script || is_inside_worker(facts) {
        return Ok(None);
    }
    let Some(file) = text(NODE_FILE) else {
        let message = format!("`{NODE_FILE}` is not set, and `{TASK}` says that `pbsdsh` started this task");
        return Err(CliError::refused(message, super::PASS_ALL));
    };
    let origin = Origin::Variable(NODE_FILE.to_owned());
    let Some(slots) = hosts_of_pbs(facts) else {
        let problem = "a file that cannot be read as a list of hosts";
        return Err(SettingError::of_value(origin, file, problem, super::PASS_ALL).into());
    };
    let nodes = distinct(slots.iter().map(String::as_str));
    if nodes.len() != slots.len() {
        let problem = format!(
            "which has {} slots on {} hosts: several tasks of `pbsdsh` on a host cannot be told apart",
            slots.len(),
            nodes.len()
        );
        let hint = "ask for one slot on each host (`mpiprocs=1` of OpenPBS, `ppn=1` of TORQUE); for separate jobs add `--nnodes 1`";
        return Err(SettingError::of_value(origin, file, problem, hint).into());
    }
    let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    if count < 2 {
        return Ok(None);
    }
    let Ok(node_rank) = node.parse() else {
        let origin = Origin::Variable(NODE.to_owned());
        return Err(
            SettingError::of_value(origin, node, "which is not a number from 0 up", super::PASS_ALL).into()
        );
    };
    let nodes = Setting { origin, value: count };
    let (port, run_id) = batch_job(facts).map(|BatchJob { port, run_id }| (port, run_id)).unzip();
    let job = ScheduledJob {
        node_rank: variable_value(NODE, node_rank),
        tasks: nodes.clone(),
        task: variable_value(NODE, node_rank),
        on_node: None,
        hosts: hosts::hosts_of_nodes(facts, &nodes),
        port,
        run_id,
        nodes,
    };
    super::is_below(&job.node_rank, &job.nodes)?;
    Ok(Some(job))
}
