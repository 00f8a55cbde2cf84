//! A scheduled job as settings: what the environment says where the user says nothing. Each has the variable as its
//! origin, and loses to a command line, a variable of ours and a file.

use std::ffi::OsString;

use super::{Number, ScheduledJob, TasksOnNode, find, is_filled, nodes_of};
use crate::cli::error::{CliError, Origin, SettingError};
use crate::cli::exclude_node::{NodeNames, is_own_name};
use crate::cli::nesting::is_inside_worker;
use crate::cli::option::{FromText, LaunchOption, find_option};
use crate::cli::python_text::parse_int;
use crate::cli::scheduler::Starter;
use crate::cli::settings::{Setting, WrittenOption};
use rankrun_core::facts::Facts;
use rankrun_core::spec::rendezvous::{NodeRange, STATIC_PORT};

/// Seconds since 1970. Slurm 22.05 does not set it, newer versions do.
const END_TIME: &str = "SLURM_JOB_END_TIME";

/// Adds the end of the Slurm job as the time limit, where none is given.
pub(in crate::cli) fn add_end_of_job(facts: &Facts, given: &mut Vec<WrittenOption>) {
    let number = |name: &str| facts.variable(name)?.to_str()?.trim().parse::<u64>().ok();
    if find(given, "time-limit").is_some() || is_inside_worker(facts) || number("SLURM_JOB_ID").is_none() {
        return;
    }
    let now = facts.world().unix_time().as_secs();
    let left = number(END_TIME).and_then(|end| end.checked_sub(now)).filter(|left| *left > 0);
    if let Some(left) = left {
        add(given, "time-limit", &Origin::Variable(END_TIME.to_owned()), format!("{left}s"));
    }
}

/// Adds what the job says.
///
/// # Errors
/// Settings that contradict the job, and a job of several nodes without the address of the first one.
pub(in crate::cli) fn add_settings_of_job(
    job: &ScheduledJob,
    given: &mut Vec<WrittenOption>,
) -> Result<(), CliError> {
    refuse_contradictions(job, given)?;
    if job.on_node.is_some() {
        // What was given is the number of machines: to the rendezvous each task is a node.
        given.retain(|written| !["nnodes", "node-rank"].contains(&written.option.long_name()));
        add_number(given, "nnodes", &job.tasks);
        add_number(given, "node-rank", &job.task);
    } else {
        add_number(given, "nnodes", &job.nodes);
        add_number(given, "node-rank", &job.node_rank);
    }
    if let Some(run_id) = &job.run_id {
        add(given, "rdzv-id", &run_id.origin, &run_id.value);
    }
    if let Some(TasksOnNode { count, .. }) =
        job.on_node.as_ref().filter(|_| find(given, "total-workers").is_none())
    {
        add(given, "nproc-per-node", &count.origin, "1");
    }
    add_place(job, given)
}

/// The static rendezvous by default: each node has the rank that the scheduler gave it, and all meet at one port. Under
/// c10d, for a number of nodes that may change, the first node that takes part hosts.
fn add_place(job: &ScheduledJob, given: &mut Vec<WrittenOption>) -> Result<(), CliError> {
    if is_filled(given, "rdzv-endpoint") {
        return Ok(());
    }
    let is_c10d = is_c10d(given);
    let is_one_node = job.nodes.value == 1;
    let port = job.port.as_ref().map_or(STATIC_PORT, |port| port.value);
    let (rank, place) = match &job.hosts {
        _ if is_one_node => (0, Setting { origin: job.nodes.origin.clone(), value: "127.0.0.1".to_owned() }),
        Some(hosts) => store_host(job, hosts, given)?,
        None if is_filled(given, "master-addr") && !is_c10d => return Ok(()),
        None => return Err(no_address(job, if is_c10d { "--rdzv-endpoint" } else { "--master-addr" })),
    };
    if is_c10d {
        add(given, "rdzv-endpoint", &place.origin, format!("{}:{port}", place.value));
        let is_host = if job.on_node.is_some() { job.task.value == 0 } else { job.node_rank.value == rank };
        add(given, "rdzv-conf", &job.node_rank.origin, format!("is_host={}", u8::from(is_host)));
        return Ok(());
    }
    add(given, "master-addr", &place.origin, &place.value);
    let port_origin = job.port.as_ref().map_or(&job.nodes.origin, |port| &port.origin);
    add(given, "master-port", port_origin, port.to_string());
    Ok(())
}

fn is_c10d(given: &[WrittenOption]) -> bool {
    find(given, "rdzv-backend").is_some_and(|backend| backend.setting.value == "c10d")
}

