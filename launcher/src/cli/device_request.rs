//! Reads the device options into a [`DeviceRequest`], has `rankrun_core` assign the devices, and reports errors in the
//! words of the command line. The probes look at the machine, not this module.

use std::time::Duration;

use rankrun_contract::rank::{LocalRank, LocalWorldSize};

use super::error::hint_for_workers;
use super::error::{CliError, Expected, SettingError};
use super::option::{Family, Flag, Kind, LaunchOption, options};
use super::python_text::parse_int;
use super::resolve::refused;
use super::scheduler::find_step;
use super::settings::{Setting, Settings};
use super::total_workers::own_share;
use rankrun_core::device::cores::CoreSelection;
use rankrun_core::device::selector::Selector;
use rankrun_core::device::{DeviceChoice, DeviceType};
use rankrun_core::device_assignment::{DeviceError, assign_devices};
use rankrun_core::facts::Facts;
use rankrun_core::notice::Notice;
use rankrun_core::spec::device_request::{DEFAULT_PROBE_TIMEOUT, DeviceRequest, NodeTasks, WorkerCount};
use rankrun_core::spec::{CliFlavor, RendezvousSpec, Unhealthy, Verbosity};

const WORKER_COUNT: Expected = Expected::new(
    "a number of workers from 1 to 4194304, `auto`, `cpu`, `gpu` or a type of device such as `xpu`",
    "4",
)
.advised(hint_for_workers);
const CORES: Expected = Expected::new("`all` or a list of CPUs such as `0-3,8`", "0-3");
const PROBE_LIMIT: Expected = Expected::new("a number of seconds from 0.1 up", "30");

/// The largest number of processes on Linux (`PID_MAX_LIMIT`).
pub(super) const MAX_WORKERS: i128 = 4_194_304;
/// In seconds. Less is too short for any driver.
const MIN_PROBE_TIMEOUT: f64 = 0.1;
/// Longer than a user waits for a driver, and short enough to be added to any instant.
const MAX_PROBE_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Counts the workers of this launch and gives each its device.
///
/// # Errors
/// An option cannot be read, or the request does not fit this machine.
pub(super) fn resolve_devices(
    settings: &Settings<'_>,
    rendezvous: &RendezvousSpec,
    verbosity: Verbosity,
    notices: &mut Vec<Notice>,
) -> Result<(DeviceRequest, DeviceChoice), CliError> {
    let cli_flavor = settings.cli_flavor;
    let request = read_request(settings, rendezvous).map_err(|error| in_words_of(error, cli_flavor))?;
    let facts = settings.facts;
    let discover = |scope| facts.discover(scope, request.probe_timeout);
    let cuda_order = || facts.world().cuda_order(request.probe_timeout);
    let (choice, choice_notices) =
        assign_devices(&request, cli_flavor, &facts.node_facts(&discover, &cuda_order))
            .map_err(|error| in_words_of(error.into(), cli_flavor))?;
    let is_shown = |notice: &Notice| verbosity >= Verbosity::Info || !matches!(notice, Notice::Detail { .. });
    notices.extend(choice_notices.into_iter().filter(is_shown));
    if cli_flavor == CliFlavor::Torchrun && verbosity >= Verbosity::Info {
        notices.extend(worker_count_details(settings, &request, &choice));
    }
    Ok((request, choice))
}

fn read_request(settings: &Settings<'_>, rendezvous: &RendezvousSpec) -> Result<DeviceRequest, CliError> {
    let args = &settings.args;
    let probe_timeout = probe_timeout(settings.get(&args.probe_timeout))?;
    let exclude = with_value(settings.get(&args.exclude_unhealthy), Unhealthy::Exclude);
    let check = exclude.or_else(|| with_value(settings.get(&args.check_devices), Unhealthy::Refuse));
    let on_node = settings.job.as_ref().and_then(|job| job.on_node.as_ref());
    // Without devices of its own a task finds its one where a launcher of all ranks of the node would put the rank.
    let shared = on_node.filter(|tasks| !tasks.has_own_devices);
    let of_node = shared.and_then(|tasks| LocalWorldSize::new(tasks.count.value));
    let worker_count = match own_share(settings, rendezvous)? {
        _ if of_node.is_some() => of_node.map_or(WorkerCount::Default, WorkerCount::Number),
        Some(share) => WorkerCount::Number(share),
        None => read_worker_count(settings)?,
    };
    let node_tasks =
        Some(settings.facts).filter(|_| worker_count == WorkerCount::Default).and_then(node_tasks);
    Ok(DeviceRequest {
        worker_count,
        devices: read_devices(settings)?,
        device_type: settings.get(&args.device_type),
        order: settings.get(&args.device_order),
        visibility: settings.get(&args.device_visibility),
        binding: settings.get(&args.torchrun.numa_binding),
        bind_cores: read_bind_cores(settings)?,
        check,
        oversubscribe: settings.get(&args.oversubscribe).map(|flag| flag.origin),
        virtual_local_rank: args.torchrun.virtual_local_rank.is_some(),
        quiet: args.quiet.is_some(),
        probe_timeout,
        node_tasks,
        only_worker: shared.map(|tasks| LocalRank(tasks.index.value)),
    })
}

/// What a flag stands for.
fn with_value<T>(flag: Option<Setting<Flag>>, value: T) -> Option<Setting<T>> {
    flag.map(|Setting { origin, .. }| Setting { origin, value })
}

/// `--probe-timeout`
pub(super) fn probe_timeout(seconds: Option<Setting<f64>>) -> Result<Duration, CliError> {
    match seconds {
        None => Ok(DEFAULT_PROBE_TIMEOUT),
        Some(Setting { origin, value }) if value.is_nan() || value < MIN_PROBE_TIMEOUT => {
            Err(refused(origin, value, PROBE_LIMIT))
        }
        Some(Setting { value, .. }) => {
            Ok(Duration::try_from_secs_f64(value).unwrap_or(MAX_PROBE_TIMEOUT).min(MAX_PROBE_TIMEOUT))
        }
    }
}

