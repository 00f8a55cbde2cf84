//! From the values of a command line to the launch: every default, and every precedence beyond option and variable.
//! `settings` has merged command line, variables and file before; the modules of the groups resolve their options; the
//! result is a `LaunchSpec` with notices. It starts nothing.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use rankrun_contract::rank::{LocalRank, LocalWorldSize, RestartCount};

use super::Launch;
use super::behind::options_behind_notice;
use super::contradiction::refuse_contradicting_times;
use super::device_request::resolve_devices;
use super::entrypoint::{refuse_list_as_entrypoint, resolve_entrypoint};
use super::error::hint_for_restarts;
use super::error::{CliError, Expected, Origin, SettingError};
use super::external_worker::resolve_external_worker;
use super::limits::{resolve_hang_times, resolve_start_timeout, resolve_time_limit};
use super::logs::resolve_logs;
use super::nccl::resolve_nccl_library;
use super::nesting::resolve_nesting;
use super::network::{connection_interfaces, interfaces, nccl_chooses, resolve_network};
use super::option::command;
use super::plugins::{refuse_logs_specs, resolve_events};
use super::python_text::{parse_float, parse_int};
use super::rendezvous::resolve_rendezvous;
use super::restart::{missing_folder_notice, resolve_restart};
use super::scheduled_job::ScheduledJob;
use super::separate_jobs::separate_jobs_notice;
use super::settings::{CommandLine, Setting, Settings, flag_is_not_integer};
use super::signals::resolve_signals;
use super::stop::{resolve_leftovers, resolve_stop};
use super::suggest::unknown_variable_notices;
use super::wrap::resolve_wrappers;
use rankrun_core::device_assignment::{device_lines, omp_notice};
use rankrun_core::facts::Facts;
use rankrun_core::notice::{IgnoredBecause, Notice};
use rankrun_core::spec::rendezvous::{NetworkSpec, NodeRange};
use rankrun_core::spec::{CliFlavor, LaunchSpec, StdinPolicy, Verbosity, WorkerDefaults};

const RESTART_COUNT: Expected =
    Expected::new("a number of restarts from 0 to 4294967295", "3").advised(hint_for_restarts);
const INTERVAL: Expected = Expected::new("a number of seconds above 0", "30");

/// torch's watchdogs, which are switched on by variables alone: the workers' own deadlines, and workers that hang in
/// the kernel.
const DSTATE_VARIABLE: &str = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT";
/// The process that started the launcher looks there for the reason of its failure.
const ERROR_FILE_VARIABLE: &str = "TORCHELASTIC_ERROR_FILE";

/// The launch that was asked for.
///
/// # Errors
/// Whatever can be known to fail before anything starts.
pub(super) fn resolve(argv0: &OsStr, line: CommandLine, settings: &Settings<'_>) -> Result<Launch, CliError> {
    let facts = settings.facts;
    let mut notices = Vec::new();
    let verbosity = resolve_verbosity(settings, &mut notices)?;
    let max_restarts = resolve_max_restarts(settings)?;
    check_monitor_interval(settings)?;
    refuse_contradictions(settings, &line)?;
    let time_limit = resolve_time_limit(settings, &mut notices)?;
    notices.extend(separate_jobs_notice(settings, argv0, &line));
    let rendezvous = resolve_rendezvous(settings, &mut notices)?;
    let mut network = resolve_network(settings)?;
    let start_timeout = resolve_start_timeout(settings, &rendezvous)?;
    let signals = resolve_signals(settings, &mut notices)?;
    refuse_logs_specs(settings)?;
    let (device_request, devices) = resolve_devices(settings, &rendezvous, verbosity, &mut notices)?;
    let workers = devices.worker_count();
    let stdin = resolve_stdin(settings, workers)?;
    let restart = resolve_restart(settings, workers, rendezvous.nodes().max)?;
    notices.extend(missing_folder_notice(&restart, facts));
    let external_worker = resolve_external_worker(settings, workers)?;
    let wrappers = resolve_wrappers(settings, workers, rendezvous.nodes().max)?;
    let logs = resolve_logs(settings, workers, &mut notices)?;
    notices.extend(omp_notice(settings.cli_flavor, &devices, facts.world().affinity_cpu_count()));
    notices.extend(ignored_setting_notices(settings, &line));
    let entrypoint = resolve_entrypoint(settings, argv0, &line.entrypoint, &mut notices)?;
    let nesting = resolve_nesting(&entrypoint, facts)?;
    notices.extend(device_lines(&devices, &device_request, settings.cli_flavor));
    let defaults = worker_defaults(settings, rendezvous.nodes(), &network)?;
    network.nccl_chooses = nccl_chooses(settings, &network, &devices.workers);
    let spec = LaunchSpec {
        cli_flavor: settings.cli_flavor,
        entrypoint,
        args: line.arguments,
        workers,
        role: resolve_role(settings),
        rendezvous,
        max_restarts,
        restart,
        stop: resolve_stop(settings)?,
        leftovers: resolve_leftovers(settings)?,
        start_timeout,
        hang: resolve_hang_times(settings),
        time_limit,
        signals,
        dstate_timeout: seconds_of(facts, DSTATE_VARIABLE),
        logs,
        node_task: settings.job.as_ref().and_then(ScheduledJob::node_task),
        stdin,
        defaults,
        network,
        devices,
        device_request,
        events: resolve_events(settings)?,
        parent_error_file: facts.filled_variable(ERROR_FILE_VARIABLE).map(PathBuf::from),
        external_worker,
        nesting,
        wrappers,
        options: settings.args.independent.clone(),
    };
    Ok(Launch { spec, verbosity, notices })
}

