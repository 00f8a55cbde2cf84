//! How many workers, and which device each of them has: one discovery, one choice, one handover per launch.
//!
//! | file | what it does |
//! |---|---|
//! | `wishes` | reads the options, and says whether anybody has to look at the hardware |
//! | `scheduler` | whether each task of a scheduler is a launcher |
//! | `told` | the lines that say who sits where |
//!
//! Under the name torchrun nothing is chosen: the workers inherit the vendors' variables as they are, and devices are
//! only counted, where a word asks for it, or bound near to. Our own variables (`RANKRUN_DEVICES`, …) count there too.

mod scheduler;
mod told;
mod wishes;

use std::ffi::{OsStr, OsString};
use std::path::Path;

use rankrun_contract::rank::{LocalRank, LocalWorldSize};

use super::Verbosity;
use super::error::{CliError, DeviceError, SettingError, trouble_in_words};
use super::notice::Notice;
use super::settings::{Setting, Settings};
use super::torchrun::{NPROC_PER_NODE, VIRTUAL_LOCAL_RANK};
use super::virtual_devices::resolve_virtual_devices;
use crate::device::affinity::Bindings;
use crate::device::choice::{Choice, Chosen, Question, Request, choose, label};
use crate::device::handover::{Handover, hand_over};
use crate::device::health::{Severity, findings};
use crate::device::visibility::Inherited;
use crate::device::{DeviceType, Machine, Part, TroubleKind, Visibility, presence};
use crate::facts::Facts;
use crate::placement::Device;
use crate::spec::{DeviceCheck, DeviceSpec, Persona, Seat, Unhealthy};
use wishes::{Count, Look, Wishes};

/// What was decided about workers and devices.
pub(super) struct Devices {
    pub(super) workers: LocalWorldSize,
    pub(super) seats: Vec<Seat>,
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
    let wishes = Wishes::read(settings)?;
    let mut resolver =
        Resolver { settings, verbosity, inherited: inherited(settings.facts), wishes, notices };
    resolver.resolve()
}

fn inherited(facts: &Facts) -> Inherited {
    Inherited::of(|name| facts.variable(name))
}

/// The CPUs, and what is not to be seen beside them; by names in the file system, since no driver needs to answer for
/// that.
fn hidden(facts: &Facts) -> Choice {
    let there = |path: &str| facts.exists(Path::new(path));
    let marks = [
        (DeviceType::Rocm, there("/dev/kfd")),
        (DeviceType::Hpu, there("/dev/accel")),
        (DeviceType::Npu, there("/dev/davinci_manager")),
    ];
    let others = marks.into_iter().filter(|(_, there)| *there).map(|(kind, _)| kind);
    Choice {
        kind: DeviceType::Cpu,
        devices: Vec::new(),
        untouched: false,
        pinned: Vec::new(),
        hidden: [DeviceType::Cuda].into_iter().chain(others).collect(),
        warnings: Vec::new(),
    }
}

/// The permitted CPUs.
fn count_cpus(facts: &Facts) -> LocalWorldSize {
    let cpus = u32::try_from(facts.world().affinity_cpus()).unwrap_or(u32::MAX);
    LocalWorldSize::new(cpus).unwrap_or(LocalWorldSize::ONE)
}

struct Resolver<'a> {
    settings: &'a Settings<'a>,
    verbosity: Verbosity,
    inherited: Inherited,
    wishes: Wishes,
    notices: &'a mut Vec<Notice>,
}

