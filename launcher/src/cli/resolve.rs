//! From what was said to what is launched: every default and every precedence beyond option and variable.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_contract::rank::{LocalRank, LocalWorldSize, RestartCount};

use super::by_hand::resolve_left_out;
use super::entrypoint::resolve_entrypoint;
use super::error::{CliError, Expected, Origin, SettingError};
use super::grammar::Request;
use super::logs::resolve_logs;
use super::notice::{IgnoredBecause, Notice};
use super::plugins::{refuse_logs_specs, resolve_events};
use super::python_text::{parse_float, parse_int};
use super::rendezvous::resolve_rendezvous;
use super::run::{GRACE, STDIN, VERBOSE};
use super::settings::{Setting, Settings};
use super::signals::resolve_signals;
use super::torchrun::{
    MAX_RESTARTS, MONITOR_INTERVAL, NPROC_PER_NODE, NUMA_BINDING, ROLE, SHUTDOWN_TIMEOUT, START_METHOD,
};
use super::virtual_devices::resolve_virtual_devices;
use super::{Launch, Verbosity};
use crate::facts::Facts;
use crate::spec::{LaunchSpec, Persona, Seat, StdinPolicy, StopPolicy, WorkerDefaults};

/// As many processes as Linux can number at most (`PID_MAX_LIMIT`).
const MOST_WORKERS: i128 = 4_194_304;
const DEFAULT_GRACE: Duration = Duration::from_secs(30);
/// Longer than any job, and short enough to be added to any instant.
const LONGEST_GRACE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// torch's default for `--shutdown-timeout`.
const SHUTDOWN_TIMEOUT_VARIABLE: &str = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
/// torch's watchdogs, which are switched on by variables alone: the workers' own deadlines, and workers that hang in
/// the kernel.
const FILE_TIMER_VARIABLE: &str = "TORCHELASTIC_ENABLE_FILE_TIMER";
const STUCK_VARIABLE: &str = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT";
/// Where whoever started the launcher looks for the reason of its failure.
const ERROR_FILE_VARIABLE: &str = "TORCHELASTIC_ERROR_FILE";
const OMP_VARIABLE: &str = "OMP_NUM_THREADS";

/// The launch that was asked for.
///
/// # Errors
/// Whatever can be known to fail before anything starts.
pub(super) fn resolve(
    persona: Persona,
    argv0: &OsStr,
    request: Request,
    facts: &Facts,
) -> Result<Launch, CliError> {
    let settings = Settings { persona, given: &request.given, facts };
    let mut notices = Vec::new();
    let verbosity = resolve_verbosity(&settings, &mut notices)?;
    let max_restarts = resolve_max_restarts(&settings)?;
    check_monitor_interval(&settings)?;
    let grace = resolve_grace(&settings)?;
    let rendezvous = resolve_rendezvous(&settings, &mut notices)?;
    let signals = resolve_signals(&settings, &mut notices)?;
    let events = resolve_events(&settings)?;
    refuse_logs_specs(&settings)?;
    refuse_numa_binding(&settings)?;
    let workers = resolve_workers(&settings)?;
    let mut seats: Vec<Seat> = (0..workers.get()).map(|rank| Seat::cpu(LocalRank(rank))).collect();
    let visibility = resolve_virtual_devices(&settings, &mut seats)?;
    let stdin = resolve_stdin(&settings, workers)?;
    let left_out = resolve_left_out(&settings, workers)?;
    let role = settings.text(&ROLE)?.map_or_else(|| "default".to_owned(), |role| role.value);
    let logs = resolve_logs(&settings, &mut notices)?;
    let omp_threads = resolve_omp_threads(&settings, workers, &mut notices);
    if let Some(found) = settings.find(&START_METHOD) {
        let because = IgnoredBecause::OneStartMethod;
        notices.push(Notice::Ignored { origin: found.origin, because });
    }
    if seconds_of(facts, FILE_TIMER_VARIABLE).is_some() {
        let origin = Origin::Variable(FILE_TIMER_VARIABLE.to_owned());
        notices.push(Notice::Ignored { origin, because: IgnoredBecause::NotSupported });
    }
    let entrypoint = resolve_entrypoint(&settings, argv0, &request.entrypoint, &mut notices)?;
    let spec = LaunchSpec {
        persona,
        entrypoint,
        args: request.args,
        workers,
        role,
        rendezvous,
        max_restarts,
        stop: StopPolicy { grace },
        signals,
        stuck_limit: seconds_of(facts, STUCK_VARIABLE),
        logs,
        stdin,
        defaults: WorkerDefaults {
            omp_threads,
            nccl_async_error_handling: facts.variable("TORCH_NCCL_ASYNC_ERROR_HANDLING").is_none(),
        },
        seats,
        visibility,
        device_check: None,
        events,
        parent_error_file: facts.filled_variable(ERROR_FILE_VARIABLE).map(PathBuf::from),
        left_out,
    };
    Ok(Launch { spec, verbosity, notices })
}

