//! Several hosts (2.5 of docs/dev/launchers-contract.md): the words of a start by ssh, with what is for each host alone, and
//! the words of one node that a person starts.

use std::ffi::OsString;

use super::DEFAULT_PORT;
use super::args::{DeepspeedArgs, option};
use super::devices::DeviceSource;
use super::hosts::DeepspeedHost;
use crate::cli::error::{CliError, SettingError};
use crate::cli::other_launcher::{NodeChange, TargetMachine, Translation};
use rankrun_core::facts::Facts;

/// The variables that the real tool carries to other hosts begin so.
const EXPORTED: [&str; 5] = ["MLFLOW", "PYTHON", "MV2", "UCX", "NCCL"];
/// The hosts' workers are to use what this launcher has counted.
const ACCELERATOR: &str = "DS_ACCELERATOR";
const PYTHON_PATH: &str = "PYTHONPATH";

/// Adds the words for all hosts, and what is for each of them. `inherited` is the environment with `.deepspeed_env`.
///
/// # Errors
/// An option needs a shell on the hosts, or a host has no device left.
pub(super) fn add_hosts(
    launch: &mut Translation,
    args: &DeepspeedArgs,
    hosts: &[DeepspeedHost],
    (facts, inherited): (&Facts, &[(OsString, OsString)]),
) -> Result<(), CliError> {
    if let Some(script) = &args.venv_script {
        let hint = "activate the environment here, and add `PATH` to `.deepspeed_env`";
        let problem = "and the hosts of ssh source no script";
        return Err(SettingError::of_value(option("venv_script"), script, problem, hint).into());
    }
    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    launch.words.push(format!("--hosts={}", names.join(",")).into());
    launch.words.extend(args.ssh_port.map(|port| format!("--ssh=ssh -p {port}").into()));
    let addr = args.master_addr.as_deref().filter(|addr| !addr.is_empty());
    launch.words.extend(addr.map(|addr| format!("--master-addr={addr}").into()));
    launch.words.extend(args.master_port.map(|port| format!("--master-port={port}").into()));
    add_exports(launch, facts, inherited);
    launch.nodes = hosts
        .iter()
        .enumerate()
        .map(|(rank, host)| node_change(host, (rank, hosts.len()), (facts, inherited), &mut launch.remarks))
        .collect::<Result<_, _>>()?;
    Ok(())
}

/// The words of one node of several, on this machine.
///
/// # Errors
/// Nothing says where the nodes meet.
pub(super) fn node_words(
    args: &DeepspeedArgs,
    (rank, count): (usize, usize),
) -> Result<Vec<OsString>, CliError> {
    let addr = args.master_addr.as_deref().filter(|addr| !addr.is_empty()).ok_or_else(|| {
        let hint = "add `--master_addr HOST`, the first host, the same on each";
        CliError::refused("`--no_ssh` is given, and `--master_addr` is not", hint)
    })?;
    let port = args.master_port.unwrap_or(DEFAULT_PORT).to_string();
    let (rank, count) = (rank.to_string(), count.to_string());
    let words = ["--nnodes", &count, "--node-rank", &rank, "--master-addr", addr, "--master-port", &port];
    Ok(words.map(OsString::from).to_vec())
}

/// The variables for all hosts: those of the real tool, and those of `.deepspeed_env`. The working folder comes first in
/// `PYTHONPATH`.
fn add_exports(launch: &mut Translation, facts: &Facts, inherited: &[(OsString, OsString)]) {
    let of_files = launch.environment.iter().filter(|(_, value)| value.is_some());
    let mut names: Vec<String> = of_files.map(|(name, _)| name.clone()).collect();
    let is_carried = |name: &str| name == ACCELERATOR || EXPORTED.iter().any(|start| name.starts_with(start));
    let carried = inherited.iter().filter_map(|(name, _)| name.to_str()).filter(|name| is_carried(name));
    names.extend(carried.map(str::to_owned));
    if let Some(folder) = facts.world().working_folder() {
        let mut path = folder.into_os_string();
        if let Some((_, old)) =
            inherited.iter().find(|(name, value)| name == PYTHON_PATH && !value.is_empty())
        {
            path.push(":");
            path.push(old);
        }
        launch.environment.push((PYTHON_PATH.to_owned(), Some(path)));
        names.push(PYTHON_PATH.to_owned());
    }
    names.sort();
    names.dedup();
    launch.words.push(format!("--export={}", names.join(",")).into());
}

fn node_change(
    host: &DeepspeedHost,
    (rank, count): (usize, usize),
    (facts, inherited): (&Facts, &[(OsString, OsString)]),
    remarks: &mut Vec<String>,
) -> Result<NodeChange, CliError> {
    let devices = DeviceSource { machine: TargetMachine::Any, host, facts, environment: inherited.to_vec() };
    let workers = devices.find_workers()?;
    for remark in workers.remarks {
        if !remarks.contains(&remark) {
            remarks.push(remark);
        }
    }
    let text = |value: OsString| value.to_string_lossy().into_owned();
    // A variable that is removed here is not on the host.
    let of_devices = workers.environment.into_iter();
    let mut environment: Vec<_> = of_devices.filter_map(|(name, value)| Some((name, text(value?)))).collect();
    environment.extend(workers.count.map(|count| ("LOCAL_SIZE".to_owned(), count.to_string())));
    let cross = [("CROSS_RANK", rank), ("CROSS_SIZE", count)];
    environment.extend(cross.map(|(name, value)| (name.to_owned(), value.to_string())));
    Ok(NodeChange { words: workers.words.into_iter().map(text).collect(), environment })
}
