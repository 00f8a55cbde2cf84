//! `rankrun devices` and `rankrun topo`: show the machine, before and during a run.
//!
//! | file | what it does |
//! |---|---|
//! | `second_probe` | a second, shorter probe where the first one lost everything |
//! | `snapshot` | machine, variables and driver → all facts that are shown (pure) |
//! | `fact_text` | facts in words (pure) |
//! | `page` | lines of named cells (pure) |
//! | `devices` | snapshot → page (pure) |
//! | `topo` | machine → matrix and page (pure) |
//! | `json` | both for programs (pure) |
//! | `frame` | a page drawn over the one before (pure) |
//! | `watch`, `terminal` | the loop of `--watch`, and the terminal that it uses |
//!
//! This room opens no vendor's library: the probes do, which are child processes, and a crash or a hang is theirs.
//! This room shows their answers.

mod devices;
mod fact_text;
mod frame;
mod json;
pub(crate) mod page;
mod second_probe;
mod snapshot;
mod terminal;
mod topo;
mod watch;

use std::cell::OnceCell;
use std::io;
use std::time::Duration;

use crate::explain::Style;
use rankrun_core::device::visibility::{AskCuda, InheritedVariables};
use rankrun_core::device::{DeviceType, Machine, ProbeScope};
use rankrun_core::exit_code::{ExitStatus, LAUNCHER_FAILED};
use rankrun_core::facts::{Facts, StandardStream};
use rankrun_core::spec::OutputFormat;
use rankrun_host::system::short_hostname;
use snapshot::{MachineSnapshot, SnapshotContext};

const EVERYTHING: ProbeScope = ProbeScope { state: true, links: true, cpus: true };

/// A question about this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InspectRequest {
    /// What is asked.
    pub subject: Subject,
    /// The mode of the answer; [`OutputMode::Watch`] only of devices.
    pub mode: OutputMode,
    /// `--probe-timeout`: how long a driver's library may take.
    pub limit: Duration,
}

/// What is asked about this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// `devices`
    Devices {
        /// `--device-type`: only these.
        device_type: Option<DeviceType>,
        /// `-i`: only these, by index, UUID or PCI address; empty for all.
        ids: Vec<String>,
    },
    /// `topo`
    Topo,
}

/// How often the machine is looked at, and how it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputMode {
    /// Once.
    Once(OutputFormat),
    /// `--watch`: again and again, so long after the last time.
    Watch(Duration),
}

/// Reasons why the machine cannot be inspected.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// `-i` names a device that is not there.
    #[error("there is no device `{id}` here, only {}", known_ids_text(available))]
    NoSuchDevice {
        /// The device name as it was typed.
        id: String,
        /// The names of the devices that exist.
        available: Vec<String>,
    },
    /// Standard output is a file or a pipe.
    #[error("`--watch` needs a terminal, and standard output is not a terminal")]
    NoTerminal,
    /// The terminal cannot move its cursor.
    #[error("`--watch` needs a terminal that can move its cursor, and `TERM` says that this one cannot")]
    NoCursor,
    /// The terminal or the signals are refused.
    #[error("cannot watch the devices")]
    Terminal(#[from] io::Error),
}

impl InspectError {
    /// One thing to do about it.
    #[must_use]
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoSuchDevice { .. } => {
                Some("`rankrun devices` lists all of them, with what was looked for")
            }
            Self::NoTerminal => {
                Some("for programs there is `rankrun devices --json`, once for each snapshot")
            }
            Self::NoCursor => Some("call `rankrun devices` again and again, or set `TERM`"),
            Self::Terminal(_) => None,
        }
    }
}

fn known_ids_text(available: &[String]) -> String {
    if available.is_empty() { "the CPUs".to_owned() } else { available.join(", ") }
}

/// The output of the command, and its exit status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InspectOutput {
    /// The bytes for the standard output.
    pub text: Vec<u8>,
    /// 1 if no device can be shown because a library hangs, fails or crashes.
    pub status: ExitStatus,
}

