//! The command line of `deepspeed` as one of rankrun: on this machine, or on the hosts of a host file by ssh.
//!
//! | file | what it does |
//! |---|---|
//! | `args` | the options |
//! | `hosts` | host file and filters → the hosts that take part |
//! | `devices` | the number of workers, and the words and variables for their devices |
//! | `env_file` | `.deepspeed_env` |

mod args;
mod devices;
mod env_file;
mod hosts;
mod remote;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::Path;

use super::{OtherCommand, TargetMachine, Translation};
use crate::cli::error::{CliError, SettingError};
use args::{DeepspeedArgs, Parsed, option};

pub(in crate::cli) use args::help;
use devices::DeviceSource;
use hosts::WorkerHosts;
use rankrun_core::facts::Facts;
use rankrun_core::spec::LOOPBACK;

const DEFAULT_PORT: i128 = 29500;
const LOCAL_RANK: &str = "--local_rank=${local_rank}";
const LOCAL_SIZE: &str = "LOCAL_SIZE is left out, since the line does not have the number of devices: set it, if the program reads it";

pub(super) fn translate(words: &[OsString], facts: &Facts) -> Result<OtherCommand, CliError> {
    translate_for(TargetMachine::This, words, facts)
}

pub(super) fn translate_for(
    machine: TargetMachine,
    words: &[OsString],
    facts: &Facts,
) -> Result<OtherCommand, CliError> {
    match args::parse(words)? {
        Parsed::Help(text) => Ok(OtherCommand::Print(text)),
        Parsed::Launch(args) => launch(machine, &args, facts).map(OtherCommand::Launch),
    }
}

/// The script and its arguments, of a launch that is not refused.
pub(super) fn program(words: &[OsString]) -> Option<Vec<OsString>> {
    match args::parse(words).ok()? {
        Parsed::Help(_) => None,
        Parsed::Launch(args) => Some(args.program),
    }
}

fn launch(machine: TargetMachine, args: &DeepspeedArgs, facts: &Facts) -> Result<Translation, CliError> {
    refuse_unsupported(args)?;
    if machine == TargetMachine::This {
        refuse_log_file(args, facts)?;
    }
    let mut launch = Translation { environment: variables_before(machine, facts)?, ..Translation::default() };
    let mut inherited = facts.environment().to_vec();
    for (name, value) in &launch.environment {
        inherited.retain(|(key, _)| key != name.as_str());
        inherited.extend(value.clone().map(|value| (name.into(), value)));
    }
    let binding = binding_words(args, &inherited)?;
    let hosts = hosts::find_hosts(machine, args, facts, &mut launch.remarks)?;
    match &hosts {
        WorkerHosts::Here(host) => {
            let devices = DeviceSource { machine, host, facts, environment: inherited };
            add_local_workers(&mut launch, devices, (0, 1))?;
            launch.words.splice(..0, master_words(args, host.slots.is_some()));
        }
        WorkerHosts::NodeOf { host, rank, count } => {
            let devices = DeviceSource { machine, host, facts, environment: inherited };
            add_local_workers(&mut launch, devices, (*rank, *count))?;
            launch.words.splice(..0, remote::node_words(args, (*rank, *count))?);
        }
        WorkerHosts::BySsh(hosts) => remote::add_hosts(&mut launch, args, hosts, (facts, &inherited))?,
    }
    launch.words.extend(binding);
    launch.words.extend(output_words(args));
    launch.words.extend(program_words(args));
    launch.remarks.extend(remarks(args, &hosts));
    Ok(launch)
}

/// The workers of this machine, node `rank` of `count`.
fn add_local_workers(
    launch: &mut Translation,
    devices: DeviceSource<'_>,
    (rank, count): (usize, usize),
) -> Result<(), CliError> {
    let workers = devices.find_workers()?;
    launch.environment.extend(workers.environment);
    let size = workers.count.map(|count| ("LOCAL_SIZE", count.to_string()));
    let cross = [("CROSS_RANK", rank.to_string()), ("CROSS_SIZE", count.to_string())];
    let own = size.into_iter().chain(cross);
    launch.environment.extend(own.map(|(name, value)| (name.to_owned(), Some(value.into()))));
    launch.words.extend(workers.words);
    launch.remarks.extend(workers.remarks);
    if workers.count.is_none() {
        launch.remarks.push(LOCAL_SIZE.to_owned());
    }
    Ok(())
}

fn refuse_unsupported(args: &DeepspeedArgs) -> Result<(), CliError> {
    if args.autotuning.is_some() {
        return Err(CliError::refused(
            "`--autotuning` runs DeepSpeed's tuner, which rankrun does not have",
            "tune by `python -m deepspeed.launcher.runner --autotuning …`, and start the result by rankrun",
        ));
    }
    if args.module && args.no_python {
        return Err(SettingError::exclusive(option("no_python"), &option("module")).into());
    }
    Ok(())
}

