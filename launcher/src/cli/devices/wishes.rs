//! What the command line says about devices and the number of workers, read once; and from it, whether anybody has to
//! look at the hardware.

use std::time::Duration;

use rankrun_contract::rank::LocalWorldSize;

use crate::cli::error::{CliError, Expected, Origin, SettingError};
use crate::cli::python_text::parse_int;
use crate::cli::resolve::refused;
use crate::cli::run::{
    CHECK_DEVICES, DEVICE_ORDER, DEVICE_TYPE, DEVICE_VISIBILITY, DEVICES, EXCLUDE_UNHEALTHY, OVERSUBSCRIBE,
    PROBE_TIMEOUT, QUIET,
};
use crate::cli::settings::{Setting, Settings};
use crate::cli::torchrun::{NPROC_PER_NODE, NUMA_BINDING};
use crate::device::affinity::NumaBinding;
use crate::device::assignment::DeviceError;
use crate::device::order::DeviceOrder;
use crate::device::selector::Selector;
use crate::device::{DeviceType, ProbeScope, Visibility};
use crate::spec::{CliFlavor, DeviceCheck, Unhealthy};

/// As many processes as Linux can number at most (`PID_MAX_LIMIT`).
const MOST_WORKERS: i128 = 4_194_304;
/// In seconds. Less is too short for any driver.
const SHORTEST_LIMIT: f64 = 0.1;
const DEFAULT_LIMIT: Duration = Duration::from_secs(30);
/// Longer than anybody waits for a driver, and short enough to be added to any instant.
const LONGEST_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// How many workers there are to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Count {
    /// Nothing was said.
    Default,
    /// So many.
    Number(LocalWorldSize),
    /// `cpu`
    Cpus,
    /// `auto`
    Auto,
    /// One for each device of a type; `gpu` has two.
    Of { origin: Origin, word: String, kinds: Vec<DeviceType> },
}

/// Everything that was said about devices.
#[derive(Debug)]
pub(super) struct Wishes {
    pub(super) count: Count,
    pub(super) devices: Option<Setting<(String, Selector)>>,
    pub(super) kind: Option<Setting<DeviceType>>,
    pub(super) order: Option<Setting<DeviceOrder>>,
    pub(super) visibility: Option<Visibility>,
    pub(super) binding: Option<Setting<NumaBinding>>,
    pub(super) check: Option<DeviceCheck>,
    pub(super) oversubscribe: bool,
    pub(super) quiet: bool,
    /// How long a driver's library may take.
    pub(super) limit: Duration,
}

/// Whether the hardware is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// The launch does not depend on it.
    No,
    /// The job runs on the CPUs, whatever else there is.
    OnlyCpus,
    /// Where there are accelerators each worker is told its own; without an answer the launch goes on.
    Perhaps,
    /// The launch depends on it.
    Needed,
}

/// `--probe-timeout`
pub(in crate::cli) fn read_limit(settings: &Settings<'_>) -> Result<Duration, CliError> {
    match settings.float(&PROBE_TIMEOUT)? {
        None => Ok(DEFAULT_LIMIT),
        Some(Setting { origin, value }) if value.is_nan() || value < SHORTEST_LIMIT => {
            Err(refused(origin, value, Expected::ProbeLimit))
        }
        Some(Setting { value, .. }) => {
            Ok(Duration::try_from_secs_f64(value).unwrap_or(LONGEST_LIMIT).min(LONGEST_LIMIT))
        }
    }
}

impl Wishes {
    pub(super) fn read(settings: &Settings<'_>) -> Result<Self, CliError> {
        let seconds = read_limit(settings)?;
        let unhealthy = match (settings.flag(&EXCLUDE_UNHEALTHY)?, settings.flag(&CHECK_DEVICES)?) {
            (true, _) => Some(Unhealthy::Exclude),
            (false, true) => Some(Unhealthy::Refuse),
            (false, false) => None,
        };
        let visibility = |word: &str| match word {
            "all" => Some(Visibility::Whole),
            "own" => Some(Visibility::Own),
            _ => None,
        };
        Ok(Self {
            count: read_count(settings)?,
            devices: read_devices(settings)?,
            kind: settings.typed(&DEVICE_TYPE, |word| word.parse().ok())?,
            order: settings.typed(&DEVICE_ORDER, |word| word.parse().ok())?,
            visibility: settings.typed(&DEVICE_VISIBILITY, visibility)?.map(|found| found.value),
            binding: settings.typed(&NUMA_BINDING, |word| word.parse().ok())?,
            check: unhealthy.map(|unhealthy| DeviceCheck { unhealthy, limit: seconds }),
            oversubscribe: settings.flag(&OVERSUBSCRIBE)?,
            quiet: settings.flag(&QUIET)?,
            limit: seconds,
        })
    }