/// The first node that takes part, by its rank and its host.
///
/// # Errors
/// `--exclude-node` leaves fewer nodes than the job needs.
fn store_host(
    job: &ScheduledJob,
    hosts: &Setting<Vec<String>>,
    given: &[WrittenOption],
) -> Result<(u32, Setting<String>), CliError> {
    let excluded = find(given, "exclude-node").map(|written| &written.setting);
    let names = excluded.and_then(|names| NodeNames::from_text(&names.value));
    let is_excluded =
        |host: &str| names.iter().flat_map(|NodeNames(names)| names).any(|name| is_own_name(name, host));
    let mut left = (0..).zip(&hosts.value).filter(|(_, host)| !is_excluded(host));
    let first = left.next();
    let count = u32::try_from(left.count() + usize::from(first.is_some())).unwrap_or(u32::MAX);
    let all = job.nodes.value;
    // To the rendezvous a task for each rank is a node.
    let needed = match nodes_of(given).filter(|_| is_c10d(given) && job.on_node.is_none()) {
        Some(NodeRange { max, .. }) if max.get() > all => 1,
        Some(NodeRange { min, .. }) => min.get(),
        None => all,
    };
    match (first, excluded) {
        (Some((rank, host)), _) if count >= needed => {
            Ok((rank, Setting { origin: hosts.origin.clone(), value: host.clone() }))
        }
        (_, Some(Setting { origin, value })) => {
            let problem = format!(
                "which leaves {count} of the {all} nodes of {}, and the job needs {needed}",
                hosts.origin
            );
            let hint = format!(
                "start one task on each node, and take a range: `--rdzv-backend c10d --nnodes 1:{all}`"
            );
            Err(SettingError::of_value(origin.clone(), value.to_string_lossy(), problem, hint).into())
        }
        (_, None) => Err(no_address(job, "--master-addr")),
    }
}

fn no_address(job: &ScheduledJob, option: &str) -> CliError {
    let Number { origin, value } = &job.tasks;
    let message = format!(
        "{origin} says that this is one of {value} tasks, and nothing says on which node the first one is: each task \
         would wait for the others in vain"
    );
    let hint = if is_of_slurm(job) {
        format!(
            "let `srun` deal the tasks out in blocks (`-m block`), or name the node of task 0, as in `{option} HOST`"
        )
    } else {
        format!(
            "name the node of task 0, as in `{option} \"$(hostname)\"` where `mpirun` is typed on it; for separate jobs \
             add `--nnodes 1`"
        )
    };
    CliError::refused(message, hint)
}

fn is_of_slurm(job: &ScheduledJob) -> bool {
    job.tasks.origin == Origin::Variable(Starter::Slurm.task_count().to_owned())
}

fn refuse_contradictions(job: &ScheduledJob, given: &[WrittenOption]) -> Result<(), CliError> {
    if let Some(nodes) = nodes_of(given) {
        let count = job.nodes.value;
        let (min, max) = (nodes.min.get(), nodes.max.get());
        let is_fixed = min == max;
        let waits_for_more = max > count && !is_c10d(given);
        if min > count || max < count || waits_for_more || (job.on_node.is_some() && !is_fixed) {
            let hint = match (&job.on_node, is_fixed) {
                (Some(_), false) => {
                    "start one task on each node; with one for each rank the number is fixed".to_owned()
                }
                (None, _) if max > count => format!(
                    "leave it out; a job that is larger than its step has a range under c10d, as in `--rdzv-backend c10d \
                     --nnodes {count}:{max}`"
                ),
                _ => "leave it out, or start the step on as many nodes".to_owned(),
            };
            return Err(contradiction(given, "nnodes", &job.nodes, "node", &hint));
        }
    }
    differs(given, "node-rank", &job.node_rank, "leave it out: the scheduler numbers the nodes")?;
    let Some(tasks) = &job.on_node else { return Ok(()) };
    let one = Number { origin: tasks.count.origin.clone(), value: 1 };
    let is_one = find(given, "nproc-per-node").is_none_or(|written| number(written) == Some(1));
    if !is_one {
        let hint =
            "leave it out: each task starts one worker; for several workers start one task on each node";
        return Err(contradiction(
            given,
            "nproc-per-node",
            &Number { value: tasks.count.value, ..one },
            "task",
            hint,
        ));
    }
    differs(given, "total-workers", &job.tasks, "leave it out: each task is a rank")
}

/// The option is a number, and another one than the scheduler's.
fn differs(given: &[WrittenOption], long: &'static str, of_job: &Number, hint: &str) -> Result<(), CliError> {
    let said = find(given, long).and_then(number);
    match said {
        Some(said) if said != i128::from(of_job.value) => Err(contradiction(given, long, of_job, "", hint)),
        _ => Ok(()),
    }
}

fn number(written: &WrittenOption) -> Option<i128> {
    written.setting.value.to_str().and_then(parse_int)
}

fn contradiction(
    given: &[WrittenOption],
    long: &'static str,
    of_job: &Number,
    unit: &str,
    hint: &str,
) -> CliError {
    let written = find(given, long);
    let origin = written.map_or(Origin::Option(long), |written| written.setting.origin.clone());
    let value =
        written.map(|written| written.setting.value.to_string_lossy().into_owned()).unwrap_or_default();
    let problem = match (unit, of_job.value) {
        ("", value) => format!("and {} is `{value}`", of_job.origin),
        (unit, 1) => format!("and {} says 1 {unit}", of_job.origin),
        ("task", count) => {
            format!("and {} says {count} tasks on this node, each of which is a rank", of_job.origin)
        }
        (unit, count) => format!("and {} says {count} {unit}s", of_job.origin),
    };
    SettingError::of_value(origin, value, problem, hint.to_owned()).into()
}

fn add_number(given: &mut Vec<WrittenOption>, long: &str, number: &Number) {
    add(given, long, &number.origin, number.value.to_string());
}

/// Adds a setting, unless it is given.
fn add(given: &mut Vec<WrittenOption>, long: &str, origin: &Origin, value: impl Into<OsString>) {
    let Some(option) = find_option(long).filter(|_| find(given, long).is_none()) else { return };
    given.push(WrittenOption { option, setting: Setting { origin: origin.clone(), value: value.into() } });
}