fn read_devices(settings: &Settings<'_>) -> Result<Option<Setting<(String, Selector)>>, CliError> {
    let Some(Setting { origin, value }) = settings.get(&settings.args.devices) else { return Ok(None) };
    match value.parse() {
        Ok(selector) => Ok(Some(Setting { origin, value: (value, selector) })),
        Err(error) => Err(DeviceError::Selector { origin, value, error }.into()),
    }
}

fn read_bind_cores(settings: &Settings<'_>) -> Result<Option<Setting<(String, CoreSelection)>>, CliError> {
    let Some(Setting { origin, value }) = settings.get(&settings.args.bind_cores) else { return Ok(None) };
    match value.parse() {
        Ok(selection) => Ok(Some(Setting { origin, value: (value, selection) })),
        Err(_) => Err(refused(origin, value, CORES)),
    }
}

fn read_worker_count(settings: &Settings<'_>) -> Result<WorkerCount, CliError> {
    let Some(Setting { origin, value }) = settings.get(&settings.args.torchrun.nproc_per_node) else {
        return Ok(WorkerCount::Default);
    };
    if let Some(number) = parse_int(&value) {
        let size = u32::try_from(number).ok().filter(|_| number <= MAX_WORKERS).and_then(LocalWorldSize::new);
        return size.map(WorkerCount::Number).ok_or_else(|| refused(origin, value, WORKER_COUNT));
    }
    Ok(match value.as_str() {
        "cpu" => WorkerCount::Cpus,
        "auto" => WorkerCount::Auto,
        // As torch's own: it calls both `cuda`.
        "gpu" => {
            WorkerCount::Devices { origin, word: value, kinds: vec![DeviceType::Cuda, DeviceType::Rocm] }
        }
        "mtia" | "privateuseone" => return Err(SettingError::not_supported(origin, &value).into()),
        word => match word.parse() {
            Ok(kind) => WorkerCount::Devices { origin, word: value, kinds: vec![kind] },
            Err(_) => return Err(refused(origin, value, WORKER_COUNT)),
        },
    })
}

/// The tasks of a scheduler on this node, where there are several.
fn node_tasks(facts: &Facts) -> Option<NodeTasks> {
    let step = find_step(facts)?;
    let tasks = step.here?;
    let fix = format!("{} rankrun …", step.one_per_node());
    Some(NodeTasks { variable: tasks.variable, count: tasks.count, fix })
}

/// torch's own lines about the number of workers.
fn worker_count_details(
    settings: &Settings<'_>,
    request: &DeviceRequest,
    choice: &DeviceChoice,
) -> Vec<Notice> {
    let text = settings.get(&settings.args.torchrun.nproc_per_node);
    let text = text.map_or_else(|| "1".to_owned(), |found| found.value);
    let line = format!("Using nproc_per_node={text}.");
    let mut notices = vec![Notice::Detail { text: line, torch_line: Some(855) }];
    let kind = choice.workers.first().map(|worker| worker.kind);
    let what = match (&request.worker_count, kind) {
        (WorkerCount::Default | WorkerCount::Number(_), _) => return notices,
        (WorkerCount::Devices { word, .. }, _) => word.clone(),
        (WorkerCount::Auto, Some(DeviceType::Rocm)) => DeviceType::Cuda.to_string(),
        (WorkerCount::Auto, Some(kind)) => kind.to_string(),
        (WorkerCount::Cpus | WorkerCount::Auto, _) => DeviceType::Cpu.to_string(),
    };
    let count = choice.workers.len();
    let line = format!(
        "Using nproc_per_node={text}, setting nproc_per_node to {count} since the instance has {count} {what}"
    );
    notices.push(Notice::Detail { text: line, torch_line: Some(888) });
    notices
}

/// The error with a hint that can be followed under this name.
fn in_words_of(error: CliError, cli_flavor: CliFlavor) -> CliError {
    match (error, cli_flavor) {
        (CliError::Devices(error), CliFlavor::Torchrun) => {
            let (plain, hint) = (error.hint(), as_variables(&error.hint()));
            if hint == plain { (*error).into() } else { error.with_hint(hint).into() }
        }
        (error, _) => error,
    }
}

/// The hint with variables in place of our own options, which torchrun's grammar does not have.
fn as_variables(hint: &str) -> String {
    let spans = hint.split('`').enumerate();
    // Every second span stands between backticks.
    let spans = spans.map(|(at, span)| if at % 2 == 1 { as_variable(span) } else { span.to_owned() });
    spans.collect::<Vec<_>>().join("`")
}

fn as_variable(span: &str) -> String {
    let mut words = span.split(' ').peekable();
    let mut parts: Vec<String> = Vec::new();
    while let Some(word) = words.next() {
        let option = word.strip_prefix("--").and_then(|name| {
            options(CliFlavor::Rankrun)
                .find(|option| option.long_name() == name && option.family() == Family::Rankrun)
        });
        let Some((option, variable)) = option.and_then(|option| Some((option, option.variable()?))) else {
            parts.push(word.to_owned());
            continue;
        };
        let value = words.next_if(|next| option.kind() != Kind::Flag && !next.starts_with("--"));
        parts.push(match (value, option.kind()) {
            (Some(value), _) => format!("{variable}={value}"),
            (None, Kind::Flag) => format!("{variable}=1"),
            (None, _) => variable,
        });
    }
    parts.join(" ")
}

#[cfg(test)]
mod tests;
