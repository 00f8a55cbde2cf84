//! How many workers, and which device each of them has: one discovery, one choice, one handover per launch.
//!
//! | file | what it does |
//! |---|---|
//! | `wishes` | reads the options, and says whether anybody has to look at the hardware |
//! | `chosen` | asks for the choice, and says what is to be said of it |
//! | `count` | how many workers |
//! | `cpus` | workers on the CPUs, and why |
//! | `seats` | which worker has which device |
//! | `advice` | hints that fit what was said, and the name under which it was said |
//! | `told` | the lines that say who sits where |
//!
//! Under the name torchrun nothing is chosen: the workers inherit the vendors' variables as they are, and devices are
//! only counted, where a word asks for it, or bound near to. Our own variables (`RANKRUN_DEVICES`, …) count there too.

mod advice;
mod chosen;
mod count;
mod cpus;
mod seats;
mod told;
mod wishes;

use std::path::Path;

use rankrun_contract::rank::LocalWorldSize;

use super::error::CliError;
use super::settings::Settings;
use super::torchrun::VIRTUAL_LOCAL_RANK;
use crate::device::assignment::DeviceError;
use crate::device::choice::{Choice, SelectedDevice};
use crate::device::visibility::InheritedVariables;
use crate::device::{DeviceType, Machine, Part, ProbeProblemKind, Visibility, presence};
use crate::facts::Facts;
use crate::notice::Notice;
use crate::spec::Verbosity;
use crate::spec::{CliFlavor, DeviceCheck, DeviceSpec, WorkerDevice};
use cpus::Cause;
pub(super) use wishes::read_limit;
use wishes::{Count, Look, Wishes};

/// What was decided about workers and devices.
pub(super) struct Devices {
    pub(super) workers: LocalWorldSize,
    pub(super) seats: Vec<WorkerDevice>,
    pub(super) visibility: Visibility,
    pub(super) spec: DeviceSpec,
    pub(super) check: Option<DeviceCheck>,
    /// Who has which device, to be said last.
    pub(super) lines: Vec<Notice>,
}

/// Counts the workers and gives each its device.
///
/// # Errors
/// What was asked for is not there, is not clear, or cannot be found out.
pub(super) fn resolve_devices(
    settings: &Settings<'_>,
    verbosity: Verbosity,
    notices: &mut Vec<Notice>,
) -> Result<Devices, CliError> {
    let wishes = Wishes::read(settings).map_err(|error| match settings.cli_flavor {
        CliFlavor::Rankrun => error,
        CliFlavor::Torchrun => advice::in_torchruns_words(error),
    })?;
    let mut resolver =
        Resolver { settings, verbosity, inherited: inherited(settings.facts), wishes, notices };
    let resolved = resolver.resolve();
    resolved.map_err(|error| advice::advised(error, &resolver.wishes, settings.cli_flavor))
}

fn inherited(facts: &Facts) -> InheritedVariables {
    InheritedVariables::of(|name| facts.variable(name))
}

/// The CPUs, and what is not to be seen beside them; by names in the file system, since no driver needs to answer for
/// that.
fn hidden(facts: &Facts) -> Choice {
    let there = |path: &str| facts.exists(Path::new(path));
    let marks = [(DeviceType::Rocm, there("/dev/kfd")), (DeviceType::Npu, there("/dev/davinci_manager"))];
    let others = marks.into_iter().filter(|(_, there)| *there).map(|(kind, _)| kind);
    Choice {
        kind: DeviceType::Cpu,
        devices: Vec::new(),
        is_untouched: false,
        pinned: Vec::new(),
        hidden: [DeviceType::Cuda].into_iter().chain(others).collect(),
        warnings: Vec::new(),
    }
}

struct Resolver<'a> {
    settings: &'a Settings<'a>,
    verbosity: Verbosity,
    inherited: InheritedVariables,
    wishes: Wishes,
    notices: &'a mut Vec<Notice>,
}