/// A number of seconds above zero, as both watchdogs are switched on; anything else is as good as none.
fn seconds_of(facts: &Facts, name: &str) -> Option<Duration> {
    let number = facts.variable(name).and_then(OsStr::to_str).and_then(parse_float)?;
    Duration::try_from_secs_f64(number).ok().filter(|seconds| !seconds.is_zero())
}

/// Which CPUs are near depends on the device.
fn refuse_numa_binding(settings: &Settings<'_>) -> Result<(), CliError> {
    match settings.text(&NUMA_BINDING)? {
        None => Ok(()),
        Some(Setting { origin, value }) => Err(SettingError::NeedsAccelerator { origin, value }.into()),
    }
}

/// Threads per worker, where several share the CPUs and the user did not say.
fn resolve_omp_threads(
    settings: &Settings<'_>,
    workers: LocalWorldSize,
    notices: &mut Vec<Notice>,
) -> Option<u32> {
    if workers == LocalWorldSize::ONE || settings.facts.variable(OMP_VARIABLE).is_some() {
        return None;
    }
    match settings.persona {
        Persona::Torchrun => {
            notices.push(Notice::SingleOmpThread);
            Some(1)
        }
        Persona::Rankrun => {
            let cpus = settings.facts.world().affinity_cpus();
            let threads = u32::try_from(cpus).map_or(u32::MAX, |cpus| cpus / workers.get()).max(1);
            notices.push(Notice::OmpThreads { threads, cpus, workers });
            Some(threads)
        }
    }
}

fn refused(origin: Origin, value: impl ToString, expected: Expected) -> CliError {
    SettingError::Refused { origin, value: value.to_string(), expected }.into()
}

