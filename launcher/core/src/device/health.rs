//! Findings about the health of a device, in words. Pure.
//!
//! The vendors define the meaning of the numbers: NVIDIA's are described in the *NVML API Reference* (clocks event
//! reasons, temperature thresholds, ECC counters, retired pages). The thresholds here are ours, and are constants.

use std::fmt;

use super::{Accelerator, Condition, DeviceProcess, DeviceState, Memory, Part, Throttle};

/// A device is hot from this many degrees below its slowdown temperature.
const HEAT_MARGIN: u32 = 3;
/// A device that its power limit throttles is at the limit from this share of it, in per cent.
const NEAR_LIMIT_PERCENT: u64 = 95;
/// Memory of a device that its driver may use itself, in bytes.
const DRIVER_OVERHEAD_BYTES: u64 = 500 << 20;
/// The same in per cent of a large device's memory; the larger value counts.
const DRIVER_OVERHEAD_PERCENT: u64 = 5;
/// Processes of other users that a finding lists; the rest is counted.
const MAX_LISTED_PROCESSES: usize = 3;

/// A finding about a device, for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthFinding {
    /// Whether a launch may use the device.
    pub severity: Severity,
    /// The text after the device's name and a colon, such as `does not answer: GPU is lost`.
    pub text: String,
}

/// The severity of a finding, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The device works; the fact may surprise the user.
    Note,
    /// The device works, but has a defect.
    Warning,
    /// It is dead: a launch on it is refused.
    Fatal,
}

impl Severity {
    /// The severity in machine-readable output.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Fatal => "fatal",
        }
    }
}

impl fmt::Display for HealthFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl HealthFinding {
    const fn warning(text: String) -> Self {
        Self { severity: Severity::Warning, text }
    }
}

/// All findings about one device, the worst first. A process of another user than `own_uid` is a warning.
#[must_use]
pub fn findings(accelerator: &Accelerator, own_uid: u32) -> Vec<HealthFinding> {
    if let Condition::Lost { why } = &accelerator.condition {
        return vec![HealthFinding { severity: Severity::Fatal, text: format!("does not answer: {why}") }];
    }
    let Some(state) = &accelerator.state else { return Vec::new() };
    let mut findings: Vec<HealthFinding> = [
        uncorrected_errors(state),
        heat_finding(state),
        slowdown(state),
        power_cap(state),
        low_power_limit(state),
        retired_memory(state),
    ]
    .into_iter()
    .flatten()
    .collect();
    findings.extend(process_findings(state, own_uid));
    findings.extend(
        accelerator.memory.and_then(|memory| hidden_process_finding(memory, accelerator.part, state)),
    );
    findings
}

/// Those of the cards that have less than half the memory of the largest among them, by their positions in the list:
/// where all do the same work, it ends where the smallest is full. MIG instances are small on purpose and left out.
#[must_use]
pub fn small_memory_findings(accelerators: &[&Accelerator]) -> Vec<(usize, HealthFinding)> {
    let total = |accelerator: &Accelerator| match accelerator.part {
        Part::MigInstance { .. } => None,
        Part::Whole | Part::MigParent | Part::Tile { .. } => accelerator.memory.map(|memory| memory.total),
    };
    let Some(largest) = accelerators.iter().filter_map(|accelerator| total(accelerator)).max() else {
        return Vec::new();
    };
    let is_small = |total: &u64| *total < largest / 2;
    let sizes = accelerators.iter().map(|accelerator| total(accelerator)).enumerate();
    let small = sizes.filter_map(|(at, total)| Some((at, total.filter(is_small)?)));
    small
        .map(|(at, total)| {
            let (total, largest) = (format_bytes(total), format_bytes(largest));
            (
                at,
                HealthFinding::warning(format!(
                    "{total} of memory, less than half of the largest's {largest}"
                )),
            )
        })
        .collect()
}

/// The bytes in use beyond a driver's own: more than 5 per cent or 500 MiB, whichever is larger.
#[must_use]
pub(crate) fn memory_in_use(memory: Memory) -> Option<u64> {
    let used = memory.total.checked_sub(memory.free?)?;
    let share = u128::from(memory.total) * u128::from(DRIVER_OVERHEAD_PERCENT) / 100;
    (used > DRIVER_OVERHEAD_BYTES && u128::from(used) > share).then_some(used)
}

/// Bytes as text: `79.6 GiB`, and below one GiB `512 MiB`.
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    if bytes >= 1 << 30 { format!("{} GiB", format_gib(bytes)) } else { format!("{} MiB", bytes / MIB) }
}