fn resolve_role(settings: &Settings<'_>) -> String {
    settings.get(&settings.args.torchrun.role).map_or_else(|| "default".to_owned(), |role| role.value)
}

/// Variables of libraries that the user has not set.
fn worker_defaults(
    settings: &Settings<'_>,
    nodes: NodeRange,
    network: &NetworkSpec,
) -> Result<WorkerDefaults, CliError> {
    let facts = settings.facts;
    Ok(WorkerDefaults {
        nccl_async_error_handling: facts.variable("TORCH_NCCL_ASYNC_ERROR_HANDLING").is_none(),
        interfaces: interfaces(network, facts),
        connection_interfaces: connection_interfaces(settings, nodes, network),
        nccl_library: resolve_nccl_library(settings)?,
    })
}

/// What was typed and cannot be meant.
fn refuse_contradictions(settings: &Settings<'_>, line: &CommandLine) -> Result<(), CliError> {
    refuse_contradicting_times(settings)?;
    refuse_list_as_entrypoint(settings, line)
}

/// A notice for each setting of torchrun that has no effect here.
fn ignored_setting_notices(settings: &Settings<'_>, line: &CommandLine) -> Vec<Notice> {
    let mut notices = Vec::new();
    // `spawn` is torchrun's default, and a fresh process is what it makes.
    if let Some(found) = settings.find("start-method").filter(|found| found.value != "spawn") {
        let because = IgnoredBecause::OneStartMethod;
        notices.push(Notice::Ignored { origin: found.origin, because });
    }
    if settings.cli_flavor == CliFlavor::Rankrun {
        notices.extend(unknown_variable_notices(settings.facts));
        notices.extend(options_behind_notice(line, command(CliFlavor::Rankrun)));
    }
    notices
}

/// A number of seconds above zero, as the watchdog is switched on; anything else is as good as none.
fn seconds_of(facts: &Facts, name: &str) -> Option<Duration> {
    let number = facts.variable(name).and_then(OsStr::to_str).and_then(parse_float)?;
    Duration::try_from_secs_f64(number).ok().filter(|seconds| !seconds.is_zero())
}

pub(super) fn refused(origin: Origin, value: impl ToString, expected: Expected) -> CliError {
    SettingError::unexpected(origin, value, expected).into()
}

/// `-v`, then `RANKRUN_VERBOSE`, then the file, then `LOGLEVEL`.
fn resolve_verbosity(settings: &Settings<'_>, notices: &mut Vec<Notice>) -> Result<Verbosity, CliError> {
    let typed = settings.typed_count("verbose");
    let level = match settings.find("verbose") {
        _ if typed > 0 => Some(i128::try_from(typed).unwrap_or(i128::MAX)),
        None => None,
        Some(level) => match level.value.to_str().and_then(parse_int) {
            None => return Err(flag_is_not_integer(&level).into()),
            level => level,
        },
    };
    match level {
        Some(2..) => return Ok(Verbosity::Debug),
        Some(1) => return Ok(Verbosity::Info),
        Some(_) => return Ok(Verbosity::Warn),
        None => {}
    }
    let Some(value) = settings.facts.filled_variable("LOGLEVEL") else { return Ok(Verbosity::Warn) };
    let value = value.to_string_lossy();
    Ok(match value.to_ascii_uppercase().as_str() {
        "CRITICAL" | "FATAL" | "ERROR" => Verbosity::Error,
        "WARNING" | "WARN" | "NOTSET" => Verbosity::Warn,
        "INFO" => Verbosity::Info,
        "DEBUG" => Verbosity::Debug,
        _ => {
            notices.push(Notice::UnknownLogLevel { value: value.into_owned() });
            Verbosity::Warn
        }
    })
}

fn resolve_max_restarts(settings: &Settings<'_>) -> Result<RestartCount, CliError> {
    let Some(Setting { origin, value }) = settings.get(&settings.args.torchrun.max_restarts) else {
        return Ok(RestartCount(0));
    };
    u32::try_from(value).map(RestartCount).map_err(|_| refused(origin, value, RESTART_COUNT))
}

/// We do not poll, but what torchrun refuses is refused.
fn check_monitor_interval(settings: &Settings<'_>) -> Result<(), CliError> {
    match settings.get(&settings.args.torchrun.monitor_interval) {
        Some(Setting { origin, value }) if value.is_nan() || value <= 0.0 => {
            Err(refused(origin, value, INTERVAL))
        }
        _ => Ok(()),
    }
}

fn resolve_stdin(settings: &Settings<'_>, workers: LocalWorldSize) -> Result<StdinPolicy, CliError> {
    match settings.get(&settings.args.stdin) {
        None => Ok(StdinPolicy::All),
        Some(Setting { origin, value: StdinPolicy::Only(LocalRank(rank)) }) if rank >= workers.get() => {
            Err(SettingError::no_such_rank(origin, rank, workers.get()).into())
        }
        Some(policy) => Ok(policy.value),
    }
}

#[cfg(test)]
mod tests;
