//! Workers on the CPUs, and the line that says why.

use rankrun_contract::rank::{LocalRank, LocalWorldSize};

use super::wishes::Count;
use super::{Devices, Resolver};
use crate::cli::error::{CliError, SettingError};
use crate::cli::settings::Setting;
use crate::cli::torchrun::VIRTUAL_LOCAL_RANK;
use crate::cli::virtual_devices::resolve_virtual_devices;
use crate::device::assignment::DeviceError;
use crate::device::choice::{Choice, ChoiceWarning};
use crate::device::cpu_reason::{CpuFacts, CpuReason, find_cpu_reason};
use crate::device::handover::assign_worker_variables;
use crate::device::{Machine, presence};
use crate::notice::Notice;
use crate::reporter::plain::plain;
use crate::spec::{CliFlavor, WorkerDevice};

/// What led to the CPUs.
#[derive(Clone, Copy)]
pub(super) enum Cause<'a> {
    /// An option or a word.
    Requested,
    /// No probe has run, and there may be accelerators.
    Unknown,
    /// No probe has run, since the machine shows no sign of an accelerator.
    NoSign,
    /// A library failed, and no driver has made a device node.
    LibraryFailed(&'a DeviceError),
    /// The choice among the devices of this machine.
    Choice(&'a Machine, &'a [ChoiceWarning]),
}

impl Resolver<'_> {
    /// Workers without a device; known to be on the CPUs where there is no sign of an accelerator.
    pub(super) fn unseen(&mut self, sign: bool) -> Result<Devices, CliError> {
        let mut devices = self.on_cpus(None, if sign { Cause::Unknown } else { Cause::NoSign })?;
        // A count of CPUs means workers on them.
        if sign && self.wishes.count != Count::Cpus {
            devices.seats.iter_mut().for_each(|seat| seat.device.is_known_to_runtime = false);
        }
        Ok(devices)
    }

    /// Workers without a device; `hide` is the choice that keeps accelerators from them.
    pub(super) fn on_cpus(&mut self, hide: Option<&Choice>, cause: Cause<'_>) -> Result<Devices, CliError> {
        if let Some(Setting { origin, value }) = &self.wishes.binding {
            let (origin, value) = (origin.clone(), value.as_str().to_owned());
            return Err(SettingError::NeedsAccelerator { origin, value }.into());
        }
        let workers = self.workers_on_cpus();
        let mut seats: Vec<WorkerDevice> =
            (0..workers.get()).map(|rank| WorkerDevice::cpu(LocalRank(rank))).collect();
        let visibility = match hide {
            Some(choice) => {
                let handover =
                    assign_worker_variables(choice, &self.inherited, workers.get(), self.asked_visibility()?);
                for (seat, handed) in seats.iter_mut().zip(handover.workers) {
                    seat.variables = handed.variables;
                }
                handover.visibility
            }
            None if self.wishes.about_devices() => self.asked_visibility()?,
            None => resolve_virtual_devices(self.settings, &mut seats)?,
        };
        let lines = self.cpu_line(workers, cause).into_iter().collect();
        Ok(Devices { lines, ..self.devices(workers, seats, visibility) })
    }

    /// Whether CPUs deserve a line, if they are what is left.
    pub(super) fn tells_cpus(&self) -> bool {
        let wishes = &self.wishes;
        let requested = wishes.only_cpus() || wishes.count == Count::Cpus;
        self.settings.cli_flavor == CliFlavor::Rankrun && !wishes.quiet && !requested
    }

    /// Whether workers get the entries of the inherited list one by one.
    pub(super) fn is_virtual(&self) -> bool {
        !self.wishes.about_devices() && self.settings.flag(&VIRTUAL_LOCAL_RANK).unwrap_or(false)
    }

    fn cpu_line(&self, workers: LocalWorldSize, cause: Cause<'_>) -> Option<Notice> {
        if !self.tells_cpus() {
            return None;
        }
        let words = match cause {
            Cause::Requested | Cause::Unknown => return None,
            // torch's option hands each entry on unchecked.
            Cause::Choice(machine, _) if self.is_virtual() && !machine.accelerators.is_empty() => {
                return None;
            }
            Cause::NoSign => self.reason(None, &[])?,
            Cause::LibraryFailed(error) => format!("{error}; there is no device node"),
            Cause::Choice(machine, warnings) => self.reason(Some(machine), warnings)?,
        };
        let ranks = match workers.get() {
            1 => "rank 0".to_owned(),
            count => format!("ranks 0-{}", count - 1),
        };
        Some(Notice::OnCpus { line: format!("{ranks} → cpu: {}", plain(&words)) })
    }

    /// Why there is no device; `None` where a variable asks for that.
    fn reason(&self, machine: Option<&Machine>, warnings: &[ChoiceWarning]) -> Option<String> {
        let facts = self.settings.facts;
        let evidence = CpuFacts {
            variable: &|name| facts.variable(name).map(|value| value.to_string_lossy().into_owned()),
            machine,
            warnings,
            has_node: &|kind| machine.is_some() && presence::has_node(facts.world(), kind),
            has_accelerator_sign: &|| {
                machine.is_some()
                    && presence::has_accelerator_sign(facts.world(), facts.variable("LD_LIBRARY_PATH"))
            },
        };
        match find_cpu_reason(&evidence) {
            CpuReason::Requested => None,
            CpuReason::Because(words) => Some(words),
        }
    }
}