    /// Whether something was said that a launcher without devices of its own does not know.
    pub(super) const fn about_devices(&self) -> bool {
        self.devices.is_some()
            || self.kind.is_some()
            || self.order.is_some()
            || self.visibility.is_some()
            || self.check.is_some()
            || self.oversubscribe
    }

    /// Whether the job is to run on the CPUs, whatever there is.
    pub(super) fn only_cpus(&self) -> bool {
        match (&self.devices, &self.kind) {
            (Some(listed), _) => listed.value.1 == Selector::None,
            (None, Some(kind)) => kind.value == DeviceType::Cpu,
            (None, None) => false,
        }
    }

    /// Who has to look; `sign` is asked only where it decides.
    pub(super) fn look(&self, cli_flavor: CliFlavor, sign: impl FnOnce() -> bool) -> Look {
        if self.only_cpus() {
            return Look::OnlyCpus;
        }
        if self.about_devices() || self.binding.is_some() {
            return Look::Needed;
        }
        match (&self.count, cli_flavor) {
            (Count::Auto | Count::Of { .. }, _) | (Count::Default, CliFlavor::Rankrun) => Look::Needed,
            (Count::Number(_), CliFlavor::Rankrun) if sign() => Look::Perhaps,
            (Count::Number(_) | Count::Cpus | Count::Default, _) => Look::No,
        }
    }

    /// What must be found out beside which accelerators there are.
    pub(super) fn ask(&self) -> ProbeScope {
        let idle = self.devices.as_ref().is_some_and(|listed| listed.value.1 == Selector::Idle);
        let topology = self.order.as_ref().is_some_and(|order| order.value == DeviceOrder::Topology);
        ProbeScope { state: self.check.is_some() || idle, links: topology, cpus: self.binding.is_some() }
    }

    /// The types that the words allow; any of them where it is empty.
    ///
    /// # Errors
    /// They allow none.
    pub(super) fn kinds(&self) -> Result<Vec<DeviceType>, DeviceError> {
        match (&self.count, &self.kind) {
            (Count::Of { origin, word, kinds }, Some(kind)) if !kinds.contains(&kind.value) => {
                Err(DeviceError::Contradiction {
                    one: origin.clone(),
                    value: word.clone(),
                    other: kind.origin.clone(),
                    other_value: kind.value.to_string(),
                })
            }
            (_, Some(kind)) => Ok(vec![kind.value]),
            (Count::Of { kinds, .. }, None) => Ok(kinds.clone()),
            (_, None) => Ok(Vec::new()),
        }
    }
}

fn read_devices(settings: &Settings<'_>) -> Result<Option<Setting<(String, Selector)>>, CliError> {
    let Some(Setting { origin, value }) = settings.text(&DEVICES)? else { return Ok(None) };
    match value.parse() {
        Ok(selector) => Ok(Some(Setting { origin, value: (value, selector) })),
        Err(error) => Err(DeviceError::Selector { origin, value, error }.into()),
    }
}

fn read_count(settings: &Settings<'_>) -> Result<Count, CliError> {
    let Some(Setting { origin, value }) = settings.text(&NPROC_PER_NODE)? else { return Ok(Count::Default) };
    if let Some(number) = parse_int(&value) {
        let size =
            u32::try_from(number).ok().filter(|_| number <= MOST_WORKERS).and_then(LocalWorldSize::new);
        return size.map(Count::Number).ok_or_else(|| refused(origin, value, Expected::WorkerCount));
    }
    Ok(match value.as_str() {
        "cpu" => Count::Cpus,
        "auto" => Count::Auto,
        // As torch's own: it calls both `cuda`.
        "gpu" => Count::Of { origin, word: value, kinds: vec![DeviceType::Cuda, DeviceType::Rocm] },
        "mtia" | "privateuseone" => return Err(SettingError::NotSupported { origin, value }.into()),
        word => match word.parse() {
            Ok(kind) => Count::Of { origin, word: value, kinds: vec![kind] },
            Err(_) => return Err(refused(origin, value, Expected::WorkerCount)),
        },
    })
}