/// `-v`, then `RANKRUN_VERBOSE`, then `LOGLEVEL`.
fn resolve_verbosity(settings: &Settings<'_>, notices: &mut Vec<Notice>) -> Result<Verbosity, CliError> {
    let typed = settings.count(&VERBOSE);
    let level = match settings.facts.filled_variable("RANKRUN_VERBOSE") {
        _ if typed > 0 => Some(i128::try_from(typed).unwrap_or(i128::MAX)),
        None => None,
        Some(value) => match value.to_str().and_then(parse_int) {
            Some(level) => Some(level),
            None => {
                let (variable, value) = ("RANKRUN_VERBOSE".to_owned(), value.to_string_lossy().into_owned());
                return Err(SettingError::FlagNotInteger { variable, value }.into());
            }
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
    let Some(Setting { origin, value }) = settings.int(&MAX_RESTARTS)? else { return Ok(RestartCount(0)) };
    u32::try_from(value).map(RestartCount).map_err(|_| refused(origin, value, Expected::RestartCount))
}

/// We do not poll, but what torchrun refuses is refused.
fn check_monitor_interval(settings: &Settings<'_>) -> Result<(), CliError> {
    match settings.float(&MONITOR_INTERVAL)? {
        Some(Setting { origin, value }) if value.is_nan() || value <= 0.0 => {
            Err(refused(origin, value, Expected::Interval))
        }
        _ => Ok(()),
    }
}

/// The last of `--shutdown-timeout` and `--grace`, then our variable, then torchrun's two.
fn resolve_grace(settings: &Settings<'_>) -> Result<Duration, CliError> {
    let last =
        settings.given.iter().rev().find(|given| given.row == &GRACE || given.row == &SHUTDOWN_TIMEOUT);
    let ours = settings.float(&GRACE)?;
    let torch = settings.int(&SHUTDOWN_TIMEOUT)?;
    #[expect(clippy::cast_precision_loss, reason = "whole seconds beyond 2^53 are cut to the longest grace")]
    let torch = torch.map(|Setting { origin, value }| Setting { origin, value: value as f64 });
    let found = match last {
        Some(given) if given.row == &SHUTDOWN_TIMEOUT => torch,
        _ => ours.or(torch),
    };
    let Setting { origin, value } = match (found, settings.facts.variable(SHUTDOWN_TIMEOUT_VARIABLE)) {
        (Some(found), _) => found,
        (None, None) => return Ok(DEFAULT_GRACE),
        (None, Some(text)) => {
            let origin = Origin::Variable(SHUTDOWN_TIMEOUT_VARIABLE.to_owned());
            match text.to_str().filter(|text| parse_int(text).is_some()).and_then(parse_float) {
                Some(value) => Setting { origin, value },
                None => return Err(refused(origin, text.to_string_lossy(), Expected::Duration)),
            }
        }
    };
    if value.is_nan() || value < 0.0 {
        return Err(refused(origin, value, Expected::Duration));
    }
    Ok(Duration::try_from_secs_f64(value).unwrap_or(LONGEST_GRACE).min(LONGEST_GRACE))
}

fn resolve_workers(settings: &Settings<'_>) -> Result<LocalWorldSize, CliError> {
    let Some(Setting { origin, value }) = settings.text(&NPROC_PER_NODE)? else {
        return Ok(LocalWorldSize::ONE);
    };
    let count = match (parse_int(&value), value.as_str()) {
        (Some(count), _) => count,
        (None, "cpu") => count_cpus(settings.facts),
        (None, "auto") => {
            let accelerators = ["/dev/nvidia0", "/dev/kfd"];
            if let Some(device) = accelerators.into_iter().find(|path| settings.facts.exists(Path::new(path)))
            {
                return Err(SettingError::CountsAccelerators { origin, device }.into());
            }
            count_cpus(settings.facts)
        }
        (None, "gpu" | "cuda" | "rocm" | "xpu" | "hpu" | "npu" | "mps" | "mtia" | "privateuseone") => {
            return Err(SettingError::NotSupported { origin, value }.into());
        }
        (None, _) => return Err(refused(origin, value, Expected::WorkerCount)),
    };
    let size = u32::try_from(count).ok().filter(|_| count <= MOST_WORKERS).and_then(LocalWorldSize::new);
    size.ok_or_else(|| refused(origin, value, Expected::WorkerCount))
}

fn count_cpus(facts: &Facts) -> i128 {
    i128::try_from(facts.world().affinity_cpus()).unwrap_or(i128::MAX).max(1)
}

fn resolve_stdin(settings: &Settings<'_>, workers: LocalWorldSize) -> Result<StdinPolicy, CliError> {
    let parse = |text: &str| match text {
        "all" => Some(StdinPolicy::All),
        "none" => Some(StdinPolicy::None),
        rank => rank.parse().ok().map(StdinPolicy::Only),
    };
    match settings.typed(&STDIN, parse)? {
        None => Ok(StdinPolicy::All),
        Some(Setting { origin, value: StdinPolicy::Only(LocalRank(rank)) }) if rank >= workers.get() => {
            Err(SettingError::NoSuchRank { origin, rank: rank.into(), workers: workers.get() }.into())
        }
        Some(policy) => Ok(policy.value),
    }
}

#[cfg(test)]
mod tests;