/// Bytes in GiB with one decimal, cut and not rounded: free memory is not more than there is.
#[must_use]
pub fn format_gib(bytes: u64) -> String {
    let tenths = (u128::from(bytes) * 10) >> 30;
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn uncorrected_errors(state: &DeviceState) -> Option<HealthFinding> {
    let count = state.uncorrected_ecc.filter(|count| *count > 0)?;
    let errors = if count == 1 { "error" } else { "errors" };
    let text = format!("{count} uncorrected ECC {errors} since the driver was loaded");
    Some(HealthFinding { severity: Severity::Fatal, text })
}

fn heat_finding(state: &DeviceState) -> Option<HealthFinding> {
    let is_throttled = state.throttle.contains(&Throttle::SoftwareThermal)
        || state.throttle.contains(&Throttle::HardwareThermal);
    let (now, limit) = (state.temperature, state.slowdown_temperature);
    let text = match (is_throttled, now, limit) {
        (true, Some(now), Some(limit)) => {
            format!("{now} °C, slowed down by heat; the hardware steps in at {limit} °C")
        }
        (true, Some(now), None) => format!("{now} °C, slowed down by heat"),
        (true, None, _) => "slowed down by heat".to_owned(),
        (false, Some(now), Some(limit)) if limit > 0 && now.saturating_add(HEAT_MARGIN) >= limit => {
            format!("{now} °C, slows itself down at {limit} °C")
        }
        (false, _, _) => return None,
    };
    Some(HealthFinding::warning(text))
}

/// The hardware slowdown for its power supply; heat has findings of its own.
fn slowdown(state: &DeviceState) -> Option<HealthFinding> {
    let has = |throttle| state.throttle.contains(&throttle);
    let text = if has(Throttle::PowerBrake) {
        "slowed down by the power brake: the supply of the machine is at its limit"
    } else if has(Throttle::HardwareSlowdown) && !has(Throttle::HardwareThermal) {
        "slowed down by the hardware: heat, power brake or a bad supply"
    } else {
        return None;
    };
    Some(HealthFinding::warning(text.to_owned()))
}

fn power_cap(state: &DeviceState) -> Option<HealthFinding> {
    if !state.throttle.contains(&Throttle::PowerCap) {
        return None;
    }
    let text = match (state.power, state.power_limit) {
        (Some(power), Some(limit)) if is_near(power, limit) => {
            format!("slowed down by its power limit: {} of {} W", watts(power), watts(limit))
        }
        // Far below: the cap was hit for a moment.
        (Some(_), Some(_)) => return None,
        (_, Some(limit)) => format!("slowed down by its power limit of {} W", watts(limit)),
        (_, None) => "slowed down by its power limit".to_owned(),
    };
    Some(HealthFinding::warning(text))
}

fn low_power_limit(state: &DeviceState) -> Option<HealthFinding> {
    let (limit, default) = (state.power_limit?, state.default_power_limit?);
    (watts(limit) < watts(default)).then(|| {
        HealthFinding::warning(format!(
            "power limit set to {} W; it came with {} W",
            watts(limit),
            watts(default)
        ))
    })
}

fn retired_memory(state: &DeviceState) -> Option<HealthFinding> {
    let retired = state.retired.filter(|count| *count > 0).map(|count| {
        let parts =
            if count == 1 { "page or row of its memory is" } else { "pages or rows of its memory are" };
        format!("{count} {parts} retired")
    });
    let pending = state.retirement_pending.then(|| "bad memory waits for a reset to be retired".to_owned());
    let text = retired.into_iter().chain(pending).collect::<Vec<_>>().join("; ");
    (!text.is_empty()).then(|| HealthFinding::warning(text))
}

/// Processes on the device: of other users, of unknown users, and of this user.
fn process_findings(state: &DeviceState, own_uid: u32) -> Vec<HealthFinding> {
    let of = |is_owner: &dyn Fn(Option<u32>) -> bool| -> Vec<&DeviceProcess> {
        state.processes.iter().filter(|process| is_owner(process.uid)).collect()
    };
    let groups = [
        (Severity::Warning, "busy with another user's", of(&|uid| uid.is_some_and(|uid| uid != own_uid))),
        (Severity::Warning, "busy with an unknown user's", of(&|uid| uid.is_none())),
        (Severity::Note, "busy with your own", of(&|uid| uid == Some(own_uid))),
    ];
    let present = groups.into_iter().filter(|(_, _, processes)| !processes.is_empty());
    present
        .map(|(severity, description, processes)| {
            let noun = if processes.len() == 1 { "process" } else { "processes" };
            let mut named: Vec<String> =
                processes.iter().take(MAX_LISTED_PROCESSES).map(|one| process_label(one)).collect();
            if processes.len() > MAX_LISTED_PROCESSES {
                named.push(format!("and {} more", processes.len() - MAX_LISTED_PROCESSES));
            }
            HealthFinding { severity, text: format!("{description} {noun}: {}", named.join("; ")) }
        })
        .collect()
}

fn process_label(process: &DeviceProcess) -> String {
    let name = process.name.as_ref().map(|name| format!(" `{name}`")).unwrap_or_default();
    let memory = process.memory.map(|bytes| format!(", {}", format_bytes(bytes))).unwrap_or_default();
    format!("pid {}{name}{memory}", process.pid)
}

/// Memory is in use, and the processes belong to another container, or to a user that is hidden from us. For a card
/// in MIG mode its instances report this.
fn hidden_process_finding(memory: Memory, part: Part, state: &DeviceState) -> Option<HealthFinding> {
    let is_unseen = state.processes.is_empty() && part != Part::MigParent;
    memory_in_use(memory).filter(|_| is_unseen).map(|used| {
        let used = format_bytes(used);
        HealthFinding::warning(format!(
            "{used} of its memory in use by processes that are not to be seen from here"
        ))
    })
}

/// Converts milliwatts to whole watts, rounded.
#[must_use]
pub const fn watts(milliwatts: u64) -> u64 {
    milliwatts.saturating_add(500) / 1000
}

fn is_near(power: u64, limit: u64) -> bool {
    u128::from(power) * 100 >= u128::from(limit) * u128::from(NEAR_LIMIT_PERCENT)
}

#[cfg(test)]
mod tests;