impl Resolver<'_> {
    fn resolve(&mut self) -> Result<Devices, CliError> {
        let facts = self.settings.facts;
        let sign = || presence::has_accelerator_sign(facts.world(), facts.variable("LD_LIBRARY_PATH"));
        let devices = match self.wishes.look(self.settings.cli_flavor, sign) {
            Look::No => self.unseen(sign())?,
            Look::OnlyCpus => {
                self.refuse_devices_on_cpus()?;
                // Where there are accelerators the workers must not see them.
                let hide = sign().then(|| hidden(facts));
                self.on_cpus(hide.as_ref(), Cause::Requested)?
            }
            Look::Perhaps => {
                let machine = self.discover();
                let choice = match self.trouble(&machine, &[]) {
                    Some((_, error)) => Err(error),
                    None => self.choose(&machine),
                };
                match choice {
                    Ok(choice) => self.on_devices(&machine, &choice)?,
                    Err(error) => {
                        let text = format!("{error}; the workers are not told which device is theirs");
                        self.notices.push(Notice::Device { text });
                        self.unseen(true)?
                    }
                }
            }
            Look::Needed => {
                let kinds = self.wishes.kinds()?;
                let machine = self.discover();
                match self.trouble(&machine, &kinds) {
                    Some((_, error)) if self.needs_the_answer() => return Err(error.into()),
                    Some((kind, error)) if presence::has_node(facts.world(), kind) => {
                        return Err(error.into());
                    }
                    Some((_, error)) => {
                        if !self.tells_cpus() {
                            let text = format!("{error}; no accelerator shows itself, so the CPUs are taken");
                            self.notices.push(Notice::Device { text });
                        }
                        self.on_cpus(None, Cause::LibraryFailed(&error))?
                    }
                    None => {
                        let choice = self.choose(&machine)?;
                        self.on_devices(&machine, &choice)?
                    }
                }
            }
        };
        self.tell_count(&devices)?;
        Ok(devices)
    }

    fn devices(&self, workers: LocalWorldSize, seats: Vec<WorkerDevice>, visibility: Visibility) -> Devices {
        let wishes = &self.wishes;
        let has_devices = seats.iter().any(|seat| seat.device.kind != DeviceType::Cpu);
        Devices {
            workers,
            seats,
            visibility,
            spec: DeviceSpec {
                device_list: wishes.devices.as_ref().map(|listed| listed.value.0.clone()),
                order: wishes.order.as_ref().map(|order| order.value),
                oversubscribe: wishes.oversubscribe,
                binding: wishes.binding.as_ref().map(|binding| binding.value),
            },
            // Nothing can be wrong with devices that nobody has.
            check: wishes.check.filter(|_| has_devices),
            lines: Vec::new(),
        }
    }

    /// `--devices none` with `--nproc-per-node gpu`.
    fn refuse_devices_on_cpus(&self) -> Result<(), DeviceError> {
        if let (Count::Of { origin, word, .. }, Some(listed)) = (&self.wishes.count, &self.wishes.devices) {
            return Err(DeviceError::Contradiction {
                one: origin.clone(),
                value: word.clone(),
                other: listed.origin.clone(),
                other_value: listed.value.0.clone(),
            });
        }
        self.wishes.kinds().map(drop)
    }

    /// What was typed, where the other way to say it is torchrun's.
    fn asked_visibility(&self) -> Result<Visibility, CliError> {
        let virtual_rank = self.settings.flag(&VIRTUAL_LOCAL_RANK)?;
        let otherwise = if virtual_rank { Visibility::Own } else { Visibility::Whole };
        Ok(self.wishes.visibility.unwrap_or(otherwise))
    }

    /// Whether accelerators were asked for, and not only taken where there are some.
    const fn needs_the_answer(&self) -> bool {
        let counts = matches!(self.wishes.count, Count::Default | Count::Auto);
        !counts || self.wishes.about_devices() || self.wishes.binding.is_some()
    }

    /// The first library that did not answer, of those that matter for these types (of any, where there are none).
    fn trouble(&self, machine: &Machine, kinds: &[DeviceType]) -> Option<(DeviceType, DeviceError)> {
        let matters = |kind: &DeviceType| kinds.is_empty() || kinds.contains(kind);
        let mut troubles = machine.troubles.iter().filter(|trouble| matters(&trouble.kind));
        let trouble = troubles.find(|trouble| !matches!(trouble.what, ProbeProblemKind::Missing(_)))?;
        Some((trouble.kind, DeviceError::Trouble { trouble: trouble.clone() }))
    }

    fn discover(&mut self) -> Machine {
        let machine = self.settings.facts.discover(self.wishes.ask(), self.wishes.limit);
        let made_good = machine.made_good.iter().map(|trouble| Notice::Device {
            text: format!("{trouble}; the CUDA driver answers in its place"),
        });
        self.notices.extend(made_good);
        if self.verbosity >= Verbosity::Info {
            let missing = machine.troubles.iter();
            let missing = missing.filter(|trouble| matches!(trouble.what, ProbeProblemKind::Missing(_)));
            self.notices.extend(missing.map(|trouble| Notice::Detail {
                text: format!("looking for {} devices: {}", trouble.kind, trouble),
                torch_line: None,
            }));
        }
        machine
    }

    fn on_devices(&mut self, machine: &Machine, choice: &Choice) -> Result<Devices, CliError> {
        let workers = self.workers(choice)?;
        if choice.kind == DeviceType::Cpu {
            let useless = advice::without_effect(&self.wishes).filter(|_| choice.is_untouched);
            self.notices.extend(useless.map(|text| Notice::Device { text }));
            return if choice.is_untouched {
                self.on_cpus(None, Cause::Choice(machine, &choice.warnings))
            } else {
                self.on_cpus(Some(choice), Cause::Requested)
            };
        }
        self.refuse_sharing(choice, workers)?;
        let mut placed = if self.is_untold(choice)? {
            self.inherit(choice, workers)?
        } else {
            self.hand_over(choice, workers)?
        };
        self.bind(machine, choice, &mut placed)?;
        self.tell_findings(choice);
        let lines = match self.settings.cli_flavor {
            CliFlavor::Rankrun if !self.wishes.quiet => told::lines(&placed.seats),
            CliFlavor::Rankrun | CliFlavor::Torchrun => Vec::new(),
        };
        Ok(Devices { lines, ..self.devices(workers, placed.seats, placed.visibility) })
    }

    /// Whether the vendors' variables stay as they are, but for torch's `--virtual-local-rank`.
    fn is_untold(&self, choice: &Choice) -> Result<bool, CliError> {
        if self.wishes.about_devices() {
            return Ok(false);
        }
        let plain = |chosen: &SelectedDevice| {
            let kind = chosen.accelerator.kind;
            matches!(kind, DeviceType::Cuda | DeviceType::Rocm) && chosen.accelerator.part == Part::Whole
        };
        let as_torchs = self.settings.flag(&VIRTUAL_LOCAL_RANK)? && choice.devices.iter().all(plain);
        Ok(as_torchs || self.is_passive())
    }
}

#[cfg(test)]
mod tests;
