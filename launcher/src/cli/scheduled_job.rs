//! The job of which a scheduler or an MPI launcher started this launcher as one task. Pure.
//!
//! Where it started one task on each node, the launchers are the nodes of the job. Where it started one for each rank,
//! each launcher is a node of one worker to the rendezvous, and the worker gets the numbers of its machine. The
//! scheduler goes on to own the processes: its signals and its cgroups reach each task without a detour, and no task
//! depends on another one's agent. `defaults` makes settings of it.

mod defaults;
mod hosts;
mod mpi;
mod pbs;
mod slurm;

use rankrun_contract::rank::{LocalRank, LocalWorldSize, NodeCount, NodeRank};

use super::error::{CliError, Origin, SettingError};
use super::option::LaunchOption;
use super::rendezvous::parse_nodes;
use super::scheduler::{STEP_TASKS, Starter, Step, Tasks, find_step};
use super::settings::{Setting, WrittenOption};
pub(super) use defaults::{add_end_of_job, add_settings_of_job};
use rankrun_core::facts::Facts;
use rankrun_core::spec::rendezvous::NodeRange;
use rankrun_core::spec::{CliFlavor, NodeTask};

/// A number, and the variable that says it.
pub(super) type Number = Setting<u32>;

/// The job, and the place of this launcher in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScheduledJob {
    /// The nodes of the step.
    pub(super) nodes: Number,
    /// The index of this node among them.
    pub(super) node_rank: Number,
    /// The tasks on all nodes, more than one.
    pub(super) tasks: Number,
    /// The index of this task among them.
    pub(super) task: Number,
    /// The tasks on this node, where each task is a rank; nothing where each is a node.
    pub(super) on_node: Option<TasksOnNode>,
    /// The hosts of the nodes in the order of their ranks, where the environment names them and the first one has task 0.
    pub(super) hosts: Option<Setting<Vec<String>>>,
    /// A port that no other step of this scheduler is likely to have.
    pub(super) port: Option<Setting<u16>>,
    /// Another one for each incarnation of the job: what is left of an older one finds no store of this one.
    pub(super) run_id: Option<Setting<String>>,
}

/// The tasks of one node, each of which is a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TasksOnNode {
    pub(super) count: Number,
    /// The index of this task among them.
    pub(super) index: Number,
    /// Each task sees devices of its own, and not all of the node.
    pub(super) has_own_devices: bool,
}

impl ScheduledJob {
    /// What the worker is told of its machine.
    pub(super) fn node_task(&self) -> Option<NodeTask> {
        let tasks = self.on_node.as_ref()?;
        Some(NodeTask {
            local_rank: LocalRank(if tasks.has_own_devices { 0 } else { tasks.index.value }),
            local_world_size: LocalWorldSize::new(tasks.count.value)?,
            node_rank: NodeRank(self.node_rank.value),
            nodes: NodeCount::new(self.nodes.value)?,
        })
    }
}

/// A look at the environment.
type Variables<'a> = &'a dyn Fn(&str) -> Option<&'a str>;

/// The job, unless the settings ask for one of one node.
///
/// # Errors
/// Variables that are missing or contradict each other, unless the settings say all that they would.
pub(super) fn find_scheduled_job(
    cli_flavor: CliFlavor,
    facts: &Facts,
    given: &[WrittenOption],
) -> Result<Option<ScheduledJob>, CliError> {
    if cli_flavor == CliFlavor::Torchrun || is_for_one_node(given) {
        return Ok(None);
    }
    let job = match find_step(facts) {
        Some(step) => read_job(&step, facts),
        None => pbs::find(facts),
    };
    match job {
        Err(_) if says_all(given) => Ok(None),
        job => job,
    }
}

