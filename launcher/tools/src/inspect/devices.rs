//! The text page of `rankrun devices`. Pure: a snapshot comes in, a page of named cells goes out.
//!
//! The most important facts come first and fit 100 columns: one row per device with its load and heat, its problems,
//! and its processes. Then the names and addresses of the devices, and the launcher's plan for them.

use rankrun_core::device::choice::number;
use rankrun_core::device::health::{Severity, format_bytes};
use rankrun_core::device::{
    Accelerator, Condition, DeviceProcess, DeviceState, DeviceType, Machine, Part, ProbeProblem,
};

use super::fact_text;
use super::page::{Align, Column, Page, Row, Tone, width};
use super::snapshot::{DeviceWarningLine, MachineSnapshot};

/// A longer name is cut, and shown whole in the second table.
const MAX_NAME_LENGTH: usize = 24;

const STATES: [Column; 9] = [
    Column("#", Align::Left),
    Column("type", Align::Left),
    Column("name", Align::Left),
    Column("memory free", Align::Right),
    Column("°C", Align::Right),
    Column("power W", Align::Right),
    Column("clock MHz", Align::Right),
    Column("use %", Align::Right),
    Column("throttle", Align::Left),
];
const PLACES: [Column; 8] = [
    Column("#", Align::Left),
    Column("PCI address", Align::Left),
    Column("NUMA", Align::Right),
    Column("compute", Align::Left),
    Column("module", Align::Right),
    Column("UUID", Align::Left),
    Column("hidden by", Align::Left),
    Column("full name", Align::Left),
];
const PROCESSES: [Column; 5] = [
    Column("#", Align::Left),
    Column("pid", Align::Right),
    Column("memory", Align::Right),
    Column("owner", Align::Left),
    Column("process", Align::Left),
];
const ORDERS: [Column; 3] = [
    Column("type", Align::Left),
    Column("--device-order", Align::Left),
    Column("devices in rank order", Align::Left),
];
const SOURCES: [Column; 2] = [Column("type", Align::Left), Column("looked for", Align::Left)];

pub(super) fn page(snapshot: &MachineSnapshot, kind: Option<DeviceType>) -> Page {
    let mut page = Page::default();
    let title = [("title", &*format!("{}: {}", snapshot.host, summary(snapshot, kind)), Tone::Heading)];
    page.line("title", &title);
    let devices = || snapshot.machine.accelerators.iter().enumerate();
    page.section(&STATES, devices().map(|(at, device)| state_row(snapshot, at, device)).collect());
    warnings(&mut page, snapshot);
    processes(&mut page, snapshot);
    page.section(&PLACES, devices().map(|(at, device)| place_row(snapshot, at, device)).collect());
    orders(&mut page, snapshot);
    if devices().next().is_none() {
        sources(&mut page, &snapshot.machine);
    }
    processors(&mut page, &snapshot.machine, &snapshot.affinity);
    page
}

/// `2 cuda devices, 1 rocm device`; MIG instances are devices, and the card that they share is not.
fn summary(snapshot: &MachineSnapshot, kind: Option<DeviceType>) -> String {
    let of = |kind: DeviceType| {
        let is_device = |device: &&Accelerator| device.kind == kind && device.part != Part::MigParent;
        snapshot.machine.accelerators.iter().filter(is_device).count()
    };
    let noun = |kind: DeviceType| format!("{kind} device");
    let counts: Vec<String> = DeviceType::ALL
        .into_iter()
        .filter(|kind| of(*kind) > 0)
        .map(|kind| fact_text::count(of(kind), &noun(kind)))
        .collect();
    match (counts.is_empty(), kind) {
        (true, _) if snapshot.is_blind() => "the accelerators are not known".to_owned(),
        (true, None | Some(DeviceType::Cpu)) => "no accelerators".to_owned(),
        (true, Some(kind)) => format!("no {kind} devices"),
        (false, _) => counts.join(", "),
    }
}