/// Probes the machine, and returns the text about it. `style` is for a terminal's text; `can_draw` says whether its
/// cursor moves.
///
/// # Errors
/// `--watch` was asked for and is not possible.
pub fn inspect(
    request: &InspectRequest,
    facts: &Facts,
    style: Style,
    can_draw: bool,
) -> Result<InspectOutput, InspectError> {
    match (&request.subject, request.mode) {
        (Subject::Devices { device_type, ids }, OutputMode::Watch(every)) => {
            if !facts.world().is_terminal(StandardStream::Output) {
                return Err(InspectError::NoTerminal);
            }
            if !can_draw {
                return Err(InspectError::NoCursor);
            }
            let watched = watch::WatchSubject { kind: *device_type, ids, every, limit: request.limit };
            let status = watch::watch(watched, facts, style)?;
            Ok(InspectOutput { text: Vec::new(), status })
        }
        (Subject::Devices { device_type, ids }, _) => {
            render_devices((*device_type, ids), request, facts, style)
        }
        (Subject::Topo, _) => Ok(render_topology(request, facts, style)),
    }
}

fn render_devices(
    (kind, ids): (Option<DeviceType>, &[String]),
    question: &InspectRequest,
    facts: &Facts,
    style: Style,
) -> Result<InspectOutput, InspectError> {
    let answer = OnceCell::new();
    let cuda_order = || answer.get_or_init(|| facts.world().cuda_order(question.limit)).clone();
    let machine = probe_machine(EVERYTHING, question, facts);
    let snapshot = snapshot_of(machine, facts, kind, &cuda_order).filter_ids(ids)?;
    let text = match question.mode {
        OutputMode::Once(OutputFormat::Json) => json::devices(&snapshot),
        OutputMode::Once(OutputFormat::Text) | OutputMode::Watch(_) => {
            devices::page(&snapshot, kind).render(style).into_bytes()
        }
    };
    Ok(InspectOutput { text, status: status(snapshot.is_blind()) })
}

fn render_topology(question: &InspectRequest, facts: &Facts, style: Style) -> InspectOutput {
    let ask = ProbeScope { state: false, links: true, cpus: true };
    let machine = probe_machine(ask, question, facts);
    let host = short_hostname();
    let text = match question.mode {
        OutputMode::Once(OutputFormat::Json) => json::topology(&machine, &host),
        OutputMode::Once(OutputFormat::Text) | OutputMode::Watch(_) => {
            topo::page(&machine, &host, &facts.world().allowed_cpus()).render(style).into_bytes()
        }
    };
    let is_blind = machine.accelerators.is_empty() && machine.troubles.iter().any(fact_text::is_serious);
    InspectOutput { text, status: status(is_blind) }
}

fn probe_machine(ask: ProbeScope, question: &InspectRequest, facts: &Facts) -> Machine {
    second_probe::probe_with_retry(ask, question.limit, |ask, limit| facts.world().probe_devices(ask, limit))
}

const fn status(is_blind: bool) -> ExitStatus {
    if is_blind { ExitStatus::Code(LAUNCHER_FAILED) } else { ExitStatus::SUCCESS }
}

/// A machine as this user's launches would see it.
fn snapshot_of(
    machine: Machine,
    facts: &Facts,
    kind: Option<DeviceType>,
    cuda_order: AskCuda<'_>,
) -> MachineSnapshot {
    let context = SnapshotContext {
        host: &short_hostname(),
        inherited: &InheritedVariables::of(|name| facts.variable(name)),
        affinity: &facts.world().allowed_cpus(),
        own_uid: facts.world().user_id(),
        cuda_order,
    };
    MachineSnapshot::of(machine, kind, &context)
}

#[cfg(test)]
mod example;
#[cfg(test)]
mod tests;