impl Resolver<'_> {
    fn resolve(&mut self) -> Result<Devices, CliError> {
        let facts = self.settings.facts;
        let sign = || presence::sign(facts.world(), facts.variable("LD_LIBRARY_PATH"));
        let devices = match self.wishes.look(self.settings.persona, sign) {
            Look::No => self.on_cpus(None)?,
            Look::OnlyCpus => {
                self.refuse_devices_on_cpus()?;
                // Where there are accelerators the workers must not see them.
                let hide = sign().then(|| hidden(facts));
                self.on_cpus(hide.as_ref())?
            }
            Look::Perhaps => {
                let machine = self.discover();
                let choice = self.trouble(&machine, &[]).map_or_else(|| self.choose(&machine), Err);
                match choice {
                    Ok(choice) => self.on_devices(&machine, &choice)?,
                    Err(error) => {
                        let text = format!("{error}; the workers are not told which device is theirs");
                        self.notices.push(Notice::Device { text });
                        self.on_cpus(None)?
                    }
                }
            }
            Look::Needed => {
                let kinds = self.wishes.kinds()?;
                let machine = self.discover();
                if let Some(error) = self.trouble(&machine, &kinds) {
                    return Err(error.into());
                }
                let choice = self.choose(&machine)?;
                self.on_devices(&machine, &choice)?
            }
        };
        self.tell_count(&devices)?;
        Ok(devices)
    }

    /// Nobody has a device; `hide` is the choice that keeps accelerators from them.
    fn on_cpus(&mut self, hide: Option<&Choice>) -> Result<Devices, CliError> {
        if let Some(Setting { origin, value }) = &self.wishes.binding {
            let (origin, value) = (origin.clone(), value.word().to_owned());
            return Err(SettingError::NeedsAccelerator { origin, value }.into());
        }
        let workers = self.workers_on_cpus();
        let mut seats: Vec<Seat> = (0..workers.get()).map(|rank| Seat::cpu(LocalRank(rank))).collect();
        let visibility = match hide {
            Some(choice) => {
                let handover = hand_over(choice, &self.inherited, workers.get(), self.asked_visibility()?);
                for (seat, handed) in seats.iter_mut().zip(handover.workers) {
                    seat.variables = handed.variables;
                }
                handover.visibility
            }
            None if self.wishes.about_devices() => self.asked_visibility()?,
            None => resolve_virtual_devices(self.settings, &mut seats)?,
        };
        Ok(self.devices(workers, seats, visibility))
    }

    fn devices(&self, workers: LocalWorldSize, seats: Vec<Seat>, visibility: Visibility) -> Devices {
        let wishes = &self.wishes;
        Devices {
            workers,
            seats,
            visibility,
            spec: DeviceSpec {
                listed: wishes.devices.as_ref().map(|listed| listed.value.0.clone()),
                order: wishes.order.as_ref().map(|order| order.value),
                oversubscribe: wishes.oversubscribe,
                binding: wishes.binding.as_ref().map(|binding| binding.value),
            },
            check: wishes.check,
            lines: Vec::new(),
        }
    }

    fn workers_on_cpus(&self) -> LocalWorldSize {
        match &self.wishes.count {
            Count::Default | Count::Of { .. } => LocalWorldSize::ONE,
            Count::Number(number) => *number,
            Count::Cpus | Count::Auto => count_cpus(self.settings.facts),
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

    /// The first library that did not answer, of those that matter for these types (of any, where there are none).
    fn trouble(&self, machine: &Machine, kinds: &[DeviceType]) -> Option<DeviceError> {
        let matters = |kind: &DeviceType| kinds.is_empty() || kinds.contains(kind);
        let mut troubles = machine.troubles.iter().filter(|trouble| matters(&trouble.kind));
        let trouble = troubles.find(|trouble| !matches!(trouble.what, TroubleKind::Missing(_)))?;
        Some(DeviceError::Trouble { trouble: trouble.clone() })
    }

    fn discover(&mut self) -> Machine {
        let machine = self.settings.facts.discover(self.wishes.ask(), self.wishes.limit);
        if self.verbosity >= Verbosity::Info {
            let missing = machine.troubles.iter();
            let missing = missing.filter(|trouble| matches!(trouble.what, TroubleKind::Missing(_)));
            self.notices.extend(missing.map(|trouble| Notice::Detail {
                text: format!("no {} devices: {}", trouble.kind, trouble_in_words(trouble)),
                torch_line: None,
            }));
        }
        machine
    }

    fn choose(&mut self, machine: &Machine) -> Result<Choice, DeviceError> {
        let facts = self.settings.facts;
        let unhealthy = match self.wishes.check {
            Some(_) => dead(machine),
            None => Vec::new(),
        };
        let listed = self.wishes.devices.as_ref();
        let request = Request {
            devices: listed.map(|listed| listed.value.1.clone()),
            kind: kind_of(&self.wishes.kinds()?, machine),
            order: self.wishes.order.as_ref().map(|order| order.value),
            exclude_unhealthy: self.wishes.check.is_some_and(|check| check.unhealthy == Unhealthy::Exclude),
        };
        let question = Question {
            machine,
            inherited: &self.inherited,
            request: &request,
            unhealthy: &unhealthy,
            cuda_order: &|| facts.world().cuda_order(self.wishes.limit),
        };
        let choice = choose(&question)?;
        let warnings = choice.warnings.iter();
        self.notices.extend(warnings.map(|warning| Notice::Device { text: warning.to_string() }));
        Ok(choice)
    }

    fn on_devices(&mut self, machine: &Machine, choice: &Choice) -> Result<Devices, CliError> {
        let workers = self.workers(machine, choice)?;
        if choice.kind == DeviceType::Cpu {
            return self.on_cpus((!choice.untouched).then_some(choice));
        }
        self.refuse_sharing(choice, workers)?;
        let mut placed = if self.is_untold(choice)? {
            self.inherit(choice, workers)?
        } else {
            self.hand_over(choice, workers)?
        };
        self.bind(machine, choice, &mut placed)?;
        self.tell_findings(choice);
        let lines = match self.settings.persona {
            Persona::Rankrun if !self.wishes.quiet => told::lines(&placed.seats),
            Persona::Rankrun | Persona::Torchrun => Vec::new(),
        };
        Ok(Devices { lines, ..self.devices(workers, placed.seats, placed.visibility) })
    }

    fn workers(&self, machine: &Machine, choice: &Choice) -> Result<LocalWorldSize, DeviceError> {
        let devices = u32::try_from(choice.devices.len()).ok().and_then(LocalWorldSize::new);
        match &self.wishes.count {
            Count::Number(number) => Ok(*number),
            Count::Cpus => Ok(count_cpus(self.settings.facts)),
            Count::Auto => Ok(devices.unwrap_or_else(|| count_cpus(self.settings.facts))),
            Count::Of { origin, word, .. } => devices.ok_or_else(|| DeviceError::NoAccelerator {
                origin: origin.clone(),
                value: word.clone(),
                torch: self.torchs_words(word),
                missing: self.missing(machine),
            }),
            Count::Default if self.settings.persona == Persona::Torchrun => Ok(LocalWorldSize::ONE),
            Count::Default => {
                let workers = devices.unwrap_or(LocalWorldSize::ONE);
                self.refuse_second_launcher(workers)?;
                Ok(workers)
            }
        }
    }

    /// Where no device of the wanted types was found.
    fn missing(&self, machine: &Machine) -> Vec<String> {
        let Count::Of { kinds, .. } = &self.wishes.count else { return Vec::new() };
        let troubles = machine.troubles.iter().filter(|trouble| kinds.contains(&trouble.kind));
        troubles.map(trouble_in_words).collect()
    }

    fn torchs_words(&self, word: &str) -> Option<&'static str> {
        match (self.settings.persona, word) {
            (Persona::Torchrun, "gpu") => Some("Cuda is not available."),
            (Persona::Torchrun, "xpu") => Some("Xpu is not available."),
            _ => None,
        }
    }

    /// Eight tasks on a node with eight devices would be 64 workers.
    fn refuse_second_launcher(&self, workers: LocalWorldSize) -> Result<(), DeviceError> {
        let facts = self.settings.facts;
        let variable = |name: &str| facts.variable(name).and_then(OsStr::to_str);
        match scheduler::several_tasks(variable) {
            Some(tasks) if workers > LocalWorldSize::ONE => Err(DeviceError::SeveralLaunchers {
                variable: tasks.variable,
                tasks: tasks.count,
                workers: workers.get(),
                fix: tasks.fix,
            }),
            _ => Ok(()),
        }
    }

    fn refuse_sharing(&mut self, choice: &Choice, workers: LocalWorldSize) -> Result<(), DeviceError> {
        let ours = self.settings.persona == Persona::Rankrun;
        if LocalRank(workers.get()).index() <= choice.devices.len() {
            return Ok(());
        }
        if ours && !self.wishes.oversubscribe {
            let there = choice.devices.iter().map(|chosen| label(&chosen.accelerator)).collect();
            return Err(DeviceError::TooManyWorkers { workers: workers.get(), there });
        }
        if choice.kind == DeviceType::Mps {
            let text =
                format!("{} workers share the one MPS device, which has no collectives", workers.get());
            self.notices.push(Notice::Device { text });
        }
        Ok(())
    }

    /// Whether the vendors' variables stay as they are, but for torch's `--virtual-local-rank`.
    fn is_untold(&self, choice: &Choice) -> Result<bool, CliError> {
        if self.wishes.about_devices() {
            return Ok(false);
        }
        let plain = |chosen: &Chosen| {
            let kind = chosen.accelerator.kind;
            matches!(kind, DeviceType::Cuda | DeviceType::Rocm) && chosen.accelerator.part == Part::Whole
        };
        let as_torchs = self.settings.flag(&VIRTUAL_LOCAL_RANK)? && choice.devices.iter().all(plain);
        Ok(as_torchs || self.settings.persona == Persona::Torchrun)
    }

    /// Each worker takes the device of its number, as under torchrun.
    fn inherit(&self, choice: &Choice, workers: LocalWorldSize) -> Result<Placed, CliError> {
        let positions = (0..choice.devices.len()).map(Some).chain(std::iter::repeat(None));
        let positions: Vec<_> = positions.take(LocalRank(workers.get()).index()).collect();
        let mut seats: Vec<Seat> = (0..)
            .zip(&positions)
            .map(|(rank, at)| seat(choice, *at, (LocalRank(rank), rank), Vec::new()))
            .collect();
        let visibility = resolve_virtual_devices(self.settings, &mut seats)?;
        if visibility == Visibility::Own {
            let with_card = seats.iter_mut().filter(|seat| seat.device.card.is_some());
            with_card.for_each(|seat| seat.device.ordinal = 0);
        }
        Ok(Placed { seats, positions, visibility })
    }

    fn hand_over(&mut self, choice: &Choice, workers: LocalWorldSize) -> Result<Placed, CliError> {
        let asked = self.asked_visibility()?;
        let Handover { visibility, forced, workers } =
            hand_over(choice, &self.inherited, workers.get(), asked);
        if let Some(why) = forced {
            let text = format!("each worker sees its own device alone, as LOCAL_RANK 0: {why}");
            self.notices.push(Notice::Device { text });
        }
        let positions = workers.iter().map(|handed| handed.device).collect();
        let seats = (0..).zip(workers).map(|(rank, handed)| {
            seat(choice, handed.device, (LocalRank(rank), handed.ordinal), handed.variables)
        });
        Ok(Placed { seats: seats.collect(), positions, visibility })
    }

    /// `--numa-binding`
    fn bind(&self, machine: &Machine, choice: &Choice, placed: &mut Placed) -> Result<(), DeviceError> {
        let Some(Setting { origin, value: binding }) = &self.wishes.binding else { return Ok(()) };
        let allowed = self.settings.facts.world().affinity();
        let nodes: Vec<u32> =
            choice.devices.iter().map(|chosen| chosen.accelerator.numa_node.unwrap_or(0)).collect();
        let layout = machine.cpus.clone().unwrap_or_default();
        let bindings = Bindings { layout: &layout, allowed: &allowed, nodes: &nodes };
        for (rank, (seat, at)) in (0..).zip(placed.seats.iter_mut().zip(&placed.positions)) {
            let cpus = bindings.cpus(*binding, at.unwrap_or(LocalRank(rank).index()));
            seat.cpus = Some(cpus.map_err(|error| DeviceError::Binding {
                origin: origin.clone(),
                value: binding.word().to_owned(),
                local_rank: LocalRank(rank),
                error,
            })?);
        }
        Ok(())
    }

    /// What a check found that does not forbid the launch.
    fn tell_findings(&mut self, choice: &Choice) {
        if self.wishes.check.is_none() {
            return;
        }
        for chosen in &choice.devices {
            let all = findings(&chosen.accelerator, rustix::process::getuid().as_raw());
            let warnings = all.iter().filter(|finding| finding.severity == Severity::Warning);
            let device = label(&chosen.accelerator);
            self.notices
                .extend(warnings.map(|finding| Notice::Device { text: format!("{device} {finding}") }));
        }
    }

    /// torch's own lines about the number of workers, for whoever asked to hear them.
    fn tell_count(&mut self, devices: &Devices) -> Result<(), CliError> {
        if self.settings.persona == Persona::Rankrun || self.verbosity < Verbosity::Info {
            return Ok(());
        }
        let said = self.settings.text(&NPROC_PER_NODE)?.map_or_else(|| "1".to_owned(), |said| said.value);
        let text = format!("Using nproc_per_node={said}.");
        self.notices.push(Notice::Detail { text, torch_line: Some(855) });
        let what = match (&self.wishes.count, devices.seats.first().map(|seat| seat.device.kind)) {
            (Count::Default | Count::Number(_), _) => return Ok(()),
            (Count::Of { word, .. }, _) => word.clone(),
            (Count::Auto, Some(DeviceType::Rocm)) => DeviceType::Cuda.to_string(),
            (Count::Auto, Some(kind)) => kind.to_string(),
            (Count::Cpus | Count::Auto, _) => DeviceType::Cpu.to_string(),
        };
        let count = devices.workers;
        let text = format!(
            "Using nproc_per_node={said}, setting nproc_per_node to {count} since the instance has {count} {what}"
        );
        self.notices.push(Notice::Detail { text, torch_line: Some(888) });
        Ok(())
    }
}