/// A MIG instance is listed below its card.
fn index(device: &Accelerator) -> String {
    let indent = if matches!(device.part, Part::MigInstance { .. }) { "  " } else { "" };
    format!("{indent}{}", number(device))
}

fn key(table: &str, device: &Accelerator) -> String {
    format!("{table}/{}/{}", device.kind, number(device))
}

fn state_row(snapshot: &MachineSnapshot, at: usize, device: &Accelerator) -> Row {
    let worst =
        snapshot.warnings.iter().filter(|warning| warning.device == Some(at)).map(|warning| warning.severity);
    let tone = worst.max().map_or(Tone::Plain, tone_of);
    let nothing = DeviceState::default();
    let state = device.state.as_deref().unwrap_or(&nothing);
    let throttle = match &device.condition {
        Condition::Lost { .. } => ("does not answer".to_owned(), Tone::Bad),
        Condition::Answers => (fact_text::throttles(&state.throttle), Tone::Plain),
    };
    let number = |number: Option<u32>| number.map_or_else(String::new, |number| number.to_string());
    let (clock, most) = (state.clock.map(u64::from), state.max_clock.map(u64::from));
    Row::new(key("state", device))
        .toned(index(device), tone)
        .cell(device.kind.as_str())
        .cell(truncate_name(&device.name))
        .cell(fact_text::memory(device.memory))
        .cell(number(state.temperature))
        .cell(fact_text::power(state.power, state.power_limit))
        .cell(fact_text::format_with_limit(clock, most))
        .cell(number(state.utilisation))
        .toned(throttle.0, throttle.1)
}

fn place_row(snapshot: &MachineSnapshot, at: usize, device: &Accelerator) -> Row {
    let capability = device.state.as_ref().and_then(|state| state.compute_capability);
    let capability = capability.map_or_else(String::new, |(major, minor)| format!("{major}.{minor}"));
    let number = |number: Option<u32>| number.map_or_else(String::new, |number| number.to_string());
    let full_name = if truncate_name(&device.name) == device.name { "" } else { &device.name };
    Row::new(key("place", device))
        .cell(index(device))
        .cell(device.pci.map_or_else(String::new, |address| address.to_string()))
        .cell(number(device.numa_node))
        .cell(capability)
        .cell(number(device.module_id))
        .cell(device.uuid.clone().unwrap_or_default())
        .toned(snapshot.hidden_by[at].clone().unwrap_or_default(), Tone::Warning)
        .cell(full_name)
}

fn truncate_name(name: &str) -> String {
    if width(name) <= MAX_NAME_LENGTH {
        return name.to_owned();
    }
    name.chars().take(MAX_NAME_LENGTH - 1).chain(['…']).collect()
}

const fn tone_of(severity: Severity) -> Tone {
    match severity {
        Severity::Note => Tone::Plain,
        Severity::Warning => Tone::Warning,
        Severity::Fatal => Tone::Bad,
    }
}

/// Troubles of the probes and of devices. This user's own processes are in the table of processes.
fn warnings(page: &mut Page, snapshot: &MachineSnapshot) {
    let shown: Vec<&DeviceWarningLine> =
        snapshot.warnings.iter().filter(|warning| warning.severity > Severity::Note).collect();
    add_probe_problems(page, &snapshot.machine);
    if !shown.is_empty() && !snapshot.machine.troubles.iter().any(fact_text::is_serious) {
        page.blank();
    }
    for warning in shown {
        let label = if warning.severity == Severity::Fatal { "error:" } else { "warning:" };
        let subject =
            warning.device.and_then(|at| snapshot.machine.accelerators.get(at)).map(fact_text::device);
        let subject = subject.map(|subject| format!("{subject}: ")).unwrap_or_default();
        let text = format!(" {subject}{}", warning.text);
        // The same warning with other numbers is the same line, changed.
        let text_without_digits = text.replace(|letter: char| letter.is_ascii_digit(), "");
        let key = format!("warning/{:?}/{text_without_digits}", warning.device);
        page.line(key, &[("label", label, tone_of(warning.severity)), ("text", &text, Tone::Plain)]);
    }
}