fn read_job(step: &Step, facts: &Facts) -> Result<Option<ScheduledJob>, CliError> {
    let variable = |name: &str| facts.variable(name).and_then(|value| value.to_str());
    let environment = TaskEnvironment { variable: &variable, step };
    if step.starter == Starter::Slurm && is_only_task(&variable) {
        return Ok(None);
    }
    let is_one_node = step.starter != Starter::Slurm || step.nodes == 1;
    if environment.number(step.starter.task_count())?.value == 1 && is_one_node {
        return Ok(None);
    }
    let job = match &step.starter {
        Starter::Slurm => slurm::read(&environment)?,
        Starter::Mpi(names) => mpi::read(&environment, names, facts)?,
    };
    is_below(&job.node_rank, &job.nodes)?;
    is_below(&job.task, &job.tasks)?;
    if let Some(TasksOnNode { count, index, .. }) = &job.on_node {
        is_below(index, count)?;
    }
    Ok(Some(job))
}

/// A container may have these alone.
fn is_only_task(variable: Variables<'_>) -> bool {
    let is_one = |name| variable(name).is_some_and(|count| count.trim() == "1");
    variable(STEP_TASKS).is_none() && is_one("SLURM_NTASKS") && is_one("SLURM_NNODES")
}

fn is_below(index: &Number, count: &Number) -> Result<(), CliError> {
    if index.value < count.value {
        return Ok(());
    }
    let problem = format!("and {} is `{}`: one of the two is wrong", count.origin, count.value);
    Err(SettingError::of_value(index.origin.clone(), index.value, problem, PASS_ALL).into())
}

const PASS_ALL: &str = "start the launcher with the environment that the scheduler gave the task; for a separate job add `--nnodes 1`";

/// The variables of one task.
struct TaskEnvironment<'a> {
    variable: Variables<'a>,
    step: &'a Step,
}

impl<'a> TaskEnvironment<'a> {
    /// A variable that every task has.
    fn text(&self, name: &str) -> Result<&'a str, CliError> {
        (self.variable)(name)
            .map(str::trim)
            .filter(|value| !value.is_empty())
            .ok_or_else(|| self.missing(name))
    }

    fn missing(&self, name: &str) -> CliError {
        let (variable, place) = match self.step.all {
            Some(Tasks { variable, count }) => (variable, format!("one of {count} tasks")),
            None => (self.step.sign, "a task of a step".to_owned()),
        };
        let message = format!(
            "`{name}` is not set, and `{variable}` says that this is {place}: each task would run a separate job"
        );
        CliError::refused(
            message,
            "pass all variables of the task on, also into a container, or give `--nnodes`, `--node-rank` and \
             `--master-addr`; for separate jobs add `--nnodes 1`",
        )
    }

    fn number(&self, name: &str) -> Result<Number, CliError> {
        let text = self.text(name)?;
        let origin = Origin::Variable(name.to_owned());
        match text.parse() {
            Ok(value) => Ok(Setting { origin, value }),
            Err(_) => {
                Err(SettingError::of_value(origin, text, "which is not a number from 0 up", PASS_ALL).into())
            }
        }
    }
}

fn variable_value<T>(name: &str, value: T) -> Setting<T> {
    Setting { origin: Origin::Variable(name.to_owned()), value }
}

/// What counts of an option.
fn find<'a>(given: &'a [WrittenOption], long: &str) -> Option<&'a WrittenOption> {
    given.iter().find(|written| written.option.long_name() == long).filter(|written| !written.is_off())
}

fn is_filled(given: &[WrittenOption], long: &str) -> bool {
    find(given, long).is_some_and(|written| !written.setting.value.is_empty())
}

fn nodes_of(given: &[WrittenOption]) -> Option<NodeRange> {
    parse_nodes(find(given, "nnodes")?.setting.value.to_str()?)
}

fn is_for_one_node(given: &[WrittenOption]) -> bool {
    find(given, "standalone").is_some() || nodes_of(given) == Some(NodeRange::ONE)
}

/// Whether nothing is to be learnt from the scheduler.
fn says_all(given: &[WrittenOption]) -> bool {
    let has = |long: &str| is_filled(given, long);
    // Other rendezvous than the static one give the nodes their ranks.
    let is_ranked = has("node-rank")
        || find(given, "rdzv-backend").is_some_and(|written| written.setting.value != "static");
    has("nnodes") && is_ranked && (has("rdzv-endpoint") || has("master-addr"))
}

#[cfg(test)]
mod tests;