/// Workers on devices.
struct Placed {
    seats: Vec<Seat>,
    /// By local rank: which of the chosen devices.
    positions: Vec<Option<usize>>,
    visibility: Visibility,
}

/// What one worker sits on: one of the chosen devices, by the number under which it finds that, or the CPUs.
fn seat(
    choice: &Choice,
    at: Option<usize>,
    (local_rank, ordinal): (LocalRank, u32),
    variables: Vec<(&'static str, Option<OsString>)>,
) -> Seat {
    let device = match at.and_then(|at| choice.devices.get(at)) {
        Some(chosen) => {
            let card = Some(told::card(chosen));
            Device { kind: choice.kind, ordinal, card }
        }
        None => Device::cpu(local_rank.0),
    };
    Seat { device, variables, cpus: None }
}

/// The devices that cannot work, with the reason.
fn dead(machine: &Machine) -> Vec<(usize, String)> {
    let uid = rustix::process::getuid().as_raw();
    let of = |(at, accelerator)| {
        let fatal =
            findings(accelerator, uid).into_iter().find(|finding| finding.severity == Severity::Fatal);
        fatal.map(|finding| (at, finding.text))
    };
    machine.accelerators.iter().enumerate().filter_map(of).collect()
}

/// One type, where the words leave it open the one of which there are devices.
fn kind_of(kinds: &[DeviceType], machine: &Machine) -> Option<DeviceType> {
    let is_there = |kind: &&DeviceType| machine.accelerators.iter().any(|found| found.kind == **kind);
    kinds.iter().find(is_there).or_else(|| kinds.first()).copied()
}

#[cfg(test)]
mod tests;