fn processes(page: &mut Page, snapshot: &MachineSnapshot) {
    let mut rows = Vec::new();
    for device in &snapshot.machine.accelerators {
        for process in device.state.iter().flat_map(|state| &state.processes) {
            rows.push(process_row(device, process, snapshot.own_uid));
        }
    }
    page.section(&PROCESSES, rows);
}

fn process_row(device: &Accelerator, process: &DeviceProcess, own_uid: u32) -> Row {
    let (owner, tone) = match process.uid {
        Some(uid) if uid == own_uid => ("yours".to_owned(), Tone::Plain),
        Some(uid) => (format!("uid {uid}"), Tone::Warning),
        None => ("not known".to_owned(), Tone::Warning),
    };
    Row::new(format!("{}/{}", key("process", device), process.pid))
        .cell(index(device))
        .cell(process.pid.to_string())
        .cell(process.memory.map_or_else(String::new, format_bytes))
        .toned(owner, tone)
        .cell(process.name.clone().unwrap_or_default())
}

/// The orders, if the devices have more than one.
fn orders(page: &mut Page, snapshot: &MachineSnapshot) {
    let kinds: Vec<DeviceType> = DeviceType::ALL
        .into_iter()
        .filter(|kind| snapshot.orders.iter().any(|order| order.kind == *kind && !is_trivial(&order.devices)))
        .collect();
    let rows: Vec<Row> = snapshot
        .orders
        .iter()
        .filter(|order| kinds.contains(&order.kind))
        .map(|order| {
            let (text, tone) = match &order.devices {
                Ok(devices) => {
                    let index = |at: &usize| number(&snapshot.machine.accelerators[*at]);
                    (devices.iter().map(index).collect::<Vec<_>>().join(" "), Tone::Plain)
                }
                Err(why) => (why.clone(), Tone::Faint),
            };
            let kind = if kinds.len() > 1 { order.kind.as_str() } else { "" };
            let key = format!("order/{}/{}", order.kind, order.order.as_str());
            Row::new(key).cell(kind).cell(order.order.as_str()).toned(text, tone)
        })
        .collect();
    page.section(&ORDERS, rows);
}

fn is_trivial(devices: &Result<Vec<usize>, String>) -> bool {
    matches!(devices, Ok(devices) if devices.len() < 2)
}

/// The troubles of the probes.
pub(super) fn add_probe_problems(page: &mut Page, machine: &Machine) {
    let all = machine.troubles.iter().chain(&machine.made_good);
    let serious: Vec<&ProbeProblem> = all.filter(|problem| fact_text::is_serious(problem)).collect();
    if !serious.is_empty() {
        page.blank();
    }
    for problem in serious {
        let text = format!(" {}: {problem}", problem.kind);
        let key = format!("trouble/{}/{}", problem.kind, problem.source);
        page.line(key, &[("label", "error:", Tone::Bad), ("text", &text, Tone::Plain)]);
    }
}

/// No device was found: lists the searched sources.
pub(super) fn sources(page: &mut Page, machine: &Machine) {
    let missing = machine.troubles.iter().filter(|problem| !fact_text::is_serious(problem));
    let rows: Vec<Row> = missing
        .map(|problem| {
            let key = format!("source/{}/{}", problem.kind, problem.source);
            Row::new(key).cell(problem.kind.as_str()).cell(problem.to_string())
        })
        .collect();
    page.section(&SOURCES, rows);
}

/// The CPUs, where they are known.
pub(super) fn processors(page: &mut Page, machine: &Machine, affinity: &[u32]) {
    let processors = fact_text::processors(machine, affinity);
    if !processors.is_empty() {
        page.blank();
        page.line("CPUs", &[("CPUs", &processors, Tone::Plain)]);
    }
}

#[cfg(test)]
mod tests;