/// The variables of this machine's `.deepspeed_env`. Those of torchrun's options go, since deepspeed does not read them.
fn variables_before(
    machine: TargetMachine,
    facts: &Facts,
) -> Result<Vec<(String, Option<OsString>)>, CliError> {
    let names = facts.environment().iter().filter_map(|(name, _)| name.to_str());
    let torchs = names.filter(|name| name.starts_with("PET_")).map(|name| (name.to_owned(), None));
    let of_files = match machine {
        TargetMachine::This => env_file::read_env_files(facts)?,
        TargetMachine::Any => Vec::new(),
    };
    Ok(torchs.chain(of_files.into_iter().map(|(name, value)| (name, Some(value)))).collect())
}

fn binding_words(
    args: &DeepspeedArgs,
    inherited: &[(OsString, OsString)],
) -> Result<Vec<OsString>, CliError> {
    if !args.bind_cores_to_rank {
        return Ok(Vec::new());
    }
    if inherited.iter().any(|(name, _)| name == "KMP_AFFINITY") {
        return Err(CliError::refused(
            "`KMP_AFFINITY` is set, which binds threads otherwise than `--bind_cores_to_rank`",
            "unset `KMP_AFFINITY`, or leave the option out",
        ));
    }
    let cores = args.bind_core_list.as_deref().unwrap_or("all");
    Ok(vec!["--bind-cores".into(), cores.into()])
}

/// Without a host file the real tool takes the loopback, whatever `--master_addr` says.
fn master_words(args: &DeepspeedArgs, has_hostfile: bool) -> Vec<OsString> {
    let given = args.master_addr.as_deref().filter(|addr| has_hostfile && !addr.is_empty());
    let port = args.master_port.unwrap_or(DEFAULT_PORT).to_string();
    ["--master-addr", given.unwrap_or(LOOPBACK), "--master-port", &port].map(OsString::from).to_vec()
}

/// `None` is the real tool's word for no folder.
fn log_folder(args: &DeepspeedArgs) -> Option<&str> {
    args.enable_each_rank_log.as_deref().filter(|folder| !matches!(*folder, "" | "None"))
}

/// The launch would name an option of rankrun.
fn refuse_log_file(args: &DeepspeedArgs, facts: &Facts) -> Result<(), CliError> {
    match log_folder(args).filter(|folder| facts.is_file(Path::new(folder))) {
        Some(file) => {
            let hint = "name a folder; it is made if it is missing";
            Err(SettingError::of_value(option("enable_each_rank_log"), file, "which is a file", hint).into())
        }
        None => Ok(()),
    }
}

fn output_words(args: &DeepspeedArgs) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    if let Some(folder) = log_folder(args) {
        words.extend(["--redirects", "3", "--log-dir", folder].map(OsString::from));
    }
    match args.log_level.as_deref() {
        _ if args.quiet => words.push("--quiet".into()),
        Some("error" | "critical") => words.push("--quiet".into()),
        Some("debug") => words.push("-v".into()),
        _ => {}
    }
    words
}

fn program_words(args: &DeepspeedArgs) -> Vec<OsString> {
    let flags = [("--module", args.module), ("--no-python", args.no_python)];
    let flags = flags.into_iter().filter(|(_, is_given)| *is_given).map(|(word, _)| word.into());
    let mut program = args.program.iter().cloned().peekable();
    let script = program.next();
    // The real tool's two programs swallow one each.
    let _ = program.next_if(|word| word == "--");
    let local_rank = (!args.no_local_rank).then(|| LOCAL_RANK.into());
    flags.chain(["--".into()]).chain(script).chain(local_rank).chain(program).collect()
}

/// What is accepted and has no effect.
fn remarks(args: &DeepspeedArgs, hosts: &WorkerHosts) -> Vec<String> {
    let mut remarks = Vec::new();
    let (has_effect, reason): (&[&str], _) = match hosts {
        WorkerHosts::Here(_) => (&[], "no other host is started"),
        WorkerHosts::NodeOf { .. } => (&["--no_ssh"], "no other host is started"),
        WorkerHosts::BySsh(_) => (&["--force_multi", "--ssh_port"], "the hosts are started by ssh alone"),
    };
    let given = args.options_of_remote_start().into_iter();
    let idle: Vec<_> =
        given.filter(|option| !has_effect.contains(option)).map(|option| format!("`{option}`")).collect();
    if !idle.is_empty() {
        remarks.push(format!("without effect, since {reason}: {}", idle.join(", ")));
    }
    let has_hostfile = !matches!(hosts, WorkerHosts::Here(host) if host.slots.is_none());
    if args.save_pid {
        remarks.push("`--save_pid` writes no file: `rankrun ls` shows the pid of the launcher".to_owned());
    }
    if args.bind_core_list.is_some() && !args.bind_cores_to_rank {
        remarks.push("`--bind_core_list` has no effect without `--bind_cores_to_rank`".to_owned());
    }
    let other =
        args.master_addr.as_deref().filter(|addr| !has_hostfile && !addr.is_empty() && *addr != LOOPBACK);
    if let Some(addr) = other {
        remarks.push(format!("`--master_addr {addr}` has no effect without a host file: it is {LOOPBACK}"));
    }
    remarks
}
